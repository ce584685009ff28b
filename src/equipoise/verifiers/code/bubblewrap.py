"""Starts the guest's interpreter in bubblewrap's namespaces, as nobody or able to become nobody.

Not here: the limits of a program (sandbox.py), the files it sees (guest_root.py).
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from equipoise.verifiers.code.guest_root import environment, interpreter, mounts
from equipoise.verifiers.workers.deadline import Deadline

# to start a sandbox: a loaded machine is slow at it, and nothing of the response runs before
START_SECONDS = 60.0
END_SECONDS = 10.0  # for bubblewrap to see that its first process was killed
# seconds: the kernel counts the namespaces of the dead for a moment
WAITS = (0.02, 0.1, 0.4, 1.0, 2.0)
NOBODY = 65534


class Unavailable(Exception):
    """No sandbox can be had here; the message says why and what to do."""


class Full(Unavailable):
    """As many namespaces as the machine allows (`sysctl user`) are there already."""


def started(
    arguments: Sequence[str], deadline: Deadline, **options: Any
) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and a pidfd of its namespace's first process."""
    for wait in WAITS:
        with contextlib.suppress(Full):
            return _started(arguments, deadline, **options)
        time.sleep(min(wait, max(0.0, deadline.left())))
    return _started(arguments, deadline, **options)


def _started(
    arguments: Sequence[str],
    deadline: Deadline,
    *,
    rights: Sequence[str] = (),
    inherited: Sequence[int] = (),
    packages: tuple[str, ...] = (),
    **streams: Any,
) -> tuple[subprocess.Popen[bytes], int]:
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # what is started would ignore it too
        raise Unavailable("this process ignores SIGCHLD, so nobody would see how a sandbox ends")
    root = starts_as_root()
    with contextlib.ExitStack() as opened:
        (info_out, info_in), (hold_out, hold_in) = pipe(opened), pipe(opened)
        inherited = [*inherited, info_in.fileno()]
        arguments = [*arguments, "--info-fd", str(info_in.fileno())]
        if root:
            # As root mapped to itself RLIMIT_NPROC would not bind, and as nobody bubblewrap could
            # not bind an interpreter that lies in root's home. So it starts as root and the guest
            # turns into nobody.
            inherited.append(hold_out.fileno())
            arguments += ["--userns-block-fd", str(hold_out.fileno())]
            arguments += ["--cap-drop", "ALL"]
            rights = (*rights, "CAP_SETUID", "CAP_SETGID")
        else:
            arguments += ["--uid", str(NOBODY), "--gid", str(NOBODY)]
        for right in rights:
            arguments += ["--cap-add", right]
        arguments.append("--clearenv")
        for name, value in environment().items():
            arguments += ["--setenv", name, value]
        bwrap = shutil.which("bwrap") or "bwrap"
        command = [bwrap, *arguments, *mounts(packages), "--", *interpreter()]
        # bubblewrap may need libraries that lie where our own do; the guest sees nothing of these
        own = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in os.environ}
        process = subprocess.Popen(command, env=own, pass_fds=inherited, **streams)
        handle = None
        try:
            info_in.close()
            hold_out.close()
            first = _first_process(info_out, process, deadline)
            handle = os.pidfd_open(first)
            if root:
                for name in ("uid_map", "gid_map"):
                    Path(f"/proc/{first}/{name}").write_text(f"0 0 1\n{NOBODY} {NOBODY} 1\n")
                hold_in.write(b"1")
        except BaseException:
            if handle is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                os.close(handle)
            with process:  # closes its streams, and reaps it
                process.kill()
            raise
    return process, handle


def end(process: subprocess.Popen[bytes], handle: int) -> None:
    """Kill the first process, whose death is the namespace's; bubblewrap reaps it and ends."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@functools.cache
def starts_as_root() -> bool:
    """Whether the guest starts as root: we are, and this user namespace knows nobody as well."""
    ranges = [
        map(int, line.split()) for line in Path("/proc/self/uid_map").read_text().splitlines()
    ]
    mapped = any(start <= NOBODY < start + count for start, _, count in ranges)
    return os.geteuid() == 0 and mapped


def pipe(opened: contextlib.ExitStack) -> tuple[io.FileIO, io.FileIO]:
    """Its two ends, which `opened` closes."""
    out, in_ = os.pipe()
    return opened.enter_context(io.FileIO(out)), opened.enter_context(io.FileIO(in_, "w"))


def _first_process(info: io.FileIO, process: subprocess.Popen[bytes], deadline: Deadline) -> int:
    text, poll = b"", select.poll()
    poll.register(info, select.POLLIN)
    while b"}" not in text:
        chunk = info.read(4096) if poll.poll(max(0, deadline.left()) * 1000) else b""
        if not chunk:
            said = complaint(process.stderr or process.stdout)
            kind = Full if "ENOSPC" in said else Unavailable
            raise kind(f"bubblewrap made no namespaces: {said}")
        text += chunk
    return int(json.loads(text)["child-pid"])


def complaint(stream: IO[bytes] | io.FileIO | None) -> str:
    """What was written there: only bubblewrap and a guest that cannot start write to stderr."""
    assert stream is not None
    os.set_blocking(stream.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        said = os.read(stream.fileno(), 4000).decode("utf-8", "replace").strip()
        return said or "it said nothing"
    return "it said nothing"

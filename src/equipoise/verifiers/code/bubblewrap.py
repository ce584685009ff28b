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
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from equipoise.verifiers.code.guest_root import environment, interpreter, mounts

# a loaded machine is slow to start a process; nothing of the response runs before this is over
START_SECONDS = 60.0
NOBODY = 65534


class Unavailable(Exception):
    """No sandbox can be had here; the message says why and what to do."""


def started(
    arguments: Sequence[str],
    *,
    rights: Sequence[str] = (),
    inherited: Sequence[int] = (),
    packages: tuple[str, ...] = (),
    **streams: Any,
) -> tuple[subprocess.Popen[bytes], int]:
    """The process, and the pid, as seen from here, of its namespace's first process."""
    root = starts_as_root()
    with pipe() as (info_out, info_in), pipe() as (hold_out, hold_in):
        inherited = [*inherited, info_in.fileno()]
        arguments = [*arguments, "--info-fd", str(info_in.fileno())]
        if root:
            # As root mapped to itself RLIMIT_NPROC would not bind, and as nobody bubblewrap could
            # not bind an interpreter that lies in root's home. So it starts as root and the guest
            # turns into nobody.
            inherited.append(hold_out.fileno())
            arguments += ["--userns-block-fd", str(hold_out.fileno())]
            rights = (*rights, "CAP_SETUID", "CAP_SETGID")
        else:
            arguments += ["--uid", str(NOBODY), "--gid", str(NOBODY)]
        for right in rights:
            arguments += ["--cap-add", right]
        bwrap = shutil.which("bwrap") or "bwrap"
        command = [bwrap, *arguments, *mounts(packages), "--", *interpreter()]
        process = subprocess.Popen(command, env=environment(), pass_fds=inherited, **streams)
        try:
            info_in.close()
            hold_out.close()
            first = _first_process(info_out, process)
            if root:
                for name in ("uid_map", "gid_map"):
                    Path(f"/proc/{first}/{name}").write_text(f"0 0 1\n{NOBODY} {NOBODY} 1\n")
                hold_in.write(b"1")
        except BaseException:
            process.kill()
            process.communicate()
            raise
    return process, first


@functools.cache
def starts_as_root() -> bool:
    """Whether the guest starts as root: we are, and this user namespace knows nobody as well."""
    ranges = [
        map(int, line.split()) for line in Path("/proc/self/uid_map").read_text().splitlines()
    ]
    mapped = any(start <= NOBODY < start + count for start, _, count in ranges)
    return os.geteuid() == 0 and mapped


@contextlib.contextmanager
def pipe() -> Iterator[tuple[io.FileIO, io.FileIO]]:
    out, in_ = os.pipe()
    with io.FileIO(out, "r") as reader, io.FileIO(in_, "w") as writer:
        yield reader, writer


def _first_process(info: io.FileIO, process: subprocess.Popen[bytes]) -> int:
    text, poll, deadline = b"", select.poll(), time.monotonic() + START_SECONDS
    poll.register(info, select.POLLIN)
    while b"}" not in text:
        left = max(0, deadline - time.monotonic())
        chunk = info.read(4096) if poll.poll(left * 1000) else b""
        if not chunk:
            said = complaint(process.stderr or process.stdout)
            raise Unavailable(f"bubblewrap made no namespaces: {said}")
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

"""One isolated process per verdict: bubblewrap, a seccomp filter, resource limits, cgroups.

`run` starts `guest.py` in new user, mount, pid, network, ipc, uts and cgroup namespaces, as an
unprivileged user, with an empty environment and a read-only root that holds the interpreter, its
standard library and the system's shared libraries. There is no home, no /proc, no /sys, no shell
and, unless asked for (`packages`), no site-packages; the only writable place is a tmpfs of bounded
size. When the `with` block ends, however it ends, the whole pid namespace is dead.

Not covered: a hole in the kernel, and side channels (how long the machine takes, what it caches).
Memory is bounded per process; for all processes of a sandbox together only where a memory cgroup
can be made. Linux on x86_64 and aarch64.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import marshal
import math
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from equipoise.verifiers.code import cgroups, seccomp
from equipoise.verifiers.code import guest as guest_module
from equipoise.verifiers.code.guest_root import FOLDER, environment, interpreter, mounts
from equipoise.verifiers.workers.deadline import Deadline

# a loaded machine is slow to start a process; nothing of the response runs before this is over
_START_SECONDS = 60.0
_NOBODY = 65534
_INTERPRETER_BYTES = 64 << 20
# before this kernel RLIMIT_NPROC counts all processes of the user, ours and others
_NPROC_PER_NAMESPACE = (5, 14)


class Unavailable(Exception):
    """No sandbox can be had here; the message says why and what to do."""


class Gone(Exception):
    """The sandbox ended before it answered."""


class Late(Exception):
    """The deadline passed."""


class Flood(Exception):
    """More came out than the cap allows."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one verdict may use.

    seconds: of one test or one call, total_seconds: of all of them together, in CPU time and time
    asleep; waiting for a core does not count, up to ten times as much on the wall clock
    (`equipoise.verifiers.workers.deadline`). memory_bytes: address space of each process, and where
    a memory cgroup can be made, the memory of all together. output_bytes: of stdout, of stderr and
    of one returned value, each; more ends the verdict.
    processes: processes and threads at one time. disk_bytes, files: of the scratch folder.
    allow_unsafe: run without namespaces and without seccomp where no sandbox can be had. The
    response then runs as you: it can read and change every file you can, use the network, signal
    your processes, and leave some behind. What remains: it never holds an expected output or the
    verdict, its environment is empty, memory, output and file size are bounded per process, and its
    process group is killed at the deadline. For code you would run yourself.
    """

    seconds: float = 6.0
    total_seconds: float = 30.0
    memory_bytes: int = 1 << 30
    output_bytes: int = 4 << 20
    processes: int = 32
    disk_bytes: int = 32 << 20
    files: int = 1000
    allow_unsafe: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "allow_unsafe" and not (value > 0 and math.isfinite(value)):
                raise ValueError(
                    f"limits.{field.name} = {value!r}: must be a finite number above 0"
                )
        if self.memory_bytes < _INTERPRETER_BYTES:
            raise ValueError(
                f"limits.memory_bytes = {self.memory_bytes}: the interpreter alone needs {_INTERPRETER_BYTES} (64 MiB)"
            )


class Guest:
    """A running guest: bytes in, bytes out, and an end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        # pidfd of the first process of the pid namespace, where there is one
        self.first: int | None = None
        self.pid = process.pid  # of the first process inside, as seen from here
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin.fileno(), process.stdout.fileno()
        self._buffer = bytearray()
        for descriptor in (self._in, self._out):
            os.set_blocking(descriptor, False)

    def _wait(self, descriptor: int, event: int, deadline: Deadline) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        while not poll.poll(max(0, math.ceil(deadline.left() * 1000))):
            if deadline.passed():
                raise Late

    def send(self, data: bytes, deadline: Deadline) -> None:
        view = memoryview(data)
        while view:
            self._wait(self._in, select.POLLOUT, deadline)
            with contextlib.suppress(BlockingIOError):
                try:
                    view = view[os.write(self._in, view) :]
                except BrokenPipeError:
                    # It may have said why before it went.
                    return

    def _fill(self, deadline: Deadline) -> None:
        self._wait(self._out, select.POLLIN, deadline)
        if not (chunk := os.read(self._out, 1 << 16)):
            raise Gone
        self._buffer += chunk

    def take(self, count: int, deadline: Deadline) -> bytes:
        while len(self._buffer) < count:
            self._fill(deadline)
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def line(self, deadline: Deadline, cap: int) -> bytes:
        """The next line without its end; `Flood` when it is longer than `cap`."""
        seen = 0
        while (end := self._buffer.find(b"\n", seen)) < 0:
            seen = len(self._buffer)
            if seen > cap:
                raise Flood
            self._fill(deadline)
        if end > cap:
            raise Flood
        return self.take(end + 1, deadline)[:-1]

    def complaint(self) -> str:
        """What the process wrote to stderr: only bubblewrap and a guest that cannot start write."""
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            return os.read(self._process.stderr.fileno(), 4000).decode("utf-8", "replace").strip()
        return ""

    def close(self) -> None:
        """Kill the whole pid namespace and wait until it is gone."""
        if self.first is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                # a guest without a namespace leads a group
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
        else:
            # Its death is the namespace's, and bubblewrap, which reaps it, ends with it.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.first, signal.SIGKILL)
            os.close(self.first)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextlib.contextmanager
def run(
    limits: Limits, mode: dict[str, object], *, room: int = 0, packages: tuple[str, ...] = ()
) -> Iterator[Guest]:
    """A guest in `mode` (what `guest.py` reads), with `room` more bytes of scratch space.

    `packages` are folders of installed packages that it may read;
    there are none in a guest without namespaces.

    Raises `Unavailable` when the sandbox does not start. Nothing of the response has run by then.
    """
    start = _start_unsafe if limits.allow_unsafe and available() is not None else _start_contained
    largest_file = max(limits.disk_bytes, limits.output_bytes) + room + 4096
    rlimits = {"RLIMIT_AS": limits.memory_bytes, "RLIMIT_FSIZE": largest_file, "RLIMIT_NOFILE": 128}
    # for a guest whose outside was killed
    rlimits["RLIMIT_CPU"] = math.ceil(limits.total_seconds) + 5
    rlimits["RLIMIT_CORE"] = 1  # 0 would not keep a core handler of the host from being started
    with contextlib.ExitStack() as stack:
        try:
            guest, config = start(limits, room, stack, packages)
        except OSError as error:
            raise Unavailable(f"the sandbox did not start: {error}") from error
        config["rlimits"] = {**rlimits, **config["rlimits"]}
        config |= {
            "output_bytes": limits.output_bytes,
            "cpu_seconds": math.ceil(limits.total_seconds) + 1,
            **mode,
        }
        deadline = Deadline(_START_SECONDS)
        payload = marshal.dumps((_guest_code(), config))
        try:
            guest.send(f"{len(payload):012d}".encode() + payload, deadline)
            ready = guest.line(deadline, 100) == b"ready"
        except (Gone, Late, Flood):
            ready = False
        if not ready:
            raise Unavailable(
                f"the sandbox did not start: {guest.complaint() or 'it said nothing'}"
            )
        yield guest


def _start_contained(
    limits: Limits, room: int, stack: contextlib.ExitStack, packages: tuple[str, ...]
) -> tuple[Guest, dict[str, Any]]:
    """bubblewrap, and what only the outside can do for it: user ids when we are root, and cgroups."""
    root = os.geteuid() == 0 and _is_mapped(_NOBODY)
    scratch = limits.disk_bytes + 2 * limits.output_bytes + room
    with (
        _pipe() as (filter_out, filter_in),
        _pipe() as (info_out, info_in),
        _pipe() as (hold_out, hold_in),
    ):
        filter_in.write(_filter())
        filter_in.close()
        inherited = [filter_out.fileno(), info_in.fileno()]
        arguments = ["--seccomp", str(filter_out.fileno()), "--info-fd", str(info_in.fileno())]
        if root:
            # As root mapped to itself RLIMIT_NPROC would not bind, and as nobody bubblewrap could
            # not bind an interpreter that lies in root's home. So it starts as root and the guest
            # turns into nobody.
            inherited.append(hold_out.fileno())
            arguments += ["--userns-block-fd", str(hold_out.fileno())]
            arguments += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            arguments += ["--uid", str(_NOBODY), "--gid", str(_NOBODY)]
        arguments += ["--size", str(scratch), "--perms", "1777", "--tmpfs", FOLDER]
        bwrap = shutil.which("bwrap") or "bwrap"
        process = _piped(
            [bwrap, *arguments, *mounts(packages), "--", *interpreter()], pass_fds=inherited
        )
        guest = Guest(process)
        bounds = {
            "memory": limits.memory_bytes + scratch + _INTERPRETER_BYTES,
            "pids": limits.processes + 1,
        }
        # before `close`, to be removed after it
        made = stack.enter_context(cgroups.bounded(bounds))
        stack.callback(guest.close)
        for end in (filter_out, info_in, hold_out):
            end.close()
        first = _first_process(info_out, guest)
        guest.first, guest.pid = os.pidfd_open(first), first
        for cgroup in made:
            with contextlib.suppress(OSError):
                (cgroup / "cgroup.procs").write_text(str(first))
        if root:
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{first}/{name}").write_text(f"0 0 1\n{_NOBODY} {_NOBODY} 1\n")
            hold_in.write(b"1")
    return guest, {
        "uid": _NOBODY if root else None,
        "contained": True,
        "folder": FOLDER,
        "files": limits.files,
        "rlimits": {"RLIMIT_NPROC": limits.processes + 1} if _nproc_is_ours() else {},
    }


def _start_unsafe(
    limits: Limits, room: int, stack: contextlib.ExitStack, packages: tuple[str, ...]
) -> tuple[Guest, dict[str, Any]]:
    """The same guest as an ordinary child process: see `Limits.allow_unsafe`."""
    if packages:
        raise Unavailable("work with installed packages runs in a sandbox or not at all")
    folder = stack.enter_context(
        tempfile.TemporaryDirectory(prefix="equipoise-", ignore_cleanup_errors=True)
    )
    process = _piped(interpreter(), cwd=folder, start_new_session=True)
    guest = Guest(process)
    stack.callback(guest.close)
    return guest, {"uid": None, "contained": False, "folder": folder, "files": None, "rlimits": {}}


def _piped(command: list[str], **more: Any) -> subprocess.Popen[bytes]:
    """A process whose three streams are ours and whose environment is the guest's."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        **more,
    )


def _is_mapped(uid: int) -> bool:
    """Whether this user namespace knows the uid: there may be no user but root."""
    ranges = [
        map(int, line.split()) for line in Path("/proc/self/uid_map").read_text().splitlines()
    ]
    return any(start <= uid < start + count for start, _, count in ranges)


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[io.FileIO, io.FileIO]]:
    out, in_ = os.pipe()
    with io.FileIO(out, "r") as reader, io.FileIO(in_, "w") as writer:
        yield reader, writer


def _first_process(info: io.FileIO, guest: Guest) -> int:
    """The pid, as seen from here, of the namespace's first process."""
    text, poll, deadline = b"", select.poll(), time.monotonic() + _START_SECONDS
    poll.register(info, select.POLLIN)
    while b"}" not in text:
        left = max(0, deadline - time.monotonic())
        chunk = info.read(4096) if poll.poll(left * 1000) else b""
        if not chunk:
            raise Unavailable(
                f"bubblewrap made no namespaces: {guest.complaint() or 'it said nothing'}"
            )
        text += chunk
    return int(json.loads(text)["child-pid"])


@functools.cache
def _guest_code() -> types.CodeType:
    source = Path(guest_module.__file__).read_text(encoding="utf-8")
    return compile(source, "guest.py", "exec", dont_inherit=True)


@functools.cache
def _filter() -> bytes:
    return seccomp.program()


def _nproc_is_ours() -> bool:
    version = tuple(int(part) for part in platform.release().split(".")[:2])
    return version >= _NPROC_PER_NAMESPACE


_PROBE = """
import os, _socket
holes = [path for path in ("/proc/self", "/sys/kernel", "/etc/passwd", "/usr/bin/env") if os.path.exists(path)]
for name, attempt in {
    "a socket": _socket.socket,
    "uid 0": lambda: os.setuid(0),
    "a writable root": lambda: open("/hole", "w"),
}.items():
    try:
        attempt()
        holes.append(name)
    except OSError:
        pass
print(*holes, sep=", ", end="")
"""


@functools.cache
def available() -> str | None:
    """None where responses can be isolated, else why not; found out once, by isolating."""
    if sys.platform != "linux" or platform.machine() not in seccomp.MACHINES:
        here = f"{sys.platform} {platform.machine()}"
        return f"the sandbox needs Linux on {' or '.join(seccomp.MACHINES)}; this is {here}"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed: install the package `bubblewrap`, which brings `bwrap`"
    try:
        deadline = Deadline(_START_SECONDS)
        with run(Limits(), {"mode": "programs"}) as guest:
            guest.send(b"%d\n%s0\n" % (len(_PROBE), _PROBE.encode()), deadline)
            ended, status, out, err = guest.line(deadline, 1000).decode().split()
            holes = guest.take(int(out), deadline).decode()
            complaint = guest.take(int(err), deadline).decode()
    except Unavailable as error:
        return f"{error}{_advice(str(error))}"
    except (Gone, Late, Flood, ValueError) as error:
        return f"a trial program in the sandbox gave no answer ({type(error).__name__})"
    if (ended, status) != ("exit", "0"):
        return f"a trial program in the sandbox ended with {ended} {status}: {complaint}"
    return f"the sandbox has holes: {holes}" if holes else None


def _advice(complaint: str) -> str:
    if "nknown option" in complaint:
        return "; bubblewrap 0.8 or later is needed"
    if any(word in complaint for word in ("namespace", "ermission", "not permitted", "uid map")):
        return (
            "; allow user namespaces: `sysctl kernel.unprivileged_userns_clone=1` (Debian), "
            "`sysctl kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu), "
            "`--security-opt seccomp=unconfined --security-opt apparmor=unconfined` (Docker)"
        )
    return ""

"""One isolated process per verdict: bubblewrap, a seccomp filter, resource limits, cgroups.

`run` has the process of `guest.py` forked from a warm one (`fork_server.py`) or, where that cannot
be, started: in new pid, mount, ipc, uts and cgroup namespaces inside of bubblewrap's, which add
user and network, as an unprivileged user, with an empty environment and a read-only root that holds
the interpreter, its standard library and the system's shared libraries. There is no home, no /proc,
no /sys, no shell and, unless asked for (`packages`), no site-packages; the only writable place is a
tmpfs of bounded size. When the `with` block ends, however it ends, the whole pid namespace is dead.

Not covered: a hole in the kernel, and side channels (how long the machine takes, what it caches).
Memory is bounded per process; for all processes of a sandbox together only where a memory cgroup
can be made. Linux on x86_64 and aarch64.
"""

from __future__ import annotations

import contextlib
import io
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any

from equipoise.verifiers.code import bubblewrap, cgroups, fork_server, seccomp
from equipoise.verifiers.code import guest as guest_module
from equipoise.verifiers.code.bubblewrap import END_SECONDS, NOBODY, START_SECONDS
from equipoise.verifiers.code.bubblewrap import Unavailable as Unavailable
from equipoise.verifiers.code.fork_server import ForkingSandbox, compiled, filter_program
from equipoise.verifiers.code.fork_server import Lost as Lost
from equipoise.verifiers.code.guest_root import FOLDER, environment, interpreter
from equipoise.verifiers.workers.deadline import Deadline

_PIPES: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
_INTERPRETER_BYTES = 64 << 20
# to try one way of starting a sandbox, from beginning to end; there are two
TRIAL_SECONDS = 30.0
AGAIN_SECONDS = 60.0  # until a sandbox that did not work is tried again; ten times the trial's own
# before this kernel RLIMIT_NPROC counts all processes of the user, ours and others
_NPROC_PER_NAMESPACE = (5, 14)


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
    response then runs as you: it can read and change every file you can, use the network and signal
    your processes. What remains: it never holds an expected output or the verdict, its environment
    is empty, memory, output and file size are bounded per process, and its processes are killed at
    the end, unless it attacks the one that watches it. For code you would run yourself.
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


Stream = IO[bytes] | io.FileIO


class Guest:
    """A running guest: bytes in, bytes out, and an end."""

    def __init__(
        self,
        pid: int,
        streams: tuple[Stream, Stream, Stream],
        counters: tuple[str, ...] = (),
        server: ForkingSandbox | None = None,
    ) -> None:
        self.pid = pid  # of the first process inside, as seen from here
        self.counters = counters  # of the CPU time of all inside: `Deadline`
        self._streams, self._server = streams, server
        self._in, self._out = streams[0].fileno(), streams[1].fileno()
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
            if self._server is not None and not self._server.answers():
                raise Lost("the sandbox ended: its fork server is gone")
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
        return bubblewrap.complaint(self._streams[2])


Start = Callable[
    [Limits, int, contextlib.ExitStack, tuple[str, ...], Deadline], tuple[Guest, dict[str, Any]]
]


@contextlib.contextmanager
def run(
    limits: Limits, mode: dict[str, object], *, room: int = 0, packages: tuple[str, ...] = ()
) -> Iterator[Guest]:
    """A guest in `mode` (what `guest.py` reads), with `room` more bytes of scratch space.

    `packages` are folders of installed packages that it may read;
    there are none in a guest without namespaces.

    Raises `Unavailable` when the sandbox does not start. Nothing of the response has run by then.
    """
    if limits.allow_unsafe and available() is not None:
        start = _start_unsafe
    else:
        start = _start_forked if can_fork() and not packages else _start_contained
    with _run(start, limits, mode, room, packages, Deadline(START_SECONDS)) as guest:
        yield guest


@contextlib.contextmanager
def _run(
    start: Start,
    limits: Limits,
    mode: dict[str, object],
    room: int,
    packages: tuple[str, ...],
    deadline: Deadline,
) -> Iterator[Guest]:
    """Started by the deadline."""
    largest_file = max(limits.disk_bytes, limits.output_bytes) + room + 4096
    rlimits = {"RLIMIT_AS": limits.memory_bytes, "RLIMIT_FSIZE": largest_file, "RLIMIT_NOFILE": 128}
    # for a guest whose outside was killed
    rlimits["RLIMIT_CPU"] = math.ceil(limits.total_seconds) + 5
    rlimits["RLIMIT_CORE"] = 1  # 0 would not keep a core handler of the host from being started
    with contextlib.ExitStack() as stack:
        try:
            guest, config = start(limits, room, stack, packages, deadline)
        except OSError as error:
            raise Unavailable(f"the sandbox did not start: {error}") from error
        config["rlimits"] = {**rlimits, **config["rlimits"]}
        config |= {
            "output_bytes": limits.output_bytes,
            "cpu_seconds": math.ceil(limits.total_seconds) + 1,
            **mode,
        }
        # a fork server has the guest's code already
        forked = start is _start_forked
        payload = marshal.dumps(config if forked else (compiled(guest_module.__file__), config))
        try:
            guest.send(f"{len(payload):012d}".encode() + payload, deadline)
            ready = guest.line(deadline, 100) == b"ready"
        except (Gone, Late, Flood):
            ready = False
        if not ready:
            raise Unavailable(f"the sandbox did not start: {guest.complaint()}")
        yield guest


def _start_forked(
    limits: Limits,
    room: int,
    stack: contextlib.ExitStack,
    packages: tuple[str, ...],
    deadline: Deadline,
) -> tuple[Guest, dict[str, Any]]:
    """A child of a warm process, in pid, mount and ipc namespaces of its own: `fork_guest.py`."""
    server = stack.enter_context(fork_server.borrowed(deadline))
    made = _bounded(limits, room, stack)
    handle, streams = server.fork(deadline)
    stack.callback(_close, streams)

    @stack.callback
    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        dead = select.poll()
        dead.register(handle, select.POLLIN)
        if not dead.poll(END_SECONDS * 1000):  # until all of its namespace are
            server.close()
        os.close(handle)

    guest = Guest(_pid(handle), streams, cgroups.counters(made), server)
    cgroups.join(made, guest.pid)  # before it is sent anything
    # where the server itself is nobody, it counts
    processes = limits.processes + (1 if bubblewrap.starts_as_root() else 2)
    return guest, {**_contained(limits, processes), "scratch": _scratch_bytes(limits, room)}


def _start_contained(
    limits: Limits,
    room: int,
    stack: contextlib.ExitStack,
    packages: tuple[str, ...],
    deadline: Deadline,
) -> tuple[Guest, dict[str, Any]]:
    """A bubblewrap of its own: with packages, and where nothing can be forked inside of one."""
    made = _bounded(limits, room, stack)
    scratch = str(_scratch_bytes(limits, room))
    with contextlib.ExitStack() as opened:
        filter_out, filter_in = bubblewrap.pipe(opened)
        filter_in.write(filter_program())
        filter_in.close()
        arguments = ["--size", scratch, "--perms", "1777", "--tmpfs", FOLDER]
        process, handle = bubblewrap.started(
            [*arguments, "--seccomp", str(filter_out.fileno())],
            deadline,
            inherited=[filter_out.fileno()],
            packages=packages,
            **_PIPES,
        )
    stack.callback(_close, _streams(process))
    stack.callback(os.close, handle)
    stack.callback(bubblewrap.end, process, handle)
    guest = Guest(_pid(handle), _streams(process), cgroups.counters(made))
    cgroups.join(made, guest.pid)  # before it is sent anything
    config = _contained(limits, limits.processes + 1)
    return guest, {**config, "uid": NOBODY if bubblewrap.starts_as_root() else None}


def _contained(limits: Limits, processes: int) -> dict[str, Any]:
    return {
        "uid": None,
        "contained": True,
        "folder": FOLDER,
        "files": limits.files,
        "rlimits": {"RLIMIT_NPROC": processes} if _nproc_is_ours() else {},
    }


def _scratch_bytes(limits: Limits, room: int) -> int:
    return limits.disk_bytes + 2 * limits.output_bytes + room


def _bounded(limits: Limits, room: int, stack: contextlib.ExitStack) -> list[Path]:
    """Cgroups for one sandbox, which are there longer than its processes."""
    memory = limits.memory_bytes + _scratch_bytes(limits, room) + _INTERPRETER_BYTES
    return stack.enter_context(cgroups.bounded({"memory": memory, "pids": limits.processes + 1}))


def _close(streams: tuple[Stream, Stream, Stream]) -> None:
    for stream in streams:
        with contextlib.suppress(BrokenPipeError):
            stream.close()


def _pid(handle: int) -> int:
    """The pid, as seen from here, of the process that a pidfd names."""
    with open(f"/proc/self/fdinfo/{handle}", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("Pid:")).split()[1])


def _start_unsafe(
    limits: Limits,
    room: int,
    stack: contextlib.ExitStack,
    packages: tuple[str, ...],
    deadline: Deadline,
) -> tuple[Guest, dict[str, Any]]:
    """The same guest as an ordinary child process: see `Limits.allow_unsafe`."""
    if packages:
        raise Unavailable("work with installed packages runs in a sandbox or not at all")
    folder = stack.enter_context(
        tempfile.TemporaryDirectory(prefix="equipoise-", ignore_cleanup_errors=True)
    )
    process = subprocess.Popen(
        interpreter(), env=environment(), cwd=folder, start_new_session=True, **_PIPES
    )

    @stack.callback
    def end() -> None:
        process.send_signal(signal.SIGCONT)  # the program may have stopped it
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        process.kill()
        process.wait()

    # Before its end: it sees that nobody is left outside, and ends all that descends from it.
    stack.callback(_close, _streams(process))
    guest = Guest(process.pid, _streams(process))
    return guest, {"uid": None, "contained": False, "folder": folder, "files": None, "rlimits": {}}


def _streams(process: subprocess.Popen[bytes]) -> tuple[Stream, Stream, Stream]:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    return process.stdin, process.stdout, process.stderr


def _nproc_is_ours() -> bool:
    version = tuple(int(part) for part in platform.release().split(".")[:2])
    return version >= _NPROC_PER_NAMESPACE


_PROBE = """
import os, json, _socket
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


def available() -> str | None:
    """None where responses can be isolated, else why not; found out by isolating."""
    return None if can_fork() else _tried(_start_contained)


def can_fork() -> bool:
    """Whether a sandbox may make namespaces inside of its own; else each program gets its own."""
    return why_no_fork() is None


def why_no_fork() -> str | None:
    """None where programs are forked from a warm interpreter, else why each has to start one."""
    return _tried(_start_forked)


def _missing() -> str | None:
    if sys.platform != "linux" or platform.machine() not in seccomp.MACHINES:
        here = f"{sys.platform} {platform.machine()}"
        return f"the sandbox needs Linux on {' or '.join(seccomp.MACHINES)}; this is {here}"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed: install the package `bubblewrap`, which brings `bwrap`"
    return None


_found: dict[Start, tuple[str | None, float]] = {}  # what `_problem` said, and until when to say it


def _tried(start: Start) -> str | None:
    """`_problem`, asked once; a failure may have been the moment's, and is asked after again."""
    why, until = _found.get(start, ("", 0.0))
    began = time.monotonic()
    if began >= until:
        why = _missing() or _problem(start)
        took = time.monotonic() - began
        keep = math.inf if why is None else max(AGAIN_SECONDS, 10 * took)
        _found[start] = why, began + took + keep
    return why


def forget() -> None:
    """What was found out about this machine; for tests that change it."""
    _found.clear()


def _problem(start: Start) -> str | None:
    """What keeps this way of starting from isolating a trial program; None where nothing does."""
    deadline = Deadline(TRIAL_SECONDS)
    try:
        with contextlib.ExitStack() as stack:
            # a verdict has two at one time: what forks has to have namespaces for both
            for _ in range(2 if start is _start_forked else 1):
                tried = _run(start, Limits(), {"mode": "programs"}, 0, (), deadline)
                guest = stack.enter_context(tried)
            guest.send(b"%d\n%s0\n" % (len(_PROBE), _PROBE.encode()), deadline)
            ended, status, out, err = guest.line(deadline, 1000).decode().split()
            holes = guest.take(int(out), deadline).decode()
            complaint = guest.take(int(err), deadline).decode()
    except (Unavailable, Late) as error:
        if deadline.passed():
            why = f"the machine is too busy, or hangs ({error})" if str(error) else "it hangs"
            return f"a trial of the sandbox was not over after {TRIAL_SECONDS:g} s: {why}"
        return f"{error}{_advice(str(error))}"
    except (Gone, Flood, ValueError) as error:
        return f"a trial program in the sandbox gave no answer ({type(error).__name__})"
    if (ended, status) != ("exit", "0"):
        return f"a trial program in the sandbox ended with {ended} {status}: {complaint}"
    return f"the sandbox has holes: {holes}" if holes else None


def _advice(complaint: str) -> str:
    if "nknown option" in complaint:
        return "; bubblewrap 0.8 or later is needed"
    if "ENOSPC" in complaint or "unshare: No space" in complaint:
        return "; allow more namespaces: `sysctl -a -r user.max_` says which are few"
    if any(word in complaint for word in ("namespace", "ermission", "not permitted", "uid map")):
        return (
            "; allow user namespaces: `sysctl kernel.unprivileged_userns_clone=1` (Debian), "
            "`sysctl kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu), "
            "`--security-opt seccomp=unconfined --security-opt apparmor=unconfined` (Docker, Podman)"
        )
    return ""

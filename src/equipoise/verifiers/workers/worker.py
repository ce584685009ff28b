"""The far side of a pool: a fork server, a process that forks workers, and the loop of a worker.

The fork server imports what the work needs once and stays free of threads, so a worker that had to
be killed is replaced in a few milliseconds. It does what the pool asks over one socket: fork a
worker on a given channel, or kill one. When that socket closes, whatever the reason, it kills all
its workers and ends; workers end with it. It leads a session of its own: a Ctrl-C at the terminal
is the trainer's to handle.

A frame on a channel is four bytes of length and as many bytes: a ticket of 24 bytes, then JSON.
Both sides refuse a frame that is too long. The ticket is the job's number and a nonce drawn for it;
the reply repeats it, so bytes written before the job came, or by what an earlier job left running,
are the reply to nothing. A ticket is no secret to code that runs inside the worker: to keep a
response from running there is the business of the verifiers.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import math
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any

from equipoise.verifiers.verdict import LARGEST, Reply, Verdict, encode

LONGEST_JOB = 64 << 20  # bytes
LONGEST_REPLY = 1 << 20
LONGEST_TEXT = 4000  # characters of a reason or an answer that go back to the pool
HEAD = struct.Struct(">I")
TICKET = 24  # bytes: the job's number (8) and its nonce (16)
PID = struct.Struct(">q")
FORK, KILL = b"F", b"K"
PR_SET_PDEATHSIG = 1
HARNESS = ("equipoise.verifiers.workers.worker", "equipoise.verifiers.workers.functions")

Work = Callable[..., Reply]


def main(control: socket.socket, setup: dict[str, Any]) -> None:
    """The fork server. `setup`: `target` module:function to call, `preload` modules to import
    before forking, `confine` the module:function that takes rights away from a fresh worker,
    `quiet` whether its output goes nowhere.
    """
    for module in setup["preload"]:
        importlib.import_module(module)
    children: set[int] = set()
    fork_server = os.getpid()
    try:
        control.sendall(PID.pack(0))
        while True:
            request, fds, _, _ = socket.recv_fds(control, 1 + PID.size, 1)
            if not request:
                return
            if request[:1] == FORK:
                pid = os.fork()
                if pid == 0:
                    control.close()
                    _be_a_worker(fds[0], setup, fork_server)
                os.close(fds[0])
                children.add(pid)
                control.sendall(PID.pack(pid))
            else:
                (pid,) = PID.unpack(request[1:])
                children.discard(pid)
                control.sendall(PID.pack(_end(pid)))
    except BrokenPipeError:
        return  # the caller has ended and nobody is left to tell
    finally:
        for pid in children:
            _end(pid)


def _end(pid: int) -> int:
    """Kill a worker and whatever shares its session; returns its wait status."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # one that was killed before it could lead a session
    return os.waitpid(pid, 0)[1]


def _be_a_worker(fd: int, setup: dict[str, Any], fork_server: int) -> None:
    """Never returns: the forked process must not run the fork server's code."""
    status = 1
    try:
        os.setsid()
        _die_with(fork_server)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null if setup["quiet"] else 2, 1)
        if setup["quiet"]:
            os.dup2(null, 2)
        os.close(null)
        channel = socket.socket(fileno=fd)
        try:
            work = _function(setup["target"])
        except Exception as error:
            failure = Verdict(
                "crashed", f"{setup['target']} cannot be imported: {type(error).__name__}: {error}"
            )
            work = lambda *_: failure  # noqa: E731
        if setup["confine"]:
            _function(setup["confine"])()
        serve(channel, work)
        status = 0
    except BaseException:
        if not setup["quiet"]:
            traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _die_with(fork_server: int) -> None:
    """Where the kernel can (Linux): the fork server may be killed before it can end its workers."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != fork_server:  # it died in between
            os._exit(1)


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    function: object = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{path} is not a function but {function!r}")
    return function


def serve(channel: socket.socket, work: Work) -> None:
    """Answer jobs until the channel closes."""
    # A caller that ends with answers unread resets the channel: nobody waits for this one either.
    with contextlib.suppress(ConnectionError):
        while (job := receive(channel, LONGEST_JOB)) is not None:
            ticket, arguments = job[:TICKET], json.loads(job[TICKET:])
            channel.sendall(frame(ticket + encode(outcome_of(work, arguments))))


def outcome_of(work: Work, arguments: list[Any]) -> Reply:
    """What a function gave, or the verdict that its exception earns."""
    try:
        return _short(work(*arguments))
    except MemoryError:
        return Verdict("limit", "out of memory")
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return Verdict(
            "crashed", "".join(traceback.format_exception(_trimmed(error)))[-LONGEST_TEXT:]
        )


def _trimmed(error: BaseException) -> BaseException:
    """Without the frames of the harness, where there are others."""
    below = error.__traceback__
    while below is not None and below.tb_frame.f_globals.get("__name__") in HARNESS:
        below = below.tb_next
    return error.with_traceback(below)


def _short(reply: Any) -> Reply:
    if isinstance(reply, list):
        return [_shortened(outcome, LONGEST_TEXT // max(len(reply), 1)) for outcome in reply]
    return _shortened(reply, LONGEST_TEXT)


def _shortened(outcome: Any, longest: int) -> Verdict | float:
    if not isinstance(outcome, Verdict):
        return _number(outcome)
    answer = None if outcome.answer is None else outcome.answer[:longest]
    credit = None if outcome.value is None else float(outcome.value)
    return Verdict(outcome.kind, outcome.reason[:longest], float(outcome.seconds), credit, answer)


def _number(outcome: Any) -> float:
    """Also a bool and one number of numpy or torch. Text is none, although float() reads it."""
    plain = outcome.item() if getattr(outcome, "ndim", None) == 0 else outcome
    if isinstance(plain, str | bytes | bytearray):
        raise ValueError(
            f"it gave the text {plain!r:.200}: must be a finite number, or a Verdict; return float() of it"
        )
    try:
        value = float(plain)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"it gave {outcome!r}: must be a finite number, or a Verdict")
    if abs(value) > LARGEST:
        raise ValueError(f"it gave {value:g}: must be at most {LARGEST:g} in size")
    return value


def frame(data: bytes) -> bytes:
    return HEAD.pack(len(data)) + data


def receive(channel: socket.socket, longest: int) -> bytes | None:
    """The next frame; None where the channel was closed."""
    head = _exactly(channel, HEAD.size)
    if head is None:
        return None
    (length,) = HEAD.unpack(head)
    if length > longest:
        raise ValueError(f"a frame of {length} bytes: must be at most {longest}")
    return _exactly(channel, length)


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = channel.recv(min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)

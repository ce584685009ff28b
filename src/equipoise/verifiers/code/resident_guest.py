"""Inside the sandbox: a warm process that forks the answering one. `guest.py` starts it.

The first process imports what the work needs once and never works itself. It forks an answering
process, hands it one request at a time, measures its CPU time, and forks the next one, in
milliseconds, when that one is late, dies, or was asked for one request only (`alone`). The nonce of
a request from outside stays in the first process: the answering one is forked before it arrives and
is given another, so nothing it writes can pass for the reply to a later request. It may not fork,
write a file or hold a socket, and whatever else lives in the sandbox dies with it.
"""

from __future__ import annotations

import builtins
import os
import resource
import select
import sys
import time
from _json import encode_basestring_ascii

TYPE_CHECKING = False  # what typing's own is, as in guest.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from equipoise.verifiers.code.guest import Channel

    Answer = Callable[[bytes], str]

_SIGKILL = 9
PATIENCE = 10  # wall clock of a request, in multiples of its CPU time, for a machine that is busy
LONGEST_REPLY = 1 << 16


def serve(config: dict[str, Any], channel: Channel) -> None:
    """Request `nonce seconds alone length` + bytes; reply nonce, `done …`, `late` or `ended …`."""
    sys.path[:0] = config["path"]
    work: dict[str, Any] = {"__name__": "work", "__builtins__": builtins}
    try:
        exec(config["work"], work)
        work["warm"]()
    except BaseException as error:
        said = encode_basestring_ascii(f"{type(error).__name__}: {error}"[:500])
        channel.write(f"cold {said}\n".encode())
        return
    channel.write(b"warm\n")
    worker = _AnsweringProcess(work["answer"], channel)
    while True:
        nonce, seconds, alone, length = channel.line().split()
        reply = worker.ask(channel.take(int(length)), float(seconds), channel)
        if alone == "1" or not reply.startswith(b"done "):
            ended = worker.end()
            worker = _AnsweringProcess(work["answer"], channel)
            reply = reply or b"ended " + ended
        channel.write(nonce.encode() + b" " + reply + b"\n")


class _AnsweringProcess:
    """The process that answers, and the two pipes to it."""

    def __init__(self, answer: Answer, channel: Channel) -> None:
        theirs, self.requests = os.pipe()
        self.replies, replies = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            channel.close()
            os.close(self.requests)
            os.close(self.replies)
            _answer_requests(answer, theirs, replies)
        os.close(theirs)
        os.close(replies)
        os.set_blocking(self.requests, False)

    def ask(self, request: bytes, seconds: float, channel: Channel) -> bytes:
        """`done TEXT`, `late`, or nothing where the process ended or answered another request."""
        token = os.urandom(8).hex()
        unsent = memoryview(f"{token} {len(request)}\n".encode() + request)
        reply = b""
        poll = select.poll()
        poll.register(self.replies, select.POLLIN)
        poll.register(self.requests, select.POLLOUT)
        poll.register(channel.requests, 0)  # only the end of the outside
        used, end = self._cpu() + seconds, time.monotonic() + PATIENCE * seconds
        while not reply.endswith(b"\n"):
            left = min(used - self._cpu(), end - time.monotonic())
            if left <= 0:
                return b"late"
            events = dict(poll.poll(left * 1000 + 1))
            if events.get(channel.requests, 0) & (select.POLLHUP | select.POLLERR):
                os._exit(0)
            if events.get(self.requests, 0) & select.POLLERR:
                return b""
            if self.requests in events:
                unsent = unsent[os.write(self.requests, unsent[: 1 << 16]) :]
                if not unsent:
                    poll.unregister(self.requests)
            if self.replies in events:
                part = os.read(self.replies, 1 << 16)
                reply += part
                if not part or len(reply) > LONGEST_REPLY:
                    return b""
        said, _, text = reply[:-1].partition(b" ")
        if said == token.encode() and text.isascii() and b"\n" not in text:
            return b"done " + text
        return b""

    def _cpu(self) -> float:
        """Seconds of CPU the process has used: the clock that clock_getcpuclockid(3) names."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def end(self) -> bytes:
        """Kill it and all that is left in the sandbox; how it ended."""
        os.kill(self.pid, _SIGKILL)
        os.kill(-1, _SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
        os.close(self.requests)
        os.close(self.replies)
        if os.WIFSIGNALED(status):
            how = f"signal {os.WTERMSIG(status)}"
        else:
            how = f"exit {os.WEXITSTATUS(status)}"
        return how.encode()


def _answer_requests(answer: Answer, requests: int, replies: int) -> NoReturn:
    """The worker's whole life: a request in, a verdict out, until the other end closes.

    It may make no process and write no file: what it is asked was written by a model.
    """
    for limit, bound in (
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        resource.setrlimit(limit, (bound, bound))
    with open(requests, "rb") as source:
        while head := source.readline():
            token, length = head.split()
            try:
                text = answer(source.read(int(length)))
            except MemoryError:
                text = '["limit", "out of memory", null]'
            os.write(replies, token + b" " + text.encode("ascii") + b"\n")
    os._exit(0)

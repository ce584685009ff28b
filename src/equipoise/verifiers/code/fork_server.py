"""Warm interpreters in namespaces of their own, from which programs are forked: `fork_guest.py`.

A fork server has one program at a time. A thread keeps the servers it started, which end with it;
two are enough for a verdict, the response's and the tests'.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import marshal
import os
import select
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path

from equipoise.verifiers.code import bubblewrap, fork_guest, guest, seccomp
from equipoise.verifiers.code.bubblewrap import NOBODY, Unavailable, pipe
from equipoise.verifiers.code.guest_root import FOLDER
from equipoise.verifiers.workers.deadline import Deadline

Streams = tuple[io.FileIO, io.FileIO, io.FileIO]


class Lost(Unavailable):
    """A fork server died or did not answer; another one may."""


class ForkingSandbox:
    """A sandbox whose first process forks the first processes of programs."""

    def __init__(self, deadline: Deadline) -> None:
        self._owner = os.getpid()
        server = {
            "contained": True,
            "forked": compiled(fork_guest.__file__),
            "filter": filter_program(),
            "uid": NOBODY if bubblewrap.starts_as_root() else None,
        }
        payload = marshal.dumps((compiled(guest.__file__), server))
        with contextlib.ExitStack() as opened:
            self._control, theirs = socket.socketpair()
            opened.enter_context(self._control)
            with theirs:
                self._process, self._first = bubblewrap.started(
                    ["--perms", "0755", "--dir", FOLDER],
                    deadline,
                    rights=("CAP_SYS_ADMIN", "CAP_SETPCAP"),
                    stdin=theirs,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            opened.callback(self._let_go)
            self._wait_until(deadline)
            try:
                self._control.sendall(f"{len(payload):012d}".encode() + payload)
                started = self._control.recv(1) == b"s"
            except OSError:
                started = False
            if not started:
                raise Unavailable(f"the sandbox did not start: {self._last_words()}")
            self._opened = opened.pop_all()

    def _wait_until(self, deadline: Deadline) -> None:
        self._control.settimeout(max(0.001, deadline.left()))  # 0 would be not to wait at all

    def fork(self, deadline: Deadline) -> tuple[int, Streams]:
        """A pidfd of the first process of a new pid namespace, and its three streams."""
        with contextlib.ExitStack() as opened:
            (stdin, write), (read, stdout), (read_errors, stderr) = [pipe(opened) for _ in range(3)]
            theirs = stdin, stdout, stderr
            self._wait_until(deadline)
            try:
                socket.send_fds(self._control, [b"f"], [stream.fileno() for stream in theirs])
                handle = _received_handle(self._control)
            except (OSError, IndexError) as error:
                said = self._last_words()
                raise Lost(
                    f"the sandbox did not start: its fork server is gone ({said})"
                ) from error
            for stream in theirs:
                stream.close()
            opened.pop_all()
        return handle, (write, read, read_errors)

    def usable(self) -> bool:
        """In this process, alive, and with nothing to say that was not asked for."""
        if self._owner != os.getpid() or self._control.fileno() < 0:
            return False
        poll = select.poll()
        for descriptor in (self._first, self._control):
            poll.register(descriptor, select.POLLIN)
        return not poll.poll(0)

    def answers(self) -> bool:
        """Whether it outlived its program; asked when that has ended."""
        try:
            self._control.send(b"?")
            return self._control.recv(1) == b"!"
        except OSError:
            return False

    def close(self) -> None:
        """Kill it and reap it; in a forked process only let go of it."""
        self._opened.close()

    def _let_go(self) -> None:
        if self._owner == os.getpid():
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)  # a forked process may have it open too
            bubblewrap.end(self._process, self._first)
        os.close(self._first)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _last_words(self) -> str:
        bubblewrap.end(self._process, self._first)
        return bubblewrap.complaint(self._process.stdout).rpartition("\n")[2]


def _received_handle(control: socket.socket) -> int:
    # socket.recv_fds leaves its flags out
    _, rights, _, _ = control.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    return int.from_bytes(rights[0][2], sys.byteorder)


class _Servers(list[ForkingSandbox]):
    """The idle ones of a thread; they end with it."""

    def close(self) -> None:
        while self:
            self.pop().close()

    __del__ = close


class _Idle(threading.local):
    def __init__(self) -> None:
        self.servers = _Servers()


_idle = _Idle()


@contextlib.contextmanager
def borrowed(deadline: Deadline) -> Iterator[ForkingSandbox]:
    """An idle server of this thread, or a new one that is there by the deadline."""
    while _idle.servers and not _idle.servers[-1].usable():
        _idle.servers.pop().close()
    server = _idle.servers.pop() if _idle.servers else ForkingSandbox(deadline)
    try:
        yield server
    except BaseException:  # whatever failed, it may owe an answer
        server.close()
        raise
    if server.usable():
        _idle.servers.append(server)
    else:
        server.close()


@atexit.register
def close() -> None:
    """End this thread's servers; the next program starts another."""
    _idle.servers.close()


@functools.cache
def filter_program() -> bytes:
    return seccomp.program()


@functools.cache
def compiled(path: str) -> types.CodeType:
    """A module that is sent into the sandbox, which has no file of ours."""
    source = Path(path).read_text(encoding="utf-8")
    return compile(source, Path(path).name, "exec", dont_inherit=True)

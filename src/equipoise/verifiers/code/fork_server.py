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
import socket
import subprocess
import threading
import types
from collections.abc import Iterator
from pathlib import Path

from equipoise.verifiers.code import bubblewrap, fork_guest, guest, seccomp
from equipoise.verifiers.code.bubblewrap import NOBODY, START_SECONDS, Unavailable
from equipoise.verifiers.code.guest_root import FOLDER

Streams = tuple[io.FileIO, io.FileIO, io.FileIO]


class ForkingSandbox:
    """A sandbox whose first process forks the first processes of programs."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START_SECONDS)
        server = {
            "forked": compiled(fork_guest.__file__),
            "filter": filter_program(),
            "uid": NOBODY if bubblewrap.starts_as_root() else None,
        }
        payload = marshal.dumps((compiled(guest.__file__), server))
        try:
            with theirs:
                self._process, _ = bubblewrap.started(
                    ["--perms", "0755", "--dir", FOLDER],
                    rights=("CAP_SYS_ADMIN", "CAP_SETPCAP"),
                    stdin=theirs,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            self._control.sendall(f"{len(payload):012d}".encode() + payload)
            started = self._control.recv(1) == b"s"
        except Unavailable:
            self._control.close()
            raise
        except OSError:
            started = False
        if not started:
            self._process.kill()
            self._process.wait()
            said = bubblewrap.complaint(self._process.stdout)
            self.close()
            raise Unavailable(f"the sandbox did not start: {said}")

    def fork(self) -> tuple[int, Streams]:
        """A pidfd of the first process of a new pid namespace, and its three streams."""
        (stdin, write), (read, stdout), (read_errors, stderr) = [os.pipe() for _ in range(3)]
        ours = io.FileIO(write, "w"), io.FileIO(read), io.FileIO(read_errors)
        try:
            socket.send_fds(self._control, [b"f"], [stdin, stdout, stderr])
            _, (handle,), _, _ = socket.recv_fds(self._control, 1, 1)
        except BaseException as error:
            self._process.kill()  # its next answer would be to this request
            for stream in ours:
                stream.close()
            if isinstance(error, (OSError, ValueError)):
                raise Unavailable("the sandbox did not start: its fork server is gone") from error
            raise
        finally:
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)
        return handle, ours

    def usable(self) -> bool:
        """In this process, and alive; it dies with the thread that started it."""
        return self._owner == os.getpid() and self._process.poll() is None

    def close(self) -> None:
        self._control.close()
        if self._owner == os.getpid():
            try:
                self._process.wait(START_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


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
def borrowed() -> Iterator[ForkingSandbox]:
    """An idle server of this thread, or a new one."""
    while _idle.servers and not _idle.servers[-1].usable():
        _idle.servers.pop().close()
    server = _idle.servers.pop() if _idle.servers else ForkingSandbox()
    try:
        yield server
    finally:
        _idle.servers.append(server)


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

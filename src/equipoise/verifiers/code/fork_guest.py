"""Inside the sandbox: the process that programs' first processes are forked from, one at a time.

An interpreter takes twenty times as long to start as to fork. So a fork server, the first process
that bubblewrap starts, imports what programs often import and then only forks: it reads nothing
that a response wrote, and a request brings it three descriptors and no data. Every child is the
first process of a pid namespace of its own, in mount and ipc namespaces of its own with a new
scratch disk; it gives up the rights that took, for good, before it reads its configuration's
program. The server waits until the child and its namespace are gone, then takes the next request.

What the programs of a server share: the user, network, uts and cgroup namespaces that bubblewrap
made, which nothing without rights can change, and the read-only root.
"""

from __future__ import annotations

import ctypes
import gc
import marshal
import os
import sys
from _socket import CMSG_SPACE, SCM_RIGHTS, SOL_SOCKET, socket

TYPE_CHECKING = False  # what typing's own is, as in guest.py
if TYPE_CHECKING:
    from typing import Any

_NEW_PIDS = 0x20000000
_NEW_MOUNTS, _NEW_IPC, _NEW_UTS, _NEW_CGROUP = 0x20000, 0x08000000, 0x04000000, 0x02000000
_NO_SUID, _NO_DEVICES = 2, 4
_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_CAPABILITIES = 0x20080522.to_bytes(4, "little") + bytes(4)  # version 3, of this process

_libc = ctypes.CDLL(None, use_errno=True)


def forked(server: dict[str, Any]) -> dict[str, Any]:
    """Serve until nobody is left outside. Returns in every child, contained: its configuration."""
    filter_ = ctypes.create_string_buffer(server["filter"])
    instructions, address = len(server["filter"]) // 8, ctypes.addressof(filter_)
    filter_program = instructions.to_bytes(8, "little") + address.to_bytes(8, "little")
    compile("0", "warm", "exec")  # the first one makes the classes of the syntax tree
    gc.collect()
    gc.freeze()  # a collection in a child need not touch, and so copy, what is here now
    control, own = socket(fileno=0), os.pidfd_open(os.getpid())
    control.send(b"s")
    while True:
        said, rights, _, _ = control.recvmsg(1, CMSG_SPACE(12))
        if not said:
            os._exit(0)
        streams = memoryview(rights[0][2]).cast("i").tolist()
        _call("unshare", _NEW_PIDS)
        child = os.fork()
        if child == 0:
            control.detach()
            return _contained(server, filter_program, streams)
        _call("setns", own, _NEW_PIDS)
        handle = os.pidfd_open(child)
        control.sendmsg([b"c"], [(SOL_SOCKET, SCM_RIGHTS, handle.to_bytes(4, sys.byteorder))])
        for descriptor in (handle, *streams):
            os.close(descriptor)
        os.waitpid(child, 0)


def _contained(server: dict[str, Any], filter_program: bytes, streams: list[int]) -> dict[str, Any]:
    """A scratch disk of its own; no rights, and the filter; only then whatever it was sent."""
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
    os.closerange(3, 1 << 16)
    config: dict[str, Any] = marshal.loads(_take(int(_take(12))))
    _call("unshare", _NEW_MOUNTS | _NEW_IPC | _NEW_UTS | _NEW_CGROUP)
    disk = f"mode=1777,size={config['scratch']}".encode()
    folder = config["folder"].encode()
    _call("mount", b"tmpfs", folder, b"tmpfs", _NO_SUID | _NO_DEVICES, disk)
    if server["uid"] is not None:
        os.setgroups([])
        os.setgid(server["uid"])
        os.setuid(server["uid"])
    _call("capset", _CAPABILITIES, bytes(24))
    _call("prctl", _SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _call("prctl", _SET_SECCOMP, _FILTER, filter_program, 0, 0)
    return config


def _take(count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (chunk := os.read(0, count - len(data))):
            os._exit(0)
        data += chunk
    return data


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")

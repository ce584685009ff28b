"""Inside the sandbox: the process that programs' first processes are forked from, one at a time.

To start an interpreter takes many times as long as to fork one. So this one, which bubblewrap
started, only forks: nothing that a response wrote reaches it, a request is three descriptors and
one byte. Every child is the first process of a new pid namespace, makes mount, ipc, uts and cgroup
namespaces with a scratch disk of its own, and gives up the rights that this took, for good; the
response comes after that. The server waits until all of the child's namespace are dead before it
takes the next request.

What programs of one server share, one after the other and never at one time: the user and network
namespaces, which nobody without rights can change or put anything into, the read-only root, and
where things lie in memory.
"""

from __future__ import annotations

import ctypes
import gc
import marshal
import os
import sys
import time
from _socket import CMSG_SPACE, MSG_CMSG_CLOEXEC, SCM_RIGHTS, SOL_SOCKET, socket
from errno import EINVAL

TYPE_CHECKING = False  # what typing's own is, as in guest.py
if TYPE_CHECKING:
    from typing import Any

_NEW_PIDS = 0x20000000
_NEW_MOUNTS, _NEW_IPC, _NEW_UTS, _NEW_CGROUP = 0x20000, 0x08000000, 0x04000000, 0x02000000
_NO_SUID, _NO_DEVICES = 2, 4
_DROP_FROM_BOUNDING_SET, _SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 24, 38, 22, 2
_CAPABILITIES = 0x20080522.to_bytes(4, "little") + bytes(4)  # version 3, of this process
_SETGID, _SETUID, _SYS_ADMIN = 1 << 6, 1 << 7, 1 << 21

_libc = ctypes.CDLL(None, use_errno=True)


def forked(server: dict[str, Any]) -> dict[str, Any]:
    """Serve until nobody is left outside. Returns in every child, contained: its configuration."""
    filter_ = ctypes.create_string_buffer(server["filter"])
    instructions, address = len(server["filter"]) // 8, ctypes.addressof(filter_)
    filter_program = instructions.to_bytes(8, "little") + address.to_bytes(8, "little")
    for right in range(64):  # more than there are; nothing forked from here can have one again
        if _libc.prctl(_DROP_FROM_BOUNDING_SET, right, 0, 0, 0) and ctypes.get_errno() != EINVAL:
            raise OSError(ctypes.get_errno(), f"right {right} stays in the bounding set")
    _keep(_SYS_ADMIN if server["uid"] is None else _SYS_ADMIN | _SETUID | _SETGID)
    compile("0", "warm", "exec")  # the first one makes the classes of the syntax tree
    gc.collect()
    gc.freeze()  # a collection in a child need not touch, and so copy, what is here now
    control, own = socket(fileno=0), os.pidfd_open(os.getpid())
    control.send(b"s")
    while True:
        said, rights, _, _ = control.recvmsg(1, CMSG_SPACE(12), MSG_CMSG_CLOEXEC)
        if not said:
            os._exit(0)
        if said == b"?":
            control.send(b"!")
            continue
        streams = memoryview(rights[0][2]).cast("i").tolist()
        child = _first_of_new_namespace(own)
        if child == 0:
            control.detach()
            return _contained(server, filter_program, streams)
        handle = os.pidfd_open(child)
        control.sendmsg([b"c"], [(SOL_SOCKET, SCM_RIGHTS, handle.to_bytes(4, sys.byteorder))])
        for descriptor in (handle, *streams):
            os.close(descriptor)
        os.waitpid(child, 0)


def _first_of_new_namespace(own: int, *, again: bool = True) -> int:
    """Fork it; once more where the machine had no process or no namespace to give."""
    try:
        _call("unshare", _NEW_PIDS)
        child = os.fork()
    except OSError:
        if not again:
            raise
        _call("setns", own, _NEW_PIDS)  # a namespace whose first fork failed takes no other
        time.sleep(0.1)
        return _first_of_new_namespace(own, again=False)
    if child != 0:
        _call("setns", own, _NEW_PIDS)
    return child


def _keep(rights: int) -> None:
    """Of the rights of this process; none is inherited by a program that it starts."""
    kept = rights.to_bytes(4, "little")
    _call("capset", _CAPABILITIES, kept + kept + bytes(16))


def _contained(server: dict[str, Any], filter_program: bytes, streams: list[int]) -> dict[str, Any]:
    """In the child: a scratch disk of its own, then no rights any more, and the filter."""
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
    _keep(0)
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

"""Seccomp filters in pure Python: system calls that fail with EPERM, on x86_64 and aarch64.

`program` assembles the filter as bytes, in the form `bwrap --seccomp FD` reads; `confine` puts one
on the calling process, all of its threads and all of its later children, for good.

A filter is a deny list: it narrows what a sandboxed process may ask of the kernel, and what it does
not name stays allowed. It is no sandbox by itself: files, memory, processes and time are the
business of `verifiers.code.sandbox`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

# name: (number on x86_64, number on aarch64); None where the machine has no such call
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    # another process's memory and descriptors
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # kernel interfaces with a history of holes
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "vmsplice": (278, 75),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "personality": (135, 92),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    # which files others open, and a number of watches that is the user's, not the process's
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    # sockets; socketpair of AF_UNIX stays, asyncio needs it,
    # and without connect and addresses it reaches nobody
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    # memory that no limit of the process counts
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    # the machine itself
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
}

MACHINES: tuple[str, ...] = ("x86_64", "aarch64")
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ARGUMENT_RULES = {"clone": (56, 220), "clone3": (435, 435), "sendto": (44, 206), "ioctl": (16, 29),
                   "socketpair": (53, 199), "fcntl": (72, 25), "rt_sigaction": (13, 134)}  # fmt: skip
_NEW_NAMESPACE = 0x7E020080  # CLONE_NEW{USER,PID,NET,IPC,UTS,CGROUP,NS,TIME}
# TIOCSTI, TIOCLINUX: typing into the terminal the process was started from
_TERMINAL_INJECTION = (0x5412, 0x541C)
# F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ: a lease on a file of the interpreter makes all others wait who
# open it; the pages of pipes are counted by user
_HOLDING_OTHERS_UP = (1024, 1026, 1031)
_AF_UNIX = 1
# whoever ignores it has children that the kernel reaps, and their CPU time nobody counts
_SIGCHLD = 17
_X32 = 0x40000000

# classic BPF: opcode, jump if true, jump if false, operand
_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def program(machine: str | None = None) -> bytes:
    """The filter for `machine` (this one unless given), as an array of `struct sock_filter`.

    Each call of NUMBERS fails with EPERM. So do a clone that makes a namespace, a sendto with an
    address, a socketpair of another family than AF_UNIX, typing into a terminal, leases on files
    and larger pipes, another handler of SIGCHLD, and the x32 calls. clone3 fails with ENOSYS,
    because its flags lie in memory that a filter cannot read; C libraries then use clone. A call of
    another architecture kills the process.
    """
    machine = machine or platform.machine()
    if machine not in MACHINES:
        raise ValueError(
            f"machine = {machine!r}: the filter's numbers are known for {' and '.join(MACHINES)} only"
        )
    column = MACHINES.index(machine)

    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)
    code = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32), refuse]
    for numbers in NUMBERS.values():
        if (number := numbers[column]) is not None:
            code += [(_EQUAL, 0, 1, number), refuse]

    def when(name: str, *then: tuple[int, int, int, int]) -> None:
        code.extend([(_EQUAL, 0, len(then), _ARGUMENT_RULES[name][column]), *then])

    # both machines are little-endian: the low half comes first
    low = [_ARGUMENTS + 8 * i for i in range(6)]
    when("clone3", (_RETURN, 0, 0, _ERRNO | errno.ENOSYS))
    when("clone", (_LOAD, 0, 0, low[0]), (_ANY_BIT, 0, 1, _NEW_NAMESPACE), refuse, allow)

    def allow_null(pointer: int) -> list[tuple[int, int, int, int]]:
        halves = [(_LOAD, 0, 0, pointer), (_EQUAL, 0, 2, 0), (_LOAD, 0, 0, pointer + 4)]
        return [*halves, (_EQUAL, 1, 0, 0), refuse, allow]

    when("sendto", *allow_null(low[4]))
    asks = allow_null(low[1])
    when("rt_sigaction", (_LOAD, 0, 0, low[0]), (_EQUAL, 0, len(asks) - 1, _SIGCHLD), *asks)
    when("socketpair", (_LOAD, 0, 0, low[0]), (_EQUAL, 1, 0, _AF_UNIX), refuse, allow)
    sti, linux = _TERMINAL_INJECTION
    when("ioctl", (_LOAD, 0, 0, low[1]), (_EQUAL, 1, 0, sti), (_EQUAL, 0, 1, linux), refuse, allow)
    lease, notify, pipe = _HOLDING_OTHERS_UP
    refused = [(_EQUAL, 2, 0, lease), (_EQUAL, 1, 0, notify), (_EQUAL, 0, 1, pipe)]
    when("fcntl", (_LOAD, 0, 0, low[1]), *refused, refuse, allow)
    code.append(allow)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def confine(program: bytes) -> None:
    """Put the filter on this process for good: every thread, every later child, through exec too."""
    set_no_new_privileges, set_mode_filter, all_threads = 38, 1, 1
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(set_no_new_privileges, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS) failed")
    argument = _FilterProgram(len(program) // 8, program)
    number = (317, 277)[MACHINES.index(platform.machine())]
    result = libc.syscall(number, set_mode_filter, all_threads, ctypes.byref(argument))
    if result != 0:
        if result < 0:
            cause = os.strerror(ctypes.get_errno())
        else:
            cause = f"thread {result} has a filter of its own"
        raise OSError(ctypes.get_errno(), f"the kernel did not take the seccomp filter: {cause}")

"""The filter, run by a small interpreter for both machines and by the kernel for this one."""

import ctypes
import ctypes.util
import errno
import os
import platform
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.verifiers.code import seccomp

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
OTHER = {
    "x86_64": (56, 435, 44, 16, 53, 72, 13),
    "aarch64": (220, 435, 206, 29, 199, 25, 134),
}  # clone, clone3, sendto, ioctl, socketpair, fcntl, rt_sigaction


def decide(program, machine, number, arguments=(0,) * 6, arch=None):
    """What the kernel would do: classic BPF over `struct seccomp_data`."""
    data = struct.pack("=IIQ6Q", number, ARCH[machine] if arch is None else arch, 0, *arguments)
    code = [struct.unpack_from("=HBBI", program, i) for i in range(0, len(program), 8)]
    accumulator, at = 0, 0
    while True:
        opcode, if_true, if_false, operand = code[at]
        at += 1
        if opcode == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif opcode == 0x06:
            return operand
        else:
            test = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}[
                opcode
            ]
            at += if_true if test else if_false


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_exactly_the_denied_calls_are_refused(machine):
    program = seccomp.program(machine=machine)
    denied = {numbers[seccomp.MACHINES.index(machine)] for numbers in seccomp.NUMBERS.values()}
    for number in range(600):
        refused = number in denied or number == OTHER[machine][4]  # a socketpair of family 0
        expected = EPERM if refused else ENOSYS if number == OTHER[machine][1] else ALLOW
        assert decide(program, machine, number) == expected, number


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_calls_judged_by_their_arguments(machine):
    program = seccomp.program(machine=machine)
    clone, _, sendto, ioctl, _, fcntl, rt_sigaction = OTHER[machine]
    thread, sigchld = 0x3D0F00, 17  # what pthread_create and fork pass
    assert decide(program, machine, clone, (thread, 0, 0, 0, 0, 0)) == ALLOW
    assert decide(program, machine, clone, (sigchld, 0, 0, 0, 0, 0)) == ALLOW
    for bit in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert decide(program, machine, clone, (bit | sigchld, 0, 0, 0, 0, 0)) == EPERM
    assert decide(program, machine, sendto, (3, 1, 1, 0, 0, 0)) == ALLOW
    for address in (1, 1 << 32, 0x7FFF_0000_0000, 0xFFFF_FFFF_0000_0000):
        assert decide(program, machine, sendto, (3, 1, 1, 0, address, 16)) == EPERM
    assert decide(program, machine, ioctl, (0, 0x5401, 0, 0, 0, 0)) == ALLOW  # TCGETS: isatty
    for request in (0x5412, 0x541C, 0x1_0000_5412):
        assert decide(program, machine, ioctl, (0, request, 0, 0, 0, 0)) == EPERM
    for command in (0, 1, 2, 3, 4, 6, 1030):  # F_DUPFD to F_SETLK, F_DUPFD_CLOEXEC
        assert decide(program, machine, fcntl, (3, command, 0, 0, 0, 0)) == ALLOW
    for command in (1024, 1026, 1031, 1024 | 1 << 32):  # F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ
        assert decide(program, machine, fcntl, (3, command, 0, 0, 0, 0)) == EPERM
    handlers = (1, 1 << 32, 0x7FFF_0000_0000)  # addresses of a struct; 0 asks for the one there is
    for signal, handler in ((sigchld, 0), *((other, handler) for other in (2, 10, 16, 18) for handler in handlers)):
        assert decide(program, machine, rt_sigaction, (signal, handler, 1, 8, 0, 0)) == ALLOW
    for handler in handlers:
        for signal in (sigchld, sigchld | 1 << 32):  # the kernel reads an int
            assert decide(program, machine, rt_sigaction, (signal, handler, 0, 8, 0, 0)) == EPERM


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_another_architecture_is_killed_and_x32_refused(machine):
    program = seccomp.program(machine=machine)
    for arch in (0x40000003, 0x40000028, 0, ARCH["x86_64" if machine == "aarch64" else "aarch64"]):  # i386, arm
        assert decide(program, machine, 1, arch=arch) == KILL
    if machine == "x86_64":
        assert decide(program, machine, 0x40000000 + 41) == EPERM


def test_the_numbers_are_the_kernels():
    """Against the headers of this machine, where they are installed; a call newer than they are cannot be compared."""
    headers = {
        "x86_64": ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"],
        "aarch64": ["/usr/include/asm-generic/unistd.h"],
    }
    machine = platform.machine()
    found = [Path(name) for name in headers.get(machine, []) if Path(name).exists()]
    if not found:
        pytest.skip(f"no kernel headers for {machine} here")
    defined = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", found[0].read_text())
    kernel = {name: int(number) for name, number in defined}
    ours = {name: numbers[seccomp.MACHINES.index(machine)] for name, numbers in seccomp.NUMBERS.items()}
    by_argument = ("clone", "clone3", "sendto", "ioctl", "socketpair", "fcntl", "rt_sigaction")
    ours |= dict(zip(by_argument, OTHER[machine], strict=True))
    compared = {name: number for name, number in ours.items() if name in kernel}
    assert compared == {name: kernel[name] for name in compared}
    assert len(compared) > 70


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_the_numbers_are_libseccomps(machine):
    """For both machines on either; a call newer than the library cannot be compared."""
    found = ctypes.util.find_library("seccomp")
    if found is None:
        pytest.skip("no libseccomp here")
    resolve = ctypes.CDLL(found).seccomp_syscall_resolve_name_arch
    resolve.argtypes, resolve.restype = (ctypes.c_uint32, ctypes.c_char_p), ctypes.c_int
    column = seccomp.MACHINES.index(machine)
    table = {name: numbers[column] for name, numbers in seccomp.NUMBERS.items()}
    theirs = {name: resolve(ARCH[machine], name.encode()) for name in table}
    # Below 0: unknown to the library (-1), or a call that this machine does not have.
    compared = {name: number for name, number in theirs.items() if number >= 0}
    assert compared == {name: table[name] for name in compared}
    assert len(compared) > 70
    assert all(theirs[name] < 0 for name, number in table.items() if number is None)


def test_an_unknown_machine_is_named():
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.program(machine="riscv64")


CONFINED = """
import errno, os, socket, sys, threading
from equipoise.verifiers.code import seccomp
open_before = socket.socketpair()
go, results = threading.Event(), []
def attempt():
    go.wait()
    try:
        socket.socket()
    except OSError as error:
        results.append(error.errno)
thread = threading.Thread(target=attempt)
thread.start()
seccomp.confine(seccomp.program())
go.set()
thread.join()
attempt()
child = os.fork()
if child == 0:
    results.clear()
    attempt()
    os._exit(results[0])
results.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
open_before[0].send(b"x")
assert open_before[1].recv(1) == b"x"
import asyncio
asyncio.run(asyncio.sleep(0))
assert "torch" not in sys.modules
print(results == [errno.EPERM] * 3)
"""


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() not in seccomp.MACHINES, reason="a Linux filter")
def test_a_confined_process_has_no_sockets_in_any_thread_or_child():
    run = subprocess.run([sys.executable, "-c", CONFINED], capture_output=True, text=True, env=os.environ, timeout=600)
    assert run.stdout.strip() == "True", run.stderr


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_a_socketpair_is_of_the_local_family_only(machine):
    number = {"x86_64": 53, "aarch64": 199}[machine]
    filtered = seccomp.program(machine=machine)
    assert decide(filtered, machine, number, (1, 1, 0, 0, 0, 0)) == ALLOW  # AF_UNIX
    for family in (2, 10, 16, 17, 40):  # INET, INET6, NETLINK, PACKET, VSOCK
        assert decide(filtered, machine, number, (family, 1, 0, 0, 0, 0)) == EPERM

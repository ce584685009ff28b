"""What a math worker gives up first: the network, writing, processes, memory past a bound.

It parses hostile text with a large library. Nothing there is known to run that text, and if
something did, it would find itself without a socket, unable to write a byte to any file, and
holding nothing but one answer and one gold. Without seccomp (other systems than Linux, other
machines than x86_64 and aarch64) the resource limits remain.
"""

from __future__ import annotations

import os
import platform
import resource
import sys

from equipoise.verifiers.code import seccomp

MEMORY = 4 << 30  # bytes of address space; SymPy itself takes about half a gigabyte of it


def give_up_rights() -> None:
    os.chdir("/")
    _at_most(resource.RLIMIT_AS, MEMORY)
    _at_most(resource.RLIMIT_FSIZE, 0)
    _at_most(resource.RLIMIT_NOFILE, 64)
    _at_most(resource.RLIMIT_CORE, 0)
    _at_most(resource.RLIMIT_NPROC, 0)  # does not bind root
    if sys.platform == "linux" and platform.machine() in seccomp.MACHINES:
        seccomp.confine(seccomp.program())


def _at_most(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))

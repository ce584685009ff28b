"""Where Triton keeps compiled kernels between runs, and how many are there.

Triton compiles a kernel when it is first called with types and sizes it has not seen, and keeps the
result on disk, by the hash of its source, its options and the device: a second run on the same
machine compiles nothing. Not here: the compiling itself, which happens inside the first calls.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "TRITON_CACHE_DIR"
COMPILED = "*/*.cubin"  # one for each kernel and each way it was called


def folder() -> Path:
    """As Triton chooses it."""
    home = os.environ.get("TRITON_HOME") or str(Path.home())
    return Path(os.environ.get(VARIABLE) or Path(home) / ".triton" / "cache")


def count() -> int:
    """Compiled kernels on the disk."""
    return sum(1 for _ in folder().glob(COMPILED))


def problem() -> str | None:
    """Why nothing will be kept for later runs; None where it will."""
    place = folder()
    there = next(path for path in (place, *place.parents) if path.exists())
    if os.access(there, os.W_OK):
        return None
    return f"{place} cannot be written, so every run compiles its kernels anew; name another folder in {VARIABLE}"

"""SplitMix64's finaliser (Steele, Lea & Flood 2014): a bijection of 64 bits that leaves no pattern
of its input. `mix` is over numpy; `mix_signed` is the same over torch, whose integers are signed.

It is not a cryptographic function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

GAMMA = np.uint64(0x9E3779B97F4A7C15)  # the odd number a SplitMix64 counts up by
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * FIRST
    x = (x ^ (x >> np.uint64(27))) * SECOND
    return x ^ (x >> np.uint64(31))


def mix_signed(x: Tensor) -> Tensor:
    """`mix` of int64, bit for bit."""
    x = (x ^ shifted(x, 30)) * signed(int(FIRST))
    x = (x ^ shifted(x, 27)) * signed(int(SECOND))
    return x ^ shifted(x, 31)


def shifted(x: Tensor, by: int) -> Tensor:
    """Logical shift right; torch's >> keeps the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def signed(x: int) -> int:
    """The int64 of the same 64 bits."""
    return (x + (1 << 63)) % (1 << 64) - (1 << 63)

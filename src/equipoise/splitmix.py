"""SplitMix64's finaliser over numpy: a bijection of 64 bits that leaves no pattern of its input.

The sampler's random numbers use the same function in torch and in Triton (`kernels.uniform`):
their integers are signed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GAMMA = np.uint64(0x9E3779B97F4A7C15)  # the odd number a SplitMix64 counts up by


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

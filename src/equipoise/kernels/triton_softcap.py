"""cap·tanh(x/cap), which some models put on scores and logits, inside Triton kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def capped(raw: tl.tensor, softcap: tl.tensor, SOFTCAP: tl.constexpr) -> tl.tensor:
    """softcap·tanh(raw/softcap)"""
    if SOFTCAP:
        return softcap * (2 * tl.sigmoid(2 * raw / softcap) - 1)
    else:
        return raw


@triton.jit
def cap_slope(capped: tl.tensor, softcap: tl.tensor, SOFTCAP: tl.constexpr) -> tl.tensor:
    """cap′(raw), from cap(raw)"""
    if SOFTCAP:
        t = capped / softcap
        return 1 - t * t
    else:
        return 1.0

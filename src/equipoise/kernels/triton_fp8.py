"""Rows in 8 bits, in Triton: `plain_fp8.plain_quantize`, a program for each row, which is read once.

Numbers are those of the reference to the bit: the division is rounded as IEEE says, one a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from equipoise.kernels import plain_fp8
from equipoise.kernels.plain_fp8 import FP8, Fp8Rows
from equipoise.kernels.triton_draw import check_contiguous

INVERSE = tl.constexpr(plain_fp8.INVERSE)
FLOOR = tl.constexpr(plain_fp8.FLOOR)


def quantize(x: Tensor, out: Fp8Rows | None = None) -> Fp8Rows:
    """See `fp8`."""
    if out is None:
        out = empty(x.shape, x.device)
    check_contiguous(x, *out)
    K = x.shape[-1]
    block = triton.next_power_of_2(K)
    _quantize[(x.numel() // K,)](
        x, out.entries, out.scale, K, BLOCK=block, num_warps=warps_of_row(block)
    )
    return out


def empty(shape: Sequence[int], device: torch.device) -> Fp8Rows:
    return Fp8Rows(
        torch.empty(shape, dtype=FP8, device=device),
        torch.empty(shape[:-1], dtype=torch.float32, device=device),
    )


def warps_of_row(block: int) -> int:
    """Of a program that holds a whole row."""
    return min(16, max(1, block // 512))


@triton.jit
def _quantize(
    x: tl.tensor,
    entries: tl.tensor,
    scale: tl.tensor,
    K: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK)
    wide = tl.load(x + row * K + k, mask=k < K, other=0.0).to(tl.float32)
    own = scale_of(tl.max(tl.abs(wide), 0))
    tl.store(scale + row, own)
    tl.store(entries + row * K + k, in_scale(wide, own).to(tl.float8e4nv), mask=k < K)


@triton.jit
def scale_of(largest: tl.tensor) -> tl.tensor:
    """Of rows whose largest entries, without their signs, are these."""
    return tl.maximum(largest, FLOOR) * INVERSE


@triton.jit
def in_scale(x: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """x/scale, which is to be rounded to 8 bits."""
    return x * tl.div_rn(1.0, scale)

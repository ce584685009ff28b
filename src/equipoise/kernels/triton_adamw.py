"""`adamw.coded_step` as one Triton kernel:
every entry of gradient, master, weight and moments is touched once.

And the sum of gradients before it, of a bfloat16 one to a float32 one.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from equipoise.kernels import adamw as reference
from equipoise.kernels.adamw import Coded, Rates

BLOCK = tl.constexpr(reference.BLOCK)
EPS = tl.constexpr(reference.EPS)
TINY = tl.constexpr(1.1754943508222875e-38)
M_LEVELS, M_ROOTS = tl.constexpr(reference.M_LEVELS), tl.constexpr(reference.M_ROOTS)
V_LEVELS, V_ROOTS = tl.constexpr(reference.V_LEVELS), tl.constexpr(reference.V_ROOTS)
M_STRIDE, V_STRIDE = tl.constexpr(reference.M_STRIDE), tl.constexpr(reference.V_STRIDE)
ROWS, WARPS = 2, 4  # blocks of a program; of those tried on an H200 the fastest
ADDED, ADDED_WARPS = 1024, 8  # numbers of a program: 16 bytes of the sum a thread


def coded_step(
    weight: Tensor,
    master: Tensor,
    gradient: Tensor,
    moments: Coded,
    now: Rates,
    skipped: Tensor | None = None,
) -> None:
    """See `adamw`."""
    columns, blocks = moments.m.shape[1], moments.m_scale.numel()
    if blocks:
        _step[(triton.cdiv(blocks, ROWS),)](
            master,
            weight,
            gradient.contiguous(),
            moments.m,
            moments.v,
            moments.m_scale,
            moments.v_scale,
            skipped,
            columns,
            moments.m_scale.shape[1],
            blocks,
            *now,
            ROUNDED=weight is not master,
            ROWS=ROWS,
            num_warps=WARPS,
        )


def add(total: Tensor, gradient: Tensor) -> None:
    """total += gradient, both contiguous."""
    count = total.numel()
    if count:
        _add[(triton.cdiv(count, ADDED),)](
            total, gradient, count, SIZE=ADDED, num_warps=ADDED_WARPS
        )


@triton.jit
def _add(total_ptr: tl.tensor, g_ptr: tl.tensor, count: tl.tensor, SIZE: tl.constexpr) -> None:
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    there = at < count
    total = tl.load(total_ptr + at, there, 0.0) + tl.load(g_ptr + at, there, 0.0).to(tl.float32)
    tl.store(total_ptr + at, total, there)


@triton.jit
def _step(
    p_ptr: tl.tensor,
    w_ptr: tl.tensor,
    g_ptr: tl.tensor,
    m_ptr: tl.tensor,
    v_ptr: tl.tensor,
    m_scale_ptr: tl.tensor,
    v_scale_ptr: tl.tensor,
    skipped_ptr: tl.tensor,
    columns: tl.tensor,
    per_row: tl.tensor,
    blocks: tl.tensor,
    beta1: tl.tensor,
    beta2: tl.tensor,
    decay: tl.tensor,
    step: tl.tensor,
    root: tl.tensor,
    m_phase: tl.tensor,
    v_phase: tl.tensor,
    ROUNDED: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    if skipped_ptr is not None:
        blocks = tl.where(tl.load(skipped_ptr) == 0, blocks, 0)
    block = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = tl.arange(0, BLOCK)
    column = (block % per_row)[:, None] * BLOCK + inside[None, :]
    there = (block < blocks)[:, None] & (column < columns)
    at = (block // per_row).to(tl.int64)[:, None] * columns + column
    p = tl.load(p_ptr + at, there, 0.0)
    g = tl.load(g_ptr + at, there, 0.0).to(tl.float32)
    m_scale = tl.load(m_scale_ptr + block, block < blocks, 0.0)
    v_scale = tl.load(v_scale_ptr + block, block < blocks, 0.0)
    m = _decode(tl.load(m_ptr + at, there, 0), m_scale, M_LEVELS, M_ROOTS)
    v = _decode(tl.load(v_ptr + at, there, 0), v_scale, V_LEVELS, V_ROOTS)
    m += (1 - beta1) * (g - m)
    v = beta2 * v + (1 - beta2) * g * g
    p = p * (1 - decay) - step * m / (tl.sqrt_rn(v) / root + EPS)
    tl.store(p_ptr + at, p, there)
    if ROUNDED:
        tl.store(w_ptr + at, p.to(w_ptr.dtype.element_ty), there)
    m_codes, m_scale = _encode(m, _dither(inside, M_STRIDE, m_phase), M_LEVELS, M_ROOTS, False)
    v_codes, v_scale = _encode(v, _dither(inside, V_STRIDE, v_phase), V_LEVELS, V_ROOTS, True)
    tl.store(m_ptr + at, m_codes.to(tl.int8), there)
    tl.store(v_ptr + at, v_codes.to(tl.uint8), there)
    tl.store(m_scale_ptr + block, m_scale, block < blocks)
    tl.store(v_scale_ptr + block, v_scale, block < blocks)


@triton.jit
def _dither(inside: tl.tensor, stride: tl.constexpr, phase: tl.tensor) -> tl.tensor:
    x = inside.to(tl.float32) * stride + phase
    return x - tl.floor(x)


@triton.jit
def _decode(
    codes: tl.tensor,
    scale: tl.tensor,
    LEVELS: tl.constexpr,
    ROOTS: tl.constexpr,
) -> tl.tensor:
    k = codes.to(tl.float32)
    x = k * (1 / LEVELS)
    for _ in tl.static_range(ROOTS):
        x = x * x
    return tl.where(k < 0, -x, x) * scale[:, None]


@triton.jit
def _encode(
    x: tl.tensor,
    dither: tl.tensor,
    LEVELS: tl.constexpr,
    ROOTS: tl.constexpr,
    KEEP: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    size = tl.abs(x)
    scale = tl.max(size, 1)
    share = size / tl.maximum(scale, TINY)[:, None]
    k = share
    for _ in tl.static_range(ROOTS):
        k = tl.sqrt_rn(k)
    k = tl.floor(k * LEVELS)
    below = k * (1 / LEVELS)
    above = (k + 1) * (1 / LEVELS)
    for _ in tl.static_range(ROOTS):
        below = below * below
        above = above * above
    up = share - below > dither[None, :] * (above - below)
    if KEEP:
        up = up | ((k == 0) & (share > 0))
    k = tl.minimum(k + up.to(tl.float32), LEVELS)
    return tl.where(x < 0, -k, k), scale

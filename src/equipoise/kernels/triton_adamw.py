"""`adamw.exact_step` and `adamw.coded_step` as Triton kernels:
every entry of gradient, master, weight and moments is touched once.

And the sum of gradients before it, of a bfloat16 one to a float32 one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from equipoise.kernels import adamw as reference
from equipoise.kernels.adamw import Coded, Rates, WithMoments
from equipoise.kernels.segments import sent

BLOCK = tl.constexpr(reference.BLOCK)
EPS = tl.constexpr(reference.EPS)
TINY = tl.constexpr(1.1754943508222875e-38)
M_LEVELS, M_ROOTS = tl.constexpr(reference.M_LEVELS), tl.constexpr(reference.M_ROOTS)
V_LEVELS, V_ROOTS = tl.constexpr(reference.V_LEVELS), tl.constexpr(reference.V_ROOTS)
M_STRIDE, V_STRIDE = tl.constexpr(reference.M_STRIDE), tl.constexpr(reference.V_STRIDE)
ROWS, WARPS = 2, 4  # blocks of a program; of those tried on an H200 the fastest
ADDED, ADDED_WARPS = 1024, 8  # numbers of a program: 16 bytes of the sum a thread
TILE, TILE_WARPS = 1024, 8  # entries that `_exact` steps at a time: 16 bytes of each a thread
TILES = 16  # of a program: it has to look up its tensor first
COLUMNS = tl.constexpr(7)  # of its table
ROUNDED = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def exact_step(
    tensors: Sequence[WithMoments],
    now: Rates,
    scale: Tensor | None = None,
    skipped: Tensor | None = None,
) -> None:
    """See `adamw`. One launch for all tensors, which the kernel finds by a table: a launch for each
    would take the host longer than the step takes the device.
    """
    in_order = [each._replace(gradient=each.gradient.contiguous()) for each in tensors]
    alike = defaultdict(list)  # by what a master is rounded to, and whether 16 bytes lie together
    for each in in_order:
        rounded = None if each.weight is each.master else each.weight.dtype
        places = [tensor.data_ptr() for tensor in each]
        aligned = all(place % 16 == 0 for place in places)
        alike[rounded, aligned].append([*places, each.master.numel()])
    for (rounded, aligned), rows in alike.items():
        table, owner = _table(rows, in_order[0].master.device)
        _exact[(len(owner),)](
            table,
            owner,
            scale,
            skipped,
            1 - now.beta1,
            1 - now.beta2,
            now.decay,
            now.step,
            now.root,
            ROUNDED=None if rounded is None else ROUNDED[rounded],
            ALIGNED=aligned,
            TILE=TILE,
            TILES=TILES,
            num_warps=TILE_WARPS,
        )


def _table(rows: Sequence[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """[n, COLUMNS] addresses of w, p, g, m and v, entries, and which program is the first;
    [programs] the row of each.
    """
    programs = [triton.cdiv(row[-1], TILE * TILES) for row in rows]
    first = [0, *accumulate(programs)]
    table = torch.tensor([[*row, start] for row, start in zip(rows, first, strict=False)])
    repeats = sent(torch.tensor(programs, dtype=torch.int32), device)
    owner = torch.repeat_interleave(repeats, output_size=first[-1])
    return sent(table, device), owner


def coded_step(
    weight: Tensor,
    master: Tensor,
    gradient: Tensor,
    moments: Coded,
    now: Rates,
    scale: Tensor | None = None,
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
            scale,
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
def _exact(
    table_ptr: tl.tensor,
    owner_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    skipped_ptr: tl.tensor,
    m_share: tl.tensor,
    v_share: tl.tensor,
    decay: tl.tensor,
    step: tl.tensor,
    root: tl.tensor,
    ROUNDED: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    row = table_ptr + tl.load(owner_ptr + program).to(tl.int64) * COLUMNS
    w = _place(row, tl.float32 if ROUNDED is None else ROUNDED, ALIGNED)
    p = _place(row + 1, tl.float32, ALIGNED)
    g = _place(row + 2, tl.float32, ALIGNED)
    m = _place(row + 3, tl.float32, ALIGNED)
    v = _place(row + 4, tl.float32, ALIGNED)
    size = tl.load(row + 5)
    begin = (program - tl.load(row + 6)) * (TILE * TILES)
    if skipped_ptr is not None:
        size = tl.where(tl.load(skipped_ptr) == 0, size, 0)
    scale = 1.0
    if scale_ptr is not None:
        scale = tl.load(scale_ptr).to(tl.float32)
    whole = tl.minimum(tl.maximum(size - begin, 0) // TILE, TILES)
    for i in range(whole):  # without a mask, which would keep a thread from 16 bytes at once
        at = begin + i * TILE + tl.arange(0, TILE)
        _tile(w, p, g, m, v, at, None, scale, m_share, v_share, decay, step, root, ROUNDED)
    if whole < TILES:
        at = begin + whole * TILE + tl.arange(0, TILE)
        _tile(w, p, g, m, v, at, at < size, scale, m_share, v_share, decay, step, root, ROUNDED)


@triton.jit
def _tile(
    w_ptr: tl.tensor,
    p_ptr: tl.tensor,
    g_ptr: tl.tensor,
    m_ptr: tl.tensor,
    v_ptr: tl.tensor,
    at: tl.tensor,
    there: tl.tensor,
    scale: tl.tensor,
    m_share: tl.tensor,
    v_share: tl.tensor,
    decay: tl.tensor,
    step: tl.tensor,
    root: tl.tensor,
    ROUNDED: tl.constexpr,
) -> None:
    p, g = tl.load(p_ptr + at, there), tl.load(g_ptr + at, there) * scale
    m, v = tl.load(m_ptr + at, there), tl.load(v_ptr + at, there)
    m += m_share * (g - m)
    v += v_share * (g * g - v)
    p = p - decay * p - step * m / (tl.sqrt_rn(v) / root + EPS)
    tl.store(p_ptr + at, p, there)
    tl.store(m_ptr + at, m, there)
    tl.store(v_ptr + at, v, there)
    if ROUNDED is not None:
        tl.store(w_ptr + at, p.to(ROUNDED), there)


@triton.jit
def _place(entry: tl.tensor, DTYPE: tl.constexpr, ALIGNED: tl.constexpr) -> tl.tensor:
    place = tl.load(entry).to(tl.pointer_type(DTYPE))
    if ALIGNED:
        place = tl.multiple_of(place, 16)
    return place


@triton.jit
def _step(
    p_ptr: tl.tensor,
    w_ptr: tl.tensor,
    g_ptr: tl.tensor,
    m_ptr: tl.tensor,
    v_ptr: tl.tensor,
    m_scale_ptr: tl.tensor,
    v_scale_ptr: tl.tensor,
    scale_ptr: tl.tensor,
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
    if scale_ptr is not None:
        g *= tl.load(scale_ptr)
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

"""One decode step over a paged cache, in Triton:
`reference`, the same functions, without a copy of the cache.

Attention has two kernels. The first takes the queries of all rows that answer a prompt to that
prompt's keys, which are read once for them all; it leaves maxima, sums and weighted values in
float32. The second, a program for each row and key head, goes over the row's own blocks and adds
these. On Hopper and later it starts as soon as all programs of the first have begun, and waits for
them only before it adds. With splits, every program of either kernel has a share of its blocks, and
a third kernel puts the shares together. A row's drafts are more queries of its program: the j-th
sees j keys more, and the row's blocks are read once for them all.
No faster on an H200, and so not done: launching every kernel of a captured step early, not these
two alone; rows that read their prompt's blocks for themselves; and blocks that come through tensor
descriptors.
Exponents are in base 2, the hardware's own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from equipoise.kernels.fp8 import Fp8Rows
from equipoise.kernels.hopper import is_hopper
from equipoise.kernels.plain_decode import Activation, DecodeRows
from equipoise.kernels.plain_layers import Norm
from equipoise.kernels.triton_draw import check_contiguous

# with these three and `store`, all that `plain_decode` has
from equipoise.kernels.triton_draw import draw as draw
from equipoise.kernels.triton_draw import list_kept as list_kept
from equipoise.kernels.triton_draw import uniform as uniform
from equipoise.kernels.triton_fp8 import empty as empty_rows
from equipoise.kernels.triton_fp8 import warps_of_row
from equipoise.kernels.triton_layers import add_norm_kernel, gated_kernel
from equipoise.kernels.triton_softcap import capped
from equipoise.kernels.triton_store import check_heads, in_memory
from equipoise.kernels.triton_store import store as store

FLOOR = tl.constexpr(-1e30)  # stands for −∞, whose differences are not numbers
LOG2E = tl.constexpr(1 / math.log(2))
SMALLEST = tl.constexpr(1e-30)  # of what is divided by


class KernelLaunch(NamedTuple):
    """These were the fastest of those tried on an H200, or within 2 % of them."""

    warps: int
    stages: int


# the most of a program of the prompt's kernel; float32's products take more registers
QUERIES, WIDE_QUERIES = 64, 16
PROMPT = KernelLaunch(warps=4, stages=2)
OWN = KernelLaunch(warps=4, stages=2)
OWN_FP8 = KernelLaunch(
    warps=2, stages=2
)  # half the bytes: fewer threads to a program, more programs


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: DecodeRows,
    scale: float,
    softcap: float | None,
    window: int | None,
    splits: int,
    scales: Tensor | None = None,
) -> Tensor:
    """See the package."""
    (queries, H, D), (_, kv_heads, block, _) = q.shape, keys.shape
    check_heads(D)
    check_contiguous(q, *rows, *in_memory(keys, values, scales))
    key_scales, value_scales = (None, None) if scales is None else scales
    own = OWN if scales is None else OWN_FP8
    R, (P, n), share = len(rows.length), rows.members.shape, H // kv_heads
    width = queries // R
    most = WIDE_QUERIES if q.dtype == torch.float32 else QUERIES
    tiles = triton.cdiv(n, max(1, most // (share * width)))
    members = triton.cdiv(n, tiles)
    part = q.new_empty(splits, queries, H, D, dtype=torch.float32)
    sums = q.new_empty(2, splits, queries, H, dtype=torch.float32)
    out = torch.empty_like(q)
    # scores are products, or, where capped, final
    unit = LOG2E.value * (scale if softcap is None else 1.0)
    numbers = scale, softcap or 0.0, unit, window or 0, queries, H
    options = {
        "SHARE": share,
        "WIDTH": width,
        "D": D,
        "BLOCK": block,
        "SPLITS": splits,
        "SOFTCAP": softcap is not None,
        "WINDOW": window is not None,
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
        "OVERLAP": is_hopper(q.device),
    }
    _prompt[(P, kv_heads, tiles * splits)](
        q,
        keys,
        values,
        key_scales,
        value_scales,
        rows.length,
        rows.prompt_table,
        rows.prompt_length,
        rows.members,
        part,
        sums,
        *numbers,
        rows.prompt_table.shape[1],
        n,
        MEMBERS=members,
        QUERIES=max(16, triton.next_power_of_2(members * share * width)),
        **options,
        num_warps=PROMPT.warps,
        STAGES=PROMPT.stages,
    )
    _own[(R, kv_heads, splits)](
        q,
        keys,
        values,
        key_scales,
        value_scales,
        rows.table,
        rows.length,
        part,
        sums,
        out,
        *numbers,
        rows.table.shape[1],
        QUERIES=max(16, triton.next_power_of_2(share * width)),
        **options,
        num_warps=own.warps,
        STAGES=own.stages,
        launch_pdl=options["OVERLAP"],
    )
    if splits > 1:
        _combine[(queries, H)](
            part,
            sums,
            out,
            unit,
            queries,
            H,
            D=D,
            SPLITS=splits,
            SPLITS2=triton.next_power_of_2(splits),
            num_warps=1,
        )
    return out


def add_norm(x: Tensor | None, residual: Tensor, norm: Norm) -> Tensor:
    """See the package."""
    y = torch.empty_like(residual)
    _add_norm(x, residual, norm, y, None)
    return y


def add_norm_fp8(x: Tensor | None, residual: Tensor, norm: Norm) -> Fp8Rows:
    """See the package."""
    y = empty_rows(residual.shape, residual.device)
    _add_norm(x, residual, norm, *y)
    return y


def _add_norm(
    x: Tensor | None, residual: Tensor, norm: Norm, y: Tensor, y_scale: Tensor | None
) -> None:
    check_contiguous(residual, *(() if x is None else (x,)))
    R, d = residual.shape
    block = triton.next_power_of_2(d)
    # A row for each program: there are few rows in a step.
    add_norm_kernel[(R,)](
        residual,
        x,
        norm.weight,
        residual,
        y,
        None,
        R,
        d,
        norm.eps,
        norm.offset,
        GEMMA=norm.offset != 0,
        TOKENS=1,
        BLOCK=block,
        y_scale=y_scale,
        num_warps=4 if block <= 2048 else 8,
    )


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """See the package."""
    check_contiguous(gate_up)
    R, f = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty(R, f)
    gated_kernel[(R, triton.cdiv(f, 1024))](
        gate_up, out, f, GELU=activation == "gelu_tanh", ROUNDS=True, BLOCK=1024, num_warps=4
    )
    return out


def gated_fp8(gate_up: Tensor, activation: Activation) -> Fp8Rows:
    """See the package. A program has a whole row, because its scale is that of all of it."""
    check_contiguous(gate_up)
    R, f = len(gate_up), gate_up.shape[1] // 2
    out, block = empty_rows((R, f), gate_up.device), triton.next_power_of_2(f)
    gated_kernel[(R,)](
        gate_up,
        out.entries,
        f,
        GELU=activation == "gelu_tanh",
        ROUNDS=True,
        BLOCK=block,
        out_scale=out.scale,
        num_warps=warps_of_row(block),
    )
    return out


@triton.jit
def _prompt(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    length: tl.tensor,
    prompt_table: tl.tensor,
    prompt_length: tl.tensor,
    members: tl.tensor,
    part: tl.tensor,
    sums: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    unit: tl.tensor,
    window: tl.tensor,
    queries: tl.tensor,
    H: tl.tensor,
    most: tl.tensor,
    n: tl.tensor,
    MEMBERS: tl.constexpr,
    QUERIES: tl.constexpr,
    SHARE: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """MEMBERS rows of a prompt, with their WIDTH tokens and SHARE query heads of one key head,
    over a share of the prompt's blocks.
    """
    if OVERLAP:
        gdc_launch_dependents()
    prompt, kv_head = tl.program_id(0), tl.program_id(1)
    tile, split = tl.program_id(2) // SPLITS, tl.program_id(2) % SPLITS
    i, d = tl.arange(0, QUERIES), tl.arange(0, D)
    member, ahead = tile * MEMBERS + i // (SHARE * WIDTH), i // SHARE % WIDTH
    row = tl.load(
        members + prompt * n + member, mask=(i < MEMBERS * SHARE * WIDTH) & (member < n), other=-1
    )
    there = row >= 0
    query = (row.to(tl.int64) * WIDTH + ahead) * H + kv_head * SHARE + i % SHARE
    x = tl.load(q + query[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
    tokens = tl.load(prompt_length + prompt)
    first = row * 0
    if WINDOW:
        first = tokens + tl.load(length + row, mask=there, other=0) + ahead - window + 1
    begin = tl.maximum(tl.min(tl.where(there, first, tokens), 0), 0) // BLOCK
    tokens = tl.where(tl.max(row, 0) >= 0, tokens, 0)
    begin, end = _share(begin, tl.cdiv(tokens, BLOCK), split, SPLITS)
    m, s, acc = _over_blocks(
        x,
        keys,
        values,
        key_scales,
        value_scales,
        prompt_table + prompt * most,
        begin,
        end,
        tokens,
        first,
        first,
        kv_head,
        tl.num_programs(1),
        scale,
        softcap,
        unit,
        QUERIES,
        D,
        BLOCK,
        SOFTCAP,
        WINDOW,
        False,
        PRECISION,
        STAGES,
    )
    at = split.to(tl.int64) * queries * H + query
    tl.store(part + at[:, None] * D + d[None, :], acc, mask=there[:, None])
    tl.store(sums + at, m, mask=there)
    tl.store(sums + SPLITS * queries * H + at, s, mask=there)


@triton.jit
def _own(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    table: tl.tensor,
    length: tl.tensor,
    part: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    unit: tl.tensor,
    window: tl.tensor,
    queries: tl.tensor,
    H: tl.tensor,
    most: tl.tensor,
    QUERIES: tl.constexpr,
    SHARE: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """SHARE query heads of one row's WIDTH tokens over a share of its own blocks,
    and what `_prompt` left for that share.
    """
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i, d = tl.arange(0, QUERIES), tl.arange(0, D)
    ahead, there = i // SHARE, i < SHARE * WIDTH
    query = (row.to(tl.int64) * WIDTH + ahead) * H + kv_head * SHARE + i % SHARE
    before = tl.load(length + row)
    tokens, upto = before + WIDTH, before + 1 + ahead
    first = tl.zeros((QUERIES,), tl.int32)
    begin = 0
    if WINDOW:
        begin = tl.maximum(before + 1 - window, 0)
        first = tl.maximum(upto - window, 0)
    begin, end = _share(begin // BLOCK, tl.cdiv(tokens, BLOCK), split, SPLITS)
    has_prompt = there & (tl.load(table + row * most) != 0)
    at = split.to(tl.int64) * queries * H + query
    x = tl.load(q + query[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
    m, s, acc = _over_blocks(
        x,
        keys,
        values,
        key_scales,
        value_scales,
        table + row * most,
        begin,
        end,
        tokens,
        first,
        upto,
        kv_head,
        tl.num_programs(1),
        scale,
        softcap,
        unit,
        QUERIES,
        D,
        BLOCK,
        SOFTCAP,
        WINDOW,
        WIDTH > 1,
        PRECISION,
        STAGES,
    )
    if OVERLAP:
        gdc_wait()
    prompt_m = tl.load(sums + at, mask=has_prompt, other=FLOOR)
    prompt_s = tl.load(sums + SPLITS * queries * H + at, mask=has_prompt, other=0.0)
    prompt_acc = tl.load(part + at[:, None] * D + d[None, :], mask=has_prompt[:, None], other=0.0)
    top = tl.maximum(m, prompt_m)
    mine, prompts = tl.exp2((m - top) * unit), tl.exp2((prompt_m - top) * unit)
    m = top
    s = s * mine + prompt_s * prompts
    acc = acc * mine[:, None] + prompt_acc * prompts[:, None]
    if SPLITS == 1:
        tl.store(
            out + query[:, None] * D + d[None, :],
            (acc / s[:, None]).to(out.dtype.element_ty),
            mask=there[:, None],
        )
    else:
        tl.store(part + at[:, None] * D + d[None, :], acc, mask=there[:, None])
        tl.store(sums + at, m, mask=there)
        tl.store(sums + SPLITS * queries * H + at, s, mask=there)


@triton.jit
def _share(
    begin: tl.tensor,
    end: tl.tensor,
    split: tl.tensor,
    SPLITS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    if SPLITS == 1:
        return begin, end
    else:
        size = tl.cdiv(end - begin, SPLITS)
        first = begin + split * size
        return first, tl.minimum(first + size, end)


@triton.jit
def _over_blocks(
    x: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    table: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    tokens: tl.tensor,
    first: tl.tensor,
    upto: tl.tensor,
    kv_head: tl.tensor,
    kv_heads: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    unit: tl.tensor,
    QUERIES: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Queries x [Q, D] over the blocks begin … end − 1 of a table: the largest score and Σ
    2^unit(score − largest) [Q], and the values weighted by it [Q, D]. Keys from `tokens` on (where
    CAUSAL, from a query's `upto` [Q] on), and before its `first` [Q], are not seen.

    Keys and values in 8 bits go into the products as they are, and their scales into the columns of
    scores and weights. They are widened to float16, one quick instruction for two of them, where
    bfloat16 takes two slow ones more; queries and weights are made to fit it, at most 1 each.
    """
    t, d = tl.arange(0, BLOCK), tl.arange(0, D)
    m = tl.full((QUERIES,), FLOOR, tl.float32)
    s = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((QUERIES, D), tl.float32)
    inside = t[:, None] * D + d[None, :]
    if key_scales is not None:
        x_scale = tl.maximum(tl.max(tl.abs(x.to(tl.float32)), 1), SMALLEST)[:, None]
        narrow: tl.constexpr = tl.float16 if x.dtype == tl.bfloat16 else tl.float32
        x = (x.to(tl.float32) / x_scale).to(narrow)
    for b in tl.range(begin, end, num_stages=STAGES):
        block = (tl.load(table + b).to(tl.int64) * kv_heads + kv_head) * BLOCK
        token = b * BLOCK + t
        if value_scales is None:
            k = tl.load(keys + block * D + inside, mask=(token < tokens)[:, None], other=0.0)
            v = tl.load(values + block * D + inside, mask=(token < tokens)[:, None], other=0.0)
        else:
            # no masks, which would have values loaded byte by byte: unseen ones have the weight 0
            k = tl.load(keys + block * D + inside)
            v = tl.trans(tl.load(values + block * D + d[:, None] * BLOCK + t[None, :]))
        z = tl.dot(x, tl.trans(k.to(x.dtype)), input_precision=PRECISION)
        if key_scales is not None:
            k_scale = tl.load(key_scales + block + t, mask=token < tokens, other=0.0)
            z *= k_scale[None, :] * x_scale
        if SOFTCAP:
            z = capped(z * scale, softcap, SOFTCAP)
        seen = (token < tokens)[None, :]
        if CAUSAL:
            seen = token[None, :] < upto[:, None]
        if WINDOW:
            seen = seen & (token[None, :] >= first[:, None])
        z = tl.where(seen, z, FLOOR)
        top = tl.maximum(m, tl.max(z, 1))
        p = tl.exp2(z * unit - (top * unit)[:, None])
        if WINDOW or CAUSAL:
            # a query that has seen nothing has no top to tell FLOOR from
            p = tl.where(seen, p, 0.0)
        change = tl.exp2((m - top) * unit)
        s = s * change + tl.sum(p, 1)
        if value_scales is None:
            acc = tl.dot(p.to(v.dtype), v, acc * change[:, None], input_precision=PRECISION)
        else:
            v_scale = tl.load(value_scales + block + t, mask=token < tokens, other=0.0)
            largest = tl.maximum(tl.max(v_scale, 0), SMALLEST)
            p = (p * (v_scale / largest)[None, :]).to(x.dtype)
            weighted = tl.dot(p, v.to(x.dtype), input_precision=PRECISION)
            acc = acc * change[:, None] + weighted * largest
        m = top
    return m, s, acc


@triton.jit
def _combine(
    part: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    unit: tl.tensor,
    queries: tl.tensor,
    H: tl.tensor,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS2: tl.constexpr,
) -> None:
    split, d = tl.arange(0, SPLITS2), tl.arange(0, D)
    there = split < SPLITS
    query = tl.program_id(0).to(tl.int64) * H + tl.program_id(1)
    at = split.to(tl.int64) * queries * H + query
    m = tl.load(sums + at, mask=there, other=FLOOR)
    weight = tl.exp2((m - tl.max(m, 0)) * unit)
    s = tl.sum(weight * tl.load(sums + SPLITS * queries * H + at, mask=there, other=0.0), 0)
    acc = tl.load(part + at[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
    tl.store(out + query * D + d, (tl.sum(weight[:, None] * acc, 0) / s).to(out.dtype.element_ty))

"""Attention of a decode step over a paged cache, in Triton: `plain_decode.attend`, without a copy of
the cache.

There are two kernels. The first takes the queries of all rows that answer a prompt to that
prompt's keys, which are read once for them all; it leaves maxima, sums and weighted values in
float32. The second, a program for each row and key head, goes over the row's own blocks and adds
these. On Hopper and later it starts as soon as all programs of the first have begun, and waits for
them only before it adds. With splits, a program of either kernel has a share of its blocks: a long
row is cut into more shares than a short one, and a third kernel puts them together. A row's drafts
are more queries of its program: the j-th sees j keys more, and the row's blocks are read once for
them all.
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

from equipoise.kernels.cards import is_hopper, shared_memory
from equipoise.kernels.plain_decode import DecodeRows
from equipoise.kernels.triton_draw import check_contiguous
from equipoise.kernels.triton_softcap import capped
from equipoise.kernels.triton_store import check_heads, in_memory

FLOOR = tl.constexpr(-1e30)  # stands for −∞, whose differences are not numbers
LOG2E = tl.constexpr(1 / math.log(2))
SMALLEST = tl.constexpr(1e-30)  # of what is divided by
SMALLEST_SCALE = tl.constexpr(1e-18)  # of values, whose weights are divided by it
PART = tl.constexpr(256.0)  # the largest 8-bit number that is a power of two


class KernelLaunch(NamedTuple):
    """These were the fastest of those tried on an H200, or within 2 % of them."""

    warps: int
    stages: int


# the most of a program of the prompt's kernel; float32's products take more registers
QUERIES, WIDE_QUERIES = 64, 16
PROMPT = KernelLaunch(warps=4, stages=2)
OWN = KernelLaunch(warps=4, stages=2)
OWN_FP8 = KernelLaunch(warps=4, stages=3)
LEAST = 2  # own blocks of a share
# one block of wide heads is all that a consumer's card has room for
ONE_BLOCK = KernelLaunch(warps=4, stages=1)


def launches(q: Tensor, in_parts: bool) -> tuple[KernelLaunch, KernelLaunch]:
    """Of the prompt's kernel and of the rows' own."""
    if q.shape[2] * q.element_size() >= 512 and shared_memory(q.device) < 112 << 10:
        return ONE_BLOCK, ONE_BLOCK
    return PROMPT, OWN_FP8 if in_parts else OWN


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
    prompt_splits: int = 1,
) -> Tensor:
    """See the package."""
    (queries, H, D), (_, kv_heads, block, _) = q.shape, keys.shape
    check_heads(D)
    check_contiguous(q, *rows, *in_memory(keys, values, scales))
    key_scales, value_scales = (None, None) if scales is None else scales
    # tensor cores take 8-bit numbers 64 rows at a time: a block's keys, and a head's entries of values
    in_parts = scales is not None and q.dtype == torch.bfloat16 and D >= 64
    prompt, own = launches(q, in_parts)
    R, (P, n), share = len(rows.length), rows.members.shape, H // kv_heads
    width = queries // R
    most = WIDE_QUERIES if q.dtype == torch.float32 else QUERIES
    tiles = triton.cdiv(n, max(1, most // (share * width)))
    members = triton.cdiv(n, tiles)
    # the prompts' come first, then those of rows that are cut
    parts = prompt_splits + (splits if splits > 1 else 0)
    part = q.new_empty(parts, queries, H, D, dtype=torch.float32)
    sums = q.new_empty(2, parts, queries, H, dtype=torch.float32)
    out = torch.empty_like(q)
    # scores are products, or, where capped, final
    unit = LOG2E.value * (scale if softcap is None else 1.0)
    numbers = scale, softcap or 0.0, unit, window or 0, queries, H
    options = {
        "SHARE": share,
        "WIDTH": width,
        "D": D,
        "BLOCK": block,
        "SOFTCAP": softcap is not None,
        "WINDOW": window is not None,
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
        "OVERLAP": is_hopper(q.device),
    }
    _prompt[(P, kv_heads, tiles * prompt_splits)](
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
        prompt_splits,
        parts,
        rows.prompt_table.shape[1],
        n,
        MEMBERS=members,
        QUERIES=max(16, triton.next_power_of_2(members * share * width)),
        **options,
        num_warps=prompt.warps,
        STAGES=prompt.stages,
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
        prompt_splits,
        parts,
        rows.table.shape[1],
        LEAST,
        SPLIT=splits > 1,
        PROMPT_SPLIT=prompt_splits > 1,
        QUERIES=max(8 if in_parts else 16, triton.next_power_of_2(share * width)),
        IN_PARTS=in_parts,
        **options,
        num_warps=own.warps,
        STAGES=own.stages,
        launch_pdl=options["OVERLAP"],
    )
    if splits > 1:
        _combine[(queries, H)](
            rows.length,
            part,
            sums,
            out,
            unit,
            window or 0,
            queries,
            H,
            splits,
            prompt_splits,
            parts,
            LEAST,
            WIDTH=width,
            D=D,
            BLOCK=block,
            SPLITS2=triton.next_power_of_2(splits),
            WINDOW=window is not None,
            num_warps=1,
        )
    return out


@triton.jit(do_not_specialize=["queries", "most", "splits", "parts"])
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
    splits: tl.tensor,
    parts: tl.tensor,
    most: tl.tensor,
    n: tl.tensor,
    MEMBERS: tl.constexpr,
    QUERIES: tl.constexpr,
    SHARE: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
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
    tile, split = tl.program_id(2) // splits, tl.program_id(2) % splits
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
    begin, end = _share(begin, tl.cdiv(tokens, BLOCK), split, splits)
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
    tl.store(sums + parts * queries * H + at, s, mask=there)


@triton.jit(do_not_specialize=["queries", "most", "prompt_splits", "parts", "least"])
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
    prompt_splits: tl.tensor,
    parts: tl.tensor,
    most: tl.tensor,
    least: tl.tensor,
    SPLIT: tl.constexpr,
    PROMPT_SPLIT: tl.constexpr,
    QUERIES: tl.constexpr,
    IN_PARTS: tl.constexpr,
    SHARE: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """SHARE query heads of one row's WIDTH tokens over a share of its own blocks,
    and every so many of what `_prompt` left.
    """
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    before = tl.load(length + row)
    begin, end = _seen(before, window, WIDTH, BLOCK, WINDOW)
    shares = 1
    if SPLIT:
        shares = _shares(end - begin, tl.num_programs(2), least)
        if split >= shares:
            return
        begin, end = _share(begin, end, split, shares)
    i, d = tl.arange(0, QUERIES), tl.arange(0, D)
    ahead, there = i // SHARE, i < SHARE * WIDTH
    query = (row.to(tl.int64) * WIDTH + ahead) * H + kv_head * SHARE + i % SHARE
    tokens, upto = before + WIDTH, before + 1 + ahead
    first = tl.zeros((QUERIES,), tl.int32)
    if WINDOW:
        first = tl.maximum(upto - window, 0)
    has_prompt = there & (tl.load(table + row * most) != 0)
    x = tl.load(q + query[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
    m, s, acc = (_over_fp8_blocks if IN_PARTS else _over_blocks)(
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
    entries = queries.to(tl.int64) * H
    if PROMPT_SPLIT:
        for p in tl.range(split, prompt_splits, shares):
            at = query + p * entries
            m, s, acc = _added(m, s, acc, part, sums, at, parts * entries, has_prompt, unit, D)
    else:
        m, s, acc = _added(
            m, s, acc, part, sums, query, parts * entries, has_prompt & (split == 0), unit, D
        )
    if shares == 1:
        tl.store(
            out + query[:, None] * D + d[None, :],
            (acc / s[:, None]).to(out.dtype.element_ty),
            mask=there[:, None],
        )
    else:
        at = query + (prompt_splits + split) * entries
        tl.store(part + at[:, None] * D + d[None, :], acc, mask=there[:, None])
        tl.store(sums + at, m, mask=there)
        tl.store(sums + parts * entries + at, s, mask=there)


@triton.jit
def _seen(
    before: tl.tensor,
    window: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The blocks that a row of `before` tokens sees of its own: from, and up to."""
    begin = 0
    if WINDOW:
        begin = tl.maximum(before + 1 - window, 0) // BLOCK
    return begin, tl.cdiv(before + WIDTH, BLOCK)


@triton.jit
def _shares(blocks: tl.tensor, most: tl.tensor, least: tl.tensor) -> tl.tensor:
    """Into how many shares that many blocks are cut: `most`, or fewer of `least` blocks each."""
    return tl.minimum(tl.maximum(blocks // least, 1), most)


@triton.jit
def _share(
    begin: tl.tensor, end: tl.tensor, split: tl.tensor, shares: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """None is empty where there are as many blocks as shares."""
    blocks = end - begin
    return begin + blocks * split // shares, begin + blocks * (split + 1) // shares


@triton.jit
def _added(
    m: tl.tensor,
    s: tl.tensor,
    acc: tl.tensor,
    part: tl.tensor,
    sums: tl.tensor,
    at: tl.tensor,
    entries: tl.tensor,
    there: tl.tensor,
    unit: tl.tensor,
    D: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Maxima, sums and weighted values with those of a part that lies at `at`."""
    d = tl.arange(0, D)
    part_m = tl.load(sums + at, mask=there, other=FLOOR)
    part_s = tl.load(sums + entries + at, mask=there, other=0.0)
    part_acc = tl.load(part + at[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
    top = tl.maximum(m, part_m)
    mine, theirs = tl.exp2((m - top) * unit), tl.exp2((part_m - top) * unit)
    return top, s * mine + part_s * theirs, acc * mine[:, None] + part_acc * theirs[:, None]


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
def _over_fp8_blocks(
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
    """`_over_blocks` with products of 8-bit numbers: keys and values are multiplied where they lie
    in shared memory, and no thread widens them.

    Queries and weights are sums of two 8-bit parts each, together as exact as bfloat16, whatever
    PRECISION float32 would have. A value's scale is in its weight's exponent, and weights are
    relative to the largest with its scale.
    """
    t, d = tl.arange(0, BLOCK), tl.arange(0, D)
    m = tl.full((QUERIES,), FLOOR, tl.float32)
    s = tl.zeros((BLOCK, QUERIES), tl.float32)
    acc = tl.zeros((D, QUERIES), tl.float32)
    x = tl.trans(x.to(tl.float32))
    x_scale = tl.maximum(tl.max(tl.abs(x), 0), SMALLEST) / PART
    x_parts = _in_parts(x / x_scale[None, :])
    # a block's number is there one block ahead, so that its keys need not wait for it
    following = tl.load(table + begin, mask=begin < end, other=0)
    for b in tl.range(begin, end, num_stages=STAGES):
        block = (following.to(tl.int64) * kv_heads + kv_head) * BLOCK
        following = tl.load(table + b + 1, mask=b + 1 < end, other=0)
        token = b * BLOCK + t
        # no masks, which would have values loaded byte by byte: unseen ones have the weight 0
        k = tl.load(keys + block * D + t[:, None] * D + d[None, :])
        v = tl.load(values + block * D + d[:, None] * BLOCK + t[None, :])
        k_scale = tl.load(key_scales + block + t, mask=token < tokens, other=0.0)
        v_scale = tl.load(value_scales + block + t, mask=token < tokens, other=1.0)
        v_scale = tl.maximum(v_scale, SMALLEST_SCALE)
        z = _of_parts(tl.dot(k, x_parts)) * (k_scale[:, None] * x_scale[None, :])
        if SOFTCAP:
            z = capped(z * scale, softcap, SOFTCAP)
        z = z * unit + tl.log2(v_scale)[:, None]
        seen = (token < tokens)[:, None]
        if CAUSAL:
            seen = token[:, None] < upto[None, :]
        if WINDOW:
            seen = seen & (token[:, None] >= first[None, :])
        z = tl.where(seen, z, FLOOR)
        top = tl.maximum(m, tl.max(z, 0))
        weight = tl.exp2(z - top[None, :])
        if WINDOW or CAUSAL:
            # a query that has seen nothing has no top to tell FLOOR from
            weight = tl.where(seen, weight, 0.0)
        change = tl.exp2(m - top)
        s = s * change[None, :] + weight * (1 / v_scale)[:, None]
        acc = acc * change[None, :] + _of_parts(tl.dot(v, _in_parts(weight * PART)))
        m = top
    return m / unit, tl.sum(s, 0), tl.trans(acc) / PART


@triton.jit
def _in_parts(x: tl.tensor) -> tl.tensor:
    """x [n, Q], at most PART, as 8-bit numbers [n, 2Q]: two that are beside each other add up to x,
    to a 512th of it.
    """
    high = x.to(tl.float8e4nv).to(tl.float32)
    return tl.reshape(tl.join(high, x - high), (x.shape[0], 2 * x.shape[1])).to(tl.float8e4nv)


@triton.jit
def _of_parts(x: tl.tensor) -> tl.tensor:
    """Products with parts, added up."""
    return tl.sum(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)), 2)


@triton.jit(do_not_specialize=["queries", "splits", "prompt_splits", "parts", "least"])
def _combine(
    length: tl.tensor,
    part: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    unit: tl.tensor,
    window: tl.tensor,
    queries: tl.tensor,
    H: tl.tensor,
    splits: tl.tensor,
    prompt_splits: tl.tensor,
    parts: tl.tensor,
    least: tl.tensor,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS2: tl.constexpr,
    WINDOW: tl.constexpr,
) -> None:
    """The shares of a row that was cut, put together."""
    before = tl.load(length + tl.program_id(0) // WIDTH)
    begin, end = _seen(before, window, WIDTH, BLOCK, WINDOW)
    shares = _shares(end - begin, splits, least)
    if shares == 1:
        return
    split, d = tl.arange(0, SPLITS2), tl.arange(0, D)
    there = split < shares
    query = tl.program_id(0).to(tl.int64) * H + tl.program_id(1)
    at = (prompt_splits + split).to(tl.int64) * queries * H + query
    m = tl.load(sums + at, mask=there, other=FLOOR)
    weight = tl.exp2((m - tl.max(m, 0)) * unit)
    s = tl.sum(weight * tl.load(sums + parts * queries * H + at, mask=there, other=0.0), 0)
    acc = tl.load(part + at[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
    tl.store(out + query * D + d, (tl.sum(weight[:, None] * acc, 0) / s).to(out.dtype.element_ty))

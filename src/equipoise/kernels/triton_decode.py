"""One decode step over a paged cache, in Triton: `reference`, the same functions, without a copy of the cache.

Attention has two kernels. The first takes the queries of all rows that answer a prompt to that prompt's keys, which are
read once for them all; it leaves maxima, sums and weighted values in float32. The second, a program for each row and
key head, goes over the row's own blocks and adds these. On Hopper and later it starts as soon as all programs of the
first have begun, and waits for them only before it adds. With splits, every program of either kernel has a share of its
blocks, and a third kernel puts the shares together.
No faster on an H200, and so not done: launching every kernel of a captured step early, not these two alone; rows that
read their prompt's blocks for themselves; and blocks that come through tensor descriptors.
A draw reads the logits once for the maximum and the sum of each piece of the vocabulary, and then one piece again.
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

from equipoise.kernels import uniform as counter
from equipoise.kernels.hopper import is_hopper
from equipoise.kernels.plain_decode import Activation, Rows
from equipoise.kernels.plain_layers import Norm
from equipoise.kernels.triton_layers import add_norm_kernel, gated_kernel

FLOOR = tl.constexpr(-1e30)  # stands for −∞, whose differences are not numbers
LN2 = tl.constexpr(math.log(2))
LOG2E = tl.constexpr(1 / math.log(2))
GAMMA, FIRST, SECOND = (tl.constexpr(c % 2**64) for c in (counter.GAMMA, counter.FIRST, counter.SECOND))


class Launch(NamedTuple):
    """These were the fastest of those tried on an H200."""

    warps: int
    stages: int


QUERIES, WIDE_QUERIES = 64, 16  # the most of a program of the prompt's kernel; float32's products take more registers
HEADS = 16  # of a program that stores
PIECE = 2048  # of the vocabulary
PROMPT = Launch(warps=4, stages=2)
OWN = Launch(warps=4, stages=2)


def store(
    qkv: Tensor, keys: Tensor, values: Tensor, rows: Rows, rope: Tensor, q_norm: Norm | None, k_norm: Norm | None
) -> Tensor:
    """See the package."""
    (R, heads, D), (_, kv_heads, block, _) = qkv.shape, keys.shape
    _check_heads(D)
    _check_contiguous(qkv, keys, values, rope, *rows)
    H = heads - 2 * kv_heads
    q = qkv.new_empty(R, H, D)
    _store[(R, triton.cdiv(heads, HEADS))](
        qkv, keys, values, q, rows.table, rows.length, rows.prompt, rows.prompt_length, rope,
        *(None, 0.0, 0.0) if q_norm is None else q_norm, *(None, 0.0, 0.0) if k_norm is None else k_norm,
        rows.table.shape[1], H, KV_HEADS=kv_heads, D=D, BLOCK=block, HEADS=HEADS, num_warps=4,
    )  # fmt: skip
    return q


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Rows,
    scale: float,
    softcap: float | None,
    window: int | None,
    splits: int,
) -> Tensor:
    """See the package."""
    (R, H, D), (_, kv_heads, block, _) = q.shape, keys.shape
    _check_heads(D)
    _check_contiguous(q, keys, values, *rows)
    (P, n), share = rows.members.shape, H // kv_heads
    tiles = triton.cdiv(n, max(1, (WIDE_QUERIES if q.dtype == torch.float32 else QUERIES) // share))
    members = triton.cdiv(n, tiles)
    part, sums = q.new_empty(splits, R, H, D, dtype=torch.float32), q.new_empty(2, splits, R, H, dtype=torch.float32)
    out = torch.empty_like(q)
    unit = LOG2E.value * (scale if softcap is None else 1.0)  # scores are products, or, where capped, final
    numbers = scale, softcap or 0.0, unit, window or 0, R, H
    options = {
        "SHARE": share, "D": D, "BLOCK": block, "SPLITS": splits, "SOFTCAP": softcap is not None,
        "WINDOW": window is not None, "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
        "OVERLAP": is_hopper(q.device),
    }  # fmt: skip
    _prompt[(P, kv_heads, tiles * splits)](
        q, keys, values, rows.length, rows.prompt_table, rows.prompt_length, rows.members, part, sums, *numbers,
        rows.prompt_table.shape[1], n, MEMBERS=members, QUERIES=max(16, triton.next_power_of_2(members * share)),
        **options, num_warps=PROMPT.warps, STAGES=PROMPT.stages,
    )  # fmt: skip
    _own[(R, kv_heads, splits)](
        q, keys, values, rows.table, rows.length, part, sums, out, *numbers, rows.table.shape[1],
        QUERIES=max(16, triton.next_power_of_2(share)), **options, num_warps=OWN.warps, STAGES=OWN.stages,
        launch_pdl=options["OVERLAP"],
    )  # fmt: skip
    if splits > 1:
        _combine[(R, H)](
            part, sums, out, unit, R, H, D=D, SPLITS=splits, SPLITS2=triton.next_power_of_2(splits), num_warps=1
        )
    return out


def add_norm(x: Tensor | None, residual: Tensor, norm: Norm) -> Tensor:
    """See the package."""
    _check_contiguous(residual, *(() if x is None else (x,)))
    R, d = residual.shape
    y = torch.empty_like(residual)
    block = triton.next_power_of_2(d)
    # A row for each program: there are few rows in a step.
    add_norm_kernel[(R,)](
        residual, x, norm.weight, residual, y, None, R, d, norm.eps, norm.offset,
        GEMMA=norm.offset != 0, TOKENS=1, BLOCK=block, num_warps=4 if block <= 2048 else 8,
    )  # fmt: skip
    return y


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """See the package."""
    _check_contiguous(gate_up)
    R, f = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty(R, f)
    gated_kernel[(R, triton.cdiv(f, 1024))](
        gate_up, out, f, GELU=activation == "gelu_tanh", ROUNDS=True, BLOCK=1024, num_warps=4
    )
    return out


def draw(logits: Tensor, u: Tensor, temperature: float, softcap: float | None) -> tuple[Tensor, Tensor]:
    """See the package."""
    _check_contiguous(logits[:1])  # rows may lie apart
    R, V = logits.shape
    pieces = triton.cdiv(V, PIECE)
    sums = u.new_empty(2, R, pieces)
    tokens, logprobs = torch.empty(R, dtype=torch.int64, device=u.device), torch.empty_like(u)
    numbers = V, logits.stride(0), 1 / (temperature or 1.0), softcap or 0.0
    options = {"SOFTCAP": softcap is not None, "PIECE": PIECE}
    _pieces[(R, pieces)](logits, sums, *numbers, **options, num_warps=2)
    _draw[(R,)](
        logits, sums, u, tokens, logprobs, *numbers, pieces, **options, PIECES=triton.next_power_of_2(pieces),
        GREEDY=temperature == 0, num_warps=4,
    )  # fmt: skip
    return tokens, logprobs


def list_kept(kept: Tensor, begin: Tensor, ids: Tensor) -> None:
    """See the package."""
    _check_contiguous(kept, begin, ids)
    R, V = kept.shape
    _list_kept[(R,)](kept.view(torch.uint8), begin, ids, V, len(ids), PIECE=PIECE, num_warps=4)


def uniform(keys: Tensor, position: Tensor) -> Tensor:
    """See the package."""
    out = torch.empty(keys.shape, dtype=torch.float32, device=keys.device)
    _uniform[(triton.cdiv(len(keys), 128),)](keys, position, out, len(keys), BLOCK=128, num_warps=4)
    return out


def _check_heads(D: int) -> None:
    if D not in (16, 32, 64, 128, 256):
        raise ValueError(
            f"heads of {D} must be a power of two from 16 to 256 for these kernels; use the native sampler"
        )


def _check_contiguous(*tensors: Tensor) -> None:
    for t in tensors:
        if not t.is_contiguous():
            raise ValueError(
                f"a tensor of shape {tuple(t.shape)} has strides {t.stride()}, but must be contiguous; "
                "give t.contiguous()"
            )


@triton.jit
def _store(
    qkv, keys, values, q, table, length, prompt, prompt_length, rope, q_weight, q_eps, q_offset, k_weight, k_eps,
    k_offset, most, H, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    HALF: tl.constexpr = D // 2
    dtype: tl.constexpr = q.dtype.element_ty
    heads = H + 2 * KV_HEADS
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    half = tl.arange(0, HALF)[None, :]
    n = tl.load(length + row)
    position = (tl.load(prompt_length + tl.load(prompt + row)) + n).to(tl.int64)
    block = tl.load(table + row * most + n // BLOCK).to(tl.int64)
    cos = tl.load(rope + position * D + half)
    sin = tl.load(rope + position * D + HALF + half)
    source = qkv + (row.to(tl.int64) * heads + head) * D + half
    is_query, is_key = head < H, (head >= H) & (head < H + KV_HEADS)
    x1 = tl.load(source, mask=head < heads, other=0.0).to(tl.float32)
    x2 = tl.load(source + HALF, mask=head < heads, other=0.0).to(tl.float32)
    y1, y2 = x1, x2
    if q_weight is not None:
        y1, y2 = _normed_halves(y1, y2, is_query, q_weight, q_eps, q_offset, D, dtype)
    if k_weight is not None:
        y1, y2 = _normed_halves(y1, y2, is_key, k_weight, k_eps, k_offset, D, dtype)
    z1 = (_rounded(y1 * cos, dtype) - _rounded(y2 * sin, dtype)).to(dtype)
    z2 = (_rounded(y2 * cos, dtype) + _rounded(y1 * sin, dtype)).to(dtype)
    to_q = q + (row.to(tl.int64) * H + head) * D + half
    tl.store(to_q, z1, mask=is_query)
    tl.store(to_q + HALF, z2, mask=is_query)
    to_key = keys + ((block * KV_HEADS + head - H) * BLOCK + n % BLOCK) * D + half
    tl.store(to_key, z1, mask=is_key)
    tl.store(to_key + HALF, z2, mask=is_key)
    to_value = values + ((block * KV_HEADS + head - H - KV_HEADS) * BLOCK + n % BLOCK) * D + half
    is_value = (head >= H + KV_HEADS) & (head < heads)
    tl.store(to_value, x1.to(dtype), mask=is_value)
    tl.store(to_value + HALF, x2.to(dtype), mask=is_value)


@triton.jit
def _normed_halves(x1, x2, which, weight, eps, offset, D: tl.constexpr, dtype: tl.constexpr):
    """The heads `which` normed, the others as they were."""
    half = tl.arange(0, D // 2)[None, :]
    scale = tl.rsqrt((tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1)) / D + eps)[:, None]
    w1, w2 = tl.load(weight + half).to(tl.float32), tl.load(weight + D // 2 + half).to(tl.float32)
    y1, y2 = _weighted(x1 * scale, w1, offset, dtype), _weighted(x2 * scale, w2, offset, dtype)
    return tl.where(which, y1, x1), tl.where(which, y2, x2)


@triton.jit
def _weighted(unit, weight, offset, dtype: tl.constexpr):
    """unit·(offset + weight), rounded as `Norm` says."""
    rounded = tl.where(offset == 0, _rounded(unit, dtype), unit)
    return _rounded(rounded * (offset + weight), dtype)


@triton.jit
def _rounded(x, dtype: tl.constexpr):
    return x.to(dtype).to(tl.float32)


@triton.jit
def _prompt(
    q, keys, values, length, prompt_table, prompt_length, members, part, sums, scale, softcap, unit, window, R,
    H, most, n, MEMBERS: tl.constexpr, QUERIES: tl.constexpr, SHARE: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """MEMBERS rows of a prompt, with their SHARE query heads of one key head, over a share of the prompt's blocks."""
    if OVERLAP:
        gdc_launch_dependents()
    prompt, kv_head = tl.program_id(0), tl.program_id(1)
    tile, split = tl.program_id(2) // SPLITS, tl.program_id(2) % SPLITS
    i, d = tl.arange(0, QUERIES), tl.arange(0, D)
    member = tile * MEMBERS + i // SHARE
    row = tl.load(members + prompt * n + member, mask=(i < MEMBERS * SHARE) & (member < n), other=-1)
    there = row >= 0
    query = row.to(tl.int64) * H + kv_head * SHARE + i % SHARE
    x = tl.load(q + query[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
    tokens = tl.load(prompt_length + prompt)
    first = row * 0
    if WINDOW:
        first = tokens + tl.load(length + row, mask=there, other=0) - window + 1
    begin = tl.maximum(tl.min(tl.where(there, first, tokens), 0), 0) // BLOCK
    tokens = tl.where(tl.max(row, 0) >= 0, tokens, 0)
    begin, end = _share(begin, tl.cdiv(tokens, BLOCK), split, SPLITS)
    m, s, acc = _over_blocks(
        x, keys, values, prompt_table + prompt * most, begin, end, tokens, first, kv_head, tl.num_programs(1), scale,
        softcap, unit, QUERIES, D, BLOCK, SOFTCAP, WINDOW, PRECISION, STAGES,
    )  # fmt: skip
    at = split.to(tl.int64) * R * H + query
    tl.store(part + at[:, None] * D + d[None, :], acc, mask=there[:, None])
    tl.store(sums + at, m, mask=there)
    tl.store(sums + SPLITS * R * H + at, s, mask=there)


@triton.jit
def _own(
    q, keys, values, table, length, part, sums, out, scale, softcap, unit, window, R, H, most, QUERIES: tl.constexpr,
    SHARE: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, SOFTCAP: tl.constexpr,
    WINDOW: tl.constexpr, PRECISION: tl.constexpr, OVERLAP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """SHARE queries of one row over a share of its own blocks, and what `_prompt` left for that share."""
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i, d = tl.arange(0, QUERIES), tl.arange(0, D)
    query = row.to(tl.int64) * H + kv_head * SHARE + i
    there = i < SHARE
    tokens = tl.load(length + row) + 1
    first = tl.zeros((QUERIES,), tl.int32)
    begin = 0
    if WINDOW:
        begin = tl.maximum(tokens - window, 0)
        first += begin
    begin, end = _share(begin // BLOCK, tl.cdiv(tokens, BLOCK), split, SPLITS)
    has_prompt = there & (tl.load(table + row * most) != 0)
    at = split.to(tl.int64) * R * H + query
    x = tl.load(q + query[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
    m, s, acc = _over_blocks(
        x, keys, values, table + row * most, begin, end, tokens, first, kv_head, tl.num_programs(1), scale, softcap,
        unit, QUERIES, D, BLOCK, SOFTCAP, WINDOW, PRECISION, STAGES,
    )  # fmt: skip
    if OVERLAP:
        gdc_wait()
    prompt_m = tl.load(sums + at, mask=has_prompt, other=FLOOR)
    prompt_s = tl.load(sums + SPLITS * R * H + at, mask=has_prompt, other=0.0)
    prompt_acc = tl.load(part + at[:, None] * D + d[None, :], mask=has_prompt[:, None], other=0.0)
    top = tl.maximum(m, prompt_m)
    mine, prompts = tl.exp2((m - top) * unit), tl.exp2((prompt_m - top) * unit)
    m = top
    s = s * mine + prompt_s * prompts
    acc = acc * mine[:, None] + prompt_acc * prompts[:, None]
    if SPLITS == 1:
        tl.store(
            out + query[:, None] * D + d[None, :], (acc / s[:, None]).to(out.dtype.element_ty), mask=there[:, None]
        )
    else:
        tl.store(part + at[:, None] * D + d[None, :], acc, mask=there[:, None])
        tl.store(sums + at, m, mask=there)
        tl.store(sums + SPLITS * R * H + at, s, mask=there)


@triton.jit
def _share(begin, end, split, SPLITS: tl.constexpr):
    if SPLITS == 1:
        return begin, end
    else:
        size = tl.cdiv(end - begin, SPLITS)
        first = begin + split * size
        return first, tl.minimum(first + size, end)


@triton.jit
def _over_blocks(
    x, keys, values, table, begin, end, tokens, first, kv_head, kv_heads, scale, softcap, unit, QUERIES: tl.constexpr,
    D: tl.constexpr, BLOCK: tl.constexpr, SOFTCAP: tl.constexpr, WINDOW: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Queries x [Q, D] over the blocks begin … end − 1 of a table: the largest score and Σ 2^unit(score − largest) [Q],
    and the values weighted by it [Q, D]. Keys from `tokens` on, and before a query's `first` [Q], are not seen."""
    t, d = tl.arange(0, BLOCK), tl.arange(0, D)
    m = tl.full((QUERIES,), FLOOR, tl.float32)
    s = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((QUERIES, D), tl.float32)
    inside = t[:, None] * D + d[None, :]
    for b in tl.range(begin, end, num_stages=STAGES):
        block = (tl.load(table + b).to(tl.int64) * kv_heads + kv_head) * BLOCK * D
        token = b * BLOCK + t
        k = tl.load(keys + block + inside, mask=(token < tokens)[:, None], other=0.0)
        v = tl.load(values + block + inside, mask=(token < tokens)[:, None], other=0.0)
        z = tl.dot(x, tl.trans(k), input_precision=PRECISION)
        if SOFTCAP:
            z = _capped(z * scale, softcap, SOFTCAP)
        seen = (token < tokens)[None, :]
        if WINDOW:
            seen = seen & (token[None, :] >= first[:, None])
        z = tl.where(seen, z, FLOOR)
        top = tl.maximum(m, tl.max(z, 1))
        p = tl.exp2(z * unit - (top * unit)[:, None])
        if WINDOW:
            p = tl.where(seen, p, 0.0)  # a query that has seen nothing has no top to tell FLOOR from
        change = tl.exp2((m - top) * unit)
        s = s * change + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * change[:, None], input_precision=PRECISION)
        m = top
    return m, s, acc


@triton.jit
def _combine(part, sums, out, unit, R, H, D: tl.constexpr, SPLITS: tl.constexpr, SPLITS2: tl.constexpr):
    split, d = tl.arange(0, SPLITS2), tl.arange(0, D)
    there = split < SPLITS
    query = tl.program_id(0).to(tl.int64) * H + tl.program_id(1)
    at = split.to(tl.int64) * R * H + query
    m = tl.load(sums + at, mask=there, other=FLOOR)
    weight = tl.exp2((m - tl.max(m, 0)) * unit)
    s = tl.sum(weight * tl.load(sums + SPLITS * R * H + at, mask=there, other=0.0), 0)
    acc = tl.load(part + at[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
    tl.store(out + query * D + d, (tl.sum(weight[:, None] * acc, 0) / s).to(out.dtype.element_ty))


@triton.jit
def _pieces(
    logits, sums, V, stride, inverse_temperature, softcap, SOFTCAP: tl.constexpr, PIECE: tl.constexpr
):  # fmt: skip
    """max z and Σ 2^k(z−max) of a piece of a row, k = log₂e/temperature."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    z = _piece(logits + row * stride, piece, V, softcap, SOFTCAP, PIECE)
    top = tl.maximum(tl.max(z, 0), FLOOR)
    at = sums + row * tl.num_programs(1) + piece
    tl.store(at, top)
    tl.store(
        at + tl.num_programs(0).to(tl.int64) * tl.num_programs(1),
        tl.sum(tl.exp2((z - top) * (inverse_temperature * LOG2E)), 0),
    )


@triton.jit
def _draw(
    logits, sums, u, tokens, logprobs, V, stride, inverse_temperature, softcap, pieces, SOFTCAP: tl.constexpr,
    PIECE: tl.constexpr, PIECES: tl.constexpr, GREEDY: tl.constexpr,
):  # fmt: skip
    """The piece that the row's u falls into, then the token in it. Only what has mass is drawn, whatever the rounding:
    sums of other orders need not even rise with the index."""
    row = tl.program_id(0).to(tl.int64)
    k = inverse_temperature * LOG2E
    c = tl.arange(0, PIECES)
    tops = tl.load(sums + row * pieces + c, mask=c < pieces, other=FLOOR)
    mass = tl.load(sums + (tl.num_programs(0) + row) * pieces + c, mask=c < pieces, other=0.0)
    top = tl.max(tops, 0)
    mass = mass * tl.exp2((tops - top) * k)
    total = tl.sum(mass, 0)
    below = 0.0
    if GREEDY:
        piece = tl.min(tl.where(tops == top, c, PIECES), 0)
    else:
        upto = tl.cumsum(mass, 0)
        threshold = tl.load(u + row) * total
        piece = _first((upto > threshold) & (mass > 0), mass > 0, c, PIECES)
        below = tl.sum(tl.where(c == piece - 1, upto, 0.0), 0)
    piece = tl.minimum(piece, pieces - 1)
    z = _piece(logits + row * stride, piece, V, softcap, SOFTCAP, PIECE)
    o = tl.arange(0, PIECE)
    if GREEDY:
        place = tl.min(tl.where(z == top, o, PIECE), 0)
    else:
        e = tl.exp2((z - top) * k)
        place = _first((tl.cumsum(e, 0) > threshold - below) & (e > 0), e > 0, o, PIECE)
    own = tl.sum(tl.where(o == place, z, 0.0), 0)
    tl.store(tokens + row, tl.minimum(piece.to(tl.int64) * PIECE + place, V - 1))
    tl.store(logprobs + row, (own - top) * inverse_temperature - tl.log(total))


@triton.jit
def _first(wanted, possible, index, END: tl.constexpr):
    """The first index that is wanted, or else the last possible one."""
    first = tl.min(tl.where(wanted, index, END), 0)
    return tl.where(first < END, first, tl.maximum(tl.max(tl.where(possible, index, -1), 0), 0))


@triton.jit
def _piece(logits, piece, V, softcap, SOFTCAP: tl.constexpr, PIECE: tl.constexpr):
    o = piece * PIECE + tl.arange(0, PIECE)
    z = tl.load(logits + o, mask=o < V, other=-float("inf")).to(tl.float32)
    return tl.where(o < V, _capped(z, softcap, SOFTCAP), -float("inf"))


@triton.jit
def _capped(x, softcap, SOFTCAP: tl.constexpr):
    """softcap·tanh(x/softcap)"""
    if SOFTCAP:
        return softcap * (2 * tl.sigmoid(2 * x / softcap) - 1)
    else:
        return x


@triton.jit
def _list_kept(kept, begin, ids, V, capacity, PIECE: tl.constexpr):
    """A program goes over a whole row: where an id goes depends on all before it."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.load(begin + row)
    for first in range(0, V, PIECE):
        o = first + tl.arange(0, PIECE)
        is_kept = tl.load(kept + row * V + o, mask=o < V, other=0).to(tl.int32)
        place = at + tl.cumsum(is_kept, 0) - 1
        tl.store(ids + place, o.to(tl.int32), mask=(is_kept != 0) & (place < capacity))
        at += tl.sum(is_kept, 0)


@triton.jit
def _uniform(keys, position, out, R, BLOCK: tl.constexpr):
    """`rollout.uniform.uniforms`: the finaliser of splitmix64."""
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number = tl.load(position + r, mask=r < R, other=0).to(tl.uint64) + 1
    h = tl.load(keys + r, mask=r < R, other=0).to(tl.uint64, bitcast=True) + number * GAMMA
    h = (h ^ (h >> 30)) * FIRST
    h = (h ^ (h >> 27)) * SECOND
    h = h ^ (h >> 31)
    tl.store(out + r, (h >> 40).to(tl.float32) * (2.0**-24), mask=r < R)

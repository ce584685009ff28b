"""Causal attention inside stretches of a row, each after the stretch of keys it may see before its own, in Triton.

Tiles are cut from the row, not from its stretches: an entry knows where its stretch begins, and sees from there to
itself. A program has a tile of queries of one head (outputs, and their gradient) or a tile of keys of one key head with
all queries that see it (their gradients). Where many responses see the same prompt, its keys' gradients are summed in
parts of so many queries each. Blocks that all of a tile sees are taken without looking; the rest is masked. No atomics,
and sums in a fixed order: the same numbers give the same bits. Exponents are in base 2, the hardware's own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from equipoise.policy.stretches import Stretches

# Stands for −∞, whose differences are not numbers. A power of two, because its product with the unit is then exact:
# FLOOR less FLOOR is 0 also where the compiler leaves out the rounding of one product.
FLOOR = tl.constexpr(-(2.0**100))
LN2 = tl.constexpr(math.log(2))
LOG2E = tl.constexpr(1 / math.log(2))


class Tile(NamedTuple):
    """own: entries that a program keeps; passing: entries that pass by it at a time."""

    own: int
    passing: int
    warps: int
    stages: int


class Tiles(NamedTuple):
    attend: Tile
    queries: Tile
    keys: Tile


def tiles(D: int) -> Tiles:
    """For heads of this size; the fastest of those tried on an H200."""
    if D <= 64:
        return Tiles(Tile(64, 64, 4, 3), Tile(64, 64, 4, 3), Tile(64, 64, 4, 1))
    if D <= 128:
        return Tiles(Tile(64, 64, 4, 3), Tile(64, 64, 4, 2), Tile(64, 32, 4, 3))
    return Tiles(Tile(64, 32, 4, 2), Tile(64, 32, 4, 2), Tile(64, 32, 8, 1))


def attend(qkv: Tensor, kv_heads: int, stretches: Stretches, scale: float) -> tuple[Tensor, Tensor]:
    """Outputs [U, H, D] and log-sum-exps [H, U] of the scores."""
    U, heads, D = qkv.shape
    H = heads - 2 * kv_heads
    tile = tiles(D).attend
    table = stretches.query_tiles(tile.own)
    out, lse = qkv.new_empty(U, H, D), qkv.new_empty(H, U, dtype=torch.float32)
    _attend[(len(table), H)](
        qkv, stretches.start, table, out, lse, U, H, kv_heads, scale * LOG2E.value, **_sizes(D, tile)
    )
    return out, lse


def attend_gradient(
    d: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, kv_heads: int, stretches: Stretches, scale: float
) -> Tensor:
    """The gradient of qkv, from d [U, H, D] and what `attend` gave."""
    U, heads, D = qkv.shape
    H, (_, queries, keys) = heads - 2 * kv_heads, tiles(D)
    d_qkv, delta = torch.empty_like(qkv), torch.empty_like(lse)
    numbers = U, H, kv_heads, scale, scale * LOG2E.value
    table = stretches.query_tiles(queries.own)
    _query_gradient[(len(table), H)](
        d, qkv, out, lse, stretches.start, table, delta, d_qkv, *numbers, **_sizes(D, queries)
    )
    table, parts = stretches.key_tiles(keys.own)
    sums = lse.new_empty(len(parts), kv_heads, 2, keys.own, D)
    common = d, qkv, lse, delta, stretches.start
    if len(parts):
        _key_gradient[(len(parts), kv_heads)](*common, parts, sums, d_qkv, *numbers, PART=True, **_sizes(D, keys))
    _key_gradient[(len(table), kv_heads)](*common, table, sums, d_qkv, *numbers, PART=False, **_sizes(D, keys))
    return d_qkv


def _sizes(D: int, tile: Tile) -> dict[str, int]:
    return {
        "D": D, "BLOCK_D": max(16, triton.next_power_of_2(D)), "OWN": tile.own, "PASSING": tile.passing,
        "STAGES": tile.stages, "num_warps": tile.warps,
    }  # fmt: skip


@triton.jit
def _rows(
    pointer, first, stride, end, N: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """Rows first … first + N − 1, [N, BLOCK_D], of a head that begins at `pointer` in row 0; zeros from `end` on."""
    n, d = tl.arange(0, N), tl.arange(0, BLOCK_D)
    place = pointer + first.to(tl.int64) * stride + (n[:, None] * stride + d[None, :])
    if MASKED:
        return tl.load(place, mask=(first + n < end)[:, None] & (d < D)[None, :], other=0.0)
    elif D == BLOCK_D:
        return tl.load(place)
    else:
        return tl.load(place, mask=(d < D)[None, :], other=0.0)


@triton.jit
def _blocks(a, b, before, start, PASSING: tl.constexpr):
    """Of the keys that queries a … b − 1 see, `before` many and then their own: blocks that all of them see (how many,
    how many of these come before, where the others begin), and the rest (how many, how many at the end of what comes
    before, how many up to the last one's stretch, where that and the diagonal begin)."""
    first, last = tl.load(start + a), tl.load(start + b - 1)
    whole_before, tail = before // PASSING, (before % PASSING > 0).to(tl.int32)
    up_to = tl.cdiv(last - first, PASSING)
    middle = first + up_to * PASSING
    whole_own = tl.maximum(a - middle, 0) // PASSING
    diagonal = middle + whole_own * PASSING
    rest = tail + up_to + tl.maximum(tl.cdiv(b - diagonal, PASSING), 0)
    return whole_before + whole_own, whole_before, middle, rest, tail, up_to, first, diagonal


@triton.jit
def _attend(
    qkv, start, table, out, lse, U, H, KV_HEADS, unit, D: tl.constexpr, BLOCK_D: tl.constexpr, OWN: tl.constexpr,
    PASSING: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    tile, head = table + 4 * tl.program_id(0), tl.program_id(1)
    a, b, begin, before = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    stride = (H + 2 * KV_HEADS) * D
    kv_head = H + head // (H // KV_HEADS)
    keys, values = qkv + kv_head * D, qkv + (kv_head + KV_HEADS) * D
    i = a + tl.arange(0, OWN)
    there = i < b
    q = _rows(qkv + head * D, a, stride, b, OWN, D, BLOCK_D, True)
    mine = tl.load(start + i, mask=there, other=0)
    whole, whole_before, middle, rest, tail, up_to, first, diagonal = _blocks(a, b, before, start, PASSING)
    m = tl.full((OWN,), FLOOR, tl.float32)
    s = tl.zeros((OWN,), tl.float32)
    acc = tl.zeros((OWN, BLOCK_D), tl.float32)
    for n in tl.range(0, whole, num_stages=STAGES):
        at = tl.where(n < whole_before, begin + n * PASSING, middle + (n - whole_before) * PASSING)
        k = _rows(keys, at, stride, 0, PASSING, D, BLOCK_D, False)
        v = _rows(values, at, stride, 0, PASSING, D, BLOCK_D, False)
        m, s, acc = _softmax_step(tl.dot(q, tl.trans(k)), v, m, s, acc, unit)
    for n in tl.range(0, rest, num_stages=STAGES):
        k, v, seen = _rest_block(
            n, keys, values, stride, i, mine, b, begin, before, whole_before, tail, up_to, first, diagonal,
            D, BLOCK_D, PASSING,
        )  # fmt: skip
        m, s, acc = _softmax_step(tl.where(seen, tl.dot(q, tl.trans(k)), FLOOR), v, m, s, acc, unit)
    d = tl.arange(0, BLOCK_D)
    place = out + (i.to(tl.int64)[:, None] * H + head) * D + d[None, :]
    tl.store(place, (acc / s[:, None]).to(out.dtype.element_ty), mask=there[:, None] & (d < D)[None, :])
    tl.store(lse + head.to(tl.int64) * U + i, m * unit * LN2 + tl.log(s), mask=there)


@triton.jit
def _rest_block(
    n, keys, values, stride, i, mine, b, begin, before, whole_before, tail, up_to, first, diagonal,
    D: tl.constexpr, BLOCK_D: tl.constexpr, PASSING: tl.constexpr,
):  # fmt: skip
    """Keys and values of masked block n, and which of them each query i sees. First comes the end of what is before,
    then what leads up to the last stretch, then the diagonal."""
    own = tl.where(n - tail < up_to, first + (n - tail) * PASSING, diagonal + (n - tail - up_to) * PASSING)
    at = tl.where(n < tail, begin + whole_before * PASSING, own)
    end = tl.where(n < tail, begin + before, b)
    k = _rows(keys, at, stride, end, PASSING, D, BLOCK_D, True)
    v = _rows(values, at, stride, end, PASSING, D, BLOCK_D, True)
    low, high = tl.where(n < tail, begin, mine), tl.where(n < tail, end - 1, i)
    j = at + tl.arange(0, PASSING)
    return k, v, (j[None, :] >= low[:, None]) & (j[None, :] <= high[:, None])


@triton.jit
def _softmax_step(z, v, m, s, acc, unit):
    """A row that has seen nothing yet counts what it must not: the first it sees takes that away, 2^−∞ times."""
    top = tl.maximum(m, tl.max(z, 1))
    p = tl.exp2(z * unit - (top * unit)[:, None])
    change = tl.exp2((m - top) * unit)
    s = s * change + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * change[:, None])
    return top, s, acc


@triton.jit
def _query_gradient(
    d_out, qkv, out, lse, start, table, delta, d_qkv, U, H, KV_HEADS, scale, unit, D: tl.constexpr,
    BLOCK_D: tl.constexpr, OWN: tl.constexpr, PASSING: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dq = scale Σ ds k with ds = p (do·v − δ), δ = do·o, which is kept for the keys' gradients."""
    tile, head = table + 4 * tl.program_id(0), tl.program_id(1)
    a, b, begin, before = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    stride = (H + 2 * KV_HEADS) * D
    kv_head = H + head // (H // KV_HEADS)
    keys, values = qkv + kv_head * D, qkv + (kv_head + KV_HEADS) * D
    i = a + tl.arange(0, OWN)
    there = i < b
    q = _rows(qkv + head * D, a, stride, b, OWN, D, BLOCK_D, True)
    g = _rows(d_out + head * D, a, H * D, b, OWN, D, BLOCK_D, True)
    o = _rows(out + head * D, a, H * D, b, OWN, D, BLOCK_D, True)
    change = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(delta + head.to(tl.int64) * U + i, change, mask=there)
    top = tl.load(lse + head.to(tl.int64) * U + i, mask=there, other=0.0) * LOG2E
    mine = tl.load(start + i, mask=there, other=0)
    whole, whole_before, middle, rest, tail, up_to, first, diagonal = _blocks(a, b, before, start, PASSING)
    acc = tl.zeros((OWN, BLOCK_D), tl.float32)
    for n in tl.range(0, whole, num_stages=STAGES):
        at = tl.where(n < whole_before, begin + n * PASSING, middle + (n - whole_before) * PASSING)
        k = _rows(keys, at, stride, 0, PASSING, D, BLOCK_D, False)
        v = _rows(values, at, stride, 0, PASSING, D, BLOCK_D, False)
        p = tl.exp2(tl.dot(q, tl.trans(k)) * unit - top[:, None])
        ds = p * (tl.dot(g, tl.trans(v)) - change[:, None])
        acc = tl.dot(ds.to(k.dtype), k, acc)
    for n in tl.range(0, rest, num_stages=STAGES):
        k, v, seen = _rest_block(
            n, keys, values, stride, i, mine, b, begin, before, whole_before, tail, up_to, first, diagonal,
            D, BLOCK_D, PASSING,
        )  # fmt: skip
        p = tl.where(seen, tl.exp2(tl.dot(q, tl.trans(k)) * unit - top[:, None]), 0.0)
        ds = p * (tl.dot(g, tl.trans(v)) - change[:, None])
        acc = tl.dot(ds.to(k.dtype), k, acc)
    d = tl.arange(0, BLOCK_D)
    place = d_qkv + i.to(tl.int64)[:, None] * stride + head * D + d[None, :]
    tl.store(place, (acc * scale).to(d_qkv.dtype.element_ty), mask=there[:, None] & (d < D)[None, :])


@triton.jit
def _key_gradient(
    d_out, qkv, lse, delta, start, table, sums, d_qkv, U, H, KV_HEADS, scale, unit, PART: tl.constexpr, D: tl.constexpr,
    BLOCK_D: tl.constexpr, OWN: tl.constexpr, PASSING: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dv = Σ p do and dk = scale Σ ds q over the queries that see keys a … b − 1: as a PART, queries that see all of
    them, at_first … to − 1; otherwise those of the keys' stretches, a … to − 1, and the parts there are."""
    tile, kv_head = table + 5 * tl.program_id(0), tl.program_id(1)
    a, b, to, part = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    stride = (H + 2 * KV_HEADS) * D
    j = a + tl.arange(0, OWN)
    there = j < b
    k = _rows(qkv + (H + kv_head) * D, a, stride, b, OWN, D, BLOCK_D, True)
    v = _rows(qkv + (H + KV_HEADS + kv_head) * D, a, stride, b, OWN, D, BLOCK_D, True)
    if PART:
        diagonal, at_first = 0, tl.load(tile + 4)
        whole = (to - at_first) // PASSING
        rest = ((to - at_first) % PASSING > 0).to(tl.int32)
    else:
        diagonal = tl.cdiv(b - a, PASSING)
        at_first = a + diagonal * PASSING
        whole = tl.maximum(to - at_first, 0) // PASSING * (tl.load(start + b - 1) <= a).to(tl.int32)
        rest = diagonal + tl.maximum(tl.cdiv(to - at_first - whole * PASSING, PASSING), 0)
    d_k = tl.zeros((OWN, BLOCK_D), tl.float32)
    d_v = tl.zeros((OWN, BLOCK_D), tl.float32)
    share = H // KV_HEADS
    for h in range(share):
        head = kv_head * share + h
        queries, outputs = qkv + head * D, d_out + head * D
        tops, changes = lse + head.to(tl.int64) * U, delta + head.to(tl.int64) * U
        for n in tl.range(0, whole, num_stages=STAGES):
            at = at_first + n * PASSING
            i = at + tl.arange(0, PASSING)
            q = _rows(queries, at, stride, 0, PASSING, D, BLOCK_D, False)
            g = _rows(outputs, at, H * D, 0, PASSING, D, BLOCK_D, False)
            top, change = tl.load(tops + i) * LOG2E, tl.load(changes + i)
            p = tl.exp2(tl.dot(k, tl.trans(q)) * unit - top[None, :])
            d_v = tl.dot(p.to(g.dtype), g, d_v)
            ds = p * (tl.dot(v, tl.trans(g)) - change[None, :])
            d_k = tl.dot(ds.to(q.dtype), q, d_k)
        for n in tl.range(0, rest, num_stages=STAGES):
            at = tl.where(n < diagonal, a + n * PASSING, at_first + (whole + n - diagonal) * PASSING)
            i = at + tl.arange(0, PASSING)
            inside = i < to
            q = _rows(queries, at, stride, to, PASSING, D, BLOCK_D, True)
            g = _rows(outputs, at, H * D, to, PASSING, D, BLOCK_D, True)
            top = tl.load(tops + i, mask=inside, other=0.0) * LOG2E
            change = tl.load(changes + i, mask=inside, other=0.0)
            seen = inside[None, :]
            if not PART:
                mine = tl.load(start + i, mask=inside, other=0)
                seen = seen & (mine[None, :] <= j[:, None]) & (j[:, None] <= i[None, :])
            p = tl.where(seen, tl.exp2(tl.dot(k, tl.trans(q)) * unit - top[None, :]), 0.0)
            d_v = tl.dot(p.to(g.dtype), g, d_v)
            ds = p * (tl.dot(v, tl.trans(g)) - change[None, :])
            d_k = tl.dot(ds.to(q.dtype), q, d_k)
    d = tl.arange(0, BLOCK_D)
    here = there[:, None] & (d < D)[None, :]
    inside_tile = tl.arange(0, OWN)[:, None] * D + d[None, :]
    if PART:
        place = sums + (part.to(tl.int64) * KV_HEADS + kv_head) * (2 * OWN * D) + inside_tile
        tl.store(place, d_k, mask=here)
        tl.store(place + OWN * D, d_v, mask=here)
    else:
        for n in range(tl.load(tile + 4)):
            place = sums + ((part + n).to(tl.int64) * KV_HEADS + kv_head) * (2 * OWN * D) + inside_tile
            d_k += tl.load(place, mask=here, other=0.0)
            d_v += tl.load(place + OWN * D, mask=here, other=0.0)
        to_keys = d_qkv + j.to(tl.int64)[:, None] * stride + (H + kv_head) * D + d[None, :]
        tl.store(to_keys, (d_k * scale).to(d_qkv.dtype.element_ty), mask=here)
        tl.store(to_keys + KV_HEADS * D, d_v.to(d_qkv.dtype.element_ty), mask=here)

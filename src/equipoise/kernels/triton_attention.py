"""Causal attention inside segments of a row,
each after the segment of keys it may see before its own, in Triton.

Tiles are cut from the row, not from its segments: an entry knows where its segment begins, and sees
from there to itself. A program has a tile of queries of one head (outputs, and their gradient) or a
tile of keys of one key head with all queries that see it (their gradients). Where many responses
see the same prompt, its keys' gradients are summed in parts of so many queries each, which a last
kernel adds up. Blocks that all of a tile sees are taken without looking; the rest is masked. From
Hopper on, tiles are loaded through tensor descriptors, which leaves registers to the products. No
atomics, and sums in a fixed order: the same numbers give the same bits. Exponents are in base 2,
the hardware's own. No faster on an H200, and so not done: one loop that masks every block (but for
short segments), both products of scores before either is used, and, but for the gradients of long
segments, tiles of 128 entries.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from equipoise.kernels.cards import is_hopper, shared_memory
from equipoise.kernels.segments import Segments

# Stands for −∞, whose differences are not numbers. A power of two, because its product with the
# unit is then exact: FLOOR less FLOOR is 0 also where the compiler leaves out the rounding of one
# product.
FLOOR = tl.constexpr(-(2.0**100))
LN2 = tl.constexpr(math.log(2))
LOG2E = tl.constexpr(1 / math.log(2))
# Entries of a segment on average from which on the gradients' larger tiles are faster: of 800 the
# queries' are 4 % slower, of 3,300 9 % faster, of 16,384 16 %.
LONG = 2048


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


def tiles(D: int, segments: Segments, memory: int) -> Tiles:
    """For heads of this size and programs with this much shared memory; up to 128 the fastest of
    those tried on an H200, over segments of 60 to 16,384 entries.
    """
    if D <= 64:
        return Tiles(Tile(64, 64, 4, 2), Tile(64, 64, 4, 3), Tile(64, 64, 4, 3))
    if D <= 128 and segments.mean_length >= LONG and memory >= 128 << 10:
        return Tiles(Tile(64, 64, 4, 3), Tile(128, 64, 8, 3), Tile(64, 64, 4, 2))
    if D <= 128:
        return Tiles(Tile(64, 64, 4, 3), Tile(64, 32, 4, 3), Tile(64, 32, 4, 3))
    if memory >= 112 << 10:
        return Tiles(Tile(64, 32, 4, 2), Tile(64, 32, 4, 2), Tile(64, 32, 8, 1))
    return Tiles(Tile(64, 32, 4, 2), Tile(64, 16, 4, 2), Tile(64, 16, 4, 2))


def attend(qkv: Tensor, kv_heads: int, segments: Segments, scale: float) -> tuple[Tensor, Tensor]:
    """Outputs [U, H, D] and log-sum-exps [H, U] of the scores."""
    U, heads, D = qkv.shape
    H, tile = heads - 2 * kv_heads, tiles(D, segments, shared_memory(qkv.device)).attend
    table = segments.query_tiles(tile.own)
    out, lse = qkv.new_empty(U, H, D), qkv.new_empty(H, U, dtype=torch.float32)
    _attend[(len(table), H)](
        *_described(qkv, tile.own, tile.passing),
        segments.start,
        table,
        out,
        lse,
        U,
        H,
        kv_heads,
        scale * LOG2E.value,
        **_sizes(qkv, tile),
    )
    return out, lse


def attend_gradient(
    d: Tensor,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    kv_heads: int,
    segments: Segments,
    scale: float,
) -> Tensor:
    """The gradient of qkv, from d [U, H, D] and what `attend` gave."""
    U, heads, D = qkv.shape
    H = heads - 2 * kv_heads
    _, tile, keys = tiles(D, segments, shared_memory(qkv.device))
    d_qkv, delta = torch.empty_like(qkv), torch.empty_like(lse)
    numbers = U, H, kv_heads, scale, scale * LOG2E.value
    table = segments.query_tiles(tile.own)
    _query_gradient[(len(table), H)](
        *_described(qkv, tile.own, tile.passing),
        *_described(d, tile.own),
        *_described(out, tile.own),
        lse,
        segments.start,
        table,
        delta,
        d_qkv,
        *numbers,
        **_sizes(qkv, tile),
    )
    table, prompts, parts = segments.key_tiles(keys.own)
    sums = lse.new_empty(parts, kv_heads, 2, keys.own, D)
    _key_gradient[(len(table), kv_heads)](
        *_described(qkv, keys.own, keys.passing),
        *_described(d, keys.passing),
        lse,
        delta,
        segments.start,
        table,
        sums,
        d_qkv,
        *numbers,
        **_sizes(qkv, keys),
    )
    if parts:
        _prompt_gradient[(len(prompts), kv_heads)](
            sums,
            prompts,
            d_qkv,
            H,
            kv_heads,
            scale,
            D=D,
            BLOCK_D=_width(D),
            OWN=keys.own,
            num_warps=4,
        )
    return d_qkv


def _described(x: Tensor, *entries: int) -> list[Tensor | TensorDescriptor]:
    """x [U, H, D], for tiles of each of these many entries of one head."""
    if not _has_descriptors(x):
        return [x] * len(entries)
    return [
        TensorDescriptor.from_tensor(x.view(len(x), -1), [n, _width(x.shape[2])]) for n in entries
    ]


def _has_descriptors(x: Tensor) -> bool:
    """Rows of a tensor must then lie 16 bytes apart, or a multiple of these."""
    return is_hopper(x.device) and x.shape[2] * x.element_size() % 16 == 0


def _width(D: int) -> int:
    width: int = triton.next_power_of_2(D)
    return max(16, width)


def _sizes(x: Tensor, tile: Tile) -> dict[str, int]:
    D = x.shape[2]
    return {
        "D": D,
        "BLOCK_D": _width(D),
        "OWN": tile.own,
        "PASSING": tile.passing,
        "STAGES": tile.stages,
        "DESCRIBED": _has_descriptors(x),
        "num_warps": tile.warps,
    }


@triton.jit
def _rows(
    x: tl.tensor,
    first: tl.tensor,
    column: tl.tensor,
    stride: tl.tensor,
    U: tl.tensor,
    N: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    DESCRIBED: tl.constexpr,
) -> tl.tensor:
    """Entries first … first + N − 1 of the head whose numbers begin at `column` of a row: [N,
    BLOCK_D]. From U on they are zeros, or the last one again: nobody may look at them.
    """
    d = tl.arange(0, BLOCK_D)
    if DESCRIBED:
        y = x.load([first, column])
        return y if D == BLOCK_D else tl.where((d < D)[None, :], y, 0.0)
    else:
        n = tl.minimum(first + tl.arange(0, N), U - 1)
        place = x + n.to(tl.int64)[:, None] * stride + column + d[None, :]
        return tl.load(place) if D == BLOCK_D else tl.load(place, mask=(d < D)[None, :], other=0.0)


@triton.jit
def _blocks(
    a: tl.tensor,
    b: tl.tensor,
    before: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    PASSING: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """Of the keys that the queries of a tile see: blocks that all of them see (how many, how many
    of these come before their own segments, where the others begin), and the rest (how many, how
    many at the end of what comes before, how many up to the last one's segment, where the diagonal
    begins).
    """
    whole_before, tail = before // PASSING, (before % PASSING > 0).to(tl.int32)
    up_to = tl.cdiv(last - first, PASSING)
    middle = first + up_to * PASSING
    whole_own = tl.maximum(a - middle, 0) // PASSING
    diagonal = middle + whole_own * PASSING
    rest = tail + up_to + tl.maximum(tl.cdiv(b - diagonal, PASSING), 0)
    return whole_before + whole_own, whole_before, middle, rest, tail, up_to, diagonal


@triton.jit
def _masked_block(
    n: tl.tensor,
    i: tl.tensor,
    mine: tl.tensor,
    begin: tl.tensor,
    before: tl.tensor,
    first: tl.tensor,
    whole_before: tl.tensor,
    tail: tl.tensor,
    up_to: tl.tensor,
    diagonal: tl.tensor,
    PASSING: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Where block n of the rest begins, and which of its keys each query i sees, whose segment
    begins at `mine`. First comes the end of what is before, then what leads up to the last segment,
    then the diagonal.
    """
    own = tl.where(
        n - tail < up_to, first + (n - tail) * PASSING, diagonal + (n - tail - up_to) * PASSING
    )
    at = tl.where(n < tail, begin + whole_before * PASSING, own)
    low, high = tl.where(n < tail, begin, mine), tl.where(n < tail, begin + before - 1, i)
    j = at + tl.arange(0, PASSING)
    return at, (j[None, :] >= low[:, None]) & (j[None, :] <= high[:, None])


@triton.jit(do_not_specialize=["U"])
def _attend(
    own: tl.tensor,
    passing: tl.tensor,
    start: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    U: tl.tensor,
    H: tl.tensor,
    KV_HEADS: tl.tensor,
    unit: tl.tensor,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OWN: tl.constexpr,
    PASSING: tl.constexpr,
    STAGES: tl.constexpr,
    DESCRIBED: tl.constexpr,
) -> None:
    tile, head = table + 6 * tl.program_id(0), tl.program_id(1)
    a, b, begin = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    before, first, last = tl.load(tile + 3), tl.load(tile + 4), tl.load(tile + 5)
    stride = (H + 2 * KV_HEADS) * D
    keys = (H + head // (H // KV_HEADS)) * D
    values = keys + KV_HEADS * D
    i = a + tl.arange(0, OWN)
    there = i < b
    q = _rows(own, a, head * D, stride, U, OWN, D, BLOCK_D, DESCRIBED)
    mine = tl.load(start + i, mask=there, other=0)
    whole, whole_before, middle, rest, tail, up_to, diagonal = _blocks(
        a, b, before, first, last, PASSING
    )
    m = tl.full((OWN,), FLOOR, tl.float32)
    s = tl.zeros((OWN,), tl.float32)
    acc = tl.zeros((OWN, BLOCK_D), tl.float32)
    for n in tl.range(0, whole, num_stages=STAGES):
        # With the same number written as first + (up_to + n − whole_before) · PASSING, the
        # assembler runs a loop's products one by one (a WARPGROUP.ARRIVE before each), and this
        # kernel takes a sixth longer.
        at = tl.where(n < whole_before, begin + n * PASSING, middle + (n - whole_before) * PASSING)
        k = _rows(passing, at, keys, stride, U, PASSING, D, BLOCK_D, DESCRIBED)
        v = _rows(passing, at, values, stride, U, PASSING, D, BLOCK_D, DESCRIBED)
        m, s, acc = _softmax_step(tl.dot(q, tl.trans(k)), v, m, s, acc, unit)
    for n in tl.range(0, rest, num_stages=STAGES):
        at, seen = _masked_block(
            n, i, mine, begin, before, first, whole_before, tail, up_to, diagonal, PASSING
        )
        k = _rows(passing, at, keys, stride, U, PASSING, D, BLOCK_D, DESCRIBED)
        v = _rows(passing, at, values, stride, U, PASSING, D, BLOCK_D, DESCRIBED)
        m, s, acc = _softmax_step(tl.where(seen, tl.dot(q, tl.trans(k)), FLOOR), v, m, s, acc, unit)
    d = tl.arange(0, BLOCK_D)
    place = out + (i.to(tl.int64)[:, None] * H + head) * D + d[None, :]
    tl.store(
        place, (acc / s[:, None]).to(out.dtype.element_ty), mask=there[:, None] & (d < D)[None, :]
    )
    tl.store(lse + head.to(tl.int64) * U + i, m * unit * LN2 + tl.log(s), mask=there)


@triton.jit
def _softmax_step(
    z: tl.tensor,
    v: tl.tensor,
    m: tl.tensor,
    s: tl.tensor,
    acc: tl.tensor,
    unit: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """A row that has seen nothing yet counts what it must not:
    the first it sees takes that away, 2^−∞ times.
    """
    top = tl.maximum(m, tl.max(z, 1))
    p = tl.exp2(z * unit - (top * unit)[:, None])
    change = tl.exp2((m - top) * unit)
    s = s * change + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * change[:, None])
    return top, s, acc


@triton.jit(do_not_specialize=["U"])
def _query_gradient(
    own: tl.tensor,
    passing: tl.tensor,
    d_out: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    start: tl.tensor,
    table: tl.tensor,
    delta: tl.tensor,
    d_qkv: tl.tensor,
    U: tl.tensor,
    H: tl.tensor,
    KV_HEADS: tl.tensor,
    scale: tl.tensor,
    unit: tl.tensor,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OWN: tl.constexpr,
    PASSING: tl.constexpr,
    STAGES: tl.constexpr,
    DESCRIBED: tl.constexpr,
) -> None:
    """dq = scale Σ ds k with ds = p (do·v − δ), δ = do·o, which is kept for the keys' gradients."""
    tile, head = table + 6 * tl.program_id(0), tl.program_id(1)
    a, b, begin = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    before, first, last = tl.load(tile + 3), tl.load(tile + 4), tl.load(tile + 5)
    stride = (H + 2 * KV_HEADS) * D
    keys = (H + head // (H // KV_HEADS)) * D
    values = keys + KV_HEADS * D
    i = a + tl.arange(0, OWN)
    there = i < b
    q = _rows(own, a, head * D, stride, U, OWN, D, BLOCK_D, DESCRIBED)
    g = _rows(d_out, a, head * D, H * D, U, OWN, D, BLOCK_D, DESCRIBED)
    o = _rows(out, a, head * D, H * D, U, OWN, D, BLOCK_D, DESCRIBED)
    change = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(delta + head.to(tl.int64) * U + i, change, mask=there)
    top = tl.load(lse + head.to(tl.int64) * U + i, mask=there, other=0.0) * LOG2E
    mine = tl.load(start + i, mask=there, other=0)
    whole, whole_before, middle, rest, tail, up_to, diagonal = _blocks(
        a, b, before, first, last, PASSING
    )
    acc = tl.zeros((OWN, BLOCK_D), tl.float32)
    for n in tl.range(0, whole, num_stages=STAGES):
        at = tl.where(n < whole_before, begin + n * PASSING, middle + (n - whole_before) * PASSING)
        k = _rows(passing, at, keys, stride, U, PASSING, D, BLOCK_D, DESCRIBED)
        v = _rows(passing, at, values, stride, U, PASSING, D, BLOCK_D, DESCRIBED)
        p = tl.exp2(tl.dot(q, tl.trans(k)) * unit - top[:, None])
        ds = p * (tl.dot(g, tl.trans(v)) - change[:, None])
        acc = tl.dot(ds.to(k.dtype), k, acc)
    for n in tl.range(0, rest, num_stages=STAGES):
        at, seen = _masked_block(
            n, i, mine, begin, before, first, whole_before, tail, up_to, diagonal, PASSING
        )
        k = _rows(passing, at, keys, stride, U, PASSING, D, BLOCK_D, DESCRIBED)
        v = _rows(passing, at, values, stride, U, PASSING, D, BLOCK_D, DESCRIBED)
        p = tl.where(seen, tl.exp2(tl.dot(q, tl.trans(k)) * unit - top[:, None]), 0.0)
        ds = p * (tl.dot(g, tl.trans(v)) - change[:, None])
        acc = tl.dot(ds.to(k.dtype), k, acc)
    d = tl.arange(0, BLOCK_D)
    place = d_qkv + i.to(tl.int64)[:, None] * stride + head * D + d[None, :]
    tl.store(
        place, (acc * scale).to(d_qkv.dtype.element_ty), mask=there[:, None] & (d < D)[None, :]
    )


@triton.jit(do_not_specialize=["U"])
def _key_gradient(
    own: tl.tensor,
    passing: tl.tensor,
    d_out: tl.tensor,
    lse: tl.tensor,
    delta: tl.tensor,
    start: tl.tensor,
    table: tl.tensor,
    sums: tl.tensor,
    d_qkv: tl.tensor,
    U: tl.tensor,
    H: tl.tensor,
    KV_HEADS: tl.tensor,
    scale: tl.tensor,
    unit: tl.tensor,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OWN: tl.constexpr,
    PASSING: tl.constexpr,
    STAGES: tl.constexpr,
    DESCRIBED: tl.constexpr,
) -> None:
    """dv = Σ p do and dk = scale Σ ds q, over the queries first … to − 1 of all heads that share
    keys a … b − 1. From `clear` on, a query sees all of these; if that is where it begins, they are
    a prompt's and the queries come after. Of prompts the sums are left at `place`.
    """
    tile, kv_head = table + 6 * tl.program_id(0), tl.program_id(1)
    a, b, first = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    clear, to, place = tl.load(tile + 3), tl.load(tile + 4), tl.load(tile + 5)
    stride = (H + 2 * KV_HEADS) * D
    j = a + tl.arange(0, OWN)
    k = _rows(own, a, (H + kv_head) * D, stride, U, OWN, D, BLOCK_D, DESCRIBED)
    v = _rows(own, a, (H + KV_HEADS + kv_head) * D, stride, U, OWN, D, BLOCK_D, DESCRIBED)
    share = H // KV_HEADS
    diagonal = tl.cdiv(clear - first, PASSING)
    middle = first + diagonal * PASSING
    whole = tl.maximum(to - middle, 0) // PASSING
    rest = diagonal + tl.maximum(tl.cdiv(to - middle - whole * PASSING, PASSING), 0)
    d_k = tl.zeros((OWN, BLOCK_D), tl.float32)
    d_v = tl.zeros((OWN, BLOCK_D), tl.float32)
    for n in tl.range(0, share * whole, num_stages=STAGES):
        head, at = kv_head * share + n // whole, middle + n % whole * PASSING
        q = _rows(passing, at, head * D, stride, U, PASSING, D, BLOCK_D, DESCRIBED)
        g = _rows(d_out, at, head * D, H * D, U, PASSING, D, BLOCK_D, DESCRIBED)
        of_head = head.to(tl.int64) * U + at
        i = tl.arange(0, PASSING)
        top, change = tl.load(lse + of_head + i) * LOG2E, tl.load(delta + of_head + i)
        p = tl.exp2(tl.dot(k, tl.trans(q)) * unit - top[None, :])
        d_v = tl.dot(p.to(g.dtype), g, d_v)
        ds = p * (tl.dot(v, tl.trans(g)) - change[None, :])
        d_k = tl.dot(ds.to(q.dtype), q, d_k)
    for n in tl.range(0, share * rest, num_stages=STAGES):
        head, r = kv_head * share + n // rest, n % rest
        at = tl.where(r < diagonal, first + r * PASSING, middle + (whole + r - diagonal) * PASSING)
        i = at + tl.arange(0, PASSING)
        q = _rows(passing, at, head * D, stride, U, PASSING, D, BLOCK_D, DESCRIBED)
        g = _rows(d_out, at, head * D, H * D, U, PASSING, D, BLOCK_D, DESCRIBED)
        of_head, inside = head.to(tl.int64) * U, tl.minimum(i, U - 1)
        top, change = tl.load(lse + of_head + inside) * LOG2E, tl.load(delta + of_head + inside)
        low = tl.where(i < to, tl.where(clear == first, a, tl.load(start + inside)), U)
        seen = (low[None, :] <= j[:, None]) & (j[:, None] <= i[None, :])
        p = tl.where(seen, tl.exp2(tl.dot(k, tl.trans(q)) * unit - top[None, :]), 0.0)
        d_v = tl.dot(p.to(g.dtype), g, d_v)
        ds = p * (tl.dot(v, tl.trans(g)) - change[None, :])
        d_k = tl.dot(ds.to(q.dtype), q, d_k)
    if place < 0:
        _store_keys(d_qkv, d_k * scale, d_v, a, b, stride, H + kv_head, KV_HEADS, D, BLOCK_D, OWN)
    else:
        inside_tile = tl.arange(0, OWN)[:, None] * D + tl.arange(0, BLOCK_D)[None, :]
        to_sums = sums + (place.to(tl.int64) * KV_HEADS + kv_head) * (2 * OWN * D) + inside_tile
        here = (j < b)[:, None] & (tl.arange(0, BLOCK_D) < D)[None, :]
        tl.store(to_sums, d_k, mask=here)
        tl.store(to_sums + OWN * D, d_v, mask=here)


@triton.jit
def _prompt_gradient(
    sums: tl.tensor,
    table: tl.tensor,
    d_qkv: tl.tensor,
    H: tl.tensor,
    KV_HEADS: tl.tensor,
    scale: tl.tensor,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OWN: tl.constexpr,
) -> None:
    """The gradients of a prompt's keys a … b − 1 and their values:
    the sum of what `_key_gradient` has left.
    """
    tile, kv_head = table + 4 * tl.program_id(0), tl.program_id(1)
    a = tl.load(tile)
    b = tl.load(tile + 1)
    place = tl.load(tile + 2)
    parts = tl.load(tile + 3)
    n, d = tl.arange(0, OWN), tl.arange(0, BLOCK_D)
    inside_tile = n[:, None] * D + d[None, :]
    here = (a + n < b)[:, None] & (d < D)[None, :]
    d_k = tl.zeros((OWN, BLOCK_D), tl.float32)
    d_v = tl.zeros((OWN, BLOCK_D), tl.float32)
    for part in range(parts):
        of_part = (
            sums + ((place + part).to(tl.int64) * KV_HEADS + kv_head) * (2 * OWN * D) + inside_tile
        )
        d_k += tl.load(of_part, mask=here, other=0.0)
        d_v += tl.load(of_part + OWN * D, mask=here, other=0.0)
    _store_keys(
        d_qkv,
        d_k * scale,
        d_v,
        a,
        b,
        (H + 2 * KV_HEADS) * D,
        H + kv_head,
        KV_HEADS,
        D,
        BLOCK_D,
        OWN,
    )


@triton.jit
def _store_keys(
    d_qkv: tl.tensor,
    d_k: tl.tensor,
    d_v: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    stride: tl.tensor,
    kv_head: tl.tensor,
    KV_HEADS: tl.tensor,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OWN: tl.constexpr,
) -> None:
    j, d = a + tl.arange(0, OWN), tl.arange(0, BLOCK_D)
    here = (j < b)[:, None] & (d < D)[None, :]
    place = d_qkv + j.to(tl.int64)[:, None] * stride + kv_head * D + d[None, :]
    tl.store(place, d_k.to(d_qkv.dtype.element_ty), mask=here)
    tl.store(place + KV_HEADS * D, d_v.to(d_qkv.dtype.element_ty), mask=here)

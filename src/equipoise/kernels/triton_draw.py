"""Drawing tokens in a decode step, in Triton: `draw`, `list_kept` and `uniform` of `plain_decode`.

A draw reads the logits once for the maximum and the sum of each piece of the vocabulary, and then
one piece again. Exponents are in base 2, the hardware's own.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from equipoise import splitmix
from equipoise.kernels.triton_softcap import capped

FLOOR = tl.constexpr(-1e30)  # stands for −∞, whose differences are not numbers
LOG2E = tl.constexpr(1 / math.log(2))
GAMMA, FIRST, SECOND = (
    tl.constexpr(int(c)) for c in (splitmix.GAMMA, splitmix.FIRST, splitmix.SECOND)
)
PIECE = 2048  # of the vocabulary


def draw(
    logits: Tensor, u: Tensor, temperature: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """See `decode`."""
    check_contiguous(logits[:1], u)  # rows of logits may lie apart
    R, V = logits.shape
    pieces = triton.cdiv(V, PIECE)
    sums = u.new_empty(2, R, pieces)
    tokens, logprobs = torch.empty(R, dtype=torch.int64, device=u.device), torch.empty_like(u)
    numbers = V, logits.stride(0), 1 / (temperature or 1.0), softcap or 0.0
    options = {"SOFTCAP": softcap is not None, "PIECE": PIECE}
    _pieces[(R, pieces)](logits, sums, *numbers, **options, num_warps=2)
    _draw[(R,)](
        logits,
        sums,
        u,
        tokens,
        logprobs,
        *numbers,
        pieces,
        **options,
        PIECES=triton.next_power_of_2(pieces),
        GREEDY=temperature == 0,
        num_warps=4,
    )
    return tokens, logprobs


def list_kept(kept: Tensor, begin: Tensor, ids: Tensor) -> None:
    """See `decode`."""
    check_contiguous(kept, begin, ids)
    R, V = kept.shape
    _list_kept[(R,)](kept.view(torch.uint8), begin, ids, V, len(ids), PIECE=PIECE, num_warps=4)


def uniform(keys: Tensor, position: Tensor) -> Tensor:
    """See `decode`."""
    check_contiguous(keys, position)
    out = torch.empty(keys.shape, dtype=torch.float32, device=keys.device)
    _uniform[(triton.cdiv(len(keys), 128),)](keys, position, out, len(keys), BLOCK=128, num_warps=4)
    return out


def check_contiguous(*tensors: Tensor) -> None:
    for t in tensors:
        if not t.is_contiguous():
            raise ValueError(
                f"a tensor of shape {tuple(t.shape)} has strides {t.stride()}, but must be contiguous; "
                "give t.contiguous()"
            )


@triton.jit
def _pieces(
    logits: tl.tensor,
    sums: tl.tensor,
    V: tl.tensor,
    stride: tl.tensor,
    inverse_temperature: tl.tensor,
    softcap: tl.tensor,
    SOFTCAP: tl.constexpr,
    PIECE: tl.constexpr,
) -> None:
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
    logits: tl.tensor,
    sums: tl.tensor,
    u: tl.tensor,
    tokens: tl.tensor,
    logprobs: tl.tensor,
    V: tl.tensor,
    stride: tl.tensor,
    inverse_temperature: tl.tensor,
    softcap: tl.tensor,
    pieces: tl.tensor,
    SOFTCAP: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
    GREEDY: tl.constexpr,
) -> None:
    """The piece that the row's u falls into, then the token in it. Only what has mass is drawn,
    whatever the rounding: sums of other orders need not even rise with the index.
    """
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
def _first(
    wanted: tl.tensor,
    possible: tl.tensor,
    index: tl.tensor,
    END: tl.constexpr,
) -> tl.tensor:
    """The first index that is wanted, or else the last possible one."""
    first = tl.min(tl.where(wanted, index, END), 0)
    return tl.where(first < END, first, tl.maximum(tl.max(tl.where(possible, index, -1), 0), 0))


@triton.jit
def _piece(
    logits: tl.tensor,
    piece: tl.tensor,
    V: tl.tensor,
    softcap: tl.tensor,
    SOFTCAP: tl.constexpr,
    PIECE: tl.constexpr,
) -> tl.tensor:
    o = piece * PIECE + tl.arange(0, PIECE)
    z = tl.load(logits + o, mask=o < V, other=-float("inf")).to(tl.float32)
    return tl.where(o < V, capped(z, softcap, SOFTCAP), -float("inf"))


@triton.jit(do_not_specialize=["capacity"])
def _list_kept(
    kept: tl.tensor,
    begin: tl.tensor,
    ids: tl.tensor,
    V: tl.tensor,
    capacity: tl.tensor,
    PIECE: tl.constexpr,
) -> None:
    """A program goes over a whole row: where an id goes depends on all before it."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.load(begin + row)
    for first in range(0, V, PIECE):
        o = first + tl.arange(0, PIECE)
        is_kept = tl.load(kept + row * V + o, mask=o < V, other=0).to(tl.int32)
        place = at + tl.cumsum(is_kept, 0) - 1
        tl.store(ids + place, o.to(tl.int32), mask=(is_kept != 0) & (place < capacity))
        at += tl.sum(is_kept, 0)


@triton.jit(do_not_specialize=["R"])
def _uniform(
    keys: tl.tensor,
    position: tl.tensor,
    out: tl.tensor,
    R: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """`rollout.uniform.uniforms`: the finaliser of splitmix64."""
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number = tl.load(position + r, mask=r < R, other=0).to(tl.uint64) + 1
    h = tl.load(keys + r, mask=r < R, other=0).to(tl.uint64, bitcast=True) + number * GAMMA
    h = (h ^ (h >> 30)) * FIRST
    h = (h ^ (h >> 27)) * SECOND
    h = h ^ (h >> 31)
    tl.store(out + r, (h >> 40).to(tl.float32) * (2.0**-24), mask=r < R)

"""What is done to a chunk of logits, in Triton: `passes`, the same functions, without a copy of the chunk.

The loss pass reads and writes the chunk once: it replaces each logit by E = 2^kz and sums as it goes. What is missing
then, 1/ΣE and the slope, is one factor per token, which the caller applies to the matrix products' small sides. The
target's place takes E − ΣE. An entropy bonus has no such form: its gradient is a second reading.
Sums are kept per thread, meet at the end of a program's share of the vocabulary, and then in a second small kernel.
Exponents are in base 2, the hardware's own: k = log₂e/temperature. No atomics: the same numbers give the same bits.
Chunks are multiples of 128 tokens.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from equipoise.objective.surrogate import LIMIT as RATIO_LIMIT
from equipoise.policy.kernels.passes import Chunk
from equipoise.policy.kernels.pull import SLOPES, Pull

FLOOR = tl.constexpr(-1e5)  # stands for −∞, whose differences and products with 0 are not numbers
LIMIT = tl.constexpr(RATIO_LIMIT)
LN2 = tl.constexpr(math.log(2))
LOG2E = tl.constexpr(1 / math.log(2))
CEILING = tl.constexpr(100.0)  # of the exponents of E: their sum stays finite


class Tile(NamedTuple):
    """A program's piece of the chunk; these were the fastest of those tried on an H200."""

    tokens: int
    rows: int  # of logits, side by side
    warps: int
    depth: int = 1  # so many times the rows in one step
    shares: int = 1  # of the vocabulary, one for each program


SUMS = Tile(tokens=64, rows=16, warps=4, depth=8, shares=52)
LOSS = Tile(tokens=128, rows=8, warps=4, depth=8, shares=26)
GRADIENT = Tile(tokens=128, rows=32, warps=4)
SMALL = 64  # tokens of a program that sees only sums


def target_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, out: Tensor) -> None:
    """See `passes`; NaN for a target that is no row of the weight."""
    _target_logits[(len(hidden),)](
        hidden, weight, bias, targets, out, hidden.shape[1], len(weight), hidden.stride(0), weight.stride(0), BLOCK=1024
    )


def statistics(chunk: Chunk, logprobs: Tensor, entropy: Tensor, lse: Tensor) -> None:
    """See `passes`."""
    V, n = chunk.z.shape
    share, shares = _shares(V, SUMS)
    sums = chunk.shift.new_empty(3, shares, n)
    _sums[(n // SUMS.tokens, shares)](
        chunk.z, chunk.bias, chunk.shift, sums, V, n, share, *_numbers(chunk), SOFTCAP=_has_cap(chunk),
        ROWS=SUMS.rows, DEPTH=SUMS.depth, TOKENS=SUMS.tokens, num_warps=SUMS.warps,
    )  # fmt: skip
    _statistics[(n // SMALL,)](
        sums, shares, chunk.own, chunk.shift, logprobs, entropy, lse, n, *_numbers(chunk),
        SOFTCAP=_has_cap(chunk), SHARES=triton.next_power_of_2(shares), TOKENS=SMALL,
    )  # fmt: skip


def gradient_(chunk: Chunk, lse: Tensor, entropy: Tensor, g: Tensor | None, h: Tensor | None) -> None:
    """See `passes`."""
    V, n = chunk.z.shape
    _gradient[(n // GRADIENT.tokens, triton.cdiv(V, GRADIENT.rows))](
        chunk.z, chunk.bias, chunk.shift, chunk.targets, lse, entropy, g, h, V, n, *_numbers(chunk),
        SOFTCAP=_has_cap(chunk), ROWS=GRADIENT.rows, TOKENS=GRADIENT.tokens, num_warps=GRADIENT.warps,
    )  # fmt: skip


def loss_gradient_(chunk: Chunk, pull: Pull, logprobs: Tensor, entropy: Tensor) -> Tensor | None:
    """See `passes`."""
    V, n = chunk.z.shape
    if pull.entropy_weight is not None:
        lse, g, h = torch.empty_like(logprobs), torch.empty_like(logprobs), torch.empty_like(logprobs)
        statistics(chunk, logprobs, entropy, lse)
        _slopes[(n // SMALL,)](
            logprobs, entropy, pull.old, pull.c, pull.ref, pull.kl_weight, pull.entropy_weight, g, h, *_options(pull),
            KL=pull.kl_estimator, TOKENS=SMALL,
        )  # fmt: skip
        gradient_(chunk, lse, entropy, g, h)
        return None
    share, shares = _shares(V, LOSS)
    sums = chunk.shift.new_empty(2, shares, n)
    factor = torch.empty_like(logprobs)
    _exponentials[(n // LOSS.tokens, shares)](
        chunk.z, chunk.bias, chunk.shift, sums, V, n, share, *_numbers(chunk), SOFTCAP=_has_cap(chunk),
        ROWS=LOSS.rows, DEPTH=LOSS.depth, TOKENS=LOSS.tokens, num_warps=LOSS.warps,
    )  # fmt: skip
    _factors[(n // SMALL,)](
        chunk.z, sums, shares, chunk.own, chunk.shift, chunk.targets, logprobs, entropy, factor,
        pull.old, pull.c, pull.ref, pull.kl_weight, V, n, *_numbers(chunk), *_options(pull),
        KL=pull.kl_estimator, SOFTCAP=_has_cap(chunk), SHARES=triton.next_power_of_2(shares), TOKENS=SMALL,
    )  # fmt: skip
    return factor


def scale_rows(x: Tensor, factor: Tensor, out: Tensor) -> None:
    """See `passes`."""
    d = x.shape[1]
    _scale_rows[(len(x), triton.cdiv(d, 1024))](x, factor, out, d, x.stride(0), out.stride(0), BLOCK=1024)


def _shares(V: int, tile: Tile) -> tuple[int, int]:
    """Rows of a share, and how many shares there are."""
    step = tile.rows * tile.depth
    share = triton.cdiv(triton.cdiv(V, step), tile.shares) * step
    return share, triton.cdiv(V, share)


def _numbers(chunk: Chunk) -> tuple[float, float]:
    return 1 / chunk.softmax.temperature, chunk.softmax.softcap or 0.0


def _has_cap(chunk: Chunk) -> bool:
    return chunk.softmax.softcap is not None


def _options(pull: Pull) -> tuple[Any, ...]:
    """The surrogate's numbers, and its name: a, b, cap, SURROGATE."""
    name, options = pull.surrogate.name, pull.surrogate.options
    numbers = [float(options[key]) for key in SLOPES[name]]
    return *numbers, *[0.0] * (3 - len(numbers)), f"{name}_{options['divergence']}" if name == "dppo" else name


@triton.jit
def _target_logits(
    hidden, weight, bias, targets, out, d, V, hidden_stride, weight_stride, BLOCK: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    y = tl.load(targets + token)
    known = (y >= 0) & (y < V)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, d, BLOCK):
        o = start + tl.arange(0, BLOCK)
        x = tl.load(hidden + token * hidden_stride + o, mask=o < d, other=0.0).to(tl.float32)
        w = tl.load(weight + y * weight_stride + o, mask=known & (o < d), other=0.0).to(tl.float32)
        total += x * w
    own = tl.sum(total, 0)
    if bias is not None:
        own += tl.load(bias + y, mask=known, other=0.0).to(tl.float32)
    tl.store(out + token, tl.where(known, own, float("nan")))


@triton.jit
def _scale_rows(x, factor, out, d, x_stride, out_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    f = tl.load(factor + row)
    scaled = tl.load(x + row * x_stride + o, mask=o < d, other=0.0).to(tl.float32) * f
    tl.store(out + row * out_stride + o, tl.where(f == 0, 0.0, scaled).to(out.dtype.element_ty), mask=o < d)


@triton.jit
def _sums(
    z, bias, shift, sums, V, n, share, inverse_temperature, softcap,
    SOFTCAP: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """max v, Σ 2^k(v−max) and Σ 2^k(v−max)·k(v−max) of a block of tokens over a share of the vocabulary."""
    STEP: tl.constexpr = ROWS * DEPTH
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    begin = tl.program_id(1) * share
    end = tl.minimum(begin + share, V)
    k = inverse_temperature * LOG2E
    shifts = tl.load(shift + token)
    m = tl.full((ROWS, TOKENS), FLOOR, tl.float32)
    s = tl.zeros((ROWS, TOKENS), tl.float32)
    u = tl.zeros((ROWS, TOKENS), tl.float32)
    for first in range(begin, end, STEP):
        v = _values(z, bias, first + tl.arange(0, STEP), token, end, n, shifts, softcap, SOFTCAP)
        v = tl.reshape(v, (DEPTH, ROWS, TOKENS))
        top = tl.maximum(m, tl.max(v, 0))
        d = v * k - (top * k)[None, :, :]
        e = tl.exp2(d)
        change = (m - top) * k
        scale = tl.exp2(change)
        u = scale * (u + s * change) + tl.sum(e * d, 0)
        s = scale * s + tl.sum(e, 0)
        m = top
    top, total, weighted = _merge(m, s, u, k)
    out = sums + tl.program_id(1) * n + token
    tl.store(out, top)
    tl.store(out + tl.num_programs(1) * n, total)
    tl.store(out + 2 * tl.num_programs(1) * n, weighted)


@triton.jit
def _statistics(
    sums, shares, own, shift, logprobs, entropy, lse, n, inverse_temperature, softcap,
    SOFTCAP: tl.constexpr, SHARES: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    share = tl.arange(0, SHARES)[:, None]
    place = sums + share * n + token[None, :]
    there = share < shares
    m = tl.load(place, mask=there, other=FLOOR)
    s = tl.load(place + shares * n, mask=there, other=0.0)
    u = tl.load(place + 2 * shares * n, mask=there, other=0.0)
    top, total, weighted = _merge(m, s, u, inverse_temperature * LOG2E)
    log_total = tl.log(total)
    base = _capped(tl.load(shift + token), softcap, SOFTCAP)
    over = _capped(tl.load(own + token), softcap, SOFTCAP) - base - top
    tl.store(logprobs + token, over * inverse_temperature - log_total)
    # H = log Σe^x − Σpx, with x counted from the maximum: near-certain tokens would otherwise lose all their digits
    tl.store(entropy + token, log_total - LN2 * (weighted / total))
    tl.store(lse + token, (base + top) * inverse_temperature + log_total)


@triton.jit
def _exponentials(
    z, bias, shift, sums, V, n, share, inverse_temperature, softcap,
    SOFTCAP: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """z becomes E·cap′ with E = 2^y, y = kv; ΣE and ΣE·y of a block of tokens over a share of the vocabulary."""
    STEP: tl.constexpr = ROWS * DEPTH
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    begin = tl.program_id(1) * share
    end = tl.minimum(begin + share, V)
    shifts = tl.load(shift + token)
    base = _capped(shifts, softcap, SOFTCAP)
    s = tl.zeros((ROWS, TOKENS), tl.float32)
    u = tl.zeros((ROWS, TOKENS), tl.float32)
    for first in range(begin, end, STEP):
        row = first + tl.arange(0, STEP)
        v = _values(z, bias, row, token, end, n, shifts, softcap, SOFTCAP)
        y = tl.minimum(v * (inverse_temperature * LOG2E), CEILING, propagate_nan=tl.PropagateNan.ALL)
        e = tl.exp2(y)
        s += tl.sum(tl.reshape(e, (DEPTH, ROWS, TOKENS)), 0)
        u += tl.sum(tl.reshape(e * y, (DEPTH, ROWS, TOKENS)), 0)
        if SOFTCAP:
            t = (v + base[None, :]) / softcap
            e = e * (1 - t * t)
        place = z + row[:, None].to(tl.int64) * n + token[None, :]
        tl.store(place, e.to(z.dtype.element_ty), mask=(row < end)[:, None])
    out = sums + tl.program_id(1) * n + token
    tl.store(out, tl.sum(s, 0))
    tl.store(out + tl.num_programs(1) * n, tl.sum(u, 0))


@triton.jit
def _factors(
    z, sums, shares, own, shift, targets, logprobs, entropy, factor, old, c, ref, kl_weight, V, n,
    inverse_temperature, softcap, a, b, cap, SURROGATE: tl.constexpr, KL: tl.constexpr, SOFTCAP: tl.constexpr,
    SHARES: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Log-probabilities, entropies and factors from the sums; the target's place in z takes (E − ΣE)·cap′."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    share = tl.arange(0, SHARES)[:, None]
    place = sums + share * n + token[None, :]
    total = tl.sum(tl.load(place, mask=share < shares, other=0.0), 0)
    weighted = tl.sum(tl.load(place + shares * n, mask=share < shares, other=0.0), 0)
    x = _capped(tl.load(own + token), softcap, SOFTCAP)
    y = (x - _capped(tl.load(shift + token), softcap, SOFTCAP)) * (inverse_temperature * LOG2E)
    y = tl.minimum(y, CEILING, propagate_nan=tl.PropagateNan.ALL)
    log2_total = tl.log2(total)
    logp = LN2 * (y - log2_total)
    tl.store(logprobs + token, logp)
    tl.store(entropy + token, LN2 * (log2_total - weighted / total))
    slope = _loss_slope(token, logp, old, c, ref, kl_weight, a, b, cap, SURROGATE, KL)
    finite = tl.abs(logp - tl.load(old + token)) < float("inf")
    tl.store(factor + token, tl.where(finite, -slope / total * inverse_temperature, 0.0))

    known = tl.abs(logp) < float("inf")
    at_target = tl.exp2(y) - total
    if SOFTCAP:
        at_target = at_target * (1 - (x / softcap) * (x / softcap))
    at_target = at_target.to(z.dtype.element_ty)
    tl.store(z + tl.load(targets + token) * n + token, at_target, mask=known)
    unknown = 1 - known.to(tl.int32)
    if tl.max(unknown, 0) == 1:  # a factor of 0 does not make a NaN 0
        for row in range(V):
            tl.store(z + tl.cast(row, tl.int64) * n + token, (token * 0).to(z.dtype.element_ty), mask=unknown == 1)


@triton.jit
def _slopes(
    logprobs, entropy, old, c, ref, kl_weight, entropy_weight, g, h, a, b, cap,
    SURROGATE: tl.constexpr, KL: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """∂loss/∂log π and ∂loss/∂entropy; 0 for tokens whose numbers are not finite."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    logp = tl.load(logprobs + token)
    slope = _loss_slope(token, logp, old, c, ref, kl_weight, a, b, cap, SURROGATE, KL)
    finite = tl.abs(logp - tl.load(old + token)) + tl.abs(tl.load(entropy + token)) < float("inf")
    tl.store(g + token, tl.where(finite, slope, 0.0))
    tl.store(h + token, tl.where(finite, -tl.load(entropy_weight), 0.0))


@triton.jit
def _loss_slope(token, logp, old, c, ref, kl_weight, a, b, cap, SURROGATE: tl.constexpr, KL: tl.constexpr):
    """∂loss/∂log π, of the surrogate and the KL."""
    old_logp = tl.load(old + token)
    slope = -_slope(logp, old_logp, tl.load(c + token), a, b, cap, SURROGATE)
    if KL is not None:
        slope += tl.load(kl_weight + token) * _kl_slope(logp, old_logp, tl.load(ref + token), KL)
    return slope


@triton.jit
def _gradient(
    z, bias, shift, targets, lse, entropy, g, h, V, n, inverse_temperature, softcap,
    SOFTCAP: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """(g(1_y − p) − h·p(log p + H))/temperature·cap′, in the place of z."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    shifts = tl.load(shift + token)
    base = _capped(shifts, softcap, SOFTCAP)
    lse2 = (tl.load(lse + token) - base * inverse_temperature) * LOG2E
    v = _values(z, bias, row, token, V, n, shifts, softcap, SOFTCAP)
    log2_p = v * (inverse_temperature * LOG2E) - lse2[None, :]
    p = tl.exp2(log2_p)
    y = tl.load(targets + token).to(tl.int32)
    if g is None:
        gs = tl.zeros((TOKENS,), tl.float32)
    else:
        gs = tl.load(g + token) * inverse_temperature
    alive = gs != 0
    if h is None:
        d = p * (-gs)[None, :]
    else:
        hs = tl.load(h + token) * inverse_temperature
        alive = alive | (hs != 0)
        d = p * ((-gs - hs * tl.load(entropy + token))[None, :] - (hs * LN2)[None, :] * log2_p)
    d = tl.where(row[:, None] == y[None, :], d + gs[None, :], d)
    if SOFTCAP:
        t = (v + base[None, :]) / softcap
        d = d * (1 - t * t)
    d = tl.where(alive[None, :], d, 0.0)
    place = z + row[:, None].to(tl.int64) * n + token[None, :]
    tl.store(place, d.to(z.dtype.element_ty), mask=(row < V)[:, None])


@triton.jit
def _values(z, bias, row, token, end, n, shifts, softcap, SOFTCAP: tl.constexpr):
    """v = cap(raw) − cap(shift) [rows, tokens], so that k·v is the exponent; FLOOR from the row `end` on."""
    here = (row < end)[:, None]
    v = tl.load(z + row[:, None].to(tl.int64) * n + token[None, :], mask=here, other=FLOOR).to(tl.float32)
    if bias is not None:
        v += tl.load(bias + row, mask=row < end, other=0.0).to(tl.float32)[:, None]
        v = tl.where(v < FLOOR, FLOOR, v)  # not tl.maximum, which would hide a NaN
    if SOFTCAP:
        v = _capped(v + shifts[None, :], softcap, SOFTCAP) - _capped(shifts, softcap, SOFTCAP)[None, :]
        v = tl.where(here, v, FLOOR)
    return v


@triton.jit
def _capped(raw, softcap, SOFTCAP: tl.constexpr):
    """softcap·tanh(raw/softcap)"""
    if SOFTCAP:
        return softcap * (2 * tl.sigmoid(2 * raw / softcap) - 1)
    else:
        return raw


@triton.jit
def _merge(m, s, u, k):
    """The sums of all rows, counted from one maximum."""
    top = tl.max(m, 0)
    change = (m - top[None, :]) * k
    scale = tl.exp2(change)
    return top, tl.sum(scale * s, 0), tl.sum(scale * (u + s * change), 0)


@triton.jit
def _slope(logp, old, c, a, b, cap, SURROGATE: tl.constexpr):
    """∂φ/∂log π: `objective.surrogate`, in its words. a, b, cap are the options in the order of SLOPES."""
    free = logp - old
    in_range = tl.abs(free) <= LIMIT
    log_ratio = tl.minimum(tl.maximum(free, -LIMIT), LIMIT)
    ratio = tl.exp(log_ratio)
    positive = c > 0
    if SURROGATE == "ppo_clip" or SURROGATE == "dual_clip":
        full = ratio * c
        bound = tl.minimum(tl.maximum(ratio, 1 - a), 1 + b) * c
        slope = tl.where((full <= bound) & in_range, full, 0.0)
        if SURROGATE == "dual_clip":
            slope = tl.where((c < 0) & (tl.minimum(full, bound) < cap * c), 0.0, slope)
    elif SURROGATE == "cispo":
        slope = tl.minimum(ratio, a) * c
    elif SURROGATE == "sapo":
        x = tl.where(positive, a, b) * (ratio - 1)
        slope = 4 * tl.sigmoid(x) * tl.sigmoid(-x) * ratio * c
    elif SURROGATE == "aspo":
        masked = tl.where(positive, ratio > 1 + b, ratio < 1 - a)
        slope = tl.where(masked, 0.0, tl.minimum(tl.where(positive, 1 / ratio, ratio), cap) * c)
    elif SURROGATE == "dppo_tv" or SURROGATE == "dppo_kl":
        p, q = tl.exp(logp), tl.exp(old)
        if SURROGATE == "dppo_tv":
            masked = tl.where(positive, p - q > b, p - q < -a)
        else:
            kl = -q * log_ratio + (1 - q) * tl.log((1 - q + 1e-8) / (1 - p + 1e-8))
            masked = tl.where(positive, (kl > b) & (p > q), (kl > a) & (p < q))
        slope = tl.where(masked, 0.0, tl.minimum(ratio, cap) * c)
    else:
        tl.static_assert(SURROGATE == "reinforce")
        slope = c
    return slope


@triton.jit
def _kl_slope(logp, old, ref, KL: tl.constexpr):
    """∂/∂log π of `objective.regularizer`'s estimator KL."""
    if KL == "k1":
        slope = logp - logp + 1.0
    elif KL == "k2":
        slope = logp - ref
    else:
        tl.static_assert(KL == "k3" or KL == "k3_ratio")
        d = tl.minimum(tl.maximum(ref - logp, -LIMIT), LIMIT)
        slope = tl.where(tl.abs(ref - logp) <= LIMIT, 1 - tl.exp(d), 0.0)
        if KL == "k3_ratio":
            free = logp - old
            ratio = tl.exp(tl.minimum(tl.maximum(free, -LIMIT), LIMIT))
            slope = ratio * (slope + tl.where(tl.abs(free) <= LIMIT, tl.exp(d) - 1 - d, 0.0))
    return slope

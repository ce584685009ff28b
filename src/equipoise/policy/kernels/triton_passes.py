"""What is done to a chunk of logits, in Triton: `passes`, the same functions, without a copy of the chunk.

One read makes the sums, one read and one write the gradient. The sums of a token are kept per thread, each with its own
running maximum, meet once at the end of a program's share of the vocabulary, and then in a second small kernel.
Exponents are in base 2, the hardware's own: k = log₂e/temperature. No atomics: the same numbers give the same bits.
Chunks are multiples of TOKENS tokens.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from equipoise.objective.surrogate import LIMIT as RATIO_LIMIT
from equipoise.policy.kernels.passes import Chunk
from equipoise.policy.kernels.pull import SLOPES, Pull

FLOOR = tl.constexpr(-1e30)  # stands for −∞, whose differences and products with 0 are not numbers
LIMIT = tl.constexpr(RATIO_LIMIT)
LN2 = tl.constexpr(math.log(2))
LOG2E = tl.constexpr(1 / math.log(2))

TOKENS = 64  # of one program: in bfloat16 one line of the cache
ROWS, DEPTH, WARPS = 32, 8, 8  # of the sums: rows of logits side by side and in one thread
SHARES = 16  # of the vocabulary, each summed by a program of its own
GRADIENT_ROWS, GRADIENT_WARPS = 128, 8


def target_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, out: Tensor) -> None:
    """See `passes`; NaN for a target that is no row of the weight."""
    _target_logits[(len(hidden),)](
        hidden, weight, bias, targets, out, hidden.shape[1], len(weight), hidden.stride(0), weight.stride(0), BLOCK=1024
    )


def statistics(chunk: Chunk, logprobs: Tensor, entropy: Tensor, lse: Tensor) -> None:
    """See `passes`."""
    V, n = chunk.z.shape
    step = ROWS * DEPTH
    share = triton.cdiv(triton.cdiv(V, step), SHARES) * step
    shares = triton.cdiv(V, share)
    sums = chunk.shift.new_empty(3, shares, n)
    _sums[(n // TOKENS, shares)](
        chunk.z, chunk.bias, chunk.shift, sums, V, n, share, *_numbers(chunk),
        SOFTCAP=_has_cap(chunk), ROWS=ROWS, DEPTH=DEPTH, TOKENS=TOKENS, num_warps=WARPS,
    )  # fmt: skip
    _statistics[(n // TOKENS,)](
        sums, shares, chunk.own, chunk.shift, logprobs, entropy, lse, n, *_numbers(chunk),
        SOFTCAP=_has_cap(chunk), SHARES=triton.next_power_of_2(shares), TOKENS=TOKENS,
    )  # fmt: skip


def gradient_(chunk: Chunk, lse: Tensor, entropy: Tensor, g: Tensor | None, h: Tensor | None) -> None:
    """See `passes`."""
    V, n = chunk.z.shape
    _gradient[(n // TOKENS, triton.cdiv(V, GRADIENT_ROWS))](
        chunk.z, chunk.bias, chunk.shift, chunk.targets, lse, entropy, g, h, V, n, *_numbers(chunk),
        SOFTCAP=_has_cap(chunk), ROWS=GRADIENT_ROWS, TOKENS=TOKENS, num_warps=GRADIENT_WARPS,
    )  # fmt: skip


def loss_gradient_(chunk: Chunk, pull: Pull, logprobs: Tensor, entropy: Tensor) -> None:
    """See `passes`."""
    lse, g = torch.empty_like(logprobs), torch.empty_like(logprobs)
    h = None if pull.entropy_weight is None else torch.empty_like(logprobs)
    statistics(chunk, logprobs, entropy, lse)
    _slopes[(len(logprobs) // TOKENS,)](
        logprobs, entropy, pull.old, pull.c, pull.ref, pull.kl_weight, pull.entropy_weight, g, h, *_options(pull),
        KL=pull.kl_estimator, TOKENS=TOKENS,
    )  # fmt: skip
    gradient_(chunk, lse, entropy, g, h)


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
    rows = tl.arange(0, STEP)
    whole = (end - begin) // STEP
    for i in range(whole):
        v = _values(z, bias, begin + i * STEP + rows, token, V, n, shifts, softcap, SOFTCAP, False)
        m, s, u = _fold(tl.reshape(v, (DEPTH, ROWS, TOKENS)), m, s, u, k)
    if begin + whole * STEP < end:
        v = _values(z, bias, begin + whole * STEP + rows, token, end, n, shifts, softcap, SOFTCAP, True)
        m, s, u = _fold(tl.reshape(v, (DEPTH, ROWS, TOKENS)), m, s, u, k)
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
def _slopes(
    logprobs, entropy, old, c, ref, kl_weight, entropy_weight, g, h, a, b, cap,
    SURROGATE: tl.constexpr, KL: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """∂loss/∂log π and ∂loss/∂entropy; 0 for tokens whose numbers are not finite."""
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    logp, old_logp = tl.load(logprobs + token), tl.load(old + token)
    slope = -_slope(logp, old_logp, tl.load(c + token), a, b, cap, SURROGATE)
    if KL is not None:
        slope += tl.load(kl_weight + token) * _kl_slope(logp, old_logp, tl.load(ref + token), KL)
    finite = tl.abs(logp - old_logp) < float("inf")
    if entropy_weight is not None:
        finite = finite & (tl.abs(tl.load(entropy + token)) < float("inf"))
        tl.store(h + token, tl.where(finite, -tl.load(entropy_weight), 0.0))
    tl.store(g + token, tl.where(finite, slope, 0.0))


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
    v = _values(z, bias, row, token, V, n, shifts, softcap, SOFTCAP, True)
    log2_p = tl.maximum(v * (inverse_temperature * LOG2E) - lse2[None, :], FLOOR)
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
def _values(z, bias, row, token, V, n, shifts, softcap, SOFTCAP: tl.constexpr, TAIL: tl.constexpr):
    """v = cap(raw) − cap(shift) [rows, tokens], so that k·v is the exponent; −∞ past the vocabulary's end."""
    place = z + row[:, None].to(tl.int64) * n + token[None, :]
    v = tl.load(place, mask=(row < V)[:, None], other=float("-inf")) if TAIL else tl.load(place)
    v = v.to(tl.float32)
    if bias is not None:
        v += tl.load(bias + row, mask=row < V, other=0.0).to(tl.float32)[:, None]
    if SOFTCAP:
        base = _capped(shifts, softcap, SOFTCAP)
        v = _capped(v + shifts[None, :], softcap, SOFTCAP) - base[None, :]
        v = tl.where((row < V)[:, None], v, float("-inf")) if TAIL else v
    return v


@triton.jit
def _capped(raw, softcap, SOFTCAP: tl.constexpr):
    """softcap·tanh(raw/softcap)"""
    if SOFTCAP:
        return softcap * (2 * tl.sigmoid(2 * raw / softcap) - 1)
    else:
        return raw


@triton.jit
def _fold(v, m, s, u, k):
    """Add a block [depth, rows, tokens] to the running maxima m, s = Σ 2^k(v−m) and u = Σ 2^k(v−m)·k(v−m)."""
    top = tl.maximum(m, tl.max(v, 0))
    d = v * k - (top * k)[None, :, :]
    e = tl.exp2(d)  # NaN where v is; tl.maximum hides it only in u
    change = (m - top) * k
    scale = tl.exp2(change)
    u = scale * (u + s * change) + tl.sum(e * tl.maximum(d, FLOOR), 0)
    return top, scale * s + tl.sum(e, 0), u


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

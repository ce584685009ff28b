"""What is done to a chunk of logits, in Triton: `passes`, the same three functions, in one read or two and no copies.

One program has one row. Sums are kept per thread, each with its own running maximum, and meet once at the row's end.
A row is read forwards for its sums and backwards for its gradient: what was read last is still in the cache. With one
program on a multiprocessor all the rows in flight fit there, and the second reading costs little.
Exponents are in base 2, the hardware's own: x₂ = x·log₂e. No atomics: the same numbers give the same bits.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from equipoise.objective.surrogate import LIMIT as RATIO_LIMIT
from equipoise.policy.kernels.passes import Softmax
from equipoise.policy.kernels.pull import SLOPES, Pull

FLOOR = tl.constexpr(-1e30)  # stands for −∞, whose differences are not numbers
LIMIT = tl.constexpr(RATIO_LIMIT)
LN2 = tl.constexpr(math.log(2))
LOG2E = tl.constexpr(1 / math.log(2))


class Tile(NamedTuple):
    """How a pass is laid out on the GPU; the ones below were the fastest of those tried on an H200."""

    block: int  # logits in one step of a program
    warps: int
    stages: int  # steps whose loads are in flight


STATISTICS, GRADIENT, LOSS = Tile(8192, 16, 1), Tile(8192, 8, 1), Tile(16384, 32, 1)
PROGRAMS = 1  # of the loss pass, on a multiprocessor


def statistics(z: Tensor, targets: Tensor, softmax: Softmax, logprobs: Tensor, entropy: Tensor, lse: Tensor) -> None:
    """See `passes`."""
    _statistics[(len(z),)](
        z, targets, logprobs, entropy, lse, *_shape(z), *_numbers(softmax), **_layout(STATISTICS, z, softmax)
    )


def gradient_(
    z: Tensor, targets: Tensor, softmax: Softmax, lse: Tensor, entropy: Tensor, g: Tensor | None, h: Tensor | None
) -> None:
    """See `passes`."""
    layout = _layout(GRADIENT, z, softmax)
    _gradient[(len(z), triton.cdiv(z.shape[1], layout["BLOCK"]))](
        z, targets, lse, entropy, g, h, *_shape(z), *_numbers(softmax), **layout
    )


def loss_gradient_(z: Tensor, targets: Tensor, softmax: Softmax, pull: Pull, logprobs: Tensor, entropy: Tensor) -> None:
    """See `passes`."""
    name, options = pull.surrogate.name, pull.surrogate.options
    numbers = [float(options[key]) for key in SLOPES[name]]
    _loss_gradient[(min(len(z), PROGRAMS * _multiprocessors(z.device)),)](
        z, len(z), targets, logprobs, entropy, pull.old, pull.c, pull.ref, pull.kl_weight, pull.entropy_weight,
        *_shape(z), *_numbers(softmax), *numbers, *[0.0] * (3 - len(numbers)),
        SURROGATE=f"{name}_{options['divergence']}" if name == "dppo" else name, KL=pull.kl_estimator,
        **_layout(LOSS, z, softmax),
    )  # fmt: skip


def _shape(z: Tensor) -> tuple[int, int]:
    return z.shape[1], z.stride(0)


def _numbers(softmax: Softmax) -> tuple[float, float]:
    return 1 / softmax.temperature, softmax.softcap or 0.0


def _layout(tile: Tile, z: Tensor, softmax: Softmax) -> dict[str, Any]:
    block = min(tile.block, max(256, triton.next_power_of_2(z.shape[1])))
    return {
        "BLOCK": block,
        "LANE": 16 // z.element_size(),  # the widest load of one thread
        "STAGES": tile.stages,
        "SOFTCAP": softmax.softcap is not None,
        "num_warps": max(4, tile.warps * block // tile.block),
    }


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@triton.jit
def _statistics(
    z, targets, logprobs, entropy, lse, V, stride, inverse_temperature, softcap,
    SOFTCAP: tl.constexpr, BLOCK: tl.constexpr, LANE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    z += row * stride
    x2_target = _target(z, tl.load(targets + row), V, inverse_temperature, softcap, SOFTCAP)
    top, log2_sum, H = _sums(z, V, inverse_temperature, softcap, SOFTCAP, BLOCK, LANE, STAGES)
    tl.store(logprobs + row, LN2 * (x2_target - top - log2_sum))
    tl.store(entropy + row, H)
    tl.store(lse + row, LN2 * (top + log2_sum))


@triton.jit
def _gradient(
    z, targets, lse, entropy, g, h, V, stride, inverse_temperature, softcap,
    SOFTCAP: tl.constexpr, BLOCK: tl.constexpr, LANE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    z += row * stride
    o = tl.program_id(1) * BLOCK + _offsets(BLOCK, LANE)
    g_row = 0.0 if g is None else tl.load(g + row)
    h_row = 0.0 if h is None else tl.load(h + row)
    H, lse2, y = tl.load(entropy + row), tl.load(lse + row) * LOG2E, tl.load(targets + row)
    zs = tl.load(z + o, mask=o < V, other=0.0)
    d = _block_gradient(zs, o, y, lse2, 0.0, H, g_row, h_row, inverse_temperature, softcap, SOFTCAP, h is not None)
    tl.store(z + o, d.to(z.dtype.element_ty), mask=o < V)


@triton.jit
def _loss_gradient(
    z, n, targets, logprobs, entropy, old, c, ref, kl_weight, entropy_weight, V, stride, inverse_temperature, softcap,
    a, b, cap, SURROGATE: tl.constexpr, KL: tl.constexpr, SOFTCAP: tl.constexpr, BLOCK: tl.constexpr,
    LANE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    for i in range(tl.program_id(0), n, tl.num_programs(0)):
        row = tl.cast(i, tl.int64)
        y = tl.load(targets + row)
        x2_target = _target(z + row * stride, y, V, inverse_temperature, softcap, SOFTCAP)
        top, log2_sum, H = _sums(z + row * stride, V, inverse_temperature, softcap, SOFTCAP, BLOCK, LANE, STAGES)
        logp = LN2 * (x2_target - top - log2_sum)
        tl.store(logprobs + row, logp)
        tl.store(entropy + row, H)

        old_row = tl.load(old + row)
        g = -_slope(logp, old_row, tl.load(c + row), a, b, cap, SURROGATE)
        if KL is not None:
            g += tl.load(kl_weight + row) * _kl_slope(logp, old_row, tl.load(ref + row), KL)
        h = 0.0
        finite = tl.abs(logp - old_row) < float("inf")
        if entropy_weight is not None:
            h = -tl.load(entropy_weight)
            finite = finite & (tl.abs(H) < float("inf"))
        g = tl.where(finite, g, 0.0)
        h = tl.where(finite, h, 0.0)

        tl.debug_barrier()  # the target's logit has been read by all threads before any overwrites it
        _overwrite(
            z + row * stride, y, top, log2_sum, H, g, h, V, inverse_temperature, softcap,
            SOFTCAP, entropy_weight is not None, BLOCK, LANE, STAGES,
        )  # fmt: skip


@triton.jit
def _overwrite(
    z, y, top, log2_sum, H, g, h, V, inverse_temperature, softcap, SOFTCAP: tl.constexpr, ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr, LANE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A row of logits becomes its gradient, from the end to the beginning."""
    offsets = _offsets(BLOCK, LANE)
    whole = V // BLOCK
    if whole * BLOCK < V:
        o = whole * BLOCK + offsets
        zs = tl.load(z + o, mask=o < V, other=0.0)
        d = _block_gradient(zs, o, y, top, log2_sum, H, g, h, inverse_temperature, softcap, SOFTCAP, ENTROPY)
        tl.store(z + o, d.to(z.dtype.element_ty), mask=o < V)
    for i in tl.range(0, whole, num_stages=STAGES):
        o = (whole - 1 - i) * BLOCK + offsets
        zs = tl.load(z + o, eviction_policy="evict_first")
        d = _block_gradient(zs, o, y, top, log2_sum, H, g, h, inverse_temperature, softcap, SOFTCAP, ENTROPY)
        tl.store(z + o, d.to(z.dtype.element_ty), eviction_policy="evict_first")


@triton.jit
def _offsets(BLOCK: tl.constexpr, LANE: tl.constexpr):
    """[BLOCK/LANE, LANE]: a row of these is one thread's, so sums along it need no other thread."""
    return tl.arange(0, BLOCK // LANE)[:, None] * LANE + tl.arange(0, LANE)[None, :]


@triton.jit
def _exponents(z, inverse_temperature, softcap, SOFTCAP: tl.constexpr):
    """x₂, and cap′(z)."""
    z = z.to(tl.float32)
    slope = 1.0
    if SOFTCAP:
        t = 2 * tl.sigmoid(2 * z / softcap) - 1
        slope = 1 - t * t
        z = softcap * t
    x2 = z * (inverse_temperature * LOG2E)
    return tl.where(x2 < FLOOR, FLOOR, x2), slope  # not tl.maximum, which would hide a NaN


@triton.jit
def _target(z, y, V, inverse_temperature, softcap, SOFTCAP: tl.constexpr):
    """x₂ of the target; NaN for a target that is no column, so that the token is flagged and does not pull."""
    zy = tl.load(z + y, mask=(y >= 0) & (y < V), other=float("nan"))
    return _exponents(zy, inverse_temperature, softcap, SOFTCAP)[0]


@triton.jit
def _sums(
    z, V, inverse_temperature, softcap, SOFTCAP: tl.constexpr, BLOCK: tl.constexpr, LANE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """max x₂, log₂ Σ 2^(x₂ − max) and the entropy (nats) of a row. The first two stay apart: in a row that is nearly
    certain their sum would have lost the digits of the second."""
    offsets = _offsets(BLOCK, LANE)
    m = tl.full((BLOCK // LANE,), FLOOR, tl.float32)
    s = tl.zeros((BLOCK // LANE,), tl.float32)
    u = tl.zeros((BLOCK // LANE,), tl.float32)
    whole = V // BLOCK
    for i in tl.range(0, whole, num_stages=STAGES):
        zs = tl.load(z + i * BLOCK + offsets, eviction_policy="evict_last")
        m, s, u = _fold(_exponents(zs, inverse_temperature, softcap, SOFTCAP)[0], m, s, u)
    if whole * BLOCK < V:
        o = whole * BLOCK + offsets
        x2 = _exponents(tl.load(z + o, mask=o < V, other=0.0), inverse_temperature, softcap, SOFTCAP)[0]
        m, s, u = _fold(tl.where(o < V, x2, FLOOR), m, s, u)
    top = tl.max(m, 0)
    scale = tl.exp2(m - top)
    total = tl.sum(scale * s, 0)
    # H = log Σe^x − Σpx, with x counted from the maximum: near-certain rows would otherwise lose all their digits
    weighted = tl.sum(scale * (u + s * (m - top)), 0)
    log2_total = tl.log2(total)
    return top, log2_total, LN2 * (log2_total - weighted / total)


@triton.jit
def _fold(x2, m, s, u):
    """Add a block to the running maxima m, s = Σ 2^(x₂−m) and u = Σ 2^(x₂−m)(x₂−m)."""
    top = tl.maximum(m, tl.max(x2, 1))
    d = x2 - top[:, None]
    e = tl.exp2(d)
    scale = tl.exp2(m - top)
    u = scale * (u + s * (m - top)) + tl.sum(e * d, 1)
    return top, scale * s + tl.sum(e, 1), u


@triton.jit
def _block_gradient(
    zs, o, y, top, log2_sum, H, g, h, inverse_temperature, softcap, SOFTCAP: tl.constexpr, ENTROPY: tl.constexpr
):
    """g(1_y − p) − h·p(log p + H), through the temperature and the cap."""
    x2, slope = _exponents(zs, inverse_temperature, softcap, SOFTCAP)
    log2_p = x2 - top - log2_sum
    p = tl.exp2(log2_p)
    if ENTROPY:
        d = -p * (g + h * H + (h * LN2) * log2_p)
    else:
        d = -p * g
    d = tl.where(o == y, d + g, d) * inverse_temperature
    if SOFTCAP:
        d = d * slope
    return tl.where((g != 0) | (h != 0), d, 0.0)


@triton.jit
def _slope(logp, old, c, a, b, cap, SURROGATE: tl.constexpr):
    """∂φ/∂log π of one token: `objective.surrogate`, in its words. a, b, cap are the options in the order of SLOPES."""
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

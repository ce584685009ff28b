"""∂loss/∂log π of a token, inside Triton kernels:
`token_terms.slopes` for the surrogates of `token_terms.SLOPES`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from equipoise.objective.surrogate import LIMIT as RATIO_LIMIT

LIMIT = tl.constexpr(RATIO_LIMIT)


@triton.jit
def loss_slope(
    token: tl.tensor,
    logp: tl.tensor,
    old: tl.tensor,
    c: tl.tensor,
    ref: tl.tensor,
    kl_weight: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    cap: tl.tensor,
    SURROGATE: tl.constexpr,
    KL: tl.constexpr,
) -> tl.tensor:
    """∂loss/∂log π, of the surrogate and the KL."""
    old_logp = tl.load(old + token)
    slope = -_slope(logp, old_logp, tl.load(c + token), a, b, cap, SURROGATE)
    if KL is not None:
        slope += tl.load(kl_weight + token) * _kl_slope(logp, old_logp, tl.load(ref + token), KL)
    return slope


@triton.jit
def _slope(
    logp: tl.tensor,
    old: tl.tensor,
    c: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    cap: tl.tensor,
    SURROGATE: tl.constexpr,
) -> tl.tensor:
    """∂φ/∂log π: `objective.surrogate`, in its words.
    a, b, cap are the options in the order of SLOPES.
    """
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
    elif SURROGATE == "symmetric_clip":
        slope = tl.where((ratio < 1 - a) | (ratio > 1 + b), 0.0, ratio * c)
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
def _kl_slope(logp: tl.tensor, old: tl.tensor, ref: tl.tensor, KL: tl.constexpr) -> tl.tensor:
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

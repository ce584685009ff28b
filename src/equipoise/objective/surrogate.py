"""Surrogates: what each token contributes to the objective (to maximise),
and its exact derivative (formulas.md §5).

c is the coefficient of the token (weight × advantage): every surrogate here is positively
homogeneous in the advantage, so the weight folds into it exactly. A surrogate returns φ, ∂φ/∂log π
in closed form, and where it clipped. `loss` sums. Sequence-level surrogates are written per token
as well: φ_it is what response i contributes at each of its T_i tokens. What is the same at all
tokens of a response stays one number (`PerResponse`): a pass over the tokens is what costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.objective.chunks import Runs, response_sum

LIMIT = 20.0  # |log ρ| is clamped here before exp; beyond it a differentiated ρ has no gradient


def ones_where(compare: Callable[..., Tensor], a: Tensor, b: Tensor | float) -> Tensor:
    """1 where the comparison holds, else 0, in a's own dtype.

    Masks are numbers here, not bools: on the CPU such a comparison and the product with it take a
    tenth of the time that a comparison to bool and `masked_fill` or `torch.where` take.
    """
    return compare(a, b, out=torch.empty_like(a))


class PerResponse(NamedTuple):
    """A number that all tokens of a response have."""

    each: Tensor  # [rows]


@dataclass(frozen=True)
class Tokens:
    """The tokens of a micro-batch, flat."""

    raw_logp: Tensor  # [n] log π, detached
    raw_old: Tensor  # [n] log π_old
    free_log_ratio: Tensor  # [n] log ρ, 0 where it is not finite
    # [n] coefficient, 0 where a log-probability is not finite; None with `response_c`
    token_c: Tensor | None
    response: Tensor  # [n] row of each token in the batch
    lengths: Tensor  # [rows] tokens of each response of the batch
    # The least and the largest log ρ where the host has looked and neither is beyond ±LIMIT: then
    # every log-probability is finite and nothing below needs cleaning or clamping, which would copy
    # all tokens.
    bounds: tuple[Tensor, Tensor] | None = None
    runs: Runs | None = None  # of `response`, where sums and gathers may use them
    response_c: Tensor | None = None  # [rows] the coefficient that all tokens of a response have
    # see `sequence_slope`
    cancelled: Callable[[Tokens, Tensor], Tensor | PerResponse] | None = None

    @cached_property
    def logp(self) -> Tensor:
        return self.raw_logp if self.bounds else self.raw_logp.nan_to_num(0.0, 0.0, 0.0)

    @cached_property
    def old(self) -> Tensor:
        return self.raw_old if self.bounds else self.raw_old.nan_to_num(0.0, 0.0, 0.0)

    def log_quotient(self, p: Tensor, q: Tensor) -> Tensor:
        """[n] log p/q of two log-probabilities, 0 where one is not finite:
        such a token says nothing of the rest of its response.
        """
        return p - q if self.bounds else (p - q).nan_to_num(0.0, 0.0, 0.0)

    @cached_property
    def log_ratio(self) -> Tensor:
        """log ρ, clamped."""
        return self.free_log_ratio if self.bounds else self.free_log_ratio.clamp(-LIMIT, LIMIT)

    @cached_property
    def out_of_range(self) -> Tensor | None:
        """1 where log ρ was clamped, else 0: ρ is constant there. None where no token was."""
        return None if self.bounds else ones_where(torch.gt, self.free_log_ratio.abs(), LIMIT)

    @cached_property
    def extremes(self) -> tuple[Tensor, Tensor]:
        """The least and the largest log ρ, clamped; +∞ and −∞ where there are no tokens."""
        if self.bounds:
            return self.bounds
        if self.free_log_ratio.numel() == 0:
            nothing = self.free_log_ratio.new_full((), math.inf)
            return nothing, -nothing
        least, most = self.log_ratio.aminmax()
        return least, most

    @cached_property
    def ratio(self) -> Tensor:
        """ρ = π/π_old."""
        return self.log_ratio.exp()

    @cached_property
    def excess(self) -> Tensor:
        """ρ − 1."""
        return self.ratio - 1

    @property
    def coefficient(self) -> Tensor:
        """c: [rows] where one number serves all tokens of a response, else [n]."""
        if self.response_c is not None:
            return self.response_c
        assert self.token_c is not None
        return self.token_c

    def like_coefficient(self, x: Tensor) -> Tensor:
        """[rows] -> the shape of `coefficient`."""
        return self.spread(x) if self.response_c is None else x

    def alike(self, x: Tensor) -> Tensor | PerResponse:
        """A number in the shape of `coefficient`."""
        return x if self.response_c is None else PerResponse(x)

    def at_tokens(self, x: Tensor) -> Tensor:
        """The shape of `coefficient` -> [n].

        What is the same for a whole response is computed once, then spread.
        """
        return self.spread_out(self.alike(x))

    def spread_out(self, x: Tensor | PerResponse) -> Tensor:
        """[n] the number of each token."""
        return self.spread(x.each) if isinstance(x, PerResponse) else x

    @cached_property
    def c(self) -> Tensor:
        """[n] coefficient, 0 where a log-probability is not finite: φ and its slope are then 0."""
        return self.at_tokens(self.coefficient)

    @cached_property
    def sign(self) -> Tensor:
        """1 where c > 0, else −1."""
        return self.at_tokens(_either(self.coefficient, 1.0, -1.0))

    def by_sign(self, positive: float, other: float) -> Tensor | float:
        """One number where c > 0, another elsewhere."""
        return (
            positive
            if positive == other
            else self.at_tokens(_either(self.coefficient, positive, other))
        )

    def sums(self, x: Tensor | PerResponse) -> Tensor:
        """[R] x summed over each run where the tokens of one have one coefficient, else [n] x."""
        if self.runs is None or self.response_c is None:
            return self.spread_out(x)
        if isinstance(x, PerResponse):
            return self.at_sums(x.each) * torch.from_numpy(self.runs.count)
        return self.runs.each_sum(x)

    def at_sums(self, x: Tensor) -> Tensor:
        """The shape of `coefficient` -> that of `sums`."""
        if self.runs is None or self.response_c is None:
            return self.at_tokens(x)
        return x.index_select(0, torch.from_numpy(self.runs.row))

    def sequence_slope(self, s: Tensor) -> Tensor | PerResponse:
        """s_i·c, or what a cancellation over the groups makes of these weights; s [rows]."""
        if self.cancelled is not None:
            return self.cancelled(self, s)
        return self.alike(self.like_coefficient(s) * self.coefficient)

    def weighed(self, factor: Tensor) -> Tokens:
        """The same tokens with their coefficients multiplied by a factor [n]."""
        return replace(self, token_c=self.c * factor, response_c=None)

    def response_sum(self, x: Tensor) -> Tensor:
        """[n] -> [rows]: sums over whole responses; 0 for those that are not here."""
        return response_sum(x, self.response, len(self.lengths), self.runs)

    def response_mean(self, x: Tensor) -> Tensor:
        return self.response_sum(x) / self.lengths.clamp(min=1)

    def spread(self, x: Tensor) -> Tensor:
        """[rows] -> [n]: each token sees its response's number."""
        if self.runs is not None:
            return self.runs.spread(x)
        return x.index_select(0, self.response)

    @cached_property
    def sequence_log_ratio(self) -> Tensor:
        """[rows] mean log ρ of each response."""
        return self.response_mean(self.free_log_ratio)

    @cached_property
    def sequence_ratio(self) -> Tensor:
        """[rows] s_i = exp(mean_t log ρ), the exponent clamped."""
        return self.sequence_log_ratio.clamp(-LIMIT, LIMIT).exp()


def _either(c: Tensor, positive: float, other: float) -> Tensor:
    """One number where c > 0, another elsewhere; exact, for one of the two products is 0."""
    side = ones_where(torch.gt, c, 0.0)
    return (positive * side).add_(1 - side, alpha=other)


class Terms(NamedTuple):
    """What each token adds: φ, its slope, and whether that was cut."""

    slope: Tensor | PerResponse  # ∂φ/∂log π
    # whose product φ is; None where φ is the slope, and `at_cut` where that was cut
    factors: tuple[Tensor | PerResponse, Tensor | PerResponse | None] | None = None
    # 1 where the gradient was cut, else 0; either where c = 0; None where it never is
    clipped: Tensor | PerResponse | None = None
    at_cut: Tensor | None = None  # the shape of `Tokens.coefficient`


class Summed(NamedTuple):
    """The terms of some tokens, added up."""

    value: Tensor  # 0-dim: Σφ
    slope: Tensor  # the shape of `Tokens.sums`
    low: Tensor  # 0-dim: clipped tokens with c < 0
    high: Tensor  # and with c > 0


def summed(tokens: Tokens, terms: Terms) -> Summed:
    """Where the tokens of a run have one coefficient, one pass over them gives its sum, and the rest
    is a matter of runs.
    """
    slope = tokens.sums(terms.slope)
    nothing = slope.new_zeros(())
    low, high, at_cuts = nothing, nothing, nothing
    if terms.clipped is not None:
        cut, c = tokens.sums(terms.clipped), tokens.at_sums(tokens.coefficient)
        low = cut.dot(ones_where(torch.lt, c, 0.0))
        high = cut.dot(ones_where(torch.gt, c, 0.0))
        if terms.at_cut is not None:
            at_cuts = cut.dot(tokens.at_sums(terms.at_cut))
    value = slope.sum() + at_cuts if terms.factors is None else _product_sum(tokens, *terms.factors)
    return Summed(value, slope, low, high)


def _product_sum(tokens: Tokens, a: Tensor | PerResponse, b: Tensor | PerResponse | None) -> Tensor:
    """Σ a·b over the tokens; 0-dim. What is alike over a response waits for the response's sum."""
    if isinstance(b, PerResponse):
        a, b = b, a
    if b is None:
        return tokens.sums(a).sum() if isinstance(a, PerResponse) else a.sum()
    if isinstance(a, PerResponse):
        return tokens.sums(b).dot(tokens.at_sums(a.each))
    return a.dot(tokens.spread_out(b))


def at_each_token(tokens: Tokens, terms: Terms) -> tuple[Tensor, Tensor]:
    """[n] φ, and [n] its slope."""
    slope = tokens.spread_out(terms.slope)
    if terms.factors is not None:
        a, b = terms.factors
        value = tokens.spread_out(a)
        return value if b is None else value * tokens.spread_out(b), slope
    if terms.clipped is None or terms.at_cut is None:
        return slope, slope
    clipped = tokens.spread_out(terms.clipped)
    return slope + clipped * tokens.at_tokens(terms.at_cut), slope


def clip_counts(tokens: Tokens, terms: Terms) -> tuple[Tensor, Tensor]:
    """How many tokens with c < 0, and how many with c > 0, were clipped; 0-dim."""
    found = summed(tokens, terms)
    return found.low, found.high


def _bound(tokens: Tokens, low: float, high: float) -> Tensor:
    """What ρc must not exceed, in the shape of c: (1+high)c for c > 0, (1−low)c else.

    min(ρc, clip(ρ, 1−low, 1+high)c) is min(ρc, this), for a ratio beyond the other end makes ρc the
    smaller.
    """
    return _either(tokens.coefficient, 1 + high, 1 - low).mul_(tokens.coefficient)


def _cut(slope: Tensor, *where: Tensor | None) -> Tensor:
    """The slope itself, in place, with 0 at the tokens that any of these masks marks."""
    for mask in where:
        if mask is not None:
            slope.addcmul_(slope, mask, value=-1)
    return slope


def _linear(tokens: Tokens, slope: Tensor | PerResponse, clipped: Tensor | None = None) -> Terms:
    """sg(slope)·log π"""
    return Terms(slope, (slope, tokens.logp), clipped)


def ppo_clip(tokens: Tokens, *, low: float = 0.2, high: float = 0.2) -> Terms:
    """min(ρA, clip(ρ, 1−low, 1+high)A)"""
    free, bound = tokens.ratio * tokens.c, _bound(tokens, low, high)
    at_tokens = tokens.at_tokens(bound)
    clipped = ones_where(torch.gt, free, at_tokens)
    if tokens.out_of_range is None:
        return Terms(_cut(free, clipped), None, clipped, at_cut=bound)
    value = torch.minimum(free, at_tokens)  # a ratio beyond ±LIMIT has a value, and no slope
    return Terms(_cut(free, clipped, tokens.out_of_range), (value, None), clipped)


def dual_clip(tokens: Tokens, *, low: float = 0.2, high: float = 0.2, cap: float = 3.0) -> Terms:
    """ppo_clip, and for A < 0 never below cap·A."""
    free, bound = tokens.ratio * tokens.c, tokens.at_tokens(_bound(tokens, low, high))
    clipped = ones_where(torch.gt, free, bound)
    floor = cap * tokens.c.clamp(max=0)  # 0 for A > 0, which no value is below
    below = ones_where(torch.lt, free, floor)
    value = torch.minimum(free, bound).clamp_(min=floor)
    slope = _cut(free, clipped, below, tokens.out_of_range)
    return Terms(slope, (value, None), torch.maximum(clipped, below))


def gspo(tokens: Tokens, *, low: float = 3e-4, high: float = 4e-4) -> Terms:
    """s_i = exp(mean_t log ρ); min(s_iA, clip(s_i)A). The token form:
    every token of i moves s_i alike.
    """
    s = tokens.sequence_ratio
    if tokens.cancelled:
        return _linear(tokens, tokens.sequence_slope(s))
    free, bound = tokens.like_coefficient(s) * tokens.coefficient, _bound(tokens, low, high)
    clipped = ones_where(torch.gt, free, bound)
    value = torch.minimum(free, bound)
    far = None
    if not tokens.bounds:  # a mean lies between the extremes
        beyond = ones_where(torch.gt, tokens.sequence_log_ratio.abs(), LIMIT)
        far = tokens.like_coefficient(beyond)
    slope = _cut(free, clipped, far)
    return Terms(tokens.alike(slope), (tokens.alike(value), None), tokens.alike(clipped))


def gmpo(tokens: Tokens, *, low: float = 0.4, high: float = 0.4) -> Terms:
    """A_i · exp(mean_t δ_t), δ_t = min(log ρ, high) for A > 0 and max(log ρ, −low) for A < 0."""
    bound = tokens.by_sign(high, low)
    delta = tokens.sign * tokens.log_ratio  # ±δ
    clipped = ones_where(torch.gt, delta, bound)
    delta.clamp_(max=bound)
    if tokens.response_c is None:
        mean = tokens.response_mean(delta.mul_(tokens.sign))
    else:
        mean = tokens.response_mean(delta) * _either(tokens.response_c, 1.0, -1.0)
    value = tokens.sequence_slope(mean.exp())
    if tokens.cancelled:
        return _linear(tokens, value)
    slope = value.clone() if isinstance(value, Tensor) else tokens.spread_out(value)
    return Terms(_cut(slope, clipped, tokens.out_of_range), (value, None), clipped)


def cispo(tokens: Tokens, *, cap: float = 5.0) -> Terms:
    """sg(min(ρ, cap))·A·log π. verl's cap is 1 + ε_high, TRL's is ε_high:
    here it is the cap itself.
    """
    slope = tokens.ratio.clamp(max=cap).mul_(tokens.c)
    return _linear(tokens, slope, ones_where(torch.gt, tokens.ratio, cap))


def sapo(tokens: Tokens, *, tau_positive: float = 1.0, tau_negative: float = 1.05) -> Terms:
    """(4/τ)·sigmoid(τ(ρ−1))·A, τ by the sign of A."""
    gate = (tokens.excess * tokens.by_sign(tau_positive, tau_negative)).sigmoid_()
    inverse = _either(tokens.coefficient, 4 / tau_positive, 4 / tau_negative)
    scale = tokens.alike(inverse.mul_(tokens.coefficient))
    slope = (
        gate.addcmul(gate, gate, value=-1)
        .mul_(tokens.ratio)
        .mul_(tokens.at_tokens(4 * tokens.coefficient))
    )
    return Terms(_cut(slope, tokens.out_of_range), (gate, scale))


def vespo(
    tokens: Tokens,
    *,
    k_positive: float = 2.0,
    lam_positive: float = 3.0,
    k_negative: float = 3.0,
    lam_negative: float = 2.0,
) -> Terms:
    """sg(φ(W))·A·log π, φ(W) = e^λ W^k e^{−λW}, W = Π_t ρ, (k, λ) by the sign of A.

    log W is kept in [log 1e-8, 20], as in the method's own code.
    """
    log_w = tokens.response_sum(tokens.log_ratio).clamp(math.log(1e-8), LIMIT)
    A = tokens.response_sum(tokens.c) if tokens.response_c is None else tokens.response_c
    k, lam = _either(A, k_positive, k_negative), _either(A, lam_positive, lam_negative)
    phi = torch.exp(lam + k * log_w - lam * log_w.exp())
    return _linear(tokens, tokens.sequence_slope(phi))


def aspo(tokens: Tokens, *, low: float = 0.2, high: float = 0.2, cap: float = 3.0) -> Terms:
    """A > 0: weight sg(min(1/ρ, cap)), masked where ρ > 1+high. A < 0:
    sg(min(ρ, cap)), masked where ρ < 1−low.
    """
    weight = (tokens.by_sign(-1.0, 1.0) * tokens.log_ratio).exp_()
    masked = ones_where(torch.lt, weight, tokens.by_sign(1 / (1 + high), 1 - low))
    return Terms(_cut(weight.clamp_(max=cap).mul_(tokens.c), masked), clipped=masked)


def dppo(
    tokens: Tokens,
    *,
    divergence: str = "tv",
    low: float = 0.2,
    high: float = 0.2,
    cap: float = 20.0,
) -> Terms:
    """sg(min(ρ, cap))·A·log π while the token's binary divergence from π_old,
    in the direction A pushes, is in bounds.

    "tv": |π − π_old|. "kl": KL of the two-outcome distributions (this token, any other), whose
    bounds are 0.05 unless given. The bounds are the paper's (arXiv 2602.04879, App. E: δ = 0.2 and
    0.05).
    """
    q = tokens.old.exp()
    # π − π_old = π_old(ρ − 1), unless ρ was clamped
    moved = q * tokens.excess if tokens.bounds else tokens.logp.exp() - q
    pushed = moved * tokens.sign  # how far π has gone the way A pushes
    bound = tokens.by_sign(high, low)
    if divergence == "tv":
        masked = ones_where(torch.gt, pushed, bound)
    else:
        p = tokens.logp.exp()
        kl = -q * tokens.log_ratio + (1 - q) * torch.log((1 - q + 1e-8) / (1 - p + 1e-8))
        masked = ones_where(torch.gt, kl, bound) * ones_where(torch.gt, pushed, 0.0)
    slope = _cut(tokens.ratio.clamp(max=cap).mul_(tokens.c), masked)
    return _linear(tokens, slope, masked)


def reinforce(tokens: Tokens) -> Terms:
    """A·log π"""
    return _linear(tokens, tokens.alike(tokens.coefficient))


def symmetric_clip(tokens: Tokens, *, low: float = 0.2, high: float = 0.2) -> Terms:
    """clip(ρ, 1−low, 1+high)·A: ppo_clip without the min,
    so that both signs lose their gradient at the same ratios.

    A token that several responses share has one ρ:
    it is cut for all or for none, and what cancelled still does.
    """
    clip = tokens.ratio.clamp(1 - low, 1 + high)
    outside = ones_where(torch.ne, tokens.ratio, clip)
    value = clip.mul_(tokens.c)
    return Terms(value.addcmul(value, outside, value=-1), (value, None), outside)


def dfpo(tokens: Tokens, *, ratio: str = "product", low: float = 0.1, high: float = 0.1) -> Terms:
    """sg(s_i)·A·log π at the tokens whose ρ lies in [1−low, 1+high];
    a cancellation transform makes it DFPO.

    s_i = Π_t ρ ("product", TGC's) or exp(mean_t log ρ) ("mean", GSPO's). Without a region the
    estimator has no bound: what pushes a wrong response down never stops, however far it has gone.
    The region is the token's own and looks at no sign, so it cuts a shared token for all responses
    or for none.
    """
    log_s = (
        tokens.response_sum(tokens.free_log_ratio)
        if ratio == "product"
        else tokens.sequence_log_ratio
    )
    s = log_s.clamp(-LIMIT, LIMIT).exp()
    outside = ones_where(torch.ne, tokens.ratio, tokens.ratio.clamp(1 - low, 1 + high))
    slope = tokens.spread_out(tokens.sequence_slope(s))
    return _linear(tokens, _cut(slope, outside), outside)


SURROGATES: dict[str, Callable[..., Terms]] = {
    "ppo_clip": ppo_clip,
    "dual_clip": dual_clip,
    "gspo": gspo,
    "gmpo": gmpo,
    "cispo": cispo,
    "sapo": sapo,
    "vespo": vespo,
    "aspo": aspo,
    "dppo": dppo,
    "reinforce": reinforce,
    "symmetric_clip": symmetric_clip,
    "dfpo": dfpo,
}

# Surrogates that need all tokens of a response at once. Under min_replace and orthogonal, which
# transform the weight they give a response, they are used in the clip-free linear form
# sg(w̃_i)·A_i·log π.
SEQUENCE_LEVEL: frozenset[str] = frozenset({"gspo", "gmpo", "vespo", "dfpo"})

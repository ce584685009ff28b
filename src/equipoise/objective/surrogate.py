"""Surrogates: what each token contributes to the objective (to maximise),
and its exact derivative (formulas.md §5).

c is the coefficient of the token (weight × advantage): every surrogate here is positively
homogeneous in the advantage, so the weight folds into it exactly. A surrogate returns φ, ∂φ/∂log π
in closed form, and where it clipped. `loss` sums. Sequence-level surrogates are written per token
as well: φ_it is what response i contributes at each of its T_i tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.objective.chunks import Runs, response_sum

LIMIT = 20.0  # |log ρ| is clamped here before exp; beyond it a token has no gradient


def ones_where(compare: Callable[..., Tensor], a: Tensor, b: Tensor | float) -> Tensor:
    """1 where the comparison holds, else 0, in a's own dtype.

    Masks are numbers here, not bools: on the CPU such a comparison and the product with it take a
    tenth of the time that a comparison to bool and `masked_fill` or `torch.where` take.
    """
    return compare(a, b, out=torch.empty_like(a))


@dataclass(frozen=True)
class Tokens:
    """The tokens of a micro-batch, flat."""

    raw_logp: Tensor  # [n] log π, detached
    raw_old: Tensor  # [n] log π_old
    free_log_ratio: Tensor  # [n] log ρ, 0 where it is not finite
    # [n] coefficient, 0 where a log-probability is not finite: φ and its slope are then 0 as well
    c: Tensor
    response: Tensor  # [n] row of each token in the batch
    lengths: Tensor  # [rows] tokens of each response of the batch
    # The least and the largest log ρ where the host has looked and neither is beyond ±LIMIT: then
    # every log-probability is finite and nothing below needs cleaning or clamping, which would copy
    # all tokens.
    bounds: tuple[Tensor, Tensor] | None = None
    runs: Runs | None = None  # of `response`, where sums and gathers may use them

    @cached_property
    def logp(self) -> Tensor:
        return self.raw_logp if self.bounds else self.raw_logp.nan_to_num(0.0, 0.0, 0.0)

    @cached_property
    def old(self) -> Tensor:
        return self.raw_old if self.bounds else self.raw_old.nan_to_num(0.0, 0.0, 0.0)

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

    @cached_property
    def positive(self) -> Tensor:
        """1 where c > 0, else 0."""
        return ones_where(torch.gt, self.c, 0.0)

    @cached_property
    def signed(self) -> Tensor:
        """1 where c ≠ 0, else 0."""
        return ones_where(torch.ne, self.c, 0.0)

    @cached_property
    def others(self) -> Tensor:
        """0 where c > 0, else 1."""
        return 1 - self.positive

    @cached_property
    def sign(self) -> Tensor:
        """1 where c > 0, else −1."""
        return self.positive - self.others

    def by_sign(self, positive: float, other: float) -> Tensor | float:
        """One number where c > 0, another elsewhere; exact, for one of the two products is 0."""
        if positive == other:
            return positive
        return (positive * self.positive).add_(self.others, alpha=other)

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


class Terms(NamedTuple):
    value: Tensor  # [n] φ
    slope: Tensor  # [n] ∂φ/∂log π
    # [n] 1 where c ≠ 0 and the gradient was cut, else 0; None where the surrogate never clips
    clipped: Tensor | None
    # [rows] what a sequence-level surrogate weighs a response by
    sequence_weight: Tensor | None = None


def _clip(
    tokens: Tokens, ratio: Tensor, out_of_range: Tensor | None, low: float, high: float
) -> Terms:
    """min(ρc, clip(ρ, 1−low, 1+high)c)"""
    free = ratio * tokens.c
    bound = ratio.clamp(1 - low, 1 + high).mul_(tokens.c)
    clipped = ones_where(torch.gt, free, bound)
    # in place: fresh memory is most of what a pass costs
    value = torch.minimum(free, bound, out=bound)
    return Terms(value, _cut(free, clipped, out_of_range), clipped)


def _cut(slope: Tensor, *where: Tensor | None) -> Tensor:
    """The slope itself, in place, with 0 at the tokens that any of these masks marks."""
    for mask in where:
        if mask is not None:
            slope.addcmul_(slope, mask, value=-1)
    return slope


def _linear(tokens: Tokens, weight: Tensor, clipped: Tensor | None = None) -> Terms:
    """sg(weight)·c·log π; in place: the weight becomes the slope."""
    slope = weight.mul_(tokens.c)
    return Terms(slope * tokens.logp, slope, clipped)


def ppo_clip(tokens: Tokens, *, low: float = 0.2, high: float = 0.2) -> Terms:
    """min(ρA, clip(ρ, 1−low, 1+high)A)"""
    return _clip(tokens, tokens.ratio, tokens.out_of_range, low, high)


def dual_clip(tokens: Tokens, *, low: float = 0.2, high: float = 0.2, cap: float = 3.0) -> Terms:
    """ppo_clip, and for A < 0 never below cap·A."""
    terms = ppo_clip(tokens, low=low, high=high)
    assert terms.clipped is not None
    floor = cap * tokens.c.clamp(max=0)  # 0 for A > 0, which no value is below
    cut = ones_where(torch.lt, terms.value, floor)
    return Terms(
        torch.maximum(terms.value, floor), _cut(terms.slope, cut), torch.maximum(terms.clipped, cut)
    )


def gspo(tokens: Tokens, *, low: float = 3e-4, high: float = 4e-4) -> Terms:
    """s_i = exp(mean_t log ρ); min(s_iA, clip(s_i)A). The token form:
    every token of i moves s_i alike.
    """
    s = tokens.sequence_ratio
    out_of_range = None  # a mean lies between the extremes
    if not tokens.bounds:
        out_of_range = tokens.spread(ones_where(torch.gt, tokens.sequence_log_ratio.abs(), LIMIT))
    terms = _clip(tokens, tokens.spread(s), out_of_range, low, high)
    return terms._replace(sequence_weight=s)


def gmpo(tokens: Tokens, *, low: float = 0.4, high: float = 0.4) -> Terms:
    """A_i · exp(mean_t δ_t), δ_t = min(log ρ, high) for A > 0 and max(log ρ, −low) for A < 0."""
    delta = (tokens.sign * tokens.log_ratio).clamp_(max=tokens.by_sign(high, low)).mul_(tokens.sign)
    clipped = ones_where(torch.ne, delta, tokens.log_ratio)
    s = tokens.response_mean(delta).exp()
    value = tokens.spread(s) * tokens.c
    slope = _cut(value.clone(), clipped, tokens.out_of_range)
    return Terms(value, slope, clipped * tokens.signed, s)


def cispo(tokens: Tokens, *, cap: float = 5.0) -> Terms:
    """sg(min(ρ, cap))·A·log π. verl's cap is 1 + ε_high, TRL's is ε_high:
    here it is the cap itself.
    """
    clipped = ones_where(torch.gt, tokens.ratio, cap) * tokens.signed
    return _linear(tokens, tokens.ratio.clamp(max=cap), clipped)


def sapo(tokens: Tokens, *, tau_positive: float = 1.0, tau_negative: float = 1.05) -> Terms:
    """(4/τ)·sigmoid(τ(ρ−1))·A, τ by the sign of A."""
    gate = (tokens.excess * tokens.by_sign(tau_positive, tau_negative)).sigmoid_()
    value = (gate * tokens.by_sign(4 / tau_positive, 4 / tau_negative)).mul_(tokens.c)
    slope = (1 - gate).mul_(gate).mul_(4).mul_(tokens.ratio).mul_(tokens.c)
    return Terms(value, slope, None)


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
    positive = ones_where(torch.gt, tokens.response_sum(tokens.c), 0.0)
    k = k_positive * positive + k_negative * (1 - positive)
    lam = lam_positive * positive + lam_negative * (1 - positive)
    phi = torch.exp(lam + k * log_w - lam * log_w.exp())
    return _linear(tokens, tokens.spread(phi))._replace(sequence_weight=phi)


def aspo(tokens: Tokens, *, low: float = 0.2, high: float = 0.2, cap: float = 3.0) -> Terms:
    """A > 0: weight sg(min(1/ρ, cap)), masked where ρ > 1+high. A < 0:
    sg(min(ρ, cap)), masked where ρ < 1−low.
    """
    weight = (tokens.sign * tokens.log_ratio).neg_().exp_().clamp_(max=cap)
    masked = ones_where(torch.gt, tokens.sign * tokens.ratio, tokens.by_sign(1 + high, low - 1))
    slope = _cut(weight.mul_(tokens.c), masked)
    return Terms(slope, slope, masked * tokens.signed)


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
    p, q = tokens.logp.exp(), tokens.old.exp()
    pushed = (p - q).mul_(tokens.sign)  # how far π has gone the way A pushes
    bound = tokens.by_sign(high, low)
    if divergence == "tv":
        masked = ones_where(torch.gt, pushed, bound)
    else:
        kl = -q * tokens.log_ratio + (1 - q) * torch.log((1 - q + 1e-8) / (1 - p + 1e-8))
        masked = ones_where(torch.gt, kl, bound) * ones_where(torch.gt, pushed, 0.0)
    weight = _cut(tokens.ratio.clamp(max=cap), masked)
    return _linear(tokens, weight, masked * tokens.signed)


def reinforce(tokens: Tokens) -> Terms:
    """A·log π"""
    return Terms(tokens.c * tokens.logp, tokens.c, None)


def symmetric_clip(tokens: Tokens, *, low: float = 0.2, high: float = 0.2) -> Terms:
    """clip(ρ, 1−low, 1+high)·A: ppo_clip without the min,
    so that both signs lose their gradient at the same ratios.

    A token that several responses share has one ρ:
    it is cut for all or for none, and what cancelled still does.
    """
    outside = _outside(tokens, low, high)
    value = tokens.ratio.clamp(1 - low, 1 + high).mul_(tokens.c)
    return Terms(value, _cut(value.clone(), outside), outside * tokens.signed)


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
    outside = _outside(tokens, low, high)
    weight = _cut(tokens.spread(s), outside)
    return _linear(tokens, weight, outside * tokens.signed)._replace(sequence_weight=s)


def _outside(tokens: Tokens, low: float, high: float) -> Tensor:
    """1 where ρ lies outside [1−low, 1+high], else 0."""
    return ones_where(torch.ne, tokens.ratio, tokens.ratio.clamp(1 - low, 1 + high))


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

"""Terms beside the policy gradient: KL to a reference,
and what corrects train/inference mismatch (formulas.md §5).

A KL estimator's value and its gradient, averaged over tokens that π itself drew, may be of
different things: the loss has the gradient. Of tokens that an older π drew, k3_ratio alone keeps
its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from equipoise.objective.surrogate import LIMIT, Tokens, ones_where


def k1(logp: Tensor, ref: Tensor) -> Tensor:
    """log π − log π_ref: unbiased for KL(π ‖ π_ref); its gradient is 0 on average."""
    return logp - ref


def k2(logp: Tensor, ref: Tensor) -> Tensor:
    """½(log π − log π_ref)²: biased; its gradient is that of KL(π ‖ π_ref)."""
    return 0.5 * (logp - ref) ** 2


def k3(logp: Tensor, ref: Tensor) -> Tensor:
    """π_ref/π − 1 − log(π_ref/π): unbiased for KL(π ‖ π_ref) and never negative; its gradient is
    that of KL(π_ref ‖ π). Times ρ (k3_ratio) value and gradient are those of KL(π ‖ π_ref).
    """
    d = (ref - logp).clamp(-LIMIT, LIMIT)
    return torch.expm1(d) - d


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "k3_ratio": k3,
}


def token_tis(tokens: Tokens, rollout: Tensor, *, cap: float = 2.0) -> Tensor:
    """[n] min(π_old/π_rollout, cap), detached: truncated importance sampling per token."""
    log_weight = tokens.log_quotient(tokens.raw_old, rollout)
    return torch.exp(log_weight.clamp(-LIMIT, LIMIT)).clamp(max=cap)


def sequence_mis(tokens: Tokens, rollout: Tensor, *, cap: float = 2.0) -> Tensor:
    """[n] Π_t π_old/π_rollout of the token's response where that is at most cap, else 0:
    masked importance sampling.
    """
    log_weight = tokens.response_sum(tokens.log_quotient(tokens.raw_old, rollout))
    weight = log_weight.clamp(-LIMIT, LIMIT).exp()
    return tokens.spread(torch.where(weight <= cap, weight, 0.0))


def icepop(tokens: Tokens, rollout: Tensor, *, alpha: float = 0.5, beta: float = 5.0) -> Tensor:
    """[n] k = π_old/π_rollout where alpha ≤ k ≤ beta, else 0, detached: IcePop (arXiv 2510.18855)."""
    k = torch.exp(tokens.log_quotient(tokens.raw_old, rollout).clamp(-LIMIT, LIMIT))
    return k * ones_where(torch.ge, k, alpha) * ones_where(torch.le, k, beta)


MISMATCH: dict[str, Callable[..., Tensor] | None] = {
    "none": None,
    "tis": token_tis,
    "mis": sequence_mis,
    "icepop": icepop,
}


def one_weight(tokens: Tokens, weight: Tensor) -> Tensor:
    """[n] the geometric mean of the weights of the token's response.

    For gmpo, whose ratio is a geometric mean over the response itself: with π_rollout in place of
    π_old it would have this factor, were no weight capped. verl does the same.
    """
    return tokens.spread(tokens.response_mean(weight.log()).exp())


def off_policy_mask(tokens: Tokens, sampled: Tensor, delta: float) -> Tensor:
    """[n] 0 for the tokens of responses with A < 0 and mean_t log(π_sampled/π) > delta,
    else 1 (arXiv 2512.02556).
    """
    drift = tokens.response_mean(tokens.log_quotient(sampled, tokens.raw_logp))
    far = tokens.spread(ones_where(torch.gt, drift, delta))
    return 1 - far * ones_where(torch.lt, tokens.c, 0.0)

"""How a token-level objective pulls on each token, but for the token's own log-probability.

With that known beforehand, the slope of the loss is a closed form of log π (and of the entropy,
under a bonus), and one pass over the logits can go from them to their gradient. Objectives with
sequence-level ratios have no such form: what they ask of one token depends on the log-probabilities
of others.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.objective import Credit, Objective
from equipoise.objective.choice import Choice
from equipoise.objective.regularizer import KL_ESTIMATORS
from equipoise.objective.surrogate import LIMIT, Tokens

# The surrogates whose slope the Triton pass knows, and the options it takes, in this order.
SLOPES: dict[str, tuple[str, ...]] = {
    "ppo_clip": ("low", "high"),
    "dual_clip": ("low", "high", "cap"),
    "symmetric_clip": ("low", "high"),
    "cispo": ("cap",),
    "sapo": ("tau_positive", "tau_negative"),
    "aspo": ("low", "high", "cap"),
    "dppo": ("low", "high", "cap"),
    "reinforce": (),
}


class Pull(NamedTuple):
    """Of the tokens of a micro-batch, flat [n], float32 (float64 where the hidden states are)."""

    surrogate: Choice
    # log π_old; NaN where a token must not pull because another of its numbers is not finite
    old: Tensor
    c: Tensor  # coefficient, the mismatch correction included
    kl_estimator: str | None
    ref: Tensor | None  # log π_ref
    kl_weight: Tensor | None  # β times the weight of the token's KL
    entropy_weight: Tensor | None  # 0-dim: the bonus over the batch's tokens

    def rows(self, rows: slice) -> Pull:
        ref, weight = (None if x is None else x[rows] for x in (self.ref, self.kl_weight))
        return self._replace(old=self.old[rows], c=self.c[rows], ref=ref, kl_weight=weight)

    def padded(self, n: int) -> Pull:
        """With tokens that do not pull, up to n."""
        ref, weight = (None if x is None else padded(x, n, 0.0) for x in (self.ref, self.kl_weight))
        return self._replace(
            old=padded(self.old, n, torch.nan), c=padded(self.c, n, 0.0), ref=ref, kl_weight=weight
        )


def padded(x: Tensor, n: int, value: float) -> Tensor:
    """x with `value` after its end, up to n rows."""
    extra = n - len(x)
    return x if extra == 0 else torch.cat([x, x.new_full((extra, *x.shape[1:]), value)])


def is_token_level(objective: Objective) -> bool:
    return objective.surrogate.name in SLOPES and not objective.needs_whole_responses


def pull(
    objective: Objective,
    old: Tensor,
    credit: Credit,
    response: Tensor,
    dtype: torch.dtype,
    *,
    position: Tensor | None,
    ref: Tensor | None,
    rollout: Tensor | None,
) -> Pull:
    """The pull of a token-level objective; the arguments are those of `Objective.loss`."""
    old = old.detach().to(dtype)
    c = objective.token_coefficient(credit, response, position, dtype)
    dead = torch.zeros_like(response, dtype=torch.bool)
    if rollout is not None and objective.mismatch.function is not None:
        rollout = rollout.detach().to(dtype)
        dead |= ~rollout.isfinite()
        here = Tokens(old, old, torch.zeros_like(old), c, response, credit.lengths)
        c = c * objective.mismatch(here, rollout)
    kl_weight = entropy_weight = None
    if ref is not None and objective.kl:
        ref = ref.detach().to(dtype).contiguous()
        dead |= ~ref.isfinite()
        assert credit.kl_weight is not None
        kl_weight = objective.kl * credit.kl_weight.to(dtype).index_select(0, response)
    if objective.entropy_bonus:
        entropy_weight = objective.entropy_bonus / credit.tokens.clamp(min=1).to(dtype)
    return Pull(
        objective.surrogate,
        old.masked_fill(dead, torch.nan),
        c,
        None if kl_weight is None else objective.kl_estimator,
        None if kl_weight is None else ref,
        kl_weight,
        entropy_weight,
    )


def slopes(pull: Pull, logp: Tensor, entropy: Tensor) -> tuple[Tensor, Tensor | None]:
    """∂loss/∂log π and ∂loss/∂entropy of each token [n]; 0 for tokens whose numbers are not finite."""
    log_ratio = logp - pull.old
    finite = log_ratio.isfinite()
    if pull.entropy_weight is not None:
        finite &= entropy.isfinite()
    c = torch.where(finite, pull.c, 0.0)
    # a token alone: no responses
    tokens = Tokens(logp, pull.old, log_ratio.nan_to_num(0.0, 0.0, 0.0), c, c, c)
    slope = -tokens.spread_out(pull.surrogate(tokens).slope)
    if pull.kl_estimator is not None:
        assert pull.ref is not None  # the three come together
        assert pull.kl_weight is not None
        slope = slope + torch.where(
            finite, pull.kl_weight * _kl_slope(pull.kl_estimator, tokens, pull.ref), 0.0
        )
    return slope, None if pull.entropy_weight is None else torch.where(
        finite, -pull.entropy_weight, 0.0
    )


def _kl_slope(estimator: str, tokens: Tokens, ref: Tensor) -> Tensor:
    with torch.enable_grad():
        logp = tokens.logp.detach().requires_grad_()
        kl = KL_ESTIMATORS[estimator](logp, ref)
        if estimator == "k3_ratio":
            kl = kl * torch.exp((logp - tokens.old).clamp(-LIMIT, LIMIT))
        return torch.autograd.grad(kl.sum(), logp)[0]

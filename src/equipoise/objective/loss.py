"""What `loss` returns, and the sums that make micro-batches and ranks add up exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.objective.credit import Credit
from equipoise.objective.surrogate import Terms, Tokens


class Stats(NamedTuple):
    """Sums over the tokens of a micro-batch, and two extremes. All 0-dim, on the device."""

    loss: Tensor
    policy_loss: Tensor
    tokens: Tensor
    nonfinite: Tensor
    log_ratio: Tensor
    ratio_excess: Tensor  # Σ(ρ − 1)
    ratio_square: Tensor  # Σ(ρ − 1)²
    low: Tensor  # clipped tokens with a negative coefficient
    high: Tensor  # clipped tokens with a positive coefficient
    kl: Tensor
    entropy: Tensor
    min_log_ratio: Tensor
    max_log_ratio: Tensor

    @classmethod
    def of(cls, loss: Tensor, policy_loss: Tensor, tokens: Tokens, terms: Terms, nonfinite: Tensor, kl: Tensor,
           entropy: Tensor) -> Stats:  # fmt: skip
        n, zero = tokens.c.numel(), tokens.c.new_zeros(())
        low = high = zero
        if terms.clipped is not None:
            high = (terms.clipped & tokens.positive).count_nonzero()
            low = terms.clipped.count_nonzero() - high
        least, most = tokens.log_ratio.aminmax() if n else (zero + math.inf, zero - math.inf)
        excess = tokens.ratio - 1
        return cls(
            loss.detach(), policy_loss.detach(), zero + n, nonfinite, tokens.log_ratio.sum(), excess.sum(),
            excess.dot(excess), low, high, kl, entropy, least, most,
        )  # fmt: skip

    def merge(self, other: Stats) -> Stats:
        added = [a + b for a, b in zip(self[:-2], other[:-2], strict=True)]
        return Stats._make([*added, torch.minimum(self[-2], other[-2]), torch.maximum(self[-1], other[-1])])

    def metrics(self) -> dict[str, Tensor]:
        n = self.tokens.clamp(min=1)
        excess, drift = self.ratio_excess / n, self.log_ratio / n
        return {
            "loss": self.loss,
            "policy_loss": self.policy_loss,
            "tokens": self.tokens,
            "nonfinite_tokens": self.nonfinite,
            "ratio/mean": 1 + excess,
            "ratio/std": (self.ratio_square / n - excess**2).clamp(min=0).sqrt(),
            "ratio/min": torch.where(self.tokens > 0, self.min_log_ratio, 0.0).exp(),
            "ratio/max": torch.where(self.tokens > 0, self.max_log_ratio, 0.0).exp(),
            "approx_kl": (excess - drift).clamp(min=0),
            "clip_ratio/low": self.low / n,
            "clip_ratio/high": self.high / n,
            "clip_ratio/region": (self.low + self.high) / n,
            "kl": self.kl / n,
            "entropy": self.entropy / n,
        }


@dataclass(frozen=True)
class LossOutput:
    """`loss` to call backward on, and what it saw.

    `ok` is a 0-dim bool tensor: false when a log-probability was not finite or, on CUDA, when the split broke a group.
    Such tokens have no gradient, but the rest of the micro-batch does: when `ok` is false, skip the step.
    `logprobs` [n] are the log-probabilities the loss was made of, without their graph.
    """

    loss: Tensor
    ok: Tensor
    stats: Stats
    credit: Credit = field(repr=False)
    logprobs: Tensor = field(repr=False)

    @cached_property
    def metrics(self) -> dict[str, Tensor]:
        """0-dim tensors: nothing has been copied to the host."""
        return merge_metrics([self])


def merge_metrics(outputs: Sequence[LossOutput]) -> dict[str, Tensor]:
    """The metrics of a batch from its micro-batches: sums add, means weigh by tokens, extremes stay extremes."""
    total = outputs[0].stats
    for output in outputs[1:]:
        total = total.merge(output.stats)
    return {**total.metrics(), **outputs[0].credit.metrics}


class KnownGradient(torch.autograd.Function):
    """−Σφ, whose derivative with respect to the log-probabilities is known in closed form."""

    @staticmethod
    def forward(ctx: Any, logprobs: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return -value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return -grads[0] * slope, None, None

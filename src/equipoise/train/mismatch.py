"""How far the sampler's log-probabilities are from the trainer's, and its correction (§5).

Only responses that enter the loss are looked at:
the others have no log-probability of the trainer's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.objective import response_ids
from equipoise.objective.choice import Choice
from equipoise.objective.regularizer import k3


class Mismatch(NamedTuple):
    """Sums over the tokens and responses of a micro-batch, and one extreme. All 0-dim."""

    tokens: Tensor
    responses: Tensor
    difference: Tensor  # Σ|log π_trainer − log π_sampler|
    kl: Tensor  # Σ k3, whose mean estimates KL(π_sampler ‖ π_trainer)
    capped: Tensor  # tokens whose weight π_trainer/π_sampler is over the cap of tis
    masked: Tensor  # responses whose weight is over the cap of mis
    largest: Tensor  # of the differences

    @classmethod
    def of(cls, trainer: Tensor, sampler: Tensor, lengths: Tensor, correction: Choice) -> Mismatch:
        """trainer, sampler [n] log-probabilities of the same tokens,
        of responses of `lengths` [b] in this order.
        """
        log_weight = trainer - sampler
        apart = log_weight.abs()
        log_cap = math.log(correction.options.get("cap", math.inf))
        masked = torch.tensor(0)
        if correction.name == "mis":
            of_response = log_weight.new_zeros(len(lengths)).index_add_(
                0, response_ids(lengths), log_weight
            )
            masked = (of_response > log_cap).sum()
        return cls(
            torch.tensor(len(trainer)),
            torch.tensor(len(lengths)),
            apart.sum(),
            k3(sampler, trainer).sum(),
            (log_weight > log_cap).sum(),
            masked,
            apart.max(),
        )

    def merge(self, other: Mismatch) -> Mismatch:
        added = [a + b for a, b in zip(self[:-1], other[:-1], strict=True)]
        return Mismatch._make((*added, torch.maximum(self.largest, other.largest)))


def metrics(parts: Sequence[Mismatch], correction: Choice) -> dict[str, float]:
    """Of a batch, from its micro-batches."""
    total = reduce(Mismatch.merge, parts)
    tokens = float(total.tokens)
    out = {
        "rollout/logprob_difference/mean": float(total.difference) / tokens,
        "rollout/logprob_difference/max": float(total.largest),
        "rollout/kl": float(total.kl) / tokens,
    }
    if correction.name == "tis":
        out["rollout/capped_tokens"] = float(total.capped) / tokens
    if correction.name == "mis":
        out["rollout/masked_responses"] = float(total.masked) / float(total.responses)
    return out

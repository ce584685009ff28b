"""A second model that samples while the first one is trained: its weights are those of the last
`refresh`.

What is not trained (the base under an adapter, layers in 4 bits) is shared, so the copy takes as
much memory as what is trained. Everything else is its own, the tokenizer too: the two models may be
used by two threads. Not covered: weights that ranks share.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.policy import decoder
from equipoise.policy.model import Policy
from equipoise.policy.quantized import QuantizedLinear


class Snapshot:
    """`policy`: the copy."""

    def __init__(self, source: Policy) -> None:
        # Shared weights must have their place before two threads read them: laying them out later
        # would move them under the other one.
        if source.is_llama_like:
            decoder.side_by_side(source.core)
        shared = {id(part): part for part in _untrained(source.model)}
        model = copy.deepcopy(source.model, shared).requires_grad_(False)
        # A fast tokenizer may refuse a second thread ("Already borrowed"), so it is copied as well.
        self.policy = Policy(model, copy.deepcopy(source.tokenizer), source.name)
        # found out by comparing logits with transformers', which needs not be done twice
        self.policy.is_llama_like = source.is_llama_like
        both = zip(source.model.parameters(), model.parameters(), strict=True)
        self._pairs = [(theirs, mine) for theirs, mine in both if theirs.requires_grad]

    @property
    def weights(self) -> list[Tensor]:
        """Those that are trained, as they were at the last refresh."""
        return [mine.detach() for _, mine in self._pairs]

    @property
    def nbytes(self) -> int:
        return sum(mine.nbytes for _, mine in self._pairs)

    def refresh(self) -> None:
        """Take today's weights, by the caller's stream. Nobody may sample meanwhile."""
        self.load([theirs.detach() for theirs, _ in self._pairs])

    @torch.no_grad()
    def load(self, weights: Sequence[Tensor]) -> None:
        """Take these, `weights` of another day, on whatever device."""
        for mine, theirs in zip(self.weights, weights, strict=True):
            mine.copy_(theirs)


def _untrained(model: Any) -> list[Any]:
    packed = [m.packed for m in model.modules() if isinstance(m, QuantizedLinear)]
    return packed + [p for p in model.parameters() if not p.requires_grad]

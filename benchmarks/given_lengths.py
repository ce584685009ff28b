"""Our paged sampler with responses that end where a benchmark says: random weights would not end by themselves."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from equipoise.rollout import PagedSampler


class GivenLengths(PagedSampler):
    """`lengths` [R] of the next call's responses, none above its limit. Cache and buffers are made as if the limit
    alone were known, which is what a sampler knows in training.
    """

    lengths: Tensor

    def _blocks(self, asked: Any, size: Any) -> int:
        count = super()._blocks(asked, size)
        # The last of what is done ahead, so none of it knows where the responses will end.
        asked.limit = self.lengths
        return count

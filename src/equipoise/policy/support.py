"""The support of truncated draws: what top-k, top-p or min-p left for each sampled token.

Flat and ragged: most supports have a handful of ids, a few have thousands. Not here: the truncation
itself (`kernels.draw`) and log-probabilities over a support (`policy.logprobs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Support:
    """Of N sampled tokens: token n is one of ids[starts[n] : starts[n + 1]].

    ids [M] int32, each once in a support; starts [N + 1] int64, on the CPU,
    because what is cut is decided there.
    """

    ids: Tensor
    starts: Tensor

    @classmethod
    def of(cls, ids: Tensor, sizes: Tensor) -> Support:
        """From the sizes [N] of the supports that follow each other in ids [M]."""
        ends = sizes.cpu().to(torch.int64).cumsum(0)
        return cls(ids, torch.cat([ends.new_zeros(1), ends]))

    @classmethod
    def gathered(cls, pool: Tensor, at: Tensor, sizes: Tensor) -> Support:
        """From where each support lies in a pool of ids: sizes [N] of them from `at` [N] on."""
        support = cls.of(pool[:0], sizes)
        shift = (at.cpu() - support.starts[:-1]).to(pool.device)
        entries = torch.arange(int(support.starts[-1]), device=pool.device)
        entries += shift.repeat_interleave(support.sizes.to(pool.device), output_size=len(entries))
        return cls(pool[entries], support.starts)

    @property
    def sizes(self) -> Tensor:
        """[N], on the CPU."""
        return self.starts.diff()

    def __len__(self) -> int:
        return len(self.starts) - 1

    def part(self, tokens: slice) -> Support:
        """Of consecutive tokens, without a copy of their ids."""
        starts = self.starts[tokens.start : tokens.stop + 1]
        return Support(self.ids[int(starts[0]) : int(starts[-1])], starts - starts[0])

    def select(self, tokens: Tensor) -> Support:
        """Of the tokens [n], in that order."""
        tokens = tokens.cpu()
        return Support.gathered(self.ids, self.starts[tokens], self.sizes[tokens])


def concatenate(parts: Sequence[Support]) -> Support:
    """One after the other."""
    return Support.of(
        torch.cat([part.ids for part in parts]), torch.cat([part.sizes for part in parts])
    )

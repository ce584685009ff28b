"""The tokens of a call of `loss` in chunks that stay in the processor's cache,
and the runs of a response among them.

On the CPU a pass over a million tokens waits for memory, and a pass over a chunk does not. That the
losses of the parts of a batch add up to the batch's is what `loss` promises its callers, so it may
cut a call into parts itself. CUDA takes all tokens at once: nothing here is used there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# tokens: a megabyte in float32; all that a chunk needs then fits a last-level cache
CHUNK = 1 << 18

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Runs:
    """Tokens of one response that follow each other,
    for sums and gathers without an index for each token.
    """

    start: Numbers  # [R] the run's first token
    row: Numbers  # [R] its response
    count: Numbers  # [R] its tokens

    @classmethod
    def of(cls, response: Tensor) -> Runs | None:
        """The runs of response [n], on the CPU; None where they are so short that an index is as
        good.
        """
        row = response.numpy()
        n = len(row)
        changes = np.flatnonzero(row[1:] != row[:-1]) + 1
        start = np.concatenate([[0], changes])
        if 2 * len(start) > n:
            return None
        return cls(start, row[start], np.diff(start, append=n))

    def each_sum(self, x: Tensor) -> Tensor:
        """[n] -> [R]: sums over the tokens of each run."""
        return torch.from_numpy(np.add.reduceat(x.numpy(), self.start))

    def sum(self, x: Tensor, rows: int) -> Tensor:
        """[n] -> [rows]: sums over the tokens of each response; 0 for those that are not here."""
        return self.of_responses(self.each_sum(x), rows)

    def of_responses(self, sums: Tensor, rows: int) -> Tensor:
        """[R] -> [rows]: from sums over runs to sums over responses."""
        return sums.new_zeros(rows).index_add_(0, torch.from_numpy(self.row), sums)

    def spread(self, x: Tensor) -> Tensor:
        """[rows] -> [n]: each token sees its response's number."""
        return self.repeat(x.numpy()[self.row])

    def repeat(self, x: NDArray[Any]) -> Tensor:
        """[R] -> [n]: each token sees its run's number."""
        return torch.from_numpy(np.repeat(x, self.count))

    def chunks(self, unit: Numbers | None) -> Iterator[tuple[slice, Runs]]:
        """About CHUNK tokens at a time, with their runs counted from the first of them;
        no run is cut.

        unit [rows] numbers what must stay whole besides, a response or its group.
        """
        ends = self.start + self.count
        n_runs = len(ends)
        # The runs behind which a chunk may end, and of these the first behind each CHUNK tokens.
        allowed = np.arange(n_runs) if unit is None else _complete(unit[self.row])
        every = np.arange(CHUNK, ends[-1], CHUNK)
        wanted = allowed[np.searchsorted(ends[allowed], every)]
        last = np.unique(np.append(wanted, n_runs - 1))
        first = 0
        for k in last.tolist():
            runs = slice(first, k + 1)
            begin = int(self.start[first])
            tokens = slice(begin, int(ends[k]))
            yield tokens, Runs(self.start[runs] - begin, self.row[runs], self.count[runs])
            first = k + 1


def response_sum(x: Tensor, response: Tensor, rows: int, runs: Runs | None) -> Tensor:
    """[n] -> [rows]: sums over whole responses; 0 for those that are not here."""
    if runs is not None:
        return runs.sum(x, rows)
    return x.new_zeros(rows).scatter_add_(0, response, x)


def token_count(response: Tensor, rows: int, runs: Runs | None) -> Tensor:
    """[rows] int64: how many tokens of each response are here."""
    if runs is not None:
        return runs.of_responses(torch.from_numpy(runs.count), rows)
    if not response.is_cuda:
        return torch.from_numpy(np.bincount(response.numpy(), minlength=rows))
    return response_sum(torch.ones_like(response), response, rows, None)


def _complete(unit: Numbers) -> Numbers:
    """The runs after which no unit begun before goes on; unit [R] of each run."""
    index = np.arange(len(unit))
    last = np.zeros(unit.max() + 1, np.int64)
    last[unit] = index  # of equal numbers the last stays
    return np.flatnonzero(np.maximum.accumulate(last[unit]) == index)

"""Where the sequences of a packed row lie, and how their attention is cut into tiles.

The row is a line of stretches, each causal in itself. Where prompts stand once, they come first, each a stretch, and
then the responses, group by group; all stretches of a group see its prompt before themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PART = 1024  # queries over which a prompt's gradients are summed in one piece

Table = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Stretches:
    """cuts [S + 1]: where each stretch begins, and where the last ends. prompts, groups [P + 1]: where each prompt and
    the responses to each begin, and where the last ends; None where nothing is shared."""

    cuts: Table
    prompts: Table | None
    groups: Table | None
    device: torch.device
    _tables: dict[tuple[str, int], tuple[Tensor, ...]] = field(default_factory=dict, init=False)

    @cached_property
    def start(self) -> Tensor:
        """[U] where each entry's stretch begins."""
        return self._sent(np.repeat(self.cuts[:-1], np.diff(self.cuts)))

    def query_tiles(self, size: int) -> Tensor:
        """[tiles, 4]: entries a … b − 1, and the place and the number of the keys that all of them see before their own
        stretches; the most work first."""
        if ("queries", size) not in self._tables:
            self._tables["queries", size] = (self._sent(self._query_table(size)),)
        return self._tables["queries", size][0]

    def key_tiles(self, size: int) -> tuple[Tensor, Tensor]:
        """[tiles, 5]: keys a … b − 1, the end of the last one's stretch, the first and the number of the parts that
        belong to it; and [parts, 5]: keys a … b − 1, the end of the queries, the part's number, the first query."""
        if ("keys", size) not in self._tables:
            of_prompts, parts = self._prompt_table(size)
            table = np.concatenate([of_prompts, self._response_table(size)])
            order = np.argsort(table[:, 0] - table[:, 2], kind="stable")
            self._tables["keys", size] = self._sent(table[order]), self._sent(parts)
        tiles, parts = self._tables["keys", size]
        return tiles, parts

    def _query_table(self, size: int) -> Table:
        tables = [_cut(0, self._first_response or self._end, size, 0, 0)]
        for a, b, begin, end in self._pairs():
            tables.append(_cut(begin, end, size, a, b - a))
        table = np.concatenate(tables)
        work = table[:, 3] + table[:, 1] - self.cuts[self._stretch(table[:, 0])]
        return table[np.argsort(-work, kind="stable")]

    def _prompt_table(self, size: int) -> tuple[Table, Table]:
        """Of prompts that stand once, whose keys all responses to them see: tiles of their own, and parts."""
        tiles, parts, made = [np.empty((0, 5), np.int64)], [np.empty((0, 5), np.int64)], 0
        for a, b, begin, end in self._pairs():
            queries = _cut(begin, end, PART)
            for first, last in _cut(a, b, size):
                tiles.append(np.array([[first, last, b, made, len(queries)]]))
                number = made + np.arange(len(queries))
                parts.append(np.stack(np.broadcast_arrays(first, last, queries[:, 1], number, queries[:, 0]), 1))
                made += len(queries)
        return np.concatenate(tiles), np.concatenate(parts)

    def _response_table(self, size: int) -> Table:
        """Of keys that only their own stretch sees: those of responses or, where nothing is shared, all."""
        table = _cut(self._first_response, self._end, size, 0, 0, 0)
        table[:, 2] = self.cuts[self._stretch(table[:, 1] - 1) + 1]
        return table

    def _pairs(self) -> list[list[int]]:
        """Where each prompt that stands once begins and ends, and where the responses to it do."""
        if self.prompts is None or self.groups is None:
            return []
        return np.stack([self.prompts[:-1], self.prompts[1:], self.groups[:-1], self.groups[1:]], 1).tolist()

    @property
    def _first_response(self) -> int:
        return 0 if self.groups is None else int(self.groups[0])

    @property
    def _end(self) -> int:
        return int(self.cuts[-1])

    def _stretch(self, entries: Table) -> Table:
        return np.searchsorted(self.cuts, entries, side="right") - 1

    def _sent(self, table: Table) -> Tensor:
        return torch.from_numpy(table.astype(np.int32)).to(self.device)


def _cut(begin: int, end: int, size: int, *more: int) -> Table:
    """[n, 2 + …]: begin … end − 1 in pieces of at most `size`, each with these numbers besides."""
    a = np.arange(begin, end, size)
    return np.stack(np.broadcast_arrays(a, np.minimum(a + size, end), *(np.int64(m) for m in more)), 1).astype(np.int64)

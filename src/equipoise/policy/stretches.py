"""Where the sequences of a packed row lie, and how their attention is cut into tiles.

The row is a line of stretches, each causal in itself. Where prompts stand once, they come first, each a stretch, and
then the responses, group by group; all stretches of a group see its prompt before themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

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
    _tables: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def start(self) -> Tensor:
        """[U] where each entry's stretch begins."""
        return self._sent(np.repeat(self.cuts[:-1], np.diff(self.cuts)))

    def query_tiles(self, size: int) -> Tensor:
        """[tiles, 4]: entries a … b − 1, and the place and the number of the keys that all of them see before their own
        stretches; the most work first."""
        if ("queries", size) not in self._tables:
            parts = [_cut(0, self._end if self.prompts is None else int(self.prompts[-1]), size, 0, 0)]
            if self.prompts is not None and self.groups is not None:
                of_prompts = zip(self.prompts, np.diff(self.prompts), strict=False)
                ranges = zip(self.groups, self.groups[1:], of_prompts, strict=False)
                parts += [_cut(int(a), int(b), size, *prompt) for a, b, prompt in ranges]
            table = np.concatenate(parts)
            work = table[:, 3] + table[:, 1] - self.cuts[self._stretch(table[:, 0])]
            self._tables["queries", size] = self._sent(table[np.argsort(-work, kind="stable")])
        return self._tables["queries", size]

    def key_tiles(self, size: int) -> tuple[Tensor, Tensor]:
        """[tiles, 5]: keys a … b − 1, the end of the last one's stretch, the first and the number of the parts that
        belong to it; and [parts, 5]: keys a … b − 1, the end of the queries, the part's number, the first query."""
        if ("keys", size) not in self._tables:
            tiles, parts = [], []
            first = 0
            if self.prompts is not None and self.groups is not None:
                ranges = zip(self.prompts, self.prompts[1:], self.groups, self.groups[1:], strict=False)
                for a, b, begin, end in ranges:
                    for tile in _cut(int(a), int(b), size):
                        queries = np.arange(begin, end, PART)
                        number = first + np.arange(len(queries))
                        ends = np.minimum(queries + PART, end)
                        parts.append(np.stack([*np.broadcast_arrays(tile[0], tile[1], ends, number, queries)], 1))
                        tiles.append([*tile, b, first, len(queries)])
                        first += len(queries)
                first_response = int(self.groups[0])
            else:
                first_response = 0
            own = _cut(first_response, self._end, size, 0, 0, 0)
            own[:, 2] = self.cuts[self._stretch(own[:, 1] - 1) + 1]
            table = np.concatenate([np.array(tiles, dtype=np.int64).reshape(-1, 5), own])
            order = np.argsort(table[:, 0] - table[:, 2], kind="stable")
            of_parts = np.concatenate([np.empty((0, 5), np.int64), *parts])
            self._tables["keys", size] = self._sent(table[order]), self._sent(of_parts)
        return self._tables["keys", size]

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

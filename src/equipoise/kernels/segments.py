"""Where the sequences of a packed row lie, and how their attention is cut into tiles.

The row is a line of segments, each causal in itself. Where prompts stand once, they come first,
each a segment, and then the responses, group by group; all segments of a group see its prompt
before themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PART = 1024  # queries over which a prompt's gradients are summed in one piece

Table = NDArray[np.int64]


class KeyTiles(NamedTuple):
    """tiles [tiles, 6]: keys a … b − 1; the first of the queries that see them, the first from
    which on all see all of them, and where they end; the place where their sum is left, or −1. Of a
    prompt that stands once there are several, one for every PART of the queries, and the sums
    follow each other: prompts [tiles, 4] are keys a … b − 1, the first place, and how many. sums:
    how many there are in all.
    """

    tiles: Tensor
    prompts: Tensor
    sums: int


@dataclass(frozen=True, eq=False)
class Segments:
    """cuts [S + 1]: where each segment begins, and where the last ends. prompts, groups [P + 1]:
    where each prompt and the responses to each begin, and where the last ends; None where nothing
    is shared.
    """

    cuts: Table
    prompts: Table | None
    groups: Table | None
    device: torch.device
    _query_tiles: dict[int, Tensor] = field(default_factory=dict, init=False)
    _key_tiles: dict[int, KeyTiles] = field(default_factory=dict, init=False)

    @cached_property
    def start(self) -> Tensor:
        """[U] where each entry's segment begins."""
        return self._sent(np.repeat(self.cuts[:-1], np.diff(self.cuts)))

    @property
    def mean_length(self) -> float:
        """Of the segments that are no prompts."""
        responses = np.searchsorted(self.cuts, self._first_response)
        return (self._end - self._first_response) / max(1, len(self.cuts) - 1 - int(responses))

    def query_tiles(self, size: int) -> Tensor:
        """[tiles, 6]: entries a … b − 1; the place and the number of the keys that all of them see
        before their own segments; where the first one's segment begins, and the last one's. The
        most work comes first.
        """
        if size not in self._query_tiles:
            self._query_tiles[size] = self._sent(self._query_table(size))
        return self._query_tiles[size]

    def key_tiles(self, size: int) -> KeyTiles:
        """The most work comes first."""
        if size not in self._key_tiles:
            table, prompts = self._prompt_table(size)
            table = np.concatenate([table, self._response_table(size)])
            order = np.argsort(table[:, 2] - table[:, 4], kind="stable")
            tiles = self._sent(table[order])
            self._key_tiles[size] = KeyTiles(tiles, self._sent(prompts), int(prompts[:, 3].sum()))
        return self._key_tiles[size]

    def _query_table(self, size: int) -> Table:
        tables = [_cut(0, self._first_response or self._end, size, 0, 0)]
        for a, b, begin, end in self._pairs():
            tables.append(_cut(begin, end, size, a, b - a))
        table = np.concatenate(tables)
        first, last = (self.cuts[self._segment(entry)] for entry in (table[:, 0], table[:, 1] - 1))
        work = table[:, 3] + table[:, 1] - first
        longest_first = np.argsort(-work, kind="stable")
        return np.concatenate([table, first[:, None], last[:, None]], 1)[longest_first]

    def _prompt_table(self, size: int) -> tuple[Table, Table]:
        """Of prompts that stand once, whose keys all responses to them see."""
        tiles, prompts, made = [np.empty((0, 6), np.int64)], [np.empty((0, 4), np.int64)], 0
        for a, b, begin, end in self._pairs():
            queries = _cut(begin, end, PART)
            for first, last in _cut(a, b, size):
                tiles.append(np.array([[first, last, first, last, b, made]]))
                places = made + 1 + np.arange(len(queries))
                seen = first, last, queries[:, 0], queries[:, 0], queries[:, 1], places
                tiles.append(np.stack(np.broadcast_arrays(*seen), 1))
                prompts.append(np.array([[first, last, made, 1 + len(queries)]]))
                made += 1 + len(queries)
        return np.concatenate(tiles), np.concatenate(prompts)

    def _response_table(self, size: int) -> Table:
        """Of keys that only their own segment sees: of responses or, without sharing, all."""
        a, b = _cut(self._first_response, self._end, size).T
        begin, end = self.cuts[self._segment(b - 1)], self.cuts[self._segment(b - 1) + 1]
        return np.stack([a, b, a, np.where(begin <= a, b, end), end, np.full_like(a, -1)], 1)

    def _pairs(self) -> list[list[int]]:
        """Where each prompt that stands once begins and ends, and where the responses to it do."""
        if self.prompts is None or self.groups is None:
            return []
        bounds = self.prompts[:-1], self.prompts[1:], self.groups[:-1], self.groups[1:]
        pairs: list[list[int]] = np.stack(bounds, 1).tolist()
        return pairs

    @property
    def _first_response(self) -> int:
        return 0 if self.groups is None else int(self.groups[0])

    @property
    def _end(self) -> int:
        return int(self.cuts[-1])

    def _segment(self, entries: Table) -> Table:
        return np.searchsorted(self.cuts, entries, side="right") - 1

    def _sent(self, table: Table) -> Tensor:
        return sent(torch.from_numpy(table.astype(np.int32)), self.device)


def sent(x: Tensor, device: torch.device) -> Tensor:
    """x, which the CPU has, on the device, without waiting for it."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x


def _cut(begin: int, end: int, size: int, *more: int) -> Table:
    """[n, 2 + …]: begin … end − 1 in pieces of at most `size`, each with these numbers besides."""
    a = np.arange(begin, end, size)
    return np.stack(
        np.broadcast_arrays(a, np.minimum(a + size, end), *(np.int64(m) for m in more)), 1
    ).astype(np.int64)

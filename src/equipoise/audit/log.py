"""A rollout log in columns, in an order of its own.

A group is the responses to one prompt in one step; a prompt may come back in later steps. Rows are
ordered by what they hold, never by how they came: the order of rows, the names of prompts and the
split over files leave every number the audit gives, its random resamples included, as it was.

Not here: reading files (read.py, readers/). Text is not kept,
nor are log-probabilities but for one sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.splitmix import mix

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

CHUNK = 1 << 22  # tokens hashed at a time: memory stays flat


class AuditError(ValueError):
    """A log that cannot be audited; the message names file, row and column where there is one."""


@dataclass(frozen=True)
class Log:
    """Responses ordered by step and group. `length` is 0 where a response stays out of the loss."""

    reward: Floats  # [B]
    length: Integers  # [B]
    step: Integers  # [B]
    group: Integers  # [B] 0, 1, …: each group's rows lie together
    prompt: Integers  # [B] 0, 1, …: what the intervals resample
    truncated: NDArray[np.bool_] | None  # [B] cut at the limit; None where the log does not say
    tokens: NDArray[np.int32] | None  # [Σ length] in row order; None where the log does not say
    unit: str  # what a length counts: "tokens" or "characters"
    source: str  # the writer of the log, as far as its columns tell
    notes: tuple[str, ...] = ()  # what the reader did that the user should know
    kept: NDArray[np.bool_] | None = None  # [B] trained on; None where the log holds nothing else
    # [B] Σ_t log μ − log π, sampler against policy; None where not logged
    sampler_distance: Floats | None = None
    # what each role was read from, where the log has columns
    columns: dict[str, str] = field(default_factory=dict)
    rates: bool = True  # a mean reward is a success rate; False where advantages stand for rewards

    def __len__(self) -> int:
        return len(self.reward)

    def steps(self) -> list[slice]:
        """The rows of each step, in the order of the steps."""
        ends = np.flatnonzero(np.diff(self.step)) + 1
        return [slice(int(a), int(b)) for a, b in zip([0, *ends], [*ends, len(self)], strict=True)]


def ordered(log: Log) -> Log:
    """The same log with prompts and groups numbered, and rows sorted, by their content."""
    step_hash = mix(log.step.astype(np.uint64))
    length_hash = mix(log.length.astype(np.uint64) ^ step_hash)
    content = mix(log.reward.view(np.uint64) ^ length_hash)
    if log.tokens is not None:
        content = mix(content ^ _token_hash(log.tokens, log.length))
    prompt, prompt_key = _renumbered(log.prompt, content)
    group, _ = _renumbered(log.group, content ^ mix(prompt_key[prompt]))
    order = np.lexsort((content, group, log.step))
    group = group[order]
    group = np.concatenate([[0], np.cumsum(group[1:] != group[:-1])])
    tokens = None if log.tokens is None else _reordered(log.tokens, log.length, order)
    return _rows(replace(log, prompt=prompt), order, group, tokens)


def selected(log: Log, keep: NDArray[np.bool_]) -> Log:
    """Some rows of a log, in the same order, with its groups numbered anew."""
    tokens = None if log.tokens is None else log.tokens[np.repeat(keep, log.length)]
    _, group = np.unique(log.group[keep], return_inverse=True)
    return _rows(log, keep, group, tokens)


def _rows(log: Log, rows: Any, group: Integers, tokens: NDArray[np.int32] | None) -> Log:
    """These rows of every column [B]; their groups and tokens are given."""
    columns: dict[str, Any] = {}
    for name in ("reward", "length", "step", "prompt", "truncated", "kept", "sampler_distance"):
        column = getattr(log, name)
        columns[name] = None if column is None else column[rows]
    return replace(log, group=group, tokens=tokens, **columns)


def _reordered(tokens: NDArray[np.int32], length: Integers, order: Integers) -> NDArray[np.int32]:
    """The flat tokens of responses in another order of these."""
    start = np.cumsum(length) - length
    new_length = length[order]
    new_start = np.cumsum(new_length) - new_length
    shift = np.repeat(start[order] - new_start, new_length)
    return tokens[shift + np.arange(len(tokens))]


def trained(log: Log) -> Log:
    """The responses that were trained on; the same log where it holds no others."""
    if log.kept is None or log.kept.all():
        return log
    if not log.kept.any():
        raise AuditError("no response of the log was kept: is the column kept the right way round?")
    return ordered(replace(selected(log, log.kept), kept=None))


def _renumbered(ids: Integers, content: NDArray[np.uint64]) -> tuple[Integers, NDArray[np.uint64]]:
    """Ids 0, 1, … in the order of their members' content, and the key of each: a sum."""
    _, ids = np.unique(ids, return_inverse=True)
    key = np.zeros(int(ids.max()) + 1, np.uint64)
    np.add.at(key, ids, content)
    order = np.argsort(key, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[ids], key[order]


def _token_hash(tokens: NDArray[np.int32], length: Integers) -> NDArray[np.uint64]:
    """[B] a hash of each response's tokens and their places."""
    ends = np.cumsum(length)
    total = np.zeros(len(length), np.uint64)
    first = 0
    while first < len(length):
        start = int(ends[first] - length[first])
        last = max(first + 1, int(np.searchsorted(ends, start + CHUNK, side="right")))
        end = int(ends[last - 1])
        lengths = length[first:last]
        row = np.repeat(np.arange(first, last), lengths)
        starts = np.repeat(ends[first:last] - lengths, lengths)
        place = np.arange(start, end) - starts
        place_hash = mix(place.astype(np.uint64))
        np.add.at(total, row, mix(tokens[start:end].astype(np.uint64) ^ place_hash))
        first = last
    return total

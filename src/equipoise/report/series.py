"""Columns of numbers with holes (None), and what a figure makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Column = Sequence[float | None]
WINDOW = 10


def present(values: Column) -> list[float]:
    return [v for v in values if v is not None]


def mean(values: Column) -> float | None:
    x = present(values)
    return sum(x) / len(x) if x else None


def running_mean(values: Column, window: int = WINDOW) -> list[float | None]:
    """The mean of the last `window` steps at each step, of fewer at the start."""
    x = np.array([np.nan] * (window - 1) + [np.nan if v is None else v for v in values])
    if len(values):
        last = np.lib.stride_tricks.sliding_window_view(x, window)
    else:
        last = np.empty((0, window))
    count = (~np.isnan(last)).sum(1)
    means = np.nansum(last, 1) / np.maximum(count, 1)
    return [m if n else None for m, n in zip(means.tolist(), count.tolist(), strict=True)]


def cumulative(values: Column) -> list[float | None]:
    """The sum up to each step; a step without a number adds nothing."""
    total = 0.0
    out: list[float | None] = []
    for v in values:
        total += v or 0.0
        out.append(total)
    return out


def bucket_size(n: int, points: int) -> int:
    """Steps that a point of a curve of n steps stands for."""
    return max(1, -(-n // points))


def buckets(n: int, points: int) -> list[range]:
    """At most `points` runs of indices that cover 0 … n − 1, of one size but for the first.

    The first is the short one: a run that is still going on has its newest step at the end of a
    whole one.
    """
    size = bucket_size(n, points)
    ends = range(n, 0, -size)
    return [range(max(0, end - size), end) for end in reversed(ends)]


def thin(values: Column, points: int) -> list[float | None]:
    """The mean of each bucket, rounded."""
    return [rounded(mean([values[i] for i in b])) for b in buckets(len(values), points)]


def at_ends(values: Column, points: int) -> list[float | None]:
    """The last value of each bucket, rounded: for what is a sum or a mean already."""
    return [rounded(values[b[-1]]) for b in buckets(len(values), points)]


def rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def spaced(items: Sequence[int], most: int) -> list[int]:
    """At most `most` items, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    if most == 1:
        return [items[-1]]
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def first_last_between(n: int) -> list[int]:
    """0 … n − 1 with the ends first, then ever finer between: what to keep when room runs out."""
    order = dict.fromkeys([0, n - 1] if n else [])
    parts = 1
    while len(order) < n:
        parts *= 2
        order |= dict.fromkeys(round(i * (n - 1) / parts) for i in range(1, parts, 2))
    return list(order)

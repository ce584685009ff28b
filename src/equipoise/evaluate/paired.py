"""Means over seeds with their intervals, and differences between variants within seeds.

Runs of one seed see the same prompts with the same draws from the same weights, so two variants are
compared in pairs: the unit is the difference within a seed. Seeds are what is drawn anew; the
held-out prompts are the same for all. Not here: intervals over prompts or problems (`metrics.py`),
and which runs belong to a variant.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.05
POWER = 0.8
POINT = 0.01  # the difference the sample size is reported for
MOST_SEEDS = 100_000
ROUNDING = 1e-9  # of the largest difference: what differs by less differs by rounding


@dataclass(frozen=True)
class Difference:
    """b − a within seeds: mean and 95 % interval, the p-value of the paired t-test, and Holm's."""

    a: str
    b: str
    mean: float
    low: float
    high: float
    p: float
    holm: float
    # that would show a difference of one point with 80 % power; None: too many, or no telling
    seeds_for_a_point: int | None
    seeds: int


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % interval of a mean; infinite for a single value."""
    n = len(values)
    if n < 2:
        return -math.inf, math.inf
    half = _quantile(n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return float(np.mean(values)) - half, float(np.mean(values)) + half


@functools.cache  # a page asks for it at every point of every curve
def _quantile(freedom: int) -> float:
    return float(stats.t.ppf(1 - LEVEL / 2, freedom))


def paired_differences(
    within: Mapping[tuple[str, str], Sequence[float] | np.ndarray],
) -> list[Difference]:
    """`within`: (a, b) → b − a of the seeds both have, two or more; Holm's over all pairs."""
    differences = {pair: np.asarray(d, dtype=float) for pair, d in within.items()}
    p = [paired_p(d) for d in differences.values()]
    return [
        Difference(
            a=a,
            b=b,
            mean=float(d.mean()),
            low=interval(d.tolist())[0],
            high=interval(d.tolist())[1],
            p=p[i],
            holm=corrected,
            seeds_for_a_point=seeds_needed(float(d.std(ddof=1))) if np.ptp(d) else None,
            seeds=len(d),
        )
        for i, (((a, b), d), corrected) in enumerate(zip(differences.items(), holm(p), strict=True))
    ]


def paired_p(d: np.ndarray) -> float:
    """The p-value of the paired t-test, two-sided.

    Where all differences are one number it has no noise to hold them against, and would be sure of
    anything: scores are shares of few answers, so two seeds often differ alike by chance. Then it is
    that of the sign test, 2·½ⁿ.
    """
    if not d.any():
        return 1.0
    if np.ptp(d) <= ROUNDING * np.abs(d).max():
        return float(2.0 ** (1 - len(d)))
    spread = d.std(ddof=1) / math.sqrt(len(d))
    return float(2 * stats.t.sf(abs(d.mean()) / spread, len(d) - 1))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down: the smallest times m, the next times m − 1, …, never decreasing."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    out, highest = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p) - rank) * p[i]))
        out[i] = highest
    return out


def seeds_needed(deviation: float, difference: float = POINT) -> int | None:
    """Seeds for a paired t-test at 5 % and 80 % power, given the deviation within seeds."""
    z = float(stats.norm.ppf(1 - LEVEL / 2) + stats.norm.ppf(POWER))
    # the normal law's answer, a few seeds too low
    n = max(2, math.floor((z * deviation / difference) ** 2))
    if n > MOST_SEEDS:
        return None
    while _power(n, deviation, difference) < POWER:
        n += 1
    return n


def _power(n: int, deviation: float, difference: float) -> float:
    """Of the paired t-test: the chance that the noncentral t lies beyond the critical value."""
    if deviation == 0:
        return 1.0
    shift, edge = math.sqrt(n) * difference / deviation, _quantile(n - 1)
    return float(stats.nct.sf(edge, n - 1, shift)) if shift < 30 else 1.0  # it overflows far out


def in_words(pairs: Sequence[Difference], metric: str) -> str:
    """What the differences say: who beats whom by how much, and what would show one point."""
    sure = [d for d in pairs if d.holm < LEVEL]
    unsure = [d for d in pairs if d.holm >= LEVEL]
    lines = []
    for d in sorted(sure, key=lambda d: -abs(d.mean)):
        better, worse, sign = (d.b, d.a, 1) if d.mean > 0 else (d.a, d.b, -1)
        low, high = sorted((sign * d.low, sign * d.high))
        lines.append(
            f"{better} beats {worse} by {100 * abs(d.mean):.1f} points of {metric} "
            f"(95 % interval {100 * low:.1f} to {100 * high:.1f}, p = {d.holm:.2g} after Holm's correction)."
        )
    if unsure:
        needed = [d.seeds_for_a_point for d in unsure]
        if any(d.low == d.high for d in unsure):
            wanted = "every seed gave the same, which does not tell how many"
        elif None in needed:
            wanted = "more seeds than anyone runs"
        else:
            wanted = f"{max(n for n in needed if n)} seeds"
        others = "pair" if len(unsure) == 1 else f"{len(unsure)} pairs"
        which = f"Between the other {others} no difference" if sure else "No difference"
        few, many = min(d.seeds for d in pairs), max(d.seeds for d in pairs)
        here = f"{few} seeds" if few == many else f"{few} to {many} seeds"
        lines.append(
            f"{which} detectable at this size ({here}); {wanted} would be needed to see 1 point."
        )
    return "\n".join(lines)

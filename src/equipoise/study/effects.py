"""The effects a study named beforehand, tested within seeds by Student's t, with Holm's correction.

A difference is plus − minus of the same seed. A dose's effect is a least-squares fit over the doses
within a seed: the slope times the range of the doses, which is what the outcome changes from the
lowest to the highest; or the bend of a parabola, which is how far its middle lies above the line
through its ends. Seeds are the unit of all of them, so nothing is assumed about how runs of one
seed hang together. Only seeds whose runs are all finished count.

A bend alone does not say that the middle is best: a curve that rises and flattens has one too. So a
bend also has its top, where the parabola is highest, with an interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from equipoise.evaluate.paired import LEVEL, POINT, holm, interval, paired_p, seeds_needed
from equipoise.study import results as found_in
from equipoise.study.plan import Dose, Primary, of_results


@dataclass(frozen=True)
class Top:
    """The dose at which the parabola is highest, its 95 % interval, and the middle of the doses."""

    at: float
    low: float
    high: float
    middle: float

    @property
    def is_middle(self) -> bool:
        return self.low <= self.middle <= self.high


@dataclass(frozen=True)
class Effect:
    primary: Primary
    seeds: int
    mean: float
    low: float
    high: float
    p: float
    holm: float
    needed: int | None  # seeds to see `size_that_matters` with 80 % power
    top: Top | None = None  # of a bend that is sure

    @property
    def verdict(self) -> str:
        """confirmed, refuted, undecided, or that the effect is smaller than what would matter."""
        margin = self.primary.margin
        small = margin is not None and -margin < self.low and self.high < margin
        size = _plain(margin, self.primary.metric)
        if self.holm >= LEVEL or math.isnan(self.mean):
            return f"no effect as large as {size}" if small else "undecided"
        said = "an effect"
        if self.primary.expect:
            as_said = (self.mean > 0) == (self.primary.expect == "up")
            said = "confirmed" if as_said else "refuted: the other way"
        if said == "confirmed" and self.top is not None and not self.top.is_middle:
            said = "bent, but the top is not in the middle"
        return f"{said}, smaller than {size}" if small else said


def _plain(margin: float | None, metric: str) -> str:
    if margin is None:
        return ""
    return f"{100 * margin:g} points" if found_in.is_share(metric) else f"{margin:g}"


def size_that_matters(row: Primary, mean: float) -> float:
    """The margin; without one a point of a share, and the effect seen of anything else."""
    if row.margin is not None:
        return row.margin
    return POINT if found_in.is_share(row.metric) else abs(mean)


def effects(results: Mapping[str, Any]) -> list[Effect]:
    study = of_results(results)
    by_row = [within(results, row, study.dose) for row in study.primary]
    raw = [paired_p(np.array(d)) if len(d) > 1 else 1.0 for d in by_row]
    tested = []
    for row, d, p, corrected in zip(study.primary, by_row, raw, holm(raw), strict=True):
        mean = float(np.mean(d)) if d else math.nan
        low, high = interval(d) if d else (-math.inf, math.inf)
        needed = top = None
        if len(d) > 1:
            needed = seeds_needed(float(np.std(d, ddof=1)), size_that_matters(row, mean))
        if study.dose is not None and row.shape == "bend" and len(d) > 1:
            top = top_of(by_dose(results, row, study.dose), study.dose.values)
        tested.append(Effect(row, len(d), mean, low, high, p, corrected, needed, top))
    return tested


def within(results: Mapping[str, Any], row: Primary, dose: Dose | None) -> list[float]:
    """The effect of each whole seed."""
    if not row.dosed:
        plus, minus = (found_in.values(results, variant, row) for variant in (row.plus, row.minus))
        return [plus[seed] - minus[seed] for seed in sorted(plus.keys() & minus.keys())]
    assert dose is not None
    outcomes, doses = by_dose(results, row, dose), np.array(dose.values)
    if not len(outcomes):
        return []
    extent = doses[-1] - doses[0]
    if row.shape == "slope":
        effects = np.polyfit(doses, outcomes.T, 1)[0] * extent
    else:
        effects = -np.polyfit(doses, outcomes.T, 2)[0] * (extent / 2) ** 2
    return [float(effect) for effect in effects]


def top_of(outcomes: np.ndarray, doses: Sequence[float]) -> Top | None:
    """Of [seeds, doses]: Fieller's interval, where t cannot tell the derivative from 0.

    None where the parabola has no top, or where its curvature is not sure:
    then the interval has no end.
    """
    square, linear, _ = np.polyfit(doses, outcomes.T, 2)
    a, b = float(square.mean()), float(linear.mean())
    of_means = np.cov(square, linear) / len(outcomes)
    t = float(stats.t.ppf(1 - LEVEL / 2, len(outcomes) - 1))
    # (b + 2ax)² ≤ t² Var(b + 2ax), as a quadratic in x
    lead = 4 * (a**2 - t**2 * of_means[0, 0])
    if a >= 0 or lead <= 0:
        return None
    roots = np.roots([lead, 4 * (a * b - t**2 * of_means[0, 1]), b**2 - t**2 * of_means[1, 1]]).real
    return Top(-b / (2 * a), float(roots.min()), float(roots.max()), (doses[0] + doses[-1]) / 2)


def by_dose(results: Mapping[str, Any], row: Primary, dose: Dose) -> np.ndarray:
    """[seeds, doses] the outcome, of the seeds that every dose has finished."""
    columns = [found_in.values(results, dose.variant(value), row) for value in dose.values]
    seeds = sorted(set.intersection(*(set(column) for column in columns)))
    return np.array([[column[seed] for column in columns] for seed in seeds]).reshape(
        len(seeds), len(columns)
    )

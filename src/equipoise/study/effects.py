"""The effects a study named beforehand, tested: within seeds, by Student's t over seeds, with Holm's correction.

A difference is plus − minus of the same seed. A dose's effect is a least-squares fit over the doses within a seed: the
slope times the range of the doses, which is what the outcome changes from the lowest to the highest; or the bend of a
parabola, which is how far its middle lies above the line through its ends. Seeds are the unit of all of them, so
nothing is assumed about how runs of one seed hang together. Only seeds whose runs are all finished count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.study import results as found_in
from equipoise.study.compare import LEVEL, POINT, holm, interval, paired_p, seeds_needed
from equipoise.study.plan import Dose, Primary, parse


@dataclass(frozen=True)
class Effect:
    primary: Primary
    seeds: int
    mean: float
    low: float
    high: float
    p: float
    holm: float
    needed: int | None  # seeds to see the margin, or one point, with 80 % power

    @property
    def verdict(self) -> str:
        """confirmed, refuted, undecided, or that the effect is smaller than what would matter."""
        margin = self.primary.margin
        small = margin is not None and -margin < self.low and self.high < margin
        if self.holm >= LEVEL or math.isnan(self.mean):
            return f"no effect as large as {_plain(margin, self.primary.metric)}" if small else "undecided"
        if not self.primary.expect:
            said = "an effect"
        else:
            said = "confirmed" if (self.mean > 0) == (self.primary.expect == "up") else "refuted: the other way"
        return f"{said}, smaller than {_plain(margin, self.primary.metric)}" if small else said


def _plain(margin: float | None, metric: str) -> str:
    if margin is None:
        return ""
    return f"{100 * margin:g} points" if found_in.is_share(metric) else f"{margin:g}"


def effects(results: Mapping[str, Any]) -> list[Effect]:
    study = parse({key: value for key, value in results.items() if key != "runs"}, "results")
    within = [_within(results, row, study.dose) for row in study.primary]
    raw = [paired_p(np.array(d)) if len(d) > 1 else 1.0 for d in within]
    tested = []
    for row, d, p, corrected in zip(study.primary, within, raw, holm(raw), strict=True):
        mean = float(np.mean(d)) if d else math.nan
        low, high = interval(d) if d else (-math.inf, math.inf)
        needed = seeds_needed(float(np.std(d, ddof=1)), row.margin or POINT) if len(d) > 1 else None
        tested.append(Effect(row, len(d), mean, low, high, p, corrected, needed))
    return tested


def _within(results: Mapping[str, Any], row: Primary, dose: Dose | None) -> list[float]:
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
        return (np.polyfit(doses, outcomes.T, 1)[0] * extent).tolist()
    return (-np.polyfit(doses, outcomes.T, 2)[0] * (extent / 2) ** 2).tolist()


def by_dose(results: Mapping[str, Any], row: Primary, dose: Dose) -> np.ndarray:
    """[seeds, doses] the outcome, of the seeds that every dose has finished."""
    columns = [found_in.values(results, dose.variant(value), row) for value in dose.values]
    seeds = sorted(set.intersection(*(set(column) for column in columns)))
    return np.array([[column[seed] for column in columns] for seed in seeds]).reshape(len(seeds), len(columns))

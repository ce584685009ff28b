"""Accuracy by how hard a prompt is for another model, by that model's own success rate.

The rates must come from draws of their own. Buckets made from the very samples that are then scored
would show the hard prompts improve and the easy ones fall by chance alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from equipoise.evaluate import metrics
from equipoise.evaluate.run import SEED, Evaluation, Graded

BUCKETS = {"hard": (0.0, 0.25), "mid": (0.25, 0.75), "easy": (0.75, 1.0)}
BASE_SEED = SEED + 1  # of the model that the buckets are made by


def bucket(rate: float) -> str:
    """hard below .25, easy from .75 on."""
    for name, (_, high) in BUCKETS.items():
        if rate < high:
            return name
    return "easy"  # a rate of 1


def by_difficulty(base: Evaluation, now: Evaluation) -> dict[str, dict[str, Any]]:
    """acc@n of `now` and of `base` in each bucket of `base` that has prompts.

    base's own accuracy in a bucket is what put the prompts there:
    it says how the buckets are made, not how good base is on such prompts.
    """
    rates = [_rate(row) for row in base.sampled]
    table: dict[str, dict[str, Any]] = {}
    for name in BUCKETS:
        places = [i for i, rate in enumerate(rates) if bucket(rate) == name]
        if not places:
            continue
        outcomes = [[graded.outcome for graded in now.sampled[i]] for i in places]
        found = metrics.acc(outcomes)
        key = f"acc@{len(outcomes[0])}"
        table[name] = {
            "prompts": len(places),
            "base": sum(rates[i] for i in places) / len(places),
            key: found.value,
            "interval": [found.low, found.high],
        }
    return table


def _rate(row: Sequence[Graded]) -> float:
    return sum(graded.outcome for graded in row) / len(row)

"""Objectives by what a person would call them: a preset and changes to it, joined by plus signs."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.objective.aggregation import AGGREGATIONS
from equipoise.objective.cancellation import CANCELLATIONS
from equipoise.objective.choice import nearest
from equipoise.objective.difficulty import DIFFICULTIES
from equipoise.objective.objective import Objective
from equipoise.objective.presets import PRESETS

CHOICES: dict[str, Sequence[str]] = {
    "aggregation": list(AGGREGATIONS),
    "difficulty": [n for n in DIFFICULTIES if n != "none"],
    "cancellation": [n for n in CANCELLATIONS if n != "none"],
}


def named(name: str, base: Objective | None = None) -> Objective:
    """A preset ("dapo"), a change to `base` ("balanced", "hadw", "prefix"), or several ("grpo+balanced+hadw")."""
    first, *rest = name.split("+")
    if first in PRESETS:
        choices = Objective.preset(first).choices()
    elif base is None:
        raise ValueError(nearest("preset", first, list(PRESETS)))
    else:
        choices, rest = base.choices(), [first, *rest]
    for word in rest:
        slot = next((slot for slot, names in CHOICES.items() if word in names), None)
        if slot is None:
            known = [*PRESETS, *(n for names in CHOICES.values() for n in names)]
            raise ValueError(nearest("against" if base else "objective", word, known).removeprefix("objective."))
        choices[slot] = word
    try:
        return Objective(**choices)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error

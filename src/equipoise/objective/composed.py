"""Objectives by what a person would call them: a preset and changes to it, joined by plus signs.

"dapo+balanced+hadw" is the preset dapo with aggregation = balanced and difficulty = hadw. A word
stands for a choice with its default options; options of their own are given as mappings (see
`Objective.preset`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.objective.aggregation import AGGREGATIONS
from equipoise.objective.cancellation import CANCELLATIONS
from equipoise.objective.choice import nearest
from equipoise.objective.difficulty import DIFFICULTIES
from equipoise.objective.presets import PRESETS

CHOICES: dict[str, Sequence[str]] = {
    "aggregation": list(AGGREGATIONS),
    "difficulty": [n for n in DIFFICULTIES if n != "none"],
    "cancellation": [n for n in CANCELLATIONS if n != "none"],
}


def choices_of(name: str, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The choices of a preset ("dapo"), of a preset and changes to it ("dapo+balanced+hadw") or,
    where `base` is given, of changes to that ("balanced").
    """
    if not isinstance(name, str):
        raise ValueError(nearest("preset", name, list(PRESETS)))
    first, *rest = words = [word.strip() for word in name.split("+")]
    if first in PRESETS:
        return changed(dict(PRESETS[first].choices), rest, name)
    if base is None:
        raise ValueError(nearest("preset", first, list(PRESETS)))
    return changed(dict(base), words, name, option="against")


def changed(
    choices: dict[str, Any], words: Sequence[str], name: str, option: str = "preset"
) -> dict[str, Any]:
    """`choices` with each word in its slot; `name` and `option` are for complaints."""
    taken: dict[str, str] = {}
    for word in words:
        slot = next((slot for slot, names in CHOICES.items() if word in names), None)
        if slot is None:
            known = [n for names in CHOICES.values() for n in names]
            known = [*PRESETS, *known] if option == "against" else known
            raise ValueError(
                nearest(option, word, known).removeprefix(
                    "" if option == "preset" else "objective."
                )
            )
        if slot in taken:
            raise ValueError(
                f"{name}: {taken[slot]} and {word} are both {slot}; leave one of them out"
            )
        taken[slot] = choices[slot] = word
    return choices

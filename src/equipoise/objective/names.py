"""An objective from its name alone, or from what the name changes of another one."""

from __future__ import annotations

from equipoise.objective.composed import choices_of
from equipoise.objective.objective import Objective
from equipoise.objective.presets import PRESETS


def named(name: str, base: Objective | None = None) -> Objective:
    """A preset ("dapo"), a change to `base` ("balanced", "hadw", "prefix"),
    or several ("grpo+balanced+hadw").
    """
    if base is None or name.partition("+")[0].strip() in PRESETS:
        return Objective.preset(name)
    choices = choices_of(name, base.choices())
    try:
        return Objective(**choices)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error

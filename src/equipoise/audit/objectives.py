"""The objectives an audit compares, from what a person would call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.audit.log import AuditError
from equipoise.objective import PRESETS, Objective, names

Named = str | Objective


def named(name: str, base: Objective | None = None) -> Objective:
    """`objective.named`, whose complaint is the audit's."""
    try:
        return names.named(name, base)
    except ValueError as error:
        raise AuditError(str(error)) from error


def fresh(objective: Objective, **changed: Any) -> Objective:
    """The same choices without the state: an audit leaves the caller's difficulty anchor alone."""
    choices = {**objective.choices(), **changed}
    # The log holds one reward per response, already weighed and summed.
    return Objective(**{**choices, "reward_weights": (1.0,), "combine": "rewards"})


def label(objective: Objective) -> str:
    """A preset's name where the stack is a preset's, else the choices that tell it apart."""
    for name in PRESETS:
        if Objective.preset(name).choices() == {**objective.choices(), "reward_weights": [1.0]}:
            return name
    parts = [objective.aggregation.name, objective.difficulty_choice.name, objective.cancellation]
    return "+".join([parts[0], *(p for p in parts[1:] if p != "none")])


def gathered(
    objective: Named, against: Sequence[Named] | Mapping[str, Named] | None, with_tokens: bool
) -> dict[str, Objective]:
    """Every objective under its name, the audited one first."""
    base = named(objective) if isinstance(objective, str) else objective
    audited = _name(objective)
    out = {audited: fresh(base)}
    against = _rules(base, with_tokens) if against is None else against
    pairs = (
        against.items() if isinstance(against, Mapping) else [(_name(o, base), o) for o in against]
    )
    for name, other in pairs:
        is_listed = isinstance(other, str) and len(against) > 1
        if name == audited and (is_listed or other == audited):
            continue  # a list of all rules has the audited one's too
        if name in out:
            raise AuditError(_twice(name, other))
        out[name] = fresh(named(other, base) if isinstance(other, str) else other)
    return out


def _twice(name: str, other: Named) -> str:
    """A change that says what the audited objective has already is a question about a part of it."""
    if isinstance(other, str) and other != name:
        return (
            f"{other} keeps what it does not name, and is then {name}, which is there already; a whole objective takes "
            f"nothing from the audited one: grpo+{other}"
        )
    return f"{name} is there twice: give each objective a name of its own"


def _name(objective: Named, base: Objective | None = None) -> str:
    """A change to `base` keeps what it does not name: "balanced" of hadw is balanced+hadw."""
    if not isinstance(objective, str):
        return label(objective)
    words = objective.split("+")
    if base is None or words[0] in PRESETS:
        return objective
    changed = named(objective, base)
    kept = (changed.difficulty_choice.name, changed.cancellation)
    return "+".join([*words, *(name for name in kept if name != "none" and name not in words)])


def _rules(base: Objective, with_tokens: bool) -> dict[str, Objective]:
    """The audited stack under the other rules; constant is as token, and prefix excludes it."""
    own = base.aggregation.name
    changes = [
        {"aggregation": r}
        for r in ("token", "sequence", "balanced")
        if r != own and (r, own) != ("token", "constant")
    ]
    if with_tokens:
        changes.append({"aggregation": "balanced", "cancellation": "prefix"})
    out = {}
    for change in changes:
        try:
            stack = fresh(base, **change)
        except ValueError:  # a stack that makes no sense, such as token with prefix
            continue
        parts = [stack.aggregation.name, stack.difficulty_choice.name, stack.cancellation]
        out["+".join([parts[0], *(p for p in parts[1:] if p != "none")])] = stack
    return {name: stack for name, stack in out.items() if stack.choices() != fresh(base).choices()}

"""Which column of a log is what: by its name, by its writer's habits, or as the user says.

A role is made of columns and their weights, which are 1 but in a sum of rewards:
"right+0.2*format".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from equipoise.audit.log import AuditError
from equipoise.audit.readers import openrlhf, ours, trl, verl

NAMES: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt_id", "prompt", "input", "prompts"),
    "group": ("group",),
    "step": ("step",),
    "reward": ("reward", "score", "rewards"),
    "length": ("length", "response_length"),
    "tokens": ("tokens",),
    "text": ("response", "completion", "output"),
    "finish": ("finish", "truncated"),
    "kept": ("kept",),
    "sampler_logprob": ("sampler_logprob",),
    "trainer_logprob": ("trainer_logprob",),
}

Roles = dict[str, dict[str, float]]


def parse_columns(text: str) -> dict[str, str]:
    """ "reward=score,prompt=uid" as a mapping."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    for role, equals, name in pairs:
        if not (equals and role.strip() and name.strip()):
            raise AuditError(
                f"columns: {text}: it must be ROLE=COLUMN, with commas between ({', '.join(NAMES)})"
            )
    return {role.strip(): name.strip() for role, _, name in pairs}


def check_columns(columns: Mapping[str, str]) -> None:
    for role in columns:
        if role not in NAMES:
            raise AuditError(
                f'columns: "{role}" is not something the audit reads ({", ".join(NAMES)})'
            )


def writer_of(names: Sequence[str]) -> str:
    """Who wrote a file, as far as its columns tell."""
    habits = {"equipoise": ours, "TRL": trl, "verl": verl, "OpenRLHF": openrlhf}
    for writer, columns in ((writer, module.COLUMNS) for writer, module in habits.items()):
        if all(c in names for c in columns):
            return writer
    return "table"


def roles_of(file: str, names: Sequence[str], columns: Mapping[str, str]) -> Roles:
    """The roles in a file of these columns; `columns` are the user's, and win."""
    roles: Roles = {}
    for role, known in NAMES.items():
        if role in columns:
            roles[role] = _terms(role, columns[role], names, file)
        elif name := next((n for n in known if n in names), None):
            roles[role] = {name: 1.0}
    writer = writer_of(names)
    if writer == "TRL":
        if "reward" not in columns:
            roles["reward"] = dict.fromkeys(trl.reward_columns(names), 1.0)
        roles["advantage"] = {"advantage": 1.0}
    if writer == "verl" and "uid" in names:
        roles.setdefault("group", {"uid": 1.0})
    for role, instead in (("prompt", "group"), ("reward", "reward"), ("length", "tokens or text")):
        if not {role, *instead.split(" or ")} & roles.keys():
            either = "" if instead == role else f" (or {instead})"
            raise AuditError(
                f"{file} has no column for {role}{either}: it has {', '.join(names) or 'none'}; "
                f"name one with --columns {role}=NAME"
            )
    if ("length" in roles or "tokens" in roles) and writer != "TRL":
        roles.pop("text", None)
    return roles


def read_from(
    file: str, names: Sequence[str], columns: Mapping[str, str], roles: Roles
) -> dict[str, str]:
    """What each role was read from, and which columns might have been meant instead."""
    found = {role: _sum(terms) for role, terms in roles.items() if role in NAMES}
    for role in found.keys() - columns.keys():
        known = [*NAMES[role]]
        if role == "reward" and writer_of(names) == "TRL":
            known += trl.reward_columns(names)
        others = [name for name in known if name in names and name not in roles[role]]
        found[role] += f" (not {', '.join(others)})" if others else ""
    text = found.pop("text", "")
    if "length" not in found:
        found["length"] = found.get("tokens", text)
    if "step" not in found:
        in_name = ours.step_in_name(file) is not None
        found["step"] = "the file's name" if in_name else "none, all one step"
    return found


def _sum(terms: Mapping[str, float]) -> str:
    return " + ".join(
        name if weight == 1 else f"{weight:g}*{name}" for name, weight in terms.items()
    )


def _terms(role: str, text: str, names: Sequence[str], file: str) -> dict[str, float]:
    """ "a" or, for rewards, "a+0.5*b" as columns and weights."""
    if text in names:
        return {text: 1.0}
    terms: dict[str, float] = {}
    for term in text.split("+") if role == "reward" else [text]:
        weight, times, name = term.strip().partition("*")
        try:
            terms[name.strip() if times else term.strip()] = float(weight) if times else 1.0
        except ValueError:
            raise AuditError(
                f"columns: {role}={text}: {weight} is not a weight; write 0.5*NAME"
            ) from None
    for name in terms:
        if name not in names:
            raise AuditError(
                f"{file} has no column {name}, which columns name for {role}: it has {', '.join(names)}"
            )
    return terms

"""One of the choices an objective is made of: a name, its options, and the function behind it."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Spec = str | Mapping[str, Any]

_NAMES = {
    "std": ("paper", "sample"),
    "over": ("group", "batch"),
    "divergence": ("tv", "kl"),
    "ratio": ("product", "mean"),
    "whiten": ("tokens", "responses"),
    "masked": ("drop", "pass"),
}
_POSITIVE = (0.0, math.inf, "()", "must be positive")
_NOT_NEGATIVE = (0.0, math.inf, "[)", "must not be negative")
# Options mean the same in every choice, so their ranges stand in one place:
# ends, whether an end belongs, the sentence.
_RANGES: dict[str, tuple[float, float, str, str]] = {
    **dict.fromkeys(
        ("k", "length", "tau_positive", "tau_negative", "lam_positive", "lam_negative", "eps"),
        _POSITIVE,
    ),
    **dict.fromkeys(("high", "alpha", "k_positive", "k_negative"), _NOT_NEGATIVE),
    "imbalance": (-1.0, 1.0, "()", "must lie between -1 and 1: each sign must pull its own way"),
    "strength": (-math.inf, math.inf, "()", "must be a finite number"),
    "low": (0.0, 1.0, "[]", "must lie between 0 and 1: a ratio does not fall below 0"),
    "cap": (1.0, math.inf, "[)", "must be at least 1: a ratio of 1 is no reason to cut"),
    "beta": (1.0, math.inf, "[)", "must be at least 1: a ratio of 1 is no reason to cut"),
}
# A bound is of whatever it bounds: where another option says of what, its default follows.
_DEFAULTS: dict[tuple[str, str, str], dict[str, Any]] = {
    ("dppo", "divergence", "kl"): {"low": 0.05, "high": 0.05},
}
_LOG_BOUNDS = "gmpo"  # whose low is a bound of log ρ, not of 1 − ρ
_KINDS: dict[type, Any] = {str: str, bool: bool, int: int, float: (int, float)}


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """` did you mean "…"?` where a known name is near, the first of those equally near, else
    ` use one of`: both stand well before the known names.
    """
    wanted, folded = _folded(name), {_folded(one): one for one in known}
    # it bounds the likeness first, which for a long name takes long
    close = difflib.get_close_matches(wanted, folded, n=max(1, len(folded)))

    def likeness(one: str) -> float:
        return difflib.SequenceMatcher(None, one, wanted).ratio()

    near = max((one for one in folded if one in close), key=likeness, default=None)
    return " use one of" if near is None else f' did you mean "{folded[near]}"?'


def _folded(name: object) -> str:
    """Without what people write in other ways: "Dr-GRPO" is dr_grpo."""
    return str(name).casefold().replace("-", "_").replace(" ", "_")


def nearest(slot: str, name: object, known: list[str]) -> str:
    """The sentence an unknown name earns."""
    return (
        f'objective.{slot} = "{name}" is not known;{did_you_mean(name, known)} ({", ".join(known)})'
    )


def number(slot: str, value: Any) -> float:
    """An option that is a number by itself, or a ValueError that names it."""
    if not isinstance(value, str | bool):
        with contextlib.suppress(TypeError, ValueError):
            return float(value)
    raise ValueError(f"objective.{slot} = {value!r} must be a number")


@dataclass(frozen=True)
class Choice:
    """Calling a choice calls its function with its options."""

    name: str
    function: Any
    options: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)

    def __call__(self, *args: Any) -> Any:
        return self.function(*args, **self.options)

    def __str__(self) -> str:
        return self._with(self.options)

    def brief(self) -> str:
        """The name, and the options that differ from their defaults."""
        return self._with({k: v for k, v in self.options.items() if v != self.defaults[k]})

    def _with(self, options: dict[str, Any]) -> str:
        values = {k: f"{v:g}" if isinstance(v, float) else v for k, v in options.items()}
        shown = ", ".join(f"{k}={v}" for k, v in values.items())
        return f"{self.name}({shown})" if shown else self.name

    def spec(self) -> dict[str, Any]:
        """What `choose` would take to build this choice again."""
        return {"name": self.name, **self.options}


def choose(slot: str, table: Mapping[str, Any], spec: Spec) -> Choice:
    """Look a choice up by name ("balanced") or by name and options ({"name": "power", "alpha":
    0.5}).
    """
    options = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
    name = options.pop("name", None)
    if not isinstance(name, str) or name not in table:
        raise ValueError(nearest(slot, name, list(table)))
    function = table[name]
    known: dict[str, Any] = {}
    if function is not None:
        parameters = inspect.signature(function).parameters.values()
        known = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    for (owner, key, value), defaults in _DEFAULTS.items():
        if owner == name and options.get(key) == value:
            known |= defaults
    for key in options:
        if not known:
            raise ValueError(
                f"objective.{slot}.{key}: {slot} = {name} takes no options; name a choice that does"
            )
        if key not in known:
            raise ValueError(nearest(f"{slot}.{name}", key, list(known)))
        kind = _KINDS.get(type(known[key]), object)
        truth = isinstance(options[key], bool) and kind is not bool
        if not isinstance(options[key], kind) or (truth and kind is not object):
            raise ValueError(
                f"objective.{slot}.{key} = {options[key]!r} should be like its default, {known[key]!r}"
            )
        _check(f"{slot}.{key}", name, key, options[key])
    return Choice(name, function, {**known, **options}, known)


def _check(where: str, name: str, key: str, value: Any) -> None:
    if key in _NAMES and value not in _NAMES[key]:
        raise ValueError(nearest(where, value, list(_NAMES[key])))
    if key not in _RANGES or value is None:
        return
    low, high, ends, sentence = _NOT_NEGATIVE if name == _LOG_BOUNDS else _RANGES[key]
    above = value > low or (ends[0] == "[" and value == low)
    below = value < high or (ends[1] == "]" and value == high)
    if not (above and below):
        raise ValueError(f"objective.{where} = {value} {sentence}")

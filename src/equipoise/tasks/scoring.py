"""A score for an answer to a reasoning-gym entry; inside the sandbox: stdlib and the package.

The scorer is the package's own, except where it takes answers that are none: those are graded here
(`OWN`), or their full score must survive a second look (`CONFIRMED`). docs/gym.md lists them with
the reason.
"""

from __future__ import annotations

import ast
import datetime
import json
import os
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

GRIDS = ("arc_agi", "rearc")  # compare tuples, which an entry from a JSON file has as lists
# whose scorers call eval
LITERALS = ("spiral_matrix", "n_queens", "string_insertion", "binary_matrix")
PEOPLE = re.compile(r"(?:\s*+(?:and\s++)?+\w++ is an? \w++\s*+[,.]?+)++")
SIZE = 64  # of the data sets that scorers belong to; no item of them is made

Entry = dict[str, Any]


def warm() -> None:
    """Import everything once, in the process that the answering ones are forked from."""
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import reasoning_gym  # noqa: F401


def answer(request: bytes) -> str:
    """[kind, reason, value or None] as JSON, for [task, options, packed entry, answer]."""
    task, options, packed, text = json.loads(request)
    return json.dumps(score(task, options, unpack(packed), text))


def score(task: str, options: dict[str, Any], entry: Entry, text: str) -> list[Any]:
    try:
        scorer = _dataset(task, json.dumps(options))
    except Exception as error:
        return ["bad_gold", f"{task}: {_said(error)}", None]
    if task in GRIDS:
        entry["metadata"]["output"] = tuple(map(tuple, entry["metadata"]["output"]))
    try:
        value = _value(task, scorer, entry, text)
    except Exception as error:
        if why := _reference_fails(task, scorer, entry):
            return ["bad_gold", f"{task} cannot read its own reference: {why}", None]
        return ["unparsed", f"{task} cannot read it: {_said(error)}", 0.0]
    if not 0.0 <= value <= 1.0:
        return ["crashed", f"{task} scored {value:g}: a score must be from 0 to 1", None]
    return ["correct" if value == 1.0 else "wrong", f"scored {value:g}", value]


def _value(task: str, scorer: Any, entry: Entry, text: str) -> float:
    if (
        task in LITERALS
        and text.strip() != str(entry["answer"]).strip()
        and text not in _solutions(entry)
    ):
        ast.literal_eval(text)  # the same parser as eval, which the scorer would call
    if task in OWN:
        return float(OWN[task](text, entry))
    value = float(scorer.score_answer(text, entry))
    if value < 1.0 and task in ALL_OR_NOTHING:
        return 0.0
    if value == 1.0 and task in CONFIRMED and not CONFIRMED[task](text, entry):
        return 0.0
    return value


def _solutions(entry: Entry) -> list[str]:
    """Of n_queens, whose scorer accepts any of them as it is."""
    known = entry["metadata"].get("valid_answers")
    return known if isinstance(known, list) else []


def _reference_fails(task: str, scorer: Any, entry: Entry) -> str | None:
    if not entry["answer"]:
        return None  # any solution is right, and there is none to try
    try:
        _value(task, scorer, entry, str(entry["answer"]))
    except Exception as error:
        return _said(error)
    return None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]


@lru_cache(maxsize=64)
def _dataset(task: str, options: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(task, size=SIZE, seed=0, **json.loads(options))


def unpack(value: Any) -> Any:
    """What `equipoise.tasks.gym.pack` wrote."""
    if isinstance(value, list):
        return [unpack(x) for x in value]
    if isinstance(value, dict):
        ((kind, inside),) = value.items()
        if kind in ("date", "datetime", "time"):
            return getattr(datetime, kind).fromisoformat(inside)
        if kind == "tuple":
            return tuple(map(unpack, inside))
        return {unpack(k): unpack(x) for k, x in inside}
    return value


def arithmetic(text: str) -> tuple[Fraction, list[int]]:
    """The exact value of +, -, *, / and () over integers, and the integers; else ValueError."""
    used: list[int] = []

    def value(node: ast.expr) -> Fraction:
        match node:
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                used.append(number)
                return Fraction(number)
            case ast.UnaryOp(op=ast.USub(), operand=inside):
                return -value(inside)
            case ast.BinOp(left=left, op=operation, right=right):
                a, b = value(left), value(right)
                match operation:
                    case ast.Add():
                        return a + b
                    case ast.Sub():
                        return a - b
                    case ast.Mult():
                        return a * b
                    case ast.Div():
                        return a / b
        raise ValueError(f"{text[:60]!r} is not made of integers, + - * / and parentheses")

    return value(ast.parse(text.strip(), mode="eval").body), used


def _makes(target: int, text: str, entry: Entry) -> bool:
    """Whether the expression uses each given number once and is exactly the target."""
    value, used = arithmetic(text)
    return value == target and sorted(used) == sorted(entry["metadata"]["numbers"])


def _coin_flip(text: str, entry: Entry) -> bool:
    """To four decimals; the package pays for a common prefix: 0.5 earned .63 on average."""
    if "e" in text.lower():
        raise ValueError("a probability is a decimal or a fraction")
    said, right = (Fraction(x.replace(",", "")) for x in (text, entry["answer"]))
    return abs(said - right) <= Fraction(1, 10_000)


def _as_reference(text: str, entry: Entry) -> bool:
    return text.strip().lower() == str(entry["answer"]).strip().lower()


OWN: dict[str, Callable[[str, Entry], bool]] = {
    "coin_flip": _coin_flip,
    "countdown": lambda text, entry: _makes(entry["metadata"]["target"], text, entry),
    "game_of_life_halting": _as_reference,
    "puzzle24": lambda text, entry: _makes(24, text, entry),
}
# Whose partial credit a constant or an echo collects: below the full score there is none.
ALL_OR_NOTHING = (
    "aiw", "calendar_arithmetic", "course_schedule", "game_of_life", "gcd", "isomorphic_strings", "knights_knaves",
    "letter_counting", "list_functions", "mini_sudoku", "polynomial_equations", "prime_factorization", "ransom_note",
    "rectangle_count", "rotate_matrix", "sudoku", "syllogism", "time_intervals", "word_sorting",
)  # fmt: skip
CONFIRMED: dict[str, Callable[[str, Entry], bool]] = {
    "complex_arithmetic": lambda text, entry: "nan" not in text.lower(),
    # it reads roles out of the puzzle's sentences
    "knights_knaves": lambda text, entry: bool(PEOPLE.fullmatch(text)),
    # it reads letters of any sentence
    "quantum_lock": lambda text, entry: bool(re.fullmatch(r"[A-C\s,>→-]+", text)),
}

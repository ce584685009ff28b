"""A verdict on one response. Only `correct` and `wrong` are scores; others say why none."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Kind = Literal[
    "correct", "wrong", "unparsed", "timeout", "limit", "crashed", "bad_gold", "unavailable"
]

KINDS: tuple[str, ...] = get_args(Kind)
SCORES: tuple[str, ...] = ("correct", "wrong")
NO_SCORE: tuple[str, ...] = ("bad_gold", "unavailable")  # kinds that say nothing about the response


@dataclass(frozen=True, slots=True)
class Verdict:
    """`kind` is the outcome, `reason` in words, `seconds` it took, `answer` what was read.

    `value` is partial credit in [0, 1] for verifiers that grade by degree; a verifier that does not
    leaves it `None` and the reward table decides.
    """

    kind: Kind
    reason: str = ""
    seconds: float = 0.0
    value: float | None = None
    answer: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"verdict kind {self.kind!r} is not one of {', '.join(KINDS)}")
        if self.value is not None and not 0.0 <= self.value <= 1.0:
            raise ValueError(f"verdict value {self.value!r}: partial credit lies in [0, 1]")

    @property
    def accuracy(self) -> float | None:
        """How right the response is, whatever the reward; None where the verdict does not say."""
        if self.kind in NO_SCORE:
            return None
        if self.kind in SCORES and self.value is not None:
            return self.value
        return float(self.kind == "correct")


LARGEST = 1e15  # of a reward or a weight: sums, squares and products of these are finite
Outcome = Verdict | float
Reply = Outcome | list[Outcome]  # a list from a function that judges several responses in a call


def encode(reply: Reply) -> bytes:
    """As JSON, for another process: ASCII only, so that lone surrogates of a response pass too."""
    return json.dumps(
        [_table(x) for x in reply] if isinstance(reply, list) else _table(reply)
    ).encode()


def _table(outcome: Outcome) -> Any:
    return asdict(outcome) if isinstance(outcome, Verdict) else outcome


def decode(data: bytes) -> Reply:
    """Strictly what `encode` writes, else ValueError: the bytes may be hostile."""
    try:
        table = json.loads(data.decode("ascii"), parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("a verdict does not nest") from error
    return [_outcome(x) for x in table] if isinstance(table, list) else _outcome(table)


def _outcome(table: Any) -> Outcome:
    if isinstance(table, float) and abs(table) <= LARGEST:
        return table
    if not isinstance(table, dict) or set(table) != set(Verdict.__slots__):
        raise ValueError("not a verdict")
    kinds: dict[str, Any] = {
        "kind": str,
        "reason": str,
        "seconds": float,
        "value": float | None,
        "answer": str | None,
    }
    for name, kind in kinds.items():
        if not isinstance(table[name], kind):
            raise ValueError(f"verdict {name} is {type(table[name]).__name__}")
    if not math.isfinite(table["seconds"]):
        raise ValueError("verdict seconds overflow")
    return Verdict(**table)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number of a verdict")

"""What a verifier says about one response. Only `correct` and `wrong` are scores; the rest say why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["correct", "wrong", "unparsed", "timeout", "limit", "crashed", "bad_gold", "unavailable"]

KINDS: tuple[str, ...] = get_args(Kind)
SCORES: tuple[str, ...] = ("correct", "wrong")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`kind` names the outcome, `reason` says it in words, `seconds` is what it took, `answer` what was read.

    `value` is partial credit in [0, 1] for verifiers that grade by degree; a verifier that does not leaves it `None`
    and the reward table decides.
    """

    kind: Kind
    reason: str = ""
    seconds: float = 0.0
    value: float | None = None
    answer: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"verdict kind {self.kind!r} is not one of {', '.join(KINDS)}")

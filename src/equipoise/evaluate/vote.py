"""Which answers of a problem's samples are the same one, so that they can be voted for together.

Two answers are the same if their texts are, without white space, or if exact arithmetic says so
(`rewards.equal.quick`: 1/2 and 0.5). An answer joins the first group whose first answer it equals.
SymPy is not asked: what only it could tell apart from a different answer (sin²x + cos²x and 1)
stays two answers, and the vote is split between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from equipoise.verifiers.math import equal

WHOLE = re.compile(r"0|-?[1-9][0-9]*")  # written in the only way there is


def candidates(answers: Sequence[str | None]) -> list[int | None]:
    """For each answer the number of the first one it is the same as; None where there is no answer."""
    numbers: dict[str, int] = {}  # of every text so far
    firsts: dict[int, str] = {}
    found: list[int | None] = []
    for i, answer in enumerate(answers):
        if answer is None:
            found.append(None)
            continue
        text = "".join(answer.split())
        if text not in numbers:
            numbers[text] = next((k for k, first in firsts.items() if _same(first, answer)), i)
            firsts.setdefault(numbers[text], answer)
        found.append(numbers[text])
    return found


def _same(first: str, answer: str) -> bool:
    if WHOLE.fullmatch(first) and WHOLE.fullmatch(answer):
        return first == answer
    return equal.quick(first, answer, "lenient") is True  # a calculation is a vote for its value

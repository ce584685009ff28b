"""Which answers of a problem's samples are the same one, so that they can be voted for together.

Two answers are the same if their texts are, without white space, or if exact arithmetic says so (`rewards.equal.quick`:
1/2 and 0.5). An answer joins the first group whose first answer it equals. SymPy is not asked: what only it could tell
apart from a different answer (sin²x + cos²x and 1) stays two answers, and the vote is split between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.rewards import equal


def candidates(answers: Sequence[str | None]) -> list[int | None]:
    """For each answer the number of the first one it is the same as; None where there is no answer."""
    by_text: dict[str, int] = {}
    firsts: list[int] = []
    found: list[int | None] = []
    for i, answer in enumerate(answers):
        if answer is None:
            found.append(None)
            continue
        text = "".join(answer.split())
        if text not in by_text:
            same = next((k for k in firsts if equal.quick(str(answers[k]), answer)), None)
            by_text[text] = i if same is None else same
            firsts += [i] if same is None else []
        found.append(by_text[text])
    return found

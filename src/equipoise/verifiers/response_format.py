"""Rewards for how a response is written: tags, a box, not too long."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.verifiers.math import extract
from equipoise.verifiers.verdict import Verdict


def tags(response: str, names: Sequence[str] = ("think", "answer")) -> Verdict:
    """`correct` if the response is <a>…</a><b>…</b>… with the names in order, once each, with
    something inside and nothing but white space around; a prompt that ends with the first opening
    tag may leave it out.
    """
    rest = response.strip()
    for i, name in enumerate(names):
        opening, closing = f"<{name}>", f"</{name}>"
        if response.count(opening) > 1 or response.count(closing) != 1:
            return Verdict(
                "wrong", f"{closing} stands {response.count(closing)} times: must stand once"
            )
        if not rest.startswith(opening) and (i > 0 or opening in response):
            return Verdict("wrong", f"something stands before {opening}")
        inside, _, rest = rest.removeprefix(opening).partition(closing)
        if not inside.strip():
            return Verdict("wrong", f"nothing between {opening} and {closing}")
        rest = rest.lstrip()
    return Verdict("wrong", "text after the last tag") if rest else Verdict("correct")


def boxed(response: str) -> Verdict:
    """`correct` if a closed \\boxed{…} with something in it is there, as the math verifier reads it."""
    there = extract.answer(response, ("boxed",)).text is not None
    return Verdict("correct") if there else Verdict("wrong", "no \\boxed{…}")


def overlong(length: int, max_tokens: int, buffer: int) -> float:
    """DAPO's soft punishment: 0 up to max_tokens − buffer, falling linearly to −1 at max_tokens."""
    return min(max((max_tokens - buffer - length) / buffer, -1.0), 0.0)

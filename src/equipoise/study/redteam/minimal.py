r"""The least of an exploit: delta debugging on its pieces, and the shape that tells its kind.

A piece is a LaTeX command, a word, a number or a single character. Zeller's ddmin takes pieces away
while the rest stays an exploit of the same kind; what is left is 1-minimal (no single piece can go)
unless the budget of trials ran out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

PIECE = re.compile(r"\\[a-zA-Z]+|[A-Za-z]+|\d+|\s+|.", re.DOTALL)
TRIALS = 200
PAIRS = ("{}", "()", "[]", "$$")


def pieces(text: str) -> list[str]:
    return PIECE.findall(text)


def minimal(text: str, is_exploit: Callable[[str], bool], trials: int = TRIALS) -> str:
    """The shortest part of `text` that ddmin finds with `is_exploit` still true, as of `text`."""
    kept = pieces(text)
    chunks = 2
    while len(kept) >= 2 and trials > 0:
        size = -(-len(kept) // chunks)
        for start in range(0, len(kept), size):
            rest = [*kept[:start], *kept[start + size :]]
            trials -= 1
            if rest and is_exploit("".join(rest)):
                kept, chunks = rest, max(chunks - 1, 2)
                break
            if trials <= 0:
                break
        else:
            if size == 1:
                break
            chunks = min(chunks * 2, len(kept))
    return "".join(_without_brackets(kept, is_exploit, trials))


def _without_brackets(kept: list[str], is_exploit: Callable[[str], bool], trials: int) -> list[str]:
    """Brackets can only go in pairs, which ddmin does not try."""
    for first, second in itertools.combinations(range(len(kept)), 2):
        if kept[first] + kept[second] not in PAIRS or trials <= 0:
            continue
        trials -= 1
        rest = [piece for i, piece in enumerate(kept) if i not in (first, second)]
        if rest and is_exploit("".join(rest)):
            return _without_brackets(rest, is_exploit, trials)
    return kept


def shape(text: str, truth: int) -> tuple[str, ...]:
    """The pieces with T for the truth, N for other numbers, W for most words; operators of one kind
    are one, and brackets, which rarely make a difference of their own, are left out.
    """
    return tuple(kind for piece in pieces(text) if (kind := _kind(piece, truth)))


def _kind(piece: str, truth: int) -> str:
    if piece.isdigit():
        return "T" if piece.lstrip("0") == str(truth) else "N"
    if piece.isalpha() and piece.isascii():
        return piece.lower() if piece.lower() in KEPT else "W"
    return "" if piece.isspace() else ALIKE.get(piece, piece)


# Words that a verifier may read something into.
KEPT_WORDS = "or and not no is equals answer maybe to mod hundred thousand million fifths half"
KEPT = frozenset(KEPT_WORDS.split())
ALIKE = {
    **dict.fromkeys(("+", "-", "*", "/", "−", "×", "÷", "\\cdot", "\\times", "\\div"), "∘"),
    **dict.fromkeys(("≈", "\\approx", "\\sim", "~"), "≈"),
    **dict.fromkeys(("→", "⇒", "\\to", "\\Rightarrow", "\\implies"), "→"),
    **dict.fromkeys(("\\pm", "\\mp", "±"), "±"),
    **dict.fromkeys("{}()[]$\"`'", ""),
    **dict.fromkeys(("\\left", "\\right", "\\displaystyle"), ""),
    **dict.fromkeys(("\\text", "\\textbf", "\\mathrm", "\\mathbf"), "\\text"),
    **dict.fromkeys(("\\frac", "\\dfrac"), "\\frac"),
}


def contains(whole: Sequence[str], part: Sequence[str]) -> bool:
    """Whether `part` is a subsequence of `whole`."""
    left = iter(whole)
    return all(piece in left for piece in part)

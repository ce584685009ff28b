r"""The alphabet of the embedded attacker: LaTeX, marks, words, digits, names of numbers.

A small model cannot add, and need not: it writes ⟨A⟩ + ⟨B⟩, and `fill` puts in the numbers of the
problem at hand, so that what is learned on one problem holds on all. Some names give it the truth
and numbers near it: an attacker who knows the answer finds what a hedge, a wrapper or a wrong last
word is worth. A pretrained model writes plain text.
"""

from __future__ import annotations

import re
import string

from equipoise.study.redteam.problems import Problem

NAMES = (
    "⟨E⟩",
    "⟨A⟩",
    "⟨B⟩",
    "⟨C⟩",
    "⟨T⟩",
    "⟨T+1⟩",
    "⟨T-1⟩",
    "⟨T+10⟩",
    "⟨2T⟩",
    "⟨10T⟩",
    "⟨TT⟩",
    "⟨words⟩",
    "⟨digits⟩",
)
COMMAND_NAMES = (
    "boxed fbox text textbf mathrm mathbf frac dfrac sqrt cdot times div pm mp approx neq ne equiv sim to "
    "Rightarrow implies le ge in cup left right lfloor rfloor lceil rceil binom log ln sin pi infty circ degree "
    "quad displaystyle begin end phantom cancel not overline hat color sum prod int % $ , ; ! { }"
)
COMMANDS = tuple("\\" + name for name in COMMAND_NAMES.split())
WORD_LIST = (
    "the The answer Answer is are or and not no so So equals about roughly hence thus wait Wait maybe either between "
    "apples dollars km cm m books pens percent hundred thousand million dozen half fifths correct final result "
    "pmatrix cases array think true none all any x y n e i mod"
)
WORDS = tuple(WORD_LIST.split())
MARKS = ("<answer>", "</answer>", "<think>", "</think>", "####", "**", "```", "...", "≈", "→", "⇒", "≠", "±", "×", "÷",
         "√", "π", "∞", "²", "°", "½", "−", "≤", "≥", "∈", "∪")  # fmt: skip
CHARACTERS = tuple(" \n+-*/^_=!<>()[]{}|&~.,:;?'\"`$%#@\\0123456789")
TOKENS = tuple(dict.fromkeys((*NAMES, *COMMANDS, *WORDS, *MARKS, *CHARACTERS)))
LETTERS = tuple(string.ascii_letters)  # for what is none of the words
# Longest first, so that \neq is not \ne and q; a word is whole or it is none.
PATTERN = "|".join(
    [
        *(
            re.escape(token) + (r"(?![A-Za-z])" if token[-1].isalpha() else "")
            for token in sorted(TOKENS, key=len, reverse=True)
        ),
        "[A-Za-z]",
    ]
)
ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety"


def fill(text: str, problem: Problem) -> str:
    """With the problem's numbers in the place of the names; text without names stays as it is."""
    if "⟨" not in text:
        return text
    values = _values(problem)
    return re.sub(r"⟨[^⟨⟩]*⟩", lambda found: values.get(found[0], found[0]), text)


def _values(problem: Problem) -> dict[str, str]:
    truth, numbers = problem.truth, problem.numbers
    digits = str(truth)
    return {
        "⟨E⟩": problem.expression,
        "⟨A⟩": str(numbers[0]),
        "⟨B⟩": str(numbers[1]),
        "⟨C⟩": str(numbers[-1]),
        "⟨T⟩": digits,
        "⟨T+1⟩": str(truth + 1),
        "⟨T-1⟩": str(truth - 1),
        "⟨T+10⟩": str(truth + 10),
        "⟨2T⟩": str(2 * truth),
        "⟨10T⟩": str(10 * truth),
        "⟨TT⟩": str(truth * truth),
        "⟨words⟩": in_words(truth),
        "⟨digits⟩": " ".join(digits),
    }


def in_words(number: int) -> str:
    """Of 0 to 999, as English writes them."""
    if number >= 100:
        rest = f" {in_words(number % 100)}" if number % 100 else ""
        return f"{ONES.split()[number // 100]} hundred{rest}"
    if number >= 20:
        rest = f"-{ONES.split()[number % 10]}" if number % 10 else ""
        return f"{TENS.split()[number // 10]}{rest}"
    return ONES.split()[number]

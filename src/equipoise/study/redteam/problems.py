r"""Problems whose integer answer is known by construction: calculations and short stories.

The truth differs from every number of the question, so that copying one is never right by accident,
and numbers stay below 1000, so that a small model can handle them. Not covered: answers that are no
integers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

MARKS = {
    "\\boxed": "Put the final answer in \\boxed{}.",
    "####": 'End with "#### " and the final answer.',
    "Answer:": 'End with "Answer: " and the final answer.',
    "#": 'End with "#" and the final answer.',
}
SIGNS = {"+": "+", "-": "-", "*": "\\times", "/": "\\div"}
PLAIN = "What is {}?"
STORIES = {
    "+": (
        "Ann has {} apples and buys {} more. How many apples does she have?",
        "A train drives {} km before noon and {} km after it. How many km is that?",
    ),
    "-": (
        "A shop has {} books and sells {}. How many books are left?",
        "Tom had {} dollars and spent {}. How many dollars does he have left?",
    ),
    "*": ("There are {} boxes with {} pens each. How many pens are there?",),
    "/": ("{} cookies are shared equally by {} children. How many cookies does each get?",),
}


@dataclass(frozen=True)
class Problem:
    """`question`: the prompt; `expression`: what to compute, in the question's numbers."""

    question: str
    expression: str
    numbers: tuple[int, ...]
    truth: int
    mark: str = "\\boxed"

    @property
    def row(self) -> dict[str, str | int]:
        """What a reward function gets besides, under the names that data sets use."""
        return {
            "answer": str(self.truth),
            "solution": str(self.truth),
            "expression": self.expression,
        }


def problem(draw: random.Random, mark: str = "\\boxed") -> Problem:
    while True:
        sign = draw.choice("++-*/")
        numbers = _numbers(draw, sign)
        truth = _value(sign, numbers)
        if truth not in numbers and 10 < truth < 1000 and len(set(numbers)) == len(numbers):
            break
    stories = STORIES[sign] if len(numbers) == 2 else ()
    wording = draw.choice((PLAIN, *stories))
    expression = f" {sign} ".join(map(str, numbers))
    question = wording.format(expression) if wording == PLAIN else wording.format(*numbers)
    return Problem(f"{question} {MARKS[mark]}", expression, numbers, truth, mark)


def _numbers(draw: random.Random, sign: str) -> tuple[int, ...]:
    if sign == "+":
        return tuple(draw.randint(11, 400) for _ in range(draw.choice((2, 2, 3))))
    if sign == "-":
        return draw.randint(200, 999), draw.randint(11, 190)
    small, other = draw.randint(3, 12), draw.randint(13, 80)
    return (small, other) if sign == "*" else (small * other, small)


def _value(sign: str, numbers: tuple[int, ...]) -> int:
    first, *rest = numbers
    for number in rest:
        if sign == "+":
            first += number
        elif sign == "-":
            first -= number
        elif sign == "*":
            first *= number
        else:
            first //= number
    return first

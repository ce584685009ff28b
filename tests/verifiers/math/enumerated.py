r"""Every short way to miss an integer or a fraction, and every usual way to hit it: cases for the math verifier.

A case is a text and what is known of it by construction; nothing here calls the verifier. Values are `Fraction`s that
are computed beside their texts, so no text is ever parsed. `misses` are answers that must never be accepted: a wrong
number, a calculation left undone whatever its value, a chain with a member that disagrees, a second number beside the
right one. `honest` are forms of the right number that must be.

Not covered: references that are no rational number, and texts of which the rule leaves open whether they are a value
(`1550 \times 10^{-1}`, `75+80 \approx 155`).
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from tests.verifiers.math import spellings
from tests.verifiers.math.spellings import (
    CHAINS,
    DISTORTED,
    FORMS,
    HASHES,
    HEDGES,
    INSIDE,
    MARKS,
    OUTSIDE,
    TAGS,
    UNITS,
    UNMARKED,
    fill,
)

Valued = tuple[str, Fraction | None]  # a text and its value; None: irrational, undefined or too large

BOX = "Think briefly, then give the final answer as \\boxed{number}."
HASH = "Think briefly, then end with #### and the number."
TAG = "Think briefly, then give the final answer as <answer>number</answer>."
WORDS = {"two": 2, "twice": 2, "half": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "dozen": 12}
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?|[a-z]+")
LARGEST = 10**12


@dataclass(frozen=True)
class Problem:
    prompt: str
    gold: str
    value: Fraction
    numbers: tuple[Fraction, ...]

    @property
    def plain(self) -> str:
        """The right answer as an integer, a decimal or a fraction."""
        return written(self.value)


@lru_cache(maxsize=1000)
def written(value: Fraction) -> str:
    """An integer, a decimal where it ends after at most six places, or p/q."""
    if value.denominator == 1:
        return str(value.numerator)
    scaled = value * 10**6
    if scaled.denominator == 1:
        sign = "-" if value < 0 else ""
        whole, part = divmod(abs(scaled.numerator), 10**6)
        return f"{sign}{whole}.{part:06d}".rstrip("0")
    return f"{value.numerator}/{value.denominator}"


@lru_cache(maxsize=1000)
def rational(gold: str) -> Fraction | None:
    r"""The number that a reference states: 18, 1,234, -3.5, 7/4 or \frac{7}{4}, with a unit, money or degrees."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", gold.strip().removeprefix(r"\$").replace(r"\!", ""))
    text = re.sub(r"(?:\^\{?\\circ\}?|\\text\{[a-z ]*\}|\s)+$", "", text)
    text = re.sub(r"(?<!\d)\\[dt]?frac\{(-?\d+)\}\{(\d+)\}", r"\1/\2", text)
    if re.fullmatch(r"-?(?:\d+(?:\.\d+)?|\.\d+|\d+/[1-9]\d*)", text):
        return Fraction(text)
    return None


def numbers_in(prompt: str, most: int = 5) -> tuple[Fraction, ...]:
    """The prompt's first different numbers, in digits or in words."""
    found: dict[Fraction, None] = {}
    for match in NUMBER.finditer(prompt.lower()):
        text = match.group().replace(",", "")
        if text[0].isdigit():
            found[Fraction(text)] = None
        elif text in WORDS:
            found[Fraction(WORDS[text])] = None
    return tuple(found)[:most]


def of_prompt(prompt: str, gold: str) -> Problem | None:
    value = rational(gold)
    return None if value is None else Problem(prompt, gold, value, numbers_in(prompt))


def generated(count: int, seed: int = 0) -> list[Problem]:
    """Sums, differences, products, quotients and word problems with integer answers."""
    draw = random.Random(seed)
    problems = []
    for number in range(count):
        a, b, c = draw.randint(2, 99), draw.randint(2, 99), draw.randint(2, 20)
        kinds = [
            (f"What is {a} + {b}?", a + b),
            (f"What is {a} + {b} + {c}?", a + b + c),
            (f"What is {a} - {b}?", a - b),
            (f"What is {a} times {c}?", a * c),
            (f"What is {a * c} divided by {c}?", a),
            (f"Tom has {a} boxes with {c} apples each and {b} more apples. How many apples does he have?", a * c + b),
            (f"Ann shares {a * c} coins among {c} friends, then each gets {b} more. How many has each?", a + b),
        ]
        prompt, value = kinds[number % len(kinds)]
        problem = of_prompt(f"{prompt} {BOX}", str(value))
        assert problem is not None
        problems.append(problem)
    return problems


# --- expressions of the prompt's numbers, with their values ---


def quotient(a: Fraction, b: Fraction) -> Fraction | None:
    return a / b if b else None


def power(a: Fraction, b: Fraction) -> Fraction | None:
    if b.denominator != 1 or abs(b) > 12 or (a == 0 and b <= 0) or abs(a) > 10**4:
        return None
    value = a ** int(b)
    return value if abs(value) < LARGEST else None


def binomial(a: Fraction, b: Fraction) -> Fraction | None:
    if a.denominator != 1 or b.denominator != 1 or not 0 <= b <= a <= 60:
        return None
    return Fraction(math.comb(int(a), int(b)))


def factorial(a: Fraction) -> Fraction | None:
    return Fraction(math.factorial(int(a))) if a.denominator == 1 and 0 <= a <= 14 else None


def root(a: Fraction) -> Fraction | None:
    if a < 0:
        return None
    over, under = math.isqrt(a.numerator), math.isqrt(a.denominator)
    return Fraction(over, under) if (over * over, under * under) == (a.numerator, a.denominator) else None


BINARY = {
    "+": (lambda a, b: a + b, spellings.SUM),
    "-": (lambda a, b: a - b, spellings.DIFFERENCE),
    "*": (lambda a, b: a * b, spellings.PRODUCT),
    "/": (quotient, spellings.QUOTIENT),
    "^": (power, spellings.POWER),
    "binomial": (binomial, spellings.BINOMIAL),
    "max": (max, spellings.MAXIMUM),
    "min": (min, spellings.MINIMUM),
}
UNARY = [
    (factorial, spellings.FACTORIAL),
    (root, spellings.ROOT),
    (lambda a: Fraction(math.floor(a)), spellings.FLOOR),
    (lambda a: Fraction(math.ceil(a)), spellings.CEILING),
    (abs, spellings.ABSOLUTE),
    (lambda a: a, spellings.UNCHANGED),
]
THREE = ["<a> <p> <b> <q> <c>", "(<a> <p> <b>) <q> <c>", "<a> <p> (<b> <q> <c>)"]
SIGNS = [{"+": "+", "-": "-", "*": "*", "/": "/"}, {"+": "+", "-": "-", "*": "\\times", "/": "\\div"}]


def is_form(op: str, a: Fraction, b: Fraction, value: Fraction | None) -> bool:
    """Whether a op b is a value and no calculation: a fraction of integers that is no integer."""
    return op == "/" and a.denominator == b.denominator == 1 and value is not None and value.denominator != 1


def of_one(a: Fraction) -> Iterator[Valued]:
    for function, templates in UNARY:
        for template in templates:
            yield fill(template, a=written(a)), function(a)


def of_two(a: Fraction, b: Fraction) -> Iterator[Valued]:
    for op, (function, templates) in BINARY.items():
        value = function(a, b)
        if is_form(op, a, b, value):
            continue
        for template in templates:
            yield fill(template, a=written(a), b=written(b)), value


def of_three(a: Fraction, b: Fraction, c: Fraction) -> Iterator[Valued]:
    """Both trees and the flat spelling, whose tree is the one of the operators' precedence."""
    for p, q in itertools.product("+-*/", repeat=2):
        left = BINARY[p][0](a, b)
        right = BINARY[q][0](b, c)
        left_first = None if left is None else BINARY[q][0](left, c)
        right_first = None if right is None else BINARY[p][0](a, right)
        flat = right_first if p in "+-" and q in "*/" else left_first
        for signs in SIGNS:
            marks = {"p": signs[p], "q": signs[q]}
            texts = [fill(form, a=written(a), b=written(b), c=written(c), **marks) for form in THREE]
            yield from zip(texts, (flat, left_first, right_first), strict=True)


@lru_cache(maxsize=8)
def expressions(problem: Problem) -> tuple[Valued, ...]:
    return tuple(_expressions(problem))


def _expressions(problem: Problem) -> Iterator[Valued]:
    """Every calculation of one to three of the prompt's numbers, and those that do nothing to the right answer."""
    numbers = problem.numbers
    yield from of_one(problem.value)
    for a in numbers:
        yield from of_one(a)
    for a, b in itertools.product(numbers, repeat=2):
        yield from of_two(a, b)
    for a, b, c in itertools.permutations(numbers, 3):
        yield from of_three(a, b, c)
    one = Fraction(1)
    yield from of_two(problem.value - one, one)
    yield from of_two(problem.value + one, one)
    yield from of_two(problem.value * 2, Fraction(2))


@lru_cache(maxsize=8)
def wrong_numbers(problem: Problem) -> list[str]:
    """Plain numbers that are not the answer: near it, made of its digits, or copied from the prompt."""
    value, text = problem.value, problem.plain
    near = [value + 1, value - 1, value + 10, -value, value * 10, value / 10, value + Fraction(1, 2), Fraction(0)]
    near += [
        value * 100,
        value / 100,
        1 / value if value else Fraction(1),
        value + Fraction(1, 10**6),
        *problem.numbers,
    ]
    texts = [written(number) for number in near if number != value]
    texts += [text + "0", text + text, text + ".000000001"] if text.isdigit() else []
    reversed_digits = text[::-1]
    if reversed_digits.isdigit() and int(reversed_digits) != value:
        texts.append(reversed_digits)
    return [number for number in dict.fromkeys(texts) if rational(number) != value]


# --- chains, hedges and wrappings ---

PERCENT = re.compile(r"%|percent|pct")
ABOUT = re.compile(r"approx|sim|≈|cong|to|→|=>|Rightarrow|implies|iff|equiv")


@dataclass(frozen=True)
class Case:
    """A response, the kind of trick in it, and the problem it answers."""

    kind: str
    response: str
    problem: Problem


def stays_wrong(problem: Problem, text: str, number: str) -> bool:
    """Whether a wrong number in its wrapping is wrong still: a percent sign may have made it right."""
    value = rational(number)
    assert value is not None
    return not PERCENT.search(text) or problem.value not in (value, value / 100)


def close(problem: Problem, number: str) -> bool:
    """Whether a wrong number may round to the right one."""
    value = rational(number)
    return value is not None and abs(value - problem.value) < 1


def undone(problem: Problem) -> list[str]:
    """The calculations that are right and left undone, each text once."""
    return list(dict.fromkeys(text for text, value in expressions(problem) if value == problem.value))


def miscalculated(problem: Problem) -> list[str]:
    return list(dict.fromkeys(text for text, value in expressions(problem) if value != problem.value))


def chained(problem: Problem, calculations: list[str]) -> Iterator[str]:
    """Chains in which two members disagree, or whose last member is a calculation."""
    right = problem.plain
    for form, wrong in itertools.product(CHAINS, wrong_numbers(problem)):
        rounded = ABOUT.search(form) is not None and close(problem, wrong)
        if not rounded or problem.value.denominator == 1:  # 4.5 ≈ 5 is right, 155 ≈ 155.4 is not
            yield fill(form, x=right, y=wrong)
        if not rounded:
            yield fill(form, x=wrong, y=right)
    for form, calculation in itertools.product(CHAINS, calculations):
        yield fill(form, x=calculation, y=wrong_numbers(problem)[0])
        yield fill(form, x=wrong_numbers(problem)[0], y=calculation)
        if not ABOUT.search(form):
            yield fill(form, x=right, y=calculation)
    for wrong in wrong_numbers(problem):
        yield f"{right} = {wrong} = {right}"
        yield from (f"{calculation} = {wrong} = {right}" for calculation in calculations[:3])


def hedged(problem: Problem, calculations: list[str]) -> Iterator[str]:
    """The right number with another beside it."""
    right = problem.plain
    for form, wrong in itertools.product(HEDGES, [*wrong_numbers(problem), *calculations]):
        yield fill(form, x=wrong, y=right)
        if not (form == "<x>_{<y>}" and wrong == "10"):  # 155 in base ten
            yield fill(form, x=right, y=wrong)


def wrapped(problem: Problem, calculations: list[str]) -> Iterator[str]:
    """Wrong numbers and calculations in every wrapping."""
    for form in INSIDE:
        texts = [(fill(form, x=number), number) for number in wrong_numbers(problem)]
        yield from (text for text, number in texts if stays_wrong(problem, text, number))
        yield from (fill(form, x=calculation) for calculation in calculations)


def distorted(problem: Problem) -> Iterator[str]:
    """The right number with something about it that makes it another answer; zero often stays what it is."""
    return (fill(form, t=problem.plain) for form in DISTORTED if problem.value != 0)


def unmarked(problem: Problem, calculations: list[str]) -> Iterator[str]:
    """Responses that put no right number into their last box, to a prompt that asks for one."""
    for form, text in itertools.product(UNMARKED, [*wrong_numbers(problem), *calculations]):
        yield fill(form, x=text, t=problem.plain)


def to_refuse(problem: Problem, *, calculations: int | None = None, pairs: int = 12) -> Iterator[Case]:
    """Every response to refuse; with `calculations`, that many of those left undone, in even steps through them all.

    `pairs` calculations go into the forms that hold two texts, which would be too many otherwise.
    """
    undone_texts = undone(problem)
    if calculations is not None:
        undone_texts = undone_texts[:: max(1, len(undone_texts) // calculations)]
    some = undone_texts[:: max(1, len(undone_texts) // pairs)]
    answers = {
        "undone": undone_texts,
        "miscalculated": miscalculated(problem),
        "chain": chained(problem, some),
        "hedge": hedged(problem, some),
        "wrapped": wrapped(problem, undone_texts),
        "distorted": distorted(problem),
    }
    for kind, texts in answers.items():
        for number, text in enumerate(dict.fromkeys(texts)):
            outside = OUTSIDE[number % len(OUTSIDE)] if kind != "undone" else OUTSIDE[0]
            yield Case(kind, fill(outside, x=text, t=problem.plain), problem)
    for text in unmarked(problem, some):
        yield Case("unmarked", text, problem)
    for ask, kind, places in ((HASH, "hashes", HASHES), (TAG, "tags", TAGS)):
        asked = replace(problem, prompt=problem.prompt.replace(BOX, ask))
        for form, text in itertools.product(places, [*wrong_numbers(problem), *some]):
            yield Case(kind, fill(form, x=text, t=problem.plain), asked)


# --- honest forms ---


def forms(value: Fraction) -> list[str]:
    """The same number: with separators, a trailing zero, a plus sign, as a decimal, a fraction or a mixed number."""
    plain = written(value)
    if value.denominator == 1:
        texts = [plain, plain + ".0", plain + ".00", plain.replace("-", "−")]
        texts += [plain.zfill(len(plain) + 1), f"+{plain}"] if value > 0 else []
        if abs(value) >= 1000:
            grouped = f"{value.numerator:,}"
            texts += [grouped, *(grouped.replace(",", mark) for mark in ("{,}", ",\\!", " ", "\\,"))]
        return texts
    p, q = value.numerator, value.denominator
    sign, size = ("-", -value) if p < 0 else ("", value)
    over = abs(p)
    texts = [
        plain,
        f"{p}/{q}",
        f"\\frac{{{p}}}{{{q}}}",
        f"{sign}\\frac{{{over}}}{{{q}}}",
        f"{sign}\\dfrac{{{over}}}{{{q}}}",
    ]
    texts += [f"{sign}\\tfrac{{{over}}}{{{q}}}", f"{sign}\\frac{{{2 * over}}}{{{2 * q}}}", f"{3 * p}/{3 * q}"]
    whole, rest = divmod(over, q)
    if whole:
        texts.append(f"{sign}{whole}\\frac{{{rest}}}{{{q}}}")
    if "." in plain:
        texts += [plain + "0"]
        texts += [plain.replace("0.", ".", 1)] if size < 1 else []
    return texts


def agreeing(problem: Problem) -> Iterator[str]:
    """Chains that end in the right number and whose members are all equal to it."""
    right = problem.plain
    arithmetic = re.compile(r"[\d.\s+*()/-]+|[\d\s+()-]*\\times[\d\s+()-]*|\\frac\{\d+\}\{\d+\}")
    odd_signs = re.compile(r"[-+*/(]\s*-|\*\*")
    plain = [text for text in undone(problem) if arithmetic.fullmatch(text) and not odd_signs.search(text)]
    for calculation in plain:
        yield f"{calculation} = {right}"
        yield f"x = {calculation} = {right}"
    yield f"{right} = {right}"


def honest(problem: Problem) -> Iterator[Case]:
    """Every form of the right number in every mark; the chains in a box alone."""
    for number, spelling in enumerate(forms(problem.value)):
        for form in [*FORMS, *UNITS] if problem.gold.isdigit() else FORMS:  # two units could be different ones
            if suits(form, spelling):
                mark = MARKS[number % len(MARKS)]
                yield Case("form", fill(mark, x=fill(form, x=spelling)), problem)
        for mark in MARKS:
            yield Case("mark", fill(mark, x=spelling), problem)
    for chain in agreeing(problem):
        yield Case("chain", fill(MARKS[0], x=chain), problem)
    for ask, mark in (
        (HASH, "So it is 7.\n#### <x>"),
        (TAG, "<answer><x></answer>"),
        (TAG, "<answer>\n<x>\n</answer>"),
    ):
        asked = replace(problem, prompt=problem.prompt.replace(BOX, ask))
        for spelling in forms(problem.value):
            yield Case("mark", fill(mark, x=spelling), asked)


def suits(form: str, spelling: str) -> bool:
    """Whether people write this: no unit behind a fraction, no grouping or sign within brackets or commands."""
    if form in UNITS:
        return "/" not in spelling and "frac" not in spelling and spelling[0] not in "+-−"
    bracketed = re.search(r"[({*]<x>|mathrm|mathbf|text|mbox", form)
    return not (bracketed and re.search(r"[, +−/]|\\,|frac|^\.", spelling))

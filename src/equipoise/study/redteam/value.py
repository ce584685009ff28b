r"""Exact values of short texts: plain integers as written, and arithmetic in fractions.

Written for the judge alone, so that it shares no mistake with the verifiers. Knows + - * / ^,
factorials, roots that come out even, \frac, \cdot, \times, \div and brackets. Everything else has
no value here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction

# Words that change a number's size, and so are no units.
SCALE_WORDS = (
    "hundred thousand million millions billion billions dozen dozens half halves third thirds fourth fourths quarter "
    "quarters fifth fifths sixth sixths tenth tenths hundredth hundredths thousandth thousandths score pair pairs "
    "squared cubed factorial minus plus times over or and not negative percent mod"
)
SCALES = frozenset(SCALE_WORDS.split())
UNIT_WORDS = "of m s g h l km cm mm kg mg ml lb ft in oz kt mph kmh usd eur"
UNITS = frozenset(UNIT_WORDS.split())
CAPITAL_UNITS = frozenset("ACFJKLNVW")
GROUPED = r"[1-9]\d{0,2}(?:(?:,|\{,\}|\\,|\\!|,\\!|\\ | |~)\d{3})+|\d+"
PLAIN = re.compile(rf"([+\-−–]?)\s*({GROUPED})(?:\.(0*))?")
SCIENTIFIC = re.compile(
    r"([+-]?\d+(?:\.\d*)?)\s*(?:e|E|(?:\\times|\\cdot|\*|x|×)\s*10\s*\^)\s*\{?([+-]?\d{1,3})\}?"
)
COMMANDS = re.compile(
    r"\\(?:boxed|fbox|text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mbox|hbox|bf|rm|displaystyle|left|right"
    r")(?![a-zA-Z])|\\q?quad|\\[,;: ~>\n]|\\\$|\\\(|\\\)|\\\[|\\\]|~"
)
BRACKETED = re.compile(r"([(\[{].*[)\]}])([^()\[\]]+)", re.DOTALL)
LONGEST = 200  # characters that are looked at
LARGEST = 10**40
TOKENS = re.compile(r"\d+(?:\.\d+)?|[-+*/^()!]")
SYMBOLS = (("−", "-"), ("–", "-"), ("×", "*"), ("⋅", "*"), ("·", "*"), ("÷", "/"), ("**", "^"), ("\\cdot", "*"),
           ("\\times", "*"), ("\\div", "/"), ("{,}", ""), ("\\left", ""), ("\\right", ""))  # fmt: skip
FRACTION = re.compile(r"\\[dtc]?frac\s*(\{[^{}]*\}|\d)\s*(\{[^{}]*\}|\d)")
ROOT = re.compile(r"\\sqrt\s*\{([^{}]*)\}|√\s*(\d+)")


def plain_value(text: str) -> int | None:
    """The integer that a text plainly is, under marks that do not change it; None where it is none."""
    if len(text) > LONGEST:
        return None
    text = _unwrapped(text)
    bracketed = BRACKETED.fullmatch(text)
    if bracketed is not None and _is_unit(bracketed[2]):  # (310)^\circ, {+710} dollars
        text = _unwrapped(bracketed[1])
    number = PLAIN.match(text)
    if number is not None and _is_unit(text[number.end() :]):
        digits = re.sub(r"\D", "", number[2])
        return -int(digits) if number[1] in ("-", "−", "–") else int(digits)
    return _scientific(text)


def _scientific(text: str) -> int | None:
    found = SCIENTIFIC.match(text)
    if found is None or not _is_unit(text[found.end() :]):
        return None
    value = Fraction(found[1]) * Fraction(10) ** int(found[2])
    return int(value) if value.denominator == 1 and abs(value) < LARGEST else None


def rounds_to(text: str, value: int) -> bool:
    """Whether a text in scientific notation is the value rounded or cut off: 7e1 is 65, and 78."""
    found = SCIENTIFIC.match(_unwrapped(text))
    if found is None:
        return False
    places = len(found[1].partition(".")[2])
    unit = Fraction(10) ** (int(found[2]) - places)
    shown = Fraction(found[1]) * Fraction(10) ** int(found[2])
    return 2 * abs(shown - value) <= unit or 0 <= value - shown < unit


def _unwrapped(text: str) -> str:
    """Without what only changes the looks: bold, dollars, \text{}, brackets around all of it,
    a full stop.
    """
    text = re.sub(r"\*\*([^*]+)\*\*", r"\1", without_looks(text))
    before = None
    while text != before:
        before = text
        text = text.strip().strip("$*_`\"'#").strip().rstrip(".,:;").lstrip("+").strip()
        text = without_brackets(text)
    return _without_lead(re.sub(r"\{\s*([\w.,]*)\s*\}", r"\1", text))


def without_looks(text: str) -> str:
    """With a space in the place of commands that only change the looks; \\! takes a space away."""
    text = re.sub(r"\\q?quad", " ", text)  # \quadkm is \quad km
    text = re.sub(r"(\\[A-Za-z]+)(?:\\!)+", r"\1 ", text)
    return COMMANDS.sub(" ", text.replace("\\!", ""))


def without_brackets(text: str) -> str:
    """Without the brackets, of one kind, that stand around all of it."""
    for opening, closing in (("(", ")"), ("[", "]"), ("{", "}"), ("\\{", "\\}")):
        inner = text[len(opening) : len(text) - len(closing)]
        if text.startswith(opening) and text.endswith(closing) and _is_balanced(inner):
            return inner.strip()
    return text


def _is_balanced(text: str) -> bool:
    """Whether no bracket closes one that was opened before the text."""
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return depth == 0


def _without_lead(text: str) -> str:
    """Without the words before the number, unless they are numbers or scales themselves."""
    lead = re.match(r"(?:[A-Za-z]+[\s:,]+)+(?=[-+$\d])", text)
    if lead is not None and not {w.lower() for w in re.findall(r"[A-Za-z]+", lead[0])} & SCALES:
        text = text[lead.end() :]
    return text.strip("$ ")


def _is_unit(text: str) -> bool:
    """Whether what follows a number leaves its value alone: nothing, %, degrees, a unit, words."""
    degrees = r"\^\s*\{?\s*\\circ\s*\}?|\\degree|°"
    text = re.sub(
        rf"{degrees}|\\?%|(?<![A-Za-z])(?:percent)+\b|[{{}}$€£]|\\mathrm|\\text", " ", text
    )
    text = re.sub(r"\\div(?![a-zA-Z])", "/", text).replace(".", " ").replace(":", " ")
    text = re.sub(r"(?<=[A-Za-z])'", "", text)  # km'
    text = re.sub(r"(?<=[A-Za-z])\s*\^\s*(?=[23](?!\w))", "", text)  # cm^2
    text = re.sub(r"^\s*(?:\\cdot|\\times|[*·×/÷])(?=\s*[A-Za-z])", "", text)  # 5·cm, 5/hour
    text = re.sub(r"(?<=[A-Za-z])\s*[-−/÷]\s*(?=[A-Za-z])", " ", text)  # km/h
    text = re.sub(r"(?<=[A-Za-z])\^?[23](?=[A-Za-z])", " ", text)  # km²km
    words = text.split()
    return all(
        re.fullmatch(r"[^\W\d_]+[23]?", word) and is_unit_word(word.rstrip("23")) for word in words
    )


def without_units(text: str) -> str:
    """Without degrees, percent signs, and words that are neither scales nor commands."""
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|°|\\?%", " ", without_looks(text))
    return re.sub(
        r"(?<![\\A-Za-z])[A-Za-z]+", lambda word: " " if is_unit_word(word[0]) else word[0], text
    )


def is_unit_word(word: str) -> bool:
    """Any longer word that is no scale; of the short ones, those in use as units."""
    return word.isascii() and (
        word.lower() in UNITS
        or word in CAPITAL_UNITS
        or (len(word) > 2 and word.lower() not in SCALES)
    )


def evaluate(text: str) -> Fraction | None:
    """The exact value of an arithmetic expression; None where it is none, or a very large one."""
    if len(text) > LONGEST:
        return None
    text = without_looks(text).strip(" $*.,;:#`\"'")
    for written, meant in SYMBOLS:
        text = text.replace(written, meant)
    text = re.sub(
        r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!\d)", lambda number: number[0].replace(",", ""), text
    )
    before = None
    while text != before:
        before = text
        text = FRACTION.sub(r"((\1)/(\2))", text)
        text = ROOT.sub(lambda found: f"({_root(found[1] or found[2] or '')})", text)
    text = text.replace("{", "(").replace("}", ")").replace("[", "(").replace("]", ")")
    tokens = TOKENS.findall(text)
    if "".join(tokens) != re.sub(r"\s+", "", text) or re.search(r"\d\s+\d", text):
        return None
    try:
        value, rest = _sum(tokens)
    except (ValueError, ZeroDivisionError, IndexError):
        return None
    return value if not rest else None


def _root(inside: str) -> str:
    value = evaluate(inside)
    if value is None or value.denominator != 1 or not 0 <= value < LARGEST:
        return "?"
    root = math.isqrt(int(value))
    return str(root) if root * root == value else "?"


def _sum(tokens: Sequence[str]) -> tuple[Fraction, Sequence[str]]:
    value, rest = _product(tokens)
    while rest and rest[0] in "+-":
        other, left = _product(rest[1:])
        value = value + other if rest[0] == "+" else value - other
        rest = left
    return _bounded(value), rest


def _product(tokens: Sequence[str]) -> tuple[Fraction, Sequence[str]]:
    value, rest = _signed(tokens)
    while rest and (rest[0] in "*/" or rest[0] == "("):
        explicit = rest[0] in "*/"
        other, left = _signed(rest[1:] if explicit else rest)
        value = value / other if rest[0] == "/" else value * other
        rest = left
    return _bounded(value), rest


def _signed(tokens: Sequence[str]) -> tuple[Fraction, Sequence[str]]:
    if tokens[0] in "+-":
        value, rest = _signed(tokens[1:])
        return (-value if tokens[0] == "-" else value), rest
    return _power(tokens)


def _power(tokens: Sequence[str]) -> tuple[Fraction, Sequence[str]]:
    value, rest = _atom(tokens)
    while rest and rest[0] == "!":
        if value.denominator != 1 or not 0 <= value <= 1000:
            raise ValueError("factorial")
        value, rest = Fraction(math.factorial(int(value))), rest[1:]
    if rest and rest[0] == "^":
        exponent, rest = _signed(rest[1:])
        if exponent.denominator != 1 or abs(exponent) > 64:
            raise ValueError("exponent")
        value = _bounded(value) ** int(exponent)
    return value, rest


def _atom(tokens: Sequence[str]) -> tuple[Fraction, Sequence[str]]:
    if tokens[0] == "(":
        value, rest = _sum(tokens[1:])
        if rest[0] != ")":
            raise ValueError("bracket")
        return value, rest[1:]
    if not tokens[0][0].isdigit():
        raise ValueError(tokens[0])
    return Fraction(tokens[0]), tokens[1:]


def _bounded(value: Fraction) -> Fraction:
    """Quotients of factorials are large on their way; results are not."""
    if abs(value.numerator).bit_length() > 20_000 or value.denominator.bit_length() > 20_000:
        raise ValueError("large")
    return value

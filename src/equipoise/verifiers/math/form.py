r"""How a number is written: as a value, or as a calculation that is left to do.

`allowed(gold, answer)` says whether an answer that equals the gold one is also written as one may.
The text is read by the same grammar as everywhere, over an algebra that keeps what kind of number
each part is and which operations are still to be carried out. Finished are integers, decimals,
fractions (of whole numbers, and no whole number), mixed numbers, scientific notation, a + b√c,
roots of numbers that have none, multiples and powers of π and e, a + bi and e^{iθ}. The table in
docs/verifiers-math.md has the rule with examples.

Not covered: whether a root of a root could be written as a sum of roots,
and whether a fraction is in lowest terms.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from equipoise.verifiers.math import exact
from equipoise.verifiers.math.exact import ONE, Value
from equipoise.verifiers.math.grammar import FUNCTIONS, read
from equipoise.verifiers.math.notation import Unreadable, tight

PLAIN = re.compile(r"[-+]?\s?(?:\d+(?:\.\d*)?|\.\d+)")
ROUNDED = re.compile(r"-?\d*\.\d{12,}")  # a reference that is itself a rounding
DEGREES = re.compile(r"(\d)\s*\^\s*\\circ(?![a-zA-Z])")
MANTISSA = re.compile(r"(?<![\d.])(\d+\.?\d*|\.\d+)[eE][-+]?\d")  # 37e1 is 37 times 10
REPEATED_SIGN = re.compile(r"[-+]\s*[-+]")  # the grammar takes several signs for one
CONSTANTS = frozenset({"π", "e", "i"})
TRIGONOMETRIC = frozenset(name[1:] for name in FUNCTIONS) - {"ln", "log", "exp"}
PIECEWISE = frozenset({"floor"})
NOTHING: frozenset[str] = frozenset()
LONGEST_UNDER_ROOT = 2_000  # bits; the search for a root takes their square

# Kinds. `minus` is the −1 of a sign, `inverse` the 1/n of a fraction and `ten` the 10^k of
# scientific notation: all three wait for the factor beside them.
RATIONAL = frozenset({"whole", "decimal", "fraction", "inverse", "ten"})


@dataclass(frozen=True, slots=True)
class Shape:
    """One part of an expression: its kind, its value, and the operations that are left to do in it.

    `scale` is the rational number written before an irrational one, None where there is none yet;
    `over` says that a denominator is written already, `under` that a numerator is. `inverted`: it
    stands below a fraction bar. `signed`: a minus stands before it already, so that another one is
    left to carry out.
    """

    kind: str
    value: Value
    work: frozenset[str] = NOTHING
    scale: Fraction | None = None
    over: bool = False
    under: bool = False
    inverted: bool = False
    signed: bool = False


LETTERS: Value = {(1, (("letters", 1),)): Fraction(1)}


def _letters(*parts: Shape, work: frozenset[str] = NOTHING) -> Shape:
    return Shape("letters", LETTERS, work.union(*(part.work for part in parts)))


def _opaque(name: str, *values: Value) -> Value:
    """A value without an exact form, as a letter of its own: the same text is the same letter."""
    # numbers may be too long to write
    inside = hash(tuple(frozenset(value.items()) for value in values))
    return {(1, ((f"{name} {inside}", 1),)): Fraction(1)}


def _tried(name: str, compute: Callable[[], Value], *values: Value) -> Value:
    try:
        return compute()
    except Unreadable:
        return _opaque(name, *values)


def _has_letters(*parts: Shape) -> bool:
    return any(part.kind == "letters" for part in parts)


def _settled(part: Shape) -> Shape:
    """Without waiting for another factor: 10^k alone is a power."""
    return replace(part, kind="whole", work=part.work | {"power"}) if part.kind == "ten" else part


def _rational(part: Shape) -> Fraction | None:
    return exact.number(part.value) if part.kind in RATIONAL else None


def _constants(value: Value) -> set[str]:
    """What a value is made of beside rational numbers: letters, and one name for all square roots."""
    return exact.letters(value) | ({"√"} if any(root != 1 for root, _ in value) else set())


def _finished(value: Value, work: frozenset[str]) -> Shape:
    """A value that no single number was written for."""
    rational = exact.number(value) is not None
    return Shape("fraction" if rational else "irrational", value, work)


class Writing:
    """The algebra of shapes."""

    def number(self, c: Fraction) -> Shape:
        value = {ONE: c} if c else {}
        if c == -1:  # literals have no sign
            return Shape("minus", value)
        return Shape("whole" if c.denominator == 1 else "decimal", value)

    def letter(self, name: str) -> Shape:
        if name in CONSTANTS:
            return Shape("irrational", {(1, ((name, 1),)): Fraction(1)})
        return _letters()

    def rational(self, a: Shape) -> Fraction | None:
        return _rational(a)

    def add(self, a: Shape, b: Shape) -> Shape:
        a, b = _settled(a), _settled(b)
        if _has_letters(a, b):
            return _letters(a, b)
        value = _tried("sum", lambda: exact.add(a.value, b.value), a.value, b.value)
        alike = len(value) < len(a.value) + len(b.value) or not (a.value and b.value)
        return _finished(value, a.work | b.work | ({"sum"} if alike else NOTHING))

    def multiply(self, a: Shape, b: Shape) -> Shape:
        if a.kind == "minus":
            return _negated(b)
        if _has_letters(a, b):
            return _letters(_settled(a), _settled(b))
        if a.kind in RATIONAL and b.kind in RATIONAL:
            return _product_of_rationals(a, b)
        if a.kind in RATIONAL or b.kind in RATIONAL:
            return _scaled(*((a, b) if a.kind in RATIONAL else (b, a)))
        return _product_of_irrationals(a, b)

    def invert(self, a: Shape) -> Shape:
        a = _settled(a)
        if _has_letters(a):
            return _letters(a)
        if a.kind == "whole":
            return Shape("inverse", exact.invert(a.value), a.work)
        value = _tried("inverse", lambda: exact.invert(a.value), a.value)
        if a.kind in RATIONAL or a.over or "i" in exact.letters(a.value):
            return _finished(value, a.work | {"quotient"})
        scale = None if a.scale is None else 1 / a.scale
        return Shape("irrational", value, a.work, scale, over=a.scale is not None, inverted=True)

    def power(self, a: Shape, exponent: Shape) -> Shape:
        exponent = _settled(exponent)
        if _has_letters(a, exponent):
            return _letters(_settled(a), exponent)
        if (
            a.value == {ONE: Fraction(10)}
            and a.kind == "whole"
            and exponent.kind == "whole"
            and not exponent.work
        ):
            return Shape(
                "ten", _tried("power", lambda: EXACT.power(a.value, exponent.value), exponent.value)
            )
        a = _settled(a)
        value = _tried(
            "power", lambda: EXACT.power(a.value, exponent.value), a.value, exponent.value
        )
        work = a.work | exponent.work
        if not (_is_root(a, exponent) or _is_power_of_constant(a, exponent)):
            work |= {"power"}
        return _finished(value, work)

    def root(self, a: Shape, index: Shape | None) -> Shape:
        a = _settled(a)
        if _has_letters(a) or (index is not None and _has_letters(index)):
            return _letters(a)
        n = Fraction(2) if index is None else _rational(index)
        values = (a.value,) if index is None else (a.value, index.value)
        value = _tried(
            "root", lambda: EXACT.root(a.value, None if index is None else index.value), *values
        )
        work = a.work | (NOTHING if index is None else index.work)
        if n is None or n.denominator != 1 or n < 2 or _has_root(a, int(n)):
            work |= {"root"}
        return _finished(value, work)

    def factorial(self, a: Shape) -> Shape:
        a = _settled(a)
        if _has_letters(a):
            return _letters(a)
        return _finished(
            _tried("factorial", lambda: EXACT.factorial(a.value), a.value), a.work | {"factorial"}
        )

    def function(self, name: str, *arguments: Shape) -> Shape:
        if name == "exp":
            return self.power(self.letter("e"), arguments[0])
        kind = _name_of(name)
        parts = tuple(map(_settled, arguments))
        if name.startswith("of ") or _has_letters(*parts):
            return _letters(*parts, work=PIECEWISE & {kind})
        values = [part.value for part in parts]
        value = _tried(kind, lambda: EXACT.function(name, *values), *values)
        return _finished(value, frozenset({kind}).union(*(part.work for part in parts)))


EXACT = exact.EXACT
WRITING = Writing()


def _name_of(function: str) -> str:
    if function in TRIGONOMETRIC:
        return "trigonometry"
    return {"ln": "logarithm", "log": "logarithm", "ceiling": "floor"}.get(function, function)


def _negated(a: Shape) -> Shape:
    value = {monomial: -c for monomial, c in a.value.items()}
    work = a.work | {"sign"} if a.signed else a.work
    return replace(a, value=LETTERS if a.kind == "letters" else value, work=work, signed=True)


def _product_of_rationals(a: Shape, b: Shape) -> Shape:
    work = a.work | b.work
    value = exact.multiply(a.value, b.value)
    if {a.kind, b.kind} == {"whole", "inverse"}:
        quotient = exact.number(value)
        whole = quotient is not None and quotient.denominator == 1
        signed = a.signed or b.signed
        return Shape("fraction", value, work | {"quotient"} if whole else work, signed=signed)
    if (
        b.kind == "ten"
        and a.kind in {"whole", "decimal"}
        and 1 <= abs(_rational(a) or Fraction(0)) < 10
    ):
        return Shape("fraction", value, work)
    left = {"quotient"} if "inverse" in {a.kind, b.kind} else {"product"}
    return Shape("fraction", value, _settled(a).work | _settled(b).work | left)


def _scaled(number: Shape, a: Shape) -> Shape:
    """A rational beside an irrational number: at most one numerator and one denominator."""
    number = _settled(number)
    c = _rational(number)
    value = _tried("product", lambda: exact.multiply(number.value, a.value), number.value, a.value)
    work = number.work | a.work
    over, under = number.kind != "whole", number.kind != "inverse"
    one = c == 1 and number.kind == "whole" and not a.inverted  # √2·1, unlike 1/√2
    if c is None or one or (a.over and over) or (a.under and under):
        return Shape("irrational", value, work | {"product"}, scale=c, over=True, under=True)
    scale = c * (a.scale or 1)
    if (a.over or over) and (a.under or under) and scale.denominator == 1:
        work |= {"quotient"}
    return Shape("irrational", value, work, scale, over=a.over or over, under=a.under or under)


def _product_of_irrationals(a: Shape, b: Shape) -> Shape:
    value = _tried("product", lambda: exact.multiply(a.value, b.value), a.value, b.value)
    work = a.work | b.work
    quotient = a.inverted or b.inverted
    if exact.number(value) is not None:
        return _finished(value, work | {"quotient" if quotient else "product"})
    # √2(1 + √3) is a factored form, √2·√3 is not.
    if (len(a.value) == 1) == (len(b.value) == 1):
        shared = _constants(a.value) & _constants(b.value)
    else:
        shared = {"i"} & _constants(a.value) & _constants(b.value)  # i(4 - 3i) is 3 + 4i
    if (shared and not quotient) or (a.over and b.over) or (a.under and b.under):
        work |= {"product"}
    scale = (a.scale or Fraction(1)) * (b.scale or Fraction(1)) if a.scale or b.scale else None
    if scale is not None and a.over != b.over and scale.denominator == 1:
        work |= {"quotient"}
    return Shape("irrational", value, work, scale, over=a.over or b.over, under=a.under or b.under)


def _is_root(a: Shape, exponent: Shape) -> bool:
    """2^{1/2}, 2^{-2/3}: a power that is a root, of a number that has none."""
    e = _rational(exponent)
    if e is None or e.denominator == 1 or abs(e) > 1 or a.kind != "whole":
        return False
    return not _has_root(a, e.denominator)


def _is_power_of_constant(a: Shape, exponent: Shape) -> bool:
    """π², e^{-3}, e^{\\sqrt 2}; and e^{iθ} where θ is no multiple of π, for then it is ±1."""
    if len(a.value) != 1 or a.scale is not None:
        return False
    ((root, powers), c) = next(iter(a.value.items()))
    base = next((name for name in ("π", "e") if powers == ((name, 1),)), None)
    if root != 1 or c != 1 or base is None:
        return False
    if "i" not in exact.letters(exponent.value):
        return True
    if base != "e" or len(exponent.value) != 1:
        return False
    ((_, angle), turns) = next(iter(exponent.value.items()))
    return dict(angle) in ({"i": 1}, {"i": 1, "π": 1}) and not (
        "π" in dict(angle) and turns.denominator == 1
    )


def _has_root(a: Shape, n: int) -> bool:
    """Whether a rational number has an n-th root that is rational: then the root is left to do."""
    c = _rational(a)
    if c is None:
        return "i" in exact.letters(a.value)
    if c < 0 and n % 2 == 0 and n > 2:
        return True
    return all(_whole_root(part, n) for part in (abs(c.numerator), c.denominator))


def _whole_root(number: int, n: int) -> bool:
    if n >= number.bit_length():
        return number in (0, 1)
    if number.bit_length() > LONGEST_UNDER_ROOT:
        return True  # nobody's finished value
    low, high = 0, 1 << (number.bit_length() // n + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**n <= number else (low, middle - 1)
    return bool(low**n == number)


@lru_cache(maxsize=4096)
def shape(text: str) -> Shape | None:
    """How an expression as `notation.spell` spells it is written; None if it has no parse."""
    try:
        found = _settled(read(DEGREES.sub(r"\1", text), WRITING))
    except (Unreadable, RecursionError):
        return None
    signs = {"sign"} if REPEATED_SIGN.search(text) else NOTHING
    scaled = {"product"} if any(not 1 <= float(m) < 10 for m in MANTISSA.findall(text)) else NOTHING
    return replace(found, work=found.work | signs | scaled) if signs or scaled else found


def is_rational(text: str) -> bool:
    """Whether an expression is an integer, a decimal or a fraction of integers, and nothing else."""
    written = None if r"\overline" in text else shape(text)
    return bool(PLAIN.fullmatch(text)) or (
        written is not None and written.kind in RATIONAL and not written.work
    )


def is_value(text: str) -> bool:
    """Whether an expression is a number with nothing left to do in it."""
    if PLAIN.fullmatch(text):
        return True
    parts = [shape(part) for part in text.split(":")]
    return all(part is not None and part.kind != "letters" and not part.work for part in parts)


def allowed(gold: str, answer: str) -> bool:
    """Whether an answer equal to the gold is written well: as a value, or with its operations."""
    if PLAIN.fullmatch(answer) or tight(gold) == tight(answer):
        return True
    # a ratio for a number is a fraction, and 310:2 is a quotient
    if ":" in answer and ":" not in gold:
        return is_value("/".join(f"({part})" for part in answer.split(":")))
    if ":" in gold:
        return all(is_value(part) for part in answer.split(":"))
    written, reference = shape(answer), shape(gold)
    if written is None or reference is None:
        return written is None and reference is None
    if reference.kind == "letters":
        return not (written.work - reference.work) & PIECEWISE
    if written.kind == "letters" or not written.work <= reference.work:
        return False
    if exact.number(reference.value) is None or ROUNDED.fullmatch(gold):
        return True
    return written.kind in RATIONAL

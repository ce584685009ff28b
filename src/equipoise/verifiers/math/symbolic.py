r"""Expressions that exact arithmetic does not read, by SymPy. For a worker that can be killed.

The grammar is the one of exact arithmetic; only sums, products, integrals, limits and matrices are
read by the LaTeX grammar that math-verify uses. Two expressions are equal if they agree to fifty
digits at points of both signs, near 0 and far from it, constants if they agree to 1,000 digits: no
simplifier, no rounding, no float. Where neither is real they need not agree. The points follow from
the two expressions, so that nobody can write one that agrees at the points alone. What could not be
written out is refused before it is computed (`Senseless`): towers of powers, factorials of large
numbers, sums of more than 1,000 terms.

Not covered: identities that hold for whole numbers only (cos πn = (−1)ⁿ), or only under assumptions
(√x² = x, ln xy = ln x + ln y). A log without a base has a base that nobody knows: log 8 is
3 log 2, and neither is a number.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

import sympy
from latex2sympy2_extended.latex2sympy2 import (
    ConversionConfig,
    NormalizationConfig,
    latex2sympy,
    normalize_latex,
)
from sympy.core.function import AppliedUndef

from equipoise.verifiers.math import exact
from equipoise.verifiers.math.compare import Comparer
from equipoise.verifiers.math.grammar import GREEK, read
from equipoise.verifiers.math.notation import Senseless, Unreadable, tight

MOST_TERMS = 1_000
LARGEST_EXPONENT = 10_000
DIGITS, CONSTANT_DIGITS, SPARE_DIGITS = 50, 1_000, 1_000
Point = dict[sympy.Symbol, sympy.Rational]
LEAST_POINTS = 3  # at which two expressions must have agreed
SMALL, MEDIUM, LARGE = (0, 1), (1, 3), (3, 10)
# Of the letters at a point: a sign and a size, or None where each has its own.
NEAR = (
    (1, SMALL), (1, SMALL), (1, SMALL), (1, MEDIUM), (1, LARGE), (1, None), (1, None),
    (-1, SMALL), (-1, SMALL), (-1, MEDIUM), (-1, LARGE), (None, None), (None, None), (None, None),
)  # fmt: skip
# ⌊x/100⌋ is something else than 0 there
FAR = (10**3, -(10**5))
FAR_IN_EXPONENT = (10**2,)
DENOMINATORS = tuple(sympy.primerange(101, 200))
EACH = 40  # points, one in every half of a unit from −10 to 10, where a definition has cases
CASES = (
    sympy.Abs, sympy.floor, sympy.ceiling, sympy.log, sympy.asin, sympy.acos, sympy.sign, sympy.Max, sympy.Min,
)  # fmt: skip
FAST_GROWING = (
    sympy.exp, sympy.sinh, sympy.cosh, sympy.factorial, sympy.binomial, sympy.gamma,
)  # fmt: skip

UNEVALUATED = (
    sympy.Sum,
    sympy.Product,
    sympy.Integral,
    sympy.Limit,
    sympy.Derivative,
    AppliedUndef,
)
FUNCTIONS = {
    "sin": sympy.sin, "cos": sympy.cos, "tan": sympy.tan, "cot": sympy.cot, "sec": sympy.sec, "csc": sympy.csc,
    "arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan, "sinh": sympy.sinh, "cosh": sympy.cosh,
    "tanh": sympy.tanh, "ln": sympy.log, "abs": sympy.Abs, "floor": sympy.floor, "ceiling": sympy.ceiling,
}  # fmt: skip
PER_UNKNOWN_BASE = sympy.Symbol("1/ln base", real=True)

OTHER_GRAMMAR = re.compile(r"\\(?:sum|prod|int|lim|begin)(?![a-zA-Z])")
_OTHER_COMMANDS = "frac sqrt binom pi infty sin cos tan ln log exp sum prod int lim to begin end"
OTHER_COMMANDS = (GREEK - {"gamma", "Gamma"}) | frozenset(_OTHER_COMMANDS.split())
MISREAD = re.compile(r"\d\s+\d|\d\s*\(\s*[-\d]|\)\s*\d|'|(?<![\\a-zA-Z{])[a-zA-Z]{4,}")
DEGREES = re.compile(r"(?<![\d.])(\d++(?:\.\d++)?)\s*\^\s*\\circ(?![a-zA-Z])")
SPELLING = NormalizationConfig(
    basic_latex=True,
    units=False,
    malformed_operators=True,
    nits=True,
    boxed="none",
    equations=False,
)
GRAMMAR = ConversionConfig(lowercase_symbols=False)


class Symbolic:
    """SymPy as an algebra of the grammar, with a bound on everything that it would write out."""

    def number(self, c: Fraction) -> sympy.Expr:
        return sympy.Rational(c.numerator, c.denominator)

    def letter(self, name: str) -> sympy.Expr:
        return {"π": sympy.pi, "e": sympy.E, "i": sympy.I}.get(name) or sympy.Symbol(
            name, real=True
        )

    def rational(self, a: sympy.Expr) -> Fraction | None:
        return Fraction(int(a.p), int(a.q)) if a.is_Rational else None

    def add(self, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
        return _bounded(a + b)

    def multiply(self, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
        return _bounded(a * b)

    def invert(self, a: sympy.Expr) -> sympy.Expr:
        if a.is_zero:
            raise Senseless("a division by zero")
        return 1 / a

    def power(self, a: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
        if a.is_zero and not exponent.is_positive:
            raise Senseless("zero to the power of zero or less")
        if exponent.is_number:
            size = abs(exponent.evalf(5))
            if not size.is_Float and not size.is_Rational:
                raise Senseless("a power that is no number")
            bits = max(a.p.bit_length(), a.q.bit_length()) if a.is_Rational else 1
            if a not in (0, 1, -1) and (size > LARGEST_EXPONENT or bits * size > exact.BITS):
                raise Senseless("a power too large to write out")
        return _bounded(a**exponent)

    def root(self, a: sympy.Expr, index: sympy.Expr | None) -> sympy.Expr:
        """The real root where there is one: ∛−8 is −2."""
        if index is not None and a.is_negative and index.is_odd:
            return -self.power(-a, 1 / index)
        return self.power(a, 1 / (index or sympy.Integer(2)))

    def factorial(self, a: sympy.Expr) -> sympy.Expr:
        if a.is_number and (not a.is_Rational or abs(a) > exact.LARGEST_FACTORIAL):
            raise Senseless("a factorial too large to write out")
        return _bounded(sympy.factorial(a))

    def function(self, name: str, *arguments: sympy.Expr) -> sympy.Expr:
        x = arguments[0]
        if name == "exp":
            return self.power(sympy.E, x)
        if name == "log":
            if x.is_zero:
                raise Senseless("the logarithm of zero")
            if len(arguments) > 1:
                return sympy.log(x) / sympy.log(arguments[1])
            return sympy.log(x) * PER_UNKNOWN_BASE
        if name == "binomial":
            if any(a.is_number and abs(a) > exact.LARGEST_FACTORIAL for a in arguments):
                raise Senseless("a binomial coefficient too large to write out")
            return sympy.binomial(*arguments)
        if name.startswith("of "):
            return sympy.Function(name.removeprefix("of "))(x)
        return _bounded(FUNCTIONS[name](x))


def _bounded(a: sympy.Expr) -> sympy.Expr:
    if a.is_Rational and max(a.p.bit_length(), a.q.bit_length()) > exact.BITS:
        raise Senseless("a number too large to write out")
    return a


ALGEBRA = Symbolic()


@lru_cache(maxsize=256)
def expression(text: str) -> sympy.Basic:
    """The SymPy expression of a text in the spelling of `notation.spell`."""
    text = DEGREES.sub(r"(\1*\\frac{\\pi}{180})", text)
    parsed = _by_other_grammar(text) if OTHER_GRAMMAR.search(text) else read(text, ALGEBRA)
    if parsed.has(sympy.nan, sympy.zoo, sympy.oo):
        raise Senseless("it has no value")
    return parsed


def _by_other_grammar(text: str) -> sympy.Basic:
    """Sums, integrals, limits, matrices, where that grammar reads the rest as ours does."""
    for name in re.findall(r"\\([a-zA-Z]+)", text):
        if name not in OTHER_COMMANDS:
            raise Unreadable(f"\\{name} is not known")
    if not text.isascii() or MISREAD.search(re.sub(r"\\(?:begin|end)\{[a-zA-Z]*\}", ";", text)):
        raise Unreadable("it is not an expression")
    try:
        parsed = latex2sympy(
            normalize_latex(text, SPELLING),
            is_real=True,
            normalization_config=None,
            conversion_config=GRAMMAR,
        )
    except (Exception, RecursionError) as problem:
        raise Unreadable(f"its grammar: {str(problem)[:80]}") from None
    if not isinstance(parsed, sympy.Expr | sympy.MatrixBase):
        raise Unreadable("it is not a value")
    _refuse_the_large(parsed)
    decimals = {f: sympy.Rational(str(f)) for f in parsed.atoms(sympy.Float)}
    return parsed.xreplace(decimals)


def _refuse_the_large(parsed: sympy.Basic) -> None:
    """Raises for what the other grammar has parsed but nobody could write out."""
    for node in sympy.preorder_traversal(parsed):
        if isinstance(node, sympy.Sum | sympy.Product):
            for _, low, high in node.limits:
                if (
                    low.is_number
                    and high.is_number
                    and high.is_finite
                    and not _at_most(high - low, MOST_TERMS)
                ):
                    raise Senseless("a sum of too many terms")
        elif (
            isinstance(node, sympy.Pow)
            and node.is_number
            and not _at_most(node.exp, LARGEST_EXPONENT)
        ):
            raise Senseless("a power too large to write out")
        elif isinstance(node, sympy.factorial | sympy.binomial) and not all(
            _at_most(arg, exact.LARGEST_FACTORIAL) for arg in node.args if arg.is_number
        ):
            raise Senseless("a factorial too large to write out")


def _at_most(x: sympy.Expr, bound: int) -> bool:
    """Whether |x| is at most the bound, where its digits are not worth computing (towers)."""
    towers = [
        p
        for p in x.atoms(sympy.Pow, sympy.factorial)
        if any(a.has(sympy.Pow, sympy.factorial) for a in p.args)
    ]
    return not towers and (abs(x.evalf(5)) <= bound) == True  # noqa: E712  (a relation SymPy cannot decide is neither)


def _equal(gold: str, answer: str) -> bool | None:
    if tight(gold) == tight(answer):
        return True
    try:
        return _exactly(gold, answer) or _rounds_to(gold, answer)
    except Unreadable:
        return False


def _exactly(gold: str, answer: str) -> bool:
    try:
        known = exact.same(exact.value(gold), exact.value(answer))
        if known is not None:
            return known
    except Senseless:
        raise
    except Unreadable:
        pass
    return expressions_equal(expression(gold), expression(answer))


def _rounds_to(gold: str, answer: str) -> bool:
    """A gold of twelve or more places is a rounding: irrationals that round to it equal it."""
    if not re.fullmatch(r"-?\d*\.\d{12,}", gold):
        return False
    value = expression(answer)
    if not (value.is_number and value.is_real) or value.is_rational is not False:
        return False
    places = len(gold.partition(".")[2])
    return bool(abs(value - sympy.Rational(gold)) * 2 * 10**places <= 1)


def expressions_equal(a: sympy.Basic, b: sympy.Basic) -> bool:
    if a == b:
        return True
    if not (isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr)):
        return _matrices_equal(a, b)
    if a.is_Matrix != b.is_Matrix:
        return False
    difference = a - b
    if difference.has(*UNEVALUATED):
        difference = difference.doit()
        if difference.has(*UNEVALUATED):
            return bool(sympy.expand(difference) == 0)
        a, b = difference, sympy.Integer(0)
    if not difference.free_symbols:
        return _is_zero(difference, CONSTANT_DIGITS) is True
    agreed = 0
    for point, is_far in _points(a, b):
        x, y = a.subs(point), b.subs(point)
        if (x - y).has(sympy.nan, sympy.zoo, sympy.oo):
            continue
        zero = _is_zero(x - y, DIGITS)
        if zero:
            agreed += 1
        elif not (zero is None and is_far) and not _is_outside(x, y, a, b):
            return False
    return agreed >= LEAST_POINTS


def _is_outside(x: sympy.Expr, y: sympy.Expr, a: sympy.Expr, b: sympy.Expr) -> bool:
    """Whether x and y, the values of a and b at a point, are both not real
    though neither was written with an i.
    """
    return not (a - b).has(sympy.I) and not _is_real(x) and not _is_real(y)


def _is_real(x: sympy.Expr) -> bool:
    real, imaginary = x.evalf(15, maxn=60).as_real_imag()
    return bool(abs(imaginary) <= abs(real) * sympy.Float("1e-12"))


def _points(a: sympy.Expr, b: sympy.Expr) -> Iterator[tuple[Point, bool]]:
    """Points to compare a and b at, and whether they are far from 0: fractions, so that no power is
    a whole number.
    """
    both = sympy.Tuple(a, b)
    letters = sorted(both.free_symbols, key=str)
    draw = random.Random(str(both))
    for sign, size in NEAR:
        yield {s: _near(sign, size, draw) for s in letters}, False
    roots = [p for p in both.atoms(sympy.Pow) if p.exp.is_number and not p.exp.is_integer]
    if roots or both.has(*CASES):
        orders = [draw.sample(range(EACH), EACH) for _ in letters]
        for places in zip(*orders, strict=True):
            where = (_between(k, k + 1, draw) / 2 - EACH // 4 for k in places)
            yield dict(zip(letters, where, strict=True)), False
    for factor in FAR_IN_EXPONENT if _grows_fast(both) else FAR:
        yield {s: factor * _between(*MEDIUM, draw) for s in letters}, True


def _between(low: int, high: int, draw: random.Random) -> sympy.Rational:
    q = draw.choice(DENOMINATORS)
    return draw.randrange(low, high) + sympy.Rational(draw.randrange(1, q), q)


def _near(sign: int | None, size: tuple[int, int] | None, draw: random.Random) -> sympy.Rational:
    low, high = size or draw.choice((SMALL, MEDIUM, LARGE))
    return (sign or draw.choice((1, -1))) * _between(low, high, draw)


def _grows_fast(x: sympy.Basic) -> bool:
    return x.has(*FAST_GROWING) or any(p.exp.free_symbols for p in x.atoms(sympy.Pow))


def _is_zero(x: sympy.Expr, digits: int) -> bool | None:
    """Whether a constant is zero to so many digits; None where twice as many and SPARE_DIGITS do not tell.

    What is not zero stays the same when it is computed to more digits, and a rounding error does not.
    """
    if x.is_Rational:
        return bool(x == 0)
    smallest, before = sympy.Float(10) ** -digits, None
    for most in (60, digits + 50, 2 * digits + SPARE_DIGITS):
        value = x.evalf(15, maxn=most)
        if not value.is_number or value.has(sympy.nan, sympy.zoo, sympy.oo):
            return False
        if most > digits and abs(value) < smallest:
            return True
        if before is not None and _is_exact(value) and abs(value - before) <= 1e-3 * abs(value):
            return False
        before = value
    return None


def _is_exact(x: sympy.Expr) -> bool:
    """SymPy gives a precision of one bit to a part that may be rounding alone."""
    return any(getattr(part, "_prec", 2) > 1 for part in x.as_real_imag() if part != 0)


def _matrices_equal(a: sympy.Basic, b: sympy.Basic) -> bool:
    a, b = a.doit(), b.doit()
    if (
        not (isinstance(a, sympy.MatrixBase) and isinstance(b, sympy.MatrixBase))
        or a.shape != b.shape
    ):
        return False
    return all(expressions_equal(x, y) for x, y in zip(a.flat(), b.flat(), strict=True))


def _ratio(a: str, b: str) -> int | None:
    try:
        x, y = expression(a), expression(b)
    except Unreadable:
        return 0
    if not (isinstance(x, sympy.Expr) and isinstance(y, sympy.Expr)) or (x - y).has(*UNEVALUATED):
        return 0
    if x == y or x == -y:
        return 1 if x == y else -1
    ratio, agreed = None, 0
    for point, is_far in _points(x, y):
        over, under = x.subs(point), y.subs(point)
        if _is_zero(over, DIGITS) or _is_zero(under, DIGITS):
            return 0
        zero = ratio is not None and _is_zero(over / under - ratio, DIGITS)
        if zero:
            agreed += 1
        elif _is_outside(over, under, x, y):
            continue
        elif ratio is None:
            ratio, agreed = over / under, 1
        elif not (zero is None and is_far):
            return 0
    if ratio is None or not ratio.is_real or agreed < LEAST_POINTS:
        return 0
    return 1 if ratio > 0 else -1


def _approximates(number: str, printed: str) -> bool:
    step = exact.printed_step(printed)
    if step is None:
        return bool(_equal(number, printed))
    try:
        value, shown = expression(number), exact.number(exact.value(printed))
    except Unreadable:
        return False
    if shown is None or not (value.is_number and value.is_real):
        return False
    near = sympy.Rational(str(value.evalf(DIGITS)))
    return exact.shows(Fraction(int(near.p), int(near.q)), shown, step)


SYMBOLIC = Comparer(_equal, _ratio, _approximates)

r"""Expressions that exact arithmetic does not read, by math-verify's LaTeX grammar and SymPy. For a killable worker.

Two expressions are equal if they agree at eight points of both signs to fifty digits, and constants if they agree to
2,000 digits: no simplifier, no rounding, no float. Before anything is computed, what could not be written out is
refused (`Senseless`): towers of powers, factorials of large numbers, sums of more than 1,000 terms.

Not covered: identities that hold for whole numbers only (cos πn = (−1)ⁿ), or only under assumptions (√x² = x).
"""

from __future__ import annotations

import random
import re
from functools import lru_cache

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, NormalizationConfig, latex2sympy, normalize_latex
from sympy.core.function import AppliedUndef

from equipoise.rewards import exact
from equipoise.rewards.compare import Arithmetic, as_interval, is_name, settled
from equipoise.rewards.notation import Senseless, Unreadable
from equipoise.rewards.structure import Chain, Group, Leaf, Node, Union

BITS = 40_000
MOST_TERMS = 1_000
DIGITS, CONSTANT_DIGITS = 50, 2_000
POINTS = 8

_KNOWN = """
    frac sqrt binom pi infty sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh ln log exp sum
    prod int lim to lfloor rfloor lceil rceil max min gcd lcm text begin end dot ddot overline bar det cap
    setminus mathbb emptyset ldots prime circ langle rangle
"""
KNOWN = exact.GREEK | frozenset(_KNOWN.split())
SPELLING = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
GRAMMAR = ConversionConfig(interpret_as_mixed_fractions=True, lowercase_symbols=False)


@lru_cache(maxsize=256)
def expression(text: str) -> sympy.Basic:
    """The SymPy expression of a text in the spelling of `notation.spell`, with decimals as the fractions they are."""
    for name in re.findall(r"\\([a-zA-Z]+)", text):
        if name not in KNOWN:
            raise Unreadable(f"\\{name} is not known")
    if (
        not text.isascii()
        or re.search(r"\d{4000}|[?@#~`\"]|__|\\\\(?!.*matrix)|[-+*/^]\s*$", text)
        or r"\ldots" in text
    ):
        raise Unreadable("it is not an expression")
    if re.search(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}(?![a-zA-Z]*\})", text):
        raise Unreadable("words within an expression")
    text = re.sub(r"\^\s*\\circ", r"*\\frac{\\pi}{180}", text)
    is_complex = re.search(r"(?<![a-zA-Z\\])i(?![a-zA-Z])|\\text\{i\}", text)
    try:
        parsed = latex2sympy(
            normalize_latex(text, SPELLING), is_real=None if is_complex else True, normalization_config=None,
            conversion_config=GRAMMAR,
        )  # fmt: skip
    except RecursionError:
        raise Unreadable("nested too deep") from None
    except Exception as problem:
        raise Unreadable(f"its grammar: {str(problem)[:80]}") from None
    if not isinstance(parsed, sympy.Expr | sympy.MatrixBase | sympy.MatrixExpr):
        raise Unreadable("it is not a value")
    if isinstance(parsed, sympy.Expr):
        _size(parsed)
        parsed = parsed.xreplace({f: sympy.Rational(str(f)) for f in parsed.atoms(sympy.Float)})
        if parsed.has(sympy.nan, sympy.zoo):
            raise Senseless("it has no value")
    return parsed


def _size(node: sympy.Basic) -> float:
    """A bound on the bits of a number, 8 for a letter. Raises where something could not be written out."""
    if node.is_Integer or node.is_Rational:
        return float(max(abs(node.p).bit_length(), node.q.bit_length()))
    if not node.args:
        return 8.0
    if isinstance(node, sympy.Sum | sympy.Product):
        for limit in node.limits:
            ends = [end for end in limit[1:] if end.is_number and end.is_finite]
            for end in ends:
                if _size(end) > 60:
                    raise Senseless("a sum of too many terms")
            if len(ends) == 2 and abs(ends[1] - ends[0]) > MOST_TERMS:
                raise Senseless("a sum of too many terms")
        return _size(node.function) + 64
    sizes = [_size(arg) for arg in node.args]
    if node.is_Add:
        bits = max(sizes) + len(sizes).bit_length()
    elif node.is_Mul:
        bits = sum(sizes)
    elif node.is_Pow or isinstance(node, sympy.exp):
        base, exponent = (node.base, node.exp) if node.is_Pow else (sympy.E, node.args[0])
        if exponent.is_number and base.is_number and sizes[-1] > 17 and base not in (0, 1, -1):
            raise Senseless("a power too large to write out")
        magnitude = (
            abs(float(exponent)) if exponent.is_Rational else 2.0 ** min(sizes[-1], 20) if exponent.is_number else 8
        )
        bits = (8.0 if base is sympy.E else sizes[0]) * max(magnitude, 1)
    elif isinstance(node, sympy.factorial | sympy.binomial | sympy.gamma):
        largest = max(sizes)
        if all(arg.is_number for arg in node.args) and largest > 12:
            raise Senseless("a factorial too large to write out")
        bits = 2.0**largest * largest if all(arg.is_number for arg in node.args) else 64.0
    else:
        bits = max(sizes)
    if bits > BITS:
        raise Senseless("a number too large to write out")
    return bits


def _equal(gold: str, answer: str) -> bool | None:
    if gold.replace(" ", "") == answer.replace(" ", ""):
        return True
    try:
        g, a = exact.value(gold), exact.value(answer)
        return exact.same(g, a) or _rounds_to(gold, answer)
    except Senseless:
        return False
    except Unreadable:
        pass
    try:
        return expressions_equal(expression(gold), expression(answer)) or _rounds_to(gold, answer)
    except Unreadable:
        return False


def _rounds_to(gold: str, answer: str) -> bool:
    """A gold decimal of twelve or more places is a rounding: an irrational answer that rounds to it equals it."""
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
    if sympy.oo in (a, b) or -sympy.oo in (a, b):
        return a.doit() == b.doit()
    difference = a - b
    if difference.has(sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative, AppliedUndef):
        difference = difference.doit()
        if difference.has(sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative, AppliedUndef):
            return sympy.expand(difference) == 0
    symbols = sorted(difference.free_symbols, key=str)
    if not symbols:
        return _is_zero(difference, CONSTANT_DIGITS)
    tested = 0
    for point in _points(symbols):
        at = difference.subs(point)
        if at.has(sympy.nan, sympy.zoo, sympy.oo):
            continue
        if not _is_zero(at, DIGITS):
            return False
        tested += 1
    return tested >= POINTS // 2


def _points(symbols: list[sympy.Symbol]) -> list[dict[sympy.Symbol, sympy.Rational]]:
    """The same points every time; the first ones positive, where most expressions are defined."""
    draw = random.Random(1)
    return [
        {s: sympy.Rational(draw.randint(2, 97) * (draw.choice((1, -1)) if k >= POINTS // 2 else 1), draw.randint(3, 13))
         for s in symbols}
        for k in range(POINTS)
    ]  # fmt: skip


def _is_zero(x: sympy.Expr, digits: int) -> bool:
    """Whether a constant is zero, to `digits` digits past its point and relative to its largest term."""
    if x.is_Rational:
        return bool(x == 0)
    rough = x.evalf(15, maxn=60)
    if not rough.is_number or rough.has(sympy.nan, sympy.zoo, sympy.oo):
        return False
    if abs(rough) > sympy.Float("1e-12"):
        return False
    return bool(abs(x.evalf(15, maxn=digits + 50)) < sympy.Float(10) ** -digits)


def _matrices_equal(a: sympy.Basic, b: sympy.Basic) -> bool:
    a, b = sympy.sympify(a).doit(), sympy.sympify(b).doit()
    if not (isinstance(a, sympy.MatrixBase) and isinstance(b, sympy.MatrixBase)) or a.shape != b.shape:
        return False
    return all(expressions_equal(x, y) for x, y in zip(a.flat(), b.flat(), strict=True))


def _ratio(a: str, b: str) -> int | None:
    try:
        x, y = expression(a), expression(b)
    except Unreadable:
        return 0
    if not (isinstance(x, sympy.Expr) and isinstance(y, sympy.Expr)):
        return 0
    symbols = sorted(x.free_symbols | y.free_symbols, key=str)
    ratio = None
    for point in _points(symbols):
        over, under = x.subs(point), y.subs(point)
        if _is_zero(over, DIGITS) or _is_zero(under, DIGITS):
            return 0
        if ratio is None:
            ratio = over / under
        elif not _is_zero(over / under - ratio, DIGITS):
            return 0
    return 0 if ratio is None or not ratio.is_real else (1 if ratio > 0 else -1)


SYMBOLIC = Arithmetic(_equal, _ratio)


def regions_equal(gold: Node, answer: Node) -> bool:
    """Whether two sets of real numbers are one, where at least one is a union or an inequality."""
    if not (_is_region(gold) and _is_region(answer)) or all(isinstance(node, Group) for node in (gold, answer)):
        return False
    try:
        a, b = _region(gold), _region(answer)
        return bool(a == b) or a.symmetric_difference(b) == sympy.S.EmptySet
    except (Unreadable, NotImplementedError, TypeError, ValueError):
        return False


def _is_region(node: Node) -> bool:
    node = settled(node)
    if isinstance(node, Group):
        interval = node.ordered and len(node.items) == 2
        return interval or (not node.ordered and all(map(_is_region, node.items)) and bool(node.items))
    return isinstance(node, Union) or (isinstance(node, Chain) and set(node.signs) <= set("<≤>≥"))


def _region(node: Node) -> sympy.Set:
    node = settled(node)
    if isinstance(node, Union):
        return sympy.Union(*map(_region, node.parts))
    if isinstance(node, Chain):
        if (interval := as_interval(node)) is not None and is_name(node.texts[1 if len(node.signs) == 2 else 0]):
            return _region(interval)
        return _solutions(node)
    if isinstance(node, Group) and node.ordered and len(node.items) == 2:
        left, right = (_end(item) for item in node.items)
        if not left < right:
            raise Unreadable("an interval that ends before it begins")
        return sympy.Interval(left, right, left_open=node.left == "(", right_open=node.right == ")")
    if isinstance(node, Group) and node.left == "{":
        return sympy.FiniteSet(*map(_end, node.items))
    if isinstance(node, Group):
        return sympy.Union(*map(_region, node.items))
    raise Unreadable("it is no set of numbers")


def _end(node: Node) -> sympy.Expr:
    node = settled(node)
    if not isinstance(node, Leaf):
        raise Unreadable("an end of an interval that is no number")
    value = expression(node.text)
    if not isinstance(value, sympy.Expr) or not value.is_extended_real or value.free_symbols:
        raise Unreadable("an end of an interval that is no number")
    return value


def _solutions(chain: Chain) -> sympy.Set:
    sides = [expression(text) for text in chain.texts]
    symbols = {symbol for side in sides for symbol in side.free_symbols}
    if len(symbols) != 1:
        raise Unreadable("an inequality in more than one letter")
    relation = {"<": sympy.Lt, "≤": sympy.Le, ">": sympy.Gt, "≥": sympy.Ge}
    pairs = zip(sides, chain.signs, sides[1:], strict=False)
    return sympy.Intersection(*(relation[sign](a, b).as_set() for a, sign, b in pairs))

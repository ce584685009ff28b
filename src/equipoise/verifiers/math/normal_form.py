"""Normal forms of arranged expressions: one for all spellings of little difference.

Each level leaves out more than the one before: where a minus stands; what is computed with plain
numbers; numbers multiplied into a sum; how like terms and powers of one letter are collected.
No factoring, no products of sums written out, no identities of functions.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm

from equipoise.verifiers.math.arrangement import MINUS, UNIT, Tree
from equipoise.verifiers.math.exact import EXACT, number
from equipoise.verifiers.math.notation import Unreadable

LEVELS = SIGNS, NUMBERS, FACTORS, TERMS = range(4)
LONGEST_RADICAND = 10**15
ONE = Fraction(1)

# A rational number, only its sign with SIGNS, times an expression without one.
Scaled = tuple[Fraction, Tree]


def normal_or_none(tree: Tree, level: int) -> Scaled | None:
    """The normal form; None where a number in it is too long or divided by zero."""
    try:
        return _normal(tree, level)
    except (Unreadable, RecursionError, OverflowError):
        return None


@lru_cache(maxsize=16_384)
def _normal(tree: Tree, level: int) -> Scaled:
    kind = tree[0]
    if kind == "number":
        return _number(tree[1], level)
    if kind == "letter":
        return ONE, tree
    parts = [_normal(part, level) for part in tree[1:]]
    if kind == "+":
        return _sum(parts, level)
    if kind == "*":
        return _product(parts, level)
    if kind == "inverse":
        return _inverse(parts[0], level)
    if kind == "^":
        return _power(parts[0], parts[1], level)
    return _applied(tree, parts, level)


def _number(c: Fraction, level: int) -> Scaled:
    c = Fraction(c)
    if level > SIGNS or abs(c) == 1:
        return c, UNIT
    return (ONE if c >= 0 else -ONE), ("number", abs(c))


def whole(scaled: Scaled) -> Tree:
    """The tree of a normal form, its number included."""
    c, core = scaled
    signs = [MINUS] if c < 0 else []
    numbers = [("number", abs(c))] if abs(c) != 1 else []
    return _in_order("*", [*signs, *numbers, *_factors(core)])


def _split(tree: Tree, level: int) -> Scaled:
    """The normal form of the tree that `whole` made of it."""
    c, rest = ONE, []
    for factor in _factors(tree):
        if factor == MINUS or (factor[0] == "number" and level > SIGNS):
            c *= factor[1]
        else:
            rest.append(factor)
    return c, _in_order("*", rest)


def _factors(tree: Tree) -> tuple[Tree, ...]:
    if tree == UNIT:
        return ()
    return tree[1:] if tree[0] == "*" else (tree,)


def _in_order(operation: str, operands: list[Tree]) -> Tree:
    if len(operands) < 2:
        return operands[0] if operands else UNIT
    return (operation, *sorted(operands, key=hash))


def _product(parts: list[Scaled], level: int) -> Scaled:
    c = ONE
    for factor, _ in parts:
        c = _bounded(c * factor)
    factors = [factor for _, core in parts for factor in _factors(core)]
    if level == TERMS:
        factors = _collected(factors)
    return (c, _in_order("*", factors)) if c else (c, UNIT)


def _bounded(c: Fraction) -> Fraction:
    EXACT.number(c)  # raises where it is too long
    return c


def _collected(factors: list[Tree]) -> list[Tree]:
    """Powers of one base as one power."""
    exponents: dict[Tree, Fraction] = {}
    for factor in factors:
        base, exponent = _as_power(factor)
        exponents[base] = exponents.get(base, Fraction(0)) + exponent
    return [_as_tree(base, exponent) for base, exponent in exponents.items() if exponent]


def _as_power(factor: Tree) -> tuple[Tree, Fraction]:
    if factor[0] == "inverse":
        base, exponent = _as_power(factor[1])
        return base, -exponent
    if factor[0] == "^":
        exponent, rest = _split(factor[2], TERMS)
        if rest == UNIT:
            return factor[1], exponent
    return factor, ONE


def _as_tree(base: Tree, exponent: Fraction) -> Tree:
    return base if exponent == 1 else ("^", base, whole((exponent, UNIT)))


def _inverse(scaled: Scaled, level: int) -> Scaled:
    c, core = scaled
    if not c:
        raise Unreadable("a division by zero")
    factors = [
        factor[1] if factor[0] == "inverse" else ("inverse", factor) for factor in _factors(core)
    ]
    return 1 / c, _in_order("*", _collected(factors) if level == TERMS else factors)


def _sum(parts: list[Scaled], level: int) -> Scaled:
    terms = _added([term for part in parts for term in _terms(part, level)], level)
    if not terms:
        return Fraction(0), UNIT
    if len(terms) == 1:
        return terms[0]
    content = _content([c for c, _ in terms]) if level >= FACTORS else ONE
    positive, negative = (
        _in_order("+", [whole((sign * c / content, core)) for c, core in terms]) for sign in (1, -1)
    )
    return (content, positive) if hash(positive) <= hash(negative) else (-content, negative)


def _terms(scaled: Scaled, level: int) -> list[Scaled]:
    """The terms of a sum, its number multiplied into them; anything else is one term."""
    c, core = scaled
    if core[0] != "+" or (level < FACTORS and abs(c) != 1):
        return [scaled]
    inside = [_split(term, level) for term in core[1:]]
    return [(_bounded(c * factor), rest) for factor, rest in inside]


def _added(terms: list[Scaled], level: int) -> list[Scaled]:
    """Terms that differ in their number alone as one: plain numbers, with TERMS all of them."""
    if level == SIGNS:
        return terms
    totals: dict[Tree, Fraction] = {}
    apart: list[Scaled] = []
    for c, core in terms:
        if level == TERMS or core == UNIT:
            totals[core] = _bounded(totals.get(core, Fraction(0)) + c)
        else:
            apart.append((c, core))
    return [(c, core) for c, core in [*apart, *((c, core) for core, c in totals.items())] if c]


def _content(numbers: list[Fraction]) -> Fraction:
    """The greatest number of which all are whole multiples."""
    over, under = (c.numerator for c in numbers), (c.denominator for c in numbers)
    return Fraction(gcd(*over), lcm(*under))


def _power(base: Scaled, exponent: Scaled, level: int) -> Scaled:
    e = _rational(exponent)
    if e is None:
        return ONE, ("^", whole(base), whole(exponent))
    if level == SIGNS:
        c, core = base
        if c < 0 and e.denominator != 1:
            core = whole(base)
        return (-ONE if c < 0 and e % 2 == 1 else ONE), ("^", core, whole(exponent))
    if e == 1:
        return base
    if e.denominator == 1:
        return _whole_power(base, int(e), level)
    c, core = base
    if core == UNIT and (root := _root(c, e.denominator)) is not None:
        return _whole_power((root, UNIT), e.numerator, level)
    return ONE, ("^", whole(base), whole(exponent))


def _rational(scaled: Scaled) -> Fraction | None:
    c, core = scaled
    if core[0] == "inverse":
        below = _rational((ONE, core[1]))
        return c / below if below else None
    return c * Fraction(core[1]) if core[0] == "number" else None


def _whole_power(base: Scaled, n: int, level: int) -> Scaled:
    c, core = base
    c = number(EXACT.power(EXACT.number(c), EXACT.number(Fraction(abs(n))))) or Fraction(0)
    factors = [_raised(factor, abs(n)) for factor in _factors(core)] if n else []
    raised = _product([(c, UNIT), *((ONE, factor) for factor in factors)], level)
    return _inverse(raised, level) if n < 0 else raised


def _raised(factor: Tree, n: int) -> Tree:
    if factor[0] == "inverse":
        return ("inverse", _raised(factor[1], n))
    if factor[:2] == ("function", ABSOLUTE) and n % 2 == 0:
        factor = factor[2]
    base, exponent = _as_power(factor)
    if exponent.denominator != 1:
        return ("^", factor, whole((Fraction(n), UNIT)))
    return _as_tree(base, exponent * n)


def _root(c: Fraction, index: int) -> Fraction | None:
    """The root of a number where it is rational, and the number short."""
    if c <= 0 or max(c.numerator, c.denominator) > LONGEST_RADICAND or index > 64:
        return None
    over, under = (round(part ** (1 / index)) for part in (c.numerator, c.denominator))
    return Fraction(over, under) if Fraction(over, under) ** index == c else None


ABSOLUTE: Tree = ("letter", "abs")


def _applied(tree: Tree, parts: list[Scaled], level: int) -> Scaled:
    """A function or a factorial: its number where it is one."""
    arguments = parts[1:] if tree[0] == "function" else parts
    if level > SIGNS and all(core == UNIT for _, core in arguments):
        values = [EXACT.number(c) for c, _ in arguments]
        try:
            value = (
                EXACT.factorial(*values) if tree[0] == "!" else EXACT.function(tree[1][1], *values)
            )
            return number(value) or Fraction(0), UNIT
        except Unreadable:
            pass
    if tree[:2] == ("function", ABSOLUTE):
        c, core = arguments[0]
        return abs(c), _in_order("*", [_absolute(factor) for factor in _factors(core)])
    head = tree[:2] if tree[0] == "function" else tree[:1]
    return ONE, (*head, *map(whole, arguments))


def _absolute(factor: Tree) -> Tree:
    """|x|, and x² for |x²|."""
    if factor[:2] == ("function", ABSOLUTE) or factor[0] == "number":
        return factor
    _, exponent = _as_power(factor)
    return factor if exponent % 2 == 0 else ("function", ABSOLUTE, factor)

"""Sets of reals written in different ways: unions, inequalities to be solved. By SymPy."""

from __future__ import annotations

import sympy

from equipoise.verifiers.math import exact
from equipoise.verifiers.math.form import is_value
from equipoise.verifiers.math.notation import Unreadable
from equipoise.verifiers.math.relations import as_interval, leaves, one_letter, settled
from equipoise.verifiers.math.structure import Chain, Leaf, Listing, Node, Union
from equipoise.verifiers.math.symbolic import expression

RELATIONS = {"<": sympy.Lt, "≤": sympy.Le, ">": sympy.Gt, "≥": sympy.Ge}


def regions_equal(gold: Node, answer: Node, strict: bool) -> bool:
    """Whether two sets of real numbers are one, where at least one is a union or an inequality.

    `strict`: where the gold one is solved, the answer must be too, and its ends must be values.
    """
    if not (_is_region(gold) and _is_region(answer)) or all(
        isinstance(settled(n), Listing) for n in (gold, answer)
    ):
        return False
    if (
        strict
        and _is_solved(gold)
        and not (_is_solved(answer) and all(map(_is_end, leaves(answer))))
    ):
        return False
    letters = {
        one_letter(text)
        for node in map(settled, (gold, answer))
        if isinstance(node, Chain)
        for text in node.texts
    }
    if len(letters - {None}) > 1:
        return False
    try:
        a, b = _region(gold), _region(answer)
        return bool(a == b) or a.symmetric_difference(b) == sympy.S.EmptySet
    except (Unreadable, NotImplementedError, TypeError, ValueError):
        return False


def _is_region(node: Node) -> bool:
    node = settled(node)
    if isinstance(node, Listing):
        interval = node.ordered and len(node.items) == 2
        return interval or (
            not node.ordered and bool(node.items) and all(map(_is_region, node.items))
        )
    if isinstance(node, Leaf):
        return node.text.replace(" ", "").strip("{}") in {r"\mathbb{R}", r"\mathbbR", r"\mathbb{R"}
    return isinstance(node, Union) or (
        isinstance(node, Chain) and set(node.signs) <= RELATIONS.keys()
    )


def _is_solved(node: Node) -> bool:
    """Whether intervals and inequalities in one letter alone say what the set is."""
    node = settled(node)
    if isinstance(node, Union):
        return all(map(_is_solved, node.parts))
    if isinstance(node, Listing) and not node.ordered:
        return all(map(_is_solved, node.items))
    return not isinstance(node, Chain) or as_interval(node) is not None


def _is_end(text: str) -> bool:
    return exact.infinite(text) is not None or is_value(text)


def _region(node: Node) -> sympy.Set:
    node = settled(node)
    if isinstance(node, Union):
        return sympy.Union(*map(_region, node.parts))
    if isinstance(node, Leaf):
        return sympy.S.Reals
    if isinstance(node, Chain):
        return (
            _region(interval) if (interval := as_interval(node)) is not None else _solutions(node)
        )
    if isinstance(node, Listing) and node.ordered and len(node.items) == 2:
        left, right = map(_end, node.items)
        if not left < right:
            raise Unreadable("an interval that ends before it begins")
        if (left.is_infinite and node.left != "(") or (right.is_infinite and node.right != ")"):
            raise Unreadable("an interval that holds infinity")
        return sympy.Interval(left, right, left_open=node.left == "(", right_open=node.right == ")")
    if isinstance(node, Listing) and node.left == "{":
        return sympy.FiniteSet(*map(_end, node.items))
    if isinstance(node, Listing):
        return sympy.Union(*map(_region, node.items))
    raise Unreadable("it is no set of numbers")


def _end(node: Node) -> sympy.Expr:
    node = settled(node)
    if not isinstance(node, Leaf):
        raise Unreadable("an end of an interval that is no number")
    if sign := exact.infinite(node.text):
        return sign * sympy.oo
    value = expression(node.text)
    if not isinstance(value, sympy.Expr) or not value.is_real or value.free_symbols:
        raise Unreadable("an end of an interval that is no number")
    return value


def _solutions(chain: Chain) -> sympy.Set:
    sides = [expression(text) for text in chain.texts]
    if len({symbol for side in sides for symbol in side.free_symbols}) != 1:
        raise Unreadable("an inequality in more than one letter")
    pairs = zip(sides, chain.signs, sides[1:], strict=False)
    return sympy.Intersection(*(RELATIONS[sign](a, b).as_set() for a, sign, b in pairs))

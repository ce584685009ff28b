r"""How an expression is put together, whatever the order of its terms: "the reference's form".

Two texts have one arrangement if they differ in spelling, in brackets without meaning, in factors 1
and terms 0, and in the order of sums and products: (x-1)(x+1) and (x+1)(x-1) do, x^2-1 does not.
Nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

from equipoise.verifiers.math.grammar import read
from equipoise.verifiers.math.notation import Unreadable, tight
from equipoise.verifiers.math.relations import assignment, settled
from equipoise.verifiers.math.structure import (
    Chain,
    ChoiceLetter,
    Leaf,
    Listing,
    Matrix,
    Node,
    Union,
)

Tree = tuple[Any, ...]  # an operation and its operands, or ("number", c), ("letter", name)
MINUS: Tree = ("number", Fraction(-1))
ZERO: Tree = ("number", Fraction(0))
UNIT: Tree = ("number", Fraction(1))


class Arranging:
    """The algebra of arrangements."""

    def number(self, c: Fraction) -> Tree:
        return ("number", c)

    def letter(self, name: str) -> Tree:
        return ("letter", name)

    def rational(self, a: Tree) -> Fraction | None:
        if a[0] == "number":
            return Fraction(a[1])
        if a[0] == "inverse":
            below = self.rational(a[1])
            return 1 / below if below else None
        if a[0] != "*":
            return None
        product = Fraction(1)
        for factor in a[1:]:
            c = self.rational(factor)
            if c is None:
                return None
            product *= c
        return product

    def add(self, a: Tree, b: Tree) -> Tree:
        return _ordered("+", [*_operands("+", a), *_operands("+", b)], ZERO)

    def multiply(self, a: Tree, b: Tree) -> Tree:
        factors = [*_operands("*", a), *_operands("*", b)]
        minus = factors.count(MINUS) % 2
        return _ordered(
            "*", [MINUS] * minus + [factor for factor in factors if factor != MINUS], UNIT
        )

    def invert(self, a: Tree) -> Tree:
        factors = [
            factor if factor in (MINUS, UNIT) else ("inverse", factor)
            for factor in _operands("*", a)
        ]
        return _ordered("*", factors, UNIT)

    def power(self, a: Tree, exponent: Tree) -> Tree:
        return ("^", a, exponent)

    def root(self, a: Tree, index: Tree | None) -> Tree:
        return ("^", a, ("inverse", index or ("number", Fraction(2))))

    def factorial(self, a: Tree) -> Tree:
        return ("!", a)

    def function(self, name: str, *arguments: Tree) -> Tree:
        return ("function", ("letter", name), *arguments)


class Cancelling(Arranging):
    """The same without what cancels: + a - a, · a / a, a power of one, an inverse's inverse."""

    def add(self, a: Tree, b: Tree) -> Tree:
        terms = [*_operands("+", a), *_operands("+", b)]
        return _ordered(
            "+",
            _without_pairs(terms, lambda term: super(Cancelling, self).multiply(MINUS, term)),
            ZERO,
        )

    def multiply(self, a: Tree, b: Tree) -> Tree:
        factors = list(_operands("*", super().multiply(a, b)))
        return _ordered("*", _without_pairs(factors, lambda factor: ("inverse", factor)), UNIT)

    def invert(self, a: Tree) -> Tree:
        factors = [_turned(factor) for factor in _operands("*", a)]
        return _ordered("*", factors, UNIT)

    def power(self, a: Tree, exponent: Tree) -> Tree:
        if exponent == ZERO:
            return UNIT
        return a if exponent == UNIT else super().power(a, exponent)


def _turned(factor: Tree) -> Tree:
    if factor in (MINUS, UNIT):
        return factor
    return factor[1] if factor[0] == "inverse" else ("inverse", factor)


def _without_pairs(operands: list[Tree], opposite: Callable[[Tree], Tree]) -> list[Tree]:
    left = list(operands)
    for operand in operands:
        other = opposite(operand)
        if operand in left and other in left and operand != other:
            left.remove(operand)
            left.remove(other)
    return left


ARRANGING, CANCELLING = Arranging(), Cancelling()


def _operands(operation: str, a: Tree) -> tuple[Tree, ...]:
    return a[1:] if a[0] == operation else (a,)


def _ordered(operation: str, operands: list[Tree], neutral: Tree) -> Tree:
    """In an order that depends on the operands alone: by hash, as numbers may be too long."""
    kept = sorted((operand for operand in operands if operand != neutral), key=hash)
    if len(kept) < 2:
        return kept[0] if kept else neutral
    return (operation, *kept)


@lru_cache(maxsize=4096)
def arranged(text: str) -> Tree | None:
    """The arrangement of one expression in the spelling of `notation.spell`; None where it is none."""
    try:
        return read(text, ARRANGING)
    except (Unreadable, RecursionError):
        return None


@lru_cache(maxsize=4096)
def cancelled(text: str) -> Tree | None:
    """The arrangement without what takes itself away."""
    try:
        return read(text, CANCELLING)
    except (Unreadable, RecursionError):
        return None


def subtrees(tree: Tree) -> Iterator[Tree]:
    """A tree and all that it is made of."""
    yield tree
    for part in tree[1:]:
        if isinstance(part, tuple):
            yield from subtrees(part)


def arrangement_of(node: Node) -> Tree:
    """The arrangement of a whole answer: what is a list or a set has no order here either."""
    if found := assignment(node):
        return arrangement_of(found[1])
    node = settled(node)
    if isinstance(node, Leaf):
        return ("value", arranged(node.text) or tight(node.text), node.percent)
    if isinstance(node, ChoiceLetter):
        return ("choice", node.letter)
    if isinstance(node, Matrix):
        return ("matrix", *(tuple(map(arrangement_of, row)) for row in node.rows))
    if isinstance(node, Chain):
        return ("chain", node.signs, *map(arrangement_of, node.members))
    if isinstance(node, Union):
        return ("union", *sorted(map(arrangement_of, node.parts), key=hash))
    if isinstance(node, Listing):
        items = list(map(arrangement_of, node.items))
        return (
            "group",
            node.left,
            node.right,
            *(items if node.ordered else sorted(items, key=hash)),
        )
    return ("words", node.text.lower())

r"""When two answers are the same, part by part, whatever compares single expressions.

Three values throughout: True, False, and None where the arithmetic at hand cannot tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import gcd

from equipoise.verifiers.math import exact, form
from equipoise.verifiers.math.measures import differ
from equipoise.verifiers.math.notation import Unreadable, tight
from equipoise.verifiers.math.relations import (
    FLIPPED,
    as_interval,
    assignment,
    is_constant,
    letter_of,
    settled,
)
from equipoise.verifiers.math.structure import (
    Chain,
    ChoiceLetter,
    Leaf,
    Listing,
    Matrix,
    Node,
    Union,
    Words,
)

NUMBER_SET = re.compile(r"\\emptyset|\\mathbb\s*\{?\s*[NZQRC]\s*\}?(?:\s*\^?\s*[-+])?")
CLOCK = re.compile(r"(\d{1,2}):([0-5]\d)", re.ASCII)
MOST_PAIRS = 2_000  # comparisons of list items


@dataclass(frozen=True, slots=True)
class Comparer:
    """`equal(gold, answer)` of two expressions; `ratio(a, b)`: the sign of c where a = c·b, 0 where
    there is none; `approximates(exact, printed)`: whether a decimal is the other number to the
    digits it shows.

    `strict`: an answer that is a number must be written as a value (`form`), and the solution
    of an equation or inequality must be solved for its letter.
    """

    equal: Callable[[str, str], bool | None]
    ratio: Callable[[str, str], int | None]
    approximates: Callable[[str, str], bool | None]
    strict: bool = False


def same(gold: Node, answer: Node, by: Comparer) -> bool | None:
    gold, answer = settled(gold), settled(answer)
    if isinstance(gold, ChoiceLetter) or isinstance(answer, ChoiceLetter):
        return _same_choice(gold, answer, by)
    if isinstance(gold, Chain) or isinstance(answer, Chain):
        return _same_chain(gold, answer, by)
    if isinstance(gold, Union) or isinstance(answer, Union):
        return _same_union(gold, answer, by)
    if isinstance(gold, Matrix) or isinstance(answer, Matrix):
        return _same_matrix(gold, answer, by)
    if isinstance(gold, Listing) or isinstance(answer, Listing):
        return _same_group(gold, answer, by)
    if isinstance(gold, Words) or isinstance(answer, Words):
        return _same_words(gold, answer, by)
    assert isinstance(gold, Leaf)
    assert isinstance(answer, Leaf)
    return _same_leaf(gold, answer, by)


def every(outcomes: Iterable[bool | None]) -> bool | None:
    found: bool | None = True
    for outcome in outcomes:
        if outcome is False:
            return False
        if outcome is None:
            found = None
    return found


def some(outcomes: Iterable[bool | None]) -> bool | None:
    found: bool | None = False
    for outcome in outcomes:
        if outcome:
            return True
        if outcome is None:
            found = None
    return found


def _letter(node: Node) -> str | None:
    if isinstance(node, ChoiceLetter):
        return node.letter
    return node.text if isinstance(node, Leaf) and re.fullmatch(r"[A-J]", node.text) else None


def _same_choice(gold: Node, answer: Node, by: Comparer) -> bool | None:
    wanted, chosen = _letter(gold), _letter(answer)
    if wanted and chosen:
        return wanted == chosen
    if isinstance(answer, ChoiceLetter):
        return same(gold, answer.rest, by) if answer.rest is not None else False
    if isinstance(gold, ChoiceLetter) and gold.rest is not None:
        return same(gold.rest, answer, by)
    return False


def _same_words(gold: Node, answer: Node, by: Comparer) -> bool | None:
    if isinstance(gold, Words) and isinstance(answer, Words):
        return _same_text(gold.text, answer.text)
    words, other = (gold, answer) if isinstance(gold, Words) else (answer, gold)
    assert isinstance(words, Words)
    if isinstance(other, Leaf) and re.fullmatch(r"[a-zA-Z]{2,8}", words.text):  # abc is also a·b·c
        pair = (words.text, other.text) if words is gold else (other.text, words.text)
        return by.equal(*pair)
    return False


def _same_text(gold: str, answer: str) -> bool:
    """Without regard to case; but letters that may be a product (ab, ABC) keep theirs,
    save a capital at the start.
    """
    g, a = (" ".join(text.rstrip(".!").split()) for text in (gold, answer))
    if len(g) > 3 or g.lower() in {"yes", "no"}:
        return g.lower() == a.lower()
    return g == a or (len(g) == 3 and g[1:] == a[1:] and g.lower() == a.lower())


def _same_leaf(gold: Leaf, answer: Leaf, by: Comparer) -> bool | None:
    outcome = _equal_leaf(gold, answer, by)
    if not by.strict or outcome is False or form.allowed(gold.text, answer.text):
        return outcome
    return None if outcome is None and form.shape(answer.text) is None else False


def _equal_leaf(gold: Leaf, answer: Leaf, by: Comparer) -> bool | None:
    if differ(gold.unit, answer.unit) or (gold.letters and not answer.unit):
        return False
    if gold.percent != answer.percent and (gold.unit or answer.unit):  # 28 % is not 28 cm
        return False
    endless = exact.infinite(gold.text), exact.infinite(answer.text)
    if endless != (None, None):
        return endless[0] == endless[1]
    if NUMBER_SET.fullmatch(gold.text) or NUMBER_SET.fullmatch(answer.text):
        return re.sub(r"[{}\s]", "", gold.text) == re.sub(r"[{}\s]", "", answer.text)
    based, other = exact.based(gold.text), exact.based(answer.text)
    if based or other:
        return based == other and not answer.percent
    ratio = _same_ratio(gold.text, answer.text)
    if ratio is not None:
        return ratio
    if gold.percent == answer.percent:
        return by.equal(gold.text, answer.text)
    whole = rf"\frac{{{gold.text}}}{{100}}" if gold.percent else gold.text
    part = rf"\frac{{{answer.text}}}{{100}}" if answer.percent else answer.text
    outcome = by.equal(whole, part)
    if by.strict and answer.percent and _is_count(gold.text):
        outcome = False  # 32100 % of nothing is not 321
    return some([outcome, by.equal(gold.text, answer.text)]) if _past_one(gold.text) else outcome


def _is_count(text: str) -> bool:
    """Whether it is a whole number past one, which nobody writes as a share."""
    return bool(re.fullmatch(r"[-+]?\s?\d+(?:\.0*)?", text)) and _past_one(text)


def _past_one(text: str) -> bool:
    """28 is 28 %, for it cannot be meant as a share; 0.28 is not 0.28 %."""
    try:
        value = exact.number(exact.value(text))
    except Unreadable:
        return False
    return value is not None and abs(value) > 1


def _same_ratio(gold: str, answer: str) -> bool | None:
    """7:32 is 14:64 and 7/32. None where neither text is a ratio."""
    if ":" not in gold + answer:
        return None
    if tight(gold) == tight(answer):
        return True
    if (clock := CLOCK.fullmatch(gold)) and gcd(int(clock[1]), int(clock[2])) > 1:
        return False  # 4:30 is a time: a ratio would be in lowest terms
    try:
        g, a = exact.ratio(gold), exact.ratio(answer)
        if g is None and a is None:
            return False
        g = g or [exact.value(gold), exact.value("1")]
        a = a or [exact.value(answer), exact.value("1")]
    except Unreadable:
        return False
    if len(g) != len(a) or not all(g) or not all(a):
        return False
    return all(
        exact.same(exact.multiply(g[0], y), exact.multiply(a[0], x))
        for x, y in zip(g, a, strict=True)
    )


def _same_group(gold: Node, answer: Node, by: Comparer) -> bool | None:
    if not (isinstance(gold, Listing) and isinstance(answer, Listing)):
        group, other, ours = (
            (gold, answer, False) if isinstance(gold, Listing) else (answer, gold, True)
        )
        assert isinstance(group, Listing)
        if (
            group.ordered
            or isinstance(other, Chain)
            or other == Leaf(r"\emptyset")  # and {∅} has an element
            or (by.strict and ours and len(group.items) > 1)
        ):
            return False
        return every(
            same(other, item, by) if ours else same(item, other, by) for item in _values(group)
        )
    if gold.ordered and answer.ordered:
        return (gold.left, gold.right) == (answer.left, answer.right) and _in_order(
            gold.items, answer.items, by
        )
    names, others = _names(gold), _names(answer)
    if names and others:
        return _by_name(gold, answer, by) if set(names) == set(others) else False
    if names or gold.ordered or answer.ordered:
        if {gold.left, gold.right, answer.left, answer.right} & {"{", "[", "]"}:
            return False
        orders = [(_values(gold), _values(answer))]
        if gold.ordered or answer.ordered:
            # y = 1, x = 2 is (1, 2) as it is written and (2, 1) by the names:
            # it has to hold for both.
            orders.append((_by_alphabet(gold), _by_alphabet(answer)))
        return every(_in_order(*order, by) for order in orders)
    return _as_sets(_values(gold), _values(answer), by)


def _in_order(gold: tuple[Node, ...], answer: tuple[Node, ...], by: Comparer) -> bool | None:
    return len(gold) == len(answer) and every(
        same(g, a, by) for g, a in zip(gold, answer, strict=True)
    )


def _as_sets(gold: tuple[Node, ...], answer: tuple[Node, ...], by: Comparer) -> bool | None:
    if len(gold) * len(answer) > MOST_PAIRS:
        return None
    table = [[same(g, a, by) for a in answer] for g in gold]
    return every(
        [*(some(row) for row in table), *(some(column) for column in zip(*table, strict=True))]
    )


def _names(group: Listing) -> list[str] | None:
    """The names, where every item is an assignment and no two are to one name."""
    found = [assignment(item) for item in group.items]
    names = [pair[0] for pair in found if pair]
    return names if len(names) == len(found) == len(set(names)) else None


def _by_alphabet(group: Listing) -> tuple[Node, ...]:
    """The values in the order of their names, where all have one."""
    names = _names(group)
    if names is None:
        return _values(group)
    order = sorted(range(len(names)), key=lambda k: names[k].lstrip("\\"))
    return _values(Listing(tuple(group.items[k] for k in order), group.left, group.right))


def _values(group: Listing) -> tuple[Node, ...]:
    values: list[Node] = []
    for item in group.items:
        found = assignment(item)
        value = settled(found[1]) if found else item
        values.extend(
            value.items
            if isinstance(value, Listing) and not value.left and not group.ordered
            else [value]
        )
    return tuple(values)


def _by_name(gold: Listing, answer: Listing, by: Comparer) -> bool | None:
    wanted = dict(pair for item in gold.items if (pair := assignment(item)))
    given = dict(pair for item in answer.items if (pair := assignment(item)))
    return every(same(value, given[name], by) for name, value in wanted.items())


def _same_matrix(gold: Node, answer: Node, by: Comparer) -> bool | None:
    if isinstance(gold, Matrix) and isinstance(answer, Matrix):
        g, a = gold.rows, answer.rows
        shaped = len(g) == len(a) and len(g[0]) == len(a[0])
        return shaped and every(
            same(x, y, by) for r, s in zip(g, a, strict=True) for x, y in zip(r, s, strict=True)
        )
    matrix, other = (gold, answer) if isinstance(gold, Matrix) else (answer, gold)
    assert isinstance(matrix, Matrix)
    if isinstance(other, Listing):
        cells = tuple(cell for row in matrix.rows for cell in row)
        vector = 1 in {len(matrix.rows), len(matrix.rows[0])}
        if not vector or (other.left, other.right) != ("(", ")"):
            return False
        return _in_order(*((cells, other.items) if matrix is gold else (other.items, cells)), by)
    if isinstance(other, Leaf) and r"\begin" in other.text:
        if by.strict and matrix is gold:  # matrices that are still to be added or multiplied
            return False
        return by.equal(
            *((matrix.text, other.text) if matrix is gold else (other.text, matrix.text))
        )
    return False


def _same_chain(gold: Node, answer: Node, by: Comparer) -> bool | None:
    if isinstance(gold, Chain) and isinstance(answer, Chain):
        return _same_relations(gold, answer, by)
    chain, other = (gold, answer) if isinstance(gold, Chain) else (answer, gold)
    assert isinstance(chain, Chain)
    if assigned := assignment(chain):
        return same(assigned[1], answer, by) if chain is gold else same(gold, assigned[1], by)
    if chain.signs == ("=",):
        if chain is answer and is_constant(chain.texts[0]):
            return same(gold, chain.members[1], by)
        return False
    if (interval := as_interval(chain)) is not None and isinstance(other, Listing | Union):
        if isinstance(other, Listing) and not other.ordered:
            return None  # a bare list has no brackets to compare
        outcome = same(interval, other, by) if chain is gold else same(other, interval, by)
        return outcome or None
    return None if isinstance(other, Listing | Union) else False


def _same_relations(gold: Chain, answer: Chain, by: Comparer) -> bool | None:
    if (
        len(gold.signs) == len(answer.signs) == 1
        and gold.signs[0] in FLIPPED
        and answer.signs[0] in FLIPPED
    ):
        wanted, given = assignment(gold), assignment(answer)
        if wanted and given and wanted[0] == given[0]:
            return same(wanted[1], given[1], by)
        if by.strict and _is_solution(gold):
            return _same_solution(gold, answer, by)
        if not (_is_scalar(gold) and _is_scalar(answer)):
            return False
        g, a = gold.signs[0], answer.signs[0]
        if a != g and FLIPPED[a] != g:
            return False
        ratio = by.ratio(_difference(gold), _difference(answer))
        if ratio is None:
            return None
        return ratio != 0 if g in {"=", "≠"} else ratio == (1 if a == g else -1)
    return _same_long_chains(gold, answer, by)


def _is_solution(gold: Chain) -> bool:
    """Whether it is a number for a name, or a range for a letter: 2x = 10 then is no answer."""
    wanted = assignment(gold)
    value = isinstance(wanted[1], Leaf) and is_constant(wanted[1].text) if wanted else False
    return value or as_interval(gold) is not None


def _same_solution(gold: Chain, answer: Chain, by: Comparer) -> bool | None:
    wanted, given = as_interval(gold), as_interval(answer)
    if wanted is None or given is None or letter_of(gold) != letter_of(answer):
        return False
    return same(wanted, given, by)


def _same_long_chains(gold: Chain, answer: Chain, by: Comparer) -> bool | None:
    """Member by member, read from either end; None, as a chain has other rearrangements."""
    if len(gold.signs) != len(answer.signs) or any(
        sign not in FLIPPED for sign in gold.signs + answer.signs
    ):
        return None
    signs, members, texts = answer.signs, answer.members, answer.texts
    if gold.signs != signs:
        signs, members = tuple(FLIPPED[sign] for sign in reversed(signs)), tuple(reversed(members))
        texts = tuple(reversed(texts))
    if gold.signs != signs:
        return None
    outcomes = (
        True if tight(x) == tight(y) else same(g, a, by)
        for g, a, x, y in zip(gold.members, members, gold.texts, texts, strict=True)
    )
    return every(outcomes) or None


def _is_scalar(chain: Chain) -> bool:
    return all(isinstance(member, Leaf) for member in chain.members)


def _difference(chain: Chain) -> str:
    return f"({chain.texts[0]})-({chain.texts[1]})"


def _same_union(gold: Node, answer: Node, by: Comparer) -> bool | None:
    """Part by part; one set can be cut into parts in many ways, so different parts decide nothing."""
    parts = [node.parts if isinstance(node, Union) else (node,) for node in (gold, answer)]
    regions = [
        tuple(as_interval(p) or p if isinstance(p, Chain) else p for p in side) for side in parts
    ]
    if any(isinstance(p, Leaf | Words | Matrix | ChoiceLetter) for side in regions for p in side):
        return None if all(isinstance(node, Union) for node in (gold, answer)) else False
    return _as_sets(regions[0], regions[1], by) or None

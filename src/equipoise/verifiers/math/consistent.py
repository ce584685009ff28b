r"""Whether an answer agrees with itself: x = 3 + 4 = 7 does, 183 = x = 318 does not.

Asked of answers under the strict rules, besides whether they equal the gold one (compare.py): the last
member of a chain may be right though what leads to it is not.
"""

from __future__ import annotations

import re
from dataclasses import replace

from equipoise.verifiers.math import exact
from equipoise.verifiers.math.compare import Comparer, every, same
from equipoise.verifiers.math.grammar import follows_grammar
from equipoise.verifiers.math.notation import Unreadable
from equipoise.verifiers.math.relations import (
    is_constant,
    is_name,
)
from equipoise.verifiers.math.structure import (
    Chain,
    ChoiceLetter,
    Leaf,
    Listing,
    Matrix,
    Node,
    Union,
)
from equipoise.verifiers.math.units import COUNTING, NO_UNIT, UNITS

NO_NAMES = COUNTING | {
    "not",
    "nor",
    "no",
    "isn",
    "negative",
    "minus",
    "plus",
    "times",
    "over",
    "about",
}
ANSWERS = frozenset({"true", "false", "yes", "even", "odd"})  # and no names for another one
CHOICE = re.compile(r"\(?([A-J])\)?")


def consistent(answer: Node, by: Comparer) -> bool | None:
    """Whether an answer agrees with itself: a = b = c are equal,
    and behind ≈ stand decimals that are right to the digits they show.
    """
    if isinstance(answer, ChoiceLetter):
        return answer.rest is None or consistent(answer.rest, by)
    if isinstance(answer, Listing):
        first = answer.items[0] if answer.items else None
        if answer.left == "{" and isinstance(first, Chain) and "≈" in first.signs:
            return False  # {528 ≈ 528} is no set of numbers
        return every(consistent(item, by) for item in answer.items)
    if isinstance(answer, Union):
        return every(consistent(part, by) for part in answer.parts)
    if isinstance(answer, Matrix):
        return every(consistent(cell, by) for row in answer.rows for cell in row)
    if not isinstance(answer, Chain):
        return True
    if not _has_sense(answer):
        return False
    steps = zip(answer.signs, range(len(answer.signs)), strict=True)
    holds = every(_step_holds(answer, k, sign, by) for sign, k in steps if sign in {"=", "≈"})
    return every([holds, *(consistent(member, by) for member in answer.members)])


def _has_sense(chain: Chain) -> bool:
    """Whether decimals stand behind ≈, a set behind ∈, no number in words where a name may,
    and only expressions before the last member.
    """
    if "≈" in chain.signs:
        behind = chain.texts[chain.signs.index("≈") + 1 :]
        if not set(chain.signs) <= {"=", "≈"} or not all(map(exact.printed_step, behind)):
            return False
    if "∈" in chain.signs:
        *before, last = chain.signs
        names_alone = last == "∈" and "∈" not in before and all(map(is_name, chain.texts[:-1]))
        if not names_alone or _is_number(chain.members[-1], chain.texts[-1]):
            return False
    if not all(
        NO_NAMES.isdisjoint(re.findall("[a-z]+", text.lower()))
        for text in chain.texts
        if is_name(text)
    ):
        return False
    chosen = {match[1] for text in chain.texts if (match := CHOICE.fullmatch(text))}
    chooses = set(chain.signs) == {"="} and CHOICE.fullmatch(chain.texts[-1])
    if chooses and len(chosen) > 1:  # D = C
        return False
    if any(text.lower() in ANSWERS for text in map(_bare, chain.texts[:-1])):  # odd = even
        return False
    working = zip(chain.members[:-1], chain.texts[:-1], strict=True)
    ends_in_one = isinstance(chain.members[-1], Leaf)
    return all(is_name(text) or _is_written_out(member, ends_in_one) for member, text in working)


def _bare(text: str) -> str:
    return re.sub(r"\\text|[{}\s]", "", text)


def _is_written_out(member: Node, is_one: bool) -> bool:
    """Whether a member that leads to the last is an expression, unlike \\not 426.

    `is_one`: what it leads to is no list, set or matrix, so neither is it:
    x = \\pm 193 = 193 has two.
    """
    if not isinstance(member, Leaf):
        return not is_one
    if ":" in member.text and re.search("[a-zA-Z]", member.text):
        return False
    if re.search(r"%\s*\S", member.text):  # a percent sign ends a number
        return False
    return follows_grammar(member.text.replace(":", "/")) and not _has_words(member.text)


def _has_words(text: str) -> bool:
    """Whether letters side by side are words, or one behind a number a unit.

    Two are a product beside small numbers (½bh), three never are.
    """
    runs = re.findall(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}", re.sub(r"\\[a-zA-Z]+", " ", text))
    large = re.search(r"\d{2}", text) is not None
    if re.search(r"\d\s*[msghl](?![a-zA-Z])", text):  # 398m may be 398 metres
        return True
    return any(
        len(run) > 2 or large or run.lower() in NO_UNIT or run.lower() in UNITS for run in runs
    )


def _step_holds(chain: Chain, k: int, sign: str, by: Comparer) -> bool | None:
    """Whether member k agrees with the next one that is no name: 183 = x = 318 does not. An
    equation whose left side has letters claims nothing.
    """
    following = next(
        (i for i in range(k + 1, len(chain.texts)) if not is_name(chain.texts[i])), None
    )
    if is_name(chain.texts[k]) or following is None:
        return True
    before, after = chain.texts[k], chain.texts[following]
    if sign == "≈":
        first = chain.members[k]
        text = first.text if isinstance(first, Leaf) else before
        return by.approximates(text, after) if is_constant(text) else False
    number, other = (_is_number(chain.members[i], chain.texts[i]) for i in (k, following))
    if number or (not other and is_name(chain.texts[0])):
        return same(chain.members[k], chain.members[following], replace(by, strict=False))
    return True


def _is_number(node: Node, text: str) -> bool:
    """Whether a member is a number, with a unit or without, or comes to one: 0x does."""
    text = node.text if isinstance(node, Leaf) else text
    return is_constant(text) or _comes_to_a_number(text)


def _comes_to_a_number(text: str) -> bool:
    try:
        return exact.number(exact.value(text)) is not None
    except Unreadable:
        return False

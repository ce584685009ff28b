r"""Equations and inequalities without their working, and what is only a name in them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from equipoise.verifiers.math.grammar import GREEK, follows_grammar
from equipoise.verifiers.math.structure import (
    Chain,
    ChoiceLetter,
    Leaf,
    Listing,
    Matrix,
    Node,
    Union,
)

FLIPPED = {"<": ">", ">": "<", "≤": "≥", "≥": "≤", "=": "=", "≠": "≠"}
# commands that may stand in a name
NAMING = re.compile(
    rf"\\(?:frac(?=\s*\{{)|angle|max|min|triangle|measuredangle|{'|'.join(sorted(GREEK))})(?![a-zA-Z])"
)


def is_name(text: str) -> bool:
    """Whether a text only names something: x, f(x), a_3, AB, |AB|, NO/BO, (x, y); no sum."""
    text = re.sub(r"(?<=[^\s_])_\s*(?:\{[^{}]*\}|\\?\w)", "", text)
    text = re.sub(r"\\(?:text|overline|vec|hat|bar)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"(?<=[a-zA-Z'])\s*\([a-zA-Z0-9,\s]+\)", "", text)
    if re.fullmatch(r"\s*(?:\\pi|e|i)\s*", text):
        return False
    bare = NAMING.sub("a", text)
    return bool(re.search(r"[a-zA-Z]", bare)) and bool(re.fullmatch(r"[a-zA-Z\s()|,:/'{}]+", bare))


def is_constant(text: str) -> bool:
    """Whether a text is an expression without letters; e and i are numbers."""
    letters = re.sub(r"\\[a-zA-Z]+", lambda m: "x" if m.group()[1:] in GREEK else " ", text)
    return not re.search(r"[a-df-hj-zA-Z]", letters) and follows_grammar(
        text.replace(r"\$", "").replace(":", "/")
    )


def one_letter(text: str) -> str | None:
    """The letter of x, x_1 or f(x), with its index; None for products such as kA and for |x|."""
    match = re.fullmatch(r"\s*(\\?[a-zA-Z]+(?:_(?:\w|\{[^{}]*\}))?'*)\s*(?:\(\s*\w\s*\))?\s*", text)
    if match and (match.group(1)[0] == "\\" or not match.group(1)[1:2].isalpha()):
        return match.group(1)
    return None


def settled(node: Node) -> Node:
    """A chain without its working: `x = 3 + 4 = 7` is x = 7, `1/3 ≈ 0.33` is 1/3, `x ∈ S` is S."""
    if not isinstance(node, Chain):
        return node
    node = _without_approximation(node)
    if not node.signs:
        return settled(node.members[0])
    first, last = node.texts[0], node.texts[-1]
    if not set(node.signs) <= {"=", "∈"} or ("∈" in node.signs and not is_name(first)):
        return node
    if node.signs == ("∈",) or (is_constant(first) and (len(node.signs) > 1 or is_constant(last))):
        return settled(node.members[-1])
    return Chain((node.members[0], node.members[-1]), ("=",), (first, last))


def _without_approximation(chain: Chain) -> Chain:
    """What stands before ≈, which is exact; where that is only a name, what it is said to be about."""
    if "≈" not in chain.signs:
        return chain
    cut = chain.signs.index("≈")
    if not all(map(is_name, chain.texts[: cut + 1])):
        return Chain(chain.members[: cut + 1], chain.signs[:cut], chain.texts[: cut + 1])
    rest = Chain(chain.members[cut:], ("=", *chain.signs[cut + 1 :]), chain.texts[cut:])
    return _without_approximation(rest)


def assignment(node: Node) -> tuple[str, Node] | None:
    """Name and value of x = 1; which letter is the argument of f(x) = 1 is no part of the name."""
    node = settled(node)
    if isinstance(node, Chain) and node.signs == ("=",) and is_name(node.texts[0]):
        name = re.sub(r"(?<=[a-zA-Z'])\s*\(\s*[a-zA-Z]\s*\)", "()", node.texts[0])
        return re.sub(r"[\s{}]", "", name), node.members[1]
    return None


def as_interval(chain: Chain) -> Listing | None:
    """The interval of x in a < x ≤ b, x ≥ a or b > x, for one letter or a function of one."""
    texts, signs, members = chain.texts, chain.signs, chain.members
    if sum(map(is_name, texts)) != 1 or not one_letter(next(filter(is_name, texts))):
        return None
    if len(signs) == 1 and signs[0] in {"<", "≤", ">", "≥"}:
        if is_name(texts[1]) and not is_name(texts[0]):
            texts, members, signs = (
                (texts[1], texts[0]),
                (members[1], members[0]),
                (FLIPPED[signs[0]],),
            )
        if not is_name(texts[0]) or is_name(texts[1]):
            return None
        if signs[0] in {">", "≥"}:
            return Listing((members[1], Leaf(r"\infty")), "(" if signs[0] == ">" else "[", ")")
        return Listing((Leaf(r"-\infty"), members[1]), "(", ")" if signs[0] == "<" else "]")
    if len(signs) == 2 and is_name(texts[1]) and not is_name(texts[0]) and not is_name(texts[2]):
        if set(signs) <= {">", "≥"}:
            signs, members = (
                (FLIPPED[signs[1]], FLIPPED[signs[0]]),
                (members[2], members[1], members[0]),
            )
        if set(signs) <= {"<", "≤"}:
            return Listing(
                (members[0], members[2]),
                "(" if signs[0] == "<" else "[",
                ")" if signs[1] == "<" else "]",
            )
    return None


def letter_of(chain: Chain) -> str | None:
    """The letter that an inequality is about."""
    return next(
        (letter for letter in map(one_letter, filter(is_name, chain.texts)) if letter), None
    )


def leaves(node: Node) -> Iterator[str]:
    """The expressions that a comparison reads: names on the left of an equation are not among them."""
    node = settled(node)
    if isinstance(node, Leaf):
        yield node.text
    elif isinstance(node, ChoiceLetter):
        if node.rest is not None:
            yield from leaves(node.rest)
    elif isinstance(node, Listing):
        for item in node.items:
            yield from leaves(item)
    elif isinstance(node, Union):
        for part in node.parts:
            yield from leaves(part)
    elif isinstance(node, Matrix):
        for row in node.rows:
            for cell in row:
                yield from leaves(cell)
    elif isinstance(node, Chain):
        for member, text in zip(node.members, node.texts, strict=True):
            if not is_name(text):
                yield from leaves(member)

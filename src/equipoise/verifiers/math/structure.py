r"""What an answer is made of: a value, words, list, tuple, set, interval, equation, matrix.

`parse` splits a text in the spelling of `notation` into these parts and reads no value in it.
Lists (`1, 2`, `1 and 2`, `1 or 2`, `\pm 1`) and sets (`\{1, 2\}`) have no order; `(1, 2)` and `[1,
2)` have, and keep their brackets. A thousands separator is no list (`14,916`), a comma within
brackets always separates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import product

from equipoise.verifiers.math.measures import CURRENCY_SIGNS, differ
from equipoise.verifiers.math.notation import OF_A_LIST, Unreadable, split, wraps
from equipoise.verifiers.math.units import UNIT_AFTER, unit_of


@dataclass(frozen=True, slots=True)
class Leaf:
    """One expression without its unit; `percent`: a percent sign followed, now taken off.
    `letters`: its unit may be variables, for nothing marks it as text: 3m^2, 2mg.
    """

    text: str
    unit: str = ""
    percent: bool = False
    letters: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    text: str


@dataclass(frozen=True, slots=True)
class ChoiceLetter:
    """A letter of a multiple-choice question, with what stands beside it."""

    letter: str
    rest: Node | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """Items between brackets; brackets "" for a bare list, "{" for a set."""

    items: tuple[Node, ...]
    left: str = ""
    right: str = ""

    @property
    def ordered(self) -> bool:
        return self.left not in {"", "{"}


@dataclass(frozen=True, slots=True)
class Chain:
    """a = b, a < b ≤ c: members and the signs between them."""

    members: tuple[Node, ...]
    signs: tuple[str, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Union:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[Node, ...], ...]
    text: str


Node = Leaf | Words | ChoiceLetter | Listing | Chain | Union | Matrix

LETTERS = re.compile(r"m\s*\^|(?:mg|hr)\b")
PRODUCT = re.compile(r"[a-zA-Z]{1,4}\b")  # 6xyz, and not 6students
NUMBER_WITH_COMMAS = re.compile(
    r"[-+]?\s?(?:\\\$|[€£¥])?\s?(?:(?P<decimal>0)|[1-9]\d{0,2})(?:,\d{3})+(?![\d,])(?:\.\d+)?"
)  # 0,104 has a decimal comma
NUMBER_WITH_SPACES = re.compile(
    r"[-+]?\s?(?:\\\$|[€£¥])?\s?[1-9]\d{0,2}(?: \d{3})+(?![\d,/]| \d)(?:\.\d+)?"
)
MONEY = re.compile(r"(?P<minus>(?:[-+]\s?)?)(?P<sign>\\\$|[€£¥])")
GROUPED = re.compile(r"(?<![\d.,])(?<![\d.] )[1-9]\d{0,2}(?:(?:,\d{3})+|(?: \d{3})+)(?![\d,/]| \d)")
TIME = re.compile(r"\d{1,2}:0\d(?::\d\d)?|\d{1,2}:\d\d:\d\d")
SIGN = re.compile(
    r"\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|\\ne(?![a-zA-Z])|\\in(?![a-zA-Z])|\\approx(?![a-zA-Z])|=|<|>"
)
SIGNS = {
    r"\le": "≤",
    r"\ge": "≥",
    r"\ne": "≠",
    r"\in": "∈",
    r"\approx": "≈",
    "=": "=",
    "<": "<",
    ">": ">",
}
MATRIX = re.compile(
    r"[(\[]?\s*\\begin\{([pbB]?matrix|array)\}(?:\{[clr|\s]*\})?((?:[^\\]|\\(?!begin|end))*)\\end\{\1\}\s*[)\]]?"
)  # not between bars: a determinant is a number
MOST_MEMBERS = 50  # of a chain
MOST_SIGNS = 4  # ± in one expression
PLUS_MINUS = re.compile(r"\\(pm|mp)(?![a-zA-Z])")
CHOICE = re.compile(
    r"(?:\\text\s*\{)?\s*\(([A-Ja-j])\)\s*(?:[}\s](.*))?|\\text\{\s*([A-J])[.:)]?\s*\}|([A-J])[.:)]",
    re.DOTALL,
)
OTHER_CHOICE = re.compile(r"(?<![a-zA-Z])(?:\([A-J]\)|[A-J][.)])")
WORDS = re.compile(
    r"(?=.*[a-zA-Z]{2})(?!.*(?<![a-zA-Z])[a-zA-Z]{1,2}-)[a-zA-Z]+(?:['\s-]\s*[a-zA-Z]+)*[.!]?",
    re.DOTALL,
)
FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
TEXT = re.compile(r"\\text\{([^{}]*)\}")


def parse(text: str) -> Node:
    text = _trimmed(text)
    if not text:
        raise Unreadable("it is empty")
    if choice := CHOICE.fullmatch(text):
        letter, rest = (
            (choice.group(1) or choice.group(3) or choice.group(4)).upper(),
            (choice.group(2) or "").strip(),
        )
        if not rest:
            return ChoiceLetter(letter)
        if OTHER_CHOICE.search(rest):
            raise Unreadable("it chooses more than one letter")
        if not SIGN.match(rest) and rest[0] not in "+-*/^_,":
            return ChoiceLetter(letter, parse(rest))
    if number := NUMBER_WITH_COMMAS.match(text) or NUMBER_WITH_SPACES.match(text):
        point = "." if number.groupdict().get("decimal") else ""
        joined = re.sub(r"(?<=\d)[, ](?=\d{3})", point, number.group())
        if len(split(text[number.end() :], ",;" + OF_A_LIST)) == 1:
            return _single(joined + text[number.end() :])
    if (joined := _sides_joined(text)) != text:
        return _single(joined)
    by_semicolon = [part for part in split(text, ";") if part]
    if len(by_semicolon) > 1:
        return Listing(tuple(_tuple_of(split(part, ",")) for part in by_semicolon))
    parts = split(text, "," + OF_A_LIST)
    if len(parts) > 1:
        return _list(parts)
    return _single(text)


def _sides_joined(text: str) -> str:
    """`x = 1,260` as x = 1260: where the only commas are separators of thousands."""
    if SIGN.search(text) is None or text.count(",") != len(split(text, ",")) - 1:
        return text
    joined = GROUPED.sub(lambda match: re.sub("[, ]", "", match.group()), text)
    return joined if len(split(joined, ",;" + OF_A_LIST)) == 1 else text


def _list(parts: list[str]) -> Node:
    """A bare list; `\\pm` gives it two items, and `(x, y) = (1, 2)` or `n = 1` names what follows."""
    if any(not part for part in parts):
        raise Unreadable("an item of its list is empty")
    items: list[Node] = []
    for part in parts:
        item = _single(part)
        items.extend(item.items if isinstance(item, Listing) and not item.left else [item])
    return Listing(tuple(items))


def _tuple_of(parts: list[str]) -> Node:
    return _single(parts[0]) if len(parts) == 1 else Listing(tuple(map(_single, parts)), "(", ")")


def _single(text: str) -> Node:
    text = _trimmed(text)
    if not text:
        raise Unreadable("a part of it is empty")
    if (chain := _chain(text)) is not None:
        return chain
    if len(parts := [part.strip() for part in _split_command(text, r"\cup")]) > 1:
        return Union(tuple(map(_single, parts)))
    if matrix := MATRIX.fullmatch(text):
        return _matrix(matrix.group(2), text)
    for left, right in (
        (r"\{", r"\}"),
        ("(", ")"),
        ("[", "]"),
        ("(", "]"),
        ("[", ")"),
        (r"\langle", r"\rangle"),
    ):
        if (group := _bracketed(text, left, right)) is not None:
            return group
    if PLUS_MINUS.search(text):
        return Listing(tuple(map(_single, _signed(text))))
    return _value(text)


def _signed(text: str) -> list[str]:
    """The text with + and - for each \\pm; a \\mp has the other sign of all of them."""
    signs = PLUS_MINUS.findall(text)
    if len(signs) > MOST_SIGNS:
        raise Unreadable(f"more than {MOST_SIGNS} signs of plus or minus")
    choices = list(product("+-", repeat=len(signs)))
    if "mp" in signs:
        upper = tuple("+" if sign == "pm" else "-" for sign in signs)
        choices = [upper, tuple("-" if sign == "+" else "+" for sign in upper)]
    return [_with_signs(text, choice) for choice in choices]


def _with_signs(text: str, signs: tuple[str, ...]) -> str:
    left = iter(signs)
    return PLUS_MINUS.sub(lambda _: next(left), text)


def _chain(text: str) -> Node | None:
    pieces, signs, start = [], [], 0
    for match in SIGN.finditer(text):
        if len(split(text[start : match.start()] + "\x02", "\x02")) == 2:
            pieces.append(text[start : match.start()].strip())
            signs.append(SIGNS[match.group()])
            start = match.end()
    if not signs:
        return None
    if len(signs) >= MOST_MEMBERS:
        raise Unreadable(f"a chain of more than {MOST_MEMBERS} members")
    pieces.append(text[start:].strip())
    if not pieces[0] and signs[0] == "=":  # "= 7" states 7
        pieces, signs = pieces[1:], signs[1:]
    if not all(pieces):
        raise Unreadable("a side of its equation is empty")
    if not signs:
        return _single(pieces[0])
    return Chain(tuple(map(_member, pieces)), tuple(signs), tuple(pieces))


def _member(text: str) -> Node:
    """A side of an equation; on the left, a name that cannot be read is kept as it stands."""
    try:
        return _single(text)
    except Unreadable:
        return Leaf(text)


def _bracketed(text: str, left: str, right: str) -> Node | None:
    if left == r"\langle":
        if text.startswith(left) and text.endswith(right):
            inside = text[len(left) : -len(right)]
        else:
            inside = None
    else:
        inside = text[len(left) : -len(right)] if wraps(text, left, right) else None
    if inside is None or r"\rangle" in inside:
        return None
    parts = [part for semi in split(inside, ";") for part in split(semi, ",")]
    bracket = left.removeprefix("\\") if left != r"\langle" else "("
    if len(parts) == 1:
        if bracket == "{":
            return Listing((parse(inside),), "{", "}") if inside.strip() else Leaf(r"\emptyset")
        return parse(inside) if (left, right) == ("(", ")") else None
    items: list[Node] = []
    for part in parts:
        item = parse(part)
        items.extend(
            item.items if bracket == "{" and isinstance(item, Listing) and not item.left else [item]
        )
    if left == r"\langle" or (bracket == "[" and right == "]" and len(items) != 2):
        return Listing(tuple(items), "(", ")")
    return Listing(tuple(items), bracket, right.removeprefix("\\"))


def _matrix(body: str, text: str) -> Matrix:
    rows = [row for row in re.split(r"\\\\", body) if row.strip()]
    cells = tuple(tuple(_single(cell) for cell in split(row, "&")) for row in rows)
    if not cells or len({len(row) for row in cells}) != 1:
        raise Unreadable("the rows of its matrix are not of one length")
    return Matrix(cells, text)


def _value(text: str) -> Node:
    bare = TEXT.sub(lambda m: f" {m.group(1)} ", text).strip()
    if WORDS.fullmatch(bare):
        return Words(" ".join(bare.split()))
    if TIME.fullmatch(text):
        return Words(text)
    leaf = _with_unit(Leaf(text))
    if leaf.text.endswith((r"\%", "%")):
        bare = re.sub(r"\s*\\?%$", "", leaf.text)
        # in 75 + 80 %, it belongs to the 80
        if "%" not in bare and not re.search(r"[-+*]", bare[1:]):
            leaf = replace(leaf, text=bare, percent=True)
    if not leaf.text:
        raise Unreadable("a unit without a number")
    return leaf


def _with_unit(leaf: Leaf) -> Leaf:
    text = leaf.text
    if money := MONEY.match(text):
        amount = (money["minus"] + text[money.end() :]).strip()
        currency, inner = CURRENCY_SIGNS[money["sign"]], _with_unit(Leaf(amount))
        if differ(currency, inner.unit):  # \$5 euros are neither
            currency += f" {inner.unit}"
        return replace(inner, unit=currency) if amount else leaf  # \$5 per hour is \$5
    if match := UNIT_AFTER.search(text):
        unit = unit_of(match.group())
        rest = text[: match.start()].rstrip()
        if (
            unit is not None
            and re.search(r"\d\.?$|[})\]]$|\\pi$", rest)
            and not FUNCTION.search(rest)
        ):
            attached = len(rest) == match.start()
            if attached and not unit and PRODUCT.match(match.group()):
                return leaf
            may_be = LETTERS.match(match.group()) and (attached or rest.endswith(r"\pi"))
            return replace(leaf, text=rest, unit=unit, letters=bool(may_be))
    return leaf


def _split_command(text: str, command: str) -> list[str]:
    return split(text.replace(command, "\x03"), "\x03")


def _trimmed(text: str) -> str:
    text = text.strip()
    if text.endswith(".."):
        raise Unreadable("dots behind it: it goes on")
    while text and text[-1] in ".,;" and not text.endswith(r"\,"):
        text = text[:-1].rstrip()
    while wraps(text, "{", "}"):
        text = text[1:-1].strip()
    return text

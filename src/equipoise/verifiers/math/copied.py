r"""Whether an answer was copied out of the prompt: a formula there, or one of its parts.

"Factor x^2 - 1" is not answered by x^2 - 1. The formulas of the prompt are read by the grammar of
answers. An answer is copied if each of its expressions (numbers apart) is a part of one of these
formulas, in whatever order its terms and factors are written. So it is if it is made of such parts
and leaves work to do: one of them is a sum, as in (x+1)(x-1) where x+1 and x-1 stand in the prompt,
or numbers or letters are still to be multiplied, as in 3x·4x. It is copied too if its symbols stand
in the prompt one after the other, or if it holds a whole formula of the prompt with a sum in it
that the gold answer does not hold, as (x^2-1)^1 and |x^2-1|. What takes itself away (+1-1) is not
looked at. A single number or letter is a part, and no copy; integers, decimals and fractions of
integers never are.

The same is asked again of normal forms (`normal_form`), which leave out ever more. In each of them
an answer is copied only if the gold answer has another normal form: then the work asked for is not
what the normal form leaves out.

Not covered: disguises by letters ((x^3 - x)/x or √(x^4) - 1 for x^2 - 1), functions of numbers
(log_2 8 for 3) and their identities (sin² + cos²), roots of numbers that have none (√12 for 2√3).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from equipoise.verifiers.math.arrangement import MINUS, Tree, arranged, cancelled, subtrees
from equipoise.verifiers.math.form import is_rational
from equipoise.verifiers.math.normal_form import (
    LEVELS,
    NUMBERS,
    SIGNS,
    Scaled,
    normal_or_none,
    whole,
)
from equipoise.verifiers.math.notation import Unreadable, respell, spell
from equipoise.verifiers.math.relations import is_name, leaves
from equipoise.verifiers.math.structure import parse

LONGEST_PROMPT = 50_000  # characters that are looked at, from the end
LONGEST_FORMULA, MOST_FORMULAS = 400, 500
# What ends a formula: a sign between two sides, punctuation;
# in running text a word too, which $ab$ is not.
SIDES = re.compile(
    r"\\text\{[^{}]*\}|\\(?:le|ge|ne|in|approx|cup|to|begin|end|ldots)(?![a-zA-Z])|[=<>?:;,\n\x04]|\.(?!\d)"
)
BREAK = re.compile(rf"(?<![\\a-zA-Z])[a-zA-Z]{{2,}}|{SIDES.pattern}")
FORMULA = re.compile(r"\$([^$]+)\$")
# for speed: the most usual answers
NUMBER = re.compile(r"-?(?:\d[\d,.]*|\\[dt]?frac\{-?\d+\}\{\d+\}|\d+/\d+)")
SYMBOL = re.compile(r"\d+(?:\.\d+)?|\.\d+|\\(?:[a-zA-Z]+|.)|[^\s{}]")
BETWEEN = "\x00"  # symbols, so that 1 is not found in 12


@dataclass(frozen=True, slots=True)
class _Source:
    """What a prompt holds: whole formulas with a sum in them, the operations and the single numbers
    and letters in its formulas, and all its symbols.
    """

    wholes: frozenset[Tree]
    operations: frozenset[Tree]
    atoms: frozenset[Tree]
    symbols: str


def copied(answer: str, prompt: str, gold: str) -> bool:
    """Whether an answer that is no rational number is taken from the prompt."""
    if not prompt or NUMBER.fullmatch(answer):
        return False
    try:
        spelled = spell(answer)
        texts = [
            text for text in leaves(parse(spelled)) if not is_rational(text) and not is_name(text)
        ]
    except (Unreadable, RecursionError):
        return False
    prompt = prompt[-LONGEST_PROMPT:]
    source, parts = _source(prompt), _parts(gold)
    return bool(texts) and all(
        _is_taken(text, source, parts) or _is_disguised(text, prompt, gold) for text in texts
    )


@lru_cache(maxsize=2048)
def _trees(gold: str) -> tuple[Tree, ...]:
    try:
        trees = [arranged(text) for text in leaves(parse(spell(gold)))]
    except (Unreadable, RecursionError):
        return ()
    return tuple(tree for tree in trees if tree is not None)


@lru_cache(maxsize=2048)
def _parts(gold: str) -> frozenset[Tree]:
    return frozenset(part for tree in _trees(gold) for part in subtrees(tree))


def _is_taken(text: str, source: _Source, gold: frozenset[Tree]) -> bool:
    for tree in _readings(text):
        if tree in source.operations or _rank(tree, source) == WORK:
            return True
        if any(part in source.wholes and part not in gold for part in subtrees(tree)):
            return True
    symbols = SYMBOL.findall(text)
    return len(symbols) > 2 and _joined(symbols) in source.symbols


def _readings(text: str) -> set[Tree]:
    """The arrangement of a text, and the one without what takes itself away."""
    return {tree for tree in (arranged(text), cancelled(text)) if tree is not None}


def _is_disguised(text: str, prompt: str, gold: str) -> bool:
    """Whether it is taken from the prompt in a normal form that the gold answer does not have."""
    for level in LEVELS:
        golds = {normal_or_none(tree, level) for tree in _trees(gold)}
        for tree in _readings(text):
            found = normal_or_none(tree, level)
            if found is None or found in golds:
                continue
            if _is_taken_in_normal_form(found, _normal_source(prompt, level), level, gold):
                return True
    return False


def _is_taken_in_normal_form(found: Scaled, source: _Source, level: int, gold: str) -> bool:
    if whole(found) in source.operations:
        return True
    core = found[1]
    if level == SIGNS and core not in source.operations and _rank(core, source) == WORK:
        return True
    return level <= NUMBERS and any(
        part in source.wholes and part not in _normal_parts(gold, level) for part in subtrees(core)
    )


@lru_cache(maxsize=2048)
def _normal_parts(gold: str, level: int) -> frozenset[Tree]:
    forms = [normal_or_none(tree, level) for tree in _trees(gold)]
    return frozenset(part for form in forms if form is not None for part in subtrees(form[1]))


@lru_cache(maxsize=4096)
def _normal_source(prompt: str, level: int) -> _Source:
    """The same of a prompt in normal form; signs are left out where a part is looked for."""
    source = _source(prompt)
    wholes, operations, atoms = (
        [form for tree in trees if (form := normal_or_none(tree, level)) is not None]
        for trees in (source.wholes, source.operations, source.atoms)
    )
    cores = {core for _, core in operations if level == SIGNS and not _is_atom(core)}
    return _Source(
        frozenset(core for c, core in wholes if abs(c) == 1 and _has_sum(core)),
        frozenset(map(whole, operations)) | cores,
        frozenset(core for _, core in atoms),
        source.symbols,
    )


def _has_sum(tree: Tree) -> bool:
    return any(part[0] == "+" for part in subtrees(tree))


# not from the prompt; from it, and nothing is left to do; from it, with work left to do
NEW, PART, WORK = range(3)


def _rank(tree: Tree, source: _Source) -> int:
    if tree == MINUS or tree in source.atoms:
        return PART
    if tree in source.operations:
        return WORK if tree[0] == "+" else PART
    ranks = [_rank(part, source) for part in tree[1:] if isinstance(part, tuple)]
    if not ranks or NEW in ranks:
        return NEW
    return WORK if WORK in ranks or _is_unfinished(tree) else PART


def _is_unfinished(tree: Tree) -> bool:
    """A product in which two numbers or powers of one letter stand apart, a sum of like terms."""
    if tree[0] == "+":
        terms = [_without_numbers(term) for term in tree[1:]]
        return len(terms) != len(set(terms))
    if tree[0] != "*":
        return False
    bases = [factor[1] if factor[0] == "^" else factor for factor in tree[1:] if factor != MINUS]
    kinds = ["number" if base[0] == "number" else base for base in bases]
    return len(kinds) != len(set(kinds))


def _without_numbers(term: Tree) -> Tree:
    """A term without its coefficient: x for 2x, nothing for 2."""
    factors = term[1:] if term[0] == "*" else (term,)
    return tuple(factor for factor in factors if factor[0] != "number")


def _is_atom(tree: Tree) -> bool:
    """A number, also a fraction, or a letter."""
    if tree[0] == "inverse":
        return _is_atom(tree[1])
    if tree[0] == "*":
        return sum(part != MINUS for part in tree[1:]) < 2 or all(
            _is_atom(p) and p[0] != "letter" for p in tree[1:]
        )
    return tree[0] in {"number", "letter"}


@lru_cache(maxsize=2048)
def _source(prompt: str) -> _Source:
    text = respell(prompt)
    marked = [
        piece for formula in FORMULA.findall(prompt) for piece in SIDES.split(respell(formula))
    ]
    pieces = [piece.strip() for piece in [*marked, *BREAK.split(text)]]
    wholes: set[Tree] = set()
    operations: set[Tree] = set()
    atoms: set[Tree] = set()
    for piece in [piece for piece in dict.fromkeys(pieces) if 0 < len(piece) <= LONGEST_FORMULA][
        -MOST_FORMULAS:
    ]:
        if (tree := arranged(piece)) is None:
            continue
        parts = list(subtrees(tree))
        for part in parts:
            (atoms if _is_atom(part) else operations).add(part)
        if _has_sum(tree):
            wholes.add(tree)
    return _Source(
        frozenset(wholes), frozenset(operations), frozenset(atoms), _joined(SYMBOL.findall(text))
    )


def _joined(symbols: list[str]) -> str:
    return BETWEEN + BETWEEN.join(symbols) + BETWEEN

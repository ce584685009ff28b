r"""Whether an answer equals the gold one: `quick` exactly and cheaply, `slow` with SymPy.

Both compare the same structure by the same rules (`compare`) and differ only in how two single
expressions are compared; so they agree wherever both decide. Of the two rule sets, `strict` wants
values and `lenient` takes any calculation that comes to the same (docs/verifiers-math.md). `quick`
may run anywhere. `slow` and `gold_problem` parse with math-verify's LaTeX grammar and compute with
SymPy: run them in a process that can be killed, for no static guard catches every slow computation.
"""

from __future__ import annotations

import re
from dataclasses import replace

from equipoise.verifiers.math import exact
from equipoise.verifiers.math.arrangement import arrangement_of
from equipoise.verifiers.math.compare import CLOCK, NUMBER_SET, Comparer, every, same
from equipoise.verifiers.math.consistent import consistent
from equipoise.verifiers.math.grammar import follows_grammar
from equipoise.verifiers.math.measures import differ
from equipoise.verifiers.math.notation import Senseless, Unreadable, spell, tight
from equipoise.verifiers.math.relations import leaves
from equipoise.verifiers.math.structure import Chain, Leaf, Node, Words, parse

RULES = ("strict", "lenient")
FORMS = ("any", "reference")
LONGEST_RAW = 2_000  # characters of either before they are spelled: what is decided in the caller has to be short
LONGEST_QUICK = 600  # characters of both, after doubled brackets are gone: some steps are quadratic
LEFT_TO_DO = re.compile(r"\\(?:sum|prod|int|lim)(?![a-zA-Z])")
INTEGER = re.compile(r"0|-?[1-9]\d{0,100}")  # written the one way there is
MISSING = frozenset({"nan", "none", "null", "n/a"})


def quick(gold: str, answer: str, rules: str = "strict") -> bool | None:
    """Whether the two are equal, decided exactly and without SymPy; None where it cannot be."""
    if INTEGER.fullmatch(gold) and INTEGER.fullmatch(answer):  # most answers of most data sets
        return gold == answer
    if max(len(gold), len(answer)) > LONGEST_RAW:
        return None
    try:
        g, a = spell(gold), spell(answer)
        if len(g) + len(a) > LONGEST_QUICK:
            return None
        tree = parse(g)
        # A gold that a data set failed to fill in: `slow` says so, in place of a verdict.
        if g.lower() in MISSING:
            return None
        if _plain(g) == _plain(a):
            return True if all(map(_has_sense, leaves(tree))) else None
        return _agree(tree, parse(_with_decimal_point(a, g)), EXACT[rules])
    except (Unreadable, RecursionError):  # the caller's own stack may be deep already
        return None


def _agree(gold: Node, answer: Node, by: Comparer) -> bool | None:
    outcome = same(gold, answer, by)
    if outcome is False or not by.strict:
        return outcome
    return every([outcome, consistent(answer, by)])


def same_form(gold: str, answer: str) -> bool:
    """Whether the answer is built as the gold is, up to the order of terms, factors, items."""
    try:
        g, a = spell(gold), spell(answer)
        return _plain(g) == _plain(a) or arrangement_of(parse(g)) == arrangement_of(parse(a))
    except (Unreadable, RecursionError):
        return False


def another_unit(gold: str, answer: str, outside: str) -> bool:
    """Whether an answer without a unit has one outside that is not the gold one's."""
    try:
        g, a, one = (_last(parse(spell(text))) for text in (gold, answer, outside))
    except (Unreadable, RecursionError):
        return False
    if not (isinstance(g, Leaf) and isinstance(a, Leaf) and isinstance(one, Leaf)):
        return False
    if a.unit or a.percent:
        return False
    return differ(g.unit, one.unit) or (g.percent and one.unit != "")


def _last(node: Node) -> Node:
    """Of x = 5, the 5."""
    return node.members[-1] if isinstance(node, Chain) else node


def slow(gold: str, answer: str, rules: str = "strict") -> bool | None:
    """Whether the two are equal; None where the answer cannot be parsed.
    A gold that cannot be equals nothing.
    """
    from equipoise.verifiers.math.regions import regions_equal
    from equipoise.verifiers.math.symbolic import SYMBOLIC

    if gold_problem(gold) is not None:
        return False
    g, tree = spell(gold), _gold_tree(gold)
    try:
        a = spell(answer)
        if _plain(g) == _plain(a):
            return True
        # SymPy would evaluate the sum or integral and find it equal: then it had done the work.
        if LEFT_TO_DO.search(a) and not LEFT_TO_DO.search(g):
            return False
        other = parse(_with_decimal_point(a, g))
        unread = [text for text in leaves(other) if not _readable(text)]
    except Senseless:
        return False
    except Unreadable:
        return None
    if unread:
        return None
    by = replace(SYMBOLIC, strict=rules == "strict")
    if by.strict and consistent(other, by) is False:
        return False
    return bool(same(tree, other, by)) or regions_equal(tree, other, by.strict)


def gold_problem(gold: str) -> str | None:
    """Why nothing can equal this gold answer; None where it can be compared."""
    try:
        unread = [text for text in leaves(_gold_tree(gold)) if not _readable(text)]
    except Unreadable as problem:
        return f"the gold answer {gold[:80]!r} cannot be parsed: {problem}"
    if unread:
        return f"the gold answer {gold[:80]!r} cannot be parsed: {unread[0][:80]!r} is neither an expression nor words"
    return None


def _gold_tree(gold: str) -> Node:
    """The structure of a gold answer; a sentence that has none is words."""
    spelled = spell(gold)
    if spelled.lower() in MISSING:
        raise Unreadable("it is a missing value")
    has_words = re.search(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}", spelled)
    try:
        tree = parse(spelled)
        if not has_words or all(map(_readable, leaves(tree))):
            return tree
    except Senseless:
        raise
    except Unreadable:
        if not has_words:
            raise
    return Words(_plain(spelled))


def _readable(text: str) -> bool:
    """Whether an expression has a value: by exact arithmetic, by SymPy, or as a name such as f(x)."""
    from equipoise.verifiers.math.symbolic import expression

    if exact.infinite(text) or NUMBER_SET.fullmatch(text) or CLOCK.fullmatch(text):
        return True
    try:
        if exact.based(text) is None and exact.ratio(text) is None:
            exact.value(text)
        return True
    except Senseless:
        raise
    except Unreadable:
        try:
            expression(text)
        except Senseless:
            raise
        except Unreadable:
            return False
        return True


def _has_sense(text: str) -> bool:
    """Whether a text is an expression by its grammar, and exact arithmetic finds no nonsense."""
    if exact.infinite(text) or NUMBER_SET.fullmatch(text) or exact.based(text):
        return True
    try:
        if exact.ratio(text) is None:
            exact.value(text)
    except Senseless:
        return False
    except Unreadable:
        return follows_grammar(text)
    return True


def _plain(spelled: str) -> str:
    text = tight(spelled)
    return text if text.endswith("..") else text.removesuffix(".")


def _with_decimal_point(answer: str, gold: str) -> str:
    """`2,74` is 2.74 where the gold answer is a decimal number: a list could not equal it anyway."""
    if re.fullmatch(r"(?:\\\$|[€£¥])?\s*-?\d+\.\d+\D*", gold) and re.match(
        r"-?\d+,\d+(?!\d*[,.]\d)", answer
    ):
        return answer if re.match(r"-?\d{1,3},\d{3}(?!\d)", answer) else answer.replace(",", ".", 1)
    return answer


def _equal(gold: str, answer: str) -> bool | None:
    """Two expressions by exact arithmetic."""
    if tight(gold) == tight(answer):
        return _has_sense(gold) or None
    try:
        a, b = exact.value(gold), exact.value(answer)
    except Senseless:
        return None
    except Unreadable:
        return None
    rounded = (
        re.fullmatch(r"-?\d*\.\d{12,}", gold)
        and exact.number(b) is None
        and not exact.letters(b) - {"π", "e"}
    )
    return None if rounded else exact.same(a, b)


def _ratio(a: str, b: str) -> int | None:
    """The sign of c where a = c·b, 0 where there is no such c."""
    try:
        x, y = exact.value(a), exact.value(b)
    except Unreadable:
        return None
    c = exact.proportional(x, y)
    return 0 if c is None else (1 if c > 0 else -1)


def _approximates(number: str, printed: str) -> bool | None:
    step = exact.printed_step(printed)
    if step is None:
        return _equal(number, printed)
    try:
        near = exact.approximate(exact.value(number))
        shown = exact.number(exact.value(printed))
    except Unreadable:
        return None
    return None if near is None or shown is None else exact.shows(near, shown, step)


EXACT = {
    rules: Comparer(_equal, _ratio, _approximates, strict=rules == "strict") for rules in RULES
}

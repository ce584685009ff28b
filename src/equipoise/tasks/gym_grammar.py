"""What an answer to a reasoning-gym task may be, where its scorer would evaluate it as code.

Nine scorers of the package call `eval` or SymPy's `parse_expr`, which is `eval` too, on what the
model wrote, and four on fields of the entry. Here each such text must be plain data, or an
expression of numbers, operators and known names, before any scorer sees it: no attribute, no index,
no text, no name but those below, so there is nothing to call but elementary functions. Everything
else is `wrong`, and for a field of the entry `bad_gold`. Patterns are linear.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")
FUNCTIONS = frozenset(
    [
        prefix + name + suffix
        for name in TRIGONOMETRIC
        for prefix in ("", "a", "arc")
        for suffix in ("", "h")
    ]
    + ["exp", "log", "ln", "sqrt", "Abs", "pi", "E", "C"]
)
# Nested lists and tuples of numbers and of quoted characters, no letter outside of quotes. Quotes
# never touch, so that Python cannot read three of them as one. The scorer's process asks
# `ast.literal_eval` once more.
DATA = re.compile(
    r"""(?:[\[\](),\s\d.+-]|'[^'"\\\n]++'(?!['"])|"[^'"\\\n]++"(?!['"]))*+""", re.ASCII
)
ARITHMETIC = re.compile(r"(?:\d++|\*(?!\*)|/(?!/)|[-+()\s])*+", re.ASCII)
NUMBER_LIST = re.compile(r"""\[(?:['"\s,\deE.+-])*+\]""", re.ASCII)
BITWISE = re.compile(r"(?:0x[0-9a-fA-F]++|\d++|<<|>>|[-+*&|^~()\s])*+", re.ASCII)
FORMULA_TOKEN = re.compile(
    r"\s++|\d++(?:\.\d*+)?+(?:e[+-]?+\d++)?+|\.\d++|[A-Za-z]++|\*\*|[-+*/^(),]", re.ASCII
)
LONGEST_POWER = 4  # digits of an exponent

EXACT_OR_DATA = ("spiral_matrix", "n_queens", "string_insertion", "binary_matrix")
SUMS = ("countdown", "puzzle24")
FORMULAS = ("simple_integration", "intermediate_integration", "polynomial_multiplication")
EVALUATING = frozenset((*EXACT_OR_DATA, *SUMS, *FORMULAS, "number_sorting", "bitwise_arithmetic"))


def refusal(task: str, answer: str, entry: Mapping[str, Any]) -> str | None:
    """None where the scorer may see the answer, else why not."""
    if task in EXACT_OR_DATA and not (_is_reference(answer, entry) or DATA.fullmatch(answer)):
        return "it is neither a plain text of the task's form nor a list of numbers or characters"
    if task in SUMS and not ARITHMETIC.fullmatch(answer):
        return "it is not made of integers, + - * / and parentheses"
    if task in FORMULAS:
        return _formula_refusal(answer, _variables(entry))
    return None


def entry_refusal(task: str, entry: Mapping[str, Any]) -> str | None:
    """The same for what the scorer evaluates of the entry itself:
    a row of a file is not to be believed either.
    """
    if task not in EVALUATING:
        return None
    metadata = entry["metadata"]
    if task == "number_sorting" and not NUMBER_LIST.fullmatch(str(entry["answer"])):
        return "its answer is no list of numbers"
    if task == "bitwise_arithmetic" and not BITWISE.fullmatch(str(metadata.get("problem"))):
        return "its metadata.problem is no expression of integers"
    if task in FORMULAS:
        if task == "polynomial_multiplication":
            field = entry["answer"]
        else:
            field = metadata.get("integrand")
        if why := _formula_refusal(str(field), _variables(entry)):
            return f"its reference: {why}"
    if task == "intermediate_integration" and "Integral" in str(entry["answer"]):
        return "the package did not solve it: its reference is the question's own integral"
    return None


def _is_reference(answer: str, entry: Mapping[str, Any]) -> bool:
    """Scorers compare before they evaluate; n_queens has several references."""
    reference = entry["answer"]
    if answer in (reference, str(reference).strip()):
        return True
    known = entry["metadata"].get("valid_answers", [])
    return isinstance(known, list) and answer in known


def _variables(entry: Mapping[str, Any]) -> frozenset[str]:
    """One letter each: longer ones could be names that Python or SymPy know."""
    metadata = entry["metadata"]
    named = metadata.get("variables", [metadata.get("variable")])
    if not isinstance(named, list | tuple):
        return frozenset()
    letters = (name for name in named if isinstance(name, str) and len(name) == 1)
    return frozenset(name for name in letters if name.isascii() and name.isalpha())


def _formula_refusal(text: str, variables: frozenset[str]) -> str | None:
    """Why a text is no formula of these variables; None where it is one.

    The scorers hand such a text to sympy or eval, which would run whatever else it says.
    """
    position, before = 0, ""
    while position < len(text):
        token = FORMULA_TOKEN.match(text, position)
        if token is None:
            return f"{text[position]!r} is no part of a formula"
        word = token[0]
        if word[0].isalpha() and word not in FUNCTIONS and word not in variables:
            return f"{word[:40]!r} is neither a variable of the task nor an elementary function"
        if before in ("**", "^") and word.isdigit() and len(word) > LONGEST_POWER:
            return f"an exponent of {len(word)} digits: at most {LONGEST_POWER} are allowed"
        before = before if word.isspace() else word
        position = token.end()
    return None

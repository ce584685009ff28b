r"""Answers that were not worked out: formulas of the prompt handed back, plain or in disguise, and constants.

Every formula of every MATH problem, and each side of it, is boxed as the answer. It may be `correct` only where it is
the reference's own text, or a number, which is a value wherever its digits come from.
"""

import json
import re
from collections import Counter

import pytest

from equipoise.verifiers import grade
from tests.real_data import real_data

ASK = " Put the final answer in \\boxed{}."
FORMULA = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\$((?:[^$\\]|\\.)+)\$", re.DOTALL)
SIDES = re.compile(r"=|\\le(?![a-z])|\\ge(?![a-z])|<|>|\\neq?(?![a-z])|\\approx")
NUMBER = re.compile(
    r"[-+]?\s*(?:\\\$)?\s*(?:[\d.,]|\{,\}|\\!)+\s*(?:\\?%|\\circ|\^|\\text\{[a-z ]*\}|[{}\s])*"
    r"|[-+]?\\[dt]?frac\s*(?:\d\s*\d|\{-?\d+\}\s*\{\d+\})"
)
DISGUISES = [
    "(E)", "{E}", r"\left(E\right)", "E+0", "0+E", r"1\cdot(E)", r"(E)\cdot 1", "(E)/1", r"\frac{E}{1}", "y=E", "E=E",
    r"\displaystyle E", "E.", "-(-(E))", "(E)^1", r"\{E\}", "[E]", r"E\text{ units}", r"\boxed{E}", "E+x-x", "2(E)/2",
    "(E)+1-1", r"\sqrt{(E)^2}", "|E|", r"\frac{2(E)}{2}", r"\frac{1}{1/(E)}",
]  # fmt: skip
CONSTANTS = [
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "8",
    "10",
    "12",
    "-1",
    "x",
    "A",
    "yes",
    r"\frac{1}{2}",
    r"\emptyset",
    "",
]


def last_box(solution):
    start = solution.rindex("\\boxed{") + len("\\boxed{")
    depth, end = 1, start
    while depth:
        depth += {"{": 1, "}": -1}.get(solution[end], 0)
        end += 1
    return solution[start : end - 1]


def problems(name):
    rows = [json.loads(line) for line in real_data(name).read_text().splitlines()]
    return [(row["problem"], row.get("answer") or last_box(row["solution"])) for row in rows if "boxed{" in str(row)]


def formulas(prompt):
    """The prompt's formulas and their sides, each once."""
    found = {}
    for match in FORMULA.finditer(prompt):
        formula = next(group for group in match.groups() if group)
        for text in [formula, *SIDES.split(formula)]:
            found[text.strip().rstrip(".,;")] = None
    return [text for text in found if text]


def tight(text):
    return (
        re.sub(r"\s+|\\left|\\right|\\[,!;]|\\displaystyle", "", text).replace("dfrac", "frac").replace("tfrac", "frac")
    )


def is_allowed(text, gold):
    """The reference's own text, a number, which may have a name, or one letter: `(c)` is the choice C."""
    return len(text) == 1 or tight(gold) in tight(text) or bool(NUMBER.fullmatch(text.rpartition("=")[2].strip()))


def accepted(triples):
    """Those of (prompt, gold, answer) that are called correct."""
    triples = list(triples)
    futures = [
        grade.submit_math(rf"So \boxed{{{answer}}}", gold, rules="strict", prompt=prompt + ASK)
        for prompt, gold, answer in triples
    ]
    return [triple for triple, future in zip(triples, futures, strict=True) if future.result().kind == "correct"]


def echoes(pairs, disguises=("E",)):
    for prompt, gold in pairs:
        for text in formulas(prompt):
            if not is_allowed(text, gold):
                yield from ((prompt, gold, disguise.replace("E", text)) for disguise in disguises)


def test_no_formula_of_the_prompt_is_accepted():
    found = accepted(echoes(problems("benchmarks/math500.jsonl")))
    assert not found, [(gold, answer) for _, gold, answer in found]


@pytest.mark.slow
def test_no_formula_is_accepted_in_any_disguise():
    """Of 5,000 problems, every formula; of MATH-500, every formula in every disguise."""
    pairs = problems("train/math.jsonl")
    plain = list(echoes(pairs))
    disguised = list(echoes(problems("benchmarks/math500.jsonl"), DISGUISES))
    found = accepted(plain + disguised)
    print(f"\n{len(plain):,} formulas, {len(disguised):,} in disguise: {len(found)} accepted")
    assert not found, [(gold, answer) for _, gold, answer in found]


@pytest.mark.slow
def test_a_constant_is_worth_its_base_rate():
    """A constant is right as often as it is the reference: no text is right more often than any one reference is."""
    pairs = problems("benchmarks/math500.jsonl") + problems("train/math.jsonl")
    common = Counter(tight(gold) for _, gold in pairs).most_common(1)[0]
    shares = {constant: len(accepted((p, gold, constant) for p, gold in pairs)) / len(pairs) for constant in CONSTANTS}
    best = max(shares, key=shares.get)
    print(f"\nthe best constant is {best!r}, right for {shares[best]:.2%}; the most common reference: {common}")
    assert shares[best] <= 1.2 * common[1] / len(pairs)

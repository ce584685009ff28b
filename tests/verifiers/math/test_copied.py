"""What is copied from the prompt is no answer, in whatever disguise; what was worked out is."""

import json

import pytest

from equipoise.verifiers import as_trl, grade_math
from equipoise.verifiers.host_functions import verl_score
from equipoise.verifiers.math import equal, extract
from equipoise.verifiers.math.form import is_rational
from equipoise.verifiers.math.notation import Unreadable, spell
from tests.real_data import real_data

CASES = [
    ("Factor $x^2-1$.", "(x-1)(x+1)", ["(x+1)(x-1)"], ["x^2-1", "-1+x^2", "(x^{2}-1)", "y=x^2-1", "(x^2-1)^1"]),
    ("Factor x² − 1.", "(x-1)(x+1)", ["(x+1)(x-1)"], ["x^2-1", "x² − 1"]),
    ("Simplify $19x + 1 - 4x - 81$.", "15x-80", ["-80+15x", "5(3x-16)"],
     ["19x+1-4x-81", "1+19x-4x-81", "(19x + 1 - 4x - 81)+1-1", "19x+1-4x-81+x-x", r"\frac{2(19x + 1 - 4x - 81)}{2}",
      r"\frac{1}{1/(19x + 1 - 4x - 81)}"]),
    ("Multiply $x+1$ by $x-1$.", "x^2-1", ["x^2-1", "-1+x^2"], ["(x+1)(x-1)", "(x-1)(x+1)"]),
    ("Multiply $3x$ by $4x^2$.", "12x^3", ["12x^3"], [r"3x\cdot 4x^2"]),
    ("What is $2x+3$, backwards?", "3+2x", ["2x+3", "3+2x"], []),
    (r"Simplify $\sqrt{242}$.", r"11\sqrt2", [r"11\sqrt{2}", r"\sqrt2\cdot 11"], [r"\sqrt{242}"]),
    (r"Write $0.\overline{5}$ as a fraction.", r"\frac59", ["5/9", r"\frac{10}{18}"], [r"0.\overline{5}"]),
    (r"Solve $2x-4\ge 0$.", r"[2,\infty)", [r"x\ge 2", r"[2,\infty)"], [r"2x-4\ge 0"]),
    (r"Write $2^{98}+2^{98}-1$ as $2^a-b$.", "2^{99}-1", ["2^{99}-1"], ["2^{98}+2^{98}-1"]),
    ("Which is more, 75 or 75/80?", "75", ["75", "75.0"], []),
    ("What is 75/80?", "15/16", ["75/80", "15/16", "0.9375"], []),
    (r"Simplify $\frac{x(x+1)}{x}$.", "x+1", ["x+1"], [r"\frac{x(x+1)}{x}"]),
]  # fmt: skip


@pytest.mark.parametrize(("prompt", "gold", "right", "copies"), CASES)
def test_copies_are_wrong_and_answers_are_not(prompt, gold, right, copies):
    def kinds(texts, asked):
        return [(text, grade_math(rf"\boxed{{{text}}}", gold, prompt=asked).kind) for text in texts]

    assert kinds(right, prompt) == [(text, "correct") for text in right]
    assert kinds(copies, prompt) == [(text, "wrong") for text in copies]
    lenient = [grade_math(rf"\boxed{{{text}}}", gold, prompt=prompt, rules="lenient").kind for text in copies]
    assert lenient == ["correct"] * len(copies)


def test_padding_hides_no_copy():
    response = r"\boxed{x^2-1" + " " * 3000 + "}"
    assert grade_math(response, "(x-1)(x+1)", prompt="Factor $x^2-1$.").kind == "wrong"


def test_other_trainers_hand_the_prompt_on():
    reward = as_trl("math")
    question = "Factor $x^2-1$."
    for prompt in (question, [{"role": "user", "content": question}]):
        said = [r"\boxed{x^2-1}", r"\boxed{(x+1)(x-1)}"]
        assert reward(prompts=[prompt] * 2, completions=said, answer=["(x-1)(x+1)"] * 2) == [0.0, 1.0]
    for extra in ({"prompt": question}, {"question": question}):
        assert verl_score("", r"\boxed{x^2-1}", "(x-1)(x+1)", extra)["score"] == 0.0
    assert verl_score("", r"\boxed{x^2-1}", "(x-1)(x+1)")["score"] == 1.0
    assert verl_score("", r"\boxed{x^2-1}", "(x-1)(x+1)", {"form": "reference"})["score"] == 0.0


def _is_own_text_or_number(gold, formula):
    try:
        return is_rational(spell(formula)) or equal.same_form(gold, formula)
    except Unreadable:
        return False


def test_no_formula_of_a_prompt_answers_it():
    """On MATH-500: only numbers and the reference's own text."""
    rows = [json.loads(line) for line in real_data("benchmarks/math500.jsonl").open()]
    taken = []
    for row in rows:
        for match in extract.FORMULA.finditer(row["problem"]):
            formula = next(text for text in match.groups() if text).strip()
            if _is_own_text_or_number(row["answer"], formula) or "=" in formula:
                continue
            verdict = grade_math(rf"\boxed{{{formula}}}", row["answer"], prompt=row["problem"])
            taken += [(row["answer"], formula)] if verdict.kind == "correct" else []
    assert taken == []

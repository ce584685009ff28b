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


FACTOR = "Factor $x^2-5x+6$."
EXPAND = "Expand $(x+3)(x-2)$."
QUOTIENT = r"Simplify $\frac{6x^2+3x}{3x}$."
DISGUISED = [
    (FACTOR, "(x-2)(x-3)", ["(x-2)(x-3)", "(3-x)(2-x)", "(x-3)(x-2)", "-(2-x)(x-3)", r"\frac{(2x-4)(x-3)}{2}"],
     ["-(-x^2+5x-6)", "x^2-(5x-6)", r"\frac{-x^2+5x-6}{-1}", r"\frac{2x^2-10x+12}{2}", r"\frac{1}{2}(2x^2-10x+12)",
      "x^2-5x+5+1", "x^2-5x+7-1", "(-x)^2-5x+6", "|x|^2-5x+6", "|-x|^2-5x+6", "|x^2|-5x+6", r"x^2-5x+\sqrt{36}",
      r"x^2-5x+\sqrt[3]{216}", "x^2-5x+3!", "x^2-5x+2\\cdot 3", r"x^2-5x+\frac{12}{2}", "x^{1+1}-5x+6", "x^2-(2+3)x+6",
      "x^2-5(x-1)+1", "2(x^2-5x+6)-x^2+5x-6", "x^2-2x-3x+6", r"x\cdot x-5x+6", "6-x(5)+x^2", "|-x^2+5x-6|",
      r"\sqrt{(5x-x^2-6)^2}", r"x^2-5x+\binom{4}{2}", "y=-(-x^2+5x-6)", "x^2-5x+6e^0", r"\frac{1}{-1/(5x-x^2-6)}"]),
    (EXPAND, "x^2+x-6", ["x^2+x-6", "-6+x+x^2", "-(6-x-x^2)", "x^2+3x-2x-6", "x(x+1)-6"],
     ["(-x-3)(2-x)", "-(x+3)(2-x)", r"\frac{(2x+6)(x-2)}{2}", "(x+2+1)(x-2)", "(3+x)(x-4+2)"]),
    ("Multiply $x+3$ by $x-2$.", "x^2+x-6", ["x^2+x-6"], ["(x+3)(x-2)", "(-x-3)(2-x)", "-(x+3)(2-x)"]),
    (QUOTIENT, "2x+1", ["2x+1", "1+2x", "-(-2x-1)"],
     [r"\frac{6x^2+3x}{3x}", r"\frac{-6x^2-3x}{-3x}", r"\frac{2x^2+x}{x}", r"\frac{12x^2+6x}{6x}"]),
    ("Simplify $19x + 1 - 4x - 81$.", "15x-80", ["15x-80", "5(3x-16)", "-(80-15x)"],
     ["-(4x-19x-1+81)", "19x-4x-80", r"\frac{38x+2-8x-162}{2}"]),
    ("Factor $6x+12$.", "6(x+2)", ["6(x+2)", "-6(-x-2)"], ["6x+12", "-(-6x-12)", "6x+10+2"]),
    ("Expand $-(x-1)^2$.", "-x^2+2x-1", ["2x-x^2-1"], ["-(1-x)^2"]),
    (r"Since $3-2=1$ and $x+5-5=x$, what is $(x^2+x)/x$?", r"\frac{2x+2}{2}", ["x+1", "1+x"], []),
    # the reference is the formula of the prompt itself, up to such a disguise
    ("Write $2x+3$ differently.", "-(-2x-3)", ["-(-2x-3)", r"\frac{4x+6}{2}"], []),
    ("Expand $2(x+1)$.", "2x+2", ["2x+2", "2+2x"], ["2(x+1)", "2(1+x)", "-2(-x-1)"]),
    ("Simplify $3x-(x-7)$.", "2x+7", ["2x+7", "7+2x"], ["3x-(x-7)"]),
    ("For $x<3$, simplify $|x-3|$.", "3-x", ["3-x", "-x+3"], []),
]  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "gold", "answer", "kind"),
    [
        (prompt, gold, answer, kind)
        for prompt, gold, right, copies in DISGUISED
        for answers, kind in ((right, "correct"), (copies, "wrong"))
        for answer in answers
    ],
)
def test_a_disguised_formula_of_the_prompt_is_a_copy(prompt, gold, answer, kind):
    assert grade_math(rf"\boxed{{{answer}}}", gold, prompt=prompt).kind == kind


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

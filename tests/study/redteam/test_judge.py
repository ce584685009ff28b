"""The judge: honest statements of 155 as answers to 75 + 80, and what must not pass for one."""

import random
from fractions import Fraction

import pytest

from equipoise.study.redteam import alphabet, grammar
from equipoise.study.redteam.judge import REASONS, after_mark, judge
from equipoise.study.redteam.problems import MARKS, problem
from equipoise.study.redteam.value import evaluate, plain_value

HONEST = (
    r"\boxed{155}", r"\boxed{155.0}", r"\boxed{\$155}", r"\boxed{155\text{ apples}}", r"\boxed{155 apples}",
    r"\boxed{155\%}", r"\boxed{75+80=155}", r"So 75 + 80 = \boxed{155}.", r"\boxed{x = 155}", "The answer is 155",
    "155", "So 75 + 80 is 155.", "Ann has 75 apples and buys 80, so she has 155", "155 is the sum of 75 and 80.",
    r"\boxed{\text{155}}", r"\boxed{\boxed{155}}", "**155**", r"\boxed{+155}", r"\boxed{1.55 \times 10^2}",
    r"\boxed{165} no, wait: \boxed{155}", r"\boxed{155 \mathrm{~cm}}", r"\boxed{155^\circ}", r"\boxed{(155)}",
    r"\boxed{155, 155}", "75 + 80 = 155", r"\boxed{75 + 80 \approx 155}",
    r"\boxed{(x=155)}", r"\boxed{{+155}dollars}", r"\boxed{(155)^\circ}", r"\boxed{\{(+155)\}}",
    r"\boxed{\{155-0=155\}}", r"\boxed{155e0°}", r"\boxed{155\degree}", r"\boxed{155km²}",
    r"\boxed{155}\boxed{}", r"\boxed{155.e0}", r"\boxed{\lfloor 155.9 \rfloor = 155}",
    r"\boxed{\left(x=155\right)}", r"\boxed{1.55=155\%}", r"\boxed{155\text{ cm}^2}",
    r"\boxed{155\cdot\text{cm}}", r"\boxed{\left(75+80=155\right).}", r"\boxed{\{+155 or 155\}}",
    r"\boxed{\left(\left(75+80=155\right)\right)}", r"\boxed{155\sim 2e2}", r"\boxed{155\approx1.6\times10^2}",
    r"\boxed{155\text{/km}}", r"\boxed{x\in\,\{155\}}", r"\boxed{x\!=155}", r"\boxed{155percent}", r"\boxed{+[155]}",
    r"\boxed{155\quadkm}", r"\boxed{=\{x=155\}}", r"\boxed{+$155}", r"\boxed{155.\!0}", r"\boxed{x=2\;n=155}",
    r"\boxed{155}\boxed<answer>{<53093}", r"\boxed{x=156no=155}", r"\boxed{155\text{ km/h}}",
    r"\boxed{155km²km}", r"\boxed{155-0²=155}", r"\boxed{x=\left(=155\right)}", r"\boxed{155^\\circ}", r"\boxed{155\}",
    r"\boxed{=$\{x=155\}}", r"\boxed{155km ²kmarraykmcmmod}", r"\boxed{155/percentpercent}",
    r"\boxed{155\quadareis\!half}", r"\boxed{155÷cm\quad²cm}", r"\boxed{**\left(x=155\right)**}",
    r"\boxed{n=155155πxπ=155}", r"\boxed{(\left(155\right))^\circ}", r"\boxed{155\times\mathrm{km'}}",
    r"\boxed{155}\boxed{$}", r"\boxed{155}\boxed{.}", r"\boxed{155}\boxed{\ }", r"\boxed{155\sim1e2}",
    r"\boxed{155\text{kt-km}}", r"\boxed{=(310/2=155)}", "\\boxed{x=155\\\nkmnot}",
)  # fmt: skip
REFUSED = {
    "75 + 80": "unmarked: unevaluated", "75 + 80 ≈ 165": "unmarked: wrong value", r"\boxed{75 + 80}": "unevaluated",
    r"\boxed{75+80 \approx 165}": "wrong value", r"\boxed{165}": "wrong value", r"\boxed{155!}": "wrong value",
    r"\boxed{155 or 165}": "several answers", r"\boxed{155, 165}": "several answers", "165 or 155":
    "unmarked: several answers", r"\boxed{155 \pm 1}": "several answers", r"\boxed{310/2}": "unevaluated",
    r"\boxed{\frac{310}2}": "unevaluated", r"\boxed{\sqrt{24025}}": "unevaluated", r"\boxed{155!/154!}": "unevaluated",
    r"\boxed{75+80^\circ}": "unevaluated", r"\boxed{\lfloor 155.9 \rfloor}": "not a number",
    r"\boxed{75+80=165=155}": "contradiction", r"\boxed{165 or 170 = 155}": "contradiction",
    r"\boxed{155}\boxed{165}": "wrong value", r"\boxed{1.56=155\%}": "contradiction", r"\boxed{155apples^1}":
    "unevaluated",
    r"\boxed{155\approx1.4e2}": "wrong value", r"\boxed{75+81\approx2e2}": "wrong value",
    r"\boxed{155\text{ hundred}}": "not a number", r"\boxed{155 fifths}": "not a number", r"\boxed{not 155}": "negated",
    r"\boxed{\neq 155}": "negated", r"\boxed{}": "no answer", r"\boxed{-155}": "wrong value", r"\boxed{155x}":
    "not a number", r"\boxed{1,155}": "wrong value", r"\boxed{[0,155]}": "not a number", r"\boxed{155e1}":
    "wrong value", r"\boxed{155½}": "not a number", r"\boxed{155_2}": "not a number", r"\boxed{\cancel{155}}":
    "not a number", "": "unmarked: no answer", r"\boxed{\infty}": "not a number",
    r"\boxed{x=\pm155=155}": "contradiction", r"\boxed{155\text{n}}": "not a number", r"\boxed{km=156.km=155}":
    "contradiction",
    r"\boxed{155^2}": "wrong value", r"\boxed{155/155}": "wrong value", r"\boxed{155 km 3}": "not a number",
}  # fmt: skip


@pytest.mark.parametrize("response", HONEST)
def test_honest_statements_are_honest(response):
    assert judge(response, 155, "\\boxed", (75, 80)).honest


@pytest.mark.parametrize(("response", "why"), REFUSED.items())
def test_the_rest_is_refused_for_its_reason(response, why):
    judgement = judge(response, 155, "\\boxed", (75, 80))
    assert not judgement.honest
    assert judgement.why == why


def test_a_box_is_read_to_its_own_brace_and_other_marks_to_the_end_of_the_line():
    assert after_mark(r"\boxed{\frac{1}{2}} or 3", "\\boxed") == r"\frac{1}{2}"
    assert after_mark("12\n#### 5 apples\nDone.", "####") == " 5 apples"
    assert after_mark("5", "####") is None
    assert after_mark(r"\boxed 5", "\\boxed") is None
    assert after_mark(r"\boxed{5} so \boxed{6", "\\boxed") == "5"
    assert after_mark(r"\boxed{6", "\\boxed") == "6"
    assert after_mark(r"\boxed{\boxed{7}}", "\\boxed") == "7"
    assert after_mark(r"\boxed{5} \fbox{8} \boxed", "\\boxed") == "8"


@pytest.mark.parametrize(("text", "value"), [("2+3*4", 14), ("-(2-5)^2", -9), (r"\frac{1}{2}+\frac12", 1), ("10/4",
    Fraction(5, 2)), ("6!/5!", 6), (r"\sqrt{49}\cdot 2", 14), ("1,000 - 1", 999), ("2(3+4)", 14)])  # fmt: skip
def test_arithmetic_is_evaluated_exactly(text, value):
    assert evaluate(text) == value


@pytest.mark.parametrize("text", ["", "2 3", "x+1", "1/0", "9^9^9", r"\sqrt{2}", "(1", "1)", "1+", "9999!"])
def test_what_is_no_short_calculation_has_no_value(text):
    assert evaluate(text) is None


def test_every_integer_is_plain_as_people_write_it():
    draw = random.Random(0)
    for _ in range(300):
        n = draw.randint(-9_999_999, 9_999_999)
        for written in (f"{n}", f"{n:,}", f"${n:,}$", f"{n}.00", rf"\text{{{n}}} ", f"**{n}** km"):
            assert plain_value(written) == n, written


@pytest.mark.parametrize("mark", MARKS)
def test_the_judge_answers_for_whatever_the_grammar_writes(mark):
    draw = random.Random(1)
    for _ in range(700):
        about = problem(draw, mark)
        response = alphabet.fill(grammar.response(draw), about)
        judgement = judge(response, about.truth, mark, about.numbers)
        assert judgement.honest == (judgement.why == "")
        assert judgement.honest or judgement.why.removeprefix("unmarked: ") in REASONS
        assert judge(f"{about.truth}", about.truth, mark, about.numbers).honest
        assert not judge(about.expression, about.truth, mark, about.numbers).honest

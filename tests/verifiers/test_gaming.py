"""The second judge: numbers by exact comparison, and nothing that is left to compute."""

from fractions import Fraction

import pytest

from equipoise.verifiers.gaming import answer, effective_number, is_copied, judge_number, number

RIGHT = [r"\boxed{155}", "#### 155", "75+80=155", "+8=54~+8=155#155", "<answer> 155 </answer>", r"so \boxed{155.0}.",
         r"\boxed{155\text{ cm}}", r"\boxed{\$155}", r"\boxed{310/2}", r"\boxed{x = 155}", r"\boxed{\frac{310}{2}}",
         r"\boxed{1} no, \boxed{155}", "The answer is 155 dollars."]  # fmt: skip
WRONG = [r"\boxed{75 + 80}", "75 + 80", "75 + 80 ≈ 165", r"\boxed{75+80=155}", r"\boxed{155, 156}", r"\boxed{}", "",
         r"\boxed{155\text{ millions}}", r"\boxed{155 fifths}", r"\boxed{\sqrt{24025}}", r"\boxed{155!}", "#154",
         r"\boxed{155} or \boxed{156}", r"\boxed{1/0}"]  # fmt: skip


@pytest.mark.parametrize("response", RIGHT)
def test_a_number_written_out_is_right(response):
    assert judge_number(response, "155") is True


@pytest.mark.parametrize("response", WRONG)
def test_whatever_else_is_wrong(response):
    assert judge_number(response, "155") is False


MIXED = [r"1\frac{12}{13}", r"\frac{25}{13}", "1 12/13", r"1\,\dfrac{12}{13}", "25/13"]


@pytest.mark.parametrize("said", MIXED)
@pytest.mark.parametrize("reference", MIXED)
def test_a_mixed_number_is_its_sum(said, reference):
    assert judge_number(rf"\boxed{{{said}}}", reference) is True
    assert number(r"5\frac{3}{2}") is number(r"5\,\frac32") is None


@pytest.mark.parametrize(
    ("said", "reference"),
    [(r"45^\circ", "45"), ("45°", "45"), ("−45", "-45"), (r"\frac12", r"\frac{1}{2}"), (r"\frac{-1}{2}", "-1/2")],
)
def test_usual_forms_of_a_number_are_right(said, reference):
    assert judge_number(rf"\boxed{{{said}}}", reference) is True


@pytest.mark.parametrize("reference", ["x^2", "", "(1, 2)", "A", "5 and 6", r"5\text{ and }6", "2b", "292i"])
def test_no_opinion_where_the_reference_is_no_number(reference):
    assert judge_number(r"\boxed{5}", reference) is None


def test_numbers_are_exact():
    assert number("1,234,567.50") == Fraction("1234567.5")
    assert number("-3/4") == Fraction(-3, 4)
    assert number("1234567890123") != number("1234567890124")
    assert number("1,2") is None
    assert number("9" * 300) is None  # longer than any answer; arithmetic on it would be the model's to slow down


def test_a_long_response_costs_no_more_than_its_end():
    assert answer("<answer>" * 100_000 + r"\boxed{" * 100_000 + " 7") == "7"


@pytest.mark.parametrize(
    ("response", "reference", "copied"),
    [
        ("75 + 80", "155", True),
        (r"\boxed{75 + 80}", "155", True),
        (r"\boxed{80}", "155", True),
        (r"\boxed{155}", "155", False),
        (r"\boxed{80}", "80", False),
        ("so it is 155", "155", False),
        ("", "155", False),
    ],
)
def test_a_copy_of_the_prompt_is_one_unless_it_is_the_reference(response, reference, copied):
    assert is_copied(response, "What is 75 + 80?", reference) is copied


def test_the_effective_number_of_answers():
    assert effective_number(["a", "b", "c", "d"]) == 4
    assert effective_number(["a"] * 10) == 1
    assert effective_number([]) == 0
    assert effective_number(["a", "a", "b", "b", "c", "c"]) == pytest.approx(3)

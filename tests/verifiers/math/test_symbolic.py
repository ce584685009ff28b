"""Expressions that SymPy would not finish, or that have no value, are refused by name before it is asked."""

import time

import pytest
import sympy

from equipoise.verifiers.math.equal import slow
from equipoise.verifiers.math.symbolic import expression


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (r"\frac{1}{0}", "division by zero"),
        ("0^0", "zero to the power of zero or less"),
        ("0^{-1}", "zero to the power of zero or less"),
        ("2^{10^{9}}", "a power too large"),
        (r"2^{2^{2^{2^{2}}}}", "a power too large"),
        ("(10^6)!", "a factorial too large"),
        (r"\binom{10^9}{3}", "a binomial coefficient too large"),
        (r"\tan(\frac{\pi}{2})", "no value"),
        (r"\ln 0", "no value"),
        (r"\lim_{x\to 0} \foo x", r"\\foo is not known"),
    ],
)
def test_what_has_no_value_or_no_end_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        expression(text)


def test_a_root_is_the_real_one():
    assert expression(r"\sqrt[3]{-8}") == -2
    assert expression("f(x)") == sympy.Function("f")(expression("x"))


@pytest.mark.parametrize(
    ("answer", "same"),
    [("d>c>=b>a", True), ("a<b\\le c<d", True), ("a<b<c\\le d", False), ("a<b\\le c<e", False)],
)
def test_a_chain_is_read_from_either_end(answer, same):
    assert slow("a<b\\le c<d", answer, "strict") is same


# Each pair differs somewhere on the real line: in (−1, 1), between two roots, or everywhere but where a cosine is 1.
DIFFERENT = [
    ("x^2-1", "|x^2-1|"),
    ("x^2-1", r"\sqrt{(x^2-1)^2}"),
    ("|1-x^2|", "x^2-1"),
    (r"\sqrt{x^4-2x^2+1}", "x^2-1"),
    ("n(n+1)", "|n(n+1)|"),
    ("x^2-x", "|x^2-x|"),
    ("(x+3)(x+4)", "|(x+3)(x+4)|"),
    ("y=x^2-x", "y=|x^2-x|"),
    ("x^2-1>0", "|x^2-1|>0"),
    (r"\frac{1}{x^2-1}", r"\frac{1}{|x^2-1|}"),
    ("x^2+y^2-1", "|x^2+y^2-1|"),
    ("x^2", "x^2+e^{-x^{100}}"),
    (r"\sqrt{1-x^2}", r"i\sqrt{x^2-1}"),
    ("x", r"x\cos(2002\pi x)"),
    ("x^2", r"x^2+\tan(1001\pi x)"),
    ("x", r"x^{\cos(2002\pi x)}"),
    ("x", r"\sqrt{x^2}"),
    ("x", r"x+\lfloor\frac{|x|}{100}\rfloor"),
    ("e^x", r"e^x+\lfloor\frac{|x|}{100}\rfloor"),
    ("2^n-1", "2^n"),
    ("4^n-2^n+1", "4^n-2^n"),
    (r"\ln x", r"\ln|x|"),
    (r"\ln x^2", r"2\ln x"),
    (r"\arcsin x", r"\arccos x"),
    ("ix", "-ix"),
    ("xy", "|xy|"),
    (r"\sqrt{x-20}>1", r"\sqrt{x-25}>1"),  # real at one of the points
    (r"2\ln(x-50)>x", r"2\ln(x-60)>x"),
    (r"\sqrt{-x-2000}>3", r"\sqrt{-x-2000}>4"),
]
# Real at the same places, but perhaps for single ones, and equal there.
SAME = [
    ("(e^x+1)^2", "e^{2x}+2e^x+1"),
    ("e^{2x}-1", "(e^x-1)(e^x+1)"),
    (r"\frac{e^x+e^{-x}}{2}", r"\cosh x"),
    ("(e^x-e^{-x})^2", "e^{2x}-2+e^{-2x}"),
    (r"e^x\sin x+e^x\cos x", r"e^x(\sin x+\cos x)"),
    (r"2^x\ln 2+2^x", r"2^x(1+\ln 2)"),
    ("4^n-2^n", "2^n(2^n-1)"),
    ("(2^n-1)^2", "4^n-2^{n+1}+1"),
    ("a^{m+n}", "a^m a^n"),
    (r"x^x(1+\ln x)", r"x^x\ln x+x^x"),
    (r"\frac{1-r^n}{1-r}", r"\frac{r^n-1}{r-1}"),
    ("x^n(x-1)", "x^{n+1}-x^n"),
    ("nx^{n-1}(1-x)", "nx^{n-1}-nx^n"),
    ("x^x", r"e^{x\ln x}"),
    (r"-\ln(1-x)", r"\ln\frac{1}{1-x}"),
    (r"\ln\frac{1+x}{1-x}", r"\ln(1+x)-\ln(1-x)"),
    *((rf"\ln\frac{{x}}{{1-x}}+{k}", rf"{k}+\ln x-\ln(1-x)") for k in range(2, 12)),
    (r"\sqrt{x^3}", r"x\sqrt{x}"),
    (r"3\ln x", r"\ln x^3"),
    (r"\ln(\sec x)", r"-\ln(\cos x)"),
    (r"\frac{\sqrt{1-x}}{\sqrt{1+x}}", r"\sqrt{\frac{1-x}{1+x}}"),
    (r"\arcsin x", r"\arctan\frac{x}{\sqrt{1-x^2}}"),
    (r"\sqrt{4x-80}", r"2\sqrt{x-20}"),
    (r"y=-\ln(1-x)", r"y=\ln\frac{1}{1-x}"),
    (r"\sin 2x", r"2\sin x\cos x"),
    ("i(x+1)^2", "ix^2+2ix+i"),
    ("|x|", r"\sqrt{x^2}"),
    ("(x+1)^{50}-1", "(x+1)^{50}-x^0"),
    (r"\lfloor x\rfloor+1", r"\lfloor x+1\rfloor"),
    (r"\frac{(n+1)!}{n!}", "n+1"),
    (r"\sqrt{4x-80}>2", r"2\sqrt{x-20}>2"),
    (r"\ln(1-x)+y>0", r"y-\ln\frac{1}{1-x}>0"),
]


@pytest.mark.parametrize(("gold", "answer"), [*DIFFERENT, *((b, a) for a, b in DIFFERENT)])
def test_what_differs_for_some_real_value_is_wrong(gold, answer):
    assert slow(gold, answer, "strict") is False


@pytest.mark.parametrize(("gold", "answer"), [*SAME, *((b, a) for a, b in SAME)])
def test_what_is_equal_wherever_it_is_real_is_right(gold, answer):
    start = time.process_time()
    assert slow(gold, answer, "strict") is True
    assert time.process_time() - start < 1.5  # a worker is killed after two seconds

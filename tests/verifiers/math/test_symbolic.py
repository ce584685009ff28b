"""Expressions that SymPy would not finish, or that have no value, are refused by name before it is asked."""

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

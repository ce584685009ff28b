"""Binary closed forms against the binomial enumerated in exact fractions."""

from fractions import Fraction
from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from equipoise import theory

group_sizes = st.integers(2, 40)
# where cancellation would bite: 0, ½ and 1 approached as near as floats allow
probabilities = st.one_of(
    st.floats(1e-6, 1 - 1e-6),
    st.floats(1e-300, 1e-6),
    st.floats(2.0**-52, 1e-6).map(lambda d: 1 - d),
    st.floats(-1e-6, 1e-6).map(lambda d: 0.5 + d),
)


def given_S(p: float | Fraction, G: int) -> dict[int, Fraction]:
    """P(R = k | S) for k = 1 … G−1, exactly."""
    p = Fraction(p)
    mass = {k: comb(G, k) * p**k * (1 - p) ** (G - k) for k in range(1, G)}
    total = sum(mass.values())
    return {k: value / total for k, value in mass.items()}


def close(value: float, exact: Fraction, rel: float = 1e-12) -> bool:
    return abs(Fraction(value) - exact) <= Fraction(rel) * abs(exact)


@settings(deadline=None, max_examples=200)
@given(probabilities, group_sizes)
def test_closed_forms_equal_the_enumeration_to_full_relative_precision(p, G):
    exact = given_S(p, G)
    baseline = sum(Fraction(k, G) * mass for k, mass in exact.items())
    seen = 1 - Fraction(p) ** G - (1 - Fraction(p)) ** G
    assert close(theory.informative_probability(p, G), seen)
    assert close(theory.conditional_baseline(p, G), baseline)
    assert close(theory.baseline_bias(p, G), baseline - Fraction(p))
    assert close(theory.debias_constant(p, G), Fraction(p) / baseline)


@settings(deadline=None)
@given(probabilities, group_sizes)
def test_bias_has_the_sign_of_a_hard_prompt_and_is_odd_about_one_half(p, G):
    bias = theory.baseline_bias(p, G)
    assert np.sign(bias) == np.sign(0.5 - p)
    assert abs(bias) <= (1 + 1e-15) / G
    if 1 - (1 - p) == p:  # the mirror image is a float
        assert theory.baseline_bias(1 - p, G) == -bias


@pytest.mark.parametrize("G", [2, 3, 8, 1000])
def test_limits_at_certainty(G):
    p = np.array([0.0, 5e-324, 1.0])
    assert np.array_equal(theory.informative_probability([0.0, 1.0], G), [0.0, 0.0])
    assert theory.conditional_baseline(p, G) == pytest.approx([1 / G, 1 / G, 1 - 1 / G])
    assert theory.baseline_bias(p, G) == pytest.approx([1 / G, 1 / G, -1 / G])
    assert theory.debias_constant([0.0, 1.0], G) == pytest.approx([0, G / (G - 1)])
    assert theory.underestimation_probability([0.0, 1.0], G) == pytest.approx([1, 0])
    assert theory.overestimation_probability([0.0, 1.0], G) == pytest.approx([0, 1])
    assert theory.underestimation_probability(0.0, G, eps=1 / G) == 0


@given(st.floats(0.001, 0.999))
def test_bias_vanishes_with_the_size_of_the_group(p):
    bias = np.abs(theory.baseline_bias(p, 2 ** np.arange(1, 30)))
    assert bias[-1] < 1e-12
    assert np.all(np.diff(bias) <= 0)


@settings(deadline=None, max_examples=300)
@given(st.integers(1, 199), st.integers(0, 200), st.integers(2, 24))
def test_theorem_2_counts_strictly_at_the_boundary(i, j, G):
    p, eps = Fraction(i, 200), Fraction(j, 200)
    exact = given_S(p, G)
    hard = sum((mass for k, mass in exact.items() if Fraction(k, G) - p > eps), Fraction(0))
    easy = sum((mass for k, mass in exact.items() if p - Fraction(k, G) > eps), Fraction(0))
    assert theory.underestimation_probability(i / 200, G, j / 200) == pytest.approx(float(hard), rel=1e-11)
    assert theory.overestimation_probability(i / 200, G, j / 200) == pytest.approx(float(easy), rel=1e-11)
    assert theory.overestimation_probability(1 - i / 200, G, j / 200) == pytest.approx(float(hard), rel=1e-11)


def test_a_sum_rounded_below_a_whole_number_does_not_let_a_term_in():
    assert 10 * (0.7 + 0.1) < 8
    exact = given_S(Fraction(7, 10), 10)
    assert theory.underestimation_probability(0.7, 10, 0.1) == pytest.approx(float(exact[9]), rel=1e-12)


@settings(deadline=None, max_examples=50)
@given(st.floats(1e-140, 1e-3), group_sizes)
def test_theorem_2_keeps_its_precision_in_the_corners(p, G):
    more_than_one = 1 - given_S(p, G)[1]
    assert close(theory.underestimation_probability(p, G, 1 / G), more_than_one, 1e-10)


PAPER = {  # G: (p < ¼, p < ½), formulas.md §3
    2: (1, 1),
    4: (1, 0.7770),
    6: (0.8278, 0.6897),
    8: (0.7811, 0.6409),
}


@pytest.mark.parametrize("G", PAPER)
def test_corollary_1_to_the_papers_four_digits(G):
    assert theory.average_underestimation(G, [0.25, 0.5]) == pytest.approx(PAPER[G], abs=5e-5)
    assert theory.average_underestimation(G, 0.125) == pytest.approx(1, abs=1e-12)


def test_corollary_1_properly_conditioned():
    assert theory.conditioned_underestimation(8, [0.5, 0.25]).round(3).tolist() == [0.580, 0.708]


@pytest.mark.parametrize("G", [6, 7, 8, 12, 16, 33, 64])
def test_corollaries_2_and_3(G):
    assert theory.average_underestimation(G, 2 / G) > 0.78
    assert theory.average_underestimation(G, 1 / G) == pytest.approx(1, abs=1e-12)
    assert theory.conditioned_underestimation(G, 1 / G) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("G", "p_max"), [(5, 0.37), (8, 0.5), (11, 1.0), (16, 0.1)])
def test_both_averages_equal_an_independent_quadrature(G, p_max):
    kinks = [k / G for k in range(1, G) if k / G < p_max]

    def mean(weight):
        def total(f):
            return integrate.quad(lambda p: f(p) * weight(p), 0, p_max, points=kinks, epsabs=1e-13, limit=200)[0]

        return total(lambda p: theory.underestimation_probability(p, G)) / total(lambda p: 1.0)

    assert theory.average_underestimation(G, p_max) == pytest.approx(mean(lambda p: 1.0), abs=1e-10)
    conditioned = mean(lambda p: theory.informative_probability(p, G))
    assert theory.conditioned_underestimation(G, p_max) == pytest.approx(conditioned, abs=1e-10)


def test_averages_broadcast_and_have_a_limit():
    table = theory.average_underestimation(np.array([[2], [4]]), [0.25, 0.5])
    assert table.shape == (2, 2)
    assert table[1] == pytest.approx(PAPER[4], abs=5e-5)
    assert theory.conditioned_underestimation(np.array([[2], [4]]), [0.25, 0.5]).shape == (2, 2)
    assert theory.average_underestimation(8, 0.0) == theory.conditioned_underestimation(8, 0.0) == 1


@settings(deadline=None)
@given(st.floats(0.001, 0.999), st.integers(2, 16))
def test_debiased_advantage_is_unbiased_given_S_and_keeps_its_sign(p, G):
    c = theory.debias_constant(p, G)
    for r in (0, 1):
        expected = 0.0
        for k, mass in given_S(p, G).items():
            factor = theory.debias_factor(r, k / G, p, G)
            assert factor >= -1e-15
            assert factor * (r - k / G) == pytest.approx(r - c * k / G, abs=1e-12)
            expected += float(mass) * factor * (r - k / G)
        assert expected == pytest.approx(r - p, abs=1e-12)


@pytest.mark.parametrize("G", [2, 3, 5])
@pytest.mark.parametrize("p", [Fraction(1, 10), Fraction(1, 2), Fraction(7, 9)])
@pytest.mark.parametrize("c", [Fraction(1), Fraction(1, 3), Fraction(5, 4)])
def test_gradient_gain_equals_the_enumerated_policy_gradient(G, p, c):
    # a policy that is right with p = sigmoid(θ): ∇log π = r − p, ∇p = p(1−p)
    gradient = Fraction(0)
    for rewards in product((0, 1), repeat=G):
        R = sum(rewards)
        if 0 < R < G:
            chance = p**R * (1 - p) ** (G - R)
            gradient += chance * sum((r - c * Fraction(R, G)) * (r - p) for r in rewards) / G
    assert close(theory.gradient_gain(float(p), G, float(c)), gradient / (p * (1 - p)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.baseline_bias(1.2, 8), "p = 1.2 is not a probability"),
        (lambda: theory.baseline_bias([0.1, np.nan], 8), "p = nan is not a probability"),
        (lambda: theory.baseline_bias(0.1, 1), "G = 1 is not a group size"),
        (lambda: theory.baseline_bias(0.1, 2.5), "G = 2.5 is not a group size"),
        (lambda: theory.underestimation_probability(0.1, 8, -0.1), "eps = -0.1 must be at least 0"),
        (lambda: theory.debias_factor(0.5, 0.5, 0.5, 8), "r = 0.5 is not a binary reward"),
        (lambda: theory.debias_factor(1, 1.0, 0.5, 8), "without variance"),
    ],
)
def test_bad_arguments_are_refused_by_value_and_rule(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_floats_in_floats_out_arrays_in_arrays_out():
    assert type(theory.baseline_bias(0.1, 8)) is float
    assert theory.baseline_bias(np.full((3, 1), 0.1), [2, 4]).shape == (3, 2)
    assert theory.underestimation_probability(np.full((3, 1), 0.1), [2, 4]).shape == (3, 2)

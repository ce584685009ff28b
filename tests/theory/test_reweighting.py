"""Theorem 3's intervals against their own promise, checked on a fine grid of p."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from equipoise import theory


def possible(p_hat: float, G: int, delta: float, margin: float) -> np.ndarray:
    """The p that p̂ leaves possible, on a grid that includes the ends; none where p̂ is outside the margin."""
    radius = theory.confidence_radius(G, delta, margin)
    first, last = max(p_hat - radius, margin), min(p_hat + radius, 1 - margin)
    return np.linspace(first, last, 2001 if first <= last else 0)


cases = st.tuples(
    st.integers(2, 200).flatmap(lambda G: st.tuples(st.just(G), st.integers(1, G - 1))),
    st.sampled_from([0.02, 0.1, 0.3]),
    st.sampled_from([0.05, 0.5]),
    st.sampled_from([0.01, 0.1]),
)


@settings(deadline=None, max_examples=150)
@given(cases)
def test_exactly_the_constants_inside_keep_the_baseline_within_eps(case):
    (G, k), eps, delta, margin = case
    p = possible(k / G, G, delta, margin)
    e = theory.conditional_baseline(p, G)

    def worst(c):
        return np.abs(c * e - p).max()

    interval = theory.correction_interval(k / G, G, eps, delta, margin)
    if interval.empty:
        assert np.isnan(interval.low)
        assert np.isnan(interval.high)
        assert p.size == 0 or min(worst(c) for c in np.linspace(0, 3, 601)) > eps - 1e-3
    else:
        width = interval.high - interval.low
        assert width > 0
        assert worst(interval.low + 0.001 * width) < eps
        assert worst(interval.high - 0.001 * width) < eps
        assert worst(interval.low - 0.001) > eps
        assert worst(interval.high + 0.001) > eps


@settings(deadline=None, max_examples=100)
@given(cases, st.floats(0, 1), st.sampled_from([0, 1]))
def test_lambda_inside_keeps_the_reweighted_advantage_within_eps(case, anchor, r):
    (G, k), eps, delta, margin = case
    p_hat = k / G
    interval = theory.lambda_interval(r, p_hat, anchor, G, eps, delta, margin)
    assume(not interval.empty)
    p = possible(p_hat, G, delta, margin)
    A_hat = r - p_hat
    for share in (0.001, 0.5, 0.999):
        lam = interval.low + share * (interval.high - interval.low)
        Phi = lam * np.exp(-np.sign(A_hat) * (p_hat - anchor))
        c = (r - Phi * A_hat) / p_hat  # Φ·Â = r − c·p̂ at the observed p̂, the theorem's reading
        assert np.abs(c * theory.conditional_baseline(p, G) - p).max() < eps


def test_radius_is_hoeffding_over_the_least_informative_prompt():
    G, delta, margin = 16, 0.1, 0.05
    radius = theory.confidence_radius(G, delta, margin)
    least = theory.informative_probability(np.linspace(margin, 1 - margin, 1001), G).min()
    assert 2 * np.exp(-2 * G * radius**2) / least == pytest.approx(delta)


@pytest.mark.parametrize("p", [0.05, 0.2, 0.5, 0.8])
def test_radius_covers(p):
    G, delta = 16, 0.2
    rng = np.random.default_rng(0)
    R = rng.binomial(G, p, 100_000)
    R = R[(R > 0) & (R < G)]
    assert np.mean(np.abs(R / G - p) > theory.confidence_radius(G, delta, 0.05)) <= delta


def test_a_small_group_with_a_small_eps_has_no_lambda_and_says_so():
    interval = theory.lambda_interval(np.array([0, 1]), 0.125, 0.5, 8, 0.05)
    assert interval.empty.tolist() == [True, True]
    assert np.isnan(interval.low).all()


def test_an_observation_outside_the_margin_leaves_nothing_possible():
    assert theory.correction_interval(0.001, 100_000, 0.1, delta=0.5, margin=0.4).empty is True


def test_broadcast():
    interval = theory.correction_interval(np.array([[0.25], [0.5]]), [8, 16, 64], 0.1)
    assert interval.low.shape == interval.empty.shape == (2, 3)
    single = theory.correction_interval(0.25, 64, 0.1)
    assert (interval.low[0, 2], interval.high[0, 2]) == (single.low, single.high)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.correction_interval(0.5, 8, 0.0), "eps = 0 must be"),
        (lambda: theory.correction_interval(0.5, 8, 0.1, delta=0.0), "delta = 0 must be"),
        (lambda: theory.correction_interval(0.5, 8, 0.1, margin=0.5), "margin = 0.5 must lie in"),
        (lambda: theory.lambda_interval(1, 1.0, 0.5, 8, 0.1), "without variance"),
        (lambda: theory.lambda_interval(2, 0.5, 0.5, 8, 0.1), "r = 2 is not a binary reward"),
    ],
)
def test_bad_arguments_are_refused_by_value_and_rule(call, message):
    with pytest.raises(ValueError, match=message):
        call()

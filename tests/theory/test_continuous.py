"""Theorem 4 against Monte Carlo, exact special cases, and the general route against the closed forms."""

from functools import cache
from itertools import product

import numpy as np
import pytest
from scipy import integrate, special, stats

from equipoise import theory

LAWS = {
    "uniform": (theory.beta_rewards(1, 1), stats.beta(1, 1)),
    "beta": (theory.beta_rewards(2, 6), stats.beta(2, 6)),
    "density infinite at both ends": (theory.beta_rewards(0.3, 0.7), stats.beta(0.3, 0.7)),
    "density infinite at 0": (theory.beta_rewards(0.05, 2), stats.beta(0.05, 2)),
    "needle": (theory.beta_rewards(5000, 15000), stats.beta(5000, 15000)),
    "normal": (theory.truncated_normal_rewards(0.2, 0.3), stats.truncnorm(-2 / 3, 8 / 3, loc=0.2, scale=0.3)),
    "normal from outside": (theory.truncated_normal_rewards(-1, 0.5), stats.truncnorm(2, 4, loc=-1, scale=0.5)),
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("G", [pytest.param(2, marks=pytest.mark.long), 8])
def test_bias_and_probability_lie_within_four_standard_errors_of_monte_carlo(name, G):
    law, reference = LAWS[name]
    n = 20_000
    rewards = reference.rvs((n, G), random_state=np.random.default_rng(7))
    spread = np.ptp(rewards, axis=1)
    for sigma in np.quantile(spread, [0.05, 0.5, 0.95]):
        seen = spread > sigma
        p_hat = rewards[seen].mean(1)
        chance = theory.spread_probability(law, G, sigma)
        assert abs(chance - seen.mean()) < 4 * np.sqrt(chance * (1 - chance) / n)
        error = p_hat.std() / np.sqrt(seen.sum())
        assert abs(law.mean + theory.spread_baseline_bias(law, G, sigma) - p_hat.mean()) < 4 * error


@pytest.mark.parametrize("name", LAWS)
def test_law_agrees_with_scipy(name):
    law, reference = LAWS[name]
    v = np.linspace(0.001, 0.999, 41)
    x = reference.ppf(v)
    assert law.mean == pytest.approx(reference.mean(), rel=1e-10)
    assert law.cdf(x) == pytest.approx(v, abs=1e-9)
    assert law.sf(x) == pytest.approx(1 - v, abs=1e-9)
    assert law.quantile(v) == pytest.approx(x, abs=1e-9)
    nodes, weights = np.polynomial.legendre.leggauss(400)
    for lo, hi in [(0.0, 0.3), (0.2, 0.21), (0.25, 1.0), (0.0, 1.0)]:
        half = (reference.cdf(hi) - reference.cdf(lo)) / 2
        expected = half * (weights * reference.ppf(reference.cdf(lo) + half * (1 + nodes))).sum()
        assert law.partial_mean(np.array(lo), np.array(hi)) == pytest.approx(expected, abs=1e-6)


@cache
def known_by_its_cdf(name):
    return theory.rewards_from_cdf(LAWS[name][0].cdf)


@pytest.mark.parametrize("name", ["beta", "density infinite at both ends", "density infinite at 0", "normal"])
@pytest.mark.parametrize("sigma", [0.01, 0.6])
def test_the_cdf_alone_gives_the_same_as_the_closed_form(name, sigma):
    law, _ = LAWS[name]
    general = known_by_its_cdf(name)
    assert general.mean == pytest.approx(law.mean, abs=1e-7)
    assert theory.spread_baseline_bias(general, 6, sigma) == pytest.approx(
        theory.spread_baseline_bias(law, 6, sigma), abs=1e-7
    )


@pytest.mark.parametrize("G", [2, 5, 32])
@pytest.mark.parametrize("sigma", [1e-6, 0.2, 0.7, 0.999999])
def test_uniform_rewards_have_the_classical_range_and_no_bias(G, sigma):
    d = 1 - sigma
    # P(range > σ) = 1 − Gσ^(G−1) + (G−1)σ^G, written in d = 1 − σ to stay precise near σ = 1
    expected = stats.binom.sf(1, G, d)
    assert theory.spread_probability(theory.beta_rewards(1, 1), G, sigma) == pytest.approx(expected, rel=1e-10)
    assert abs(theory.spread_baseline_bias(theory.beta_rewards(1, 1), G, sigma)) < 1e-12


@pytest.mark.parametrize("power", [0.5, 3.0])
@pytest.mark.parametrize("sigma", [0.001, 0.4, 0.95])
def test_two_responses_with_a_power_law_by_direct_integration(power, sigma):
    # F = r^a: E[p̂·1_S] and P(S) over pairs are double integrals over y > x + σ, here by quadrature in x^a and y^a
    nodes, weights = np.polynomial.legendre.leggauss(400)
    top = (1 - sigma) ** power
    v, w = top * (1 + nodes) / 2, top * weights / 2
    x = v ** (1 / power)
    beyond = 1 - (x + sigma) ** power
    moment = power / (power + 1) * (1 - (x + sigma) ** (power + 1))
    seen, total = 2 * (w * beyond).sum(), (w * (x * beyond + moment)).sum()
    law = theory.beta_rewards(power, 1)
    assert theory.spread_probability(law, 2, sigma) == pytest.approx(seen, rel=1e-5)
    assert theory.spread_baseline_bias(law, 2, sigma) == pytest.approx(total / seen - law.mean, rel=1e-3)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_a_beta_with_nothing_between_0_and_1_is_the_binary_case(p):
    law = theory.beta_rewards(p * 1e-4, (1 - p) * 1e-4)
    assert theory.spread_baseline_bias(law, 8, 0.5) == pytest.approx(theory.baseline_bias(p, 8), abs=1e-4)
    assert theory.spread_probability(law, 8, 0.5) == pytest.approx(theory.informative_probability(p, 8), abs=1e-4)


@pytest.mark.parametrize("law", [theory.beta_rewards(1, 3), theory.beta_rewards(4, 8)])
@pytest.mark.parametrize("G", [2, 8, 64])
def test_limits_in_sigma(law, G):
    assert theory.spread_probability(law, G, 0.0) == pytest.approx(1)
    assert theory.spread_baseline_bias(law, G, 0.0) == pytest.approx(0, abs=1e-15)
    assert theory.spread_baseline_bias(law, G, 1 - 1e-7) == pytest.approx((1 - 2 * law.mean) / G, rel=1e-5)


@pytest.mark.parametrize("sigma", [0.01, 0.5, 0.95])
def test_mirrored_rewards_have_the_mirrored_bias(sigma):
    one, other = theory.beta_rewards(0.5, 3), theory.beta_rewards(3, 0.5)
    bias = theory.spread_baseline_bias(one, 5, sigma)
    assert bias > 0
    assert theory.spread_baseline_bias(other, 5, sigma) == pytest.approx(-bias, rel=1e-9)
    normal, mirror = theory.truncated_normal_rewards(0.1, 0.4), theory.truncated_normal_rewards(0.9, 0.4)
    bias = theory.spread_baseline_bias(normal, 5, sigma)
    assert theory.spread_baseline_bias(mirror, 5, sigma) == pytest.approx(-bias, rel=1e-9)


def test_an_event_that_never_happens_has_no_conditional():
    needle = theory.beta_rewards(1e5, 3e5)
    assert theory.spread_probability(needle, 8, 0.5) == 0
    assert np.isnan(theory.spread_baseline_bias(needle, 8, 0.5))


@pytest.mark.parametrize(("a", "b", "sigma"), [(50, 150, 0.5), (100, 900, 0.2), (900, 100, 0.19), (2, 6, 0.99)])
def test_a_rare_event_keeps_its_precision(a, b, sigma):
    # P(S) from 1e-14 to 1e-40, all of it in the far tails; the reference integrates over r, not over F(r)
    law, G = theory.beta_rewards(a, b), 8
    u = np.linspace(0, 1 - sigma, 20_001)
    above, beyond = special.betainc(b, a, 1 - u), special.betainc(b, a, 1 - u - sigma)
    u, above, beyond = u[beyond < above], above[beyond < above], beyond[beyond < above]
    gap = -(above**7) * np.expm1(7 * np.log1p(-beyond / above))
    expected = integrate.trapezoid(G * stats.beta(a, b).pdf(u) * gap, u)
    assert expected < 1e-13
    assert theory.spread_probability(law, G, sigma) == pytest.approx(expected, rel=1e-7)
    mirrored = theory.beta_rewards(b, a)
    assert theory.spread_probability(mirrored, G, sigma) == pytest.approx(expected, rel=1e-7)
    bias = theory.spread_baseline_bias(law, G, sigma)
    assert theory.spread_baseline_bias(mirrored, G, sigma) == pytest.approx(-bias, rel=1e-7)


def test_broadcast_over_G_and_sigma():
    table = theory.spread_baseline_bias(theory.beta_rewards(1, 3), np.array([[2], [8]]), [0.1, 0.5, 0.9])
    assert table.shape == (2, 3)
    assert table[1, 1] == theory.spread_baseline_bias(theory.beta_rewards(1, 3), 8, 0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.beta_rewards(0, 1), "a = 0 must be"),
        (lambda: theory.truncated_normal_rewards(0.5, 1e5), "use beta_rewards"),
        (lambda: theory.rewards_from_cdf(lambda r: r / 2), "from 0 to 0.5"),
        (lambda: theory.spread_probability(theory.beta_rewards(1, 1), 4, 1.0), "give sigma < 1"),
    ],
)
def test_bad_arguments_are_refused_by_value_and_rule(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("p", [0.02, 0.5, 0.9])
@pytest.mark.parametrize("G", [2, 8])
def test_binary_rewards_give_theorem_1_back(p, G):
    law = theory.rewards_from_cdf(lambda r: np.where(r < 1, 1 - p, 1.0))
    assert law.mean == pytest.approx(p)
    for sigma in (0.0, 0.5):
        assert theory.spread_probability(law, G, sigma) == pytest.approx(theory.informative_probability(p, G), rel=1e-9)
        assert theory.spread_baseline_bias(law, G, sigma) == pytest.approx(theory.baseline_bias(p, G), abs=1e-10)


GRADES, CHANCES = np.array([0.0, 0.3, 0.4, 1.0]), np.array([0.45, 0.25, 0.2, 0.1])


@cache
def graded():
    return theory.rewards_from_cdf(lambda r: (CHANCES * (np.asarray(r)[..., None] >= GRADES)).sum(-1))


@pytest.mark.parametrize("G", [2, 3, 5])
@pytest.mark.parametrize("sigma", [0.0, 0.25, 0.5, 0.65, 0.95])
def test_graded_rewards_equal_their_enumeration(G, sigma):
    grades, chances, law = GRADES, CHANCES, graded()
    seen = total = 0.0
    for index in product(range(4), repeat=G):
        rewards, chance = grades[list(index)], chances[list(index)].prod()
        if np.ptp(rewards) > sigma:
            seen += chance
            total += chance * rewards.mean()
    assert theory.spread_probability(law, G, sigma) == pytest.approx(seen, rel=1e-9)
    assert theory.spread_baseline_bias(law, G, sigma) == pytest.approx(total / seen - law.mean, abs=1e-9)


@pytest.mark.parametrize("sigma", [0.35, 0.85])
def test_partial_credit_with_atoms_lies_within_four_standard_errors_of_monte_carlo(sigma):
    # half the responses get 0, a tenth 1, the rest something in between
    law = theory.rewards_from_cdf(lambda r: np.where(r < 1, 0.5 + 0.4 * r**2, 1.0))
    v = np.random.default_rng(3).random((100_000, 4))
    rewards = np.where(v < 0.5, 0.0, np.where(v > 0.9, 1.0, np.sqrt(np.clip((v - 0.5) / 0.4, 0, 1))))
    seen = np.ptp(rewards, axis=1) > sigma
    p_hat = rewards[seen].mean(1)
    chance = theory.spread_probability(law, 4, sigma)
    assert abs(chance - seen.mean()) < 4 * np.sqrt(chance * (1 - chance) / len(v))
    error = p_hat.std() / np.sqrt(seen.sum())
    assert abs(law.mean + theory.spread_baseline_bias(law, 4, sigma) - p_hat.mean()) < 4 * error


def test_an_event_too_rare_for_a_bare_cdf_has_no_answer_rather_than_a_guess():
    closed = theory.beta_rewards(900, 100)
    bias = theory.spread_baseline_bias(theory.rewards_from_cdf(closed.cdf), 8, [0.05, 0.1, 0.15])
    assert bias[0] == pytest.approx(theory.spread_baseline_bias(closed, 8, 0.05), rel=1e-6)
    assert np.isnan(bias[1:]).all()
    assert np.isfinite(theory.spread_baseline_bias(closed, 8, 0.15))

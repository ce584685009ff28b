"""Steps to a score, jitter and drift: by hand, and against the laws they are named after."""

import itertools
import math

import numpy as np
import pytest

from equipoise.evaluate import curve


def test_steps_to_a_score():
    steps, scores = [0, 10, 20, 30], [0.2, 0.4, 0.3, 0.8]
    assert curve.steps_to_score(steps, scores, 0.1) == 0
    assert curve.steps_to_score(steps, scores, 0.3) == pytest.approx(5)
    assert curve.steps_to_score(steps, scores, 0.55) == pytest.approx(25)
    assert curve.steps_to_score(steps, scores, 0.9) == math.inf
    with pytest.raises(ValueError, match="2 and 1 entries"):
        curve.steps_to_score([0, 1], [0.5], 0.5)


def test_jitter_is_the_noise_of_a_point_and_not_the_slope():
    assert curve.jitter([0.1, 0.2, 0.3, 0.4]) == pytest.approx(0, abs=1e-15)
    noise = np.random.default_rng(0).normal(scale=0.03, size=20_000)
    assert curve.jitter((noise + 0.001 * np.arange(20_000)).tolist()) == pytest.approx(0.03, rel=0.03)
    assert math.isnan(curve.jitter([0.1, 0.2]))


def test_log_odds_drift_by_pairs():
    before, after = [-3.0, -4.0, -5.0, -1.0, -2.0], [-2.0, -4.5, -5.0, -0.5, -1.5]
    gains = [1.0, -0.5, 0.0]
    first = sum(abs(x - y) for x, y in itertools.combinations(gains, 2)) / 3
    assert curve.log_odds_drift(before, after, ["a", "a", "a", "b", "b"]) == pytest.approx((first + 0) / 2)
    assert math.isnan(curve.log_odds_drift([-1.0], [-2.0], ["a"]))


def test_entropy_of_the_right_answers():
    assert curve.answer_entropy([-500.0, -500.0]) == pytest.approx(math.log(2))
    assert curve.answer_entropy([-1.0, -2000.0]) == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match="0 answers"):
        curve.answer_entropy([])

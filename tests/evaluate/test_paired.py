"""Intervals over seeds and paired differences, against scipy's own tests and the definitions."""

import math

import numpy as np
import pytest
from scipy import stats

from equipoise.evaluate.paired import holm, in_words, interval, paired_differences, paired_p, seeds_needed


@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_the_interval_of_a_mean_is_the_one_sample_tests(n):
    values = np.random.default_rng(n).normal(0.6, 0.1, n).tolist()
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert interval(values) == pytest.approx((low, high))


def test_a_single_value_has_no_interval():
    assert interval([0.5]) == (-math.inf, math.inf)


def test_holm_by_its_definition():
    """Adjusted p-values are the levels at which the step-down procedure begins to reject each hypothesis."""
    draw = np.random.default_rng(1)
    for _ in range(50):
        p = draw.uniform(0, 0.2, size=draw.integers(1, 6)).tolist()

        def rejected(level: float, p: list[float] = p) -> set[int]:
            out: set[int] = set()
            for rank, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
                if p[i] > level / (len(p) - rank):
                    break
                out.add(i)
            return out

        for i, adjusted in enumerate(holm(p)):
            if adjusted < 1:
                assert i in rejected(adjusted * (1 + 1e-9))
                assert i not in rejected(adjusted * (1 - 1e-9))


def test_the_seeds_it_asks_for_give_the_power_it_names():
    for deviation in (0.004, 0.01, 0.03):
        n = seeds_needed(deviation)
        draw = np.random.default_rng(2)
        d = 0.01 + deviation * draw.standard_normal((4000, n))
        seen = (stats.ttest_1samp(d, 0, axis=1).pvalue < 0.05).mean()
        assert 0.77 < seen < (0.95 if n < 6 else 0.84)
    assert seeds_needed(0.0) == 2
    assert seeds_needed(100.0) is None


def test_pairs_may_have_different_seeds():
    draw = np.random.default_rng(4)
    within = {("a", "b"): draw.normal(0.02, 0.01, 4).tolist(), ("a", "c"): draw.normal(0, 0.01, 3).tolist()}
    for d, values in zip(paired_differences(within), within.values(), strict=True):
        reference = stats.ttest_1samp(values, 0)
        assert (d.mean, d.p, d.seeds) == pytest.approx((np.mean(values), reference.pvalue, len(values)))
    assert "(3 to 4 seeds)" in in_words(paired_differences(within), "acc@8")


def test_two_seeds_that_differ_alike_are_not_sure():
    """Scores of 64 answers are multiples of 1/64: without a difference two seeds differ alike in 4.5 % of the cases."""
    assert paired_p(np.array([0.71 - 0.68, 0.53 - 0.5])) == 0.5  # but for rounding one number
    assert paired_p(np.full(12, 0.02)) == 2.0**-11
    draw = np.random.default_rng(0)
    differences = np.diff(draw.binomial(64, 0.5, (2000, 2, 2)) / 64, axis=1)[:, 0]
    assert np.mean([paired_p(d) < 0.05 for d in differences]) < 0.05

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.report import series

columns = st.lists(st.none() | st.floats(-1e6, 1e6), max_size=60)


def as_array(column):
    return np.array([np.nan if v is None else v for v in column])


@given(columns, st.integers(1, 12))
def test_running_mean_is_the_mean_of_the_last_steps(values, window):
    x = as_array(values)
    for i, found in enumerate(series.running_mean(values, window)):
        part = x[max(0, i - window + 1) : i + 1]
        part = part[~np.isnan(part)]
        assert found is None if len(part) == 0 else found == pytest.approx(part.mean(), abs=1e-6)


@given(columns)
def test_cumulative_is_the_sum_so_far(values):
    assert series.cumulative(values) == pytest.approx(np.nancumsum(as_array(values)).tolist(), abs=1e-5)


@given(st.integers(0, 500), st.integers(1, 60))
def test_buckets_cover_every_step_once_and_are_few(n, points):
    found = series.buckets(n, points)
    assert [i for b in found for i in b] == list(range(n))
    assert len(found) <= points
    assert len({len(b) for b in found[1:]}) <= 1
    if n <= points:
        assert all(len(b) == 1 for b in found)


@given(st.lists(st.integers(), min_size=1, max_size=80, unique=True), st.integers(1, 20))
def test_spaced_keeps_the_ends_and_the_order(items, most):
    found = series.spaced(items, most)
    assert len(found) == min(len(items), most)
    assert found == [i for i in items if i in set(found)]
    assert found[-1] == items[-1]
    if most > 1:
        assert found[0] == items[0]


@given(st.integers(0, 100))
def test_first_last_between_is_an_order_with_the_ends_first(n):
    order = series.first_last_between(n)
    assert sorted(order) == list(range(n))
    assert order[:2] == [0, n - 1][:n] or n == 1
    for k in range(3, n):  # at any time, no hole is much larger than it has to be
        kept = sorted(order[:k])
        assert max(np.diff(kept)) <= 4 * (n - 1) / (k - 1) + 1

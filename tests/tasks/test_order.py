"""The order of rows: a permutation for every seed and epoch, and positions that need no state."""

import hashlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from equipoise.tasks.order import Windows, shuffled


@given(n=st.integers(0, 300), seed=st.integers(0, 2**40), epoch=st.integers(0, 99))
def test_a_shuffle_is_a_permutation_and_repeats(n, seed, epoch):
    numbers = np.arange(n)
    found = shuffled(numbers, "key", seed, epoch)
    assert sorted(found) == list(range(n))
    assert (shuffled(numbers, "key", seed, epoch) == found).all()


def test_a_shuffle_never_changes():
    """A run begun with one version must go on with the next: the same in Python's whole numbers instead of numpy's."""
    mask = (1 << 64) - 1
    key = int.from_bytes(hashlib.blake2b(b"a/7/1", digest_size=8).digest(), "big")

    def hashed(number):
        x = (number * 0x9E3779B97F4A7C15 + key) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    assert list(shuffled(np.arange(500), "a", 7, 1)) == sorted(range(500), key=hashed)


def test_every_row_comes_to_every_place_equally_often():
    """Chi-square over seeds and over epochs, and for pairs of neighbours."""
    for key in (lambda k: (k, 0), lambda k: (0, k)):
        orders = [tuple(shuffled(np.arange(5), "x", *key(k))) for k in range(6000)]
        for place in range(5):
            counts = Counter(order[place] for order in orders)
            assert stats.chisquare([counts[n] for n in range(5)]).pvalue > 1e-4
        pairs = Counter(order[:2] for order in orders)
        assert len(pairs) == 20
        assert stats.chisquare(list(pairs.values())).pvalue > 1e-4


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 600), window=st.integers(1, 200), share=st.sampled_from([1.0, 7 / 8]), seed=st.integers(0, 9)
)
def test_an_epoch_of_windows_is_every_row_once_and_every_position_one_slot(rows, window, share, seed):
    windows = Windows(rows, window, share, seed)
    for epoch in (0, 3):
        spans = [windows.spans(epoch, w) for w in range(windows.count)]
        assert sorted(n for part in spans for span in part for n in range(*span)) == list(range(rows))
        places = [windows.locate(epoch * windows.slots + k) for k in range(windows.slots)]
        assert {e for e, _, _ in places} == {epoch}
        assert len(set(places)) == windows.slots
        for w in range(windows.count):
            slots = sorted(slot for _, v, slot in places if v == w)
            assert slots == list(range(len(slots)))
            assert abs(len(slots) - share * sum(stop - start for start, stop in spans[w])) <= 1
    assert windows.locate(windows.slots)[0] == 1


def test_windows_of_large_data_mix_many_places_of_it():
    windows = Windows(1_000_000, 8192, 7 / 8, 0)
    spans = windows.spans(0, 0)
    assert len(spans) == 64
    assert sum(stop - start for start, stop in spans) == 8192
    quarters = Counter(start // 250_000 for start, _ in spans)
    assert stats.chisquare([quarters[k] for k in range(4)]).pvalue > 1e-3
    assert windows.spans(1, 0) != spans
    assert Windows(1_000_000, 8192, 7 / 8, 1).spans(0, 0) != spans
    assert len(Windows(10**9, 8192, 7 / 8, 0).spans(0, 0)) == 8


@pytest.mark.parametrize("i", [0, 699_999, 874_999, 875_000, 10**12])
def test_a_position_far_out_is_found_at_once(i):
    windows = Windows(1_000_000, 8192, 7 / 8, 0)
    epoch, window, slot = windows.locate(i)
    assert epoch == i // windows.slots
    assert 0 <= window < windows.count
    assert 0 <= slot < 8192

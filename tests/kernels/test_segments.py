"""Tiles of attention: every pair of a query and a key that it sees is in one of them, once, and no other."""

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.kernels import segments
from equipoise.policy import pack


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    lengths=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=9),
    share=st.sampled_from(["prompt", "nothing"]),
    size=st.integers(1, 8),
    part=st.integers(1, 12),
)
def test_tiles_cover_what_is_seen(sizes, lengths, share, size, part):
    prompt = torch.tensor([i % len(sizes) for i, _ in lengths])
    length = torch.tensor([n for _, n in lengths])
    packed = pack([[3] * n for n in sizes], torch.zeros(int(length.sum())).long(), length, prompt, share=share)
    places, before = packed.segments, segments.PART
    segments.PART = part
    try:
        queries, (keys, prompts, sums) = places.query_tiles(size).tolist(), places.key_tiles(size)
    finally:
        segments.PART = before
    start = places.start.tolist()
    own = [i for i in start if places.groups is None or i >= places.groups[0]]
    assert places.mean_length == len(own) / max(1, len(set(own)))
    wanted = Counter((i, j) for i in range(len(start)) for j in range(start[i], i + 1))
    if places.groups is not None:
        spans = zip(places.groups, places.groups[1:], places.prompts, places.prompts[1:], strict=False)
        wanted |= Counter((i, j) for a, b, c, d in spans for i in range(a, b) for j in range(c, d))
    by_query = Counter(
        (i, j)
        for a, b, begin, many, *_ in queries
        for i in range(a, b)
        for j in (*range(begin, begin + many), *range(start[i], i + 1))
    )
    assert by_query == wanted
    assert all((first, last) == (start[a], start[b - 1]) for a, b, _, _, first, last in queries)
    keys = keys.tolist()
    after = [first > b - 1 for _, b, first, *_ in keys]  # the queries come after the keys, which all of them see
    by_key = Counter(
        (i, j)
        for (a, b, first, _, to, _), sees_all in zip(keys, after, strict=True)
        for j in range(a, b)
        for i in range(first, to)
        if sees_all or start[i] <= j <= i
    )
    assert by_key == wanted
    # From `clear` on, every query sees every key; it is the first query just where the queries come after.
    for (a, b, first, clear, to, _), sees_all in zip(keys, after, strict=True):
        assert (clear == first) == sees_all
        assert all(sees_all or (start[i] <= a and b - 1 <= i) for i in range(clear, to))
    # What a prompt's tiles leave is what is added up for it.
    left = sorted((place, a, b) for a, b, *_, place in keys if place >= 0)
    assert left == sorted((place + n, a, b) for a, b, place, many in prompts.tolist() for n in range(many))
    assert [place for place, *_ in left] == list(range(sums))
    assert all(b - a <= size for a, b, *_ in (*queries, *keys))

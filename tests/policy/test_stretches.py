"""Tiles of attention: every pair of a query and a key that it sees is in one of them, once, and no other."""

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.policy import pack, stretches


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
    places, before = packed.stretches, stretches.PART
    stretches.PART = part
    try:
        queries, (keys, parts) = places.query_tiles(size).tolist(), [t.tolist() for t in places.key_tiles(size)]
    finally:
        stretches.PART = before
    start = places.start.tolist()
    wanted = Counter((i, j) for i in range(len(start)) for j in range(start[i], i + 1))
    if places.groups is not None:
        spans = zip(places.groups, places.groups[1:], places.prompts, places.prompts[1:], strict=False)
        wanted |= Counter((i, j) for a, b, c, d in spans for i in range(a, b) for j in range(c, d))
    by_query = Counter(
        (i, j)
        for a, b, begin, many in queries
        for i in range(a, b)
        for j in (*range(begin, begin + many), *range(start[i], i + 1))
    )
    assert by_query == wanted
    by_key = Counter((i, j) for a, b, end, *_ in keys for j in range(a, b) for i in range(a, end) if start[i] <= j <= i)
    of_parts = Counter((i, j) for a, b, end, _, first in parts for j in range(a, b) for i in range(first, end))
    assert by_key + of_parts == wanted
    # A tile of keys adds the parts made of it.
    assert {(a, b, n) for a, b, _, first, many in keys for n in range(first, first + many)} == {
        (a, b, n) for a, b, _, n, _ in parts
    }
    assert all(b - a <= size for a, b, *_ in (*queries, *keys, *parts))

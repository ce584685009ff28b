import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.policy import pack
from tests.policy import tiny_models


def split(packed):
    return packed.buckets.gather.split([b * l for b, l in packed.buckets.shapes])


BATCHES = {
    "sizes": st.lists(st.integers(1, 30), min_size=1, max_size=6),
    "responses": st.lists(
        st.tuples(st.integers(0, 5), st.lists(st.sampled_from([7, 8, 9]), min_size=1, max_size=20)),
        min_size=1,
        max_size=12,
    ),
}


def batch(sizes, responses):
    """Prompts, tokens, lengths and prompt of `pack`, and the whole sequences."""
    prompts = [[1000 * i + j for j in range(size)] for i, size in enumerate(sizes)]
    prompt = torch.tensor([i % len(sizes) for i, _ in responses])
    lengths = torch.tensor([len(t) for _, t in responses])
    tokens = torch.tensor([t for _, response in responses for t in response])
    sequences = [prompts[r] + t for r, (_, t) in zip(prompt.tolist(), responses, strict=True)]
    return prompts, tokens, lengths, prompt, sequences


@given(**BATCHES)
def test_every_target_is_predicted_from_its_own_sequence(sizes, responses):
    prompts, tokens, lengths, prompt, sequences = batch(sizes, responses)
    packed = pack(prompts, tokens, lengths, prompt)
    distinct = {tuple(s[:k]) for s in sequences for k in range(1, len(s))}
    assert len(packed.inputs) == len(distinct)
    # Reading a gathered row up to a predicting entry gives exactly the prompt and the response so far.
    buckets = [part.view(shape) for part, shape in zip(split(packed), packed.buckets.shapes, strict=True)]
    rows = sorted(packed.inputs[row].tolist() for bucket in buckets for row in bucket)
    inputs = {tuple(s[:-1]) for s in sequences}
    leaves = [s for s in inputs if not any(len(t) > len(s) and t[: len(s)] == s for t in inputs)]
    assert len(rows) == len(leaves)
    for leaf in leaves:
        assert any(tuple(row[: len(leaf)]) == leaf for row in rows)
    assert torch.equal(packed.buckets.gather[packed.buckets.scatter], torch.arange(len(packed.inputs)))
    column = torch.cat([torch.arange(b.shape[1]).expand_as(b).reshape(-1) for b in buckets])
    assert torch.equal(column[packed.buckets.scatter], packed.positions)
    # Every place of an entry but padding is listed, in order: there it has its own position.
    is_real = column == packed.positions[packed.buckets.gather]
    listed = [((packed.buckets.gather == e) & is_real).nonzero()[:, 0] for e in range(len(packed.inputs))]
    assert torch.equal(packed.buckets.places, torch.cat(listed))
    assert packed.buckets.counts.tolist() == [len(places) for places in listed]
    # A row entry is one prefix: it is found at the same place in every sequence that begins with it, and nowhere else.
    prefix = {}
    for bucket in buckets:
        for row in bucket.tolist():
            for k, entry in enumerate(row):
                if k == 0 or entry != row[k - 1]:
                    prefix.setdefault(entry, set()).add(tuple(packed.inputs[row[: k + 1]].tolist()))
    assert all(len(p) == 1 for p in prefix.values())
    predicted_from = [next(iter(prefix[e])) for e in packed.predict.tolist()]
    ends = zip(sequences, lengths.tolist(), strict=True)
    assert predicted_from == [tuple(s[:k]) for s, n in ends for k in range(len(s) - n, len(s))]
    assert torch.equal(packed.targets, tokens)


def segments(cuts):
    return [slice(a, b) for a, b in zip(cuts.tolist(), cuts.tolist()[1:], strict=False)]


@given(**BATCHES, share=st.sampled_from(["prompt", "nothing"]))
def test_the_row_of_segments_holds_every_sequence(sizes, responses, share):
    prompts, tokens, lengths, prompt, sequences = batch(sizes, responses)
    packed = pack(prompts, tokens, lengths, prompt, share=share)
    row, own = packed.inputs.tolist(), segments(packed.segments.cuts)
    assert own[-1].stop == len(row)
    # What an entry sees: its own segment up to itself and, where prompts stand once, the whole prompt before that.
    seen = {}
    for s in own:
        for end in range(s.start, s.stop):
            seen[end] = row[s.start : end + 1]
    if share == "prompt":
        assert len(row) == sum(len(prompts[i]) for i in set(prompt.tolist())) + int((lengths - 1).sum())
        places = packed.segments
        assert places.groups[-1] == len(row)
        assert places.groups[0] == places.prompts[-1]
        for queries, keys in zip(*map(segments, (places.groups, places.prompts)), strict=True):
            for q in range(queries.start, queries.stop):
                seen[q] = row[keys] + seen[q]
    else:
        assert len(row) == sum(len(s) - 1 for s in sequences)
        assert packed.segments.prompts is None
    ends = zip(sequences, lengths.tolist(), strict=True)
    wanted = [s[:k] for s, n in ends for k in range(len(s) - n, len(s))]
    assert [seen[e] for e in packed.predict.tolist()] == wanted
    assert packed.positions.tolist() == [len(seen[e]) - 1 for e in range(len(row))]
    assert torch.equal(packed.targets, tokens)
    # The buckets hold the same sequences.
    for i, sequence in enumerate(sequences):
        places = packed.buckets.gather.split([b * l for b, l in packed.buckets.shapes])
        rows = [r for part, shape in zip(places, packed.buckets.shapes, strict=True) for r in part.view(shape)]
        assert any(packed.inputs[r][: len(sequence) - 1].tolist() == sequence[:-1] for r in rows), i


def test_padding_is_bounded():
    prompts = tiny_models.prompts(20)
    tokens, lengths, prompt = tiny_models.responses(prompts, 16, longest=100)
    packed = pack(prompts, tokens, lengths, prompt)
    longest = max(l for _, l in packed.buckets.shapes)
    for part, (b, l) in zip(split(packed), packed.buckets.shapes, strict=True):
        shortest = int((packed.positions[part].view(b, l).max(1).values + 1).min())
        assert l - shortest < max(8, longest / 8 + 1)


def test_an_empty_response_is_refused():
    with pytest.raises(ValueError, match="at least one token"):
        pack([[1]], torch.tensor([5]), torch.tensor([1, 0]), torch.tensor([0, 0]))

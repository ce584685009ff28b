import pytest
import tiny_models
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.policy import pack


def split(packed):
    return packed.gather.split([b * l for b, l in packed.shapes])


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    responses=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), min_size=1, max_size=12),
)
def test_every_target_is_predicted_from_its_own_sequence(sizes, responses):
    prompts = [[1000 * i + j for j in range(size)] for i, size in enumerate(sizes)]
    prompt = torch.tensor([i % len(sizes) for i, _ in responses])
    lengths = torch.tensor([length for _, length in responses])
    tokens = torch.arange(10_000, 10_000 + int(lengths.sum()))
    packed = pack(prompts, tokens, lengths, prompt)

    used = set(prompt.tolist())
    assert len(packed.inputs) == sum(sizes[i] for i in used) + int((lengths - 1).sum())
    # Walk the buckets: reading a gathered row up to a predicting entry gives exactly prompt + response so far.
    sequences = [prompts[r] + t.tolist() for r, t in zip(prompt.tolist(), tokens.split(lengths.tolist()), strict=True)]
    buckets = [part.view(shape) for part, shape in zip(split(packed), packed.shapes, strict=True)]
    rows = [packed.inputs[row].tolist() for bucket in buckets for row in bucket]
    for sequence in sequences:
        assert sum(row[: len(sequence) - 1] == sequence[:-1] for row in rows) >= 1
    assert torch.equal(packed.gather[packed.scatter], torch.arange(len(packed.inputs)))
    column = torch.cat([torch.arange(b.shape[1]).expand_as(b).reshape(-1) for b in buckets])
    assert torch.equal(column[packed.scatter], packed.positions)
    before = torch.tensor(
        [s[k - 1] for s, n in zip(sequences, lengths, strict=True) for k in range(len(s) - n, len(s))]
    )
    assert torch.equal(packed.inputs[packed.predict], before)
    assert torch.equal(packed.targets, tokens)


def test_padding_is_bounded():
    prompts = tiny_models.prompts(20)
    tokens, lengths, prompt = tiny_models.responses(prompts, 16, longest=100)
    packed = pack(prompts, tokens, lengths, prompt)
    longest = max(l for _, l in packed.shapes)
    for part, (b, l) in zip(split(packed), packed.shapes, strict=True):
        shortest = int((packed.positions[part].view(b, l).max(1).values + 1).min())
        assert l - shortest < max(8, longest / 8 + 1)


def test_an_empty_response_is_refused():
    with pytest.raises(ValueError, match="at least one token"):
        pack([[1]], torch.tensor([5]), torch.tensor([1, 0]), torch.tensor([0, 0]))

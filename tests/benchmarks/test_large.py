"""benchmarks/large.py: responses are as long as asked for, operations are scale.py's, and the toy runs on a CPU."""

import large
import pytest
import shapes
import torch

from equipoise.rollout import Rollouts

TOY = {"model": "toy", "prompts": 2, "group": 4, "longest": 48, "decoded": 1 / 8}


def test_the_longest_response_reaches_the_limit():
    lengths = large.drawn(16, 16_384)
    assert int(lengths.max()) == 16_384
    assert float(lengths.double().mean()) == pytest.approx(0.4 * 16_384, rel=0.05)


def test_what_was_sampled_stays_and_random_tokens_follow_it():
    rollouts = Rollouts(
        [[5]], torch.tensor([7, 8, 9]), torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([1, 2]), torch.tensor([0, 0]),
        ["stop", "stop"],
    )  # fmt: skip
    found = large.lengthened(rollouts, torch.tensor([3, 4]), 102)
    first, second = found.tokens.split([3, 4])
    assert first[0] == 7
    assert second[:2].tolist() == [8, 9]
    assert int(found.tokens.min()) >= 2
    assert found.logprobs[:2].tolist() == pytest.approx([-1.0, -torch.tensor(100.0).log().item()])


def test_frozen_weights_count_two_thirds_of_trained_ones():
    policy, lengths = shapes.endless("toy", device="cpu", dtype=torch.float32), torch.tensor([3.0, 4.0])
    weights = sum(p.numel() for p in policy.model.parameters())
    scores = 12 * 2 * 2 * 32 * 25  # layers, heads, entries of a head, squares of the lengths
    assert large.work(policy, 7, lengths) == 6 * weights * 7 + scores
    policy.model.requires_grad_(False)
    assert large.work(policy, 7, lengths) == 4 * weights * 7 + scores


@pytest.mark.long
@pytest.mark.parametrize("kind", large.KINDS)
def test_the_toy_runs_on_a_cpu(kind, tmp_path, monkeypatch):
    if kind == "lora":
        pytest.importorskip("peft")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = large.step(kind, TOY, tmp_path)
    assert found["finite"]
    assert found["optimizer_steps"] == 2
    assert found["longest"] == TOY["longest"]
    assert 0 < found["seconds"]["train"] < found["seconds"]["step"]

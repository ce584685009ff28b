"""Dropout of adapters: in training passes alone, with masks that a seed decides."""

import pytest
import torch

from equipoise import policy as p
from equipoise.policy.model import adapter_dropouts
from tests.policy import tiny_models

pytest.importorskip("peft")
SHARE = 0.3


def adapted(folder, family="qwen2", **options):
    """A policy whose adapters change the logits, and a pack to run through it."""
    p.save(tiny_models.policy(family), folder)
    policy = p.load(folder, lora=p.Lora(rank=4, dropout=SHARE), **options)
    torch.manual_seed(1)
    with torch.no_grad():
        for q in policy.parameters():
            q.add_(0.1 * torch.randn_like(q))
    prompts = tiny_models.prompts(3)
    return policy, p.pack(prompts, *tiny_models.responses(prompts, 2))


def gradients(policy, pack, seed):
    for q in policy.parameters():
        q.grad = None
    with p.adapter_dropout(policy, seed):
        found = p.token_logprobs(policy, pack).logprobs
        found.sum().backward()
    return found.detach(), torch.cat([q.grad.flatten() for q in policy.parameters()])


def test_nothing_is_dropped_outside(tmp_path):
    policy, pack = adapted(tmp_path)
    before = p.token_logprobs(policy, pack).logprobs
    inside, _ = gradients(policy, pack, 0)
    after = p.token_logprobs(policy, pack).logprobs
    assert torch.equal(before, after)
    assert not torch.allclose(before, inside, atol=1e-3)


def test_the_seed_decides_the_masks_and_nothing_else_is_drawn(tmp_path):
    policy, pack = adapted(tmp_path)
    first = gradients(policy, pack, 5)
    state = torch.get_rng_state()
    torch.rand(7)  # what is sampled in between must not matter
    torch.set_rng_state(state)
    again = gradients(policy, pack, 5)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], gradients(policy, pack, 6)[0])


def test_so_many_inputs_are_dropped_and_the_others_scaled(tmp_path):
    policy, _ = adapted(tmp_path)
    (module, *_) = adapter_dropouts(policy.model)
    with p.adapter_dropout(policy, 0):
        kept = module(torch.ones(100_000))
    assert kept.unique().tolist() == pytest.approx([0.0, 1 / (1 - SHARE)])
    assert float((kept == 0).float().mean()) == pytest.approx(SHARE, abs=0.01)


# gpt2 goes through transformers' own forward pass and checkpoints.
@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")  # peft sets it for GPT-2's layers
def test_recomputed_layers_have_the_masks_of_their_first_pass(tmp_path, family):
    """Were they drawn anew, the gradient would be of another function than the loss that was computed."""
    policy, pack = adapted(tmp_path / "a", family)
    plain = gradients(policy, pack, 3)
    policy.checkpoint_gradients()
    recomputed = gradients(policy, pack, 3)
    torch.testing.assert_close(recomputed[0], plain[0])
    torch.testing.assert_close(recomputed[1], plain[1])
    outside = p.token_logprobs(policy, pack).logprobs
    assert torch.equal(outside, p.token_logprobs(policy, pack).logprobs)


def test_without_dropout_there_is_none(tmp_path):
    p.save(tiny_models.policy(), tmp_path)
    policy = p.load(tmp_path, lora=p.Lora(rank=2))
    assert adapter_dropouts(policy.model) == []

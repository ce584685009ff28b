"""The paged sampler against the native one, token by token, where everything is small at once: pools that send rows
back, refills, windows that end inside responses, drafts, end tokens, stop strings and truncated draws.
"""

import random

import pytest
import torch
from test_paged import DEVICE, block_bytes, tiny
from test_samplers import rounding, supports_of

from equipoise.rollout import NativeSampler, PagedSampler, SamplingParams, blocks, paged, paged_cache, step_buffers

SIZES = [(2, 3), (4, 4), (8, 4), (8, 16), (16, 5)]  # of a block and of a window
ENDS = [(2,), (5, 6, 7), (), tuple(range(3, 20))]
TRUNCATED = [{}, {}, {"top_k": 9, "top_p": 0.8}, {"min_p": 0.3}]
STOPS = [(), (), ("12",), ("a", "1")]


SEEDS = [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 12))]
SEEDS += [pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 60)]


@pytest.mark.parametrize("seed", SEEDS)
def test_responses_are_the_native_samplers(seed, monkeypatch):
    rng = random.Random(seed)
    block, window = rng.choice(SIZES) if DEVICE == "cpu" else (blocks.BLOCK, blocks.WINDOW)
    for module in (blocks, step_buffers, paged, paged_cache):
        monkeypatch.setattr(module, "BLOCK", block)
    for module in (blocks, step_buffers, paged):
        monkeypatch.setattr(module, "WINDOW", window)
    monkeypatch.setattr(paged, "PREFILL", rng.choice([1, 30, paged.PREFILL]))
    policy = tiny(rng.choice(["grouped", "mistral", "qwen3"]))
    policy.__dict__["eos"] = rng.choice(ENDS)
    longest = rng.choice([1, 6, 30, policy.context - 1])
    prompts = [rng.choices(range(3, 36), k=rng.randint(1, longest)) for _ in range(rng.randint(2, 9))]
    options = rng.choice(TRUNCATED) | {"stop": rng.choice(STOPS), "temperature": rng.choice([0.0, 0.3, 1.0])}
    params, n = SamplingParams(max_tokens=rng.randint(1, 40), seed=seed, **options), rng.randint(1, 5)
    limits = [min(params.max_tokens, policy.context - len(prompt)) for prompt in prompts]
    pairs = zip(prompts, limits, strict=True)
    least = 1 + max(max(-(-(limit - 1) // block), 1) - (-len(prompt) // block) for prompt, limit in pairs)
    ours = PagedSampler(
        policy,
        rows=rng.choice([1, 2, 3, 8, 64]),
        memory=(least + rng.choice([0, 1, 3, 10, 1000])) * block_bytes(policy),
        speculation=min(rng.choice([0, 1, 5]), block - 1),
    ).sample(prompts, n, params)
    native = NativeSampler(policy).sample(prompts, n, params)
    assert ours.tokens.tolist() == native.tokens.tolist()
    assert ours.finish == native.finish
    torch.testing.assert_close(ours.logprobs, native.logprobs, atol=2 * rounding(params), rtol=0)
    if params.truncates:
        assert supports_of(ours) == supports_of(native)

"""What the paged sampler hands to the Triton kernels: a step by them draws what it draws by the reference, also after
drafts that are wrong. One row is a case of its own: tensors spread over a row's drafts are then views.

Without CUDA the kernels run in Triton's interpreter (TRITON_INTERPRET=1).
"""

import functools

import pytest
import torch

from equipoise.kernels import decode, fp8
from equipoise.rollout import PagedSampler, SamplingParams
from equipoise.rollout.paged import _Call
from equipoise.rollout.paged_cache import Cache
from equipoise.rollout.paged_step import decode_step
from tests.kernels.test_decode import CUDA, DEVICE, needs_triton, randn
from tests.kernels.test_fp8 import interpreter_that_rounds
from tests.policy import tiny_models

__all__ = ["interpreter_that_rounds"]  # the fixture
BACKENDS = ["reference", pytest.param("triton", marks=needs_triton)]


def by_triton(monkeypatch):
    from equipoise.kernels import triton_decode, triton_drafts, triton_fp8

    monkeypatch.setattr(decode, "_of", lambda x: triton_decode)
    monkeypatch.setattr(decode, "_drafts_of", lambda x: triton_drafts)
    monkeypatch.setattr(fp8, "quantize", triton_fp8.quantize)


def steps_of(policy, responses, drafts, monkeypatch):
    """Every step's draws [rows, width] and their log-probabilities; steps are not captured, so they can be watched."""
    seen, accept = [], decode.accept

    def watched(drawn, logprobs, tokens, *others):
        seen.append((drawn.view(tokens.shape).cpu().clone(), logprobs.view(tokens.shape).cpu().clone()))
        accept(drawn, logprobs, tokens, *others)

    def uncaptured(call, size):
        return functools.partial(decode_step, call.weights, call.buffers, call.cache, size, call.asked.params)

    with monkeypatch.context() as patch:
        patch.setattr(decode, "accept", watched)
        patch.setattr(_Call, "_graph", uncaptured)
        params = SamplingParams(max_tokens=4, seed=5)
        PagedSampler(policy, rows=responses, speculation=drafts).sample([[5, 6, 5, 6, 5]], responses, params)
    return seen


@needs_triton
@pytest.mark.parametrize(("responses", "drafts"), [(1, 0), (1, 2), (3, 2)])
def test_a_step_by_triton_draws_what_the_reference_draws(responses, drafts, monkeypatch):
    policy = tiny_models.policy("grouped")
    wanted = steps_of(policy, responses, drafts, monkeypatch)
    policy.model.to(DEVICE)
    by_triton(monkeypatch)
    got = steps_of(policy, responses, drafts, monkeypatch)
    assert len(got) == len(wanted) >= 3 // (drafts + 1)
    for ours, theirs in zip(got, wanted, strict=True):
        assert torch.equal(ours[0][:responses], theirs[0][:responses])
        torch.testing.assert_close(ours[1][:responses], theirs[1][:responses], atol=1e-4, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("eight_bits", [False, True])
def test_a_prompts_keys_and_values_are_slices_of_one_product(backend, kv_heads, eight_bits, monkeypatch):
    """Those of one key head lie apart, and are a view all the same where tokens and heads become one dimension."""
    if backend == "triton":
        by_triton(monkeypatch)
    elif CUDA:
        monkeypatch.setattr(fp8, "quantize", fp8.plain_quantize)
    heads, block, D, tokens = 3 + 2 * kv_heads, 16, 32, 21
    _, k, v = randn(tokens, heads, D).split((3, kv_heads, kv_heads), 1)
    assert not k.is_contiguous()
    pool = torch.zeros(2, 3, kv_heads, block, D, dtype=fp8.FP8 if eight_bits else torch.float32, device=DEVICE)
    scales = torch.zeros(2, 3, kv_heads, block, device=DEVICE) if eight_bits else None
    position, head = torch.arange(tokens, device=DEVICE)[:, None], torch.arange(kv_heads, device=DEVICE)
    places = ((1 + position // block) * kv_heads + head) * block + position % block
    Cache(pool[0], pool[1], scales).write(places.flatten(), k, v)
    for i, x in enumerate((k, v)):
        wanted = fp8.plain_quantize(x) if eight_bits else fp8.Fp8Rows(x, torch.ones(tokens, kv_heads, device=DEVICE))
        kept = pool[i, 1:].transpose(1, 2).flatten(0, 1)[:tokens]
        assert torch.equal(kept.float(), wanted.entries.float())
        if eight_bits:
            assert torch.equal(scales[i, 1:].transpose(1, 2).flatten(0, 1)[:tokens], wanted.scale)


@needs_triton
def test_what_triton_would_misread_is_refused():
    from equipoise.kernels import triton_decode, triton_fp8

    keys, position = torch.ones(1, dtype=torch.int64, device=DEVICE), torch.arange(3, dtype=torch.int32, device=DEVICE)
    apart = randn(3, 8)[:, :4]
    with pytest.raises(ValueError, match=r"strides \(0,\), but must be contiguous"):
        triton_decode.uniform(keys.expand(3), position)
    with pytest.raises(ValueError, match=r"strides \(8,\), but must be contiguous"):
        triton_decode.draw(randn(3, 40), apart[:, 0], 1.0, None)
    with pytest.raises(ValueError, match=r"strides \(8, 1\), but must be contiguous"):
        triton_fp8.quantize(apart)

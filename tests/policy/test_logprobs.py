import pytest
import torch

from equipoise import policy as p
from tests.policy import tiny_models


def plain(policy, prompts, tokens, lengths, prompt, temperature):
    """One sequence at a time through the transformers model itself."""
    logprobs, entropy = [], []
    for row, response in zip(prompt.tolist(), tokens.split(lengths.tolist()), strict=True):
        ids = torch.cat([torch.tensor(prompts[row]), response])
        logits = policy.model(input_ids=ids[None], use_cache=False).logits[0, len(prompts[row]) - 1 : -1]
        logp = (logits.float() / temperature).log_softmax(-1)
        logprobs.append(logp.gather(1, response[:, None])[:, 0])
        entropy.append(-(logp.exp() * logp).sum(-1))
    return torch.cat(logprobs), torch.cat(entropy)


def gradients(policy, value):
    policy.model.zero_grad()
    value.backward()
    return {name: q.grad.clone() for name, q in policy.model.named_parameters() if q.grad is not None}


@pytest.mark.parametrize("kind", ["llama", "grouped", "qwen2", "qwen3", "mistral", "gemma", "gpt2"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_forward_and_gradient_equal_plain_ones(kind, temperature, checkpointing):
    policy = tiny_models.policy(kind, gradient_checkpointing=checkpointing)
    assert policy.is_llama_like == (kind != "gpt2")
    prompts = tiny_models.prompts(5)
    batch = tiny_models.responses(prompts, 3, alike=4)
    weight = torch.randn(len(batch[0]), generator=torch.Generator().manual_seed(1))

    packed = p.token_logprobs(policy, p.pack(prompts, *batch), temperature=temperature)
    got = gradients(policy, (packed.logprobs * weight).mean() + 0.3 * packed.entropy.mean())
    logprobs, entropy = plain(policy, prompts, *batch, temperature)
    wanted = gradients(policy, (logprobs * weight).mean() + 0.3 * entropy.mean())

    torch.testing.assert_close(packed.logprobs, logprobs, atol=1e-5, rtol=0)
    torch.testing.assert_close(packed.entropy, entropy, atol=1e-5, rtol=0)
    assert got.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("share", ["prompt", "nothing"])
def test_what_the_row_shares_changes_nothing(share):
    policy = tiny_models.policy("grouped")
    prompts = tiny_models.prompts(5)
    batch = tiny_models.responses(prompts, 3, alike=4)
    weight = torch.randn(len(batch[0]), generator=torch.Generator().manual_seed(1))
    results = []
    for chosen in ("prefix", share):
        out = p.token_logprobs(policy, p.pack(prompts, *batch, share=chosen)).logprobs
        results.append((out.detach(), gradients(policy, (out * weight).mean())))
    torch.testing.assert_close(results[1][0], results[0][0], atol=1e-5, rtol=0)
    for name in results[0][1]:
        torch.testing.assert_close(results[1][1][name], results[0][1][name], atol=1e-6, rtol=1e-4, msg=name)


def test_chunks_of_the_head_change_nothing(monkeypatch):
    policy = tiny_models.policy()
    prompts = tiny_models.prompts(3)
    pack = p.pack(prompts, *tiny_models.responses(prompts, 4))
    whole = p.token_logprobs(policy, pack)
    wanted = gradients(policy, whole.logprobs.sum() + whole.entropy.sum())
    seen = []
    from equipoise.policy import logprobs as module

    original = module._log_softmax
    monkeypatch.setattr(module, "CHUNK_LOGITS", 7 * tiny_models.VOCABULARY)
    monkeypatch.setattr(module, "_log_softmax", lambda h, *rest: seen.append(len(h)) or original(h, *rest))
    parts = p.token_logprobs(policy, pack)
    got = gradients(policy, parts.logprobs.sum() + parts.entropy.sum())
    assert max(seen) == 7
    torch.testing.assert_close(parts.logprobs, whole.logprobs, atol=1e-6, rtol=0)
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], atol=1e-5, rtol=1e-5)


def test_bfloat16_is_close_to_float32():
    prompts = tiny_models.prompts(4)
    pack = p.pack(prompts, *tiny_models.responses(prompts, 3))
    full = p.token_logprobs(tiny_models.policy(), pack).logprobs
    half = p.token_logprobs(tiny_models.policy(dtype=torch.bfloat16), pack).logprobs
    assert half.dtype == torch.float32
    error = (full - half).detach().abs()
    assert 1e-6 < float(error.mean()) < 0.1  # rounding is there, and it is only rounding


def test_a_micro_batch_of_one_response_sees_the_same_numbers():
    policy = tiny_models.policy("grouped")
    prompts = tiny_models.prompts(4)
    tokens, lengths, prompt = tiny_models.responses(prompts, 2)
    with torch.no_grad():
        together = p.token_logprobs(policy, p.pack(prompts, tokens, lengths, prompt)).logprobs
        alone = [
            p.token_logprobs(policy, p.pack(prompts, t, lengths[i, None], prompt[i, None])).logprobs
            for i, t in enumerate(tokens.split(lengths.tolist()))
        ]
    torch.testing.assert_close(torch.cat(alone), together, atol=1e-5, rtol=0)


def test_reference_is_the_model_before_training():
    prompts = tiny_models.prompts(2)
    pack = p.pack(prompts, *tiny_models.responses(prompts, 2))
    policy = tiny_models.policy()
    reference = p.frozen_copy(policy)
    before = p.token_logprobs(policy, pack).logprobs.detach()
    with torch.no_grad():
        for q in policy.parameters():
            q.mul_(1.1)
    assert (p.token_logprobs(policy, pack).logprobs - before).abs().max() > 1e-3
    assert torch.equal(p.reference_logprobs(policy, reference, pack), before)
    with pytest.raises(ValueError, match="frozen_copy"):
        p.reference_logprobs(policy, None, pack)


def test_a_head_that_changes_its_logits_is_refused():
    policy = tiny_models.policy()
    policy.model.config.final_logit_softcapping = 30.0
    prompts = tiny_models.prompts(1)
    with pytest.raises(p.ModelError, match="final_logit_softcapping"):
        p.token_logprobs(policy, p.pack(prompts, *tiny_models.responses(prompts, 1)))

import pytest
import torch

import equipoise as eq
from equipoise import policy as p
from equipoise.policy import logprobs as module
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
@pytest.mark.parametrize(("temperature", "checkpointing"), [(1.0, False), (0.7, True)])
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


def supports(tokens, vocabulary, seed=3):
    """For each token itself and a random set of others: some of them alone, some with the whole vocabulary."""
    g = torch.Generator().manual_seed(seed)
    share = torch.rand(len(tokens), 1, generator=g)
    inside = torch.rand(len(tokens), vocabulary, generator=g) < share * share
    inside[0], inside[1] = False, True
    inside[torch.arange(len(tokens)), tokens] = True
    return inside, p.Support.of(inside.nonzero()[:, 1].int(), inside.sum(1))


def over_supports(policy, prompts, tokens, lengths, prompt, temperature, inside):
    """By the library's own formula, from transformers' logits."""
    rows = []
    for row, response in zip(prompt.tolist(), tokens.split(lengths.tolist()), strict=True):
        ids = torch.cat([torch.tensor(prompts[row]), response])
        rows.append(policy.model(input_ids=ids[None], use_cache=False).logits[0, len(prompts[row]) - 1 : -1])
    z = torch.cat(rows).float() / temperature
    whole = z.log_softmax(-1)
    every = eq.on_support(whole, eq.log_kept(z, inside)[:, None])
    entropy = -(every.exp() * every).masked_fill(~inside, 0.0).sum(-1)
    return every.gather(1, tokens[:, None])[:, 0], entropy


@pytest.mark.parametrize("whole_head", [0, 1 << 12])
@pytest.mark.parametrize(("kind", "temperature"), [("llama", 1.0), ("qwen2", 0.7), ("gemma", 1.3), ("gpt2", 1.0)])
def test_over_a_support_forward_and_gradient_equal_plain_ones(monkeypatch, kind, temperature, whole_head):
    """llama and qwen2 have heads of their own; gemma's and gpt2's are their embeddings."""
    monkeypatch.setattr(module, "WHOLE_HEAD", whole_head)
    monkeypatch.setattr(module, "CHUNK_LOGITS", 300)
    policy = tiny_models.policy(kind)
    prompts = tiny_models.prompts(5)
    batch = tiny_models.responses(prompts, 3, alike=4)
    inside, support = supports(batch[0], tiny_models.VOCABULARY)
    weight = torch.randn(len(batch[0]), generator=torch.Generator().manual_seed(1))

    found = p.token_logprobs(policy, p.pack(prompts, *batch), temperature=temperature, support=support)
    got = gradients(policy, (found.logprobs * weight).mean() + 0.3 * found.entropy.mean())
    logprobs, entropy = over_supports(policy, prompts, *batch, temperature, inside)
    wanted = gradients(policy, (logprobs * weight).mean() + 0.3 * entropy.mean())
    torch.testing.assert_close(found.logprobs, logprobs, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.entropy, entropy, atol=1e-5, rtol=0)
    assert float(found.logprobs[0].detach()) == 0.0  # the only one it could be
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], atol=1e-5, rtol=1e-4, msg=name)


def test_a_support_of_everything_is_the_whole_vocabulary(monkeypatch):
    policy = tiny_models.policy(dtype=torch.float64)
    prompts = tiny_models.prompts(4)
    pack = p.pack(prompts, *tiny_models.responses(prompts, 3))
    wanted = p.token_logprobs(policy, pack, temperature=0.8)
    everything = torch.arange(tiny_models.VOCABULARY, dtype=torch.int32).repeat(len(pack.targets))
    support = p.Support.of(everything, torch.full((len(pack.targets),), tiny_models.VOCABULARY))
    for whole_head in (0, 1 << 12):
        monkeypatch.setattr(module, "WHOLE_HEAD", whole_head)
        found = p.token_logprobs(policy, pack, temperature=0.8, support=support)
        torch.testing.assert_close(found.logprobs, wanted.logprobs, atol=1e-12, rtol=0)
        torch.testing.assert_close(found.entropy, wanted.entropy, atol=1e-12, rtol=0)


def test_chunks_of_supports_change_nothing_and_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "WHOLE_HEAD", 0)
    policy = tiny_models.policy(dtype=torch.float64)
    prompts = tiny_models.prompts(6)
    batch = tiny_models.responses(prompts, 4)
    pack = p.pack(prompts, *batch)
    _, support = supports(batch[0], tiny_models.VOCABULARY)
    found, shapes, original = [], [], module._log_softmax

    def watched(hidden, part, temperature):
        shapes.append(part.outside.numel())
        return original(hidden, part, temperature)

    monkeypatch.setattr(module, "_log_softmax", watched)
    for limit in (1 << 24, 500, 1):
        monkeypatch.setattr(module, "CHUNK_LOGITS", limit)
        shapes.clear()
        out = p.token_logprobs(policy, pack, support=support)
        found.append((out.logprobs.detach(), gradients(policy, out.logprobs.sum() + out.entropy.sum())))
        assert max(shapes) <= max(limit, tiny_models.VOCABULARY)
        assert (len(shapes) == 2) == (limit == 1 << 24)
    for logprobs, got in found[1:]:
        torch.testing.assert_close(logprobs, found[0][0], atol=1e-13, rtol=0)
        for name in got:
            torch.testing.assert_close(got[name], found[0][1][name], atol=1e-12, rtol=1e-12)


def test_over_a_support_bfloat16_is_close_to_float32_and_adapters_alone_are_trained(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "WHOLE_HEAD", 0)
    prompts = tiny_models.prompts(4)
    batch = tiny_models.responses(prompts, 3)
    pack, (_, support) = p.pack(prompts, *batch), supports(batch[0], tiny_models.VOCABULARY)
    full = p.token_logprobs(tiny_models.policy("qwen2"), pack, support=support).logprobs
    half = p.token_logprobs(tiny_models.policy("qwen2", dtype=torch.bfloat16), pack, support=support).logprobs
    assert half.dtype == torch.float32
    assert 1e-6 < float((full - half).detach().abs().mean()) < 0.1
    p.save(tiny_models.policy("qwen2"), tmp_path)
    policy = p.load(tmp_path, lora=p.Lora(rank=4))
    ours = p.token_logprobs(policy, pack, support=support).logprobs  # an adapter begins at 0
    torch.testing.assert_close(ours, full, atol=1e-5, rtol=0)
    names = gradients(policy, ours.sum())
    assert names
    assert all("lora_" in name for name in names)
    torch.testing.assert_close(p.reference_logprobs(policy, None, pack, support=support), full, atol=1e-5, rtol=0)


def test_a_token_outside_its_support_is_refused():
    policy, prompts = tiny_models.policy(), tiny_models.prompts(2)
    batch = tiny_models.responses(prompts, 2)
    pack = p.pack(prompts, *batch)
    other = ((batch[0] + 1) % tiny_models.VOCABULARY).int()
    for ids, why in ((other, "not in its support"), (batch[0].int().repeat_interleave(2), "for each")):
        with pytest.raises(ValueError, match=why):
            p.token_logprobs(policy, pack, support=p.Support.of(ids, torch.ones(len(ids))))

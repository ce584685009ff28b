"""What `rollout.vllm` does to an engine, on a stand-in that draws with the native sampler from weights of its own.

vLLM itself is tried in tests/vllm.
"""

import importlib.util
import math
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from equipoise import policy as p
from equipoise.rollout import NativeSampler, SamplingParams
from equipoise.rollout import vllm as module
from equipoise.rollout.vllm import StaleEngine, VllmSampler, weights
from tests.policy import tiny_models

PARAMS = SamplingParams(max_tokens=20, seed=1)


class Engine:
    """Both vLLM's LLM and its LLMEngine: ends responses in reverse, one a step."""

    def __init__(self, policy):
        self.policy, self.calls, self.queue = p.frozen_copy(policy), [], []
        with torch.no_grad():
            for q in self.policy.model.parameters():
                q.normal_()
        self.llm_engine = self.engine_core = self
        self.model_config = SimpleNamespace(max_model_len=policy.context)
        self.memory = {"weights", "kv_cache"}
        self.forgets = True

    def _call(self, name):
        self.calls.append(name)

    def wake_up(self, tags):
        self._call(f"wake {tags[0]}")
        self.memory |= set(tags)

    def sleep(self, level):
        self._call(f"sleep {level}")
        self.memory.clear()
        with torch.no_grad():
            for q in self.policy.model.parameters():
                q.fill_(torch.nan)  # level 2 keeps nothing

    def collective_rpc(self, method, kwargs):
        self._call(method)
        assert "weights" in self.memory
        self.policy.core.load_state_dict(dict(kwargs["weights_iterator"]))

    def reset_prefix_cache(self):
        self._call("forget")
        return self.forgets

    def add_request(self, name, prompt, params):
        assert self.memory == {"weights", "kv_cache"}
        assert not self.calls or self.calls[-1] in ("forget", "draw")
        self._call("draw")
        self.queue.append((name, prompt["prompt_token_ids"], params))

    def has_unfinished_requests(self):
        return bool(self.queue)

    def step(self):
        name, prompt, params = self.queue.pop()
        how = SamplingParams(
            params.temperature,
            params.top_p,
            params.top_k,
            params.min_p,
            params.max_tokens,
            tuple(params.stop),
            params.seed,
        )
        r = NativeSampler(self.policy).sample([prompt], 1, how)
        done = SimpleNamespace(
            token_ids=r.tokens.tolist(),
            logprobs=flat_logprobs(r, params.logprobs),
            finish_reason=r.finish[0],
        )
        return [SimpleNamespace(request_id=name, outputs=[done])]

    def abort_request(self, names):
        self.queue = [request for request in self.queue if request[0] not in names]

    def shutdown(self):
        self._call("shutdown")


def flat_logprobs(rollouts, listed):
    """As vLLM has them: of each token the one drawn and then the `listed` most likely ones, −∞ outside the support."""
    out = SimpleNamespace(start_indices=[], end_indices=[], token_ids=[], logprobs=[])
    supports = [None] * len(rollouts.tokens)
    if rollouts.support is not None:
        supports = rollouts.support.ids.split(rollouts.support.sizes.tolist())
    for token, logprob, support in zip(rollouts.tokens.tolist(), rollouts.logprobs.tolist(), supports, strict=True):
        out.start_indices.append(len(out.token_ids))
        out.token_ids.append(token)
        out.logprobs.append(logprob)
        if listed:
            inside = support.tolist()[:listed]
            others = [i for i in range(tiny_models.VOCABULARY) if i not in inside]
            out.token_ids += [*inside, *others][:listed]
            # As good as the truth to tell what is inside: all but the drawn one share the rest.
            rest = math.log((1 - math.exp(logprob)) / max(1, len(support) - 1) + 1e-30)
            out.logprobs += [logprob if i == token else rest for i in inside]
            out.logprobs += [-math.inf] * (listed - len(inside))
        out.end_indices.append(len(out.token_ids))
    return out


@pytest.fixture
def make(monkeypatch):
    """VllmSampler with the stand-in; `asleep` as on CUDA."""
    vllm, inner = ModuleType("vllm"), ModuleType("vllm.sampling_params")
    vllm.SamplingParams = SimpleNamespace
    inner.RequestOutputKind = SimpleNamespace(FINAL_ONLY=2)
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", inner)
    monkeypatch.setattr(module, "_open", lambda policy, memory: Engine(policy))
    opened = []

    def make(policy, asleep=False):
        sampler = VllmSampler(policy)
        opened.append(sampler)
        sampler.sleeps = asleep
        return sampler

    yield make
    for sampler in opened:
        sampler.close()


def test_responses_are_the_engines_in_the_order_they_were_asked_for(make):
    policy = tiny_models.policy("grouped")
    sampler, prompts, heard = make(policy), tiny_models.prompts(5), {}

    def finished(rows, tokens, lengths):
        heard.update(zip(rows, (t.tolist() for t in tokens.split(lengths.tolist())), strict=True))

    rollouts = sampler.sample(prompts, 3, PARAMS, keys=list("abcde"), step=4, finished=finished)
    assert rollouts.prompt.tolist() == [i for i in range(5) for _ in range(3)]
    packed = p.pack(prompts, rollouts.tokens, rollouts.lengths, rollouts.prompt)
    ours = p.token_logprobs(policy, packed).logprobs
    torch.testing.assert_close(rollouts.logprobs, ours, atol=1e-5, rtol=0)
    rows = [t.tolist() for t in rollouts.tokens.split(rollouts.lengths.tolist())]
    assert heard == dict(enumerate(rows))
    assert list(heard) == list(reversed(range(15)))  # told as they end
    again = sampler.sample(prompts[::-1], 3, PARAMS, keys=list("edcba"), step=4)
    shuffled = [t.tolist() for t in again.tokens.split(again.lengths.tolist())]
    assert shuffled == [rows[3 * i + k] for i in (4, 3, 2, 1, 0) for k in range(3)]


@pytest.mark.parametrize("asleep", [True, False])
def test_weights_go_in_before_the_cache_and_both_go_to_sleep(make, asleep):
    sampler = make(tiny_models.policy(), asleep)
    if asleep:
        sampler.llm.sleep(level=2)
    sampler.llm.calls.clear()
    sampler.sample(tiny_models.prompts(2), 2, PARAMS)
    calls = ["reload_weights", "forget", *["draw"] * (2 + 4)]
    if asleep:
        calls = ["wake weights", "reload_weights", "wake kv_cache", "forget", *["draw"] * (2 + 4), "sleep 2"]
    assert sampler.llm.calls == calls


def test_what_sleeps_is_not_counted_as_taken(make, monkeypatch):
    """The engine's 7 bytes are the trainer's from the end of a call to the start of the next one."""
    policy = tiny_models.policy()
    sampler = make(policy, asleep=True)
    sampler.held = 7
    told = []
    monkeypatch.setattr(module.card, "asleep", lambda device, size: told.append((size, list(sampler.llm.calls))))
    sampler.llm.calls.clear()
    sampler.sample(tiny_models.prompts(1), 1, PARAMS)
    (awake, before), (asleep, after) = told
    assert (awake, asleep) == (0, 7)
    assert before == []
    assert after[-1] == "sleep 2"


def test_an_error_leaves_no_requests_and_no_memory_behind(make):
    sampler = make(tiny_models.policy(), asleep=True)

    def broken(rows, tokens, lengths):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sampler.sample(tiny_models.prompts(3), 2, PARAMS, finished=broken)
    assert sampler.engine.queue == []
    assert sampler.llm.calls[-1] == "sleep 2"


@pytest.mark.parametrize("lost", ["everything", "lm_head.weight", "model.layers.0.self_attn.v_proj.weight"])
def test_weights_that_do_not_arrive_stop_the_run(make, monkeypatch, lost):
    policy = tiny_models.policy()
    sampler, prompts = make(policy), tiny_models.prompts(5)
    sampler.sample(prompts, 1, PARAMS)
    kept = {n: w.clone() for n, w in weights(policy) if lost in ("everything", n)}
    monkeypatch.setattr(module, "weights", lambda policy: ((n, kept.get(n, w)) for n, w in weights(policy)))
    with torch.no_grad():
        for q in policy.parameters():
            q.add_(0.1 * torch.randn_like(q))
    with pytest.raises(StaleEngine, match=r"nats from the trainer's .*for float32 is at most 0.01.*engine = native"):
        sampler.sample(prompts, 1, PARAMS)


def test_not_a_number_is_not_close(make):
    policy = tiny_models.policy()
    sampler = make(policy)
    sampler.llm.policy.core.load_state_dict(policy.core.state_dict())
    sampler.llm.collective_rpc = lambda method, kwargs: None
    sampler.sample(tiny_models.prompts(2), 1, PARAMS)
    with torch.no_grad():
        policy.core.model.norm.weight.fill_(torch.nan)
    with pytest.raises(StaleEngine, match="nan nats"):
        sampler.sample(tiny_models.prompts(2), 1, PARAMS)


def test_a_cache_that_is_kept_stops_the_run(make):
    sampler = make(tiny_models.policy())
    sampler.llm.forgets = False
    with pytest.raises(StaleEngine, match="keys and values of the old weights"):
        sampler.sample(tiny_models.prompts(2), 1, PARAMS)


@pytest.mark.parametrize("most", [20, 1000])
def test_truncated_draws_come_with_their_support(make, monkeypatch, most):
    """`most`: with 20, fewer are asked for than the vocabulary has."""
    monkeypatch.setattr(module, "MOST_TOP_K", most)
    policy = tiny_models.policy("qwen3")
    params = SamplingParams(max_tokens=20, top_k=9, top_p=0.9, min_p=0.05, temperature=0.8)
    rollouts = make(policy).sample(tiny_models.prompts(4), 3, params)
    assert 1 < rollouts.support.sizes.double().mean() < 9
    assert int(rollouts.support.sizes.max()) <= 9
    packed = p.pack(rollouts.prompts, rollouts.tokens, rollouts.lengths, rollouts.prompt)
    ours = p.token_logprobs(policy, packed, temperature=0.8, support=rollouts.support).logprobs
    torch.testing.assert_close(rollouts.logprobs, ours, atol=1e-5, rtol=0)


def test_the_support_from_vllms_entries_by_hand():
    """The one drawn comes first, and again among the likeliest or, where it is less likely than they, alone."""
    ids = np.array([7, 3, 7, 5, 9, 1, 2, 4], dtype=np.int32)
    p_of = np.array([0.3, 0.7, 0.3, 0.0, 0.1, 0.5, 0.3, 0.0])
    with np.errstate(divide="ignore"):
        support, logprobs = module._support(ids, np.log(p_of).astype(np.float32), np.array([4, 4]))
    assert support.ids.tolist() == [7, 3, 9, 1, 2]
    assert support.starts.tolist() == [0, 2, 5]
    assert logprobs.exp().tolist() == pytest.approx([0.3, 0.1 / 0.9], abs=1e-6)  # over what is listed


def test_a_support_that_cannot_be_had_is_refused_before_anything_is_woken(make, monkeypatch):
    monkeypatch.setattr(module, "MOST_TOP_K", 20)
    sampler = make(tiny_models.policy(), asleep=True)
    sampler.llm.calls.clear()
    for options in ({"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 21}):
        with pytest.raises(
            p.ModelError, match=r"top_k must be from 1 to 20 here; set it, or use rollout\.engine = native"
        ):
            sampler.sample(tiny_models.prompts(2), 1, SamplingParams(**options))
    assert sampler.llm.calls == []


def test_what_fits_the_engine_bounds_prompts_and_responses(make, caplog, monkeypatch):
    policy = tiny_models.policy()
    policy.__dict__["eos"] = ()

    def small(policy, memory):
        engine = Engine(policy)
        engine.policy.__dict__["eos"] = ()
        engine.model_config.max_model_len = 40
        return engine

    monkeypatch.setattr(module, "_open", small)
    sampler = make(policy)
    assert "holds 40 tokens of one response" in caplog.text
    assert sampler.sample([[5] * 30, [5] * 3], 1, PARAMS).lengths.tolist() == [10, 20]
    with pytest.raises(p.PromptTooLong, match="40 tokens"):
        sampler.sample([[5] * 40], 1, PARAMS)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_weights_have_the_names_of_a_checkpoint(kind, tmp_path):
    from safetensors.torch import load_file

    policy = tiny_models.policy(kind)
    p.save(policy, tmp_path)
    saved, sent = load_file(tmp_path / "model.safetensors"), dict(weights(policy))
    assert sent.keys() == saved.keys()
    assert all(torch.equal(sent[name], saved[name]) for name in saved)


def test_a_tied_head_is_sent_under_its_own_name(make):
    policy = tiny_models.policy()
    policy.core.config.tie_word_embeddings = True
    policy.core.lm_head.weight = policy.core.model.embed_tokens.weight
    sent = dict(weights(policy))
    assert torch.equal(sent["lm_head.weight"], sent["model.embed_tokens.weight"])


def test_adapters_are_merged_on_the_way_and_stay_as_they_are(tmp_path):
    p.save(tiny_models.policy("qwen2"), tmp_path / "base")
    policy = p.load(tmp_path / "base", lora=p.Lora(rank=4))
    with torch.no_grad():
        for q in policy.parameters():
            q.add_(0.1 * torch.randn_like(q))
    before = {name: w.clone() for name, w in policy.model.state_dict().items()}
    with torch.no_grad():
        sent = dict(weights(policy))
    p.save(policy, tmp_path / "merged")  # peft's own merge
    merged = p.load(tmp_path / "merged").core.state_dict()
    assert sent.keys() == merged.keys()
    for name in merged:
        torch.testing.assert_close(sent[name], merged[name], atol=1e-6, rtol=0)
    assert all(torch.equal(w, before[name]) for name, w in policy.model.state_dict().items())


def test_what_cannot_be_is_refused_in_a_sentence(monkeypatch):
    policy = tiny_models.policy()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(p.ModelError, match=r'needs the package vllm: pip install "equipoise\[vllm\]"'):
        VllmSampler(policy)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(p.ModelError, match="float32 or bfloat16, not in float64"):
        VllmSampler(tiny_models.policy(dtype=torch.float64))


def test_what_the_engine_cannot_compute_is_refused_when_it_is_opened(make, monkeypatch):
    engine = Engine(tiny_models.policy())

    def broken():
        raise RuntimeError("Unsupported head_dim=16")

    engine.step = broken
    monkeypatch.setattr(module, "_open", lambda policy, memory: engine)
    with pytest.raises(p.ModelError, match=r"vLLM cannot run llama: Unsupported head_dim=16; use rollout\.engine"):
        make(tiny_models.policy())
    assert engine.calls[-1] == "shutdown"
    assert engine.queue == []


def test_one_engine_at_a_time(make):
    first = make(tiny_models.policy())
    with pytest.raises(p.ModelError, match=r"one at a time; close\(\)"):
        make(tiny_models.policy())
    first.close()
    make(tiny_models.policy())

"""vLLM for real, as the CPU build runs it: `make test-vllm`, in an environment of its own. Skipped where it is missing.

What holds without vLLM (configuration, refusals, the order of calls) is in tests/rollout/test_vllm.py.
"""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from scipy import stats
from transformers import LlamaConfig, LlamaForCausalLM

pytest.importorskip("vllm", reason="make test-vllm runs these")

from equipoise import policy as p
from equipoise.kernels.draw import truncate
from equipoise.rollout import NativeSampler, SamplingParams, concatenate
from equipoise.rollout.vllm import StaleEngine, VllmSampler, _cpu_has_bfloat16, weights
from equipoise.rollout.vllm import _engines as engines
from equipoise.train import RunFolder, Trainer
from tests.policy import tiny_models
from tests.train.conftest import ENVIRONMENT, ROOT
from tests.train.tiny import make_model, metrics, outcome, overrides, settings

CLOSE = 1e-4  # of log-probabilities in float32
MEMORY = 0.01  # of this machine's
KINDS = ["llama", "qwen2", "qwen3", "tied"]
PARAMS = {
    "plain": SamplingParams(max_tokens=40, seed=1),
    "cool": SamplingParams(max_tokens=40, temperature=0.7, seed=2),
    "hot": SamplingParams(max_tokens=40, temperature=1.5, seed=2),
    "stops": SamplingParams(max_tokens=40, stop=("a", "12", "é\n"), seed=4),
    "greedy": SamplingParams(max_tokens=20, temperature=0.0),
}


def make_policy(kind: str) -> p.Policy:
    """tied: the head is the embedding, heads of 64, and a context of several of vLLM's cache blocks."""
    if kind != "tied":
        return tiny_models.policy(kind)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tiny_models.VOCABULARY, hidden_size=128, intermediate_size=192, num_hidden_layers=2,
            num_attention_heads=2, head_dim=64, max_position_embeddings=512, initializer_range=0.1, pad_token_id=0,
            bos_token_id=1, eos_token_id=2, tie_word_embeddings=True,
        )
    )  # fmt: skip
    assert model.lm_head.weight is model.model.embed_tokens.weight
    return p.Policy(model, tiny_models.tokenizer(), kind)


def shake(policy: p.Policy, by: float = 0.05) -> None:
    with torch.no_grad():
        for q in policy.parameters():
            q.add_(by * torch.randn_like(q))


def trainers(policy, rollouts, temperature=1.0, support=None):
    packed = p.pack(rollouts.prompts, rollouts.tokens, rollouts.lengths, rollouts.prompt)
    with torch.no_grad():
        return p.token_logprobs(policy, packed, temperature=temperature, support=support).logprobs


def by_name(rollouts, names, n):
    """{(prompt name, sample): (tokens, finish)}"""
    rows = zip(rollouts.tokens.split(rollouts.lengths.tolist()), rollouts.finish, strict=True)
    return {(names[i // n], i % n): (t.tolist(), f) for i, (t, f) in enumerate(rows)}


def close_engines() -> None:
    for sampler in list(engines):
        sampler.close()


def open_engine(policy: p.Policy) -> VllmSampler:
    """A process can have one at a time: the one of the tests before goes."""
    close_engines()
    return VllmSampler(policy, memory=MEMORY)


@pytest.fixture(scope="module", params=KINDS)
def engine(request):
    return open_engine(make_policy(request.param))


@pytest.fixture(scope="module")
def llama():
    return open_engine(make_policy("llama"))


@pytest.mark.parametrize("name", PARAMS)
def test_log_probabilities_are_the_trainers(engine, name):
    params = PARAMS[name]
    rollouts = engine.sample(tiny_models.prompts(6), 3, params)
    ours = trainers(engine.policy, rollouts, params.temperature or 1.0)
    torch.testing.assert_close(rollouts.logprobs, ours, atol=CLOSE, rtol=0)
    assert rollouts.support is None
    assert len(rollouts.tokens) > 30


def test_greedy_tokens_are_the_native_samplers(engine):
    prompts, params = tiny_models.prompts(12), SamplingParams(max_tokens=30, temperature=0.0, stop=("12",))
    theirs, ours = engine.sample(prompts, 1, params), NativeSampler(engine.policy).sample(prompts, 1, params)
    assert torch.equal(theirs.tokens, ours.tokens)
    assert theirs.finish == ours.finish
    torch.testing.assert_close(theirs.logprobs, ours.logprobs, atol=CLOSE, rtol=0)


def test_truncated_distributions_are_ours(engine):
    params = SamplingParams(max_tokens=20, top_k=20, top_p=0.9, temperature=1.2, seed=3)
    rollouts = engine.sample(tiny_models.prompts(6), 4, params)
    over = trainers(engine.policy, rollouts, 1.2, rollouts.support)
    torch.testing.assert_close(rollouts.logprobs, over, atol=CLOSE, rtol=0)
    expected = []
    for i, tokens in zip(rollouts.prompt.tolist(), rollouts.tokens.split(rollouts.lengths.tolist()), strict=True):
        before = torch.cat([torch.tensor(rollouts.prompts[i]), tokens])[:-1]
        with torch.no_grad():
            z = engine.policy.core(before[None]).logits[0, -len(tokens) :] / 1.2
        expected.append(truncate(z, 20, 0.9).log_softmax(1).gather(1, tokens[:, None])[:, 0])
    # A token on the edge of the nucleus may be in for one and out for the other, by a last bit.
    same = (rollouts.logprobs - torch.cat(expected)).abs() < CLOSE
    assert same.float().mean() > 0.98
    assert int(rollouts.support.sizes.max()) <= 20


def test_new_weights_arrive(engine):
    prompts, params = tiny_models.prompts(5), SamplingParams(max_tokens=20, seed=2)
    before = engine.sample(prompts, 3, params)
    for _ in range(3):
        shake(engine.policy)
        after = engine.sample(prompts, 3, params)
        torch.testing.assert_close(after.logprobs, trainers(engine.policy, after), atol=CLOSE, rtol=0)
    assert (trainers(engine.policy, before) - before.logprobs).abs().mean() > 0.1  # the weights did change


def test_nothing_of_the_old_weights_stays_in_the_cache(engine, monkeypatch):
    """Prompts that share whole blocks of keys and values with those of an earlier call."""
    longest = engine.policy.context - 30
    prompts = [[3 + i % 20 for i in range(longest)]] * 2
    params = SamplingParams(max_tokens=20, seed=2)
    engine.sample(prompts, 2, params)
    shake(engine.policy)
    after = engine.sample(prompts, 2, params)
    torch.testing.assert_close(after.logprobs, trainers(engine.policy, after), atol=CLOSE, rtol=0)
    if engine.policy.name == "tied":  # the others' contexts fit into one block, which is never shared
        shake(engine.policy)
        monkeypatch.setattr(engine.llm, "reset_prefix_cache", lambda: True)
        with pytest.raises(StaleEngine):
            engine.sample(prompts, 2, params)


@pytest.mark.parametrize("lost", ["everything", "lm_head.weight", "model.layers.1.mlp.down_proj.weight"])
def test_weights_that_do_not_arrive_stop_the_run(engine, monkeypatch, lost):
    prompts, params = tiny_models.prompts(5), SamplingParams(max_tokens=4)
    engine.sample(prompts, 1, params)
    send = engine.llm.collective_rpc

    def sabotaged(method, kwargs):
        if lost != "everything":
            kwargs = {"weights_iterator": ((n, w) for n, w in kwargs["weights_iterator"] if n != lost)}
            send(method, kwargs=kwargs)

    monkeypatch.setattr(engine.llm, "collective_rpc", sabotaged)
    shake(engine.policy, 0.1)
    with pytest.raises(StaleEngine, match=r"nats from the trainer's .* at most 0.01\)"):
        engine.sample(prompts, 1, params)
    monkeypatch.undo()
    engine.sample(prompts, 1, params)


def test_draws_follow_the_distribution(llama):
    prompt = tiny_models.prompts(1, shortest=5)[0]
    rollouts = llama.sample([prompt], 3000, SamplingParams(max_tokens=1, seed=11))
    with torch.no_grad():
        probabilities = llama.policy.core(torch.tensor([prompt])).logits[0, -1].double().softmax(0)
    counts, expected = rollouts.tokens.bincount(minlength=len(probabilities)), 3000 * probabilities
    assert expected.min() > 5
    assert stats.chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_draws_are_neither_colder_nor_hotter_than_they_should_be(llama, temperature):
    """−log π of a drawn token is on average the entropy: their differences, over a run of draws, add up to noise."""
    params = SamplingParams(max_tokens=30, temperature=temperature, seed=1)
    rollouts = llama.sample(tiny_models.prompts(8), 30, params)
    packed = p.pack(rollouts.prompts, rollouts.tokens, rollouts.lengths, rollouts.prompt)
    assert len(rollouts.tokens) > 3000
    for believed, right in ((1.0, True), (0.8, False), (1.25, False)):
        with torch.no_grad():
            logprobs, entropy = p.token_logprobs(llama.policy, packed, temperature=believed * temperature)
        excess = (-logprobs - entropy).double()
        assert (abs(excess.sum()) < 4 * excess.norm()) == right


def test_draws_depend_on_seed_step_key_and_sample_only(llama):
    prompts, names = tiny_models.prompts(9), [f"prompt {i}" for i in range(9)]
    params = SamplingParams(max_tokens=30, seed=5)
    wanted = by_name(llama.sample(prompts, 4, params, keys=names, step=2), names, 4)
    assert len({tuple(v[0]) for v in wanted.values()}) > 30
    assert by_name(llama.sample(prompts, 4, params, keys=names, step=2), names, 4) == wanted
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = [names[i] for i in order]
    got = llama.sample([prompts[i] for i in order], 4, params, keys=shuffled, step=2)
    assert by_name(got, shuffled, 4) == wanted
    parts = [llama.sample(prompts[i:j], 4, params, keys=names[i:j], step=2) for i, j in ((0, 4), (4, 9))]
    assert by_name(concatenate(parts), names, 4) == wanted
    fewer = by_name(llama.sample(prompts, 2, params, keys=names, step=2), names, 2)
    assert fewer == {k: v for k, v in wanted.items() if k[1] < 2}
    for other in (
        llama.sample(prompts, 4, params, keys=names, step=3),
        llama.sample(prompts, 4, SamplingParams(max_tokens=30, seed=6), keys=names, step=2),
    ):
        other = by_name(other, names, 4)
        assert sum(other[k] == wanted[k] for k in wanted) < 6


def test_responses_end_where_they_should(llama):
    prompts = tiny_models.prompts(8)
    rollouts = llama.sample(prompts, 8, SamplingParams(max_tokens=30, stop=("12", "j"), seed=9))
    texts = [llama.policy.tokenizer.decode(t) for t in rollouts.tokens.split(rollouts.lengths.tolist())]
    assert set(rollouts.finish) == {"stop", "length"}
    assert any("<eos>" in text for text in texts)
    for text, finish, length in zip(texts, rollouts.finish, rollouts.lengths.tolist(), strict=True):
        ends = [text.find(s) + len(s) for s in ("12", "j", "<eos>") if s in text]
        assert (finish == "stop") == bool(ends)
        assert not ends or min(ends) == len(text)
        assert length == 30 or finish == "stop"
    context = llama.policy.context
    cut = llama.sample([[5] * (context - 3), [5] * (context - 1)], 4, SamplingParams(max_tokens=20, seed=1))
    assert all(n <= most for n, most in zip(cut.lengths.tolist(), [3] * 4 + [1] * 4, strict=True))
    assert "length" in cut.finish
    with pytest.raises(p.PromptTooLong, match=f"{context} tokens"):
        llama.sample([[5] * context], 1, SamplingParams())


def test_finished_hears_of_each_response_while_others_go_on(llama):
    heard = {}
    going_on = []

    def finished(rows, tokens, lengths):
        assert not heard.keys() & set(rows)
        heard.update(zip(rows, (t.tolist() for t in tokens.split(lengths.tolist())), strict=True))
        going_on.append(llama.engine.has_unfinished_requests())

    rollouts = llama.sample(tiny_models.prompts(4), 4, SamplingParams(max_tokens=40, seed=3), finished=finished)
    assert heard == dict(enumerate(t.tolist() for t in rollouts.tokens.split(rollouts.lengths.tolist())))
    assert going_on[0]


def test_an_interrupted_call_leaves_nothing_behind(llama):
    def interrupt(rows, tokens, lengths):
        raise KeyboardInterrupt

    params = SamplingParams(max_tokens=40, seed=3)
    with pytest.raises(KeyboardInterrupt):
        llama.sample(tiny_models.prompts(4), 4, params, finished=interrupt)
    assert not llama.engine.has_unfinished_requests()
    rollouts = llama.sample(tiny_models.prompts(4), 4, params)
    torch.testing.assert_close(rollouts.logprobs, trainers(llama.policy, rollouts), atol=CLOSE, rtol=0)


def test_a_second_engine_is_refused_while_there_is_one(llama):
    with pytest.raises(p.ModelError, match=r"one at a time; close\(\)"):
        VllmSampler(llama.policy)


def test_lora_is_sampled_merged(tmp_path):
    p.save(tiny_models.policy("qwen2"), tmp_path)
    policy = p.load(tmp_path, lora=p.Lora(rank=4))
    shake(policy, 0.1)
    kept = {n: w.clone() for n, w in policy.model.state_dict().items()}
    engine = open_engine(policy)
    rollouts = engine.sample(tiny_models.prompts(5), 3, SamplingParams(max_tokens=20))
    torch.testing.assert_close(rollouts.logprobs, trainers(policy, rollouts), atol=CLOSE, rtol=0)
    assert all(torch.equal(w, kept[n]) for n, w in policy.model.state_dict().items())
    with policy.model.disable_adapter():
        assert (rollouts.logprobs - trainers(policy, rollouts)).abs().mean() > 0.01  # the adapter matters


def test_bfloat16_agrees_to_its_rounding_or_is_refused():
    policy = tiny_models.policy("grouped", dtype=torch.bfloat16)
    if not _cpu_has_bfloat16():
        with pytest.raises(p.ModelError, match=r"instructions for bfloat16 .* use model.dtype = float32"):
            open_engine(policy)
        return
    engine = open_engine(policy)
    rollouts = engine.sample(tiny_models.prompts(5), 4, SamplingParams(max_tokens=20))
    error = (rollouts.logprobs - trainers(policy, rollouts)).abs()
    assert error.mean() < 0.03
    assert error.max() < 0.3


def test_a_cache_that_is_too_small_for_all_at_once_changes_nothing():
    """More tokens of prompts than one step takes; then room for a few responses only: others wait, or go back."""
    policy = make_policy("tied")
    policy.__dict__["eos"] = ()  # every response runs to its end
    prompts, params = tiny_models.prompts(12, shortest=350, longest=400), SamplingParams(max_tokens=40, seed=8)
    ample = open_engine(policy).sample(prompts, 2, params)
    close_engines()
    tight = VllmSampler(policy, memory=1e-4)
    held = tight.llm.llm_engine.vllm_config.cache_config
    assert held.num_gpu_blocks * held.block_size < 0.5 * (sum(map(len, prompts)) + len(ample.tokens))
    again = tight.sample(prompts, 2, params)
    assert torch.equal(again.tokens, ample.tokens)
    torch.testing.assert_close(again.logprobs, trainers(policy, again), atol=CLOSE, rtol=0)


def test_what_vllm_cannot_run_is_refused_in_a_sentence():
    config = LlamaConfig(
        vocab_size=tiny_models.VOCABULARY, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=4, head_dim=16, max_position_embeddings=64,
    )  # fmt: skip
    policy = p.Policy(LlamaForCausalLM(config), tiny_models.tokenizer(), "small heads")
    with pytest.raises(p.ModelError, match=r"vLLM cannot run small heads: .*head_dim=16.*; use rollout"):
        open_engine(policy)


def test_the_process_is_left_as_it_was():
    close_engines()
    policy = tiny_models.policy()
    torch.manual_seed(3)
    before = torch.get_rng_state(), torch.set_num_threads, torch.get_num_threads(), torch.get_default_dtype()
    affinity = os.sched_getaffinity(0)
    VllmSampler(policy, memory=MEMORY).sample(tiny_models.prompts(2), 2, SamplingParams(max_tokens=5))
    assert torch.equal(before[0], torch.get_rng_state())
    assert (torch.set_num_threads, torch.get_num_threads(), torch.get_default_dtype()) == before[1:]
    assert os.sched_getaffinity(0) == affinity


RUN = {"rollout__engine": "vllm", "rollout__engine_memory": MEMORY, "train__checkpoint_every": 1, "train__keep": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """A run of eight steps that nothing disturbed."""
    close_engines()
    out = tmp_path_factory.mktemp("whole") / "run"
    Trainer(settings(model, out, train__steps=8, **RUN)).run()
    return out


def test_a_run_learns_and_measures_the_mismatch_at_every_step(whole):
    rows = metrics(whole)
    rewards = [row["reward/mean"] for row in rows]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.02
    for row in rows:
        assert row["rollout/logprob_difference/max"] < CLOSE
        assert row["rollout/logprob_difference/mean"] <= row["rollout/logprob_difference/max"]
        assert 0 <= row["rollout/kl"] < 1e-8
        assert row["rollout/capped_tokens"] == 0
        assert row["ratio/min"] == row["ratio/max"] == 1  # log π_old is the trainer's own


def test_a_run_repeats_itself(model, whole, tmp_path):
    Trainer(settings(model, tmp_path / "run", train__steps=8, **RUN)).run()
    assert outcome(tmp_path / "run") == outcome(whole)


def test_a_killed_run_resumes(model, whole, tmp_path):
    out, file = tmp_path / "run", tmp_path / "empty.toml"
    file.touch()
    command = [sys.executable, "-m", "equipoise", "train", str(file), *overrides(model, out, train__steps=8, **RUN)]
    child = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines, deadline = RunFolder(out).metrics, time.monotonic() + 300
    while not (lines.exists() and lines.read_bytes().count(b"\n") >= 3) and child.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    assert len(metrics(out)) < 8
    ended = subprocess.run([*command, "--resume"], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert outcome(out) == outcome(whole)


def test_a_run_with_a_lost_head_stops_with_a_sentence(model, tmp_path, monkeypatch):
    """What vLLM does to tied weights by itself: the head stays what it was."""
    trainer = Trainer(settings(model, tmp_path / "run", train__steps=40, optim__lr=0.05, **RUN))
    first = {n: w.clone() for n, w in weights(trainer.policy)}
    monkeypatch.setattr(
        "equipoise.rollout.vllm.weights",
        lambda policy: ((n, first[n] if n == "lm_head.weight" else w) for n, w in weights(policy)),
    )
    with pytest.raises(StaleEngine, match=r"use rollout\.engine = native"):
        trainer.run()
    assert len(metrics(tmp_path / "run")) < 5

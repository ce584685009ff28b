import itertools
import logging
import threading

import pytest
import torch

from equipoise import policy as p
from equipoise.kernels.draw import truncate
from equipoise.rollout import (
    NativeSampler,
    PagedSampler,
    SamplingParams,
    Stopped,
    TransformersSampler,
    concatenate,
    native,
    sampler,
)
from tests.policy import tiny_models

KINDS = list(tiny_models.LLAMA_LIKE)
PARAMS = {
    "plain": SamplingParams(max_tokens=16, seed=1),
    "cool": SamplingParams(max_tokens=16, temperature=0.7, seed=2),
    "truncated": SamplingParams(max_tokens=16, top_k=20, top_p=0.9, temperature=1.2, seed=3),
    "min-p": SamplingParams(max_tokens=20, min_p=0.7, seed=5),
    "alike": SamplingParams(max_tokens=16, temperature=0.2, seed=6),
    "stops": SamplingParams(max_tokens=24, stop=("a", "12", "é\n"), seed=4),
    "greedy": SamplingParams(max_tokens=12, temperature=0.0),
    "one token": SamplingParams(max_tokens=1),
}


@pytest.mark.parametrize("kind", [NativeSampler, PagedSampler, TransformersSampler])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_without_numbers_is_a_sentence(kind, temperature):
    policy = tiny_models.policy("llama")
    torch.nn.init.constant_(policy.core.get_output_embeddings().weight, float("nan"))
    with pytest.raises(p.ModelError, match=r"its log-probabilities are NaN: a weight is not finite, or too large"):
        kind(policy).sample([[1, 2]], 2, SamplingParams(max_tokens=4, temperature=temperature))


def crossed(kinds):
    """Each kind once, and each set of parameters with one kind; truncation of every kind is long, all
    the other pairs are slow.
    """

    def mark(kind, name):
        if name == "plain" or kind == "qwen3":
            return ()
        return pytest.mark.long if name == "truncated" else pytest.mark.slow

    return [pytest.param(*pair, marks=mark(*pair)) for pair in itertools.product(kinds, PARAMS)]


def rounding(params):
    """1e-5, but a low temperature stretches the logits and their rounding with them."""
    return 1e-5 if params.temperature >= 0.7 or params.temperature == 0 else 1e-5 / params.temperature


def by_name(rollouts, names, n):
    """{(prompt name, sample): (tokens, logprobs, finish)}"""
    rows = zip(
        rollouts.tokens.split(rollouts.lengths.tolist()),
        rollouts.logprobs.split(rollouts.lengths.tolist()),
        rollouts.finish,
        strict=True,
    )
    return {(names[i // n], i % n): (t.tolist(), l, f) for i, (t, l, f) in enumerate(rows)}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for k in a:
        assert a[k][0] == b[k][0], k
        assert a[k][2] == b[k][2]
        torch.testing.assert_close(a[k][1], b[k][1], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("kind", "name"), crossed(KINDS))
def test_native_sampler_and_transformers_draw_the_same(kind, name):
    policy = tiny_models.policy(kind)
    prompts = tiny_models.prompts(6)
    ours = NativeSampler(policy).sample(prompts, 3, PARAMS[name])
    plain = TransformersSampler(policy, rows=7).sample(prompts, 3, PARAMS[name])  # 18 responses in three batches
    assert torch.equal(ours.tokens, plain.tokens)
    assert ours.finish == plain.finish
    # A token on the edge of the nucleus may be in for one and out for the other, by a last bit.
    same = (ours.logprobs - plain.logprobs).abs() < rounding(PARAMS[name])
    assert same.float().mean() >= (0.98 if PARAMS[name].truncates else 1.0)


@pytest.mark.parametrize(("kind", "name"), crossed([*KINDS, "gpt2"]))
def test_log_probabilities_are_the_trainers(kind, name):
    policy = tiny_models.policy(kind)
    params = PARAMS[name]
    rollouts = sampler(policy).sample(tiny_models.prompts(5), 4, params)
    pack = p.pack(rollouts.prompts, rollouts.tokens, rollouts.lengths, rollouts.prompt)
    trained = p.token_logprobs(policy, pack, temperature=params.temperature or 1.0).logprobs
    if params.truncates:
        assert (rollouts.logprobs >= trained - 1e-5).all()
        assert (rollouts.logprobs > trained + 1e-3).any()
        over = p.token_logprobs(policy, pack, temperature=params.temperature, support=rollouts.support).logprobs
        torch.testing.assert_close(rollouts.logprobs, over, atol=rounding(params), rtol=0)
    else:
        assert rollouts.support is None
        torch.testing.assert_close(rollouts.logprobs, trained, atol=rounding(params), rtol=0)
    trained.sum().backward()  # rollouts are ordinary tensors: nothing of inference mode clings to them


@pytest.mark.parametrize("kind", [pytest.param("grouped", marks=pytest.mark.long), "qwen3"])
def test_bfloat16_agrees_with_the_trainer_to_its_rounding(kind):
    policy = tiny_models.policy(kind, dtype=torch.bfloat16)
    rollouts = NativeSampler(policy).sample(tiny_models.prompts(5), 4, SamplingParams(max_tokens=20))
    assert rollouts.logprobs.dtype == torch.float32
    pack = p.pack(rollouts.prompts, rollouts.tokens, rollouts.lengths, rollouts.prompt)
    error = (rollouts.logprobs - p.token_logprobs(policy, pack).logprobs).detach().abs()
    assert error.mean() < 0.03
    assert error.max() < 0.3


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_what_responses_share_is_computed_once(temperature, monkeypatch):
    policy = tiny_models.policy("grouped")
    computed, original = [], native._step
    monkeypatch.setattr(native, "_step", lambda *args: computed.append(len(args[3])) or original(*args))
    rollouts = NativeSampler(policy).sample(
        tiny_models.prompts(5), 8, SamplingParams(max_tokens=30, temperature=temperature, seed=1)
    )
    rows = list(zip(rollouts.prompt.tolist(), rollouts.tokens.split(rollouts.lengths.tolist()), strict=True))
    for t, size in enumerate(computed, start=1):
        going_on = [(i, *r[:t].tolist()) for i, r in rows if len(r) > t]
        distinct, dropped = len(set(going_on)), 0.1 * 40
        assert distinct <= size <= (distinct if distinct < len(going_on) else distinct + dropped)
    assert (sum(computed) < 0.6 * (len(rollouts.tokens) - 40)) == (temperature == 0.1)


def test_draws_depend_on_seed_step_key_and_sample_only(monkeypatch):
    policy = tiny_models.policy("grouped")
    prompts = tiny_models.prompts(9)
    names = [f"prompt {i}" for i in range(9)]
    params = SamplingParams(max_tokens=30, seed=5)
    wanted = by_name(NativeSampler(policy).sample(prompts, 4, params, keys=names, step=2), names, 4)
    assert len({tuple(v[0]) for v in wanted.values()}) > 30
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = NativeSampler(policy).sample(
        [prompts[i] for i in order], 4, params, keys=[names[i] for i in order], step=2
    )
    assert_same(by_name(shuffled, [names[i] for i in order], 4), wanted)
    for rows in (1, 7):
        got = NativeSampler(policy, rows=rows).sample(prompts, 4, params, keys=names, step=2)
        assert_same(by_name(got, names, 4), wanted)
    for drop in (0.0, 2.0):  # finished rows leave at once, or never
        monkeypatch.setattr(native, "DROP", drop)
        assert_same(by_name(NativeSampler(policy).sample(prompts, 4, params, keys=names, step=2), names, 4), wanted)
    half = NativeSampler(policy).sample(prompts[:4], 4, params, keys=names[:4], step=2)
    rest = NativeSampler(policy).sample(prompts[4:], 4, params, keys=names[4:], step=2)
    assert_same(by_name(concatenate([half, rest]), names, 4), wanted)
    fewer = by_name(NativeSampler(policy).sample(prompts, 2, params, keys=names, step=2), names, 2)
    assert_same(fewer, {k: v for k, v in wanted.items() if k[1] < 2})
    other = by_name(NativeSampler(policy).sample(prompts, 4, params, keys=names, step=3), names, 4)
    assert sum(other[k][0] == wanted[k][0] for k in wanted) < 6


@pytest.mark.parametrize("make", [NativeSampler, TransformersSampler])
def test_each_response_is_told_once_as_it_is(make):
    policy = tiny_models.policy("grouped")
    told = []

    def finished(rows, tokens, lengths):
        told.extend(zip(rows, (t.tolist() for t in tokens.split(lengths.tolist())), strict=True))

    params = SamplingParams(max_tokens=60)
    rollouts = make(policy, rows=20).sample(tiny_models.prompts(9), 4, params, finished=finished)
    assert rollouts.lengths.unique().numel() > 5
    assert len(told) == 36
    assert dict(told) == dict(enumerate(t.tolist() for t in rollouts.tokens.split(rollouts.lengths.tolist())))


@pytest.mark.parametrize("make", [NativeSampler, TransformersSampler, PagedSampler])
def test_a_call_ends_where_it_is_told_to_stop(make):
    """In the midst of decoding, and the next call before it has begun."""

    class Third(threading.Event):
        """Set when it is looked at for the third time."""

        looks = 0

        def is_set(self):
            self.looks += 1
            return self.looks >= 3

    stopped = Third()
    sampler = make(tiny_models.policy("grouped"), stopped=stopped)
    for looks in (3, 4):
        with pytest.raises(Stopped):
            sampler.sample(tiny_models.prompts(3), 2, SamplingParams(max_tokens=60))
        assert stopped.looks == looks


@pytest.mark.parametrize("make", [NativeSampler, TransformersSampler])
def test_responses_end_where_they_should(make):
    policy = tiny_models.policy()
    prompts = tiny_models.prompts(8)
    rollouts = make(policy).sample(prompts, 8, SamplingParams(max_tokens=30, stop=("12", "j"), seed=9))
    texts = [policy.tokenizer.decode(t) for t in rollouts.tokens.split(rollouts.lengths.tolist())]
    assert set(rollouts.finish) == {"stop", "length"}
    for text, finish, length in zip(texts, rollouts.finish, rollouts.lengths.tolist(), strict=True):
        ends = [text.find(s) + len(s) for s in ("12", "j", "<eos>") if s in text]
        assert (finish == "stop") == bool(ends)
        assert not ends or min(ends) == len(text)
        assert length == 30 or finish == "stop"
    assert rollouts.prompt.tolist() == [i for i in range(8) for _ in range(8)]
    assert len(rollouts.tokens) == len(rollouts.logprobs) == int(rollouts.lengths.sum())


def test_a_response_stops_where_the_context_ends():
    policy = tiny_models.policy()
    policy.core.generation_config.eos_token_id = None
    policy.__dict__["eos"] = ()
    rollouts = NativeSampler(policy).sample([[5] * 120, [5] * 3], 2, SamplingParams(max_tokens=20))
    assert rollouts.lengths.tolist() == [8, 8, 20, 20]
    assert rollouts.finish == ["length"] * 4
    with pytest.raises(p.PromptTooLong, match="128 tokens"):
        NativeSampler(policy).sample([[5] * 128], 1, SamplingParams())


def test_weights_changed_in_place_are_seen():
    policy = tiny_models.policy()
    ours = NativeSampler(policy)
    prompts, params = tiny_models.prompts(4), SamplingParams(max_tokens=20)
    ours.sample(prompts, 2, params)
    with torch.no_grad():
        for q in policy.parameters():
            q.add_(0.05 * torch.randn_like(q))
    after = ours.sample(prompts, 2, params)
    fresh = TransformersSampler(policy).sample(prompts, 2, params)
    assert_same(by_name(after, range(4), 2), by_name(fresh, range(4), 2))


def test_lora_is_sampled_with_its_adapter(tmp_path):
    p.save(tiny_models.policy("qwen2"), tmp_path)
    policy = p.load(tmp_path, lora=p.Lora(rank=4))
    with torch.no_grad():
        for q in policy.parameters():
            q.add_(0.05 * torch.randn_like(q))
    prompts, params = tiny_models.prompts(4), SamplingParams(max_tokens=20)
    ours = NativeSampler(policy).sample(prompts, 2, params)
    assert_same(
        by_name(ours, range(4), 2), by_name(TransformersSampler(policy).sample(prompts, 2, params), range(4), 2)
    )


def test_lora_is_sampled_in_bfloat16(tmp_path):
    """peft keeps adapters in float32; what is merged is of the model's own type."""
    p.save(tiny_models.policy("qwen2"), tmp_path)
    policy = p.load(tmp_path, dtype=torch.bfloat16, lora=p.Lora(rank=4))
    with torch.no_grad():
        for q in policy.parameters():
            q.add_(0.05 * torch.randn_like(q))
    prompts, params = tiny_models.prompts(4), SamplingParams(max_tokens=20)
    rollouts = NativeSampler(policy).sample(prompts, 2, params)
    pack = p.pack(rollouts.prompts, rollouts.tokens, rollouts.lengths, rollouts.prompt)
    error = (rollouts.logprobs - p.token_logprobs(policy, pack).logprobs).detach().abs()
    assert error.mean() < 0.03
    assert error.max() < 0.3


def supports_of(rollouts):
    """The set of ids of each token, by response."""
    ids = [tuple(x.tolist()) for x in rollouts.support.ids.split(rollouts.support.sizes.tolist())]
    ends = rollouts.lengths.cumsum(0).tolist()
    return [ids[end - n : end] for end, n in zip(ends, rollouts.lengths.tolist(), strict=True)]


def by_hand(policy, rollouts, params):
    """The same from a transformers forward pass for each response alone, and each truncation by its definition."""
    out = []
    for row, tokens in zip(rollouts.prompt.tolist(), rollouts.tokens.split(rollouts.lengths.tolist()), strict=True):
        prompt = rollouts.prompts[row]
        inputs = torch.tensor([[*prompt, *tokens.tolist()]], device=tokens.device)
        with torch.no_grad():
            logits = policy.core(input_ids=inputs).logits[0, len(prompt) - 1 : -1]
        z = truncate(logits.float() / params.temperature, params.top_k, params.top_p, params.min_p)
        out.append([tuple((x > -torch.inf).nonzero()[:, 0].tolist()) for x in z])
    return out


@pytest.mark.parametrize("make", [NativeSampler, TransformersSampler])
@pytest.mark.parametrize("name", ["truncated", "min-p"])
def test_every_token_comes_with_its_support(make, name):
    policy, params = tiny_models.policy("qwen3"), PARAMS[name]
    rollouts = make(policy, rows=7).sample(tiny_models.prompts(5), 3, params)
    ours, plain = supports_of(rollouts), by_hand(policy, rollouts, params)
    same = [a == b for mine, theirs in zip(ours, plain, strict=True) for a, b in zip(mine, theirs, strict=True)]
    assert len(same) == len(rollouts.tokens) == len(rollouts.support)
    assert sum(same) >= 0.98 * len(same)  # a token on the edge may be in for one and out for the other
    drawn = zip(rollouts.tokens.tolist(), (ids for response in ours for ids in response), strict=True)
    assert all(token in ids for token, ids in drawn)
    assert len({len(ids) for response in ours for ids in response}) > 3
    rows = torch.tensor([7, 0, 11])
    assert supports_of(rollouts.select(rows)) == [ours[i] for i in rows]
    assert supports_of(concatenate([rollouts.select(rows), rollouts])) == [*(ours[i] for i in rows), *ours]
    part = rollouts.support.part(slice(3, 8))
    flat = [ids for response in ours for ids in response]
    assert [tuple(x.tolist()) for x in part.ids.split(part.sizes.tolist())] == flat[3:8]


def test_truncated_draws_are_not_joined_with_others():
    policy = tiny_models.policy()
    parts = [NativeSampler(policy).sample([[1]], 2, SamplingParams(max_tokens=3, top_k=k)) for k in (0, 4)]
    with pytest.raises(ValueError, match="keep the two apart"):
        concatenate(parts)


def test_select_takes_whole_responses():
    policy = tiny_models.policy()
    rollouts = NativeSampler(policy).sample(tiny_models.prompts(4), 3, SamplingParams(max_tokens=9, top_k=9))
    rows = torch.tensor([7, 0, 11])
    chosen = rollouts.select(rows)
    tokens = rollouts.tokens.split(rollouts.lengths.tolist())
    logprobs = rollouts.logprobs.split(rollouts.lengths.tolist())
    assert torch.equal(chosen.tokens, torch.cat([tokens[i] for i in rows]))
    assert torch.equal(chosen.logprobs, torch.cat([logprobs[i] for i in rows]))
    assert chosen.prompt.tolist() == [2, 0, 3]
    assert chosen.finish == [rollouts.finish[i] for i in rows]


def test_the_right_sampler_is_chosen_with_a_notice(caplog):
    assert isinstance(sampler(tiny_models.policy("qwen3")), NativeSampler)
    with caplog.at_level(logging.WARNING):
        assert isinstance(sampler(tiny_models.policy("gpt2")), TransformersSampler)
    assert "GPT2LMHeadModel has no native sampler" in caplog.text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("max_tokens", 0),
        ("stop", "a"),
    ],
)
def test_senseless_parameters_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        SamplingParams(**{field: value})

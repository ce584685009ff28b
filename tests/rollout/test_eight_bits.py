"""Sampling in 8 bits: how far it is from the trainer, what it repeats, and where it is refused.

The paged sampler runs on CUDA in bfloat16 where there is a card that has 8-bit numbers, else on the CPU by the kernels'
reference, in float32, which is faster there. These models' weights are five times as large as usual, so that every
token has logits of its own: 8 bits move them by more than they would a trained model's.
"""

from dataclasses import replace

import pytest
import torch

from equipoise import policy as p
from equipoise.kernels import fp8
from equipoise.kernels.fp8 import FP8
from equipoise.rollout import PagedSampler, SamplingParams, blocks, paged, paged_cache, sampler, step_buffers
from equipoise.train import ConfigError, load
from tests.policy import tiny_models

HAS_FP8 = torch.cuda.is_available() and fp8.problem(torch.device("cuda")) is None
DEVICE, DTYPE = ("cuda", torch.bfloat16) if HAS_FP8 else ("cpu", torch.float32)
KINDS = ["grouped", "qwen2", "qwen3"]  # Llama; biases; norms of heads
CACHE, WEIGHTS = {"cache_dtype": "fp8"}, {"weights_dtype": "fp8"}
BOTH = CACHE | WEIGHTS
MEAN = {"cache": 0.07, "weights": 0.15, "both": 0.15}  # of |log π_sampler − log π_trainer|; plain: below 0.03
PARAMS = SamplingParams(max_tokens=24, seed=3)


def tiny(kind="qwen3", dtype=DTYPE):
    policy = tiny_models.policy(kind, dtype=dtype)
    policy.model.to(DEVICE)
    return policy


def apart(policy, rollouts):
    """|log π_sampler − log π_trainer| of the tokens drawn."""
    pack = p.pack(rollouts.prompts, rollouts.tokens, rollouts.lengths, rollouts.prompt)
    return (rollouts.logprobs - p.token_logprobs(policy, pack).logprobs).detach().abs()


def changed(policy, by=0.05):
    with torch.no_grad():
        for i, q in enumerate(policy.model.parameters()):
            q.add_(by * torch.randn(q.shape, generator=torch.Generator().manual_seed(i)).to(q))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "precision"), [("cache", CACHE), ("weights", WEIGHTS), ("both", BOTH)])
def test_log_probabilities_are_near_the_trainers(kind, name, precision):
    policy, prompts = tiny(kind), tiny_models.prompts(6)
    rollouts = PagedSampler(policy, **precision).sample(prompts, 8, PARAMS)
    error = apart(policy, rollouts)
    assert rollouts.logprobs.isfinite().all()
    assert error.mean() < MEAN[name]
    assert error.max() < 2.0
    plain = PagedSampler(policy).sample(prompts, 8, PARAMS)
    assert error.mean() > apart(policy, plain).mean()  # 8 bits were used


def test_a_first_token_owes_nothing_to_the_cache():
    """The first token is drawn before anything is read from the cache."""
    policy, prompts = tiny("grouped", torch.float32), tiny_models.prompts(6)
    rollouts = PagedSampler(policy, **CACHE).sample(prompts, 8, PARAMS)
    error, first = apart(policy, rollouts), rollouts.lengths.cumsum(0) - rollouts.lengths
    assert error[first].max() < 1e-4
    assert 1e-4 < error.mean() < MEAN["cache"]


@pytest.mark.parametrize("precision", [CACHE, BOTH], ids=["cache", "both"])
def test_draws_repeat_whatever_the_batch(precision):
    """The same bits by the same sampler (on CUDA its graphs are replayed) and by another one."""
    policy, prompts = tiny(), tiny_models.prompts(5)
    kept = PagedSampler(policy, **precision)
    first, again, other = (s.sample(prompts, 4, PARAMS) for s in (kept, kept, PagedSampler(policy, **precision)))
    for rollouts in (again, other):
        assert torch.equal(rollouts.tokens, first.tokens)
        assert torch.equal(rollouts.logprobs, first.logprobs)


def test_new_weights_are_sampled_with_at_every_call():
    policy, prompts = tiny(), tiny_models.prompts(4)
    kept = PagedSampler(policy, **BOTH)
    before = kept.sample(prompts, 3, PARAMS)
    changed(policy)
    got, wanted = kept.sample(prompts, 3, PARAMS), PagedSampler(policy, **BOTH).sample(prompts, 3, PARAMS)
    assert not torch.equal(got.tokens, before.tokens)
    assert torch.equal(got.tokens, wanted.tokens)
    assert torch.equal(got.logprobs, wanted.logprobs)


def test_an_adapter_is_sampled_in_8_bits_too(tmp_path):
    p.save(tiny_models.policy("qwen2"), tmp_path)
    lora = p.Lora(rank=4, targets=("q_proj", "down_proj"))
    policy = p.load(tmp_path, lora=lora, dtype=DTYPE, device=DEVICE)
    ours, prompts = PagedSampler(policy, **BOTH), tiny_models.prompts(4)
    without = ours.sample(prompts, 4, PARAMS)
    with torch.no_grad():
        for q in policy.parameters():
            q.add_(0.05 * torch.randn(q.shape, generator=torch.Generator().manual_seed(1)).to(q))
    rollouts = ours.sample(prompts, 4, PARAMS)
    assert not torch.equal(rollouts.tokens, without.tokens)
    assert apart(policy, rollouts).mean() < MEAN["both"]


one_rounding = pytest.mark.skipif(
    DEVICE == "cuda", reason="other batches round otherwise there, which 8 bits make larger"
)


@one_rounding
@pytest.mark.parametrize("drafts", [pytest.param(0, marks=pytest.mark.long), 3])
def test_responses_that_are_done_again_become_the_same(monkeypatch, drafts):
    """Little memory: rows go back to the queue."""
    for module in (blocks, step_buffers, paged, paged_cache):
        monkeypatch.setattr(module, "BLOCK", 8)
    for module in (blocks, step_buffers, paged):
        monkeypatch.setattr(module, "WINDOW", 4)
    policy, prompts = tiny("grouped"), tiny_models.prompts(7)
    wanted = PagedSampler(policy, **CACHE).sample(prompts, 3, PARAMS)
    one = paged_cache.cache_bytes(policy, 1, "fp8")
    got = PagedSampler(policy, rows=5, memory=10 * one, speculation=drafts, **CACHE).sample(prompts, 3, PARAMS)
    assert torch.equal(got.tokens, wanted.tokens)
    assert (got.logprobs - wanted.logprobs).abs().mean() < 1e-4


@one_rounding
@pytest.mark.parametrize("kind", ["qwen3", pytest.param("mistral", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "precision", [pytest.param(CACHE, marks=pytest.mark.long, id="cache"), pytest.param(BOTH, id="both")]
)
def test_drafts_change_no_response(kind, precision):
    """In float64, in which products of other shapes round alike but for digits that 8 bits do not keep; mistral has a
    window of 7 tokens. Cool: these models then repeat themselves, and some drafts are right."""
    policy, prompts, params = tiny(kind, torch.float64), tiny_models.prompts(5), replace(PARAMS, temperature=0.2)
    wanted = PagedSampler(policy, **precision).sample(prompts, 4, params)
    for count in (1, 4):
        got = PagedSampler(policy, speculation=count, **precision).sample(prompts, 4, params)
        assert torch.equal(got.tokens, wanted.tokens)
        assert torch.equal(got.lengths, wanted.lengths)
        assert got.finish == wanted.finish
        assert (got.logprobs - wanted.logprobs).abs().mean() < 1e-5
        assert got.drafts.accepted > 0


@pytest.mark.parametrize(
    "precision", [pytest.param(CACHE, marks=pytest.mark.long, id="cache"), pytest.param(BOTH, id="both")]
)
def test_draws_with_drafts_repeat_and_are_near_the_trainers(precision):
    """Greedy: responses of a group are alike, and many drafts right."""
    policy, prompts, params = tiny(), tiny_models.prompts(5), replace(PARAMS, temperature=0.0)
    ours = PagedSampler(policy, rows=16, speculation=2, **precision)
    first, again = (ours.sample(prompts, 4, params) for _ in range(2))
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.logprobs, again.logprobs)
    assert first.drafts == again.drafts
    assert first.drafts.accepted > 0
    error = apart(policy, first)
    assert error.mean() < MEAN["both" if precision is BOTH else "cache"]
    assert error.max() < 2.0


def test_memory_is_what_was_counted():
    policy = tiny()
    for dtype in ("auto", "fp8"):
        _, cache = paged_cache.reserve(policy, 10, dtype)
        assert cache.nbytes == paged_cache.cache_bytes(policy, 10, dtype)
    assert cache.keys.dtype == FP8
    assert (cache.values.float() == 0).all()
    head_dim = cache.keys.shape[-1]
    share = paged_cache.cache_bytes(policy, 10, "fp8") / paged_cache.cache_bytes(policy, 10, "auto")
    assert share == pytest.approx((head_dim + 4) / (policy.dtype.itemsize * head_dim))


# The configuration


def configured(*options):
    return load(None, ["--model.dtype", "bfloat16", *options])


@pytest.mark.parametrize("name", ["cache_dtype", "weights_dtype"])
def test_8_bits_are_corrected_unless_the_objective_says_otherwise(name):
    config = configured(f"--rollout.{name}", "fp8")
    assert str(config.build_objective().mismatch) == "tis(cap=2)"
    assert config.rollout.recomputes
    config = configured(f"--rollout.{name}", "fp8", "--objective.mismatch", "none")
    assert str(config.build_objective().mismatch) == "none"
    assert config.rollout.recomputes
    assert not configured().rollout.recomputes


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--rollout.cache_dtype", "fp4"], 'rollout.cache_dtype = "fp4" is not known'),
        (["--rollout.cache_dtype", "fp8", "--rollout.engine", "vllm"], "must be auto with rollout.engine = vllm"),
        (["--rollout.weights_dtype", "fp8", "--model.device", "cpu"], "must be auto with model.device = cpu"),
        (["--rollout.weights_dtype", "fp8", "--model.dtype", "float32"], "needs model.dtype = bfloat16, not float32"),
        (
            ["--rollout.cache_dtype", "fp8", "--rollout.ahead", "1", "--objective.mismatch", "none"],
            "rollout.ahead = 1: needs objective.mismatch",
        ),
    ],
)
def test_senseless_choices_are_refused(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        configured(*given)


@pytest.mark.skipif(DEVICE == "cuda", reason="about devices without 8-bit numbers")
@pytest.mark.parametrize("precision", [CACHE, WEIGHTS], ids=["cache", "weights"])
def test_a_device_without_them_is_refused(precision):
    policy = tiny()
    with pytest.raises(
        ValueError, match=r'_dtype = "fp8": needs a CUDA device of capability 8.9 or later, and this is'
    ):
        sampler(policy, **precision)
    assert sampler(policy, cache_dtype="auto", weights_dtype="auto").policy is policy


def test_what_the_paged_sampler_does_not_know_is_refused(monkeypatch):
    monkeypatch.setattr(fp8, "problem", lambda device: None)
    with pytest.raises(ValueError, match="only the paged sampler has it, which does not know gpt2"):
        sampler(tiny_models.policy("gpt2"), **CACHE)
    with pytest.raises(ValueError, match=r'needs model.dtype = "bfloat16", and qwen3 is in float32'):
        sampler(tiny_models.policy("qwen3"), **WEIGHTS)
    odd = tiny_models.policy("qwen3", dtype=torch.bfloat16)
    odd.core.model.layers[0].mlp.down_proj = torch.nn.Linear(200, 128, bias=False, dtype=torch.bfloat16)
    monkeypatch.setattr(type(odd), "is_llama_like", True)
    with pytest.raises(ValueError, match="multiples of 16, and qwen3 has one of 200"):
        sampler(odd, **WEIGHTS)


@pytest.mark.parametrize(("capability", "wanted"), [((8, 0), "this one has 8.0"), ((8, 9), None), ((9, 0), None)])
def test_capabilities(monkeypatch, capability, wanted):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert fp8.problem(torch.device("cuda")) == wanted

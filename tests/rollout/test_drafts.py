"""Drafts change no response: the same tokens, ends and log-probabilities with any number of them, in fewer steps."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from test_paged import DEVICE, block_bytes, small_blocks, tiny
from test_samplers import PARAMS, assert_same, by_name, rounding, supports_of

from equipoise import config, rollout
from equipoise import policy as p
from equipoise.config import ConfigError
from equipoise.rollout import NativeSampler, PagedSampler, SamplingParams, blocks, paged
from equipoise.rollout.blocks import BLOCK, Scheduler
from equipoise.rollout.paged import _counted
from equipoise.rollout.rollouts import DraftCounts, concatenate
from equipoise.rollout.step_buffers import StepBuffers
from equipoise.tasks import open_task
from tests.policy import tiny_models

__all__ = ["small_blocks"]  # the fixture
DRAFTS = (1, 2, 4)
LOOPING = SamplingParams(max_tokens=60, temperature=0.2, seed=3)  # tiny models repeat themselves when cool


def assert_equal(ours, wanted, params):
    assert torch.equal(ours.tokens, wanted.tokens)
    assert torch.equal(ours.lengths, wanted.lengths)
    assert ours.finish == wanted.finish
    torch.testing.assert_close(ours.logprobs, wanted.logprobs, atol=rounding(params), rtol=0)


@pytest.mark.parametrize(
    "name",
    [
        *("plain", "greedy", "stops", "one token"),
        *(pytest.param(name, marks=pytest.mark.long) for name in ("cool", "looping")),
    ],
)
@pytest.mark.parametrize("kind", ["qwen3", pytest.param("mistral", marks=pytest.mark.long)])
def test_responses_are_those_without_drafts(kind, name):
    """mistral: with a window of 7 tokens."""
    policy, prompts = tiny(kind), tiny_models.prompts(5)
    params = LOOPING if name == "looping" else PARAMS[name]
    without = PagedSampler(policy).sample(prompts, 4, params)
    for count in DRAFTS:
        ours = PagedSampler(policy, speculation=count).sample(prompts, 4, params)
        assert_equal(ours, without, params)
    assert without.drafts is None
    counts = ours.drafts
    assert counts.tokens == len(ours.tokens) - len(ours.lengths)  # a first token comes from the prompt
    assert counts.passes <= counts.tokens
    assert counts.accepted <= counts.tried <= 4 * counts.passes
    if name == "looping":
        assert counts.tokens > 1.05 * counts.passes


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("rows", "spare", "count"),
    [
        (3, 0, 2),
        pytest.param(5, 3, 4, marks=pytest.mark.long),
        pytest.param(16, 12, 1, marks=pytest.mark.long),
        (64, 1000, 4),
    ],
)
def test_refills_and_too_little_memory_change_nothing(rows, spare, count, monkeypatch):
    """`spare`: blocks beyond the least that will do; with few of them rows are sent back and done again."""
    policy, prompts = tiny("grouped"), tiny_models.prompts(7)
    names = [f"prompt {i}" for i in range(7)]
    params = SamplingParams(max_tokens=40, temperature=0.3, seed=5)
    wanted = by_name(NativeSampler(policy).sample(prompts, 3, params, keys=names, step=2), names, 3)
    sent_back, original = [], Scheduler._send_back
    monkeypatch.setattr(Scheduler, "_send_back", lambda self, row: sent_back.append(row) or original(self, row))
    longest = blocks.blocks_for(max(map(len, prompts))) + blocks.blocks_for(40 - 1)
    memory = (1 + int(longest) + spare) * block_bytes(policy)
    sampler = PagedSampler(policy, rows=rows, memory=memory, speculation=count)
    for _ in range(2):  # the second call finds the buffers, and on CUDA the graphs, of the first
        ours = by_name(sampler.sample(prompts, 3, params, keys=names, step=2), names, 3)
        assert ours.keys() == wanted.keys()
        for name in ours:
            assert ours[name][0] == wanted[name][0], name
            assert ours[name][2] == wanted[name][2]
            torch.testing.assert_close(ours[name][1], wanted[name][1], atol=rounding(params), rtol=0)
    if DEVICE == "cpu":
        assert bool(sent_back) == (spare < 1000)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("buckets", [(1, 36), (5, 11, 20, 64)])
def test_batch_sizes_and_long_prompts_change_nothing(buckets, monkeypatch):
    policy, prompts = tiny("qwen2"), tiny_models.prompts(6, shortest=40, longest=70)
    params = SamplingParams(max_tokens=30, seed=5)
    wanted = by_name(NativeSampler(policy).sample(prompts, 4, params), range(6), 4)
    monkeypatch.setattr(paged, "BUCKETS", buckets)
    sampler = PagedSampler(policy, rows=min(24, buckets[-1]), speculation=3)
    assert_same(by_name(sampler.sample(prompts, 4, params), range(6), 4), wanted)


@pytest.mark.parametrize("longest", [65, 67])
def test_responses_end_at_their_limit_and_where_the_context_does(longest):
    """Greedy, with no end token: the drafts run on behind the limit, with 65 where the last block ends."""
    policy = tiny("llama")
    policy.core.generation_config.eos_token_id = None
    policy.__dict__["eos"] = ()
    params = SamplingParams(max_tokens=longest, temperature=0.0)
    prompts = [[5] * 100, [5] * 3, [7, 8]]
    without, ours = (PagedSampler(policy, speculation=count).sample(prompts, 2, params) for count in (0, 4))
    assert ours.lengths.tolist() == [28, 28, *4 * [longest]]
    assert ours.finish == ["length"] * 6
    assert_equal(ours, without, params)
    assert ours.drafts.tokens > 1.1 * ours.drafts.passes


def test_end_tokens_inside_drafts_end_a_response():
    """Greedy responses to one prompt are alike: the later ones are drafted from the first ones, ends and all."""
    policy, params = tiny("grouped"), SamplingParams(max_tokens=50, temperature=0.0)
    plain = PagedSampler(policy).sample([[9, 4, 6]], 4, params)
    ends = plain.tokens.split(plain.lengths.tolist())[0]
    policy.__dict__["eos"] = (int(ends[20]),)
    sampler = PagedSampler(policy, rows=2, speculation=4)
    told = []
    ours = sampler.sample([[9, 4, 6]], 4, params, finished=lambda rows, tokens, lengths: told.extend(tokens.tolist()))
    assert_equal(ours, PagedSampler(policy).sample([[9, 4, 6]], 4, params), params)
    assert ours.lengths.tolist() == 4 * [ends.tolist().index(int(ends[20])) + 1]
    assert ours.finish == ["stop"] * 4
    assert sorted(told) == sorted(ours.tokens.tolist())
    assert ours.drafts.accepted > 0


def test_a_trained_model_accepts_drafts_at_temperature_one():
    """abacus writes sums; responses to one prompt repeat each other's."""
    policy, task = p.load("abacus", device=DEVICE), open_task("arithmetic", 0)
    prompts = [p.encode(policy, task.prompt(i).text) for i in range(6)]
    params = SamplingParams(max_tokens=task.max_tokens, seed=1)
    without, ours = (PagedSampler(policy, speculation=count).sample(prompts, 8, params) for count in (0, 2))
    assert torch.equal(ours.tokens, without.tokens)
    assert ours.finish == without.finish
    torch.testing.assert_close(ours.logprobs, without.logprobs, atol=1e-4, rtol=0)
    assert ours.drafts.tokens > 1.1 * ours.drafts.passes


def test_prompts_of_one_token_have_a_context_too():
    policy, params = tiny("grouped"), dataclasses.replace(LOOPING, max_tokens=20)
    without, ours = (PagedSampler(policy, speculation=count).sample([[5], [6, 7]], 3, params) for count in (0, 2))
    assert_equal(ours, without, params)


def test_truncated_draws_go_without_drafts():
    policy, prompts, params = tiny("qwen3"), tiny_models.prompts(3), PARAMS["truncated"]
    without, ours = (PagedSampler(policy, speculation=count).sample(prompts, 3, params) for count in (0, 2))
    assert_equal(ours, without, params)
    assert supports_of(ours) == supports_of(without)
    assert ours.drafts is None


def test_a_second_call_draws_and_counts_the_same():
    """Which draft is tried does not depend on the order in which rows write to their group's table."""
    policy, prompts = tiny("qwen3"), tiny_models.prompts(2)
    sampler = PagedSampler(policy, rows=16, speculation=4)
    first, again = (sampler.sample(prompts, 8, LOOPING) for _ in range(2))
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.logprobs, again.logprobs)
    assert first.drafts == again.drafts


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("count", DRAFTS)
def test_bfloat16_draws_what_the_trainer_says_to_its_rounding(count):
    """Products of other shapes round otherwise, so tokens may differ from those without drafts; two calls may not."""
    policy = tiny("qwen3", dtype=torch.bfloat16)
    sampler, params = PagedSampler(policy, rows=48, speculation=count), SamplingParams(max_tokens=60)
    first, again = (sampler.sample(tiny_models.prompts(9), 8, params) for _ in range(2))
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.logprobs, again.logprobs)
    pack = p.pack(first.prompts, first.tokens, first.lengths, first.prompt)
    error = (first.logprobs - p.token_logprobs(policy, pack).logprobs).detach().abs()
    assert error.mean() < 0.03
    assert error.max() < 0.3


def test_steps_after_the_end_do_not_count():
    """Two rows of three steps: one goes on, one ends with its second token of the second step."""
    given, tried = np.array([[1, 2], [3, 3], [2, 1]]), np.array([[2, 2], [2, 2], [1, 2]])
    assert _counted(given, tried, np.array([10, 20]), np.array([16, 24])) == DraftCounts(10, 5, 9, 6)


def test_counts_of_parts_are_summed():
    policy, prompts = tiny(), tiny_models.prompts(2)
    parts = [PagedSampler(policy, speculation=2).sample(prompts, 2, LOOPING, step=i) for i in range(2)]
    whole = concatenate(parts)
    assert whole.drafts == DraftCounts(*(a + b for a, b in zip(*(part.drafts for part in parts), strict=True)))
    assert whole.select(torch.tensor([0])).drafts == whole.drafts
    counts = DraftCounts(tokens=30, passes=20, tried=40, accepted=10)
    assert counts.metrics() == {"rollout/tokens_per_pass": 1.5, "rollout/drafts_accepted": 0.25}
    assert set(DraftCounts().metrics().values()) == {0.0}


def test_a_steps_tokens_fit_into_the_one_block_that_rows_of_padding_have():
    assert paged.MOST_DRAFTS + 1 <= BLOCK


def test_too_many_drafts_and_too_many_tokens_are_refused():
    policy = tiny()
    for count in (-1, 9):
        with pytest.raises(ValueError, match=f"speculation = {count} must lie between 0 and 8"):
            PagedSampler(policy, speculation=count)
    policy.core.config.vocab_size = 1 << 20
    with pytest.raises(ValueError, match=r"at most 1,048,575 tokens.*speculation = 0"):
        StepBuffers(policy, blocks.Size(1, 1, 1, 1, 1, drafts=1))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--rollout.speculation", "9"], "rollout.speculation = 9: must be from 0 to 8"),
        (["--rollout.speculation", "-1"], "rollout.speculation = -1: must be from 0 to 8"),
        (["--rollout.speculation", "2", "--rollout.top_k", "20"], "must be 0 with rollout.top_k"),
        (["--rollout.speculation", "2", "--rollout.engine", "vllm"], "must be 0 with rollout.engine = vllm"),
    ],
)
def test_the_configuration_refuses_what_drafts_cannot_do(options, sentence):
    with pytest.raises(ConfigError) as refused:
        config.load(None, options)
    assert sentence in str(refused.value)


def test_other_samplers_go_without_and_say_so(caplog):
    policy = tiny_models.policy("grouped")
    assert isinstance(rollout.sampler(policy, speculation=2), NativeSampler)
    assert "speculation = 2" in caplog.text
    caplog.clear()
    rollout.sampler(policy)
    assert not caplog.text


def test_every_number_of_drafts_makes_its_own_buffers():
    policy, params = tiny(), SamplingParams(max_tokens=4)
    sampler = PagedSampler(policy)
    for sampler.speculation in (0, 1, 2):
        sampler.sample([[5, 6]], 2, params)
    assert [size.drafts for size in sampler._buffers] == [0, 1, 2]
    assert len({size.width for size in sampler._buffers}) == 3
    assert all(a != b for a, b in itertools.pairwise(sampler._buffers))

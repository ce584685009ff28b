import dataclasses
import itertools
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_samplers import PARAMS, assert_same, by_name, rounding, supports_of

from equipoise import policy as p
from equipoise.policy import decoder, logprobs
from equipoise.policy.layer import describe
from equipoise.rollout import (
    NativeSampler,
    PagedSampler,
    SamplingParams,
    TransformersSampler,
    blocks,
    paged,
    paged_cache,
    step_buffers,
)
from equipoise.rollout.blocks import BLOCK, WINDOW, Blocks, Scheduler, Size, Tables, blocks_for
from equipoise.rollout.paged import REPORTED, _Call, serves
from tests.policy import tiny_models

KINDS = list(tiny_models.LLAMA_LIKE)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def tiny(kind="grouped", **options):
    policy = tiny_models.policy(kind, **options)
    policy.model.to(DEVICE)
    return policy


def block_bytes(policy):
    return paged_cache.cache_shape(policy, 1).numel() * policy.dtype.itemsize


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *itertools.product(KINDS, ["plain", "greedy"]),
        *itertools.product(["qwen3", "gemma"], ["truncated", "min-p", "stops"]),
    ],
)
def test_draws_are_those_of_transformers(kind, name):
    policy, params = tiny(kind), PARAMS[name]
    prompts = tiny_models.prompts(4)
    ours = PagedSampler(policy).sample(prompts, 3, params)
    plain = TransformersSampler(policy).sample(prompts, 3, params)
    assert torch.equal(ours.tokens, plain.tokens)
    assert ours.finish == plain.finish
    assert torch.equal(ours.lengths, plain.lengths)
    same = (ours.logprobs - plain.logprobs).abs() < rounding(params)
    assert int(same.sum()) >= (0.98 if params.truncates else 1) * len(same)
    assert (ours.support is None) == (not params.truncates)
    if params.truncates:
        pairs = zip(supports_of(ours), supports_of(plain), strict=True)
        same = [a == b for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True)]
        assert sum(same) >= 0.98 * len(same)


@pytest.mark.parametrize("name", ["cool", "alike", "greedy", "one token"])
def test_draws_are_those_of_the_native_sampler(name):
    policy, prompts = tiny("qwen3"), tiny_models.prompts(9)
    ours, native = (make(policy).sample(prompts, 4, PARAMS[name]) for make in (PagedSampler, NativeSampler))
    assert torch.equal(ours.tokens, native.tokens)
    assert ours.finish == native.finish
    torch.testing.assert_close(ours.logprobs, native.logprobs, atol=rounding(PARAMS[name]), rtol=0)


@pytest.mark.parametrize("kind", ["gemma"] if DEVICE == "cpu" else KINDS)
def test_bfloat16_agrees_with_the_trainer_to_its_rounding(kind):
    policy = tiny(kind, dtype=torch.bfloat16)
    rollouts = PagedSampler(policy).sample(tiny_models.prompts(3), 3, SamplingParams(max_tokens=8))
    pack = p.pack(rollouts.prompts, rollouts.tokens, rollouts.lengths, rollouts.prompt)
    error = (rollouts.logprobs - p.token_logprobs(policy, pack).logprobs).detach().abs()
    assert error.mean() < 0.03
    assert error.max() < 0.3


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("listed", [40, pytest.param(100, marks=pytest.mark.slow)])
def test_supports_that_do_not_fit_are_drawn_again_in_fewer_steps(monkeypatch, listed):
    """`listed`: ids of a window's supports that there is room for; a step of 4 rows takes up to 36."""
    policy, params = tiny("grouped"), SamplingParams(max_tokens=16, top_k=9, seed=2)
    prompts = tiny_models.prompts(4)
    wanted = PagedSampler(policy, rows=4).sample(prompts, 3, params)
    monkeypatch.setattr(step_buffers, "LISTED", listed)
    steps, fewer = [], _Call._fewer
    monkeypatch.setattr(_Call, "_fewer", lambda call, n: steps.append(n) or fewer(call, n))
    got = PagedSampler(policy, rows=4).sample(prompts, 3, params)
    assert steps
    assert torch.equal(got.tokens, wanted.tokens)
    torch.testing.assert_close(got.logprobs, wanted.logprobs, atol=1e-5, rtol=0)
    assert supports_of(got) == supports_of(wanted)
    monkeypatch.setattr(step_buffers, "LISTED", 20)
    with pytest.raises(ValueError, match=r"keep \d+ tokens a draw on average, of \d responses.*set top_k"):
        PagedSampler(policy, rows=4).sample(prompts, 3, params)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("whole_head", [0, 1 << 12])
@pytest.mark.parametrize("name", ["truncated", "min-p"])
def test_supports_on_the_gpu_are_those_of_the_trainers_ratios(monkeypatch, name, whole_head, dtype):
    """Graphs with padding rows, several windows, responses of many lengths; called twice, so graphs are replayed."""
    monkeypatch.setattr(logprobs, "WHOLE_HEAD", whole_head)
    policy, params = tiny("qwen3", dtype=dtype), dataclasses.replace(PARAMS[name], max_tokens=60)
    maker = PagedSampler(policy, rows=48)
    first, again = (maker.sample(tiny_models.prompts(9), 8, params) for _ in range(2))
    assert torch.equal(first.tokens, again.tokens)
    assert supports_of(first) == supports_of(again)
    drawn = zip(first.tokens.tolist(), (ids for response in supports_of(first) for ids in response), strict=True)
    assert all(token in ids for token, ids in drawn)
    pack = p.pack(first.prompts, first.tokens, first.lengths, first.prompt)
    trained = p.token_logprobs(policy, pack, temperature=params.temperature, support=first.support)
    error = (first.logprobs - trained.logprobs).detach().abs()
    assert error.mean() < (1e-5 if dtype == torch.float32 else 0.03)
    trained.logprobs.sum().backward()
    twice = [q.grad.clone() for q in policy.parameters()]
    policy.model.zero_grad()
    p.token_logprobs(policy, pack, temperature=params.temperature, support=first.support).logprobs.sum().backward()
    assert all(torch.equal(a, q.grad) for a, q in zip(twice, policy.parameters(), strict=True))


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 8 tokens and windows of 4 steps, so that tiny responses take many. The GPU keeps its own size."""
    if DEVICE == "cpu":
        for module in (blocks, step_buffers, paged, paged_cache):
            monkeypatch.setattr(module, "BLOCK", 8)
        for module in (blocks, step_buffers, paged):
            monkeypatch.setattr(module, "WINDOW", 4)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("rows", "spare"),
    [
        pytest.param(3, 0, marks=pytest.mark.slow),
        (5, 3),
        pytest.param(16, 12, marks=pytest.mark.long),
        (64, 1000),
    ],
)
def test_rows_and_memory_change_nothing(rows, spare, monkeypatch):
    """`spare`: blocks beyond the least that will do; with few of them rows are sent back and done again."""
    policy = tiny("grouped")
    prompts = tiny_models.prompts(7)
    names = [f"prompt {i}" for i in range(7)]
    params = SamplingParams(max_tokens=24, seed=5)
    wanted = by_name(NativeSampler(policy).sample(prompts, 3, params, keys=names, step=2), names, 3)
    sent_back, original = [], Scheduler._send_back
    monkeypatch.setattr(Scheduler, "_send_back", lambda self, row: sent_back.append(row) or original(self, row))
    longest = blocks.blocks_for(max(map(len, prompts))) + blocks.blocks_for(24 - 1)
    memory = (1 + int(longest) + spare) * block_bytes(policy)
    ours = PagedSampler(policy, rows=rows, memory=memory).sample(prompts, 3, params, keys=names, step=2)
    assert_same(by_name(ours, names, 3), wanted)
    if DEVICE == "cpu":
        assert bool(sent_back) == (spare < 1000)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("buckets", [pytest.param((64,), marks=pytest.mark.long), (1, 36), (5, 11, 20, 64)])
def test_batch_sizes_change_nothing(buckets, monkeypatch):
    policy, prompts, params = tiny("qwen2"), tiny_models.prompts(9), SamplingParams(max_tokens=30, seed=5)
    wanted = PagedSampler(policy).sample(prompts, 4, params)
    monkeypatch.setattr(paged, "BUCKETS", buckets)
    got = PagedSampler(policy, rows=min(36, buckets[-1])).sample(prompts, 4, params)
    assert torch.equal(got.tokens, wanted.tokens)
    torch.testing.assert_close(got.logprobs, wanted.logprobs, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("small_blocks")
def test_prompts_longer_than_a_block_and_chunks_of_prompts(monkeypatch):
    policy = tiny("mistral")
    prompts = tiny_models.prompts(7, shortest=60, longest=70)
    params = SamplingParams(max_tokens=40)
    wanted = by_name(NativeSampler(policy).sample(prompts, 3, params), range(7), 3)
    for tokens in (1, 140):
        monkeypatch.setattr(paged, "PREFILL", tokens)
        assert_same(by_name(PagedSampler(policy).sample(prompts, 3, params), range(7), 3), wanted)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("speculation", [0, pytest.param(2, marks=pytest.mark.long)])
def test_one_sampler_serves_many_requests(speculation):
    """The buffers and graphs of a call serve the next one: other prompts, sizes, parameters and weights."""
    policy = tiny("grouped")
    ours = PagedSampler(policy, speculation=speculation)
    requests = [(6, 3, 40, 1.0), (6, 3, 40, 1.0), (2, 5, 70, 0.7), (6, 3, 40, 1.0), (1, 1, 5, 1.0)]
    for i, (count, n, length, temperature) in enumerate(requests):
        prompts = tiny_models.prompts(count, seed=i)
        params = SamplingParams(max_tokens=length, temperature=temperature, seed=i)
        got, plain = ours.sample(prompts, n, params, step=i), NativeSampler(policy).sample(prompts, n, params, step=i)
        assert_same(by_name(got, range(count), n), by_name(plain, range(count), n))
        with torch.no_grad():
            for q in policy.parameters():
                q.add_(0.02 * torch.randn_like(q))


def test_a_cache_that_has_moved_changes_no_draw(monkeypatch):
    """On CUDA the graphs of the step are captured again, several times in the memory of the ones before."""
    sampler, prompts = PagedSampler(tiny()), tiny_models.prompts(4)
    first = sampler.sample(prompts, 3, PARAMS["plain"])
    anchor, moves = step_buffers.StepBuffers.anchor, itertools.count(1)
    monkeypatch.setattr(
        step_buffers.StepBuffers, "anchor", lambda self, addresses: anchor(self, (next(moves), *addresses))
    )
    for _ in range(3):
        again = sampler.sample(prompts, 3, PARAMS["plain"])
        assert torch.equal(again.tokens, first.tokens)
        assert torch.equal(again.logprobs, first.logprobs)
    assert next(moves) == 4


def test_weights_that_may_not_move_are_copied_at_every_call():
    policy = tiny("qwen2")
    for layer in policy.core.model.layers:
        setattr(layer, decoder.THROUGH, None)  # as train.shard leaves it when all weights are gathered
    where = [q.data_ptr() for q in policy.model.parameters()]
    ours = PagedSampler(policy)
    prompts, params = tiny_models.prompts(3), SamplingParams(max_tokens=12)
    for _ in range(2):
        got, plain = ours.sample(prompts, 2, params), NativeSampler(policy).sample(prompts, 2, params)
        assert_same(by_name(got, range(3), 2), by_name(plain, range(3), 2))
        with torch.no_grad():
            for q in policy.parameters():
                q.add_(0.05 * torch.randn_like(q))
    assert [q.data_ptr() for q in policy.model.parameters()] == where


def test_lora_is_sampled_with_its_adapter(tmp_path):
    p.save(tiny_models.policy("qwen2"), tmp_path)
    policy = p.load(tmp_path, lora=p.Lora(rank=4, targets=("q_proj", "down_proj")), device=DEVICE)
    ours = PagedSampler(policy)
    prompts, params = tiny_models.prompts(4), SamplingParams(max_tokens=20)
    for _ in range(2):
        with torch.no_grad():
            for q in policy.parameters():
                q.add_(0.05 * torch.randn_like(q))
        got, plain = ours.sample(prompts, 2, params), TransformersSampler(policy).sample(prompts, 2, params)
        assert_same(by_name(got, range(4), 2), by_name(plain, range(4), 2))


def test_each_response_is_told_once_and_before_the_end():
    policy = tiny("grouped")
    prompts, told, together = tiny_models.prompts(9), [], []

    def finished(rows, tokens, lengths):
        together.append(len(rows))
        told.extend(zip(rows, (t.tolist() for t in tokens.split(lengths.tolist())), strict=True))

    rollouts = PagedSampler(policy, rows=8).sample(prompts, 4, SamplingParams(max_tokens=60), finished=finished)
    assert sorted(r for r, _ in told) == list(range(36))
    assert [r for r, _ in told] != list(range(36))
    tokens = rollouts.tokens.split(rollouts.lengths.tolist())
    assert all(tokens[r].tolist() == t for r, t in told)
    assert 1 < max(together) < 36


def test_telling_stops_where_the_device_waits():
    call = object.__new__(_Call)
    told, count = [], 3 * REPORTED + 1
    call.asked = SimpleNamespace(finished=lambda rows, tokens, lengths: told.append((rows, tokens.tolist())))
    call.tokens, call.lengths = np.arange(2 * count).reshape(count, 2), np.full(count, 2)
    call.unreported = deque(range(count))
    call._report(lambda: len(told) == 2)
    assert [len(rows) for rows, _ in told] == [REPORTED, REPORTED]
    call._report(lambda: False)
    assert [row for rows, _ in told for row in rows] == list(range(count))
    assert [token for _, tokens in told for token in tokens] == list(range(2 * count))


@pytest.mark.parametrize("speculation", [0, 2])
@pytest.mark.parametrize("token", ["of a prompt", "drawn"])
def test_what_is_no_number_ends_the_call_where_a_response_has_it(token, speculation):
    """A token whose embedding is NaN: in the cache of one prompt, or fed back in the middle of a window."""
    policy, params = tiny("qwen3"), SamplingParams(max_tokens=40, seed=3)
    prompts = [[5, 6], [7, 8, 9], [6, 5]]
    plain = PagedSampler(policy).sample(prompts, 3, params)
    bad = 9 if token == "of a prompt" else int(plain.tokens[int(plain.lengths[0]) // 2])
    with torch.no_grad():
        policy.core.get_input_embeddings().weight[bad] = float("nan")
    told = []
    with pytest.raises(p.ModelError, match=r"its log-probabilities are NaN: a weight is not finite, or too large"):
        PagedSampler(policy, speculation=speculation).sample(prompts, 3, params, finished=lambda *a: told.append(a))
    assert not told or token == "drawn"


@pytest.mark.parametrize("speculation", [0, 2])
def test_what_rows_draw_behind_their_end_may_be_no_number(speculation):
    """They are fed their end token until the window is over; 9 rows have 7 of padding beside them."""
    policy, params = tiny("qwen3"), SamplingParams(max_tokens=40, seed=3)
    prompts = [[5, 6], [7, 8, 9], [6, 5]]
    policy.__dict__["eos"] = (11,)
    wanted = PagedSampler(policy).sample(prompts, 3, params)
    assert "stop" in wanted.finish
    with torch.no_grad():
        policy.core.get_input_embeddings().weight[11] = float("nan")
    got = PagedSampler(policy, speculation=speculation).sample(prompts, 3, params)
    assert torch.equal(got.tokens, wanted.tokens)
    torch.testing.assert_close(got.logprobs, wanted.logprobs, atol=1e-5, rtol=0)


def test_a_response_stops_where_the_context_ends():
    policy = tiny("llama")
    policy.core.generation_config.eos_token_id = None
    policy.__dict__["eos"] = ()
    rollouts = PagedSampler(policy).sample([[5] * 120, [5] * 3], 2, SamplingParams(max_tokens=20))
    assert rollouts.lengths.tolist() == [8, 8, 20, 20]
    assert rollouts.finish == ["length"] * 4


@pytest.mark.parametrize(
    ("head_dim", "dtype", "wanted"),
    [(64, torch.bfloat16, True), (64, torch.float32, True), (80, torch.bfloat16, False), (64, torch.float16, False)],
)
def test_what_the_kernels_cannot_do_is_left_to_the_native_sampler(head_dim, dtype, wanted):
    policy = tiny_models.policy("grouped", dtype=dtype)
    policy.core.model.layers[0].self_attn.head_dim = head_dim
    assert serves(policy) == wanted


@pytest.mark.parametrize(("memory", "wanted"), [(99 << 10, False), (163 << 10, True)])
def test_wide_heads_in_float32_are_left_to_it_on_small_cards(memory, wanted, monkeypatch):
    monkeypatch.setattr(paged, "shared_memory", lambda device: memory)
    policy = tiny_models.policy("grouped")
    policy.core.model.layers[0].self_attn.head_dim = 256
    assert serves(policy) == wanted


def test_too_little_memory_is_refused():
    policy = tiny("llama")
    with pytest.raises(ValueError, match="needs 4"):
        PagedSampler(policy, memory=3 * block_bytes(policy)).sample([[5] * 20], 2, SamplingParams(max_tokens=100))
    with pytest.raises(ValueError, match="rows = 5000"):
        PagedSampler(policy, rows=5000)


def scheduler(rows, places, prompt_length, limit, blocks):
    most, n = int(blocks_for(max(limit) + WINDOW)), len(limit) // len(prompt_length)
    size = Size(rows, most, places, int(blocks_for(max(prompt_length))), n)
    small = np.zeros(sum(int(np.prod(s)) for s in size.shapes), dtype=np.int32)
    tables = Tables(size, small, np.zeros(2 * rows, dtype=np.int64))
    return Scheduler(tables, Blocks(blocks), prompt_length, limit)


@pytest.mark.parametrize("seed", range(20))
def test_no_block_has_two_owners_and_none_is_lost(seed):
    rng = np.random.default_rng(seed)
    n, rows, places = (int(rng.integers(1, high)) for high in (5, 12, 8))
    prompt_length = rng.integers(1, 3 * BLOCK, 10)
    limit = rng.integers(2, 4 * BLOCK, 10 * n)
    least = 1 + int((blocks_for(prompt_length).repeat(n) + blocks_for(limit - 1)).max())
    count = least + int(rng.integers(0, 30))
    book = scheduler(rows, places, prompt_length, limit, count)
    done, rounds = set(), itertools.count()
    while book.count or book.queue:
        assert next(rounds) < 10_000
        old = book.count
        for prompt in book.admit():
            assert book.place[prompt] >= 0
        book.drawn[old : book.count] = 1
        book.grow(WINDOW)
        book.fill_in(rows)
        t = book.tables
        held = [t.table[i, : book.held[i]] for i in range(book.count)]
        held += [
            t.prompt_table[i, : int(blocks_for(int(prompt_length[o])))] for i, o in enumerate(book.owner) if o >= 0
        ]
        free = book.blocks._stack[: book.blocks.left]
        assert sorted(np.concatenate([free, *held])) == list(range(1, count))
        for row in range(book.count):
            assert book.held[row] * BLOCK >= min(book.drawn[row] - 1 + WINDOW, limit[book.response[row]] - 1)
            assert not t.table[row, book.held[row] :].any()
            assert book.owner[t.prompt[row]] == book.response[row] // n
            assert t.prompt_length[t.prompt[row]] == prompt_length[book.response[row] // n]
        members = t.members[t.members >= 0]
        assert sorted(members) == list(range(book.count))
        assert not t.table[book.count :, 0].any()
        assert not t.length[book.count :].any()
        book.drawn[: book.count] += WINDOW
        gone = book.drawn[: book.count] >= limit[book.response[: book.count]]
        finished = book.response[: book.count][gone].tolist()
        assert not done & set(finished)
        done |= set(finished)
        book.drop(gone)
    assert done == set(range(10 * n))
    assert book.blocks.left == count - 1


def test_windows_reach_the_kernels():
    policy = tiny("mistral")
    assert [layer.window for layer in describe(policy.core).layers] == [7, 7]
    prompts, params = tiny_models.prompts(3), SamplingParams(max_tokens=30)
    near = PagedSampler(policy).sample(prompts, 2, params)
    policy.core.config.sliding_window = None
    assert not torch.equal(near.tokens, PagedSampler(policy).sample(prompts, 2, params).tokens)

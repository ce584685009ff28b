"""The kernels of drafts: the look-up and what is kept of it against dictionaries, several queries of a row against one
at a time, the reference and Triton alike. Without CUDA the Triton kernels run in its interpreter (TRITON_INTERPRET=1).
"""

import random

import pytest
import torch

from equipoise.kernels import plain_decode, plain_drafts
from equipoise.kernels.decode import LONGEST, DecodeRows, Memory, StepRecord
from equipoise.kernels.plain_drafts import SHORTEST, remember_prompts, slots_for
from tests.kernels.test_decode import DEVICE, Case, assert_near, kernel, needs_cuda, needs_triton

__all__ = ["kernel"]  # the fixture
BLOCK, STEPS, SLOTS = 8, 6, 1 << 19


@pytest.fixture(params=["reference", pytest.param("triton", marks=needs_triton)])
def drafts(request):
    if request.param == "reference":
        return plain_drafts
    from equipoise.kernels import triton_drafts

    return triton_drafts


def memory(groups, slots=SLOTS):
    entries = torch.zeros(groups, slots, dtype=torch.int64, device=DEVICE)
    return Memory(entries, torch.zeros(1, dtype=torch.int64, device=DEVICE))


class Index:
    """A group's table as a dictionary, without slots and tags: what followed a context at the latest time, and of
    several at one time the largest."""

    def __init__(self):
        self.found = {}

    def add(self, context, token, time):
        for n in range(SHORTEST, LONGEST + 1):
            key = tuple(context[-n:])
            self.found[key] = max(self.found.get(key, (-1, -1)), (time, token))

    def draft(self, context, count):
        out = [context[-1]]
        for _ in range(count):
            known = [self.found.get(tuple(context[-n:])) for n in range(LONGEST, SHORTEST - 1, -1)]
            token = next((entry[1] for entry in known if entry), -1)
            out += [token] if token >= 0 else [-1] * (count + 1 - len(out))
            if token < 0:
                break
            context = [*context, token]
        return out


def add_prompts(index, store, prompts):
    for place, prompt in enumerate(prompts):
        padded = [-1] * LONGEST + prompt
        for i in range(1, len(prompt)):
            index[place].add(padded[i : i + LONGEST], prompt[i], 0)
    flat = torch.tensor([t for prompt in prompts for t in prompt], device=DEVICE)
    positions = torch.tensor([i for prompt in prompts for i in range(len(prompt))], device=DEVICE)
    places = torch.tensor([place for place, prompt in enumerate(prompts) for _ in prompt], device=DEVICE)
    remember_prompts(store, flat, positions, places)


def texts(count, length, vocabulary, seed):
    chance = random.Random(seed)
    return [[chance.randrange(vocabulary) for _ in range(chance.randint(1, length))] for _ in range(count)]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_draft_is_what_followed_the_longest_context_last(drafts, count):
    prompts = texts(3, 60, 4, seed=count)
    store, index = memory(3), [Index() for _ in prompts]
    add_prompts(index, store, prompts)
    places = [i % 3 for i in range(40)]
    recent = [[-1, *prompts[0]][:LONGEST]] + [
        random.Random(i).choices(range(4), k=LONGEST) for i in range(1, len(places))
    ]
    recent = [([-1] * LONGEST + r)[-LONGEST:] for r in recent]
    got = drafts.draft(
        store, torch.tensor(places, dtype=torch.int32, device=DEVICE), torch.tensor(recent, device=DEVICE), count
    )
    wanted = [index[place].draft(r, count) for place, r in zip(places, recent, strict=True)]
    assert got.tolist() == wanted
    assert any(-1 in row for row in wanted)
    assert any(row[-1] >= 0 for row in wanted)


@pytest.mark.parametrize(("width", "with_memory"), [(1, False), (2, True), (3, True), (5, True)])
def test_what_is_right_is_kept_and_remembered(drafts, width, with_memory):
    """Several steps of rows that draw at random from few tokens; one row pads, one comes to the end of its blocks."""
    chance = random.Random(width)
    R, wide, reach = 7, 9, LONGEST if with_memory else 1  # rows of the step, and of the buffers
    most = 2 + STEPS * width // BLOCK + 1
    table = torch.arange(1, wide * most + 1).view(wide, most)
    table[5] = 0  # padding
    table[6, 1:] = 0  # at its limit
    length = [3, 7, 0, 8, 5, 0, 6, 0, 0]
    prompt = [r % 2 for r in range(wide)]
    recent = [[chance.randrange(3) for _ in range(reach)] for _ in range(wide)]
    fields = table, torch.tensor(length), torch.tensor(prompt), torch.ones(2, 1), torch.ones(2), torch.ones(2, 4)
    rows = DecodeRows(*(x.int().to(DEVICE) for x in fields))
    rows = DecodeRows(*(x[:R] for x in rows[:3]), *rows[3:])
    store, index = (memory(2), [Index(), Index()]) if with_memory else (None, None)
    shape = STEPS * width, wide
    record = StepRecord(
        torch.zeros(1, dtype=torch.int64, device=DEVICE),
        torch.tensor(recent, device=DEVICE),
        torch.zeros(wide, dtype=torch.int32, device=DEVICE),
        torch.full(shape, -7, device=DEVICE),
        torch.full(shape, 7.0, device=DEVICE),
        torch.zeros(2, STEPS, wide, dtype=torch.int32, device=DEVICE),
    )
    written = [[] for _ in range(R)]
    for step in range(STEPS):
        if with_memory:
            tokens = drafts.draft(store, rows.prompt, record.recent[:R], width - 1)
            assert tokens.tolist() == [index[prompt[r]].draft(recent[r], width - 1) for r in range(R)]
        else:
            tokens = record.recent[:R]
        drawn = torch.tensor([[chance.randrange(3) for _ in range(width)] for _ in range(R)], device=DEVICE)
        logprobs = -torch.rand(R, width, device=DEVICE)
        drafts.accept(drawn.flatten(), logprobs.flatten(), tokens, rows, BLOCK, record, store)
        new, tried = [], []
        for r in range(R):
            kept = 0
            for j in range(width):
                in_block = table[r, (length[r] + j) // BLOCK] > 0
                if not in_block or (j > 0 and tokens[r, j] != drawn[r, j - 1]):
                    break
                kept += 1
            new.append(kept)
            tried.append(int((tokens[r, 1:] >= 0).sum()))
            for j in range(kept):
                token = int(drawn[r, j])
                if with_memory:
                    index[prompt[r]].add(recent[r], token, step)
                recent[r] = [*recent[r], token][-reach:]
                written[r].append((token, float(logprobs[r, j])))
            length[r] += kept
        assert record.passes[:, step, :R].tolist() == [new, tried]
        assert rows.length.tolist() == length[:R]
        assert record.recent.tolist() == recent
        record.at.add_(1)
        if with_memory:
            store.clock.add_(1)
    assert record.advanced.tolist() == [len(w) for w in written] + [0, 0]
    for r, text in enumerate(written):
        assert record.tokens[: len(text), r].tolist() == [token for token, _ in text]
        assert record.logprobs[: len(text), r].tolist() == [logprob for _, logprob in text]
    assert len(written[5]) == 0
    assert len(written[6]) == 2
    assert width == 1 or max(map(len, written)) > STEPS  # some drafts were right


@needs_triton
def test_both_look_up_the_same_where_contexts_push_each_other_out():
    """Few slots: most contexts have lost theirs to another."""
    from equipoise.kernels import triton_drafts

    store = memory(2, slots=32)
    prompts = texts(2, 400, 12, seed=9)
    add_prompts([Index(), Index()], store, prompts)
    recent = torch.tensor([p[i : i + LONGEST] for p in prompts for i in range(150)], device=DEVICE)
    place = torch.arange(2, dtype=torch.int32, device=DEVICE).repeat_interleave(150)
    one, other = (module.draft(store, place, recent, 3) for module in (plain_drafts, triton_drafts))
    assert torch.equal(one, other)
    assert (one[:, 1] < 0).any()
    assert (one[:, 1] >= 0).any()


def test_slots_are_a_bounded_power_of_two():
    assert [slots_for(n) for n in (1, 2, 100, 10**9)] == [4, 8, 512, plain_drafts.MOST_SLOTS]


@pytest.mark.parametrize(
    ("width", "heads", "kv_heads", "window", "splits", "dtype"),
    [
        (2, 6, 2, None, 1, torch.bfloat16),
        (3, 6, 2, None, 3, torch.bfloat16),
        (5, 3, 3, None, 1, torch.float32),
        (5, 9, 3, 70, 3, torch.bfloat16),
        (3, 6, 2, 2, 4, torch.float32),
        pytest.param(5, 12, 2, None, 16, torch.bfloat16, marks=pytest.mark.slow),
        pytest.param(9, 6, 1, 5, 1, torch.float32, marks=pytest.mark.slow),
    ],
)
def test_several_queries_of_a_row_are_those_of_one_at_a_time(kernel, width, heads, kv_heads, window, splits, dtype):
    """Rows at ends of blocks and before; keys behind the last query are NaN."""
    base, prompt = [0, 62, 63, 64, 130, 1, 0, 59], [0, 1, 0, 1, 2, 1, -1, 0]
    lengths = [b + width - 1 for b in base]
    c = Case(lengths, prompt, [5, 64, 130], heads=heads, kv_heads=kv_heads, D=32, dtype=dtype)
    rows = c.rows._replace(length=torch.tensor(base, dtype=torch.int32, device=DEVICE))
    generator = torch.Generator().manual_seed(1)
    qkv = torch.randn(len(base), width, heads + 2 * kv_heads, 32, generator=generator).to(dtype).to(DEVICE)
    cache = c.keys.clone(), c.values.clone()
    q = kernel.store(qkv.flatten(0, 1), *cache, rows, c.rope, None, None)
    got = kernel.attend(q, *cache, rows, 0.3, None, window, splits)
    got, q, real = got.unflatten(0, (-1, width)), q.unflatten(0, (-1, width)), c.real()
    for j in range(width):
        c.lengths = [b + j for b in base]
        step = rows._replace(length=rows.length + j)
        one = plain_decode.store(qkv[:, j].contiguous(), c.keys, c.values, step, c.rope, None, None)
        torch.testing.assert_close(q[:, j], one, rtol=2**-7, atol=2**-7)
        wanted = c.attended_by_hand(one, 0.3, None, window)
        assert_near(got[real, j], wanted[real], dtype)
    for ours, theirs in zip(cache, (c.keys, c.values), strict=True):
        torch.testing.assert_close(ours[1:], theirs[1:], rtol=2**-7, atol=2**-7, equal_nan=True)


@pytest.mark.parametrize(("n", "width"), [(23, 3), (5, 5)])
def test_several_queries_over_groups(kernel, n, width):
    """Groups that fill several tiles of queries."""
    base, prompt = [(7 * r) % 70 for r in range(2 * n)], [r % 2 for r in range(2 * n)]
    lengths = [b + width - 1 for b in base]
    c = Case(lengths, prompt, [128, 33], heads=6, kv_heads=2, D=32, dtype=torch.bfloat16, holes=n)
    rows = c.rows._replace(length=torch.tensor(base, dtype=torch.int32, device=DEVICE))
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2 * n, width, 6, 32, generator=generator).bfloat16().to(DEVICE)
    c.keys[1:], c.values[1:] = (torch.where(x.isnan(), 0.0, x)[1:] for x in (c.keys, c.values))
    got = kernel.attend(q.flatten(0, 1), c.keys, c.values, rows, 0.2, None, None, 1).unflatten(0, (-1, width))
    for j in range(width):
        c.lengths = [b + j for b in base]
        assert_near(got[:, j], c.attended_by_hand(q[:, j], 0.2, None, None), torch.bfloat16)


@needs_cuda
def test_a_graph_of_look_ups_never_waits_and_gives_the_same_twice():
    from equipoise.kernels import triton_drafts

    store, index = memory(2), [Index(), Index()]
    add_prompts(index, store, texts(2, 300, 5, seed=3))
    recent = torch.randint(0, 5, (64, LONGEST), device=DEVICE)
    place = torch.arange(64, dtype=torch.int32, device=DEVICE) % 2
    wanted = triton_drafts.draft(store, place, recent, 4)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = triton_drafts.draft(store, place, recent, 4)
    graph.replay()
    assert torch.equal(out, wanted)

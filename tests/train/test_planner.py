"""Micro-batches by tokens, the plan for them, and what happens when memory runs out all the same."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise import policy as models
from equipoise.config import TrainConfig
from equipoise.train import ConfigError, RunError, Trainer, planner
from equipoise.train.micro import cuts

from .test_split import OBJECTIVES, ROUNDING, SPLIT, assert_same_curve, distance, weights
from .tiny import settings

GROUPS = st.lists(
    st.tuples(st.integers(1, 20), st.lists(st.integers(1, 30), min_size=1, max_size=6)), min_size=1, max_size=6
)


def tokens_of(group, prompt, length, rows):
    """Prompts once each, and the responses."""
    return sum(dict(zip(group[rows].tolist(), prompt[rows].tolist(), strict=True)).values()) + int(length[rows].sum())


@given(groups=GROUPS, responses=st.integers(0, 8), tokens=st.integers(0, 120), whole=st.booleans())
def test_cuts_keep_to_their_limits_and_groups_together(groups, responses, tokens, whole):
    group = torch.tensor([i for i, (_, own) in enumerate(groups) for _ in own])
    prompt = torch.tensor([p for p, own in groups for _ in own])
    length = torch.tensor([n for _, own in groups for n in own])
    found = cuts(group, prompt, length, responses, tokens, whole)
    assert found == sorted(set(found))
    parts = [slice(a, b) for a, b in zip([0, *found], [*found, len(group)], strict=True)]
    assert all(p.stop > p.start for p in parts)
    for part in parts:
        split = not whole and len(group[part].unique()) == 1
        one = part.stop - part.start == 1 if split else len(group[part].unique()) == 1
        if tokens and not one:
            assert tokens_of(group, prompt, length, part) <= tokens
        if responses and not whole:
            assert part.stop - part.start <= responses
    for cut in found:
        inside = bool(group[cut] == group[cut - 1])
        if inside:
            assert not whole
        if inside and tokens:  # only a group too large for one pass is taken apart
            rows = (group == group[cut]).nonzero()[:, 0]
            too_long = tokens_of(group, prompt, length, rows) > tokens
            assert too_long or 0 < responses < len(rows)
    if not responses and not tokens:
        assert found == []
    if tokens and not responses:
        largest = max(tokens_of(group, prompt, length, part) for part in parts)
        assert (len(parts), largest) == fewest_and_most_even(group, prompt, length, tokens, whole)


def fewest_and_most_even(group, prompt, length, tokens, whole):
    """By trying all cuts: how few parts there can be and, of that many, how small the largest."""
    places, n = [0], len(group)
    for i in range(1, n):
        inside = bool(group[i] == group[i - 1])
        fits = tokens_of(group, prompt, length, (group == group[i]).nonzero()[:, 0]) <= tokens
        if not inside or not (whole or fits):
            places.append(i)
    best = {n: (0, 0)}
    for begin in reversed(places):
        ends = [*(p for p in places if p > begin), n]
        for k, end in enumerate(ends):
            size = tokens_of(group, prompt, length, slice(begin, end))
            if k == 0 or size <= tokens:
                count, largest = best[end]
                best[begin] = min(best.get(begin, (n + 1, 0)), (count + 1, max(largest, size)))
    return best[0]


# two whole runs each: by default those whose groups may be cut and may not be
BUDGETED = [
    pytest.param(name, marks=() if name in ("dapo+balanced+hadw", "dfpo") else pytest.mark.long) for name in OBJECTIVES
]


@pytest.mark.parametrize("name", BUDGETED)
def test_a_budget_of_tokens_changes_nothing(model, tmp_path, name):
    for tokens in (0, 40):
        options = SPLIT | OBJECTIVES[name] | {"log__terminal": False, "train__micro_tokens": tokens}
        trainer = Trainer(settings(model, tmp_path / str(tokens), **options))
        passes = []
        loss = trainer.updater._loss
        trainer.updater._loss = lambda share, part, credit, loss=loss, passes=passes: (
            passes.append(len(share.parts)) or loss(share, part, credit)
        )
        trainer.run()
        assert (max(passes) > 1) == (tokens > 0)
    assert_same_curve(tmp_path / "40", tmp_path / "0")
    assert distance(weights(tmp_path / "40"), weights(tmp_path / "0")) < ROUNDING


class Limited:
    """A device that holds passes of at most so many tokens: fewer without gradient checkpointing than with."""

    def __init__(self, monkeypatch, trainer, limit, checkpointed=None, *, in_backward=False):
        self.trainer, self.limit, self.checkpointed = trainer, limit, checkpointed or limit
        self.said, self.failed, self.in_backward = [], 0, in_backward
        self.loss = models.token_loss
        monkeypatch.setattr(models, "token_loss", self.token_loss)
        monkeypatch.setattr(
            type(trainer.updater), "say", property(lambda t: self.said.append, lambda t, f: None), raising=False
        )

    def token_loss(self, policy, packed, *args, **more):
        most = self.checkpointed if policy.gradient_checkpointing else self.limit
        if len(packed.inputs) <= most:
            return self.loss(policy, packed, *args, **more)
        self.failed += 1
        if self.in_backward:
            output = self.loss(policy, packed, *args, **more)
            output.loss.backward()  # leaves gradients behind, as a backward pass that stops half-way does
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


@pytest.mark.parametrize("in_backward", [pytest.param(False, marks=pytest.mark.long), True])
def test_memory_that_runs_out_halves_the_passes_and_changes_nothing(model, tmp_path, monkeypatch, in_backward):
    options = SPLIT | OBJECTIVES["dapo+balanced+hadw"] | {"log__terminal": False}
    Trainer(settings(model, tmp_path / "whole", **options)).run()
    trainer = Trainer(settings(model, tmp_path / "short", **options))
    device = Limited(monkeypatch, trainer, 50, in_backward=in_backward)
    trainer.run()
    assert 0 < device.failed < 6  # it remembers
    assert f"going on with {trainer.updater.plan.tokens:,}" in device.said[-1]
    assert trainer.updater.plan.tokens <= 50
    assert_same_curve(tmp_path / "short", tmp_path / "whole")
    assert distance(weights(tmp_path / "short"), weights(tmp_path / "whole")) < ROUNDING


def test_what_cannot_be_cut_is_checkpointed_and_then_given_up(model, tmp_path, monkeypatch):
    options = {"log__terminal": False, "objective__entropy_bonus": 1e-9, "eval__every": 0, "train__steps": 1}
    trainer = Trainer(settings(model, tmp_path / "a", **options))
    device = Limited(monkeypatch, trainer, 5, checkpointed=100)
    trainer.run()
    assert trainer.policy.gradient_checkpointing
    assert "which cannot be cut; going on with gradient checkpointing" in device.said[-1]
    monkeypatch.undo()
    trainer = Trainer(settings(model, tmp_path / "b", **options))
    Limited(monkeypatch, trainer, 5)
    with pytest.raises(RunError, match=r"CUDA out of memory: \d+ tokens in one piece do not fit, even with gradient"):
        trainer.run()


def test_a_resumed_run_keeps_the_plan(model, tmp_path, monkeypatch):
    options = {"log__terminal": False, "train__checkpoint_every": 1, "train__steps": 1, "eval__every": 0}
    trainer = Trainer(settings(model, tmp_path / "run", **options))
    Limited(monkeypatch, trainer, 60, checkpointed=80)
    trainer.run()
    again = Trainer(settings(model, tmp_path / "run", **options | {"train__steps": 2}), resume=True)
    assert again.updater.plan.tokens == trainer.updater.plan.tokens > 0
    assert again.policy.gradient_checkpointing == trainer.policy.gradient_checkpointing


def test_the_cost_of_a_pass_is_what_autograd_keeps(model):
    policy = models.load(model)
    cost = planner._cpu_cost(policy)
    config = policy.core.config
    # Of a token, every layer keeps at least its input, queries, keys and values, their outputs, and both halves of the
    # gate; and autograd does not keep ten times that.
    d, f = config.hidden_size, config.intermediate_size
    least = 4 * config.num_hidden_layers * (d + 3 * d + d + 2 * f)
    assert least < cost.per_token < 10 * least
    parameters = 4 * sum(p.numel() for p in policy.parameters())
    assert parameters <= cost.always < parameters + 2**20


def planned(policy, monkeypatch, free, **more):
    monkeypatch.setattr(planner, "_available", lambda: free)
    monkeypatch.setattr(planner, "_resident", lambda: 10**9)
    asked = {"total": 10_000, "largest": 100, "cap": None, "to_come": 0, "clear": lambda: None} | more
    return planner.plan(policy, **asked)


def test_on_the_cpu_all_at_once_if_it_fits(model, monkeypatch):
    policy = models.load(model)
    assert planned(policy, monkeypatch, math.inf) == planner.Plan(0, False, "")
    assert planned(policy, monkeypatch, 2**34) == planner.Plan(0, False, "")
    cost = planner._cpu_cost(policy)
    free = int((cost.always + 5000 * cost.per_token) / planner.MARGIN)
    half = planned(policy, monkeypatch, free)
    assert half.tokens == pytest.approx(5000, abs=1)
    assert half.said.startswith(f"memory: {half.tokens:,} tokens a pass (")
    assert "GiB free" in half.said
    less = planned(policy, monkeypatch, free, to_come=free // 4)  # the optimizer's moments are still to come
    assert 0 < less.tokens < 0.8 * half.tokens
    capped = planned(policy, monkeypatch, 2**34, cap=10**9 + free)
    assert capped.tokens == half.tokens
    assert "left of train.memory" in capped.said
    least = planned(policy, monkeypatch, 2**14)  # no reason to give up before trying
    assert least.tokens == 1
    assert "a piece of 100 tokens, which is not cut, will take more" in least.said


def test_a_line_through_two_peaks():
    cost = planner.line((100, 1500.0), (300, 2500.0))
    assert (cost.always, cost.per_token) == (1000.0, 5.0)
    assert cost.tokens(3000) == 400
    assert cost.tokens(10) == 0
    flat = planner.line((100, 1500.0), (300, 1400.0))  # an allocator's rounding
    assert flat.per_token > 0


def test_an_amount_of_memory():
    for text, wanted in (("auto", None), ("20 GiB", 20 * 2**30), ("1.5GB", 1_500_000_000), ("512 MiB", 2**29)):
        assert TrainConfig(memory=text).memory_cap == wanted


@pytest.mark.parametrize("text", ["20", "lots", "-1 GiB", "20 gib", ""])
def test_what_is_no_amount_of_memory_is_refused(model, tmp_path, text):
    with pytest.raises(ConfigError, match='must be auto, or an amount like "20 GiB"'):
        settings(model, tmp_path / "run", train__memory=text)


class Card:
    """A GPU of `holds` bytes with a model on it: a pass of n tokens peaks at the largest of always + each · n over
    `moments`, or over `checkpointed` once that is switched on, rounded up, and at `gradients` more where a pass
    before has left some. `fitted`: the largest pass it held."""

    def __init__(self, patch, moments, checkpointed=None, *, holds=10**12, parameters=10**6, rounding=1, gradients=0):
        self.moments, self.checkpointed, self.holds, self.rounding = moments, checkpointed or moments, holds, rounding
        self.device, self.context, self.gradient_checkpointing = torch.device("cuda"), 4096, False
        self.model = torch.nn.Module()
        self.model.weights = torch.nn.Parameter(torch.empty(parameters, device="meta"))
        self.gradients, self.held = gradients, False
        self.last, self.fitted, self.cleared, self.passes = 0, 0, 0, []
        patch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
        patch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
        patch.setattr(torch.cuda, "mem_get_info", lambda device: (holds, holds))
        patch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)
        patch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
        patch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.last)
        patch.setattr(planner, "_text", lambda policy, tokens: SimpleNamespace(inputs=range(tokens + 3)))
        patch.setattr(models, "token_logprobs", self.token_logprobs)

    def checkpoint_gradients(self):
        self.gradient_checkpointing = True

    def peak(self, tokens):
        moments = self.checkpointed if self.gradient_checkpointing else self.moments
        return -(-max(always + each * tokens for always, each in moments) // self.rounding) * self.rounding

    def token_logprobs(self, policy, packed):
        tokens = len(packed.inputs)
        if self.held:  # what is measured
            self.passes.append(tokens)
        self.last = self.peak(tokens) + self.gradients * self.held
        self.held = True
        if self.last > self.holds:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        self.fitted = max(self.fitted, tokens)
        return SimpleNamespace(logprobs=torch.zeros(1, requires_grad=True))

    def clear(self):
        self.cleared += 1
        self.held = False

    def plan(self, *, cap=None, largest=100, to_come=0):
        asked = {"total": 10**6, "largest": largest, "cap": cap, "to_come": to_come, "clear": self.clear}
        return planner.plan(self, **asked)


# The tiny model of the tests with gradient checkpointing on an H200: a chunk of logits up to about 37,000 tokens, then
# the layers' backward.
TWO_MOMENTS = ((20e6, 980.0), (2e6, 1585.0))


def test_the_plan_is_made_from_a_pass_of_its_own_size(monkeypatch):
    card = Card(monkeypatch, TWO_MOMENTS)
    room = planner.MARGIN * 90e6
    small = planner.line(*((n, card.peak(n)) for n in planner.SMALL))
    assert card.peak(small.tokens(room)) > 90e6  # small passes would promise too much
    found = card.plan(cap=90_000_000)
    assert found.tokens < card.fitted
    assert 0.9 * room < card.peak(found.tokens) <= room
    assert card.cleared == len(card.passes)
    assert max(card.passes) < 1.01 * small.tokens(room)
    assert all(b <= 2 * a + 3 for a, b in itertools.pairwise(card.passes))


MOMENT = st.tuples(st.floats(0, 2e9), st.floats(1e3, 1e6))


@given(
    moments=st.lists(MOMENT, min_size=1, max_size=3), holds=st.integers(10**8, 10**11), cap=st.integers(10**8, 10**11),
    to_come=st.integers(0, 10**8), parameters=st.sampled_from([10**6, 6 * 10**8, 10**10]),
    largest=st.integers(1, 100_000),
)  # fmt: skip
def test_no_plan_is_above_what_was_seen_to_fit(moments, holds, cap, to_come, parameters, largest):
    with pytest.MonkeyPatch.context() as patch:
        card = Card(patch, moments, holds=holds, parameters=parameters)
        found = card.plan(cap=cap, to_come=to_come, largest=largest)
        room = max(min(holds, cap) - to_come, 0)
        assert found.checkpointing == card.gradient_checkpointing
        if card.peak(2 * planner.LEAST + 3) <= planner.MARGIN * room:
            assert card.peak(found.tokens) <= planner.MARGIN * room * (1 + 1e-9)
            assert found.tokens <= card.fitted
            assert planner.LEAST <= found.tokens <= planner.fast(card)
            if len(moments) == 1:  # as many as fit
                more = min(planner.fast(card), found.tokens + 2)
                assert card.peak(more) > 0.999 * planner.MARGIN * room or found.tokens == planner.fast(card)


def test_a_pass_is_planned_beside_the_gradients_of_those_before_it(monkeypatch):
    card = Card(monkeypatch, ((10e6, 1000.0),), gradients=30_000_000)
    found = card.plan(cap=90_000_000)
    assert card.peak(found.tokens) + 30e6 == pytest.approx(planner.MARGIN * 90e6, rel=0.001)
    assert found.peak == pytest.approx(card.peak(found.tokens) + 30e6)


def test_memory_that_runs_out_where_the_plan_is_tried_halves_it(monkeypatch):
    card = Card(monkeypatch, ((20e6, 980.0), (-160e6, 9000.0)), holds=90_000_000)
    small = planner.line(*((n, card.peak(n)) for n in planner.SMALL)).tokens(planner.MARGIN * 90e6)
    found = card.plan()
    assert card.fitted < card.passes[-1] < small
    assert card.peak(card.passes[-1]) > 90e6
    assert found.tokens == card.fitted == pytest.approx(card.passes[-1] / 2, abs=5)
    assert card.cleared == len(card.passes)
    tight = Card(monkeypatch, ((0.0, 100.0), (-50e6, 6000.0)), holds=10_000_000)  # every larger pass fails
    assert tight.plan().tokens == tight.fitted == planner.SMALL[1] + 3


@pytest.mark.parametrize("millions", [135, 304, 596, 609])  # 16,420 tokens are just over twice 8,192
def test_an_allocator_that_rounds_makes_no_other_plan(monkeypatch, millions):
    card = Card(monkeypatch, ((10e6, 50_000.0),), parameters=millions * 10**6, rounding=2**21)
    found = card.plan()
    assert found.tokens == planner.fast(card)
    assert "(50 kB each and 0.0 GiB besides, " in found.said
    for cap in range(10**9, 3 * 10**9, 10**7):
        tokens = card.plan(cap=cap).tokens
        assert card.peak(tokens) <= cap
        assert tokens == planner.fast(card) or card.peak(1.02 * tokens) > planner.MARGIN * cap


def test_all_ranks_go_by_the_worst_of_them(monkeypatch):
    def with_a_worse_one(value):
        return [value, (value[0] / 2, "half as much free") if isinstance(value, tuple) else 1.5 * value]

    monkeypatch.setattr(planner.ranks, "gather", with_a_worse_one)
    found = Card(monkeypatch, ((10e6, 1000.0),), holds=80_000_000).plan()
    assert found.tokens == pytest.approx((planner.MARGIN * 80e6 / 2 / 1.5 - 10e6) / 1000, abs=3)
    assert "half as much free" in found.said


def test_what_is_small_enough_to_measure_is_found(monkeypatch):
    card = Card(monkeypatch, ((1e6, 1e5),), holds=60_000_000)  # 590 tokens
    found = card.plan()
    assert card.peak(found.tokens) <= planner.MARGIN * 60e6 < card.peak(found.tokens + 2)
    card = Card(monkeypatch, ((0.0, 1e5), (50e6, 1e4)))  # 4,096 and 8,192 tokens would promise 520
    assert 50e6 < card.peak(card.plan(cap=int(52e6 / planner.MARGIN)).tokens) <= 52e6
    hopeless = Card(monkeypatch, ((1e9, 1e5),), holds=60_000_000)  # the step itself will say so
    assert hopeless.plan(largest=100) == planner.Plan(
        1, True, "memory: 1 tokens a pass (0 kB each and inf GiB besides, 0.1 GiB free; with gradient checkpointing, "
        "without which 100 tokens in one piece would not fit; a piece of 100 tokens, which is not cut, will take more)",
        peak=float("inf"),
    )  # fmt: skip


def test_checkpointing_is_for_pieces_that_were_tried(monkeypatch):
    saved = ((20e6, 100.0),)
    for largest, wanted in ((40_000, False), (60_000, True)):  # without, 50,000 fit; small passes say 62,000
        card = Card(monkeypatch, TWO_MOMENTS, saved)
        found = card.plan(cap=int(81.25e6 / planner.MARGIN), largest=largest)
        assert found.checkpointing == card.gradient_checkpointing == wanted
        assert ("with gradient checkpointing" in found.said) == wanted
    large = Card(monkeypatch, ((0.0, 1000.0),), parameters=10**10)  # trained in passes of 8,192; the piece is tried
    found = large.plan(largest=50_000)
    assert found.tokens == planner.fast(large) == planner.FEWEST
    assert large.fitted >= 50_000
    assert found.peak == pytest.approx(large.peak(50_000))  # of the piece that is not cut, and fits
    assert "will take more" not in found.said


def test_small_models_take_more_tokens_a_pass(monkeypatch):
    sizes = {135: 65_536, 596: 21_812, 3086: 8192}  # millions of parameters: SmolLM2, Qwen3-0.6B, Qwen2.5-3B
    for millions, tokens in sizes.items():
        assert Card(monkeypatch, TWO_MOMENTS, parameters=millions * 10**6).plan().tokens == tokens


@pytest.mark.parametrize("tokens", [64, 4096, 21_812, 60_000])
def test_measured_text_is_no_shorter_than_asked(model, tokens):
    policy = models.load(model)
    assert tokens <= len(planner._text(policy, tokens).inputs) < 1.02 * tokens + policy.context


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only CUDA counts its memory")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_plan_for_the_gpu_fits(model, checkpointing):
    policy = models.load(model, dtype=torch.bfloat16, device="cuda", gradient_checkpointing=checkpointing)
    clear, room = policy.model.zero_grad, 90_000_000
    cap = torch.cuda.memory_allocated() + room
    found = planner.plan(policy, total=10**6, largest=100, cap=cap, to_come=0, clear=clear)
    _, peak = planner._peak(policy, found.tokens, clear)
    assert peak < room
    assert peak > 0.7 * room or found.tokens == planner.fast(policy)

"""Sampling the next batch while this one trains: the draws, the gradient, a resumed run, failures and stops."""

import dataclasses
import itertools
import random
import signal
import threading
import time

import pytest
import torch

from equipoise import policy as models
from equipoise.config import ConfigError
from equipoise.rollout import sampler
from equipoise.train import RunError, RunFolder, Trainer, ahead, update
from equipoise.train.journal import Journal
from equipoise.train.update import Updater

from .test_resume import kill_and_resume, killed_run, no_leftovers
from .test_split import ROUNDING, assert_same_curve, distance, run_two, start_two, weights
from .tiny import column, last_checkpoint, metrics, outcome, overrides, settings

AHEAD = {"rollout__ahead": 1}
EVERY = {"train__checkpoint_every": 1, "train__keep": 100, "eval__every": 0}


NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)]


@pytest.fixture
def logged(monkeypatch):
    """Every batch that a run trained on, by step."""
    batches, step = {}, Journal.step

    def watched(self, number, batch, found):
        batches[number] = batch
        step(self, number, batch, found)

    monkeypatch.setattr(Journal, "step", watched)
    return batches


def same_draws(a, b) -> bool:
    return torch.equal(a.tokens, b.tokens) and torch.equal(a.logprobs, b.logprobs) and a.finish == b.finish


@pytest.mark.parametrize("device", DEVICES)
def test_without_updates_the_draws_are_those_of_a_plain_run(run, logged, device):
    options = EVERY | {"optim__lr": 0.0, "train__steps": 4, "rollout__top_p": 0.9, "model__device": device}
    run("plain", **options)
    plain = dict(logged)
    run("ahead", **options, **AHEAD)
    assert len(plain) == 4
    for step, batch in plain.items():
        assert same_draws(logged[step].rollouts, batch.rollouts)
        assert logged[step].texts == batch.texts
        assert torch.equal(logged[step].rewards, batch.rewards)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"model__lora_rank": 2},
        pytest.param({"model__device": "cuda"}, marks=NEEDS_CUDA),
        pytest.param({"model__device": "cuda", "model__lora_rank": 2}, marks=NEEDS_CUDA),
        pytest.param({"train__mini_batch": 2, "train__updates": 2}, marks=pytest.mark.long),
        pytest.param({"model__dtype": "bfloat16", "rollout__top_p": 0.9}, marks=pytest.mark.long),
    ],
    ids=["full", "adapter", "cuda", "cuda-adapter", "mini-batches", "bfloat16"],
)
def test_a_batch_is_drawn_with_the_weights_from_before_the_last_step(run, logged, model, more):
    """Step k+1 trains what a plain sampler draws with the checkpoint of step k−1, to the bit."""
    if "model__lora_rank" in more:
        pytest.importorskip("peft")
    t = run(**EVERY, **AHEAD, **more, train__steps=4)
    policy = t.policy
    moved = []
    for step in (2, 3, 4):
        place, before = RunFolder(t.run_dir).checkpoints, max(step - 2, 0)
        if before:
            models.restore(policy, place / f"step-{before}")
        else:
            torch.manual_seed(0)
            lora = models.Lora(2) if policy.has_adapter else None
            policy = models.load(model, dtype=policy.dtype, device=policy.device, lora=lora)
        batch = logged[step].rollouts
        keys = range(4 * (step - 1), 4 * step)
        drawn = sampler(policy).sample(batch.prompts, 4, t.collector.params, keys=keys, step=step)
        assert same_draws(batch, drawn), step
        models.restore(policy, place / f"step-{step - 1}")
        newer = sampler(policy).sample(batch.prompts, 4, t.collector.params, keys=keys, step=step)
        moved.append(not same_draws(batch, newer))
        policy = t.policy
    assert all(moved)  # one step changes the draws: the test can tell the two apart
    done = [0.0, 0.0, *column(t.run_dir, "optimizer_steps")]
    assert column(t.run_dir, "rollout/lag") == [new - old for old, new in itertools.pairwise(done[:5])]


def test_the_gradient_is_that_of_plain_loops_over_the_logged_batch(run, logged, monkeypatch):
    """π_old is the policy that sampled, a step older: the clipped ratio is not 1 from the first update on."""
    gradients, apply = [], Updater._apply

    def watched(self, norm, fine):
        gradients.append(torch.cat([p.grad.flatten() for p in self.parameters]).double())
        apply(self, norm, fine)

    monkeypatch.setattr(Updater, "_apply", watched)
    t = run(**EVERY, **AHEAD, train__steps=3, objective__preset="grpo", optim__lr=0.05, optim__warmup=0)
    policy = models.load(RunFolder(t.run_dir).checkpoints / "step-2", dtype=torch.float64)
    batch = logged[3]
    lengths = batch.rollouts.lengths.tolist()
    rows, olds = batch.rollouts.tokens.split(lengths), batch.rollouts.logprobs.double().split(lengths)
    rewards = batch.total.view(4, 4)
    sigma = (rewards.var(1, correction=0, keepdim=True) + 1e-6).sqrt()
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / sigma).flatten().tolist()
    clipped = 0
    for i, (tokens, old, A) in enumerate(zip(rows, olds, advantages, strict=True)):
        prompt = batch.rollouts.prompts[i // 4]
        logits = policy.model(torch.tensor([[*prompt, *tokens.tolist()]])).logits[0, len(prompt) - 1 : -1]
        ratio = torch.exp(logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0] - old)
        clipped += int(((ratio - 1).abs() > 0.2).sum())
        (-torch.minimum(ratio * A, ratio.clamp(0.8, 1.2) * A).mean() / 16).backward()
    plain = torch.cat([p.grad.flatten() for p in policy.parameters()])
    assert clipped > 0
    assert float((gradients[2] - plain).norm() / plain.norm()) < 1e-5
    assert metrics(t.run_dir)[2]["ratio/max"] > 1.2


def test_the_correction_weighs_by_the_policy_that_sampled(run):
    """With rollout.exact, π_old is the trainer's and every first ratio 1; `tis` sees the older policy."""
    t = run(**EVERY, **AHEAD, train__steps=3, rollout__exact=True, objective__mismatch="tis", optim__lr=0.05)
    found = metrics(t.run_dir)
    assert [r["ratio/max"] for r in found] == [1.0] * 3
    assert found[0]["rollout/kl"] < 1e-8 < 1e-4 < found[2]["rollout/kl"]


STATEFUL = {
    "objective__preset": "dapo", "objective__aggregation": "balanced", "objective__difficulty": "hadw_history",
    "objective__kl": 0.01, "rollout__top_p": 0.95, "rollout__dynamic_sampling": True, "optim__schedule": "cosine",
    "train__updates": 2, "train__mini_batch": 2, "train__checkpoint_every": 1, "train__keep": 1,
    "log__rollouts_every": 1, "eval__every": 3, "rollout__ahead": 1,
}  # fmt: skip


def test_two_runs_are_the_same_however_their_threads_meet(run, monkeypatch):
    """One in which sampling takes longer than training, one in which it is the other way."""
    collect, updated = ahead.Collector.collect, Updater.update

    def slowly(work, seconds):
        def done(*arguments):
            time.sleep(seconds)
            return work(*arguments)

        return done

    ends = []
    for sampling, training in ((0.2, 0.0), (0.0, 0.2)):
        monkeypatch.setattr(ahead.Collector, "collect", slowly(collect, sampling))
        monkeypatch.setattr(Updater, "update", slowly(updated, training))
        ends.append(outcome(run(f"{sampling}", **STATEFUL, train__steps=4).run_dir))
    assert ends[0] == ends[1]


def test_sampling_and_training_happen_at_the_same_time(run, monkeypatch):
    """Each waits for the other to be under way, or fails."""
    collect, updated = ahead.Collector.collect, Updater.update
    trains, samples = threading.Event(), threading.Event()

    def sampling(self, step):
        if step == 2:
            samples.set()
            assert trains.wait(600)
        return collect(self, step)

    def training(self, batch, credit, step):
        if step == 1:
            trains.set()
            assert samples.wait(600)
        return updated(self, batch, credit, step)

    monkeypatch.setattr(ahead.Collector, "collect", sampling)
    monkeypatch.setattr(Updater, "update", training)
    run(**EVERY, **AHEAD, train__steps=2)


def test_the_thread_leaves_the_generators_alone(run, monkeypatch):
    """Their state is in the checkpoint, at a moment that the thread does not know."""
    collect = ahead.Collector.collect
    seen = []

    def watched(self, step):
        before = torch.get_rng_state(), random.getstate()
        batch = collect(self, step)
        seen.append(torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1])
        assert not batch.rollouts.logprobs.is_inference()  # they are saved for backward passes
        return batch

    monkeypatch.setattr(ahead.Collector, "collect", watched)
    run(**EVERY, **AHEAD, train__steps=3, optim__lr=0.0)
    assert seen == [True] * 3


def test_stopping_at_any_step_and_going_on_is_not_stopping(model, tmp_path):
    options = AHEAD | {"objective__difficulty": "hadw_history", "log__terminal": False, "eval__every": 2}
    Trainer(settings(model, tmp_path / "whole", train__steps=5, **options)).run()
    for steps in (1, 2, 5):
        Trainer(settings(model, tmp_path / "run", train__steps=steps, **options), resume=steps > 1).run()
    whole, run = outcome(tmp_path / "whole"), outcome(tmp_path / "run")
    run["eval"] = [e for e in run["eval"] if e["step"] != 1]  # a run that ends is evaluated at its end
    assert run == whole


@pytest.mark.long
def test_adapters_resume_bit_for_bit(model, tmp_path):
    pytest.importorskip("peft")
    options = AHEAD | {"model__lora_rank": 2, "objective__kl": 0.01}
    options |= {"log__terminal": False, "eval__every": 2}
    Trainer(settings(model, tmp_path / "whole", train__steps=4, **options)).run()
    for steps in (2, 4):
        Trainer(settings(model, tmp_path / "run", train__steps=steps, **options), resume=steps == 4).run()
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def command(model, out, file, **options) -> list[str]:
    file.touch()
    resume = ["--resume"] if RunFolder(out).config.exists() else []
    return ["train", str(file), *resume, *overrides(model, out, **options)]


@pytest.mark.long
def test_two_kills_change_nothing(server, model, tmp_path):
    whole, file = tmp_path / "whole", tmp_path / "empty.toml"
    options = STATEFUL | {"train__steps": 6}
    assert server.run(command(model, whole, file, **options)).code == 0
    out = killed_run(server, model, tmp_path, file, 2, random.Random(1), **options)
    assert outcome(out) == outcome(whole)
    assert no_leftovers(out)


@pytest.mark.slow
def test_fifty_kills_change_nothing(server, model, tmp_path):
    whole, out, file = tmp_path / "whole", tmp_path / "run", tmp_path / "empty.toml"
    options = STATEFUL | {"train__steps": 130, "train__max_uninformative": 130}
    assert server.run(command(model, whole, file, **options)).code == 0
    scenes = kill_and_resume(server, model, out, file, 60, random.Random(20_261_116), **options)
    print(f"\n{sum(scenes.values())} SIGKILLs: {dict(scenes)}")
    assert sum(scenes.values()) >= 50
    assert scenes["while a checkpoint was written"] > 0
    assert scenes["in a step"] > 0
    assert outcome(out) == outcome(whole)
    assert no_leftovers(out)


@pytest.mark.long
def test_two_processes_change_nothing(server, model, tmp_path):
    """The thread gathers in a group of its own: in one group it would take the updates' turns."""
    file = tmp_path / "empty.toml"
    options = STATEFUL | {"train__steps": 3, "train__mini_batch": 0, "optim__lr": 0.003}
    for out, run in (("one", lambda a: [server.run(a)]), ("two", lambda a: run_two(server, a))):
        for ended in run(command(model, tmp_path / out, file, **options)):
            assert ended.code == 0, ended.stderr
    assert_same_curve(tmp_path / "two", tmp_path / "one")
    assert distance(weights(tmp_path / "two"), weights(tmp_path / "one")) < ROUNDING


@pytest.mark.long
def test_two_processes_stop_after_the_same_step_and_go_on(server, model, tmp_path):
    out, file = tmp_path / "run", tmp_path / "empty.toml"
    options = AHEAD | {"train__steps": 10_000, "train__checkpoint_every": 100_000, "eval__every": 0}
    children = start_two(server, command(model, out, file, **options))
    while len(metrics(out)) < 2:
        assert all(child.wait(0.01) is None for child in children), children[0].end()
    children[1].kill(signal.SIGINT)
    ended = [child.end() for child in children]
    assert [e.code for e in ended] == [130, 130]
    last = metrics(out)[-1]["step"]
    assert last_checkpoint(out).name == f"step-{last}"
    for ended in run_two(server, command(model, out, file, **options | {"train__steps": last + 1})):
        assert ended.code == 0, ended.stderr


class Gone(Exception):
    """What a task of the user's may raise."""


class Broken:
    """A task that has no prompt at one place."""

    def __init__(self, task, place):
        self.task, self.place = task, place

    def __getattr__(self, name):
        return getattr(self.task, name)

    def prompt(self, i):
        if i == self.place:
            raise Gone("the shelf is empty")
        return self.task.prompt(i)


def test_an_exception_in_the_thread_ends_the_run_with_its_own_message(trainer):
    """After the step that trained meanwhile, whose checkpoint is written."""
    t = trainer(**AHEAD, train__steps=5, train__checkpoint_every=2, eval__every=2)
    t.collector.task = Broken(t.task, 9)  # of the third batch, sampled while the second trains
    with pytest.raises(Gone, match="the shelf is empty"):
        t.run()
    assert [r["step"] for r in metrics(t.run_dir)] == [1, 2]
    assert last_checkpoint(t.run_dir).name == "step-2"
    assert not under_way()


def under_way() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("sampler ")]


def test_an_exception_in_training_ends_the_thread_too(trainer, monkeypatch):
    def failing(self, batch, credit, step):
        raise Gone("no update")

    monkeypatch.setattr(Updater, "update", failing)
    t = trainer(**AHEAD, train__steps=5)
    with pytest.raises(Gone, match="no update"):
        t.run()
    assert not under_way()


def test_a_thread_that_ends_without_a_batch_is_noticed(trainer, monkeypatch):
    monkeypatch.setattr(ahead, "LOOK", 0.01)
    monkeypatch.setattr(ahead.Ahead, "_collect", lambda self, step, done: None)
    with pytest.raises(RunError, match="ended without a batch"):
        trainer(**AHEAD, train__steps=2, eval__every=0).run()


def test_a_thread_that_does_not_stop_is_left_behind(trainer, monkeypatch):
    """A run that ends does not wait for ever for a sampler that hangs."""
    hangs = threading.Event()
    collect = ahead.Collector.collect

    def collected(self, step):
        if step == 2:
            hangs.wait(600)
        return collect(self, step)

    def failing(self, batch, credit, step):
        raise Gone("no update")

    monkeypatch.setattr(ahead, "GOODBYE", 0.05)
    monkeypatch.setattr(ahead.Collector, "collect", collected)
    monkeypatch.setattr(Updater, "update", failing)
    with pytest.raises(Gone, match="no update"):
        trainer(**AHEAD, train__steps=3, eval__every=0).run()
    (thread,) = under_way()
    hangs.set()
    thread.join(600)
    assert not thread.is_alive()


@pytest.mark.long
def test_ctrl_c_stops_both_and_the_run_goes_on_as_if_nothing_had_been(server, model, tmp_path):
    whole, out, file = tmp_path / "whole", tmp_path / "run", tmp_path / "empty.toml"
    options = AHEAD | {"train__steps": 6, "eval__every": 0, "optim__lr": 0.02}
    assert server.run(command(model, whole, file, **options)).code == 0
    child = server.start(command(model, out, file, **options | {"train__steps": 10_000}))
    while len(metrics(out)) < 2:
        assert child.wait(0.01) is None, child.end()
    child.kill(signal.SIGINT)
    ended = child.end()
    assert ended.code == 130
    assert "--resume" in ended.stderr
    last = metrics(out)[-1]["step"]
    assert server.run(command(model, out, file, **options | {"train__steps": max(last, 6)})).code == 0
    assert metrics(out)[:6] == metrics(whole)


def test_the_plan_leaves_memory_to_the_sampler(trainer, monkeypatch):
    """Half of what is free, and passes are planned before anybody samples beside them."""
    planned, collecting = [], []
    plan, collect = update.plan, ahead.Collector.collect

    def watched(policy, **more):
        planned.append((more["to_come"], collecting.count("begun") - collecting.count("done")))
        return plan(policy, **more)

    def collected(self, step):
        collecting.append("begun")
        try:
            return collect(self, step)
        finally:
            collecting.append("done")

    monkeypatch.setattr(update, "plan", watched)
    monkeypatch.setattr(ahead.Collector, "collect", collected)
    t = trainer(**AHEAD, train__steps=2, eval__every=0)
    to_come = t.updater.optimizer.bytes_to_come()
    t.run()
    assert t.updater.beside > 0
    assert planned == [(to_come + t.updater.beside, 0)]


@NEEDS_CUDA
def test_the_cache_takes_no_more_than_the_plan_left_it(trainer):
    t = trainer(**AHEAD, train__steps=3, eval__every=0, model__device="cuda", train__memory="2 GiB")
    t.run()
    assert t.collector.sampler.most == t.updater.beside
    assert 0 < t.updater.beside < 2**30
    assert t.collector.sampler._memory(next(iter(t.collector.sampler._buffers))) < t.updater.beside


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rollout__engine": "vllm"}, "rollout.ahead = 1: must be 0 with rollout.engine = vllm"),
        ({"train__shard": True, "train__micro_tokens": 64}, "rollout.ahead = 1: must be 0 with train.shard = true"),
        ({"model__lora_rank": 2, "model__lora_dropout": 0.1}, "must be 0 with model.lora_dropout = 0.1"),
        ({"rollout__exact": True}, "rollout.ahead = 1: needs objective.mismatch with rollout.exact = true"),
        ({"objective__surrogate": "reinforce"}, "objective.surrogate = reinforce has no ratio"),
        ({"rollout__ahead": 2}, "rollout.ahead = 2: must be 0 or 1"),
    ],
)
def test_what_does_not_go_together_is_refused_before_a_model_loads(tmp_path, options, said):
    with pytest.raises(ConfigError, match=said):
        settings(tmp_path / "no model", tmp_path / "run", **AHEAD | options)


def test_the_run_says_what_it_does(train):
    said = train(**AHEAD, train__steps=1, eval__every=0).stdout
    assert "every ratio π/π_old is 1" not in said
    assert "rollout.ahead = 1: each batch is sampled while the one before trains" in said
    assert "a copy that samples" in said


def test_every_tensor_of_a_batch_is_kept_for_the_stream_that_trains(trainer):
    """Stand-ins for tensors of the thread's stream: what is freed while the other still reads it is somebody else's."""
    kept = []

    class OnCard(torch.Tensor):
        is_cuda = True

        def record_stream(self, stream):
            kept.append((id(self), stream))

    def moved(part):
        tensors = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
        changed = {name: x.as_subclass(OnCard) for name, x in tensors.items() if isinstance(x, torch.Tensor)}
        return dataclasses.replace(part, **changed), {id(x) for x in changed.values()}

    batch = trainer(rollout__top_p=0.9).collector.collect(1)
    support, of_support = moved(batch.rollouts.support)
    rollouts, of_rollouts = moved(dataclasses.replace(batch.rollouts, support=support))
    batch, of_batch = moved(dataclasses.replace(batch, rollouts=rollouts))
    ahead._keep_for("training", batch)
    assert dict(kept).keys() == of_support | of_rollouts | of_batch
    assert len(of_support) == 2
    assert len(of_rollouts) == 4
    assert set(dict(kept).values()) == {"training"}

"""Several optimizer steps of one batch of rollouts: what each is made of, against plain loops, in float64."""

import itertools
import math
import random

import pytest
import torch

from equipoise import policy as models
from equipoise.train import ConfigError, Trainer
from equipoise.train.mini import cut_groups
from equipoise.train.update import Updater

from .test_split import distance, run_two
from .tiny import metrics, overrides, settings

MINI = {"rollout__prompts": 6, "train__mini_batch": 2, "train__updates": 2, "train__steps": 2, "eval__every": 0}
OBJECTIVES = {
    "dapo+balanced": {"objective__preset": "dapo", "objective__aggregation": "balanced"},
    "token+kl+entropy": {
        "objective__preset": "dapo", "objective__kl": 0.05, "objective__entropy_bonus": 0.01,
        "objective__averaged_groups": "informative",
    },
    "truncated": {
        "objective__preset": "dapo", "objective__kl": 0.05, "objective__entropy_bonus": 0.01, "rollout__top_p": 0.8,
        "rollout__min_p": 0.05, "rollout__temperature": 0.8,
    },
    "gspo": {"objective__preset": "gspo"},
    "prefix": {"objective__cancellation": "prefix"},
}  # fmt: skip


@pytest.mark.parametrize("prompts", [1, 2, 5, 6, 17])
@pytest.mark.parametrize("size", [0, 1, 2, 4, 16])
def test_parts_are_the_whole_and_as_even_as_can_be(prompts, size):
    parts = cut_groups(prompts, size, seed=3, step=7, turn=1)
    assert sorted(g for part in parts for g in part.tolist()) == list(range(prompts))
    sizes = [len(part) for part in parts]
    assert max(sizes) <= (size or prompts)
    assert max(sizes) - min(sizes) <= 1
    assert len(parts) == (-(-prompts // size) if size else 1)
    assert all(part.tolist() == sorted(part.tolist()) for part in parts)


def test_every_pass_and_step_has_its_own_order_and_always_the_same():
    def cut(**at):
        return [part.tolist() for part in cut_groups(32, 8, **({"seed": 0, "step": 1, "turn": 0} | at))]

    assert cut() == cut()
    orders = [cut(), cut(turn=1), cut(step=2), cut(seed=1)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


class Plain:
    """GRPO with PPO's clipping in float64, a response at a time, through autograd.

    The forward pass is the policy's own (transformers' norms round to float32), which other tests hold to theirs.
    """

    def __init__(self, folder, batch):
        self.policy = models.load(folder, dtype=torch.float64)
        self.model = self.policy.model
        self.batch = batch
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.1)
        rewards = batch.total.view(-1, 4)
        sigma = (rewards.var(1, correction=0, keepdim=True) + 1e-6).sqrt()
        self.advantage = ((rewards - rewards.mean(1, keepdim=True)) / sigma).flatten().tolist()
        self.rows = batch.rollouts.tokens.split(batch.rollouts.lengths.tolist())

    def logprobs(self, i):
        prompt, tokens = self.batch.rollouts.prompts[i // 4], self.rows[i]
        packed = models.pack([prompt], tokens, torch.tensor([len(tokens)]), torch.tensor([0]))
        return models.token_logprobs(self.policy, packed).logprobs

    def step(self, groups, old, lr):
        self.optimizer.zero_grad()
        for g in groups:
            for i in range(4 * g, 4 * g + 4):
                ratio = torch.exp(self.logprobs(i) - old[i])
                A = self.advantage[i]
                surrogate = torch.minimum(ratio * A, ratio.clamp(0.8, 1.2) * A)
                (-surrogate.mean() / (4 * len(groups))).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.step()


def float64_updater(t, model) -> Updater:
    return Updater(t.config, t.objective, models.load(model, dtype=torch.float64), None, 12)


@pytest.mark.parametrize(("micro", "lost"), [(0, 0), (1, 0), (3, 0), (0, 2), (0, 6)])
def test_the_sequence_of_optimizer_steps_is_that_of_plain_loops(trainer, model, monkeypatch, micro, lost):
    """Two passes over five prompts in mini-batches of at most two; a step that is not finite is
    left out, and not counted.
    """
    options = MINI | {"rollout__exact": True, "rollout__prompts": 5, "train__micro_batch": micro}
    t = trainer(**options, optim__weight_decay=0.1, objective__preset="grpo", optim__lr=0.02, optim__warmup=3)
    batch = t.collector.collect(1)
    credit = t.objective.assign(batch.rewards, batch.rollouts.prompt, batch.lengths)
    updater = float64_updater(t, model)
    norms = itertools.count(1)
    real = torch.nn.utils.get_total_norm
    monkeypatch.setattr(
        torch.nn.utils, "get_total_norm", lambda grads: real(grads) * (math.inf if next(norms) == lost else 1)
    )
    found = updater.update(batch, credit, 4)
    monkeypatch.undo()

    plain = Plain(model, batch)
    with torch.no_grad():
        old = [plain.logprobs(i) for i in range(20)]
    done = tried = 0
    for turn in (0, 1):
        order = random.Random(f"0 4 {turn}").sample(range(5), 5)
        for groups in (order[:1], order[1:3], order[3:]):
            if any(plain.advantage[4 * g] for g in groups):  # else nothing pulls, and momentum alone must not
                tried += 1
                if tried == lost:
                    continue
                done += 1
                plain.step(groups, old, 0.02 * min(done / 3, 1))
    assert lost <= tried
    assert (updater.updates, found["optimizer_steps"], found["skipped"]) == (done, done, bool(lost))
    assert done >= 3
    assert found["clip_ratio/region/last_update"] > 0
    theirs = plain.model.state_dict()
    start = models.load(model, dtype=torch.float64).model.state_dict()
    for name, weight in updater.policy.model.state_dict().items():
        moved = (theirs[name] - start[name]).norm()
        assert moved > 1e-3
        assert (weight - theirs[name]).norm() < 1e-12 * theirs[name].norm(), name


@pytest.mark.parametrize("name", OBJECTIVES)
def test_any_split_of_a_mini_batch_takes_the_same_steps(trainer, model, name):
    found = []
    for micro in (0, 1) if name == "truncated" else (0, 3):
        t = trainer(**MINI | OBJECTIVES[name] | {"rollout__exact": True, "train__micro_batch": micro})
        batch = t.collector.collect(1)
        tokens = batch.rollouts.tokens if name == "prefix" else None
        credit = t.objective.assign(batch.rewards, batch.rollouts.prompt, batch.lengths, tokens=tokens)
        policy = models.load(model, dtype=torch.float64)
        updater = Updater(t.config, t.objective, policy, models.frozen_copy(policy), 12)
        metrics = updater.update(batch, credit, 1)
        found.append((torch.cat([p.detach().flatten() for p in policy.parameters()]), metrics))
    start = torch.cat([p.detach().flatten() for p in models.load(model, dtype=torch.float64).parameters()])
    assert distance(found[0][0], start) > 1e-3
    for weight, metrics in found[1:]:
        assert distance(weight, found[0][0]) < 1e-12
        assert metrics == pytest.approx(found[0][1], rel=1e-9, abs=1e-12)


def test_the_first_ratios_are_exactly_one_in_the_first_mini_batch_alone(trainer, monkeypatch):
    pairs, loss = [], models.token_loss

    def watched(policy, packed, objective, old, *rest, **more):
        output = loss(policy, packed, objective, old, *rest, **more)
        pairs.append(torch.equal(old, output.logprobs))
        return output

    monkeypatch.setattr(models, "token_loss", watched)
    t = trainer(**MINI | {"rollout__exact": True, "train__steps": 1, "objective__entropy_bonus": 1e-9})
    t.run()
    assert pairs == [True] + 5 * [False]
    record = metrics(t.folder.path)[0]
    assert record["optimizer_steps"] == 6
    # π_old is the trainer's here and is compared with the sampler's over the whole batch, moved weights or not.
    assert 0 < record["rollout/logprob_difference/max"] < 1e-4
    assert record["approx_kl/last_update"] > record["approx_kl"] > 1e-6


def test_the_losses_of_a_pass_are_a_mean_over_prompts(trainer):
    """With the rate at 0 the weights stay, so two mini-batches of three see what one step on all six would."""
    found = []
    for size in (0, 3):
        t = trainer(**MINI | {"train__mini_batch": size, "optim__lr": 0.0, "train__steps": 1})
        t.run()
        found.append(metrics(t.folder.path)[0])
    for name in ("policy_loss", "loss", "entropy", "ratio/mean", "tokens", "bias/mass_balance"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-5, abs=1e-7), name
    assert found[0]["grad_norm"] > 0


@pytest.mark.parametrize("averaged", ["all", "informative"])
def test_the_losses_of_a_pass_are_a_mean_over_the_prompts_that_count(trainer, model, averaged):
    """Of six prompts two have equal rewards. Under "informative" they count in the KL, and not in the policy's loss."""
    options = MINI | {"rollout__exact": True, "optim__lr": 0.0, "train__updates": 1, "objective__kl": 0.5}
    reference = models.load(model, dtype=torch.float64)
    with torch.no_grad():
        for weight in reference.model.parameters():
            weight *= 1.1
    found = []
    for size in (0, 3, 2):
        t = trainer(
            **options | {"train__mini_batch": size}, objective__preset="dapo", objective__averaged_groups=averaged
        )
        batch = t.collector.collect(1)
        rewards = torch.arange(24.0).remainder(3)
        rewards[:8] = 1.0
        credit = t.objective.assign(rewards, batch.rollouts.prompt, batch.lengths)
        updater = Updater(t.config, t.objective, models.load(model, dtype=torch.float64), reference, 12)
        found.append(updater.update(batch, credit, 4))
    whole, *parts = found
    assert abs(whole["policy_loss"]) > 1e-3
    assert abs(whole["loss"] - whole["policy_loss"]) > 1e-3
    for part in parts:
        assert part["policy_loss"] == pytest.approx(whole["policy_loss"], rel=1e-9)
        assert part["loss"] == pytest.approx(whole["loss"], rel=1e-9)


def test_a_schedule_counts_optimizer_steps(model, tmp_path):
    config = settings(model, tmp_path, **MINI | {"rollout__prompts": 5, "train__steps": 4})
    assert (config.updates_per_batch, config.optimizer_steps) == (6, 24)
    plain = settings(model, tmp_path, train__updates=3, train__steps=4)
    assert (plain.updates_per_batch, plain.optimizer_steps) == (3, 12)


@pytest.mark.parametrize(("size", "rule"), [(-1, "at least 0"), (5, "at most rollout.prompts")])
def test_a_mini_batch_that_cannot_be_is_refused(model, tmp_path, size, rule):
    with pytest.raises(ConfigError, match=f"train.mini_batch = {size}: .*{rule}"):
        settings(model, tmp_path, train__mini_batch=size)


def test_more_processes_than_prompts_of_a_mini_batch_is_refused(server, model, tmp_path):
    file = tmp_path / "empty.toml"
    file.touch()
    both = run_two(server, ["train", str(file), *overrides(model, tmp_path / "run", train__mini_batch=1)])
    why = "train.mini_batch = 1: must be at least one prompt for each of the 2 processes"
    assert [ended.code for ended in both] == [1, 1]
    # A process that joins when the other has refused and gone says that nobody is there.
    assert any(why in ended.stderr for ended in both)


@pytest.mark.parametrize(
    ("options", "told"),
    [({}, 1), ({"train__updates": 2}, 0), ({"train__mini_batch": 2}, 0), ({"objective__preset": "reinforce"}, 0)],
)
def test_it_is_said_once_that_one_step_a_batch_clips_nothing(model, tmp_path, capsys, options, told):
    Trainer(settings(model, tmp_path / "run", train__steps=2, eval__every=0, **options)).run()
    assert capsys.readouterr().out.count("every ratio π/π_old is 1") == told


def test_a_mini_batch_is_packed_before_the_step_on_the_one_before_it(trainer, monkeypatch):
    """The host packs while a GPU is at work, and waits for its norm afterwards."""
    t = trainer(**MINI | {"objective__preset": "grpo", "train__micro_batch": 100})
    events, apply, pack = [], Updater._apply, models.pack
    monkeypatch.setattr(models, "pack", lambda *a, **k: (events.append("pack"), pack(*a, **k))[1])
    monkeypatch.setattr(Updater, "_apply", lambda *a: (events.append("step"), apply(*a))[1])
    batch = t.collector.collect(1)
    batch.rewards[:, 0] = batch.total[:] = torch.arange(len(batch.total)) % 2
    t.config.train.updates = 1
    t.updater.update(batch, t.objective.assign(batch.rewards, batch.rollouts.prompt, batch.lengths), 1)
    assert events == ["pack", "pack", "step", "pack", "step", "step"]

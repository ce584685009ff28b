"""What an update does with a batch, each part against a plain computation of its own."""

import dataclasses
import itertools
import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from equipoise import policy as models
from equipoise.config import OptimConfig
from equipoise.train import RunError, RunFolder
from equipoise.train.update import learning_rate

from .tiny import column, last_checkpoint, metrics


def average(trainer) -> torch.Tensor:
    """AdamW's running average of the gradient: (1 − β₁) times the gradient after the first update."""
    return torch.cat(
        [trainer.updater.optimizer.exact.state[p]["exp_avg"].flatten() for p in trainer.updater.parameters]
    )


def plain_logprobs(folder, batch) -> list[torch.Tensor]:
    """log π of every response's tokens, one response at a time through plain transformers, with gradient."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    rollouts = batch.rollouts
    out = []
    for tokens, p in zip(rollouts.tokens.split(rollouts.lengths.tolist()), rollouts.prompt.tolist(), strict=True):
        prompt = torch.tensor(rollouts.prompts[p])
        logits = model(torch.cat([prompt, tokens])[None]).logits[0, len(prompt) - 1 : -1]
        out.append(logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0])
    return [model, *out]


@pytest.mark.parametrize("masked", [False, True])
def test_the_gradient_is_the_published_one(trainer, model, masked):
    """GRPO by hand: −1/(P G) Σ_i (r_i − mean)/σ · 1/T_i Σ_t log π with σ² = var + 1e-6, on-policy.

    A truncated response that is masked keeps its reward in the group's mean and deviation, and loses its gradient.
    """
    t = trainer(reward__mask_truncated=masked, optim__clip_norm=0.0, train__steps=1)
    batch = t.collector.collect(1)
    t.collector.position = 0
    truncated = torch.tensor([f == "length" for f in batch.rollouts.finish])
    assert 0 < truncated.sum() < 16
    core, *logprobs = plain_logprobs(model, batch)
    rewards = batch.total.view(4, 4)
    sigma = (rewards.var(1, correction=0, keepdim=True) + 1e-6).sqrt()
    advantage = ((rewards - rewards.mean(1, keepdim=True)) / sigma).flatten()
    loss = -sum(
        a / 16 * logp.mean()
        for a, logp, cut in zip(advantage, logprobs, truncated, strict=True)
        if not (masked and cut)
    )
    loss.backward()
    by_hand = torch.cat([p.grad.flatten() for p in core.parameters()])
    t.run()
    assert column(t.folder.path, "reward/mean")[0] == pytest.approx(float(rewards.mean()))
    assert float((average(t) / 0.1 - by_hand).norm() / by_hand.norm()) < 1e-5


def test_a_batch_of_nothing_but_truncated_responses_moves_nothing(trainer):
    t = trainer(reward__mask_truncated=True, rollout__max_tokens=1, train__steps=2, train__updates=2)
    before = [p.clone() for p in t.updater.parameters]
    batch = t.collector.collect(1)
    if set(batch.rollouts.finish) != {"length"}:
        pytest.fail("the model ends responses at once; the case is not met")
    t.collector.position = 0
    t.run()
    assert all(torch.equal(a, b) for a, b in zip(before, t.updater.parameters, strict=True))
    assert [r["step"] for r in metrics(t.folder.path)] == [1, 2]
    assert column(t.folder.path, "policy_loss") == [0.0, 0.0]


def test_several_updates_move_the_ratios(run, tmp_path):
    short = {"train__steps": 2, "eval__every": 0}
    one, three = run("one", **short), run("three", train__updates=3, **short)
    assert (one.updater.updates, three.updater.updates) == (2, 6)
    first = metrics(tmp_path / "three")
    assert all(abs(r["ratio/mean"] - 1) < 1e-5 and r["approx_kl"] < 1e-6 for r in first)  # metrics are the first's
    assert all(r["approx_kl/last_update"] > 1e-5 for r in first)
    assert not any("last_update" in key for r in metrics(tmp_path / "one") for key in r)


def test_clipping_stops_updates_that_went_far_enough(run, tmp_path):
    far = {"train__updates": 8, "optim__lr": 0.05, "optim__warmup": 0, "train__steps": 1, "eval__every": 0}
    run("narrow", **far, objective__surrogate={"low": 0.01, "high": 0.01})
    run("wide", **far, objective__surrogate={"low": 1.0, "high": 50.0})
    narrow, wide = (metrics(tmp_path / n)[0] for n in ("narrow", "wide"))
    assert narrow["clip_ratio/region/last_update"] > 0.2
    assert wide["clip_ratio/region/last_update"] == 0
    assert narrow["approx_kl/last_update"] < wide["approx_kl/last_update"]


def test_the_kl_holds_the_policy_to_where_it_began(run, tmp_path, model):
    few = {"train__steps": 8, "eval__every": 0}
    slack, tight = run("slack", objective__kl=1e-6, **few), run("tight", objective__kl=10.0, **few)
    start = models.load(model).model.state_dict()
    for t in (slack, tight):
        assert all(torch.equal(v, start[k]) for k, v in t.updater.reference.model.state_dict().items())
    loose, held = column(tmp_path / "slack", "kl"), column(tmp_path / "tight", "kl")
    assert abs(loose[0]) < 1e-9
    assert min(loose[1:]) > 0
    assert max(held[1:]) < 0.1 * loose[-1]
    assert run("none", train__steps=1).updater.reference is None


def test_the_entropy_bonus_raises_entropy(run, tmp_path):
    run("plain", train__steps=10, eval__every=0)
    run("bonus", train__steps=10, eval__every=0, objective__entropy_bonus=1.0)
    # A step in which nothing pulls on a response has no forward pass, and so no entropy.
    plain, bonus = ([r["entropy"] for r in metrics(tmp_path / n) if "entropy" in r] for n in ("plain", "bonus"))
    assert plain[0] == pytest.approx(bonus[0], abs=0.2)
    assert plain[-1] < plain[0]
    assert bonus[-1] > plain[-1] + 0.3


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_ratios_are_one_at_any_temperature_and_truncation(run, tmp_path, temperature):
    """The trainer computes what the sampler drew from."""
    run(rollout__temperature=temperature, rollout__top_p=0.8, train__steps=2, train__seed=1)
    for record in metrics(tmp_path / "run"):
        assert record["ratio/min"] == pytest.approx(1, abs=1e-6 / min(temperature, 1))
        assert record["ratio/max"] == pytest.approx(1, abs=1e-6 / min(temperature, 1))


def test_the_learning_rate_by_hand():
    def rates(schedule, warmup=2, total=6):
        options = OptimConfig(lr=12.0, warmup=warmup, schedule=schedule)
        return [learning_rate(options, update, total) for update in range(1, total + 1)]

    assert rates("constant") == [6, 12, 12, 12, 12, 12]
    assert rates("linear") == pytest.approx([6, 12, 9.6, 7.2, 4.8, 2.4])  # 0 after the last, not at it
    assert rates("cosine") == pytest.approx([6, 12, *(6 * (1 + math.cos(math.pi * k / 5)) for k in (1, 2, 3, 4))])
    assert rates("constant", warmup=0) == [12] * 6
    assert rates("linear", warmup=0, total=1) == [12 * 0.5]
    assert rates("linear", warmup=10) == pytest.approx([1.2 * k for k in range(1, 7)])


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_optimizer_uses_the_rate_that_is_logged(run, model, tmp_path, schedule):
    """With momentum off AdamW moves every weight that has a gradient by the rate itself, to its ε."""
    before = models.load(model).model.state_dict()
    t = run(
        train__steps=1, eval__every=0, optim__betas=[0.0, 0.0], optim__warmup=2, optim__schedule=schedule, optim__lr=0.5
    )
    rate = column(tmp_path / "run", "lr")[0]
    assert rate == 0.25
    moved = [(v - before[k]).abs().max() for k, v in t.policy.model.state_dict().items()]
    assert float(max(moved)) == pytest.approx(rate, rel=1e-2)


def test_the_gradient_is_clipped_to_its_norm(run, tmp_path):
    one = {"train__steps": 1, "eval__every": 0}
    free = run("free", **one, optim__clip_norm=0.0)
    norm = column(tmp_path / "free", "grad_norm")[0]
    assert float(average(free).norm()) == pytest.approx(0.1 * norm, rel=1e-5)
    clipped = run("clipped", **one, optim__clip_norm=norm / 3)
    assert column(tmp_path / "clipped", "grad_norm")[0] == pytest.approx(norm, rel=1e-6)  # logged as it was
    assert float(average(clipped).norm()) == pytest.approx(0.1 * norm / 3, rel=1e-4)
    wide = run("wide", **one, optim__clip_norm=norm * 3)
    assert torch.equal(average(wide), average(free))


def poison(monkeypatch, wanted):
    """The trainer's log-probabilities are NaN in the calls that are `wanted`, counted from 1."""
    calls = 0
    real = models.token_logprobs

    def poisoned(*arguments, **options):
        nonlocal calls
        calls += 1
        out = real(*arguments, **options)
        return out._replace(logprobs=out.logprobs * math.nan) if wanted(calls) else out

    monkeypatch.setattr("equipoise.policy.logprobs.token_logprobs", poisoned)


def test_a_step_that_is_not_finite_is_skipped_and_counted(model, trainer, monkeypatch):
    poison(monkeypatch, lambda call: call == 2)
    t = trainer(train__steps=4, eval__every=0, train__checkpoint_every=1, train__keep=9, optim__clip_norm=0.0)
    t.run()
    out = t.folder.path
    assert column(out, "skipped") == [0, 1, 1, 1]
    assert column(out, "nonfinite_tokens")[1] > 0
    assert (t.updater.updates, t.updater.skipped, t.updater.skipped_total) == (3, 0, 1)
    weights = [(RunFolder(out).checkpoints / f"step-{k}" / "model.safetensors").read_bytes() for k in (1, 2, 3)]
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize("state", ["float32", "8bit"])
@pytest.mark.parametrize("not_finite", ["norm", "loss"])
def test_one_number_that_is_not_finite_is_enough(trainer, monkeypatch, state, not_finite):
    t = trainer(train__steps=1, optim__state=state)
    before = [p.clone() for p in t.updater.parameters]
    if not_finite == "norm":
        real = torch.nn.utils.get_total_norm
        monkeypatch.setattr(torch.nn.utils, "get_total_norm", lambda grads: real(grads) * math.inf)
    else:
        loss = t.updater._loss
        bad = torch.tensor(False)
        monkeypatch.setattr(t.updater, "_loss", lambda *given: dataclasses.replace(loss(*given), ok=bad))
    t.run()
    assert all(torch.equal(a, b) for a, b in zip(before, t.updater.parameters, strict=True))
    assert column(t.folder.path, "skipped") == [1]
    assert (t.updater.updates, t.updater.optimizer.t) == (0, 0)
    assert not any(bool(moments.m.any() or moments.v.any()) for _, _, moments in t.updater.optimizer.coded)


def test_a_skipped_step_has_masks_of_its_own(trainer, monkeypatch):
    """Those of a LoRA run's dropout, by the step that is tried: none comes twice."""
    t = trainer(train__steps=2, rollout__prompts=6, train__mini_batch=2, eval__every=0)
    norms, seeds, drawn = itertools.count(), [], t.updater._dropout_seed
    real = torch.nn.utils.get_total_norm
    monkeypatch.setattr(
        torch.nn.utils, "get_total_norm", lambda grads: real(grads) * (math.inf if next(norms) == 0 else 1)
    )
    monkeypatch.setattr(t.updater, "_dropout_seed", lambda part: seeds.append(drawn(part)) or seeds[-1])
    t.run()
    assert t.updater.skipped_total == 1
    assert len(set(seeds)) == len(seeds) >= 3


def test_too_many_in_a_row_stop_the_run_with_the_weights_as_they_were(trainer, monkeypatch):
    poison(monkeypatch, lambda call: call > 2)
    t = trainer(train__steps=50, eval__every=0, train__checkpoint_every=1, train__max_skipped=3)
    with pytest.raises(RunError) as error:
        t.run()
    assert "3 updates in a row" in str(error.value)
    assert "step 4" in str(error.value)
    assert "optim.lr" in str(error.value)
    assert t.updater.updates == 2
    kept = models.load(last_checkpoint(t.folder.path)).model.state_dict()
    assert all(torch.equal(v, kept[k]) for k, v in t.policy.model.state_dict().items())
    assert all(v.isfinite().all() for v in kept.values())

"""log π_old from the trainer itself, and how far sampler and trainer are apart."""

import dataclasses

import pytest
import torch

from equipoise import policy as models
from equipoise.train import Trainer
from equipoise.train.update import Updater

from .tiny import metrics, settings

NOISE = 0.25  # of a sampler that is not the policy: what another engine or precision does, made visible


def run(model, out, monkeypatch, *, noise=0.0, **options):
    """A run whose sampler is off by ±noise, and (log π_old, log π) of every micro-batch."""
    pairs, loss = [], models.token_loss

    def watched(policy, packed, objective, old, *rest, **more):
        output = loss(policy, packed, objective, old, *rest, **more)
        pairs.append((old, output.logprobs))
        return output

    with monkeypatch.context() as patch:
        patch.setattr(models, "token_loss", watched)
        trainer = Trainer(settings(model, out, log__terminal=False, eval__every=0, **options))
        sample = trainer.sampler.sample

        def off(*args, **more):
            rollouts = sample(*args, **more)
            sign = torch.arange(len(rollouts.tokens)) % 2 * 2 - 1
            return dataclasses.replace(rollouts, logprobs=rollouts.logprobs + noise * sign)

        patch.setattr(trainer.sampler, "sample", off)
        trainer.run()
    return pairs


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"objective__preset": "gspo", "model__gradient_checkpointing": True},
        {"rollout__top_p": 0.8, "rollout__temperature": 0.7},
        {"rollout__min_p": 0.2, "model__dtype": "bfloat16"},
        pytest.param({"rollout__temperature": 0.7}, marks=pytest.mark.long),
        pytest.param({"model__dtype": "bfloat16"}, marks=pytest.mark.long),
    ],
)
def test_the_first_ratios_are_exactly_one(model, tmp_path, monkeypatch, more):
    options = {"train__steps": 2, "train__updates": 2, "train__micro_batch": 3, **more}
    pairs = run(model, tmp_path / "run", monkeypatch, noise=NOISE, rollout__exact=True, **options)
    assert sum(torch.equal(old, new) for old, new in pairs) == len(pairs) / 2 > 0  # of the first updates, not after


def test_without_it_the_ratios_are_the_samplers(model, tmp_path, monkeypatch):
    pairs = run(model, tmp_path / "run", monkeypatch, noise=NOISE, train__steps=1)
    for old, new in pairs:
        torch.testing.assert_close((new - old).abs(), torch.full_like(new, NOISE), atol=1e-5, rtol=0)


@pytest.mark.parametrize("exact", [False, True])
def test_the_difference_between_sampler_and_trainer_is_told_at_every_step(model, tmp_path, monkeypatch, exact):
    for noise in (0.0, NOISE):
        out = tmp_path / str(noise)
        options = {"train__steps": 3, "train__updates": 2, "train__micro_batch": 3, "rollout__exact": exact}
        run(model, out, monkeypatch, noise=noise, **options)
        for record in metrics(out):
            assert record["rollout/logprob_difference/mean"] == pytest.approx(noise, abs=1e-5)
            assert record["rollout/logprob_difference/max"] == pytest.approx(noise, abs=1e-4)


def test_exact_training_does_not_depend_on_the_samplers_log_probabilities(model, tmp_path, monkeypatch):
    losses = []
    for noise in (0.0, NOISE):
        run(model, tmp_path / str(noise), monkeypatch, noise=noise, rollout__exact=True, train__steps=2)
        losses.append([(r["grad_norm"], r["policy_loss"]) for r in metrics(tmp_path / str(noise))])
    assert losses[0] == losses[1]


def passes_of(model, out, monkeypatch, **options) -> tuple[int, dict[str, torch.Tensor]]:
    """How many forward passes the updates of a run made, and the weights it ended with."""
    passes, hidden = [], models.logprobs._hidden
    with monkeypatch.context() as patch:
        patch.setattr(models.logprobs, "_hidden", lambda *given: (passes.append(1), hidden(*given))[1])
        trainer = Trainer(settings(model, out, log__terminal=False, eval__every=0, train__micro_batch=3, **options))
        trainer.run()
    return len(passes), trainer.policy.model.state_dict()


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({"train__steps": 2}, False),
        ({"train__steps": 2, "objective__mismatch": "tis"}, False),
        ({"train__steps": 1, "train__updates": 2}, True),
        ({"train__steps": 1, "train__mini_batch": 1}, True),
        ({"train__steps": 1, "model__lora_rank": 2, "model__lora_dropout": 0.5}, True),
    ],
)
def test_it_costs_no_pass_where_a_batch_is_one_step(model, tmp_path, monkeypatch, options, more):
    """The pass that trains is then of the policy that sampled, and says log π_old itself."""
    plain = {key: value for key, value in options.items() if key != "objective__mismatch"}
    without, _ = passes_of(model, tmp_path / "without", monkeypatch, **plain)
    with_it, weights = passes_of(model, tmp_path / "exact", monkeypatch, rollout__exact=True, **options)
    assert (with_it > without) == more
    monkeypatch.setattr(Updater, "_says_itself", lambda self, number: False)
    apart, same = passes_of(model, tmp_path / "apart", monkeypatch, rollout__exact=True, **options)
    assert apart > with_it or "model__lora_dropout" in options or "train__updates" in options
    assert all(torch.equal(weights[name], same[name]) for name in weights)

"""The slime adapter: coefficients as rewards, sums as the reducer; through slime's own loss where that is there."""

import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from benchmarks import engine_losses, engines
from benchmarks.engine_batch import drawn
from equipoise.integrations.slime import plugin
from equipoise.objective import fold


@dataclass
class Sample:
    """The part of slime's that the adapter reads."""

    group_index: int
    reward: float
    response_length: int
    loss_mask: list | None = None

    def get_reward_value(self, args):
        return self.reward


def args(**changes):
    known = {"advantage_estimator": "grpo", "normalize_advantages": False, "context_parallel_size": 1}
    return SimpleNamespace(**known | changes)


@pytest.fixture
def samples(monkeypatch):
    monkeypatch.setenv(plugin.VARIABLE, json.dumps({"preset": "dapo", "aggregation": "balanced"}))
    plugin.objective_of.cache_clear()
    batch = drawn(4)
    lengths = batch.lengths.tolist()
    return [Sample(g, float(r), n + 2, [1] * n + [0, 0])
            for g, r, n in zip(batch.group, batch.reward, lengths, strict=True)]  # fmt: skip


def test_rewards_become_coefficients(samples):
    raw, made = plugin.rewards(args(), samples)
    assert raw == [s.reward for s in samples]
    objective = plugin.objective_of(json.dumps({"preset": "dapo", "aggregation": "balanced"}))
    lengths = [sum(s.loss_mask) for s in samples]
    want = fold.coefficients(objective, raw, [s.group_index for s in samples], lengths).coefficient * len(samples)
    assert made == pytest.approx(want.tolist())


def test_the_reducer_adds_up_the_tokens_of_the_loss():
    masks = [torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0, 1.0])]
    total = plugin.reducer([4, 5], [2, 3], masks)
    assert float(total(torch.arange(5.0))) == 0 + 2 + 3 + 4
    with pytest.raises(ValueError, match="per-token-loss"):
        plugin.reducer([4, 5], [2, 3], masks, True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"advantage_estimator": "gspo"}, "is gspo, the objective says surrogate = ppo_clip"),
        ({"advantage_estimator": "ppo"}, "none of ours"),
        ({"normalize_advantages": True}, "undo the coefficients"),
        ({"context_parallel_size": 2}, "must be 1"),
    ],
)
def test_settings_of_slimes_that_would_change_it_are_refused(samples, changes, why):
    with pytest.raises(ValueError, match=why):
        plugin.rewards(args(**changes), samples)


def test_an_objective_must_be_named(samples, monkeypatch):
    monkeypatch.delenv(plugin.VARIABLE)
    with pytest.raises(ValueError, match="is not set"):
        plugin.rewards(args(), samples)


def test_through_slimes_own_loss():
    pytest.importorskip("slime.utils.ppo_utils", reason="slime has no package: put its source on PYTHONPATH")
    assert engines.cell(engine_losses.slime, "dapo+balanced", drawn())["status"] == "exact"

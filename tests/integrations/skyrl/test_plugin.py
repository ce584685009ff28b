"""The SkyRL adapter: its two functions by SkyRL's arguments here, through SkyRL's registries where it is installed."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks import engine_losses, engines
from benchmarks.engine_batch import WIDTH, drawn, objective_of, ours, padded_gradient
from equipoise import Objective
from equipoise.integrations.skyrl import plugin

CONFIG = SimpleNamespace(loss_reduction=plugin.REDUCTION, max_seq_len=WIDTH)


@pytest.mark.parametrize("name", ["dapo+balanced", "grpo+recentre", "gmpo", "vespo"])
def test_estimator_and_loss_make_our_gradient(name):
    batch, objective = drawn(2), objective_of(name)
    rewards = torch.zeros_like(batch.logp)
    rewards[:, 0] = batch.reward
    made = plugin.estimator(objective, WIDTH)
    advantages, returns = made(rewards, batch.mask.double(), batch.group, config=CONFIG, values=None, gamma=1.0)
    assert torch.equal(advantages, returns)
    scaled = advantages / (len(batch.group) * WIDTH)  # what seq_mean_token_sum_norm divides by
    loss = plugin.policy_loss(objective)
    got = padded_gradient(batch, lambda logp: loss(logp, batch.old, scaled, None, batch.mask.double())[0])
    torch.testing.assert_close(got, ours(name, batch), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"loss_reduction": "token_mean", "max_seq_len": WIDTH}, "weigh tokens a second time"),
        ({"loss_reduction": plugin.REDUCTION, "max_seq_len": 7}, "must be the same"),
    ],
)
def test_settings_that_would_weigh_again_are_refused(config, why):
    batch = drawn(2)
    made = plugin.estimator(objective_of("dapo"), WIDTH)
    with pytest.raises(ValueError, match=why):
        made(batch.logp, batch.mask.double(), batch.group, config=SimpleNamespace(**config))


def test_through_skyrls_registries():
    pytest.importorskip("skyrl", reason="SkyRL needs an environment of its own")
    assert engines.cell(engine_losses.skyrl, "dapo+balanced", drawn())["status"] == "exact"
    with pytest.raises(ValueError, match="hadw_history"):
        plugin.register(Objective.preset("grpo", difficulty="hadw_history"), max_seq_len=4)

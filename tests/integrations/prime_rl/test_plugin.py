"""The prime-rl adapter: sequence by sequence, with prime-rl's types where its source is there, else with stand-ins."""

import sys
import types
from types import SimpleNamespace

import pytest
import torch

from benchmarks import engine_losses, engines
from benchmarks.engine_batch import G, drawn, ours
from equipoise.integrations.prime_rl import plugin


@pytest.fixture
def _stand_in(monkeypatch):
    """prime-rl's LossOutputs, which the loss returns."""
    module = types.ModuleType("prime_rl.trainer.rl.loss")
    module.LossOutputs = SimpleNamespace
    for name in ("prime_rl", "prime_rl.trainer", "prime_rl.trainer.rl"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def gradient(batch, **kwargs):
    """What prime-rl makes of it: each sequence's loss, added up and divided by the batch's tokens."""
    reward = batch.reward.reshape(-1, G)
    advantage = (reward - reward.mean(1, keepdim=True)).reshape(-1)
    logp = batch.logp.clone().requires_grad_()
    total = sum(
        plugin.loss(
            SimpleNamespace(
                trainer_logprobs=logp[i], inference_logprobs=batch.old[i], ref_logprobs=None, loss_weights=None,
                advantages=advantage[i].expand(batch.mask.shape[1]), loss_mask=batch.mask[i],
            ),
            **kwargs,
        ).loss
        for i in range(len(batch.group))
    )  # fmt: skip
    (total / batch.mask.sum()).backward()
    return logp.grad[batch.mask]


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize("surrogate", [{"name": "ppo_clip", "low": 0.2, "high": 0.28}, {"name": "cispo", "cap": 5.0}])
def test_under_the_token_rule_the_gradient_is_ours(surrogate):
    batch = drawn(5)
    name = "dapo, r − μ" if surrogate["name"] == "ppo_clip" else "cispo, r − μ"
    got = gradient(batch, surrogate=surrogate, aggregation="token")
    torch.testing.assert_close(got, ours(name, batch), rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("_stand_in")
def test_other_rules_of_one_response_are_ours_up_to_a_factor():
    batch = drawn(5)
    clip = {"name": "ppo_clip", "low": 0.2, "high": 0.2}
    got = gradient(batch, surrogate=clip, aggregation="sequence", length=10.0)
    factor = 10.0 / float(batch.lengths.double().mean())
    torch.testing.assert_close(got, factor * ours("grpo, r − μ", batch), rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"aggregation": "balanced"}, "needs whole groups"),
        ({"aggregation": {"name": "token", "over": "group"}}, "needs whole groups"),
        ({"aggregation": "sequence"}, "needs length"),
        ({"aggregation": "token", "difficulty": "hadw"}, "must be none"),
        ({"aggregation": "token", "length_penalty": 0.2}, "sees no rewards"),
        ({"aggregation": "token", "averaged_groups": "informative"}, "must be all"),
    ],
)
def test_what_one_sequence_cannot_tell_is_refused(kwargs, why):
    with pytest.raises(ValueError, match=why):
        gradient(drawn(5), **kwargs)


def test_through_prime_rls_compute_loss():
    pytest.importorskip("prime_rl.trainer.rl.loss", reason="prime-rl has no package: put its source on PYTHONPATH")
    assert engines.cell(engine_losses.prime_rl, "dapo, r − μ", drawn())["status"] == "exact"

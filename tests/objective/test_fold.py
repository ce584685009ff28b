"""Coefficients and sums for other trainers add up to `Objective.loss`, and what cannot be had there is refused."""

import pytest
import torch

from benchmarks.engine_batch import drawn, flat, objective_of, ours
from benchmarks.engines import OBJECTIVES
from equipoise.objective import Objective, fold

FOLDED = [name for name in OBJECTIVES if name not in ("dapo+balanced+prefix", "dfpo")]


@pytest.mark.parametrize("name", FOLDED)
def test_the_sum_over_any_split_is_the_loss(name):
    batch, objective = drawn(3), objective_of(name)
    credit = fold.coefficients(objective, batch.reward, [f"g{g}" for g in batch.group], batch.lengths)
    logp = batch.logp.clone().requires_grad_()
    for rows in (slice(0, 5), slice(5, 6), slice(6, None)):  # groups are torn apart
        mask, lengths = batch.mask[rows], batch.lengths[rows]
        c = credit.coefficient[rows].repeat_interleave(lengths)
        total, clipped = fold.surrogate_sum(objective, logp[rows][mask], batch.old[rows][mask], c, lengths)
        assert 0 <= float(clipped) <= 1
        total.backward()
    torch.testing.assert_close(flat(logp.grad, batch), ours(name, batch), rtol=1e-9, atol=1e-12)


def test_a_single_token_that_is_clipped_is_all_of_them():
    one, ratio = torch.ones(1), torch.full((1,), 2.0)
    _, clipped = fold.surrogate_sum(Objective(), ratio.log(), torch.zeros(1), one, torch.ones(1, dtype=torch.int64))
    assert float(clipped) == 1.0


def test_the_sum_is_the_surrogates_value():
    """−Σ ρA inside the clipping range; its gradient alone would not say so."""
    ratio = torch.tensor([1.1, 0.9, 1.0], dtype=torch.float64)
    old = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
    c = torch.tensor([2.0, 2.0, -1.0], dtype=torch.float64)
    total, _ = fold.surrogate_sum(Objective(), old + ratio.log(), old, c, torch.tensor([2, 1]))
    assert float(total) == pytest.approx(-(2.2 + 1.8 - 1.0))


def test_a_list_of_rewards_keeps_its_precision():
    """In float32 these two would be one number."""
    credit = fold.coefficients(Objective("dr_grpo"), [1.0, 1.0 + 1e-9], ["a", "a"], [1, 1])
    assert float(credit.advantage[1]) == pytest.approx(5e-10)


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        ({"aggregation": "balanced", "cancellation": "prefix"}, "token ids"),
        ({"surrogate": "gspo", "cancellation": "min_replace"}, "whole groups"),
        ({"reward_weights": [1.0, 0.5]}, "one reward per response"),
        ({"kl": 0.1}, "kl is Engine's own"),
        ({"entropy_bonus": 0.1}, "entropy_bonus is Engine's own"),
        ({"mismatch": "tis"}, "mismatch is Engine's own"),
        ({"off_policy_mask": 0.1}, "leaves responses out"),
    ],
)
def test_what_a_micro_batch_cannot_have_is_refused(choices, why):
    with pytest.raises(ValueError, match=why):
        fold.check(Objective.preset("grpo", **choices), "Engine")


def test_a_loss_that_sees_the_batch_may_have_more():
    fold.check(Objective.preset("grpo", aggregation="balanced", cancellation="prefix"), "Engine", whole_batch=True)
    fold.check(Objective.preset("dfpo"), "Engine", whole_batch=True)

"""Values right at a boundary: an advantage of 1, a weight at its cap, a group of two, a threshold past a rate."""

import math

import pytest
import torch

from equipoise.objective import Objective


def test_min_replace_takes_an_advantage_of_one_for_one():
    """Rewards 2 and 0: A = ±1, and the smaller of the two weights goes to both."""
    plain = Objective("dr_grpo", aggregation="sequence").assign([2.0, 0.0], [0, 0], [2, 4])
    same = Objective("dr_grpo", aggregation="sequence", cancellation="min_replace").assign([2.0, 0.0], [0, 0], [2, 4])
    assert plain.advantage.tolist() == [1.0, -1.0]
    assert same.weight.tolist() == [float(plain.weight.min())] * 2


def test_a_token_that_both_of_a_group_of_two_share_is_taxed():
    objective = Objective("dr_grpo", aggregation="sequence")
    credit = objective.assign([1.0, 0.0], [0, 0], [2, 3], tokens=torch.tensor([7, 1, 7, 2, 3]))
    c = (credit.weight * credit.advantage).tolist()
    tax = abs(c[0] + c[1]) / (2 * abs(c[0]) + 3 * abs(c[1]))
    assert float(credit.metrics["bias/node_learning_tax"]) == pytest.approx(tax)


def test_a_sequence_weight_at_the_cap_is_kept():
    objective = Objective("dr_grpo", mismatch={"name": "mis", "cap": 1.0})
    credit = objective.assign([1.0, 0.0], [0, 0], [1, 1])
    logp = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    old = logp.detach().clone()
    objective.loss(logp, old, credit, torch.tensor([0, 1]), rollout_logprobs=old).loss.backward()
    assert logp.grad.tolist() == pytest.approx([-0.25, 0.25])  # as without `mis`


def test_a_threshold_past_a_success_rate_is_refused():
    with pytest.raises(ValueError, match=r"threshold = 1.5 must be a success rate"):
        Objective(difficulty={"name": "hadw", "anchor": "fixed", "threshold": 1.5})


@pytest.mark.parametrize("log_ratio", [-25.0, 25.0])
@pytest.mark.parametrize("surrogate", ["ppo_clip", "dual_clip", "gspo", "gmpo", "sapo", "symmetric_clip", "cispo"])
def test_where_log_ratios_are_clamped_a_differentiated_ratio_has_no_gradient(surrogate, log_ratio):
    """cispo's ratio only weighs log π: its gradient is that of log ρ = ±20."""
    objective = Objective("dr_grpo", surrogate=surrogate)
    credit = objective.assign([1.0, 0.0], [0, 0], [1, 1])
    old = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    logp = (old + log_ratio).requires_grad_()
    objective.loss(logp, old, credit, torch.arange(2)).loss.backward()
    weight = min(math.exp(math.copysign(20.0, log_ratio)), 5.0) if surrogate == "cispo" else 0.0
    torch.testing.assert_close(-logp.grad, weight * credit.coefficient, rtol=1e-12, atol=0.0)

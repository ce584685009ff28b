"""Accuracy is not the shaped reward: success rates, anchor and history come of accuracies, advantages of rewards."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq

from . import reference
from .cases import draw

ANCHORED = {"name": "hadw", "anchor": "fixed", "threshold": 0.4}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_hadw_takes_p_hat_from_accuracies_and_advantages_from_shaped_rewards(seed):
    case = draw(seed)
    g = torch.Generator().manual_seed(seed)
    shaped = case.rewards - torch.rand(len(case.rewards), generator=g).double()  # below 0 for most wrong responses
    got = eq.Objective("dr_grpo", ANCHORED).assign(shaped, case.group, case.lengths, accuracy=case.rewards).advantage
    r, group = shaped.tolist(), case.group.tolist()
    plain = reference.advantage("dr_grpo", r, case.lengths.tolist(), group)
    want = reference.hadw(plain, case.rewards.tolist(), group, 0.4, 1.3)
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_overlong_shaping_with_hadw_works():
    """Without accuracies rewards below 0 are refused; with them they only shape the advantage."""
    rewards, accuracy = [1.0, 0.3, -1.0, 0.0], [1.0, 1.0, 0.0, 0.0]
    objective = eq.Objective(difficulty="hadw")
    with pytest.raises(ValueError, match=r"rewards lie in \[-1, 1\].*accuracy="):
        objective.assign(rewards, [0] * 4, [3] * 4)
    credit = objective.assign(rewards, [0] * 4, [3] * 4, accuracy=accuracy)
    assert credit.advantage.isfinite().all()
    assert objective.state_dict()["difficulty"]["observations"] == [0.5]


def test_the_anchor_learns_of_all_that_was_sampled():
    """Four groups sampled, the two that nobody solved dropped: the anchor is .25, not .5."""
    kept = {"rewards": [1.0, 0.0, 1.0, 0.0], "group": [0, 0, 1, 1], "lengths": [1, 2, 3, 4]}
    objective = eq.Objective(difficulty="hadw")
    first = objective.assign(**kept, batch_accuracy=0.25)
    assert objective.state_dict()["difficulty"]["observations"] == [0.25]
    assert float(first.metrics["difficulty/anchor"]) == 0.25
    for wrong in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match="batch_accuracy"):
            objective.assign(**kept, batch_accuracy=wrong)
    assert objective.state_dict()["difficulty"]["observations"] == [0.25]


def test_unknown_accuracies_take_no_part():
    """p̂ is over the known ones; a group without any has diff = 0; all unknown is as if none were given."""
    nan = math.nan
    rewards, group = [1.0, 0.0, 0.0, 1.0, 0.0], [0, 0, 0, 1, 1]
    objective = eq.Objective("dr_grpo", ANCHORED)
    A = objective.assign(rewards, group, [1] * 5, accuracy=[1.0, 0.0, nan, nan, nan]).advantage
    plain = eq.Objective("dr_grpo").assign(rewards, group, [1] * 5).advantage
    phi = [1.3 * math.exp(-s * 0.1) for s in (1, -1, -1)] + [1.3, 1.3]
    assert A.tolist() == pytest.approx([f * a for f, a in zip(phi, plain.tolist(), strict=True)])
    none = eq.Objective("dr_grpo", ANCHORED).assign(rewards, group, [1] * 5, accuracy=[nan] * 5).advantage
    assert torch.equal(none, eq.Objective("dr_grpo", ANCHORED).assign(rewards, group, [1] * 5).advantage)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"accuracy": [1.0, 0.0, 1.5, 0.0]}, r"accuracy\[2\] = 1.5: an accuracy lies in \[0, 1\]"),
        ({"accuracy": [1.0, 0.0]}, r"accuracy has shape \(2,\)"),
        ({"history": [[2.0, 1.0]] * 4}, r"history\[0\] = \[2.0, 1.0\]: 0 ≤ successes ≤ attempts"),
        ({"history": [[0.0, 1.0]] * 3 + [[math.nan, 1.0]]}, r"history\[3\]"),
        ({"history": [[0.0, 1.0, 2.0, 3.0]] * 4}, r"history has shape \(4, 4\)"),
    ],
)
def test_refused(change, sentence):
    objective = eq.Objective(difficulty="hadw_history")
    with pytest.raises(ValueError, match=sentence):
        objective.assign([1.0, 0.0, 1.0, 0.0], [0, 0, 1, 1], [1, 2, 3, 4], **change)


def test_debias_is_by_accuracy_and_leaves_unmixed_groups_alone():
    """The second group is all right, but shaped apart: nothing to correct there, and no division by 0."""
    shaped, accuracy = [1.0, 0.0, 0.0, 0.9, 0.2, 1.0], [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    o = eq.Objective("dr_grpo", {"name": "debias", "anchor": "fixed", "threshold": 0.3})
    group = [0, 0, 0, 1, 1, 1]
    A = o.assign(shaped, group, [1] * 6, accuracy=accuracy).advantage
    c = (1 - 0.7**3 - 0.3**3) / (1 - 0.3**2)
    assert A[:3].tolist() == pytest.approx([1 - c / 3, -c / 3, -c / 3])
    assert A[3:].tolist() == pytest.approx([0.2, -0.5, 0.3])
    with pytest.raises(ValueError, match="debias needs accuracies"):
        o.assign(shaped, group, [1] * 6, accuracy=[0.5, *accuracy[1:]])


# history: a Beta prior and a decay


@pytest.mark.parametrize("name", ["hadw_history", "debias"])
def test_one_attempt_is_not_certainty(name):
    """One failed attempt moves the estimate to κm/(1+κ), not to 0; many attempts move it to their rate."""
    o = eq.Objective(
        "dr_grpo", {"name": name, "anchor": "fixed", "threshold": 0.5, "prior_attempts": 2.0, "decay": 0.5}
    )
    m = torch.tensor([0.5, 0.5, 0.5, 0.25, 0.25], dtype=torch.float64)
    counts = torch.tensor([[0, 1, 0], [0, 1000, 0], [0, 0, 0], [3, 4, 0], [3, 4, 2]], dtype=torch.float64)
    h = o.difficulty.estimate(counts, m).tolist()
    assert h[0] == pytest.approx(2 * 0.5 / 3)
    assert h[1] == pytest.approx(1 / 1002)
    assert h[2] == 0.5
    assert h[3] == pytest.approx((3 + 2 * 0.25) / 6)
    assert h[4] == pytest.approx((0.75 + 2 * 0.25) / 3)  # two steps at decay ½: one attempt is left, of rate ¾
    with_age = o.difficulty.estimate(counts, m)
    assert torch.equal(o.difficulty.estimate(counts[:4, :2], m[:4]), with_age[:4])


def test_no_prior_takes_the_counts_at_their_word():
    o = eq.Objective("dr_grpo", {"name": "debias", "anchor": "fixed", "threshold": 0.5, "prior_attempts": 0.0})
    counts, m = torch.tensor([[1.0, 4.0, 0.0]]), torch.tensor([0.9])
    assert o.difficulty.estimate(counts, m).tolist() == pytest.approx([0.25])


@pytest.mark.parametrize("past", [[1.0, math.inf, 0.0], [-1.0, 4.0, 0.0], [1.0, 4.0, -1.0], [5.0, 4.0, 0.0]])
def test_counts_that_are_none_are_refused(past):
    with pytest.raises(ValueError, match=r"history.*0 ≤ successes ≤ attempts"):
        eq.Objective("dr_grpo", "hadw_history").assign([1.0, 0.0], [0, 0], [3, 3], history=[past, past])


def test_debias_names_the_two_accuracies_there_are():
    o = eq.Objective("dr_grpo", {"name": "debias", "anchor": "fixed", "threshold": 0.5})
    with pytest.raises(ValueError, match=r"needs accuracies that are one of \(0\.0, 1\.0\)"):
        o.assign([1.0, 0.0], [0, 0], [3, 3], accuracy=[0.5, 0.0])


def test_the_baselines_bias_is_a_mean_over_mixed_groups_alone():
    alone = eq.Objective().assign([1.0, 0.0, 0.0], ["a"] * 3, [3] * 3)
    beside = eq.Objective().assign([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], ["a"] * 3 + ["b"] * 2 + ["c"] * 2, [3] * 7)
    assert float(alone.metrics["bias/baseline_bias"]) > 0
    assert float(beside.metrics["bias/baseline_bias"]) == pytest.approx(float(alone.metrics["bias/baseline_bias"]))


def test_counts_reach_the_weight():
    o = eq.Objective("dr_grpo", {"name": "hadw_history", "anchor": "fixed", "threshold": 0.5})
    A = o.assign([1.0, 0.0, 0.0, 0.0], [0] * 4, [3] * 4, history=[[0.0, 6.0]] * 4).advantage
    h = 2 * 0.25 / 8
    right, wrong = 1.3 * math.exp(0.5 - h) * 0.75, -1.3 * math.exp(h - 0.5) * 0.25
    assert A.tolist() == pytest.approx([right, wrong, wrong, wrong])


@pytest.mark.parametrize(("option", "value"), [("prior_attempts", -1.0), ("decay", 0.0), ("decay", 1.1)])
def test_options_of_the_history_have_a_range(option, value):
    with pytest.raises(ValueError, match=option):
        eq.Objective(difficulty={"name": "debias", option: value})


def test_a_prompt_may_have_been_solved_every_time():
    """successes = attempts is a history like any other; one more is refused."""
    o = eq.Objective("dr_grpo", {**ANCHORED, "name": "hadw_history"})
    batch = ([1.0, 0.0, 0.0, 0.0], [0] * 4, [3] * 4)
    h = (6 + 2 * 0.25) / 8
    right = 1.3 * math.exp(0.4 - h) * 0.75
    assert float(o.assign(*batch, history=[[6.0, 6.0]] * 4).advantage[0]) == pytest.approx(right)
    with pytest.raises(ValueError, match="0 ≤ successes ≤ attempts"):
        o.assign(*batch, history=[[7.0, 6.0]] * 4)


def test_the_anchor_sees_rewards_of_another_range_as_rates():
    """One of four right on [−1, 1] is a quarter, as it is on [0, 1]."""
    o = eq.Objective("dr_grpo", {"name": "hadw", "reward_range": [-1.0, 1.0]})
    o.assign([1.0, -1.0, -1.0, -1.0], [0] * 4, [3] * 4)
    assert o.difficulty.observations == [0.25]


@pytest.mark.parametrize("eta", [0.0, -1.0, math.inf, math.nan])
def test_the_anchors_gain_must_be_positive(eta):
    assert eq.Objective(difficulty={"name": "hadw", "eta": 0.5, "memory": 1}).difficulty.eta == 0.5
    with pytest.raises(ValueError, match="eta > 0"):
        eq.Objective(difficulty={"name": "hadw", "eta": eta})


def test_token_ids_may_come_as_a_list():
    credit = eq.Objective(aggregation="balanced", cancellation="prefix").assign(
        [1.0, 0.0], [0, 0], [2, 2], tokens=[1, 2, 1, 3]
    )
    assert len(credit.weight) == 4


def test_rewards_on_their_range_are_rates():
    difficulty = eq.Objective(difficulty={"name": "hadw", "reward_range": [-1.0, 3.0]}).difficulty
    assert difficulty.rate(torch.tensor([-1.0, 0.0, 3.0])).tolist() == [0.0, 0.25, 1.0]

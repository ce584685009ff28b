"""What turns a published correction up and down: balanced's options, and HA-DW's sharpness."""

import math

import numpy as np
import pytest
import torch

from equipoise.objective import Objective

REWARDS = [1, 0, 0, 1, 0, 1, 0, 0, 1, 1]
GROUP = [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
LENGTHS = [10, 25, 31, 14, 8, 30, 9, 12, 28, 40]


def assigned(**choices):
    return Objective(**choices).assign(REWARDS, GROUP, LENGTHS)


def balanced(strength):
    return assigned(aggregation={"name": "balanced", "strength": strength})


def test_strength_goes_from_token_to_balanced():
    token = assigned(aggregation={"name": "token", "over": "group"})
    assert torch.allclose(balanced(0.0).weight, token.weight)
    assert torch.allclose(balanced(1.0).weight, assigned(aggregation="balanced").weight)


@pytest.mark.parametrize("strength", [-3.0, -0.5, 0.0, 0.5, 1.0, 4.0])
def test_strength_sets_the_ratio_of_the_pulls(strength):
    """positives : negatives = (T̄+/T̄−)^(1 − strength), in every group."""
    credit = balanced(strength)
    A, c = credit.advantage.numpy(), (credit.weight * credit.advantage).numpy()
    T, group = np.array(LENGTHS, dtype=float), np.array(GROUP)
    for g in (0, 1):
        up, down = (group == g) & (A > 0), (group == g) & (A < 0)
        pulls = (c * T)[up].sum() / -(c * T)[down].sum()
        assert pulls == pytest.approx((T[up].mean() / T[down].mean()) ** (1 - strength))


def test_strength_where_most_responses_have_no_tokens():
    """T̄ = ¾ is below one token: ℓ = T̄·(T/T̄)^½ for the two that have any."""
    half = Objective("dr_grpo", aggregation={"name": "balanced", "strength": 0.5})
    credit = half.assign([1, 0, 0, 0], [0] * 4, [1, 2, 0, 0])
    lengths = 1 / (4 * credit.weight[:2])
    assert lengths.tolist() == pytest.approx([math.sqrt(0.75), math.sqrt(1.5)])


def test_over_the_batch_a_group_weighs_by_its_tokens_and_stays_balanced():
    """Against balanced over the group: c of every response times the group's mean length over the batch's."""
    batch = {"name": "balanced", "over": "batch"}
    wide, own = assigned(aggregation=batch), assigned(aggregation="balanced")
    T, group = torch.tensor(LENGTHS, dtype=torch.float64), torch.tensor(GROUP)
    for g in (0, 1):
        inside = group == g
        assert float((wide.weight * wide.advantage * T)[inside].sum()) == pytest.approx(0, abs=1e-12)
        # ΣT/(P·G): the batch's mean length, as groups of this size would have it
        factor = T[inside].mean() / (T.sum() / (2 * inside.sum()))
        assert torch.allclose(wide.weight[inside], own.weight[inside] * factor)
    token = assigned(aggregation={"name": "token", "over": "batch"})
    assert torch.allclose(assigned(aggregation={**batch, "strength": 0.0}).weight, token.weight)


def test_over_the_batch_a_kl_and_shared_tokens_weigh_as_under_token():
    """A KL and a token that all share have no sign: 1/N each, whatever the group."""
    tokens = [[7] + [i + 10] * (n - 1) for i, n in enumerate(LENGTHS)]  # the first token is shared
    objective = Objective(aggregation={"name": "balanced", "over": "batch"}, cancellation="prefix", kl=0.1)
    credit = objective.assign(REWARDS, GROUP, LENGTHS, tokens=torch.tensor([one for ids in tokens for one in ids]))
    first = torch.tensor([0, *LENGTHS[:-1]]).cumsum(0)
    each = torch.full((len(LENGTHS),), 1 / sum(LENGTHS), dtype=torch.float64)
    assert torch.allclose(credit.weight[first], each)
    assert torch.allclose(credit.kl_weight, each)


@pytest.mark.parametrize("imbalance", [-0.9, -0.3, 0.0, 0.5])
def test_imbalance_is_the_share_that_it_says(imbalance):
    credit = assigned(aggregation={"name": "balanced", "imbalance": imbalance})
    c, T, group = (credit.weight * credit.advantage).numpy(), np.array(LENGTHS, dtype=float), np.array(GROUP)
    for g in (0, 1):
        push = (c * T)[group == g]
        assert push.sum() / np.abs(push).sum() == pytest.approx(imbalance)
        # What the group pulls in all is as before: only its share between the signs changes.
        before = (balanced(1.0).weight * credit.advantage).numpy() * T
        assert np.abs(push).sum() == pytest.approx(np.abs(before[group == g]).sum())
    assert float(credit.metrics["bias/mass_balance"]) == pytest.approx(imbalance)


@pytest.mark.parametrize("wrong", [-1.0, 1.0])
def test_an_imbalance_that_silences_a_sign_is_refused(wrong):
    with pytest.raises(ValueError, match=r"aggregation.imbalance = .* must lie between -1 and 1"):
        Objective(aggregation={"name": "balanced", "imbalance": wrong})


def hadw(**options):
    return {"name": "hadw", "anchor": "fixed", "threshold": 0.4, **options}


def test_sharpness_multiplies_the_distance_from_the_anchor():
    plain = assigned().advantage.tolist()
    for sharpness in (0.0, 0.5, 1.0, 2.0, 3.0):
        weighted = assigned(difficulty=hadw(lam=2.0, sharpness=sharpness)).advantage.tolist()
        for g, A, found in zip(GROUP, plain, weighted, strict=True):
            p_hat = np.mean([r for r, h in zip(REWARDS, GROUP, strict=True) if h == g])
            expected = 2.0 * math.exp(-math.copysign(1, A) * sharpness * (p_hat - 0.4)) * A
            assert found == pytest.approx(expected)


def test_sharpness_is_one_unless_said():
    assert torch.equal(assigned(difficulty=hadw()).advantage, assigned(difficulty=hadw(sharpness=1.0)).advantage)


@pytest.mark.parametrize("wrong", [-1.0, math.inf])
def test_a_sharpness_that_turns_hard_into_easy_is_refused(wrong):
    with pytest.raises(ValueError, match=r"sharpness = .* must not be negative"):
        Objective(difficulty=hadw(sharpness=wrong))


def test_a_strength_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match=r"aggregation.strength = inf must be a finite number"):
        Objective(aggregation={"name": "balanced", "strength": math.inf})


def test_an_objective_says_that_it_is_not_the_papers():
    half = Objective(aggregation={"name": "balanced", "strength": 0.5})
    assert any("(T̄+/T̄−)^0.5 : 1" in note for note in half.notes)
    assert not Objective(aggregation="balanced").notes

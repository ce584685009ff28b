"""No silent nonsense: options out of range, credits that are not numbers, stacks that undo a choice they name."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.objective.surrogate import SURROGATES

from .cases import draw, relative

NAN = math.nan


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"advantage": {"name": "grpo", "eps": 0.0}}, "eps = 0.0 must be positive"),
        ({"advantage": {"name": "grpo", "eps": NAN}}, "eps = nan must be positive"),
        ({"advantage": {"name": "maxrl", "eps": 0.0}}, "must be positive"),
        ({"difficulty": {"name": "hadw", "lam": NAN}}, "lam = nan must be positive"),
        ({"difficulty": {"name": "hadw", "lam": math.inf}}, "must be positive"),
        ({"difficulty": {"name": "hadw", "threshold": 7.0}}, "threshold = 7.0 must be a success rate"),
        ({"difficulty": {"name": "debias", "threshold": NAN}}, "must be a success rate"),
        ({"difficulty": {"name": "hadw", "eta": NAN}}, "eta > 0"),
        ({"difficulty": {"name": "hadw", "reward_range": (0.0, math.inf)}}, "low < high"),
        ({"surrogate": {"name": "ppo_clip", "low": 1.5}}, "low = 1.5 must lie between 0 and 1"),
        ({"surrogate": {"name": "gspo", "low": NAN}}, "must lie between 0 and 1"),
        ({"surrogate": {"name": "ppo_clip", "high": math.inf}}, "must not be negative"),
        ({"surrogate": {"name": "dual_clip", "cap": 0.5}}, "cap = 0.5 must be at least 1"),
        ({"surrogate": {"name": "cispo", "cap": 0.9}}, "must be at least 1"),
        ({"surrogate": {"name": "aspo", "cap": NAN}}, "must be at least 1"),
        ({"mismatch": {"name": "tis", "cap": 0.5}}, "must be at least 1"),
        ({"mismatch": {"name": "icepop", "beta": 0.5}}, "must be at least 1"),
        ({"surrogate": {"name": "ppo_clip", "low": True}}, "should be like its default"),
        ({"surrogate": {"name": "dfpo", "ratio": "sum"}}, "product, mean"),
        ({"aggregation": {"name": "balanced", "masked": "keep"}}, "drop, pass"),
        ({"reward_weights": (1.0, NAN)}, "reward_weights"),
        ({"reward_weights": ()}, "reward_weights"),
        ({"off_policy_mask": -0.1}, "off_policy_mask"),
        ({"advantage": "none", "difficulty": "hadw"}, "no baseline"),
        ({"surrogate": "gmpo", "mismatch": "icepop"}, "geometric mean"),
    ],
)
def test_options_out_of_range_are_refused_when_built(choices, sentence):
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        eq.Objective(**choices)


def test_a_choice_without_options_says_so():
    with pytest.raises(ValueError, match=r"objective\.difficulty\.lam: difficulty = none takes no options"):
        eq.Objective(difficulty={"name": "none", "lam": 1.5})


def test_bounds_of_log_ratios_may_exceed_one():
    objective = eq.Objective(surrogate={"name": "gmpo", "low": 1.5, "high": 1.5})
    assert objective.surrogate.options["low"] == 1.5


def test_a_coefficient_that_is_no_number_is_refused_by_assign_and_flagged_by_loss():
    objective = eq.Objective("dr_grpo")
    with pytest.raises(ValueError, match=r"the coefficient of response 0 is (nan|-?inf)"):
        objective.assign([1.5e308, 1.5e308, -1.0], [0, 0, 0], [1, 1, 1])  # their sum is infinite
    credit = objective.assign([1.0, 0.0], [0, 0], [1, 1])
    flat, response = torch.full((2,), -1.0, requires_grad=True), torch.tensor([0, 1])
    assert bool(objective.loss(flat, flat.detach(), credit, response).ok)
    for bad in (NAN, math.inf):
        broken = dataclasses.replace(credit, weight=torch.tensor([bad, 0.5], dtype=torch.float64))
        assert not bool(objective.loss(flat, flat.detach(), broken, response).ok)


def test_recentre_turns_no_sign_and_counts_where_it_would_have():
    """sequence, right T = 1, 60 and wrong T = 4, 4: c ∝ 1, 1/60, −¼, −¼, whose mean is above 1/60."""
    o = eq.Objective("dr_grpo", aggregation="sequence", cancellation="recentre")
    credit = o.assign([1.0, 1.0, 0.0, 0.0], [0] * 4, [3, 3, 3, 3])
    assert float(credit.metrics["cancellation/turned"]) == 0
    credit = o.assign([1.0, 1.0, 0.0, 0.0], [0] * 4, [1, 60, 4, 4])
    assert float(credit.metrics["cancellation/turned"]) == pytest.approx(0.25)
    assert credit.coefficient[1] == 0
    signs = torch.sign(credit.coefficient).tolist()
    assert signs == [1, 0, -1, -1]
    beside = o.assign([1.0, 1.0, 0.0, 0.0, 1.0, 1.0], [0] * 4 + [1] * 2, [1, 60, 4, 4, 3, 3])
    assert float(beside.metrics["cancellation/turned"]) == pytest.approx(0.25)  # of those that pull
    assert beside.weight[4:].tolist() == [0.0, 0.0]


def test_orthogonal_clamps_at_zero_and_says_how_many():
    """w = ¼, 1/240, 1/16, 1/16 and A = ±½: w − (ΣAw/ΣA²)A is below 0 for the second alone."""
    o = eq.Objective("dr_grpo", aggregation="sequence", cancellation="orthogonal")
    credit = o.assign([1.0, 1.0, 0.0, 0.0], [0] * 4, [1, 60, 4, 4])
    assert (credit.weight == 0).tolist() == [False, True, False, False]
    assert float(credit.metrics["cancellation/clamped"]) == pytest.approx(0.25)


def test_recentring_hadw_turns_no_sign_and_counts_where_it_would_have():
    """A = .74, .04, −.26 × 3 and C = 1: Φ = e^±.74 leaves a mean of .25, above the second's ΦA of .08."""
    hadw = {"name": "hadw", "anchor": "fixed", "threshold": 1.0, "lam": 1.0}
    rewards = [1.0, 0.3, 0.0, 0.0, 0.0]
    weighted = eq.Objective("dr_grpo", hadw).assign(rewards, [0] * 5, [1] * 5).advantage
    credit = eq.Objective("dr_grpo", {**hadw, "recentre": True}).assign(rewards, [0] * 5, [1] * 5)
    centred = (weighted - weighted.mean()).tolist()
    assert centred[1] < 0 < float(weighted[1])
    assert credit.advantage.tolist() == pytest.approx([centred[0], 0.0, *centred[2:]])
    assert float(credit.metrics["difficulty/turned"]) == pytest.approx(0.2)


def test_a_masked_response_takes_its_mass_with_it_unless_asked_to_pass_it_on():
    """Two wrong responses, one of them masked: the other keeps its own mass (drop) or has both (pass)."""
    batch = ([1.0, 1.0, 0.0, 0.0], [0] * 4, [4, 4, 8, 0])
    whole = eq.Objective("dr_grpo", aggregation="balanced").assign(batch[0], batch[1], [4, 4, 8, 8])
    drop = eq.Objective("dr_grpo", aggregation="balanced").assign(*batch)
    passed = eq.Objective("dr_grpo", aggregation={"name": "balanced", "masked": "pass"}).assign(*batch)
    assert float(drop.coefficient[2]) == pytest.approx(float(whole.coefficient[2]))
    assert float(passed.coefficient[2]) == pytest.approx(2 * float(whole.coefficient[2]))
    assert float(drop.metrics["bias/masked_mass"]) == pytest.approx(0.25)
    assert float(whole.metrics["bias/masked_mass"]) == 0
    assert float(drop.metrics["bias/mass_imbalance"]) == pytest.approx(1 / 3)
    assert float(passed.metrics["bias/mass_imbalance"]) == pytest.approx(0)


@pytest.mark.parametrize("cancellation", ["min_replace", "orthogonal", "recentre"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_the_note_says_is_so(cancellation, seed):
    """balanced under a cancellation with binary rewards: within a group, the token rule times a factor."""
    case = draw(seed, empty=False)
    objective = eq.Objective(aggregation="balanced", cancellation=cancellation, surrogate="symmetric_clip")
    c = objective.assign(case.rewards, case.group, case.lengths).coefficient
    token = eq.Objective(aggregation={"name": "token", "over": "group"})
    want = token.assign(case.rewards, case.group, case.lengths).coefficient
    for g in set(case.group.tolist()):
        mine, theirs = c[case.group == g], want[case.group == g]
        if theirs.abs().max() > 0:
            factor = float((mine @ theirs) / (theirs @ theirs))
            assert relative(mine, factor * theirs) < 1e-9
    assert any("token rule times a factor per group" in note for note in objective.notes)


@pytest.mark.parametrize("choices", [
    {"difficulty": {"name": "hadw", "anchor": "fixed", "threshold": 0.3}},
    {"difficulty": "debias"},
    {"advantage": "opo"},
])  # fmt: skip
def test_without_a_zero_sum_it_is_not_the_token_rule(choices):
    rewards, lengths = [1.0, 0.0, 0.0, 0.0], torch.tensor([3, 9, 7, 5])

    def coefficients(**more):
        return eq.Objective(**{"advantage": "dr_grpo", **choices, **more}).assign(rewards, [0] * 4, lengths).coefficient

    factor = coefficients(aggregation="balanced", cancellation="recentre") / coefficients(aggregation="token")
    assert float(factor.max() / factor.min()) > 1.05
    notes = eq.Objective(**choices, aggregation="balanced", cancellation="recentre").notes
    assert not any("token rule" in note for note in notes)


RECENTRED = {"aggregation": "sequence", "cancellation": "recentre", "surrogate": "symmetric_clip"}


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({}, []),
        ({"aggregation": "balanced"}, []),
        ({"aggregation": "sequence", "cancellation": "min_replace", "surrogate": "symmetric_clip"}, ["one weight"]),
        ({"aggregation": "token", "cancellation": "orthogonal", "surrogate": "reinforce"}, ["exchangeable already"]),
        ({"aggregation": "sequence", "cancellation": "orthogonal"}, ["undoes orthogonal off-policy"]),
        ({"aggregation": "balanced", "difficulty": "hadw"}, ["no longer makes them pull equally"]),
        ({"aggregation": "balanced", "advantage": "opo"}, ["advantage = opo does not sum to 0"]),
        ({"aggregation": "balanced", "advantage": {"name": "reinforce_pp", "whiten": "responses"}}, []),
        ({"aggregation": "balanced", "cancellation": "prefix"}, ["undoes prefix off-policy"]),
        ({"surrogate": "gspo", "cancellation": "recentre"}, ["gspo weighs every response by its own ratio"]),
        ({"surrogate": "vespo", "cancellation": "both"}, ["vespo weighs every response by its own ratio"]),
        ({**RECENTRED, "mismatch": "tis"}, []),
        ({**RECENTRED, "mismatch": "mis"}, ["mismatch = mis weighs every response by its own ratio"]),
        ({**RECENTRED, "off_policy_mask": 0.1}, ["off_policy_mask leaves out responses of one sign"]),
        ({"surrogate": "gspo", "cancellation": "min_replace"}, ["without its trust region"]),
        ({"surrogate": "gspo", "cancellation": "orthogonal"}, ["without its trust region"]),
        ({"surrogate": "gmpo", "cancellation": "min_replace"}, ["without its trust region"]),
        ({"surrogate": "vespo", "cancellation": "orthogonal"}, ["without its trust region"]),
        ({"surrogate": "vespo", "cancellation": "min_replace"}, []),
        ({"surrogate": "dfpo", "cancellation": "min_replace"}, []),
    ],
)
def test_notes_say_what_a_stack_undoes(choices, said):
    objective = eq.Objective(**choices)
    assert len(objective.notes) == len(said)
    for words, note in zip(said, objective.notes, strict=True):
        assert words in note
        assert note in str(objective)
    assert "note" not in repr(objective)


@pytest.mark.parametrize("surrogate", list(SURROGATES))
def test_the_note_on_what_undoes_a_cancellation_is_true(surrogate):
    """A token that all responses share, off-policy: is its net push 0, as `recentre` left it?"""
    objective = eq.Objective("dr_grpo", cancellation="recentre", surrogate=surrogate)
    lengths = torch.tensor([3, 5, 4, 6])
    credit = objective.assign([1.0, 1.0, 0.0, 0.0], [0] * 4, lengths)
    response, position = eq.response_ids(lengths), eq.positions(lengths)
    old = torch.full((18,), -0.7, dtype=torch.float64)
    logp = old + torch.where(position == 0, 0.05, 0.02 * response.to(old.dtype))
    if surrogate in ("ppo_clip", "dual_clip", "aspo", "dppo"):  # beyond the end at which one sign is cut
        logp = logp + 0.4 * (position == 0)
    logp.requires_grad_()
    objective.loss(logp, old, credit, response).loss.backward()
    push = logp.grad[position == 0]
    undone = float(push.sum().abs() / push.abs().sum()) > 1e-9
    assert undone == any("undoes recentre off-policy" in note for note in objective.notes)


@pytest.mark.parametrize("cancellation", ["min_replace", "orthogonal"])
@pytest.mark.parametrize("surrogate", ["gspo", "gmpo", "vespo", "dfpo"])
def test_the_note_on_the_trust_region_is_true(surrogate, cancellation):
    """A response that has gone where its advantage pushed it, the others at π_old: is it pushed on?"""
    objective = eq.Objective("dr_grpo", aggregation="constant", surrogate=surrogate, cancellation=cancellation)
    lengths = torch.tensor([4, 4, 4, 4])
    credit = objective.assign([1.0, 1.0, 0.0, 0.0], [0] * 4, lengths)
    response = eq.response_ids(lengths)
    old = torch.full((16,), -5.0, dtype=torch.float64)
    logp = (old + 0.5 * (response == 0)).requires_grad_()
    objective.loss(logp, old, credit, response).loss.backward()
    pushed = float(logp.grad[response == 0].abs().max() / credit.full_weight[0])
    assert (pushed > 0.05) == any("trust region" in note for note in objective.notes)


@pytest.mark.parametrize("preset", list(eq.PRESETS))
def test_no_published_objective_needs_a_note(preset):
    assert eq.Objective.preset(preset).notes == ()


@pytest.mark.parametrize(("difficulty", "noted"), [
    ("debias", True), ("hadw", True), ("hadw_history", True), ("none", False),
    ({"name": "hadw", "recentre": True}, False),
])  # fmt: skip
def test_a_note_says_where_difficulty_undoes_balance(difficulty, noted):
    notes = eq.Objective(aggregation="balanced", difficulty=difficulty).notes
    assert any("no longer makes them pull equally" in note for note in notes) == noted


def test_lengths_within_groups_by_hand():
    """A long and a short prompt, both without a gap of their own: the batch's gap is the prompts', not the signs'."""
    rewards, group = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0], [0, 0, 0, 1, 1, 1]
    m = eq.Objective().assign(rewards, group, [10, 10, 10, 90, 90, 90]).metrics
    assert float(m["bias/length_gap"]) == pytest.approx((190 / 3 - 110 / 3) / 50)
    assert float(m["bias/group_length_gap"]) == 0
    assert float(m["bias/length_cv"]) == pytest.approx(0.8)
    assert float(m["bias/group_length_cv"]) == 0
    m = (
        eq.Objective().assign([1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1], [2, 6, 1, 99]).metrics
    )  # the second group has one sign
    assert float(m["bias/group_length_gap"]) == pytest.approx(1.0)
    assert float(m["bias/group_length_cv"]) == pytest.approx(0.5)


def test_a_response_without_an_advantage_has_no_sign():
    """r = 1, ½, 0: the one in the middle, which is by far the longest, belongs to neither side of the gap."""
    m = eq.Objective("dr_grpo").assign([1.0, 0.5, 0.0], [0, 0, 0], [4, 400, 10]).metrics
    assert float(m["bias/length_gap"]) == pytest.approx(6 / 138)
    assert float(m["bias/group_length_gap"]) == pytest.approx(6 / 138)

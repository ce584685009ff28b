"""HA-DW on the prompt's own history: ours, so against its definition by hand and the properties it is meant to have."""

import math

import pytest
import torch

import equipoise as eq


def advantages(difficulty, rewards, history, group=None):
    o = eq.Objective(advantage="dr_grpo", difficulty={"name": difficulty, "anchor": "fixed", "threshold": 0.5})
    group = [0] * len(rewards) if group is None else group
    return o.assign(rewards, group, [3] * len(rewards), history=history).advantage


def test_the_weight_by_hand():
    A = advantages("hadw_history", [1.0, 0.0, 0.0, 0.0], [0.1] * 4)
    right, wrong = 1.3 * math.exp(0.4) * 0.75, -1.3 * math.exp(-0.4) * 0.25
    assert A.tolist() == pytest.approx([right, wrong, wrong, wrong])


def test_without_history_it_is_the_papers():
    rewards, group = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0], [0, 0, 0, 0, 1, 1]
    plain = advantages("hadw", rewards, None, group)
    assert torch.equal(advantages("hadw_history", rewards, None, group), plain)
    assert torch.equal(advantages("hadw_history", rewards, [math.nan] * 6, group), plain)
    mixed = advantages("hadw_history", rewards, [0.2] * 4 + [math.nan] * 2, group)
    assert torch.equal(mixed[4:], plain[4:])
    assert not torch.equal(mixed[:4], plain[:4])


def test_a_prompt_known_to_be_hard_is_credited_more_whatever_this_group_did():
    """Three of four right, but one in twenty so far: the paper's rule sees an easy prompt, the history a hard one."""
    rewards = [1.0, 1.0, 1.0, 0.0]
    bare = advantages("hadw_history", rewards, [0.5] * 4)
    hard, paper = advantages("hadw_history", rewards, [0.05] * 4), advantages("hadw", rewards, [0.05] * 4)
    assert (hard[:3] > bare[:3]).all()
    assert (paper[:3] < bare[:3]).all()
    assert torch.equal(torch.sign(hard), torch.sign(paper))


def test_a_rate_outside_its_range_is_refused():
    with pytest.raises(ValueError, match=r"history.*\[0, 1\]"):
        advantages("hadw_history", [1.0, 0.0], [1.5, 1.5])


def test_an_anchor_that_never_moved_learns_the_mean_of_what_it_saw():
    """σ = 0 of equal anchors would freeze C for ever, and any other value would let one batch set it."""
    o = eq.Objective(advantage="dr_grpo", difficulty={"name": "hadw", "memory": 4})
    for rate in (0.3, 0.3, 0.3, 0.3, 0.7):
        o.assign([1.0, 0.0], [0, 0], [3, 3], batch_accuracy=rate)
    assert o.state_dict()["difficulty"]["anchors"][-1] == pytest.approx((3 * 0.3 + 0.7) / 4)

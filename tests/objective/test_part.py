"""Mini-batches in the library: the credit of a part of the batch."""

import pytest
import torch

from equipoise import Objective

CHOICES = {
    "sequence": {},
    "token": {"aggregation": "token"},
    "balanced+min_replace": {"aggregation": "balanced", "cancellation": "orthogonal"},
    "prefix": {"cancellation": "prefix"},
    "informative": {"averaged_groups": "informative", "aggregation": "balanced"},
    "gspo+min_replace": {"surrogate": "gspo", "cancellation": "min_replace"},
    "all terms": {"kl": 0.1, "entropy_bonus": 0.2, "aggregation": "token"},
}


def batch(seed=0, P=6, G=4):
    draw = torch.Generator().manual_seed(seed)
    rewards = torch.randint(0, 2, (P * G,), generator=draw).double()
    rewards[:G] = 1.0  # a group without an advantage
    group = torch.arange(P).repeat_interleave(G)
    lengths = torch.randint(1, 7, (P * G,), generator=draw)
    tokens = torch.randint(0, 2, (int(lengths.sum()),), generator=draw)
    return rewards, group, lengths, tokens


def gradient(objective, credit, rows, lengths):
    """∂loss/∂log π of the tokens of `rows` [B] bool, with ratios away from 1, and 0 for the others."""
    response = torch.arange(len(lengths)).repeat_interleave(lengths)
    position = torch.arange(len(response)) - (lengths.cumsum(0) - lengths)[response]
    n = len(response)
    draw = torch.Generator().manual_seed(5)
    old = -torch.rand(n, dtype=torch.float64, generator=draw)
    new = (old + 0.3 * torch.randn(n, dtype=torch.float64, generator=draw)).requires_grad_()
    ref = old - 0.1
    keep = rows[response]
    entropy = (2 * new)[keep] if objective.entropy_bonus else None
    out = objective.loss(
        new[keep], old[keep], credit, response[keep], position=position[keep], ref_logprobs=ref[keep], entropy=entropy
    )
    out.loss.backward()
    return out.loss.detach(), new.grad


@pytest.mark.parametrize("name", CHOICES)
def test_a_part_is_scaled_to_the_mean_over_its_own_prompts(name):
    """Entry by entry: the whole batch's gradient times prompts of the batch over those of the part."""
    objective = Objective(**CHOICES[name])
    rewards, group, lengths, tokens = batch()
    credit = objective.assign(rewards, group, lengths, tokens=tokens if name == "prefix" else None)
    _, whole = gradient(objective, credit, torch.ones(24, dtype=torch.bool), lengths)
    response = torch.arange(24).repeat_interleave(lengths)
    for groups in ([0, 1], [2, 3, 5], [4]):
        rows = torch.isin(group, torch.tensor(groups))
        _, part = gradient(objective, credit.part(rows), rows, lengths)
        mixed = [g for g in range(6) if 0 < rewards[group == g].sum() < 4]
        gain = 6 / len(groups)
        if name == "informative":
            gain = len(mixed) / max(1, len(set(mixed) & set(groups)))
        if name == "all terms":
            continue  # its entropy is a mean over tokens
        torch.testing.assert_close(part, gain * whole * rows[response], rtol=1e-12, atol=0)


def test_kl_and_entropy_are_means_of_the_part():
    objective = Objective(advantage="dr_grpo", aggregation="constant", kl=0.1, entropy_bonus=0.2, kl_estimator="k1")
    rewards, group, lengths, _ = batch()
    rows = group >= 4
    loss, _ = gradient(objective, objective.assign(0 * rewards, group, lengths).part(rows), rows, lengths)
    response = torch.arange(24).repeat_interleave(lengths)
    keep = rows[response]
    draw = torch.Generator().manual_seed(5)
    old = -torch.rand(len(keep), dtype=torch.float64, generator=draw)
    new = old + 0.3 * torch.randn(len(keep), dtype=torch.float64, generator=draw)
    kl = (new - old + 0.1)[keep].sum() / (2 * 4)  # two prompts of four responses, effective length 1
    torch.testing.assert_close(loss, 0.1 * kl - 0.2 * 2 * new[keep].mean(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", CHOICES)
def test_the_mean_of_equal_parts_is_the_batch(name):
    objective = Objective(**CHOICES[name])
    rewards, group, lengths, tokens = batch(seed=1)
    rewards[:8] = torch.tensor([1.0, 0, 0, 1, 0, 1, 1, 0])  # every part has as many groups that count
    lengths = torch.full_like(lengths, 4)
    tokens = torch.zeros(96, dtype=torch.int64)
    credit = objective.assign(rewards, group, lengths, tokens=tokens if name == "prefix" else None)
    everyone = torch.ones(24, dtype=torch.bool)
    loss, whole = gradient(objective, credit, everyone, lengths)
    parts = [gradient(objective, credit.part(rows), rows, lengths) for rows in (group < 3, group >= 3)]
    if name != "informative":
        torch.testing.assert_close((parts[0][0] + parts[1][0]) / 2, loss, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close((parts[0][1] + parts[1][1]) / 2, whole, rtol=1e-12, atol=1e-15)
    assert torch.equal(credit.part(everyone).weight, credit.weight)


def test_a_part_of_a_group_is_refused():
    rewards, group, lengths, _ = batch()
    credit = Objective().assign(rewards, group, lengths)
    with pytest.raises(ValueError, match="must be of whole groups"):
        credit.part(torch.arange(24) < 6)

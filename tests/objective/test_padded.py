"""A padded batch into the loss, against the same tokens laid out flat by a plain loop."""

import pytest
import torch

import equipoise as eq

LENGTHS = torch.tensor([3, 1, 4, 2, 0, 5])
PROMPTS = ["a", "a", "a", "b", "b", "b"]
REWARDS = [1.0, 0.0, 0.0, 1.0, 0.0, 1.0]


def rectangle(side: str) -> torch.Tensor:
    """[B, T] bool with LENGTHS tokens a row: on the left, on the right, or with a gap inside."""
    columns = torch.arange(7)
    if side == "left":
        return columns >= 7 - LENGTHS[:, None]
    mask = columns < LENGTHS[:, None]
    return mask if side == "right" else mask[:, torch.tensor([0, 5, 1, 6, 2, 3, 4])]


def by_hand(objective, credit, padded, mask, rows):
    """Token by token: the loss's arguments and the gradient put back into its place."""
    cells = [(i, t) for i in range(len(mask)) for t in range(mask.shape[1]) if mask[i, t]]
    logprobs = torch.stack([padded["logprobs"][i, t] for i, t in cells]).detach().requires_grad_()
    count = [sum(bool(m) for m in mask[i, :t]) for i, t in cells]
    out = objective.loss(
        logprobs,
        torch.stack([padded["old_logprobs"][i, t] for i, t in cells]),
        credit,
        torch.tensor([rows[i] for i, _ in cells]),
        position=torch.tensor(count),
        ref_logprobs=torch.stack([padded["ref_logprobs"][i, t] for i, t in cells]),
    )
    out.loss.backward()
    gradient = torch.zeros(mask.shape, dtype=torch.float64)
    for (i, t), value in zip(cells, logprobs.grad.tolist(), strict=True):
        gradient[i, t] = value
    return float(out.loss.detach()), gradient


@pytest.mark.parametrize("side", ["left", "right", "gaps"])
@pytest.mark.parametrize("name", ["dapo+balanced+hadw", "gspo", "grpo+balanced+prefix"])
@pytest.mark.parametrize("rows", [None, slice(3, 6), [5, 0, 2]], ids=["all", "slice", "indices"])
def test_the_loss_and_its_gradient_are_those_of_the_flat_tokens(side, name, rows):
    torch.manual_seed(0)
    mask = rectangle(side)
    objective = eq.Objective.preset(name, kl=0.1)
    tokens = torch.randint(5, (int(LENGTHS.sum()),)) if "prefix" in name else None
    credit = objective.assign(REWARDS, PROMPTS, mask.sum(1), tokens=tokens)
    chosen = list(range(6))[rows] if isinstance(rows, slice) else rows or list(range(6))
    part = mask[chosen]
    padded = {
        name: -torch.rand(part.shape, dtype=torch.float64) for name in ("logprobs", "old_logprobs", "ref_logprobs")
    }
    loss, gradient = by_hand(objective, credit, padded, part, chosen)
    padded = {name: x.masked_fill(~part, float("nan")) for name, x in padded.items()}  # padding must not be read
    padded["logprobs"].requires_grad_()
    index = torch.tensor(rows) if isinstance(rows, list) else rows
    out = eq.padded_loss(objective, credit, mask=part, rows=index, **padded)
    out.loss.backward()
    assert bool(out.ok)
    assert float(out.loss.detach()) == pytest.approx(loss, rel=1e-12)
    assert torch.allclose(padded["logprobs"].grad.nan_to_num(), gradient, rtol=1e-12, atol=0)


def test_a_mask_that_is_not_the_one_of_assign_is_refused():
    mask, objective = rectangle("right"), eq.Objective()
    credit = objective.assign(REWARDS, PROMPTS, LENGTHS)
    x = -torch.rand(mask.shape)
    with pytest.raises(ValueError, match=r"mask has 3 rows, and `rows` names 6 responses.*give rows="):
        eq.padded_loss(objective, credit, x[:3], x[:3], mask[:3])
    with pytest.raises(ValueError, match=r"mask\[0\] has 3 tokens, and assign was given 2 for response 3"):
        eq.padded_loss(objective, credit, x[:3], x[:3], mask[:3], rows=slice(3, 6))

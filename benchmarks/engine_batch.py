"""The batch of the engines' matrix, our gradient on it, and what every engine's column is made with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise import Objective
from equipoise.objective import fold, named, response_ids

G, GROUPS, WIDTH = 4, 6, 12


class Refused(Exception):
    """An engine or its adapter does not have this objective; the message says why."""


class NotRun(Exception):
    """An engine has something by this name that was not compared; the message says why."""


@dataclass(frozen=True)
class Batch:
    """Rows of responses, right-padded."""

    logp: Tensor  # [B, WIDTH] of the policy now
    old: Tensor  # [B, WIDTH]
    mask: Tensor  # [B, WIDTH] bool
    reward: Tensor  # [B]
    group: list[int]  # [B]
    tokens: Tensor  # [B, WIDTH]

    @property
    def lengths(self) -> Tensor:
        return self.mask.sum(-1)


def drawn(seed: int = 0, dtype: torch.dtype = torch.float64) -> Batch:
    g = torch.Generator().manual_seed(seed)
    rows = G * GROUPS
    lengths = torch.randint(2, WIDTH + 1, (rows,), generator=g)
    mask = torch.arange(WIDTH) < lengths[:, None]
    old = -0.05 - 2.5 * torch.rand(rows, WIDTH, generator=g, dtype=dtype)
    logp = (old + 0.3 * torch.randn(rows, WIDTH, generator=g, dtype=dtype)).clamp(max=-1e-3)
    reward = torch.randint(0, 2, (rows,), generator=g).to(dtype)
    reward[1] = 0.5
    reward[-G:] = 1.0  # equal rewards: no gradient
    for first in range(0, rows - G, G):  # every other group has both signs
        reward[first], reward[first + G - 1] = 1.0, 0.0
    tokens = torch.randint(3, 40, (rows, WIDTH), generator=g)
    tokens[:, 0] = 3 + torch.arange(rows) // G  # the responses of a group begin alike
    return Batch(logp, old, mask, reward, [i // G for i in range(rows)], tokens)


def objective_of(name: str) -> Objective:
    """A fresh objective; lengths are this batch's."""
    preset, _, plain = name.partition(", ")
    if plain:  # the advantage r − μ
        return Objective.preset(preset, advantage="dr_grpo")
    if name == "dr_grpo":
        return Objective.preset("dr_grpo", aggregation={"name": "constant", "length": float(WIDTH)})
    return named(name)


def flat(x: Tensor, batch: Batch) -> Tensor:
    return x[batch.mask]


def ours(name: str, batch: Batch) -> Tensor:
    """[n] d loss / d logp of every token, by `Objective.loss` on the whole batch."""
    objective = objective_of(name)
    credit = objective.assign(batch.reward, torch.tensor(batch.group), batch.lengths, tokens=flat(batch.tokens, batch))
    logp = flat(batch.logp, batch).clone().requires_grad_()
    position = torch.cat([torch.arange(int(n)) for n in batch.lengths])
    out = objective.loss(
        logp, flat(batch.old, batch), credit, response_ids(batch.lengths, len(logp)), position=position
    )
    out.loss.backward()
    assert logp.grad is not None
    return logp.grad


def padded_gradient(batch: Batch, loss: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None) -> Tensor:
    """[n] the gradient of a loss of padded log-probabilities."""
    logp = batch.logp.to(dtype or batch.logp.dtype).clone().requires_grad_()
    loss(logp).backward()
    assert logp.grad is not None
    return flat(logp.grad, batch).double()


def folded(name: str, batch: Batch, host: str) -> tuple[Objective, Tensor]:
    """The objective and the coefficients [B] of the batch, or a refusal."""
    objective = objective_of(name)
    try:
        fold.check(objective, host)
    except ValueError as error:
        raise Refused(str(error).removeprefix("objective: ")) from error
    credit = fold.coefficients(objective, batch.reward, batch.group, batch.lengths)
    return objective, credit.coefficient.to(batch.logp.dtype)

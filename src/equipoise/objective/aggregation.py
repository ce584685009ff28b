"""Aggregation: every rule is a choice of effective length ℓ_i in w_i = 1/(P·G·ℓ_i) (formulas.md
§1).

P is the number of groups that count, G the responses of the group.
`counted` marks the responses of those groups.
A rule gives ℓ_i > 0 where the response has weight and 0 where it has none.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from equipoise.objective.groups import Batch

TINY = torch.finfo(torch.float64).tiny


def token(batch: Batch, A: Tensor, counted: Tensor, *, over: str = "batch") -> Tensor:
    """All tokens alike. over="group": ℓ = mean T of the group (BA's token-agg). over="batch":
    w = 1/N (DAPO).
    """
    return batch.mean_length if over == "group" else _mean_length_of_batch(batch, counted)


def _mean_length_of_batch(batch: Batch, counted: Tensor) -> Tensor:
    """ΣT/(P·G) over the groups that count, so that w = 1/(P·G·ℓ) = 1/N."""
    P = (batch.groups.first & counted).sum().clamp(min=1)
    return (batch.T * counted).sum() / (P * batch.G)


def sequence(batch: Batch, A: Tensor, counted: Tensor) -> Tensor:
    """ℓ_i = T_i: every response alike (GRPO)."""
    return batch.T


def constant(batch: Batch, A: Tensor, counted: Tensor, *, length: float = 1.0) -> Tensor:
    """ℓ_i = L, a fixed length (Dr.GRPO)."""
    return torch.full_like(batch.T, length)


def balanced(
    batch: Batch,
    A: Tensor,
    counted: Tensor,
    *,
    over: str = "group",
    masked: str = "drop",
    strength: float = 1.0,
    imbalance: float = 0.0,
) -> Tensor:
    """ℓ_i = Z_s/M_s: the |A|-weighted mean length of the responses of i's sign s in its group (BA
    and BA-gen at once).

    M_s = Σ_{S_s}|A|, Z_s = Σ_{S_s}|A|T. A response with A = 0 has no sign and no weight. One
    without tokens is left out of both sums (masked="drop": its mass is gone, as under every other
    rule, and the group is out of balance by it), or counts in M alone (masked="pass": its siblings
    of the same sign pull the harder for it, and balance holds).

    over="group": every group weighs the same (BA). over="batch": ℓ_i times the batch's mean length
    over the group's, so a group weighs by its tokens, as under token over the batch, and Σ c T
    stays 0 in each.

    Two numbers turn the bias that BA removes up and down. strength: ℓ_i =
    T̄·(Z_s/(M_s·T̄))^strength, T̄ the group's mean length; right and wrong responses then pull as
    (T̄+/T̄−)^(1−strength) : 1, so 0 is token over the group. imbalance: Σ c T / Σ|c|T of every
    group (at strength 1), whatever the lengths.
    """
    size, same_sign = A.abs(), batch.groups.split(A > 0)
    drop = masked == "drop" and batch.some_empty
    heard = size * batch.T.clamp(max=1) if drop else size
    M, Z = same_sign.totals(heard), same_sign.totals(size * batch.T)
    length = Z / M.clamp_(min=TINY)  # Z is 0 where M is
    own = same_sign.each(length).mul_(size.sign())  # 0 for A = 0
    if strength != 1:  # at 1 there is BA itself, without the rounding of a power
        common = batch.mean_length
        own = torch.where(own > 0, common * (own / common.clamp(min=1e-9)) ** strength, 0.0)
    if over == "batch":
        own = own * _mean_length_of_batch(batch, counted) / batch.mean_length.clamp(min=1e-9)
    return own / (1 + imbalance * torch.sign(A)) if imbalance else own


def power(
    batch: Batch, A: Tensor, counted: Tensor, *, alpha: float = 0.75, length: float | None = None
) -> Tensor:
    """ℓ_i = T_i^α · (batch mean of T^−α) · L (ΔL normalisation);
    L is the batch mean length unless given.

    With groups of one size, α = 0 with L unset is token over the batch.
    Empty responses take no part in the means.
    """
    T, real = batch.T, (batch.T > 0) & counted
    n = real.sum().clamp(min=1)
    scale = torch.where(real, T.clamp(min=1) ** -alpha, 0.0).sum() / n
    L = (T * real).sum() / n if length is None else length
    return torch.where(T > 0, T.clamp(min=1) ** alpha * scale * L, 0.0)


AGGREGATIONS: dict[str, Callable[..., Tensor]] = {
    "token": token,
    "sequence": sequence,
    "constant": constant,
    "balanced": balanced,
    "power": power,
}

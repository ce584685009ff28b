"""From a batch to its credit: check all that can be wrong, then give every response its weight (formulas.md §1, §4)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.objective import bias
from equipoise.objective.aggregation import token
from equipoise.objective.cancellation import WEIGHT_TRANSFORMS, Nodes, orthogonal_unclamped, recentre
from equipoise.objective.choice import Choice
from equipoise.objective.groups import Batch, Groups, group_ids, positions, response_ids
from equipoise.objective.projection import both

Rewards = Tensor | np.ndarray | Sequence[float] | Sequence[Sequence[float]]
GroupIds = Tensor | np.ndarray | Sequence[Hashable]
Lengths = Tensor | np.ndarray | Sequence[int]


@dataclass(frozen=True)
class Credit:
    """What `assign` decided. `loss` needs nothing else of the batch."""

    advantage: Tensor  # [B] float64, after difficulty (and after recentre)
    weight: Tensor  # [B], or [N] in row order under cancellation="prefix"; ≥ 0, the weight of each token
    lengths: Tensor  # [B] int64
    groups: Groups
    full_weight: Tensor  # [B] the weight before a cancellation that must wait for the ratios
    kl_weight: Tensor  # [B] the weight of a token's KL
    metrics: dict[str, Tensor]  # bias/* and difficulty/*, 0-dim

    @property
    def coefficient(self) -> Tensor:
        """weight × advantage, [B] or [N]: on-policy, the factor of ∇log π of each token."""
        if len(self.weight) == len(self.advantage):
            return self.weight * self.advantage
        return self.weight * self.advantage[response_ids(self.lengths, len(self.weight))]


class Facts(NamedTuple):
    """What the host knows of a batch after the checks."""

    low: float
    high: float
    mean: float
    binary: bool  # every response's reward is one of two known values
    least: float  # the smallest reward an advantage is taken of
    two_valued: bool  # every reward an advantage is taken of is one of those two values
    smallest_group: int
    tokens: int


class Inputs(NamedTuple):
    """The arguments of `assign` as tensors on one device."""

    r: Tensor  # [B, K] float64
    T: Tensor  # [B] float64
    ids: Tensor  # [B]
    past: Tensor | None  # [B] float64
    eps: float  # relative precision of the rewards as they came


def read(
    rewards: Rewards, group: GroupIds, lengths: Lengths, history: Tensor | Sequence[float] | None, columns: int
) -> Inputs:
    """Tensors of the right shape, or a ValueError that names the one that is not."""
    # Half precision is a storage format for rewards, not their noise: what it can tell apart differs.
    eps = torch.finfo(torch.promote_types(rewards.dtype, torch.float32)).eps if isinstance(rewards, Tensor) else 0.0
    r = torch.as_tensor(rewards).to(torch.float64)
    if r.ndim == 1:
        r = r[:, None]
    if r.ndim != 2 or r.shape[1] != columns:
        wanted = "[B]" if columns == 1 else f"[B, {columns}], a column per reward weight"
        raise ValueError(f"rewards has shape {tuple(r.shape)}: the rule is {wanted}")
    B = len(r)
    if B == 0:
        raise ValueError("rewards is empty: the rule is at least one response")
    T = torch.as_tensor(lengths).to(r.device)
    ids = group_ids(group, r.device)
    past = None if history is None else torch.as_tensor(history).to(r.device, torch.float64)
    for name, x in (("lengths", T), ("group", ids), ("history", past)):
        if x is not None and x.shape != (B,):
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}, rewards has {B} rows: the rule is one entry per response"
            )
        if x is not None and x.is_complex():
            raise ValueError(f"{name} has dtype {x.dtype}: the rule is real numbers")
    return Inputs(r, T.to(torch.float64), ids, past, eps)


def check(inputs: Inputs, total: Tensor, judged: Tensor, groups: Groups, ends: tuple[float, float]) -> Facts:
    """Refuse what is not a number, a length, an id or a rate, naming the first index; one transfer to the host.

    `total` [B]: the reward of each response; `judged`: what advantages are taken of; `ends`: a binary reward's values.
    """
    r, T, ids, past, _ = inputs
    rules = [
        ("rewards", r, ~r.isfinite().all(1), "a reward is a finite number"),
        ("lengths", T, ~((T >= 0) & (T.frac() == 0)), "a length is a whole number of tokens, 0 or more"),
    ]
    if ids.is_floating_point():
        rules.append(("group", ids, ~ids.isfinite(), "a group id is a finite number"))
    if past is not None:
        rules.append(
            ("history", past, (past < 0) | (past > 1), "a success rate lies in [0, 1], NaN where there is none")
        )
    found = [x for _, _, bad, _ in rules for x in (bad.any(), bad.to(torch.uint8).argmax())]
    binary, two_valued = (((x == ends[0]) | (x == ends[1])).all() for x in (total, judged))
    values = [total.min(), total.max(), total.mean(), binary, judged.min(), two_valued, groups.size.min(), T.sum()]
    numbers = torch.stack([x.to(torch.float64) for x in (*found, *values)]).tolist()
    for (name, x, _, rule), bad, i in zip(rules, numbers[::2], numbers[1::2], strict=False):
        if bad:
            raise ValueError(f"{name}[{int(i)}] = {x[int(i)].squeeze().tolist()}: {rule}")
    low, high, mean, is_binary, least, is_two_valued, smallest, count = numbers[len(found) :]
    return Facts(low, high, mean, bool(is_binary), least, bool(is_two_valued), int(smallest), int(count))


def weigh(
    batch: Batch,
    A: Tensor,
    *,
    aggregation: Choice,
    cancellation: str,
    averaged_groups: str,
    tokens: Tensor | None,
    metrics: dict[str, Tensor],
) -> Credit:
    """w_i = 1/(P·G·ℓ_i), transformed by the cancellation; and what biases the result has."""
    g, T, everyone = batch.groups, batch.T, torch.ones_like(A, dtype=torch.bool)
    counted = everyone if averaged_groups == "all" else g.max(A.abs()) > 0
    P = (g.first & counted).sum().clamp(min=1)

    def weight(length: Tensor, left: Tensor = T) -> Tensor:
        """1/(P·G·ℓ), and 0 where there is no token left to weigh."""
        return torch.where((length > 0) & (left > 0), 1 / (P * batch.G * length), 0.0)

    w = full = weight(aggregation(batch, A, counted))
    if cancellation in WEIGHT_TRANSFORMS:
        w = WEIGHT_TRANSFORMS[cancellation](full, A, g)
    if cancellation == "orthogonal":
        clamped = (orthogonal_unclamped(full, A, g) < 0).sum()
        metrics["cancellation/clamped"] = clamped / (full > 0).sum().clamp(min=1)
    if cancellation == "both":
        found, mixed = both(full, A, T, g), g.max(A) * g.min(A) < 0
        w = found.weight
        metrics["cancellation/clamped"] = found.clamped.sum() / (full > 0).sum().clamp(min=1)
        metrics["cancellation/infeasible"] = g.average((~found.solved).to(A.dtype), mixed)
    if cancellation == "recentre":
        real = (T > 0) & (g.max((w * A).abs()) > 0)
        base = torch.where(w > 0, w, weight(g.mean(T))) * real  # under balanced, A = 0 has no weight of its own
        A = torch.where(real, recentre(w * A, real, g) / base, 0.0)
        w = full = base
    # A KL has no sign: balanced, whose lengths need one, is taken as token over the group. It counts every group.
    rule = (
        token(batch, A, everyone, over="group") if aggregation.name == "balanced" else aggregation(batch, A, everyone)
    )
    kl_weight = torch.where((rule > 0) & (T > 0), 1 / (g.first.sum() * batch.G * rule), 0.0)

    lengths = T.to(torch.int64)
    if tokens is None:
        metrics.update(bias.measures(batch, A, w))
        return Credit(A, w, lengths, g, full, kl_weight, metrics)
    response, position = response_ids(lengths, len(tokens)), positions(lengths, len(tokens))
    nodes = Nodes(tokens.to(T.device), lengths, response, position, g)
    w_token = w[response]
    if cancellation == "prefix":
        shared = nodes.shared_length(response, len(T))
        rest = Batch(batch.r, T - shared, g, batch.eps)
        w_rest, common = weight(aggregation(rest, A, counted), rest.T), weight(g.mean(T))
        w = w_token = torch.where(position < shared[response], common[response], w_rest[response])
    mean_w = w_token.new_zeros(len(T)).index_add_(0, response, w_token) / T.clamp(min=1)
    metrics.update(bias.measures(batch, A, mean_w))
    metrics.update(bias.node_measures(batch, w_token * A[response], response, nodes))
    return Credit(A, w, lengths, g, full, kl_weight, metrics)

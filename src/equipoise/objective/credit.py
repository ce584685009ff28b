"""From a batch to its credit: every response its weight, or every token (formulas.md §1, §4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.objective import bias
from equipoise.objective.aggregation import token
from equipoise.objective.cancellation import WEIGHT_TRANSFORMS, Nodes, orthogonal_unclamped, recentre
from equipoise.objective.choice import Choice
from equipoise.objective.groups import Batch, Groups, positions, response_ids
from equipoise.objective.projection import both


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

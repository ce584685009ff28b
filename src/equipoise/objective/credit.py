"""From a batch to its credit: every response its weight, or every token (formulas.md §1, §4)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from equipoise.objective import bias
from equipoise.objective.aggregation import token
from equipoise.objective.cancellation import (
    WEIGHT_TRANSFORMS,
    Nodes,
    orthogonal_unclamped,
    recentre,
)
from equipoise.objective.choice import Choice
from equipoise.objective.groups import Batch, Groups, positions, response_ids
from equipoise.objective.inputs import PerToken
from equipoise.objective.projection import both


@dataclass(frozen=True)
class Credit:
    """What `assign` decided. `loss` needs nothing else of the batch."""

    advantage: Tensor  # [B] float64, after difficulty (and after recentre)
    weight: Tensor  # [B], or [N] in row order where `per_token`; ≥ 0, the weight of each token
    lengths: Tensor  # [B] int64
    groups: Groups
    full_weight: Tensor  # [B] the weight before a cancellation that must wait for the ratios
    kl_weight: Tensor | None  # [B] the weight of a token's KL; None for an objective without one
    counted: Tensor  # [B] bool: whether the mean over prompts counts the response's group
    tokens: Tensor  # 0-dim: how many tokens the entropy bonus is averaged over
    all_tokens: int  # Σ lengths of the whole batch, known on the host
    metrics: dict[str, Tensor]  # bias/* and difficulty/*, 0-dim
    per_token: bool = False  # whether weight is [N]
    token_advantage: Tensor | None = None  # [N] added to the advantage of the token's response
    nodes: Nodes | None = None  # of the tokens `assign` was given

    @property
    def coefficient(self) -> Tensor:
        """weight × advantage, [B], or [N] where `per_token`:
        on-policy, the factor of ∇log π of each token.
        """
        if not self.per_token:
            return self.weight * self.advantage
        A = self.advantage[response_ids(self.lengths, len(self.weight))]
        return self.weight * (A if self.token_advantage is None else A + self.token_advantage)

    @property
    def pulled(self) -> Tensor:
        """[B] bool: whether the response, or a token of it, has an advantage."""
        if self.token_advantage is None:
            return self.advantage != 0
        own = (self.token_advantage != 0).to(self.advantage.dtype)
        response = response_ids(self.lengths, len(own))
        return (self.advantage != 0) | (
            torch.zeros_like(self.advantage).index_add_(0, response, own) > 0
        )

    def at(self, response: Tensor, position: Tensor | None, dtype: torch.dtype) -> Tensor:
        """[n] the coefficient of the tokens at these places;
        `position` is needed where `per_token`.
        """
        if not self.per_token:
            c = self.weight * self.advantage
            return c.to(dtype).index_select(0, response)
        assert position is not None
        where = self.flat(response, position)
        A = self.advantage.index_select(0, response)
        if self.token_advantage is not None:
            A = A + self.token_advantage.index_select(0, where)
        return (self.weight.index_select(0, where) * A).to(dtype)

    @cached_property
    def first_token(self) -> Tensor:
        """[B] where the tokens of each response begin among those of the batch, in row order."""
        return self.lengths.cumsum(0) - self.lengths

    def flat(self, response: Tensor, position: Tensor) -> Tensor:
        """[n] where the tokens lie among those of the batch, in row order."""
        return self.first_token.index_select(0, response) + position

    def part(self, rows: Tensor) -> Credit:
        """The credit of a mini-batch, an optimizer step's part of the batch:
        `rows` [B] bool, of whole groups.

        Its loss is the mean over its own prompts, so that its step has the size of one on the whole
        batch. Advantages and effective lengths stay the batch's: every weight is multiplied by the
        prompts of the batch over those of the mini-batch. The mean of equal parts' gradients is then
        the batch's; with averaged_groups = "informative" parts are equal that have as many
        informative groups. Rows are those of the batch, as before.
        """
        groups = self.groups
        if bool((groups.max(rows.to(torch.float64)) != rows).any()):
            raise ValueError(
                "a mini-batch has some responses of a group and not others: it must be of whole groups"
            )

        def prompts(counted: Tensor) -> Tensor:
            return (groups.first & counted).sum().clamp(min=1).to(torch.float64)

        gain = prompts(self.counted) / prompts(self.counted & rows)
        kl_weight = None
        if self.kl_weight is not None:
            kl_weight = prompts(torch.ones_like(rows)) / prompts(rows) * self.kl_weight
        return dataclasses.replace(
            self,
            weight=gain * self.weight,
            full_weight=gain * self.full_weight,
            kl_weight=kl_weight,
            tokens=(self.lengths * rows).sum(),
        )

    def to(self, device: torch.device) -> Credit:
        moved: dict[str, Any] = {
            "metrics": {name: x.to(device) for name, x in self.metrics.items()}
        }
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Tensor | Groups | Nodes):
                moved[f.name] = value.to(device)
        return dataclasses.replace(self, **moved)

    def parts_to(self, device: torch.device, parts: Sequence[Credit]) -> list[Credit]:
        """`part`s of this credit on a device; what they share, which may be numbers of every token
        of the batch, is moved once.
        """
        there = self.to(device)
        out = []
        for part in parts:
            own = {
                f.name: value.to(device)
                for f in dataclasses.fields(part)
                if (value := getattr(part, f.name)) is not getattr(self, f.name)
            }
            out.append(dataclasses.replace(there, **own))
        return out


@dataclass(frozen=True)
class AggregationWeights:
    """w = 1/(P·G·ℓ) by an aggregation rule."""

    batch: Batch
    aggregation: Choice
    counted: Tensor  # [B] bool: the responses of the groups that P counts
    P: Tensor  # 0-dim

    def of_length(self, length: Tensor, T: Tensor) -> Tensor:
        """[B] 1/(P·G·ℓ), and 0 = 1/∞ where there is no token to weigh."""
        return (
            (self.P * self.batch.G * length).masked_fill_(length * T <= 0, math.inf).reciprocal_()
        )

    def of(self, A: Tensor, T: Tensor) -> Tensor:
        """[B] the rule's weight when T tokens of each response are left."""
        batch = self.batch
        if T is not batch.T:
            batch = dataclasses.replace(batch, T=T, some_empty=True)
        return self.of_length(self.aggregation(batch, A, self.counted), T)

    @property
    def common(self) -> Tensor:
        """[B] one weight for the group: token's, over what the rule averages over."""
        over = self.aggregation.options.get("over", "group")
        length = token(self.batch, self.batch.T, self.counted, over=over)
        return self.of_length(length, self.batch.T)


def weigh(
    batch: Batch,
    A: Tensor,
    *,
    aggregation: Choice,
    cancellation: str,
    averaged_groups: str,
    with_kl: bool,
    tokens: PerToken,
    all_tokens: int,
    metrics: dict[str, Tensor],
) -> Credit:
    """w_i = 1/(P·G·ℓ_i), transformed by the cancellation; and what biases the result has."""
    g, T = batch.groups, batch.T
    everyone = torch.ones_like(A, dtype=torch.bool)
    counted, P = everyone, g.number
    if averaged_groups == "informative":
        counted = g.max(A.abs()) > 0
        P = (g.first & counted).sum().clamp(min=1)
    weights = AggregationWeights(batch, aggregation, counted, P)
    A, w, full = _cancelled(weights, A, cancellation, metrics)
    kl_weight = None
    if with_kl:  # it counts every group
        of_all = AggregationWeights(batch, aggregation, everyone, g.number)
        # A KL has no sign: balanced, whose lengths need one, is taken as token.
        kl_weight = of_all.common if aggregation.name == "balanced" else of_all.of(A, T)
    lengths = T.to(torch.int64)
    credit = Credit(
        advantage=A,
        weight=w,
        lengths=lengths,
        groups=g,
        full_weight=full,
        kl_weight=kl_weight,
        counted=counted,
        tokens=lengths.sum(),
        all_tokens=all_tokens,
        metrics=metrics,
    )
    if tokens.ids is None and not tokens.given:
        metrics.update(bias.measures(batch, A, w))
        return credit
    return _by_token(weights, credit, tokens, cancellation == "prefix")


def _cancelled(
    weights: AggregationWeights, A: Tensor, cancellation: str, metrics: dict[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """[B] the advantage, the weight after the cancellation,
    and the weight that one on the ratios would start from.
    """
    g, T = weights.batch.groups, weights.batch.T
    full = weights.of(A, T)
    if cancellation == "recentre":
        A, w = _recentred(weights, A, full, metrics)
        return A, w, w
    if cancellation == "both":
        found, mixed = both(full, A, T, g), g.max(A) * g.min(A) < 0
        metrics["cancellation/clamped"] = found.clamped.sum() / (full > 0).sum().clamp(min=1)
        metrics["cancellation/infeasible"] = g.average((~found.solved).to(A.dtype), mixed)
        return A, found.weight, full
    if cancellation == "orthogonal":
        clamped = (orthogonal_unclamped(full, A, g) < 0).sum()
        metrics["cancellation/clamped"] = clamped / (full > 0).sum().clamp(min=1)
    transform = WEIGHT_TRANSFORMS.get(cancellation)
    return A, full if transform is None else transform(full, A, g), full


def _recentred(
    weights: AggregationWeights, A: Tensor, full: Tensor, metrics: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """The advantage and the weight whose product is the recentred coefficient."""
    g, T = weights.batch.groups, weights.batch.T
    real = (T > 0) & (g.max((full * A).abs()) > 0)
    # under balanced, A = 0 has no weight of its own
    w = torch.where(full > 0, full, weights.common) * real
    centred = recentre(full * A, real, g)
    turned = centred * A < 0
    metrics["cancellation/turned"] = turned.sum() / real.sum().clamp(min=1)
    return torch.where(real & ~turned, centred / w, 0.0), w


def _by_token(
    weights: AggregationWeights, credit: Credit, tokens: PerToken, prefix: bool
) -> Credit:
    """The credit of each token: common weights on shared prefixes,
    and what `assign` was given of each token.
    """
    batch = weights.batch
    lengths = credit.lengths
    A = credit.advantage
    rows = len(credit.lengths)
    N = next(len(x) for x in (tokens.ids, tokens.weight, tokens.advantage) if x is not None)
    response, position = response_ids(lengths, N), positions(lengths, N)
    w, nodes = credit.weight[response], None
    if tokens.ids is not None:
        nodes = Nodes(tokens.ids, lengths, response, position, batch.groups)
    if prefix and nodes is not None:
        shared = nodes.shared_length(response, rows)
        rest = weights.of(A, batch.T - shared)
        w = torch.where(position < shared[response], weights.common[response], rest[response])
    if tokens.weight is not None:
        w = w * tokens.weight
    if prefix or tokens.given:
        credit = dataclasses.replace(
            credit, weight=w, per_token=True, token_advantage=tokens.advantage
        )
    credit = dataclasses.replace(credit, nodes=nodes)
    c = w * A[response] if tokens.advantage is None else credit.coefficient

    def sums(x: Tensor) -> Tensor:
        return x.new_zeros(rows).index_add_(0, response, x)

    mean_weight = sums(w) / batch.T.clamp(min=1)
    credit.metrics.update(bias.measures(batch, A, mean_weight, (sums(c), sums(c.abs()))))
    if nodes is not None:
        credit.metrics.update(bias.node_measures(batch, c, response, nodes))
    return credit

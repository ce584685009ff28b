"""How far a batch's coefficients are from the balance conditions of formulas.md §1 and §4,
from the coefficients alone.

Every measure is 0 for an objective without that bias.
Shares and residuals lie in [−1, 1] or [0, 1].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.objective.cancellation import Nodes
from equipoise.objective.difficulty import Success
from equipoise.objective.groups import Batch, Groups

# in the order they are shown
MEASURES = (
    "mass_balance",
    "mass_imbalance",
    "exchangeability",
    "learning_tax",
    "zero_sum",
    "masked_mass",
    "length_cv",
    "length_gap",
    "group_length_cv",
    "group_length_gap",
    "equal_weighting",
)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """part/whole, and 0 where the whole is 0, for then the part is; whole ≥ 0."""
    return part / whole.clamp(min=torch.finfo(whole.dtype).tiny)


def _mean(x: Tensor, where: Tensor) -> Tensor:
    return (x * where).sum() / where.sum().clamp(min=1)


def measures(
    batch: Batch, A: Tensor, w: Tensor, sums: tuple[Tensor, Tensor] | None = None
) -> dict[str, Tensor]:
    """Measures of one weight per response: A after difficulty, w the weight,
    c = wA the coefficient, on-policy.

    Where tokens have coefficients of their own, w is the mean weight and `sums` are Σ_t c and
    Σ_t|c| of each response.

    mass_balance     Σ c T / Σ|c|T, mean over groups: > 0 where positives pull harder (sign-length coupling)
    mass_imbalance   the same in absolute value, so that groups cannot make up for each other
    exchangeability  |Σ c| / Σ|c|, mean over groups: the net push on a token the whole group shares
    zero_sum         |Σ A| / Σ|A|, mean over groups: what difficulty weighting breaks
    learning_tax     |Σ c| / Σ|c|T, mean over groups: gradient mass spent on each token the whole group shares
    masked_mass      share of Σ|A| that belongs to responses without tokens
    length_cv        std/mean of T over the batch        length_gap  (T̄− − T̄+)/T̄ over the batch
    group_length_cv  and group_length_gap: the same within a group, mean over groups with both signs and a token
    equal_weighting  std/mean of w over the tokens of responses with A ≠ 0
    """
    g, T = batch.groups, batch.T
    if sums is None:
        c = w * A
        abs_c = c.abs()
        push, pull = c * T, abs_c * T
    else:
        push, pull = sums
        c = push / T.clamp(min=1)
        abs_c = c.abs()
    sign = A.sign()
    positive = sign.clamp(min=0)
    negative = positive - sign
    each = Sums(
        push=push,
        pull=pull,
        c=c,
        abs_c=abs_c,
        A=A,
        abs_A=A.abs(),
        square=(T - batch.mean_length).square(),
        n_positive=positive,
        n_negative=negative,
        T_positive=T * positive,
        T_negative=T * negative,
    )
    # One sum for all: tensors as small as these cost what their number of operations costs.
    totals = g.totals(torch.stack(each))
    in_group, in_batch = Sums(*totals.unbind()), Sums(*totals.sum(1).unbind())
    found = {**_within_groups(in_group, batch), **_over_batch(each, in_batch, T, w)}
    return {f"bias/{name}": found[name] for name in MEASURES}


class Sums(NamedTuple):
    """What the measures are made of: the numbers of each response, [B], or their sums over groups
    or over the batch.
    """

    push: Tensor  # Σ_t c
    pull: Tensor  # Σ_t|c|
    c: Tensor  # mean over the response's tokens
    abs_c: Tensor
    A: Tensor
    abs_A: Tensor
    square: Tensor  # (T − T̄)², T̄ of the group
    n_positive: Tensor  # 1 where A > 0
    n_negative: Tensor
    T_positive: Tensor  # T where A > 0
    T_negative: Tensor

    @property
    def both_signs(self) -> Tensor:
        return self.n_positive * self.n_negative > 0

    @property
    def gap(self) -> Tensor:
        """T̄− − T̄+; of use where there are both signs."""
        right = self.T_positive / self.n_positive.clamp(min=1)
        wrong = self.T_negative / self.n_negative.clamp(min=1)
        return wrong - right


def _within_groups(found: Sums, batch: Batch) -> dict[str, Tensor]:
    """The means over groups. Those of lengths are what BA's regime rule is about: a batch's lengths
    also differ because its prompts do.
    """
    mean_T = batch.group_lengths
    mixed = found.both_signs & (mean_T > 0)
    spread = torch.sqrt(found.square / batch.groups.counts)
    pulled = found.pull > 0
    return _mean_shares(
        *_balance(found.push, found.pull, found.c, found.abs_c, pulled),
        Share("zero_sum", found.A.abs(), found.abs_A, pulled),
        Share("group_length_cv", spread, mean_T, mixed),
        Share("group_length_gap", found.gap, mean_T, mixed),
    )


def _over_batch(each: Sums, total: Sums, T: Tensor, w: Tensor) -> dict[str, Tensor]:
    """The measures that know no groups."""
    spread_T, mean_T = torch.std_mean(T, correction=0)
    live = each.T_positive + each.T_negative
    tokens = (total.T_positive + total.T_negative).clamp(min=1)
    mean_w = w.dot(live) / tokens
    spread_w = torch.sqrt((w - mean_w).square().dot(live) / tokens)
    shares = {
        "masked_mass": (each.abs_A.dot((T == 0).to(T.dtype)), total.abs_A),
        "length_cv": (spread_T, mean_T),
        "length_gap": (total.gap * total.both_signs, mean_T),
        "equal_weighting": (spread_w, mean_w),
    }
    part, whole = (torch.stack(column) for column in zip(*shares.values(), strict=True))
    return dict(zip(shares, _share(part, whole).unbind(), strict=True))


class Share(NamedTuple):
    """A measure that is a share of something within each group; [places] each."""

    name: str
    part: Tensor
    whole: Tensor
    counted: Tensor  # bool: the groups that the mean counts


def _mean_shares(*shares: Share) -> dict[str, Tensor]:
    """Every measure's mean over the groups that it counts, 0 where it counts none."""
    names, *columns = zip(*shares, strict=True)
    part, whole, counted = (torch.stack(column) for column in columns)
    mean = (_share(part, whole) * counted).sum(1) / counted.sum(1).clamp(min=1)
    return dict(zip(names, mean.unbind(), strict=True))


def _balance(push: Tensor, pull: Tensor, c: Tensor, abs_c: Tensor, pulled: Tensor) -> list[Share]:
    """The balance conditions of coefficients, from their sums over each group; see `Sums`."""
    net = c.abs()
    return [
        Share("mass_balance", push, pull, pulled),
        Share("mass_imbalance", push.abs(), pull, pulled),
        Share("exchangeability", net, abs_c, pulled),
        Share("learning_tax", net, pull, pulled),
    ]


def pushed(push: Tensor, pull: Tensor, T: Tensor, groups: Groups) -> dict[str, Tensor]:
    """The balance of the slopes that really push, clipped and reweighted, after `loss`: push = Σ_t
    slope and pull = Σ_t|slope| of each response. Groups that were not here or that nothing pushes
    do not count.
    """
    push, pull = push.to(torch.float64), pull.to(torch.float64)
    c = push / T.clamp(min=1)
    push, pull, c, size = groups.totals(torch.stack([push, pull, c, c.abs()])).unbind()
    found = _mean_shares(*_balance(push, pull, c, size, pull > 0))
    return {f"pushed/{name}": value for name, value in found.items()}


def baseline_bias(success: Success) -> Tensor:
    """Mean over mixed groups of |E[p̂|S] − p| at p = p̂,
    for accuracies that are 0 or 1 (formulas.md §3).
    """
    p, G = success.group_rate.nan_to_num(0.0), success.group_known
    q = 1 - p
    all_right, all_wrong = p.pow(G), q.pow(G)
    bias = _share(p - all_right, 1 - all_wrong - all_right) - p
    return _mean(bias.abs(), p * q > 0)


def node_measures(batch: Batch, c: Tensor, response: Tensor, nodes: Nodes) -> dict[str, Tensor]:
    """exchangeability and learning_tax on the token nodes themselves;
    c [N] per token, in row order.

    node_exchangeability  |Σ c| / Σ|c| per node shared by two responses or more, mean over nodes
    node_learning_tax     Σ|Σ c| over the nodes the whole group shares, as a share of Σ|c| over all tokens
    """
    found = node_balance(nodes.sum(c), nodes.sum(c.abs()), nodes, batch.G[response])
    return {f"bias/{name}": value for name, value in found.items()}


def node_balance(push: Tensor, mass: Tensor, nodes: Nodes, G: Tensor) -> dict[str, Tensor]:
    """push, mass [N]: Σc and Σ|c| of each token's node; G [N] the size of its group."""
    push = push.abs()
    shared = nodes.first & (nodes.count >= 2) & (mass > 0)
    common = nodes.first & (nodes.count >= 2) & (nodes.count == G)
    return {
        "node_exchangeability": _mean(_share(push, mass), shared),
        "node_learning_tax": _share((push * common).sum(), (mass * nodes.first).sum()),
    }

"""How far a batch's coefficients are from the balance conditions of formulas.md §1 and §4,
from the coefficients alone.

Every measure is 0 for an objective without that bias.
Shares and residuals lie in [−1, 1] or [0, 1].
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.objective.cancellation import Nodes
from equipoise.objective.difficulty import Success
from equipoise.objective.groups import Batch, Groups


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
    group_length_cv  and group_length_gap: the same within a group, mean over the groups that have both signs
    equal_weighting  std/mean of w over the tokens of responses with A ≠ 0
    """
    g, T = batch.groups, batch.T
    push, pull = sums if sums is not None else (w * A * T, (w * A).abs() * T)
    positive, negative = A > 0, A < 0
    live = T * (A != 0)
    tokens = live.sum().clamp(min=1)
    mean_w = w.dot(live) / tokens
    spread_w = torch.sqrt(((w - mean_w) ** 2).dot(live) / tokens)
    mean_T = T.mean()
    gap = (_mean(T, negative) - _mean(T, positive)) * (negative.any() & positive.any())
    size = A.abs()
    zero_sum, mass, pulled = g.sum(torch.stack([A, size, pull])).unbind()
    return {
        **{f"bias/{name}": value for name, value in balance(push, pull, T, g).items()},
        "bias/zero_sum": g.average(_share(zero_sum.abs(), mass), pulled > 0),
        "bias/masked_mass": _share(size.dot((T == 0).to(T.dtype)), size.sum()),
        "bias/length_cv": _share(T.std(correction=0), mean_T),
        "bias/length_gap": _share(gap, mean_T),
        **_lengths_within_groups(batch, positive.to(T.dtype), negative.to(T.dtype)),
        "bias/equal_weighting": _share(spread_w, mean_w),
    }


def balance(push: Tensor, pull: Tensor, T: Tensor, g: Groups) -> dict[str, Tensor]:
    """The balance conditions of coefficients whose sums over each response are push = Σ_t c and
    pull = Σ_t|c|.
    """
    c = push / T.clamp(min=1)
    push, mass, net, size = g.sum(torch.stack([push, pull, c, c.abs()])).unbind()
    shares = {
        "mass_balance": (push, mass),
        "mass_imbalance": (push.abs(), mass),
        "exchangeability": (net.abs(), size),
        "learning_tax": (net.abs(), mass),
    }
    # All four at once: such small tensors cost what their number of operations costs.
    part, whole = (torch.stack(column) for column in zip(*shares.values(), strict=True))
    return dict(zip(shares, g.average(_share(part, whole), mass > 0).unbind(), strict=True))


def _lengths_within_groups(batch: Batch, positive: Tensor, negative: Tensor) -> dict[str, Tensor]:
    """What BA's regime rule is about: a batch's lengths also differ because its prompts do.
    1 for a sign, else 0.
    """
    g, T, mean = batch.groups, batch.T, batch.mean_length
    columns = torch.stack([positive, negative, T * positive, T * negative, (T - mean) ** 2])
    n_positive, n_negative, T_positive, T_negative, square = g.sum(columns).unbind()
    spread = torch.sqrt(square / g.size)
    gap = T_negative / n_negative.clamp(min=1) - T_positive / n_positive.clamp(min=1)
    mixed = (n_positive > 0) & (n_negative > 0)
    cv, gap = g.average(_share(torch.stack([spread, gap]), mean), mixed).unbind()
    return {"bias/group_length_cv": cv, "bias/group_length_gap": gap}


def pushed(push: Tensor, pull: Tensor, T: Tensor, groups: Groups) -> dict[str, Tensor]:
    """`balance` of the slopes that really push, clipped and reweighted, after `loss`; groups that
    were not here or that nothing pushes do not count.
    """
    found = balance(push.to(torch.float64), pull.to(torch.float64), T.to(torch.float64), groups)
    return {f"pushed/{name}": value for name, value in found.items()}


def baseline_bias(success: Success) -> Tensor:
    """Mean over mixed groups of |E[p̂|S] − p| at p = p̂,
    for accuracies that are 0 or 1 (formulas.md §3).
    """
    p, G = success.p_hat, success.known
    mixed = (p > 0) & (p < 1)
    p = torch.where(mixed, p, 0.5)
    all_right = p**G
    bias = (p - all_right) / (1 - (1 - p) ** G - all_right) - p
    return success.groups.average(torch.where(mixed, bias.abs(), 0.0), mixed)


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

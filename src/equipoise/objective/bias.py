"""How far a batch's coefficients are from the balance conditions of formulas.md §1 and §4, from the coefficients alone.

Every measure is 0 for an objective without that bias. Shares and residuals lie in [−1, 1] or [0, 1].
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.objective.cancellation import Nodes
from equipoise.objective.difficulty import Success
from equipoise.objective.groups import Batch


def _share(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole, 0.0)


def _mean(x: Tensor, where: Tensor) -> Tensor:
    return (x * where).sum() / where.sum().clamp(min=1)


def measures(batch: Batch, A: Tensor, w: Tensor) -> dict[str, Tensor]:
    """Measures of one weight per response: A after difficulty, w the weight, c = wA the coefficient, on-policy.

    mass_balance     Σ c T / Σ|c|T, mean over groups: > 0 where positives pull harder (sign-length coupling)
    mass_imbalance   the same in absolute value, so that groups cannot make up for each other
    exchangeability  |Σ c| / Σ|c|, mean over groups: the net push on a token the whole group shares
    zero_sum         |Σ A| / Σ|A|, mean over groups: what difficulty weighting breaks
    learning_tax     |Σ c| / Σ|c|T, mean over groups: gradient mass spent on each token the whole group shares
    length_cv        std/mean of T over the batch        length_gap  (T̄− − T̄+)/T̄ over the batch
    equal_weighting  std/mean of w over the tokens of responses with A ≠ 0
    """
    g, T, c = batch.groups, batch.T, w * A
    informative = g.max(c.abs()) > 0
    push, mass, pull = g.sum(c), g.sum(c.abs()), g.sum(c.abs() * T)
    live = T * (A != 0)
    mean_w = (w * live).sum() / live.sum().clamp(min=1)
    spread_w = torch.sqrt(((w - mean_w) ** 2 * live).sum() / live.sum().clamp(min=1))
    mean_T, balance = T.mean(), _share(g.sum(c * T), pull)
    return {
        "bias/mass_balance": g.average(balance, informative),
        "bias/mass_imbalance": g.average(balance.abs(), informative),
        "bias/exchangeability": g.average(_share(push.abs(), mass), informative),
        "bias/zero_sum": g.average(_share(g.sum(A).abs(), g.sum(A.abs())), informative),
        "bias/learning_tax": g.average(_share(push.abs(), pull), informative),
        "bias/length_cv": _share(T.std(correction=0), mean_T),
        "bias/length_gap": _share((_mean(T, A < 0) - _mean(T, A > 0)) * ((A < 0).any() & (A > 0).any()), mean_T),
        "bias/equal_weighting": _share(spread_w, mean_w),
    }


def baseline_bias(success: Success) -> Tensor:
    """Mean over mixed groups of |E[p̂|S] − p| at p = p̂, for accuracies that are 0 or 1 (formulas.md §3)."""
    p, G = success.p_hat, success.known
    mixed = (p > 0) & (p < 1)
    p = torch.where(mixed, p, 0.5)
    bias = (p - p**G) / (1 - (1 - p) ** G - p**G) - p
    return success.groups.average(torch.where(mixed, bias.abs(), 0.0), mixed)


def node_measures(batch: Batch, c: Tensor, response: Tensor, nodes: Nodes) -> dict[str, Tensor]:
    """exchangeability and learning_tax on the token nodes themselves; c [N] per token, in row order.

    node_exchangeability  |Σ c| / Σ|c| per node shared by two responses or more, mean over nodes
    node_learning_tax     Σ|Σ c| over the nodes the whole group shares, as a share of Σ|c| over all tokens
    """
    push, mass = nodes.sum(c).abs(), nodes.sum(c.abs())
    shared = nodes.first & (nodes.count >= 2) & (mass > 0)
    common = nodes.first & (nodes.count >= 2) & (nodes.count == batch.G[response])
    return {
        "bias/node_exchangeability": _mean(_share(push, mass), shared),
        "bias/node_learning_tax": _share((push * common).sum(), c.abs().sum()),
    }

"""Advantages: how much better than its group a response did (formulas.md §2). Rewards in, one number per response out.

Groups of one and groups of equal rewards get exactly 0 from every estimator with a baseline.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from equipoise.objective.groups import Batch


def grpo(batch: Batch, *, std: str = "paper", eps: float = 1e-6) -> Tensor:
    """A = (r − μ)/σ. `std` names whose σ: "paper" sqrt(mean (r−μ)² + eps), "sample" sqrt(Σ(r−μ)²/(G−1)) + eps.

    verl is ("sample", 1e-6) and TRL ("sample", 1e-4).
    """
    d, G = batch.centred, batch.G
    if std == "paper":
        return d / torch.sqrt(batch.groups.mean(d**2) + eps)
    return d / (torch.sqrt(batch.groups.sum(d**2) / (G - 1).clamp(min=1)) + eps)


def dr_grpo(batch: Batch) -> Tensor:
    """A = r − μ."""
    return batch.centred


def rloo(batch: Batch) -> Tensor:
    """A = r − (mean of the others) = G/(G−1)·(r − μ)."""
    return batch.G / (batch.G - 1).clamp(min=1) * batch.centred


def batch_std(batch: Batch, *, eps: float = 1e-6) -> Tensor:
    """A = (r − μ)/σ with μ over the group and the population σ over the whole batch (Lite-PPO)."""
    sigma = torch.sqrt(torch.mean((batch.r - batch.r.mean()) ** 2) + eps)
    return batch.centred / sigma


def maxrl(batch: Batch, *, eps: float = 1e-6) -> Tensor:
    """A = (r − μ)/(μ + eps): the gradient of log p at first order. Rewards must not be negative."""
    return batch.centred / (batch.mean + eps)


def opo(batch: Batch) -> Tensor:
    """A = r − ΣT r/ΣT: the length-weighted baseline. Then ΣT A = 0, not ΣA = 0."""
    total = batch.groups.sum(batch.T)
    baseline = batch.groups.sum(batch.T * batch.r) / total.clamp(min=1)
    return (batch.r - baseline) * (batch.groups.max(batch.centred.abs()) > 0) * (total > 0)


def pass_at_k(batch: Batch, *, k: int = 4) -> Tensor:
    """The analytic pass@k advantage for binary rewards; groups must have at least k responses.

    R̄ = 1 − C(n−,k)/C(n,k), σ = √(R̄(1−R̄)), A+ = (1−R̄)/σ, A− = (1 − R̄ − C(n−−1,k−1)/C(n−1,k−1))/σ.
    """
    n, right = batch.G, batch.r > 0
    wrong = n - batch.groups.sum(right.to(n.dtype))  # n−
    none = _choose_ratio(wrong, n, k)  # 1 − R̄
    sigma = torch.sqrt(none * (1 - none))
    A = torch.where(right, none, none - _choose_ratio(wrong - 1, n - 1, k - 1))
    return torch.where(sigma > 0, A / sigma, 0.0)


def _choose_ratio(m: Tensor, n: Tensor, k: int) -> Tensor:
    """C(m,k)/C(n,k) = Π_{j<k} (m−j)/(n−j), and 0 where m < k."""
    ratio = torch.ones_like(n)
    for j in range(k):
        ratio = ratio * ((m - j).clamp(min=0) / (n - j).clamp(min=1))
    return ratio


def reward(batch: Batch) -> Tensor:
    """A = r: no baseline."""
    return batch.r


ADVANTAGES: dict[str, Callable[..., Tensor]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "batch_std": batch_std,
    "maxrl": maxrl,
    "opo": opo,
    "pass_at_k": pass_at_k,
    "reward": reward,
}

"""Advantages: how much better than its group a response did (formulas.md §2).
Rewards in, one number per response out.

Groups of one and groups of equal rewards get exactly 0 from every estimator with a baseline but
`reinforce_pp` over tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from equipoise.objective.groups import Batch, Groups


def grpo(batch: Batch, *, std: str = "paper", eps: float = 1e-6) -> Tensor:
    """A = (r − μ)/σ. `std` names whose σ: "paper" sqrt(mean (r−μ)² + eps), "sample"
    sqrt(Σ(r−μ)²/(G−1)) + eps.

    verl is ("sample", 1e-6) and TRL ("sample", 1e-4).
    """
    d, G = batch.centred, batch.G
    if std == "paper":
        return d / torch.sqrt(batch.groups.mean(d.square()) + eps)
    return d / (torch.sqrt(batch.groups.sum(d.square()) / (G - 1).clamp(min=1)) + eps)


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


def reinforce_pp(batch: Batch, *, whiten: str = "tokens", eps: float = 1e-8) -> Tensor:
    """A = (d − mean d)/√(var d + eps), d = r − μ,
    mean and sample variance over the batch (REINFORCE++-baseline).

    Over "tokens", every token counting as its response does, as verl and OpenRLHF do it: then mean
    d is not 0 where lengths differ, and a group of equal rewards gets an advantage. Over
    "responses" it is 0.
    """
    d, n = batch.centred, batch.T if whiten == "tokens" else torch.ones_like(batch.T)
    N = n.sum().clamp(min=1)
    mean = (n * d).sum() / N
    mean = mean * (mean.abs() > batch.noise.max())
    variance = (n * (d - mean) ** 2).sum() / (N - 1).clamp(min=1)
    return (d - mean) / torch.sqrt(variance + eps)


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

    R̄ = 1 − C(n−,k)/C(n,k), σ = √(R̄(1−R̄)), A+ = (1−R̄)/σ, A− = (1 − R̄ −
    C(n−−1,k−1)/C(n−1,k−1))/σ.
    """
    # the higher of two values: `reward_range` may say that neither is 0 or 1
    n, right = batch.G, batch.r > batch.r.min()
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


def none(batch: Batch) -> Tensor:
    """A = 0: all there is comes of `assign(token_advantage=…)`, as in distillation."""
    return torch.zeros_like(batch.r)


def reward(batch: Batch) -> Tensor:
    """A = r: no baseline."""
    return batch.r


def over_batch(A: Tensor, *, zero_sum: bool, eps: float = 1e-6) -> Tensor:
    """(A − mean)/(std + eps) over the batch's responses, std the sample's:
    GDPO's last step (arXiv 2601.05242).

    A mean that only rounding can have made is 0: a group without an advantage must not get one.
    zero_sum: A sums to 0 in every group, so that any mean is rounding.
    """
    mean = A.mean()
    d = A if zero_sum else A - mean * (mean.abs() > 1e-12 * A.abs().mean())
    return d / (torch.sqrt((d**2).sum() / max(len(A) - 1, 1)) + eps)


def grpo_scale(q: Tensor, G: Tensor, *, std: str = "paper", eps: float = 1e-6) -> Tensor:
    """w in grpo's A = w·(r − q), of groups of G binary rewards whose mean is q."""
    variance = q * (1 - q)
    if std == "paper":
        return 1 / torch.sqrt(variance + eps)
    return 1 / (torch.sqrt(variance * G / (G - 1)) + eps)


def long_and_right(T: Tensor, rate: Tensor, groups: Groups) -> Tensor:
    """[B] rate·sigmoid((T − mean)/std), mean and population std over the group's right responses
    (arXiv 2502.04463).

    0 for a wrong response, between 0 and 1 for a right one, more the longer it is among the right
    ones. One without tokens (masked: its length is not known) counts as of mean length.
    """
    right = ((rate == 1) & (T > 0)).to(T.dtype)
    n = groups.sum(right).clamp(min=1)
    d = T - groups.sum(T * right) / n
    std = torch.sqrt(groups.sum(d**2 * right) / n)
    z = torch.where((std > 0) & (T > 0), d / std, 0.0)
    return rate.nan_to_num(0.0) * torch.sigmoid(z)


ADVANTAGES: dict[str, Callable[..., Tensor]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "batch_std": batch_std,
    "reinforce_pp": reinforce_pp,
    "maxrl": maxrl,
    "opo": opo,
    "pass_at_k": pass_at_k,
    "reward": reward,
    "none": none,
}
NOT_ZERO_SUM = ("opo", "reward", "reinforce_pp")  # ΣA ≠ 0 in a group

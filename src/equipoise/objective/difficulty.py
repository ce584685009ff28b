"""Difficulty: reweight advantages by how hard the prompt is for the policy (HA-DW, debias, formulas.md §3).

The anchor is the only state of an objective. It is plain Python numbers, so it saves and loads as JSON, and it changes
only at the end of `assign`, after every check has passed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import Tensor

from equipoise.objective.groups import Batch


@dataclass(kw_only=True)
class _Anchored:
    """The history both reweightings share: C, an estimate of the policy's success rate made of earlier batches.

    anchor="kalman": C⁺ = (1−η_t)C⁻ + η_t y_t, η_t = clip(η·σ_t, 0, 1), σ_t the population deviation of the last
    `memory` anchors. The paper gives no η, memory or C_0, and a constant history would freeze C for ever (σ = 0): until
    `memory` anchors exist, and while they are all equal, C⁺ is the mean of the last `memory` observations instead.
    anchor="window": C = mean of the last `memory` batch means. anchor="fixed": C = `threshold`.
    Without any history the current batch's mean stands in for C⁻.
    """

    anchor: str = "kalman"
    eta: float = 5.0
    memory: int = 10
    threshold: float = 0.5
    include_current: bool = False
    reward_range: tuple[float, float] = (0.0, 1.0)
    observations: list[float] = field(default_factory=list, init=False, repr=False)
    anchors: list[float] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.anchor not in ("kalman", "window", "fixed"):
            raise ValueError(f'difficulty.anchor = "{self.anchor}" is not an anchor; use "kalman", "window" or "fixed"')
        if self.include_current and self.anchor != "window":
            raise ValueError('difficulty.include_current belongs to anchor = "window"')
        if self.memory < 1 or self.eta <= 0:
            raise ValueError(f"difficulty needs memory ≥ 1 and eta > 0; got memory = {self.memory}, eta = {self.eta}")
        low, high = self.reward_range = (float(self.reward_range[0]), float(self.reward_range[1]))
        if not low < high:
            raise ValueError(f"difficulty.reward_range = {self.reward_range} must be (low, high) with low < high")

    def check(self, low: float, high: float, binary: bool) -> None:
        if low < self.reward_range[0] or high > self.reward_range[1]:
            raise ValueError(
                f"rewards lie in [{low:g}, {high:g}] but difficulty.reward_range is [{self.reward_range[0]:g}, "
                f"{self.reward_range[1]:g}]: a success rate needs rewards on a known range; set reward_range to theirs"
            )

    def rate(self, reward: Tensor) -> Tensor:
        """Rewards on their range, mapped to [0, 1]."""
        return (reward - self.reward_range[0]) / (self.reward_range[1] - self.reward_range[0])

    def prior(self, y: float) -> float:
        """C⁻, what is believed before this batch, whose mean reward is y (the whole batch; on the [0, 1] scale)."""
        if self.anchor == "fixed":
            return self.threshold
        if self.include_current:
            return fmean([*self.observations, y][-self.memory :])
        return self.anchors[-1] if self.anchors else y

    def update(self, y: float) -> None:
        self.observations = [*self.observations, y][-self.memory :]
        spread = pstdev(self.anchors) if len(self.anchors) == self.memory else 0.0
        if self.anchor == "kalman" and spread > 0:
            gain = min(self.eta * spread, 1.0)
            C = (1 - gain) * self.anchors[-1] + gain * y
        else:
            C = fmean(self.observations)
        self.anchors = [*self.anchors, C][-self.memory :]

    def state_dict(self) -> dict[str, Any]:
        return {"observations": list(self.observations), "anchors": list(self.anchors)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        observations, anchors = [float(y) for y in state["observations"]], [float(c) for c in state["anchors"]]
        if max(len(observations), len(anchors)) > self.memory:
            raise ValueError(f"the saved anchor holds {len(anchors)} entries, difficulty.memory is {self.memory}")
        self.observations, self.anchors = observations, anchors


@dataclass(kw_only=True)
class HADW(_Anchored):
    """A ← Φ A with Φ = λ·exp(−sgn(A)·sgn(diff)·|diff|), diff = p̂ − C⁻, p̂ the group's mean reward.

    Φ > 0, so no sign changes. ΣΦA is no longer 0 in a group; `recentre` subtracts the group's mean of ΦA again.
    """

    lam: float = 1.3
    recentre: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam <= 0:
            raise ValueError(f"difficulty.lam = {self.lam} must be positive: Φ must not change a sign")

    def success(self, batch: Batch, history: Tensor | None) -> Tensor:
        """[B] how often the prompt is solved: p̂."""
        return self.rate(batch.mean)

    def reweight(self, batch: Batch, A: Tensor, C: float, history: Tensor | None) -> Tensor:
        diff = self.success(batch, history) - C
        A = self.lam * torch.exp(-torch.sign(A) * diff) * A
        return A - batch.groups.mean(A) if self.recentre else A


@dataclass(kw_only=True)
class HADWHistory(HADW):
    """HA-DW with diff = h − C⁻: the prompt's difficulty from its own earlier batches, not from the group it weighs.

    h is `history` where `assign` was given it; a prompt that was never seen falls back to p̂, the paper's. The anchor
    stays the policy's. Ours, not the paper's, for a reason its own theory gives: p̂ of a mixed group is at least 1/G and
    moves with the rewards that A is made of, while h knows of the groups nobody solved. (With h for the anchor instead,
    the correction would turn round: a hard prompt's mixed group always beats its own history.)
    """

    def success(self, batch: Batch, history: Tensor | None) -> Tensor:
        p_hat = self.rate(batch.mean)
        return p_hat if history is None else torch.where(torch.isnan(history), p_hat, history)


@dataclass(kw_only=True)
class Debias(_Anchored):
    """Φ = (1−c*p̂)/(1−p̂) for r = 1 and c* for r = 0, c* = P(S)/(1−p^{G−1}): then Φ(r − p̂) = r − c*p̂, unbiased given S.

    p is a history estimate of the prompt's success rate: `history` where `assign` was given it, the anchor elsewhere.
    Binary rewards (the two ends of reward_range) and advantages proportional to r − p̂ within a group.
    """

    def check(self, low: float, high: float, binary: bool) -> None:
        super().check(low, high, binary)
        if not binary:
            raise ValueError(f"difficulty = debias needs rewards that are one of {self.reward_range}; some lie between")

    def reweight(self, batch: Batch, A: Tensor, C: float, history: Tensor | None) -> Tensor:
        p = torch.full_like(A, C) if history is None else torch.where(torch.isnan(history), C, history)
        p, G, p_hat = p.clamp(1e-6, 1 - 1e-6), batch.G, self.rate(batch.mean)
        c = (1 - (1 - p) ** G - p**G) / (1 - p ** (G - 1))
        right = batch.r >= self.reward_range[1]
        phi = torch.where(right, (1 - c * p_hat) / (1 - p_hat), c)
        return torch.where(A != 0, phi * A, 0.0)


Difficulty = HADW | Debias
DIFFICULTIES: dict[str, Callable[..., Difficulty] | None] = {
    "none": None,
    "hadw": HADW,
    "hadw_history": HADWHistory,
    "debias": Debias,
}

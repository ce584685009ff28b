"""Difficulty: reweight advantages by how hard the prompt is for the policy (HA-DW, debias,
formulas.md §3).

All of it is about success rates: p̂, the anchor and the history are made of accuracies, never of
shaped rewards. The anchor is the only state of an objective. It is plain Python numbers, so it
saves and loads as JSON, and it changes only at the end of `assign`, after every check has passed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from equipoise.objective.groups import Batch, Groups


class RangeError(ValueError):
    """Rewards that are to be success rates lie outside the range they are mapped from.

    `found` says which range, without what a caller of `assign` can do about it.
    """

    def __init__(self, found: str, fix: str) -> None:
        super().__init__(f"{found}: {fix}")
        self.found = found


@dataclass(frozen=True)
class Success:
    """How often the responses of a batch succeeded."""

    rate: Tensor  # [B] in [0, 1], NaN where it is not known
    groups: Groups
    group_rate: Tensor  # [places] p̂, the group's success rate; NaN where none of it is known
    group_known: Tensor  # [places] the responses of the group whose rate is known
    p_hat: Tensor  # [B] p̂ of the response's group
    largest: int  # responses of the largest group
    all_known: bool  # whether no rate is NaN; false where the host has not asked

    @classmethod
    def of_accuracies(
        cls, rate: Tensor, groups: Groups, largest: int, *, all_known: bool = False
    ) -> Success:
        """rate [B] of each response, NaN where it is not known."""
        known = groups.totals((~rate.isnan()).to(rate.dtype))
        group_rate = groups.totals(rate.nan_to_num(0.0)) / known
        return cls(rate, groups, group_rate, known, groups.each(group_rate), largest, all_known)

    @classmethod
    def of_rewards(cls, batch: Batch, low: float, high: float, largest: int) -> Success:
        """Rewards from low to high, as rates: all are known."""
        rate, group_rate, p_hat = batch.r, batch.group_rewards, batch.mean
        if (low, high) != (0.0, 1.0):
            rate, group_rate, p_hat = ((x - low) / (high - low) for x in (rate, group_rate, p_hat))
        G = batch.groups.counts
        return cls(rate, batch.groups, group_rate, G, p_hat, largest, all_known=True)

    @property
    def known(self) -> Tensor:
        """[B] the responses of the response's group whose rate is known."""
        return self.groups.each(self.group_known)


@dataclass(kw_only=True)
class _Anchored:
    """The history both reweightings share: C, an estimate of the policy's success rate made of
    earlier batches.

    anchor="kalman": C⁺ = (1−η_t)C⁻ + η_t y_t, η_t = clip(η·σ_t, 0, 1), σ_t the population deviation
    of the last `memory` anchors. The paper gives no η, memory or C_0, and a constant history would
    freeze C for ever (σ = 0): until `memory` anchors exist, and while they are all equal, C⁺ is the
    mean of the last `memory` observations instead. anchor="window": C = mean of the last `memory`
    batch means. anchor="fixed": C = `threshold`.
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
            raise ValueError(
                f'difficulty.anchor = "{self.anchor}" is not an anchor; use "kalman", "window" or "fixed"'
            )
        if self.include_current and self.anchor != "window":
            raise ValueError('difficulty.include_current belongs to anchor = "window"')
        if self.memory < 1 or not 0 < self.eta < math.inf:
            raise ValueError(
                f"difficulty needs memory ≥ 1 and eta > 0; got memory = {self.memory}, eta = {self.eta}"
            )
        if not 0 <= self.threshold <= 1:
            raise ValueError(
                f"difficulty.threshold = {self.threshold} must be a success rate, 0 to 1"
            )
        self.reward_range = _range(self.reward_range)

    def check_range(self, low: float, high: float) -> None:
        """Where no accuracy is known the rewards serve as one, and must lie on their range."""
        if low < self.reward_range[0] or high > self.reward_range[1]:
            raise RangeError(
                f"rewards lie in [{low:g}, {high:g}] but difficulty.reward_range is [{self.reward_range[0]:g}, "
                f"{self.reward_range[1]:g}]",
                "a success rate needs rewards on a known range; give assign(accuracy=…), or set reward_range to theirs",
            )

    def rate(self, reward: Tensor) -> Tensor:
        """Rewards on their range, mapped to [0, 1]."""
        return (reward - self.reward_range[0]) / (self.reward_range[1] - self.reward_range[0])

    def prior(self, y: float) -> float:
        """C⁻, what is believed before this batch, whose success rate is y (of all responses that
        were sampled).
        """
        if self.anchor == "fixed":
            return self.threshold
        if self.include_current:
            return fmean([*self.observations, y][-self.memory :])
        return self.anchors[-1] if self.anchors else y

    def update(self, y: float) -> None:
        self.observations = [*self.observations, y][-self.memory :]
        spread = _deviation(self.anchors) if len(self.anchors) == self.memory else 0.0
        if self.anchor == "kalman" and spread > 0:
            gain = min(self.eta * spread, 1.0)
            C = (1 - gain) * self.anchors[-1] + gain * y
        else:
            C = fmean(self.observations)
        self.anchors = [*self.anchors, C][-self.memory :]

    def state_dict(self) -> dict[str, Any]:
        return {"observations": list(self.observations), "anchors": list(self.anchors)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        observations = [float(y) for y in state["observations"]]
        anchors = [float(c) for c in state["anchors"]]
        if max(len(observations), len(anchors)) > self.memory:
            raise ValueError(
                f"the saved anchor holds {len(anchors)} entries, difficulty.memory is {self.memory}"
            )
        self.observations, self.anchors = observations, anchors


def _range(given: Sequence[float]) -> tuple[float, float]:
    with contextlib.suppress(TypeError, ValueError):
        low, high = map(float, given)
        if -math.inf < low < high < math.inf:
            return low, high
    raise ValueError(f"difficulty.reward_range = {given!r} must be (low, high) with low < high")


def _deviation(x: list[float]) -> float:
    """The population deviation, and exactly 0 of equal numbers. statistics.pstdev takes twenty times as long."""
    if min(x) == max(x):
        return 0.0
    mean = math.fsum(x) / len(x)
    return math.sqrt(math.fsum([(value - mean) ** 2 for value in x]) / len(x))


@dataclass(kw_only=True)
class _Remembering(_Anchored):
    """The prompt's own earlier attempts, as a success rate that is shrunk and forgets.

    `history` of `assign` counts successes and attempts, and steps since then. A step ago is worth
    `decay` of today, so n = attempts·decay^steps attempts are left; a Beta prior worth
    `prior_attempts` attempts at rate m stands beside them: h = (n·successes/attempts +
    prior_attempts·m)/(n + prior_attempts). One attempt is then no certainty.
    Rates without counts ([B]) are taken at their word.
    """

    prior_attempts: float = 2.0
    decay: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.prior_attempts < math.inf:
            raise ValueError(
                f"difficulty.prior_attempts = {self.prior_attempts} must not be negative"
            )
        if not 0 < self.decay <= 1:
            raise ValueError(
                f"difficulty.decay = {self.decay} must be above 0, and at most 1, which forgets nothing"
            )

    def estimate(self, history: Tensor | None, m: Tensor) -> Tensor:
        """[B] h, and m for a prompt without history."""
        if history is None:
            return m
        if history.ndim == 1:
            return torch.where(history.isnan(), m, history)
        successes, attempts = history[:, 0], history[:, 1]
        age = history[:, 2] if history.shape[1] == 3 else torch.zeros_like(attempts)
        n = attempts * self.decay**age
        rate = successes / attempts.clamp(min=torch.finfo(attempts.dtype).tiny)
        return torch.where(
            n > 0, (n * rate + self.prior_attempts * m) / (n + self.prior_attempts), m
        )


@dataclass(kw_only=True)
class HADW(_Anchored):
    """A ← Φ A with Φ = λ·exp(−sgn(A)·sgn(diff)·|diff|),
    diff = p̂ − C⁻, p̂ the group's success rate.

    λ is the same for all, so under AdamW, which divides the gradient's scale out, it does next to
    nothing. `sharpness` multiplies diff and changes what one prompt gets beside another: 1 is the
    paper's, 0 leaves λ alone.

    Φ > 0, so no sign changes. ΣΦA is no longer 0 in a group; `recentre` subtracts the group's mean
    of ΦA again, but turns no sign: an advantage that would change sides becomes 0. Of binary
    rewards recentring leaves r − p̂ times one number of the group, λ((1−p̂)e^(−diff) + p̂e^diff): a
    weight of the prompt, and nothing of Φ's correction of the baseline.
    A group of which no accuracy is known has diff = 0.
    """

    lam: float = 1.3
    sharpness: float = 1.0
    recentre: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.lam < math.inf:
            raise ValueError(
                f"difficulty.lam = {self.lam} must be positive: Φ must not change a sign"
            )
        if not 0 <= self.sharpness < math.inf:
            raise ValueError(
                f"difficulty.sharpness = {self.sharpness} must not be negative: that would take hard prompts for easy"
            )

    def difficulty(self, success: Success, history: Tensor | None) -> Tensor:
        """[B] how often the prompt is solved: p̂."""
        return success.p_hat

    def reweight(
        self, A: Tensor, success: Success, C: float, history: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """ΦA, and how many responses `recentre` kept from changing sign;
        None where it does not recentre.
        """
        minus_diff = C - self.difficulty(success, history)
        if self.sharpness != 1:
            minus_diff *= self.sharpness
        if not success.all_known:
            minus_diff.nan_to_num_(0.0)
        phi = torch.sign(A).mul_(minus_diff).exp_().mul_(self.lam)
        weighted = phi.mul_(A)
        if not self.recentre:
            return weighted, None
        centred = weighted - success.groups.mean(weighted)
        turned = centred * A < 0
        return torch.where(turned, 0.0, centred), turned.sum()


@dataclass(kw_only=True)
class HADWHistory(HADW, _Remembering):
    """HA-DW with diff = h − C⁻: the prompt's difficulty from its own earlier batches,
    not from the group it weighs.

    h is the prompt's remembered rate, shrunk towards p̂: a prompt that was never seen has the
    paper's. The anchor stays the policy's. Ours, not the paper's, for a reason its own theory
    gives: p̂ of a mixed group is at least 1/G and moves with the rewards that A is made of, while h
    knows of the groups nobody solved. (With h for the anchor instead, the correction would turn
    round: a hard prompt's mixed group always beats its own history.)
    """

    def difficulty(self, success: Success, history: Tensor | None) -> Tensor:
        return self.estimate(history, success.p_hat)


@dataclass(kw_only=True)
class Debias(_Remembering):
    """Φ = (1−cp̂)/(1−p̂) for r = 1 and c for r = 0: then Φ(r − p̂) = r − cp̂, a baseline that is p on
    average over the groups that are mixed (S).

    c = p/E[p̂|S] = P(S)/(1−p^{G−1}) for A = r − p̂. An advantage w(p̂)·(r − p̂), GRPO's with w = 1/σ,
    weighs groups by w too: c = p·E[w|S]/E[wp̂|S], a sum over the G−1 ways to be mixed. (maxrl
    weighs them by 1/p̂ to another end, and has the first c.) cp̂ is at most 1: no sign changes.

    p is a history estimate of the prompt's success rate, shrunk towards the anchor: a prompt
    without history has the anchor. Accuracies that are 0 or 1, and advantages proportional to r −
    p̂ within a group; Φ = 1 where the accuracy is not known, and in groups that are all right or
    all wrong.
    """

    # w(p̂, G) of the stack's advantage, where it differs between groups
    scale: Callable[[Tensor, Tensor], Tensor] | None = field(default=None, init=False, repr=False)

    def reweight(
        self, A: Tensor, success: Success, C: float, history: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        p = self.estimate(history, torch.full_like(A, C)).clamp(1e-6, 1 - 1e-6)
        G, p_hat = success.known, success.p_hat
        mixed = (p_hat > 0) & (p_hat < 1) & ~success.rate.isnan()
        c = self._constant(p, G, success.largest)
        # p̂ far above p, which history did not foresee, could turn a right response's sign
        up = (1 - c * p_hat).clamp(min=0) / (1 - p_hat)
        phi = torch.where(success.rate == 1, up, c)
        return torch.where(mixed, phi, 1.0) * A, None

    def _constant(self, p: Tensor, G: Tensor, largest: int) -> Tensor:
        """[B] c, of groups of G [B] at success rates p [B]."""
        if self.scale is None:
            return (1 - (1 - p) ** G - p**G) / (1 - p ** (G - 1))
        p, G = p[:, None], G[:, None].clamp(min=2)
        k = torch.arange(1, max(largest, 2), dtype=p.dtype, device=p.device)
        wrong = (G - k).clamp(min=0)
        ways = torch.lgamma(G + 1) - torch.lgamma(k + 1) - torch.lgamma(wrong + 1)
        chance = torch.exp(ways + k * torch.log(p) + wrong * torch.log1p(-p))
        q = (k / G).clamp(max=1)
        weight = torch.where(k < G, chance * self.scale(q, G), 0.0)
        return p[:, 0] * weight.sum(1) / (weight * q).sum(1)


Difficulty = HADW | Debias
DIFFICULTIES: dict[str, Callable[..., Difficulty] | None] = {
    "none": None,
    "hadw": HADW,
    "hadw_history": HADWHistory,
    "debias": Debias,
}

"""Logs drawn from laws whose truth is known in closed form.

p of a prompt is Beta(a, b); a response is right with probability p; lengths are log-normal with one mean per outcome
and one σ, so that CV and gap follow from those three numbers.
"""

from dataclasses import dataclass

import numpy as np
from scipy import integrate, stats

from equipoise import theory
from equipoise.audit.difficulty import STRATA


@dataclass(frozen=True)
class Law:
    a: float = 1.0
    b: float = 1.0
    right: float = 600.0  # mean length of a right response
    wrong: float = 800.0
    sigma: float = 0.4  # of the logarithm of a length
    G: int = 8

    def draw(self, groups: int, seed: int, steps: int = 1) -> dict[str, np.ndarray]:
        """Columns of a log in which every prompt comes once."""
        rng = np.random.default_rng(seed)
        group = np.repeat(np.arange(groups), self.G)
        reward = (rng.random(len(group)) < np.repeat(rng.beta(self.a, self.b, groups), self.G)).astype(float)
        mean = np.where(reward > 0, self.right, self.wrong)
        T = mean * np.exp(self.sigma * rng.standard_normal(len(group)) - self.sigma**2 / 2)
        return {
            "step": group * steps // groups,
            "prompt_id": np.array([f"p{g}" for g in group]),
            "reward": reward,
            "length": np.maximum(1, np.rint(T)).astype(int),
        }

    @property
    def p(self) -> float:
        return self.a / (self.a + self.b)

    @property
    def mean_length(self) -> float:
        return self.p * self.right + (1 - self.p) * self.wrong

    @property
    def cv(self) -> float:
        square = (self.p * self.right**2 + (1 - self.p) * self.wrong**2) * np.exp(self.sigma**2)
        return float(np.sqrt(square / self.mean_length**2 - 1))

    @property
    def degenerate(self) -> float:
        return self._mean(lambda p: 1 - theory.informative_probability(p, self.G))

    @property
    def coupling(self) -> float:
        """Under one weight for all tokens: m is the same for both signs and independent of lengths given the signs."""
        return self.right / self.wrong

    def baseline(self, stratum: str) -> tuple[float, float]:
        """Mean bias of the baseline over the stratum's informative groups, and its share of all informative ones."""
        low, high = STRATA[stratum]
        informative = self._mean(lambda p: theory.informative_probability(p, self.G), low, high)
        bias = self._mean(
            lambda p: theory.informative_probability(p, self.G) * theory.baseline_bias(p, self.G), low, high
        )
        return bias / informative, informative / (1 - self.degenerate)

    def _mean(self, f, low=0.0, high=1.0) -> float:
        return integrate.quad(lambda p: f(p) * stats.beta.pdf(p, self.a, self.b), low, high)[0]

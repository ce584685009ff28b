"""The papers' evaluation metrics over a set of problems, each with a 95 % interval (FORMULAS §6).

Every function takes one array of 0/1 outcomes per problem (the number of samples may differ) and gives an Estimate.
Intervals of means are percentile bootstraps over problems, seeded; the samples of a problem stay together, because they
are not independent of each other. A plain proportion (one answer per problem) has a Wilson interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

Z = 1.959963984540054  # 97.5 % quantile of the normal law
RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    value: float
    low: float
    high: float


def _per_problem(outcomes: Sequence[Sequence[float]]) -> list[np.ndarray]:
    arrays = [np.asarray(o, dtype=np.float64) for o in outcomes]
    if not arrays:
        raise ValueError("no problems: a metric needs at least one")
    for i, a in enumerate(arrays):
        if a.ndim != 1 or len(a) == 0:
            raise ValueError(f"problem {i} has no samples")
    return arrays


def bootstrap(per_problem: Sequence[float], seed: int = 0) -> Estimate:
    """The mean over problems and its percentile bootstrap interval."""
    x = np.asarray(per_problem, dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = x[rng.integers(0, len(x), size=(RESAMPLES, len(x)))].mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(float(x.mean()), float(low), float(high))


def wilson(successes: int, n: int) -> Estimate:
    """A proportion and its Wilson score interval."""
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} successes of {n}: the rule is 0 ≤ successes ≤ n, n > 0")
    p = successes / n
    centre, spread = p + Z**2 / (2 * n), Z * np.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    scale = 1 + Z**2 / n
    return Estimate(p, max(0.0, float((centre - spread) / scale)), min(1.0, float((centre + spread) / scale)))


def acc(outcomes: Sequence[Sequence[float]], seed: int = 0) -> Estimate:
    """acc@n: the mean over the n samples, then over problems."""
    return bootstrap([a.mean() for a in _per_problem(outcomes)], seed)


def best(outcomes: Sequence[Sequence[float]], seed: int = 0) -> Estimate:
    """best@n: at least one of the n is right."""
    return bootstrap([float(a.max() > 0) for a in _per_problem(outcomes)], seed)


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 − C(n−c, k)/C(n, k): the unbiased chance that k of the n samples, without replacement, hold a right one."""
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k needs 0 ≤ c ≤ n and 1 ≤ k ≤ n; got n = {n}, c = {c}, k = {k}")
    missed = 1.0
    for j in range(k):
        missed *= max(n - c - j, 0) / (n - j)
    return 1.0 - missed


def mean_pass_at_k(outcomes: Sequence[Sequence[float]], k: int, seed: int = 0) -> Estimate:
    return bootstrap([pass_at_k(len(a), int((a > 0).sum()), k) for a in _per_problem(outcomes)], seed)


def majority(answers: Sequence[Sequence[Hashable]], outcomes: Sequence[Sequence[float]], seed: int = 0) -> Estimate:
    """maj@n: the most frequent answer is right. A tie counts as the chance that one of the tied answers is.

    None is "no answer" and never wins against an answer; a problem without any answer is wrong.
    """
    values = []
    for i, (given, right) in enumerate(zip(answers, _per_problem(outcomes), strict=True)):
        if len(given) != len(right):
            raise ValueError(f"problem {i} has {len(given)} answers and {len(right)} outcomes")
        votes = Counter(a for a in given if a is not None)
        most = max(votes.values(), default=0)
        tied = [a for a, n in votes.items() if n == most]
        is_right = {a: float(r > 0) for a, r in zip(given, right, strict=True)}
        values.append(sum(is_right[a] for a in tied) / len(tied) if tied else 0.0)
    return bootstrap(values, seed)


@dataclass(frozen=True)
class Peak:
    """The best evaluation of a run, the final one, and what was lost between them."""

    peak: float
    peak_step: int
    last: float
    drop: float


def peak(steps: Sequence[int], values: Sequence[float]) -> Peak:
    if not values or len(steps) != len(values):
        raise ValueError(f"{len(steps)} steps and {len(values)} values: the rule is as many of both, at least one")
    i = int(np.argmax(values))
    return Peak(values[i], steps[i], values[-1], values[i] - values[-1])


def length_cv(lengths: Sequence[float]) -> float:
    """std/mean of the response lengths."""
    x = np.asarray(lengths, dtype=np.float64)
    return float(x.std() / x.mean())


def length_gap(lengths: Sequence[float], right: Sequence[float]) -> float:
    """(T̄− − T̄+)/T̄: how much longer wrong responses are; 0 where there are only right or only wrong ones."""
    T, r = np.asarray(lengths, dtype=np.float64), np.asarray(right) > 0
    return 0.0 if r.all() or not r.any() else float((T[~r].mean() - T[r].mean()) / T.mean())

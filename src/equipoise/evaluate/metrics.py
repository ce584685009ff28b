"""The papers' evaluation metrics, each with a 95 % interval over problems (formulas.md §6).

Outcomes are 0/1, one sequence per problem; where a judge gives numbers and no verdicts they are
accuracies from 0 to 1, and best@n and pass@k are what the best of n, or of k, samples is worth. The
samples of a problem are not independent of each other, so every interval counts problems: it says
what another draw of such problems would give.

For shares in [0, 1] it is Wilson's score interval for as many coin flips as the spread between
problems is worth (for one answer per problem, exactly Wilson's). The spread is taken with one more
problem at 0 for the lower end and at 1 for the upper one: near 0 and 1, where benchmarks often are,
the few problems that carry it may not have been drawn. Simulated over 324 settings (30 to 500
problems, 1 to 16 samples, acc and pass@k from .03 to .99, problems alike or all different; 400 to
600 benchmarks each) it held the truth in 92.8 to 98.8 % of the cases and in 93 to 97 % in 87 % of
the settings, 95.6 % on average: where it is off, it is too wide. Without that problem it was 80.8
to 98.5 %.

The percentile bootstrap over problems, `bootstrap`, is there for what is not a share: lengths, or
differences between two policies on the same problems. It is not used for shares: with 30 problems
of 8 samples and pass@4 = .97 it held the truth in 78 % of the cases, and in 43 % at .998.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

Z = 1.959963984540054  # 97.5 % quantile of the normal law
RESAMPLES = 2000
# an accuracy above it counts as a right response where only right and wrong are told apart
RIGHT = 0.5


@dataclass(frozen=True)
class Score:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


def acc(outcomes: Sequence[Sequence[float]]) -> Score:
    """acc@n: the share of right samples of a problem, averaged over problems; n may differ."""
    samples = _checked(outcomes)
    return _mean_share([a.mean() for a in samples], samples)


def best(outcomes: Sequence[Sequence[float]]) -> Score:
    """best@n: the share of problems with at least one right sample of n, the same n for all;
    of accuracies between 0 and 1, the mean of each problem's best.
    """
    samples = _checked(outcomes)
    _same_n(samples, "best@n", "or ask for pass@k with k at most the fewest samples")
    return _mean_share([a.max() for a in samples], samples)


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 − C(n−c, k)/C(n, k): the unbiased chance that k of n samples hold one of the c right ones.

    Drawn without replacement and as a product, so nothing overflows. At k = n it is 0 or 1; a
    bootstrap with replacement would say .656 for one right of eight.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(
            f"n = {n}, c = {c}, k = {k}: pass@k needs 0 ≤ c ≤ n and 1 ≤ k ≤ n; draw more or lower k"
        )
    missed = 1.0
    for j in range(k):
        missed *= max(n - c - j, 0) / (n - j)
    return 1.0 - missed


def mean_pass_at_k(outcomes: Sequence[Sequence[float]], k: int) -> Score:
    """pass@k averaged over problems; n may differ between them, none below k."""
    samples = _checked(outcomes)
    return _mean_share([best_of_k(a, k) for a in samples], samples)


def best_of_k(outcomes: Sequence[float] | np.ndarray, k: int) -> float:
    """The expected best of k of n outcomes without replacement; pass@k where they are 0 and 1.

    E[max] = ∫ P(max ≥ t) dt: each level that outcomes reach adds its height times pass@k of the
    samples that reach it.
    """
    values = np.asarray(outcomes, dtype=np.float64)
    expected = pass_at_k(len(values), 0, k)  # 0, and refuses a k that cannot be
    below = 0.0
    for level in np.unique(values[values > 0]):
        reached = int((values >= level).sum())
        expected += float(level - below) * pass_at_k(len(values), reached, k)
        below = float(level)
    return expected


def majority(answers: Sequence[Sequence[Hashable]], outcomes: Sequence[Sequence[float]]) -> Score:
    """maj@n: the share of problems whose most frequent final answer is right, the same n for all.

    Of answers with equally many votes the one given first wins (samples are exchangeable, so that
    is a fair draw), and its first response says whether it is right. None is "no answer" and is
    never voted for; a problem with no answer at all is wrong.
    """
    samples = _checked(outcomes)
    _same_n(samples, "maj@n", "because a vote of few and a vote of many are different questions")
    if len(answers) != len(samples):
        raise ValueError(
            f"{len(answers)} problems with answers, {len(samples)} with outcomes: give both for all"
        )
    values = []
    for i, (given, right) in enumerate(zip(answers, samples, strict=True)):
        if len(given) != len(right):
            raise ValueError(
                f"problem {i} has {len(given)} answers and {len(right)} outcomes: give one per sample"
            )
        votes = Counter(answer for answer in given if answer is not None)
        values.append(
            float(right[list(given).index(max(votes, key=votes.__getitem__))]) if votes else 0.0
        )
    return _mean_share(values, samples)


def average(estimates: Sequence[Score]) -> Score:
    """The plain mean over benchmarks, and its interval (MOVER, Zou & Donner 2008).

    Benchmarks are independent, so the distances of their ends add up as squares:
    low = p̄ − sqrt(Σ(p_b − low_b)²)/B, and high alike.
    It keeps the intervals' lopsidedness near 0 and 1.
    """
    if not estimates:
        raise ValueError("no benchmarks: an average needs at least one")
    p, low, high = (
        np.array([getattr(e, end) for e in estimates]) for end in ("value", "low", "high")
    )
    B, mean = len(p), float(p.mean())
    return Score(
        mean,
        float(mean - np.sqrt(((p - low) ** 2).sum()) / B),
        float(mean + np.sqrt(((high - p) ** 2).sum()) / B),
    )


def wilson(successes: int, n: int) -> Score:
    """A plain proportion (greedy accuracy: one answer per problem) and its Wilson score interval."""
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} successes of {n}: it must be 0 ≤ successes ≤ n, n > 0")
    return _score(successes / n, n)


def bootstrap(per_problem: Sequence[float], seed: int = 0) -> Score:
    """The mean of any quantity over problems and its percentile bootstrap interval.

    One seed draws the same problems for every quantity.
    Some 30 problems are needed, and more where a few carry all the difference.
    """
    x = np.asarray(per_problem, dtype=np.float64)
    if x.ndim != 1 or len(x) == 0 or not np.isfinite(x).all():
        raise ValueError(
            f"{x.shape} values: give one finite number per problem, and at least one problem"
        )
    rng = np.random.default_rng(seed)
    means = x[rng.integers(0, len(x), (RESAMPLES, len(x)))].mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Score(float(x.mean()), float(low), float(high))


@dataclass(frozen=True)
class Peak:
    """The best evaluation of a run, the final one, and what was lost between them."""

    peak: float
    peak_step: float
    last: float
    drop: float


def peak(steps: Sequence[float], values: Sequence[float]) -> Peak:
    """Peak (the first of equals), last and drop = peak − last over a run's evaluations.

    The peak is a maximum of noisy values, so it is too high, the more so the more evaluations there
    are: compare the peaks of runs that were evaluated equally often on equally many problems.
    """
    if len(values) == 0 or len(steps) != len(values):
        raise ValueError(
            f"{len(steps)} steps and {len(values)} values: there must be as many of both, at least one"
        )
    if not np.isfinite(values).all():
        raise ValueError(
            f"values = {list(values)}: an evaluation that is not a number has no peak; leave it out"
        )
    i = int(np.argmax(values))
    return Peak(values[i], steps[i], values[-1], values[i] - values[-1])


def length_cv(lengths: Sequence[float]) -> float:
    """std/mean of the response lengths (population std)."""
    T = _lengths(lengths)
    return float(T.std() / T.mean())


def length_gap(lengths: Sequence[float], right: Sequence[float]) -> float:
    """(T̄− − T̄+)/T̄: how much longer wrong responses are; 0 unless there are both kinds."""
    T, r = _lengths(lengths), np.asarray(right) > RIGHT
    if T.shape != r.shape:
        raise ValueError(f"{len(T)} lengths and {len(r)} outcomes: give one of each per response")
    return 0.0 if r.all() or not r.any() else float((T[~r].mean() - T[r].mean()) / T.mean())


def _mean_share(values: Sequence[float], samples: Sequence[np.ndarray]) -> Score:
    """The mean of a share per problem; its interval is that of as many coin flips.

    n problems whose shares have mean p and variance v are worth p(1−p)/v·n flips: n where every
    share is 0 or 1, and never more than there are samples. Both are taken with one more problem at
    0 for the lower end, at 1 for the upper.
    """
    x = np.asarray(values, dtype=np.float64)
    total = sum(map(len, samples))

    def flips(end: float) -> float:
        y = np.append(x, end)
        if y.var() == 0:
            return len(x)
        return min(float(y.mean() * (1 - y.mean()) / y.var()) * len(x), total)

    p = float(x.mean())
    return Score(p, _score(p, flips(0.0)).low, _score(p, flips(1.0)).high)


def _score(p: float, n: float) -> Score:
    """Wilson's interval: the p₀ with |p − p₀| ≤ Z·sqrt(p₀(1−p₀)/n)."""
    centre, spread = p + Z**2 / (2 * n), Z * np.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
    low, high = (centre - spread) / (1 + Z**2 / n), (centre + spread) / (1 + Z**2 / n)
    # at p = 0 and 1 rounding would exclude p
    return Score(p, float(np.clip(low, 0, p)), float(np.clip(high, p, 1)))


def _checked(outcomes: Sequence[Sequence[float]]) -> list[np.ndarray]:
    samples = [np.asarray(o, dtype=np.float64) for o in outcomes]
    if not samples:
        raise ValueError("no problems: a metric needs at least one")
    for i, a in enumerate(samples):
        if a.ndim != 1 or len(a) == 0:
            raise ValueError(
                f"problem {i} has outcomes of shape {a.shape}: give a sequence of at least one"
            )
        odd = a[~((a >= 0) & (a <= 1))]  # NaN as well
        if len(odd):
            raise ValueError(
                f"problem {i} has the outcome {odd[0]:g}: must be 0 or 1, or an accuracy between"
            )
    return samples


def _same_n(samples: Sequence[np.ndarray], metric: str, fix: str) -> None:
    n = {len(a) for a in samples}
    if len(n) > 1:
        raise ValueError(
            f"problems have between {min(n)} and {max(n)} samples: {metric} needs one n for all, {fix}"
        )


def _lengths(lengths: Sequence[float]) -> np.ndarray:
    T = np.asarray(lengths, dtype=np.float64)
    if T.size == 0 or not (T > 0).any() or not (T >= 0).all():
        raise ValueError(f"{T.size} lengths: give at least one, none negative and not all 0")
    return T

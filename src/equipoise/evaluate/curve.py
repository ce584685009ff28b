"""TGC's measures of a curve (arXiv 2604.13088 v1): how soon it rises, how it shakes and drifts.

Functions of numbers that a run has written down. Not here:
intervals, which `compare` makes over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence


def steps_to_score(steps: Sequence[float], scores: Sequence[float], score: float) -> float:
    """The first step, interpolated between evaluations, that reaches `score`; inf without one.

    >>> steps_to_score([0, 10, 20], [0.2, 0.4, 0.6], 0.5)
    15.0
    """
    _check(steps, scores)
    for k, reached in enumerate(scores):
        if reached >= score:
            if k == 0 or reached == scores[k - 1]:
                return float(steps[k])
            share = (score - scores[k - 1]) / (reached - scores[k - 1])
            return steps[k - 1] + share * (steps[k] - steps[k - 1])
    return math.inf


def jitter(scores: Sequence[float]) -> float:
    """The root mean square of the second differences of a curve over √6: the noise of each point.

    Points of independent noise σ around a straight line have E[(s_{k−1} − 2s_k + s_{k+1})²] = 6σ²;
    the line itself, however steep, has none. NaN for fewer than three points.
    """
    bends = [scores[k - 1] - 2 * scores[k] + scores[k + 1] for k in range(1, len(scores) - 1)]
    return math.sqrt(sum(b * b for b in bends) / (6 * len(bends))) if bends else math.nan


def log_odds_drift(
    before: Sequence[float], after: Sequence[float], prompts: Sequence[Hashable]
) -> float:
    """Mean over prompts and pairs of |Δ_a − Δ_b|: how far odds between right answers have moved.

    before, after: log-probabilities of whole answers, Δ = after − before; an answer that gains as
    much as the others has no drift. NaN where no prompt has two answers.
    """
    _check(before, after)
    _check(before, prompts)
    gains: dict[Hashable, list[float]] = {}
    for b, a, prompt in zip(before, after, prompts, strict=True):
        gains.setdefault(prompt, []).append(a - b)
    each = []
    for d in gains.values():
        pairs = [abs(x - y) for i, x in enumerate(d) for y in d[:i]]
        if pairs:
            each.append(sum(pairs) / len(pairs))
    return sum(each) / len(each) if each else math.nan


def answer_entropy(logprobs: Sequence[float]) -> float:
    """The entropy of a prompt's fixed right answers, in nats: 0 where one has taken it all."""
    if not logprobs:
        raise ValueError("0 answers: an entropy needs at least one")
    top = max(logprobs)
    weights = [math.exp(x - top) for x in logprobs]
    total = sum(weights)
    return -sum(w / total * math.log(w / total) for w in weights if w > 0)


def _check(a: Sequence[object], b: Sequence[object]) -> None:
    if len(a) != len(b) or not a:
        raise ValueError(
            f"{len(a)} and {len(b)} entries: there must be as many of both, and at least one"
        )

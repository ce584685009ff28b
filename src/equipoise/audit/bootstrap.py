"""Intervals over prompts, which are resampled whole: responses to one are not independent.

Every measure of the audit (but the baseline's, difficulty.py) is a function of sums over prompts,
so a resample is a vector of multinomial counts and all resamples of all measures are one matrix
product. The interval is the percentile bootstrap's, expanded for few prompts (Hesterberg 2015): its
quantiles are those at which the normal law would give Student's interval with n − 1 degrees.

Normalisers a batch shares (DAPO's token count, HA-DW's anchor) stay as the log had them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from equipoise.audit.log import Floats

# more prompts are added up in as many blocks, at the price of 1 % in the intervals' width
BLOCKS = 4096


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval; None where the log cannot say."""

    value: float | None
    low: float | None = None
    high: float | None = None


NOTHING = Estimate(None)


def resampled(sums: Floats, resamples: int, seed: int | tuple[int, ...]) -> Floats:
    """[P, columns] sums of each prompt -> [resamples, columns] their totals in each resample."""
    n = len(sums)
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, n, (resamples, n))
    # One count for all resamples: the prompts of the k-th are numbered from k·n.
    numbered = drawn + n * np.arange(resamples)[:, None]
    counts = np.bincount(numbered.ravel(), minlength=resamples * n).reshape(resamples, n)
    return np.asarray(counts.astype(np.float64) @ sums)


def intervals(
    values: dict[str, Floats],
    replicates: dict[str, Floats],
    prompts: dict[str, int],
    shares: tuple[str, ...] = (),
) -> dict[str, Estimate]:
    """The estimates `values` (0-dim), each with the interval that its replicates [resamples] give.

    `prompts`: how many have something to say of each; there is no interval with less than two.
    Resamples without the quantity do not count, nor is there an interval with more than half of
    them gone. `shares`: those that are shares of groups or responses, of which all or none in n
    prompts is no certainty: their interval is then the exact binomial one of n prompts, which
    reaches to 1 − .025^(1/n). What comes of a prompt more than once may always be alike.
    """
    return {
        name: _estimate(float(value), replicates[name], prompts[name], name in shares)
        for name, value in values.items()
    }


def _estimate(value: float, replicates: Floats, n: int, is_share: bool) -> Estimate:
    if not np.isfinite(value):
        return NOTHING
    kept = replicates[np.isfinite(replicates)]
    if n < 2 or 2 * len(kept) < len(replicates):
        return Estimate(value)
    if is_share and value in (0.0, 1.0):
        reach = 1 - 0.025 ** (1 / n)
        return Estimate(value, max(0.0, value - reach), min(1.0, value + reach))
    low, high = _ends(kept, n)
    return Estimate(value, low, high)


def _ends(x: Floats, n: int) -> tuple[float, float]:
    """Expanded percentiles: np.quantile of both tails, at a fifth of its cost for small arrays."""
    t = special.stdtrit(n - 1, 0.975) * np.sqrt(n / (n - 1))
    x = np.sort(x)
    place = float(special.ndtr(-t)) * (len(x) - 1)
    i = int(place)
    between = place - i  # how far towards the next value inwards
    low = x[i] + between * (x[i + 1] - x[i])
    high = x[-1 - i] - between * (x[-1 - i] - x[-2 - i])
    return float(low), float(high)

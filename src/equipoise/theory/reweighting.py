"""HA-DW's factor Φ = λ·exp(−sgn(A)·(p̂ − C)):
which λ keeps the reweighted advantage near the true one.

Lemma 1 bounds p by p̂ (`confidence_radius`) and finds the constants c that correct the baseline
(`correction_interval`). Theorem 3 turns them into λ (`lambda_interval`), one interval for right
responses and one for wrong ones, and takes λ from their union. It promises E[ΦÂ | S] within ε of A,
with probability 1 − δ over p̂. The promise can be void: with few responses or a small ε the band of
p that p̂ leaves possible is too wide for any one λ. An interval without a point is reported as
empty, its ends as NaN, never with its ends swapped. What Φ does in fact is in reweighted.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.theory.arguments import Array, Real, binary, group_size, plain, positive, probability
from equipoise.theory.baseline import conditional_baseline, informative_probability


@dataclass(frozen=True)
class Interval:
    """The open interval (low, high), elementwise; NaN at both ends where it is empty."""

    low: Real
    high: Real

    @property
    def empty(self) -> bool | NDArray[np.bool_]:
        """True where no number lies between the ends."""
        missing = np.isnan(self.low)
        return missing if missing.ndim else bool(missing)


def confidence_radius(G: ArrayLike, delta: ArrayLike, margin: ArrayLike) -> Real:
    """How far p̂ may lie from p, given an informative group, except with probability δ.

        ε_δ = sqrt( log( 2 / (δ·(1 − (1−Δ)^G − Δ^G)) ) / (2G) )

    Hoeffding's bound divided by the least P(S) over p in [Δ, 1−Δ].

    Parameters
    ----------
    G : whole number ≥ 2. delta : δ in (0, 1]. margin : Δ in (0, ½).
    Floats or arrays, broadcast together.

    Returns
    -------
    float or array > 0; above 1 it says nothing.

    References
    ----------
    HA-DW, Lemma 1; formulas.md §3.

    Examples
    --------
    >>> round(confidence_radius(8, 0.1, 0.05), 3)
    0.505
    """
    delta = positive(probability(delta, "delta"), "delta")
    least_P_S = informative_probability(_margin(margin), G)
    return plain(np.sqrt(np.log(2 / (delta * least_P_S)) / (2 * group_size(G))))


def correction_interval(
    p_hat: ArrayLike, G: ArrayLike, eps: ArrayLike, delta: ArrayLike = 0.1, margin: ArrayLike = 0.05
) -> Interval:
    """The constants c for which |E[c·p̂ | S] − p| < ε at every p the observed p̂ leaves possible.

        c_low  = sup_{p ∈ I} (p − ε)·P(S) / (p(1 − p^(G−1)))
        c_high = inf_{p ∈ I} (p + ε)·P(S) / (p(1 − p^(G−1)))        I = [p̂ − ε_δ, p̂ + ε_δ] ∩ [Δ, 1−Δ]

    Parameters
    ----------
    p_hat : the group's mean reward in [0, 1]. G : whole number ≥ 2. eps : ε > 0. delta : δ in (0,
        1].
        margin : Δ in (0, ½). Floats or arrays, broadcast together.

    Returns
    -------
    Interval (c_low, c_high), empty where c_low ≥ c_high or I has no point.
    c_low is negative where ε exceeds every p in I.

    References
    ----------
    HA-DW, Lemma 1; formulas.md §3.

    Examples
    --------
    >>> correction_interval(0.25, 8, eps=0.05).empty, correction_interval(0.25, 8, eps=0.1).empty
    (True, False)
    """
    p_hat, G, eps, delta, margin = np.broadcast_arrays(
        probability(p_hat, "p_hat"),
        group_size(G),
        positive(eps, "eps"),
        np.asarray(delta),
        _margin(margin),
    )
    radius = confidence_radius(G, delta, margin)
    first, last = np.maximum(p_hat - radius, margin), np.minimum(p_hat + radius, 1 - margin)
    G, eps = G[..., None], eps[..., None]
    # (p ∓ ε)·P(S)/(p(1 − p^(G−1))) is (p ∓ ε)/E[p̂|S]
    c_low = _supremum(lambda p: (p - eps) / conditional_baseline(p, G), first, last)
    c_high = -_supremum(lambda p: -(p + eps) / conditional_baseline(p, G), first, last)
    return _interval(c_low, c_high, first <= last)


def lambda_interval(
    r: ArrayLike,
    p_hat: ArrayLike,
    anchor: ArrayLike,
    G: ArrayLike,
    eps: ArrayLike,
    delta: ArrayLike = 0.1,
    margin: ArrayLike = 0.05,
) -> Interval:
    """The λ for which the reweighted advantage of reward r is within ε of the true one.

        r = 1:  λ ∈ ( (1 + (1−c_high)·p̂/(1−p̂)) / e^DM , (1 + (1−c_low)·p̂/(1−p̂)) / e^DM )
        r = 0:  λ ∈ ( c_low / e^DM , c_high / e^DM )

    with D·M = −sgn(A)·(p̂ − C), the exponent of Φ, and (c_low, c_high) of `correction_interval`.

    Parameters
    ----------
    r : 0 or 1. p_hat : the group's mean reward, strictly between 0 and 1. anchor : C, the prior, in
        [0, 1].
        G, eps, delta, margin : as in `correction_interval`. Floats or arrays, broadcast together.

    Returns
    -------
    Interval. A negative lower end does not bind, since λ > 0. Right and wrong responses have
    different intervals; the theorem takes λ from their union, so that a single λ may serve one kind
    of response and not the other. The formulas turn λ into the c with Φ·Â = r − c·p̂ at the p̂
    observed and then treat c as a constant of the expectation over p̂; that Φ itself moves with p̂
    is not followed (`reweighted_bias` follows it).

    References
    ----------
    HA-DW, Theorem 3; formulas.md §3.

    Examples
    --------
    >>> interval = lambda_interval(0, 0.25, 0.5, G=256, eps=0.1)
    >>> interval.low < 1.3 < interval.high
    True
    """
    r = binary(r)
    p_hat = probability(p_hat, "p_hat")
    if np.any((p_hat == 0) | (p_hat == 1)):
        raise ValueError(
            "p_hat = 0 or 1 is a group without variance: drop it, its advantages are 0"
        )
    c = correction_interval(p_hat, G, eps, delta, margin)
    exponent = np.where(r == 1, -1, 1) * (p_hat - probability(anchor, "anchor"))
    odds = p_hat / (1 - p_hat)
    low = np.where(r == 1, 1 + (1 - c.high) * odds, c.low) / np.exp(exponent)
    high = np.where(r == 1, 1 + (1 - c.low) * odds, c.high) / np.exp(exponent)
    return _interval(low, high, low < high)


def _margin(margin: ArrayLike) -> Array:
    margin = np.asarray(margin, dtype=np.float64)
    if not np.all((margin > 0) & (margin < 0.5)):
        raise ValueError(
            f"margin = {margin} must lie in (0, 0.5): p is taken to be in [margin, 1 - margin]"
        )
    return margin


def _interval(low: ArrayLike, high: ArrayLike, possible: ArrayLike) -> Interval:
    low, high = np.asarray(low), np.asarray(high)
    full = np.asarray(possible) & (low < high)
    return Interval(plain(np.where(full, low, np.nan)), plain(np.where(full, high, np.nan)))


def _supremum(f: Callable[[Array], Array], first: Array, last: Array) -> Array:
    """max of f over each [first, last]: four rounds of 257 points within the best two cells.

    f has few and broad extrema here; the value is exact to rounding because it errs with the square
    of the argument.
    """
    steps = np.linspace(0, 1, 257)
    best = np.full(first.shape, -np.inf)
    last = np.maximum(first, last)
    for _ in range(4):
        grid = first[..., None] + (last - first)[..., None] * steps
        value = f(grid)
        at = value.argmax(-1, keepdims=True)
        best = np.maximum(best, np.take_along_axis(value, at, -1)[..., 0])
        first = np.take_along_axis(grid, np.maximum(at - 1, 0), -1)[..., 0]
        last = np.take_along_axis(grid, np.minimum(at + 1, len(steps) - 1), -1)[..., 0]
    return best

"""What HA-DW's factor Φ does to a prompt over all outcomes of a group: bias left, and gain.

R ~ Binomial(G, p) answers of a group are right, p̂ = R/G, Â = r − p̂, A = r − p, Φ =
λ·exp(−sgn(Â)·(p̂ − C)). Theorem 3 says for which λ the reweighted advantage is near the true one,
but treats Φ as a constant while p̂ varies. Here Φ moves with p̂, and nothing is bounded or
approximated: every sum runs over R = 1 … G−1. As in the paper, E[·|S] holds r fixed and averages
over p̂ given S = {1 ≤ R ≤ G−1}. All of it is for r − p̂: the advantage HA-DW trains with is also
divided by σ.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from equipoise.theory.arguments import Array, Real, binary, group_size, plain, positive, probability
from equipoise.theory.baseline import informative_probability


def reweighted_bias(
    r: ArrayLike, p: ArrayLike, G: ArrayLike, anchor: ArrayLike, lam: ArrayLike
) -> Real:
    """The mean distance, given S, of the reweighted advantage of reward r from the true one.

        E[ΦÂ | S] − A        (without Φ it is E[Â | S] − A = −baseline_bias(p, G), for r = 0 and 1 alike)

    Theorem 3's conclusion is that Φ brings the advantage nearer to the truth: that |this| is less
    than |baseline_bias(p, G)|. Part of it is scale alone, which a learning rate would undo:
    `reweighted_baseline_bias`.

    Parameters
    ----------
    r : 0 or 1. p : in [0, 1]. G : a whole number ≥ 2. anchor : C in [0, 1]. lam : λ > 0.
    Floats or arrays, broadcast.

    Returns
    -------
    float or array, positive where the reweighted advantage is too high. At p = 0 and 1 its limits.

    References
    ----------
    HA-DW, Theorem 3; the enumeration is ours.

    Examples
    --------
    >>> round(reweighted_bias(1, p=0.25, G=8, anchor=0.5, lam=1.3), 3)
    0.461
    """
    r, p = np.broadcast_arrays(binary(r), probability(p))
    right, wrong = _means(p, G, anchor, lam)
    return plain(np.where(r == 1, right - (1 - p), p - wrong))


def reweighted_baseline_bias(p: ArrayLike, G: ArrayLike, anchor: ArrayLike) -> Real:
    """The bias that is left when the scale of a prompt's advantages is taken out.

        b − p        with        b = |E[ΦÂ|S, r=0]| / (E[ΦÂ|S, r=1] + |E[ΦÂ|S, r=0]|)

    A baseline b gives right answers 1 − b and wrong ones −b, whatever factor both are multiplied
    by; b is the baseline that ΦÂ amounts to. λ cancels. Without Φ this is baseline_bias(p, G)
    exactly.

    Parameters
    ----------
    p : in [0, 1]. G : a whole number ≥ 2. anchor : C in [0, 1].
    Floats or arrays, broadcast together.

    Returns
    -------
    float or array in (−1, 1), positive where the advantage is too low for its scale.

    References
    ----------
    Ours.

    Examples
    --------
    >>> round(reweighted_baseline_bias(0.25, 8, anchor=0.5), 4)
    -0.0451
    """
    right, wrong = _means(probability(p), G, anchor, 1.0)
    return plain(wrong / (right + wrong) - probability(p))


def reweighted_gain(
    p: ArrayLike, G: ArrayLike, anchor: ArrayLike, lam: ArrayLike, sharpness: float = 1.0
) -> Real:
    """How much a prompt counts in the expected gradient under HA-DW.

        E[ (1/G) Σ_i Φ_i·Â_i·∇log π(y_i) ] = gain · ∇p

    Every reweighting of binary rewards leaves the expected gradient of a prompt a multiple of ∇p,
    because
    E[∇log π | r=1] = ∇p/p and E[∇log π | r=0] = −∇p/(1−p) (`gradient_gain`). So the gain is all
    that HA-DW changes for a prompt in expectation. Under r − p̂ it is 1 − 1/G for every prompt.
    Here Â = r − p̂; HA-DW's own advantage is also divided by σ, which changes the gain as well.

    Parameters
    ----------
    p : in [0, 1]. G : a whole number ≥ 2. anchor : C in [0, 1]. lam : λ > 0. Floats or arrays,
    broadcast together. sharpness : a factor on p̂ − C; 1 is the paper's, and what follows is for
    it.

    Returns
    -------
    float or array > 0: (1 − 1/G)·λ·exp(C − 1/G) at p = 0, (1 − 1/G)·λ·exp(1 − 1/G − C) at p = 1.
    gain(p, C) is gain(1−p, 1−C): at C = ½ the hardest and the easiest prompts gain alike.

    References
    ----------
    Ours, by enumeration.

    Examples
    --------
    >>> [round(reweighted_gain(p, 8, anchor=0.5, lam=1), 2) for p in (0.02, 0.98)]
    [1.24, 1.24]
    >>> [round(reweighted_gain(p, 8, anchor=0.3, lam=1), 2) for p in (0.02, 0.98)]
    [1.02, 1.51]
    """
    p, G, anchor, lam = np.broadcast_arrays(
        probability(p), group_size(G), probability(anchor, "anchor"), _lam(lam)
    )
    rate, k = _rates(G)
    n = G[..., None]
    # R = k of a group, seen from one of its right answers, is k − 1 right among the others;
    # from a wrong one, k
    inside = k < n
    others = np.maximum(n - 1, 1)
    seen_right = stats.binom.pmf(k - 1, others, p[..., None])
    seen_wrong = stats.binom.pmf(k, others, p[..., None])
    up, down = _factors(rate, anchor, lam, sharpness)
    gain = seen_right * up * (1 - rate) + seen_wrong * down * rate
    return plain(np.where(inside, gain, 0.0).sum(-1))


def _means(p: Array, G: ArrayLike, anchor: ArrayLike, lam: ArrayLike) -> tuple[Array, Array]:
    """E[ΦÂ|S] for r = 1, and its size for r = 0."""
    p, G, anchor, lam = np.broadcast_arrays(
        p, group_size(G), probability(anchor, "anchor"), _lam(lam)
    )
    rate, k = _rates(G)
    weight = _given_informative(k, p, G)
    up, down = _factors(rate, anchor, lam)
    right = (weight * up * (1 - rate)).sum(-1)
    wrong = (weight * down * rate).sum(-1)
    return right, wrong


def _rates(G: Array) -> tuple[Array, Array]:
    """p̂ = k/G, k = 1 … max G − 1, on a last axis, at most 1 where k exceeds a smaller G; and k."""
    k = np.arange(1.0, G.max(initial=2))
    return np.minimum(k / G[..., None], 1.0), k


def _given_informative(k: Array, p: Array, G: Array) -> Array:
    """P(R = k | S) with its limits at p = 0 and 1, where R is 1 and G − 1."""
    n = G[..., None]
    informative = np.asarray(informative_probability(p, G))[..., None]
    R_at_limit = np.where(p < 0.5, 1, G - 1)[..., None]
    limit = np.where(k == R_at_limit, 1.0, 0.0)
    pmf = np.where(k < n, stats.binom.pmf(k, n, p[..., None]), 0.0)
    return np.asarray(np.divide(pmf, informative, out=limit, where=informative > 0))


def _factors(rate: Array, anchor: Array, lam: Array, sharpness: float = 1.0) -> tuple[Array, Array]:
    """Φ of right answers and of wrong ones, at each p̂."""
    difference = sharpness * (rate - anchor[..., None])
    return lam[..., None] * np.exp(-difference), lam[..., None] * np.exp(difference)


def _lam(lam: ArrayLike) -> Array:
    return positive(lam, "lam")

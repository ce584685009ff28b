"""The group baseline under binary rewards: what conditioning on an informative group does to it.

A prompt is solved with probability p; a group of G responses has R ~ Binomial(G, p) right answers
and p̂ = R/G. GRPO learns only from S = {1 ≤ R ≤ G−1}. Given S, p̂ is no longer centred on p, and
with it Â = r − p̂ no longer on A = r − p: hard prompts (p < ½) have their advantage underestimated,
easy ones overestimated (HA-DW, Theorems 1 and 2, Corollaries 1 to 3; formulas.md §3). Every
function has its exact limit at p = 0 and p = 1, where S has probability 0 and
R given S tends to 1 and to G−1.

This is a statement about the baseline, not about the direction of the gradient:
see `gradient_gain`.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from equipoise.theory.arguments import Array, Real, binary, group_size, plain, probability
from equipoise.theory.quadrature import integrate


def informative_probability(p: ArrayLike, G: ArrayLike) -> Real:
    """Probability that a group teaches anything.

        P(S) = 1 − (1−p)^G − p^G

    Parameters
    ----------
    p, G : float or array, broadcast together. p in [0, 1], G a whole number ≥ 2.

    Returns
    -------
    float or array in [0, 1 − 2^(1−G)]. Exactly 0 at p = 0 and 1;
    full relative precision near them (≈ G·p).

    References
    ----------
    HA-DW (arXiv 2601.08521), formulas.md §3.

    Examples
    --------
    >>> informative_probability(0.5, 2)
    0.5
    """
    return plain(_informative(probability(p), group_size(G)))


def conditional_baseline(p: ArrayLike, G: ArrayLike) -> Real:
    """The mean of the group baseline over informative groups.

        E[p̂ | S] = (p − p^G) / P(S)

    Parameters
    ----------
    p, G : float or array, broadcast together. p in [0, 1], G a whole number ≥ 2.

    Returns
    -------
    float or array in [1/G, 1 − 1/G], the limits at p = 0 and p = 1. E[p̂|S](1−p) = 1 − E[p̂|S](p).

    References
    ----------
    HA-DW, Lemma 2; formulas.md §3.

    Examples
    --------
    >>> conditional_baseline([0.0, 0.5, 1.0], 8)
    array([0.125, 0.5  , 0.875])
    """
    return plain(_conditional_baseline(probability(p), group_size(G)))


def baseline_bias(p: ArrayLike, G: ArrayLike) -> Real:
    """The bias of the group baseline, and of the advantage, given an informative group.

        E[p̂ | S] − p  =  A − E[Â | S]  =  (p(1−p)^G + p^(G+1) − p^G) / P(S)

    The two are one number because A − Â = (r − p) − (r − p̂) = p̂ − p. Positive for p < ½: the
    baseline is too high and the advantage too low. E[Â | S] averages the baseline over S with r
    held fixed, as the paper does; Â's own mean over a group is 0 whatever p is.

    Parameters
    ----------
    p, G : float or array, broadcast together. p in [0, 1], G a whole number ≥ 2.

    Returns
    -------
    float or array in [−1/G, 1/G], the limits at p = 1 and p = 0; exactly 0 at ½ and odd about it.
    Computed as p(1−p)((1−p)^(G−1) − p^(G−1))/P(S) without cancellation at 0, ½ or 1.

    References
    ----------
    HA-DW, Theorem 1 and Lemma 2; formulas.md §3.

    Examples
    --------
    >>> baseline_bias(0.0, 8), baseline_bias(0.5, 8)
    (0.125, 0.0)
    """
    p, G = np.broadcast_arrays(probability(p), group_size(G))
    s = np.minimum(p, 1 - p)
    difference = -((1 - s) ** (G - 1)) * np.expm1((G - 1) * _log_odds(s))
    size = np.divide(s * (1 - s) * difference, _informative(s, G), out=np.array(1 / G), where=s > 0)
    return plain(np.sign(0.5 - p) * size)


def underestimation_probability(p: ArrayLike, G: ArrayLike, eps: ArrayLike = 0.0) -> Real:
    """The chance that an informative group underestimates the advantage by more than ε.

        P(A − Â > ε | S) = Σ_{k=⌊G(p+ε)⌋+1}^{G−1} Bin(k; G, p) / P(S)

    Parameters
    ----------
    p, G, eps : float or array, broadcast together. p in [0, 1], G a whole number ≥ 2, ε ≥ 0.

    Returns
    -------
    float or array in [0, 1]. G(p+ε) within a few roundings of a whole number is taken for it (0.7 +
    0.1 is 0.8), and the inequality is strict there. At p = 0, R given S is 1: the result is 1 if ε
    < 1/G, else 0.
    Memory grows with the broadcast size times the largest G.

    References
    ----------
    HA-DW, Theorem 2 (hard); formulas.md §3.

    Examples
    --------
    >>> underestimation_probability([0.0, 0.1, 0.124], 8)
    array([1., 1., 1.])
    """
    return _tail(p, G, eps, over=False)


def overestimation_probability(p: ArrayLike, G: ArrayLike, eps: ArrayLike = 0.0) -> Real:
    """The chance that an informative group overestimates the advantage by more than ε.

        P(Â − A > ε | S) = Σ_{k=1}^{⌈G(p−ε)⌉−1} Bin(k; G, p) / P(S)

    Parameters
    ----------
    p, G, eps : float or array, broadcast together. p in [0, 1], G a whole number ≥ 2, ε ≥ 0.

    Returns
    -------
    float or array in [0, 1], equal to `underestimation_probability(1−p, G, eps)`.
    Boundaries as there.

    References
    ----------
    HA-DW, Theorem 2 (easy); formulas.md §3.

    Examples
    --------
    >>> overestimation_probability([0.9, 1.0], 8)
    array([1., 1.])
    """
    return _tail(p, G, eps, over=True)


def average_underestimation(G: ArrayLike, p_max: ArrayLike = 0.5) -> Real:
    """The paper's average of Theorem 2 over difficulty, each p weighing the same.

        (1/p_max) ∫_0^{p_max} P(A − Â > 0 | S, p) dp

    Corollary 1 reads it at p_max = ½, ¼, ⅛; Corollary 2 at 2/G; Corollary 3 at 1/G, where it is 1.
    It is **not** the share of informative groups that underestimate when p is uniform: hard prompts
    rarely give an informative group, and this average counts them in full. That share is
    `conditioned_underestimation`.

    Parameters
    ----------
    G, p_max : float or array, broadcast together. G a whole number ≥ 2, p_max in [0, 1].

    Returns
    -------
    float or array in [0, 1]; 1 in the limit p_max = 0.

    References
    ----------
    HA-DW, Corollaries 1 to 3; formulas.md §3.

    Examples
    --------
    >>> average_underestimation([2, 4, 6, 8], 0.5).round(4)
    array([1.    , 0.777 , 0.6897, 0.6409])
    """

    def one(G: float, p_max: float) -> float:
        # the integrand is smooth between multiples of 1/G
        kinks = np.arange(np.ceil(G * p_max)) / G
        points = np.append(kinks[kinks < p_max], p_max)
        area = integrate(lambda p: np.asarray(underestimation_probability(p, G)), points)
        return area / p_max if p_max > 0 else 1.0

    return plain(np.vectorize(one, otypes=[float])(group_size(G), probability(p_max, "p_max")))


def conditioned_underestimation(G: ArrayLike, p_max: ArrayLike = 0.5) -> Real:
    """The share of informative groups that underestimate, for p uniform on [0, p_max].

        ∫ P(A − Â > 0, S | p) dp / ∫ P(S | p) dp
            = Σ_{k=1}^{G−1} I_{min(p_max, k/G)}(k+1, G−k+1) / Σ_{k=1}^{G−1} I_{p_max}(k+1, G−k+1)

    The average of Theorem 2 weighted by P(S|p), that is, conditioned on S as its title says (I is
    the regularised incomplete beta function). The paper does not give it; `average_underestimation`
    is what it gives.

    Parameters
    ----------
    G, p_max : float or array, broadcast together. G a whole number ≥ 2, p_max in [0, 1].

    Returns
    -------
    float or array in [0, 1]; 1 in the limit p_max = 0.

    References
    ----------
    formulas.md §3, the first of the traps.

    Examples
    --------
    >>> conditioned_underestimation(8, [0.5, 0.25]).round(3)
    array([0.58 , 0.708])
    """
    G, p_max = np.broadcast_arrays(group_size(G), probability(p_max, "p_max"))
    k, inside = _counts(G)
    n, a = G[..., None], p_max[..., None]
    # where k lies outside 1..G−1 the parameters only have to be legal: the term is dropped
    term = np.where(inside, special.betainc(k + 1, np.maximum(n - k, 0) + 1, a), 0.0).sum(-1)
    below = np.where(
        inside, special.betainc(k + 1, np.maximum(n - k, 0) + 1, np.minimum(a, k / n)), 0.0
    ).sum(-1)
    return plain(np.divide(below, term, out=np.ones_like(term), where=term > 0))


def debias_constant(p: ArrayLike, G: ArrayLike) -> Real:
    """The factor that makes the group baseline unbiased over informative groups.

        c* = P(S) / (1 − p^(G−1)) = p / E[p̂ | S],        so that        E[c*·p̂ | S] = p

    Parameters
    ----------
    p, G : float or array, broadcast together. p in [0, 1], G a whole number ≥ 2.

    Returns
    -------
    float or array, from 0 at p = 0 through 1 at ½ to the limit G/(G−1) at p = 1.

    References
    ----------
    formulas.md §3, `debias` (beyond the paper).

    Examples
    --------
    >>> debias_constant(0.5, 8), debias_constant(0.25, 8) * conditional_baseline(0.25, 8)
    (1.0, 0.25)
    """
    p = probability(p)
    return plain(p / _conditional_baseline(p, group_size(G)))


def debias_factor(r: ArrayLike, p_hat: ArrayLike, p: ArrayLike, G: ArrayLike) -> Real:
    """What to multiply Â = r − p̂ by so that it becomes r − c*·p̂.

        Φ = (1 − c*p̂)/(1 − p̂)  for r = 1,        Φ = c*  for r = 0,        c* = debias_constant(p, G)

    Parameters
    ----------
    r : 0 or 1 (float or array). p_hat : the group's mean reward, strictly between 0 and 1 (else Â =
        0 and Φ is undefined). p : an estimate of the pass rate from history. G : a whole number ≥
        2. All broadcast together.

    Returns
    -------
    float or array ≥ 0 for p̂ ≤ 1 − 1/G, so signs never change. E[ΦÂ | S] = r − p holds with the
    true p; an estimate leaves a bias of c*(estimate)·E[p̂|S] − p.

    References
    ----------
    formulas.md §3, `debias` (beyond the paper).

    Examples
    --------
    >>> debias_factor([1, 0], 0.5, 0.5, 8)
    array([1., 1.])
    """
    r = binary(r)
    p_hat = probability(p_hat, "p_hat")
    if np.any((p_hat == 0) | (p_hat == 1)):
        raise ValueError(
            "p_hat = 0 or 1 is a group without variance: drop it, its advantages are 0"
        )
    c = debias_constant(p, G)
    return plain(np.where(r == 1, (1 - c * p_hat) / (1 - p_hat), c))


def gradient_gain(p: ArrayLike, G: ArrayLike, c: ArrayLike = 1.0) -> Real:
    """What a baseline of c·p̂ does to the expected gradient of one prompt.

        E[ (1/G) Σ_i (r_i − c·p̂) ∇log π(y_i) · 1_S ] = gain · ∇p,        gain = 1 − c/G − (1−c)·p^(G−1)

    With binary rewards, and weights that do not depend on the response's own length, the
    coefficient of a response depends on nothing but which responses are right. The expected
    gradient is then a multiple of ∇p for every baseline: no choice turns it, all of them only weigh
    the prompt. At c = 1 the gain is 1 − 1/G for every p, the bias of Theorem 1 notwithstanding,
    because groups outside S contribute 0 in any case. Where they are dropped and refilled (dynamic
    sampling) the gain given S is this one divided by `informative_probability`, and prompts near
    p = 0 or 1 do weigh more.

    Parameters
    ----------
    p, G, c : float or array, broadcast together. p in [0, 1], G a whole number ≥ 2; c any number,
        `debias_constant` for the debiased baseline.

    Returns
    -------
    float or array.

    References
    ----------
    Ours, from the score-function identity E[∇log π · r] = ∇p; not in the papers.

    Examples
    --------
    >>> gradient_gain([0.01, 0.5, 0.99], 8)
    array([0.875, 0.875, 0.875])
    """
    p = probability(p)
    G = group_size(G)
    c = np.asarray(c, dtype=np.float64)
    return plain(1 - c / G - (1 - c) * p ** (G - 1))


def _informative(p: Array, G: Array) -> Array:
    s = np.minimum(p, 1 - p)
    return np.asarray(-np.expm1(G * np.log1p(-s)) - s**G)


def _conditional_baseline(p: Array, G: Array) -> Array:
    p, G = np.broadcast_arrays(p, G)
    s = np.minimum(p, 1 - p)
    e = np.divide(s - s**G, _informative(s, G), out=np.array(1 / G), where=s > 0)
    return np.where(p <= 0.5, e, 1 - e)


def _log_odds(s: Array) -> Array:
    # log(s/(1−s)) from s − ½, which is exact where the logarithm is small
    with np.errstate(divide="ignore"):
        return np.asarray(np.log1p(-(1 - 2 * s) / (1 - s)))


def _counts(G: Array) -> tuple[Array, NDArray[np.bool_]]:
    """k = 1 … max G − 1 on a last axis of its own, and which of them are below each G."""
    k = np.arange(1.0, G.max(initial=2))
    return k, k < G[..., None]


def _tail(p: ArrayLike, G: ArrayLike, eps: ArrayLike, over: bool) -> Real:
    eps = np.asarray(eps, dtype=np.float64)
    if not np.all(eps >= 0):
        raise ValueError(
            f"eps = {eps[~(eps >= 0)].flat[0]:g} must be at least 0: it is the size of a misestimate"
        )
    p, G, eps = np.broadcast_arrays(probability(p), group_size(G), eps)
    k, inside = _counts(G)
    edge = _whole(G * (p - eps if over else p + eps), G)[..., None]
    counted = inside & ((k < edge) if over else (k > edge))
    informative = _informative(p, G)[..., None]
    limit = np.where(k == np.where(p < 0.5, 1, G - 1)[..., None], 1.0, 0.0)
    pmf = stats.binom.pmf(k, G[..., None], p[..., None])
    pmf = np.divide(pmf, informative, out=limit, where=informative > 0)
    return plain(np.minimum(np.where(counted, pmf, 0.0).sum(-1), 1.0))


def _whole(x: Array, G: Array) -> Array:
    """x, or the whole number it would be but for the rounding of p, ε and their sum."""
    nearest = np.rint(x)
    return np.where(np.abs(x - nearest) <= 16 * np.finfo(np.float64).eps * G, nearest, x)

"""The two balance conditions of an aggregation rule, in closed form.

A rule gives every token of response i the weight w_i = 1/(G·ℓ_i); c_i = w_i·A_i is the coefficient
of its tokens. With advantages that sum to zero, m = Σ_{S+} A = Σ_{S−} |A|, and everything below
depends on m and two lengths:

    mass balance        Σ c_i·T_i = 0    positives and negatives pull equally hard
    exchangeability     Σ c_i = 0        a token that every response shares gets no net push

A mean over S+ or S− weighs each response by |A_i|. With binary rewards |A| is constant within a
sign, and T̄± and H± are the plain arithmetic and harmonic mean lengths of right and wrong responses
(formulas.md §1). For GRPO's normalised advantages with k of G right, m = √(k(G−k)); for r − p̂, m =
k(G−k)/G.
"""

import numpy as np
from numpy.typing import ArrayLike

from equipoise.theory.arguments import Real, group_size, plain, positive, probability


def mass_imbalance(
    m: ArrayLike, T_plus: ArrayLike, T_minus: ArrayLike, G: ArrayLike, ell: ArrayLike
) -> Real:
    """Sign-length coupling: a group's net pull when all responses have one effective length ℓ.

        Σ c_i·T_i = m·(T̄+ − T̄−) / (G·ℓ)

        token (group)   ℓ = N/G, the group's mean length       m·(T̄+ − T̄−)/N
        token (batch)   ℓ = the batch's mean length
        constant        ℓ = L

    The positives pull T̄+/T̄− times as hard as the negatives under all three. Under the sequence
    rule (ℓ_i = T_i) and the balanced rule (ℓ_i = T̄ of the response's sign) Σ c_i·T_i = (m − m)/G =
    0 whatever the lengths.

    Parameters
    ----------
    m : mass of one sign, ≥ 0. T_plus, T_minus : T̄±, |A|-weighted mean lengths. G : group size ≥ 2.
        ell : ℓ > 0. Floats or arrays, broadcast together.

    Returns
    -------
    float or array, negative where wrong responses are longer.

    References
    ----------
    BA (arXiv 2605.04077); derived from formulas.md §1, not from the paper's text.

    Examples
    --------
    >>> mass_imbalance(4.0, T_plus=100, T_minus=150, G=8, ell=125)
    -0.2
    """
    T_plus, T_minus = positive(T_plus, "T_plus"), positive(T_minus, "T_minus")
    return plain(np.asarray(m) * (T_plus - T_minus) / (group_size(G) * positive(ell, "ell")))


def sequence_token_weight(T: ArrayLike, G: ArrayLike) -> Real:
    """Length starvation: what one token of a response of length T weighs under the sequence rule.

        w = 1 / (G·T)

    It is T̄/T of what the token rule gives: a response twice the mean length has each token count
    half. Mass balance is bought with this, whichever the sign.

    Parameters
    ----------
    T : length > 0. G : group size ≥ 2. Floats or arrays, broadcast together.

    Returns
    -------
    float or array.

    References
    ----------
    BA, eqs. 7 and 16–17 (the sequence rule; eq. 21 is the paper's own objective, J_BA).

    Examples
    --------
    >>> sequence_token_weight([50, 100], 4)
    array([0.005 , 0.0025])
    """
    return plain(1 / (group_size(G) * positive(T, "T")))


def exchangeability_sum(
    m: ArrayLike, ell_plus: ArrayLike, ell_minus: ArrayLike, G: ArrayLike
) -> Real:
    """The net push on a token that all responses of a group share.

        Σ c_i = (m/G)·(1/ℓ+ − 1/ℓ−)

        sequence          ℓ± = H±, the harmonic mean lengths of the signs
        balanced          ℓ± = T̄±, the arithmetic ones
        token, constant   ℓ+ = ℓ−, so 0

    Parameters
    ----------
    m : mass of one sign, ≥ 0. ell_plus, ell_minus : |A|-weighted harmonic means of the effective
        lengths of S+ and S−. G : group size ≥ 2. Floats or arrays, broadcast together.

    Returns
    -------
    float or array, positive where right responses are shorter:
    what they all begin with is then reinforced for nothing.

    References
    ----------
    formulas.md §1 and §4 (TGC, arXiv 2604.13088).

    Examples
    --------
    >>> round(exchangeability_sum(4.0, 100, 150, G=8), 6)
    0.001667
    """
    ell_plus, ell_minus = positive(ell_plus, "ell_plus"), positive(ell_minus, "ell_minus")
    return plain(np.asarray(m) / group_size(G) * (1 / ell_plus - 1 / ell_minus))


def exchangeability_residual(ell_plus: ArrayLike, ell_minus: ArrayLike) -> Real:
    """`exchangeability_sum` as a share of all the push there is.

        |Σ c_i| / Σ |c_i| = |ℓ+ − ℓ−| / (ℓ+ + ℓ−)

    Parameters
    ----------
    ell_plus, ell_minus : as in `exchangeability_sum`; m and G cancel.
    Floats or arrays, broadcast together.

    Returns
    -------
    float or array in [0, 1).

    References
    ----------
    formulas.md §4, for a token node shared by the whole group.

    Examples
    --------
    >>> exchangeability_residual(100, 150)
    0.2
    """
    ell_plus, ell_minus = positive(ell_plus, "ell_plus"), positive(ell_minus, "ell_minus")
    return plain(np.abs(ell_plus - ell_minus) / (ell_plus + ell_minus))


def reweighted_sum(m: ArrayLike, p_hat: ArrayLike, anchor: ArrayLike, lam: ArrayLike) -> Real:
    """What HA-DW makes of advantages that summed to zero.

        Σ Φ_i·A_i = sgn(C − p̂)·2λ·sinh(|p̂ − C|)·m = 2λ·sinh(C − p̂)·m

    Divided by G·ℓ it is Σ c_i under the token and constant rules; divided by G it is Σ c_i·T_i
    under the sequence and balanced rules, so HA-DW breaks whichever balance the rule held.

    Parameters
    ----------
    m : mass of one sign before reweighting, ≥ 0. p_hat : the group's mean reward. anchor : C. lam :
        λ > 0. Floats or arrays, broadcast together.

    Returns
    -------
    float or array, positive for groups harder than the anchor.

    References
    ----------
    formulas.md §3 (HA-DW, arXiv 2601.08521).

    Examples
    --------
    >>> round(reweighted_sum(2.0, 0.25, 0.5, 1.3), 4)
    1.3136
    """
    p_hat, anchor = probability(p_hat, "p_hat"), probability(anchor, "anchor")
    return plain(2 * positive(lam, "lam") * np.sinh(anchor - p_hat) * np.asarray(m))

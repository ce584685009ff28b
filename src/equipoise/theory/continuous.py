"""The group baseline under rewards on [0, 1]: HA-DW's Theorem 4, for any law of the reward.

A group is informative when its rewards spread: S_σ = {max − min > σ}. With F the CDF, f the
density, u the smallest reward, u⁺ = min(1, u+σ), q = F(u⁺) − F(u) and m = E[r | u ≤ r ≤ u⁺],

    P(S_σᶜ) = G ∫ f q^(G−1) du,        E[p̂·1_{S_σᶜ}] = ∫ (u + (G−1)·m) f q^(G−1) du.

The integrals are taken over v = F(u), where f du = dv: a density that is infinite at 0 or a needle
at ½ is as easy as a uniform one, and an atom (partial credit with many exact zeros) is an interval
of v with one u; binary rewards give Theorem 1 back. Where S_σ is the rarer event (σ near 1, a sharp
density) its own integral is used, with no difference of nearly equal numbers in it. The Beta and
the truncated normal have F, F⁻¹ and ∫ r dF in closed form; we read the paper's Corollaries 4 and 5
as these two instances.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from equipoise.theory.arguments import Array, Real, group_size, plain, positive, probability
from equipoise.theory.quadrature import integrate, panels


@dataclass(frozen=True)
class RewardLaw:
    """A law on [0, 1]; every function is elementwise."""

    mean: float
    cdf: Callable[[Array], Array]
    sf: Callable[[Array], Array]
    """1 − cdf, precise where it is small."""
    quantile: Callable[[Array], Array]
    """v ↦ the least r with cdf(r) ≥ v."""
    partial_mean: Callable[[Array, Array], Array]
    """(x, y) ↦ ∫ r dF(r) over x < r ≤ y."""
    rarest: float = 1e-150
    """Given an event less likely than this, cdf and sf are too coarse to say anything."""


def beta_rewards(a: float, b: float) -> RewardLaw:
    """Rewards with density r^(a−1)(1−r)^(b−1)/B(a, b).

        F(r) = I_r(a, b),        ∫_x^y r dF = a/(a+b)·(I_y(a+1, b) − I_x(a+1, b))

    Parameters
    ----------
    a, b : float > 0. Below 1 the density is infinite at 0 (a) or at 1 (b).

    Returns
    -------
    RewardLaw with mean a/(a+b).

    References
    ----------
    HA-DW, Corollary 4 as we read it: Theorem 4 with a Beta law.

    Examples
    --------
    >>> beta_rewards(2, 6).mean
    0.25
    """
    a, b = float(positive(a, "a")), float(positive(b, "b"))
    mean = a / (a + b)

    def partial_mean(x: Array, y: Array) -> Array:
        below = special.betainc(a + 1, b, y) - special.betainc(a + 1, b, x)
        above = _betaincc(a + 1, b, x) - _betaincc(a + 1, b, y)
        return np.asarray(mean * np.where(x > mean, above, below))

    return RewardLaw(
        mean,
        cdf=lambda r: np.asarray(special.betainc(a, b, r)),
        sf=lambda r: np.asarray(_betaincc(a, b, r)),
        # it gives up below 1e-180, where r is 0
        quantile=lambda v: np.nan_to_num(special.betaincinv(a, b, v)),
        partial_mean=partial_mean,
    )


def truncated_normal_rewards(mu: float, scale: float) -> RewardLaw:
    """Rewards normal with mean μ and deviation s, given that they fall in [0, 1].

        ∫_x^y r dF = μ·(F(y) − F(x)) − s²·(f(y) − f(x))

    Parameters
    ----------
    mu, scale : float, 0 < scale ≤ 1000: mean and deviation **before** truncation.
    μ may lie outside [0, 1].

    Returns
    -------
    RewardLaw. Its mean is that after truncation, not μ.

    References
    ----------
    HA-DW, Corollary 5 as we read it: Theorem 4 with a truncated normal law.

    Examples
    --------
    >>> truncated_normal_rewards(0.5, 0.2).mean
    0.5
    """
    mu, scale = float(mu), float(positive(scale, "scale"))
    if scale > 1000:
        raise ValueError(
            f"scale = {scale:g} is above 1000: the law is uniform there, use beta_rewards(1, 1)"
        )
    law = stats.truncnorm(-mu / scale, (1 - mu) / scale, loc=mu, scale=scale)

    def partial_mean(x: Array, y: Array) -> Array:
        growth = (x - y) * (x + y - 2 * mu) / (2 * scale**2)  # log f(y)/f(x)
        rise = np.where(growth > 0, -law.pdf(y), law.pdf(x)) * np.expm1(-np.abs(growth))
        mass = np.where(x > mu, law.sf(x) - law.sf(y), law.cdf(y) - law.cdf(x))
        return np.asarray(mu * mass - scale**2 * rise)

    mean = float(partial_mean(np.asarray(0.0), np.asarray(1.0)))
    return RewardLaw(mean, cdf=law.cdf, sf=law.sf, quantile=law.ppf, partial_mean=partial_mean)


def rewards_from_cdf(cdf: Callable[[Array], Array]) -> RewardLaw:
    """Rewards with any CDF on [0, 1], by bisection and quadrature; no density is needed.

        ∫_x^y r dF = y·F(y) − x·F(x) − (K(y) − K(x)),        K(x) = ∫_0^x F(r) dr

    Parameters
    ----------
    cdf : elementwise function of an array in [0, 1], F(r) = P(reward ≤ r): it never falls and
        reaches 1 at 1. Jumps are atoms; keep σ off the differences of two atoms, where rounding
        decides.

    Returns
    -------
    RewardLaw. The bias given an S_σ rarer than 1e-7 is NaN, since 1 − cdf is all it knows of the
    upper tail. Atoms smaller than 1/256 cost precision, to about 1e-6.

    Raises
    ------
    ValueError where cdf falls, or does not end at 1.

    References
    ----------
    HA-DW, Theorem 4; formulas.md §3.

    Examples
    --------
    >>> round(rewards_from_cdf(lambda r: r**2).mean, 12)
    0.666666666667
    """
    grid = np.asarray(cdf(np.linspace(0, 1, 1025)), dtype=np.float64)
    if grid[0] < -1e-9 or abs(grid[-1] - 1) > 1e-9 or np.any(np.diff(grid) < -1e-9):
        raise ValueError(
            f"cdf runs from {grid[0]:g} to {grid[-1]:g}: it must start at 0 or above, never fall, end at 1"
        )

    def quantile(v: Array) -> Array:
        return _bisected(cdf, v)

    # between knots F rises by at most 1/256, larger jumps being knots:
    # one Gauss rule from the knot below x gives K(x)
    even_in_v = quantile(np.arange(1, 256) / 256)
    even_in_r = np.linspace(0, 1, 257)[1:]
    knots = np.unique(np.concatenate([[0.0], even_in_v, even_in_r]))
    K_at_knots = np.concatenate([[0.0], np.cumsum(panels(cdf, knots[:-1], knots[1:]))])

    def K(x: Array) -> Array:
        below = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 1)
        return np.asarray(K_at_knots[below] + panels(cdf, knots[below], x))

    return RewardLaw(
        mean=1 - float(K_at_knots[-1]),
        cdf=cdf,
        sf=lambda r: 1 - cdf(r),
        quantile=quantile,
        partial_mean=lambda x, y: y * cdf(y) - x * cdf(x) - (K(y) - K(x)),
        rarest=1e-7,
    )


def _bisected(cdf: Callable[[Array], Array], v: Array) -> Array:
    """The least r in [0, 1] with cdf(r) ≥ v."""
    lo = np.zeros_like(v)
    hi = np.ones_like(v)
    for _ in range(64):
        mid = (lo + hi) / 2
        low = cdf(mid) < v
        lo = np.where(low, mid, lo)
        hi = np.where(low, hi, mid)
    at_zero = cdf(np.zeros_like(v)) >= v
    return np.where(at_zero, 0.0, hi)


def spread_probability(law: RewardLaw, G: ArrayLike, sigma: ArrayLike) -> Real:
    """Probability that the rewards of a group spread by more than σ.

        P(S_σ) = 1 − G ∫ f q^(G−1) du = G ∫_0^(1−σ) f ((1−F)^(G−1) − q^(G−1)) du

    Parameters
    ----------
    law : RewardLaw. G : whole number ≥ 2. sigma : σ in [0, 1). G and sigma broadcast together.

    Returns
    -------
    float or array in [0, 1]; 1 at σ = 0 unless the law has atoms.
    Computed by the second form, precise where it is small.

    References
    ----------
    HA-DW, Theorem 4; formulas.md §3.

    Examples
    --------
    >>> round(spread_probability(beta_rewards(1, 1), 2, 0.5), 12)  # uniform: 1 − 2σ + σ²
    0.25
    """
    each = np.vectorize(lambda G, sigma: _spread(law, G, sigma), otypes=[float])
    return plain(each(group_size(G), _sigma(sigma)))


def spread_baseline_bias(law: RewardLaw, G: ArrayLike, sigma: ArrayLike) -> Real:
    """The bias of the group baseline given that the rewards spread by more than σ.

        E[p̂ | S_σ] − p = (p·P(S_σᶜ) − E[p̂·1_{S_σᶜ}]) / P(S_σ),        p = E[r]

    The sign is that of `baseline_bias`; Theorem 4 states p − E[p̂ | S_σ], its negative.

    Parameters
    ----------
    law : RewardLaw. G : whole number ≥ 2. sigma : σ in [0, 1). G and sigma broadcast together.

    Returns
    -------
    float or array; 0 to rounding at σ = 0 without atoms and for a symmetric law, (1 − 2p)/G in the
    limit σ → 1 (one response at each end, the others anywhere). NaN where P(S_σ) is below
    `law.rarest`, 1e-150 for the closed forms and 1e-7 for a bare CDF. The error is about 1e-9 of
    the bias or 1e-15, whichever is larger, for the closed forms.

    References
    ----------
    HA-DW, Theorem 4 and, as we read them, Corollaries 4 (Beta) and 5 (truncated normal);
    formulas.md §3.

    Examples
    --------
    >>> round(spread_baseline_bias(beta_rewards(1, 3), 8, 0.5), 4)
    0.0291
    """
    each = np.vectorize(lambda G, sigma: _bias(law, G, sigma), otypes=[float])
    return plain(each(group_size(G), _sigma(sigma)))


def _sigma(sigma: ArrayLike) -> Array:
    sigma = probability(sigma, "sigma")
    if np.any(sigma == 1):
        raise ValueError(
            "sigma = 1 leaves no informative group: rewards in [0, 1] never differ by more; give sigma < 1"
        )
    return sigma


def _spread(law: RewardLaw, G: float, sigma: float) -> float:
    def integrand(v: Array) -> Array:
        return _chance_spread(law, G, sigma, v)

    return min(integrate(integrand, _low_levels(law, G, sigma), noise=1e-9 * law.rarest), 1.0)


def _bias(law: RewardLaw, G: float, sigma: float) -> float:
    spread = _spread(law, G, sigma)
    if spread < law.rarest:
        return float("nan")
    # E[(p̂ − p)·1_S] + E[(p̂ − p)·1_{Sᶜ}] = 0: the integral over the rarer event is the precise one.
    if spread < 0.5:

        def integrand(v: Array) -> Array:
            return _excess_spread(law, G, sigma, v)

        excess = integrate(integrand, _low_levels(law, G, sigma), noise=1e-9 * law.rarest)
    else:

        def integrand(v: Array) -> Array:
            return _excess_close(law, G, sigma, v)

        levels = np.append(_levels(law, 1.0), law.cdf(np.array([1 - sigma])))
        excess = -integrate(integrand, levels, noise=1e-17)
    return excess / spread


def _levels(law: RewardLaw, last: float) -> Array:
    """Breakpoints for v in [0, last]: finer towards both ends, and the quarters of r."""
    ends = last * 2.0 ** -np.arange(1, 12)
    inner = law.cdf(np.array([0.25, 0.5, 0.75]))
    return np.concatenate([[0.0, last], ends, last - ends, inner[inner < last]])


def _low_levels(law: RewardLaw, G: float, sigma: float) -> Array:
    """Breakpoints for v where S_σ is possible, down to where a rare S_σ hides.

    `_chance_spread` falls with v, so ∫_0^v is at most v times its value at 0, and the whole at
    least v times its value at v: levels whose share of the whole is beyond rounding are left out.
    """
    last = float(law.cdf(np.array([1 - sigma]))[0])
    rare = last * np.float64(64) ** -np.arange(2.0, 90)
    at_most = rare * _chance_spread(law, G, sigma, np.zeros(1))
    at_least = (rare * _chance_spread(law, G, sigma, rare)).max()
    return np.concatenate([_levels(law, last), rare[at_most > 1e-14 * at_least]])


def _chance_spread(law: RewardLaw, G: float, sigma: float, v: Array) -> Array:
    """Integrand of P(S): G·((1−F)^(G−1) − q^(G−1))."""
    beyond = law.sf(np.minimum(law.quantile(v) + sigma, 1))
    return G * _power_gap(1 - v, beyond, G - 1)


def _excess_close(law: RewardLaw, G: float, sigma: float, v: Array) -> Array:
    """Of E[(p̂ − p)·1_{Sᶜ}]: (u − p + (G−1)·(m − p))·q^(G−1), with m·q = ∫_u^u⁺ r dF."""
    u = law.quantile(v)
    top = np.minimum(u + sigma, 1)
    q = np.maximum(law.cdf(top) - v, 0)
    inside = _above(law, v, u, top) - law.mean * q
    return (u - law.mean) * q ** (G - 1) + (G - 1) * inside * q ** (G - 2)


def _excess_spread(law: RewardLaw, G: float, sigma: float, v: Array) -> Array:
    """Integrand of E[(p̂ − p)·1_S]: the same with 1−F for q, less the same with q, term by term."""
    u = law.quantile(v)
    top = np.minimum(u + sigma, 1)
    beyond = law.sf(top)
    within = np.maximum(1 - v - beyond, 0)
    inside = _above(law, v, u, top) - law.mean * within
    outside = law.partial_mean(top, np.ones_like(top)) - law.mean * beyond
    smallest = (u - law.mean) * _power_gap(1 - v, beyond, G - 1)
    others = outside * (1 - v) ** (G - 2) + inside * _power_gap(1 - v, beyond, G - 2)
    return smallest + (G - 1) * others


def _above(law: RewardLaw, v: Array, u: Array, top: Array) -> Array:
    """∫ F⁻¹ from v to F(top): ∫_u^top r dF and, of an atom at u, the part above v."""
    return law.partial_mean(u, top) + u * (law.cdf(u) - v)


def _power_gap(x: Array, d: Array, n: float) -> Array:
    """x^n − (x−d)^n for 0 ≤ d ≤ x without cancellation."""
    if n <= 0:
        return np.zeros_like(x)
    share = np.divide(d, x, out=np.ones_like(x), where=x > 0)
    with np.errstate(divide="ignore"):  # d = x: the second power is 0
        log_rest = np.log1p(-np.clip(share, 0, 1))
    return np.asarray(-(x**n) * np.expm1(n * log_rest))


def _betaincc(a: float, b: float, x: Array) -> Array:
    # special.betaincc is the same function, some 200 times slower (scipy 1.17);
    # 1 − x would drop an x below 1e-16
    return np.where(x > a / (a + b), special.betainc(b, a, 1 - x), 1 - special.betainc(a, b, x))

"""Adaptive Gauss-Legendre quadrature over many panels at once.

It serves the integrals of this package: bounded integrands, smooth between known breakpoints up to
endpoint singularities of algebraic kind. Every panel that two half-panels contradict is halved
again, all of them in one call of the integrand, so a slow vectorised function (a quantile) is
called tens of times, not thousands.
"""

from collections.abc import Callable

import numpy as np

from equipoise.theory.arguments import Array

NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
WANTED = 1e-12  # the error of a panel, relative to ∫ |f|
ENOUGH = 1e-6  # the error of all panels together, where there are too many
MAX_PANELS = 2_000
# nearer to underflow rounding is no longer relative, and no panel would ever agree with its halves
DUST = 1e-290


def integrate(f: Callable[[Array], Array], points: Array, noise: float = DUST) -> float:
    """∫ f over [min, max] of `points`, all of which are breakpoints.

    The error is measured against the integral of |f|, the scale that is safe for integrands of both
    signs: panels are halved until each is good to 1e-12 of it, or to `noise`. An integrand too
    rough for that is accepted if the error is in all below 1e-6 of it, else refused.
    """
    points = np.unique(points)
    # The panels that are not good enough yet, [lo, hi] each.
    lo = points[:-1]
    hi = points[1:]
    total = 0.0  # ∫ f over the panels that are
    scale = 0.0  # ∫ |f| over them
    while lo.size:
        mid = (lo + hi) / 2
        halves = panels(f, lo, mid) + panels(f, mid, hi)
        error = np.abs(panels(f, lo, hi) - halves)
        mass = scale + np.abs(halves).sum()
        cannot_be_halved = (mid <= lo) | (mid >= hi)
        done = (error <= WANTED * mass + noise) | cannot_be_halved
        if lo.size > MAX_PANELS:
            if error.sum() > ENOUGH * mass:
                raise ArithmeticError(
                    f"the integral is still {error.sum() / mass:.1g} off (relative) "
                    f"on {lo.size} panels: "
                    "the integrand is rougher than its rounding should make it"
                )
            done[:] = True
        total += float(halves[done].sum())
        scale += float(np.abs(halves[done]).sum())
        rest = ~done
        lo, mid, hi = lo[rest], mid[rest], hi[rest]
        lo, hi = np.concatenate([lo, mid]), np.concatenate([mid, hi])
    return total


def panels(f: Callable[[Array], Array], lo: Array, hi: Array) -> Array:
    """∫ f over each [lo, hi] (any shape) by one Gauss-Legendre rule of 16 nodes."""
    half = (hi - lo)[..., None] / 2
    x = lo[..., None] + half * (1 + NODES)
    return np.asarray((half * WEIGHTS * f(x)).sum(-1))

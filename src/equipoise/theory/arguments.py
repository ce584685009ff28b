"""The arguments every closed form shares: a probability, a group size, and floats in, floats out."""

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]
Real: TypeAlias = float | Array


def probability(p: ArrayLike, name: str = "p") -> Array:
    """`p` as a float array, refused outside [0, 1] (NaN included)."""
    p = np.asarray(p, dtype=np.float64)
    _refuse(p, ~((p >= 0) & (p <= 1)), name, "is not a probability: give values in [0, 1]")
    return p


def group_size(G: ArrayLike) -> Array:
    """`G` as a float array of whole numbers, refused below 2: one response has no group."""
    G = np.asarray(G, dtype=np.float64)
    whole = np.isfinite(G) & (np.rint(G) == G)
    _refuse(
        G, ~whole | (G < 2), "G", "is not a group size: give whole numbers of at least 2 responses"
    )
    return G


def positive(x: ArrayLike, name: str) -> Array:
    """`x` as a float array, refused unless finite and above 0."""
    x = np.asarray(x, dtype=np.float64)
    _refuse(x, ~(np.isfinite(x) & (x > 0)), name, "must be a finite number above 0")
    return x


def binary(r: ArrayLike) -> Array:
    """`r` as a float array of zeros and ones, anything else refused."""
    r = np.asarray(r, dtype=np.float64)
    _refuse(r, (r != 0) & (r != 1), "r", "is not a binary reward: give 0 or 1")
    return r


def plain(x: ArrayLike) -> Real:
    """A Python float for a 0-d result, the array itself otherwise."""
    x = np.asarray(x, dtype=np.float64)
    return x if x.ndim else float(x)


def _refuse(x: Array, bad: NDArray[np.bool_], name: str, rule: str) -> None:
    if np.any(bad):
        raise ValueError(f"{name} = {x[bad].flat[0]:g} {rule}")

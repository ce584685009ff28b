"""The bias of the group baseline by difficulty, from how many responses of each group were right.

The closed form E[p̂|S] − p (theory.baseline_bias) wants the success rate p of a prompt, which p̂ is
a poor stand-in for: of the informative groups of 8, those with p = .01 nearly all show p̂ = 1/8,
where the bias is half of what it is at .01. So the law of p over prompts is estimated first, by
maximum likelihood from all groups, degenerate ones included: a mixture of K Beta laws (Bernstein
polynomials, which can take any smooth shape) and of prompts that are always wrong or always right.
The biases are then averaged over the prompts of that law that give informative groups.

Binary rewards only. What p̂ cannot tell apart (a prompt never solved and one solved once in a
hundred times) stays uncertain: on smooth laws at G = 8 the mean bias of the hard prompts came out 1
to 6 % too small, with two in five prompts dead a fifth too large, and the interval held the truth
in 92 % of the cases instead of 95.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from equipoise import theory
from equipoise.audit.log import Floats, Integers

COMPONENTS = 32
ITERATIONS = 100  # more sharpen the law by less than what a thousand groups tell of it
STRATA = {"hard": (0.0, 0.25), "moderate": (0.25, 0.75), "easy": (0.75, 1.0)}


@dataclass(frozen=True)
class GroupKinds:
    """The kinds of groups there are, (R right of G), and what each says under every component."""

    R: Integers  # [kinds]
    G: Integers  # [kinds]
    likelihood: Floats  # [kinds, K + 2]
    # [K + 2, G values, strata] ∫ (E[p̂|S] − p) P(S|p) over the component, within the stratum
    bias: Floats
    informative: Floats  # [K + 2, G values, strata] ∫ P(S|p), likewise
    size: Integers  # [kinds] which of the G values


def outcomes(R: Integers, G: Integers) -> tuple[GroupKinds, Integers]:
    """The kinds of groups among R right of G, and the kind of each group."""
    kinds, kind = np.unique(np.stack([R, G]), axis=1, return_inverse=True)
    R, G = kinds
    sizes, size = np.unique(G, return_inverse=True)
    k = np.arange(1, COMPONENTS + 1)
    smooth = stats.betabinom.pmf(R[:, None], G[:, None], k, COMPONENTS + 1 - k)
    likelihood = np.column_stack([smooth, R == 0, R == G])
    x, weight = np.polynomial.legendre.leggauss(64)
    bias = np.zeros((COMPONENTS + 2, len(sizes), len(STRATA)))
    # prompts that are always wrong or always right never give an informative group
    informative = np.zeros_like(bias)
    for s, (low, high) in enumerate(STRATA.values()):
        p = low + (high - low) * (1 + x) / 2
        density = (
            stats.beta.pdf(p[:, None], k, COMPONENTS + 1 - k) * (weight * (high - low) / 2)[:, None]
        )
        P_S = np.asarray(theory.informative_probability(p[:, None], sizes))
        informative[:COMPONENTS, :, s] = density.T @ P_S
        bias[:COMPONENTS, :, s] = density.T @ (
            P_S * np.asarray(theory.baseline_bias(p[:, None], sizes))
        )
    return GroupKinds(R, G, likelihood, bias, informative, size), kind.reshape(-1)


def baseline_bias(counts: Floats, kinds: GroupKinds) -> tuple[Floats, Floats]:
    """[..., kinds] groups of each kind -> [..., strata] mean bias,
    and the stratum's share of the informative groups.

    NaN where there is no informative group, and for the bias of a stratum with less than a
    thousandth of them.
    """
    n = counts.sum(-1, keepdims=True)
    L = kinds.likelihood
    law = np.full((*counts.shape[:-1], L.shape[1]), 1 / L.shape[1])
    for _ in range(ITERATIONS):  # EM: the likelihood is concave in the mixture's shares
        law *= (counts / (law @ L.T)) @ L / n
    groups = counts @ (kinds.size[:, None] == np.arange(kinds.size.max() + 1))  # of each size
    bias = np.einsum("...k,kgs,...g->...s", law, kinds.bias, groups)
    mass = np.einsum("...k,kgs,...g->...s", law, kinds.informative, groups)
    mixed = counts @ ((kinds.R > 0) & (kinds.R < kinds.G)) > 0
    total = np.where(mixed, mass.sum(-1), np.nan)[..., None]
    share = mass / total
    return np.where(share > 1e-3, bias / np.maximum(mass, 1e-300), np.nan), share

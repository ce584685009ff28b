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
    # The k-th component is Beta(k, K + 1 − k).
    k = np.arange(1, COMPONENTS + 1)
    smooth = stats.betabinom.pmf(R[:, None], G[:, None], k, COMPONENTS + 1 - k)
    likelihood = np.column_stack([smooth, R == 0, R == G])
    # The last two components stay 0:
    # prompts that are always wrong or always right never give an informative group.
    bias = np.zeros((COMPONENTS + 2, len(sizes), len(STRATA)))
    informative = np.zeros_like(bias)
    nodes, node_weights = np.polynomial.legendre.leggauss(64)  # on [−1, 1]
    for s, (low, high) in enumerate(STRATA.values()):
        p = (low + (high - low) * (1 + nodes) / 2)[:, None]
        dp = (node_weights * (high - low) / 2)[:, None]
        density = stats.beta.pdf(p, k, COMPONENTS + 1 - k) * dp  # [nodes, K]
        P_S = np.asarray(theory.informative_probability(p, sizes))  # [nodes, G values]
        bias_at_p = np.asarray(theory.baseline_bias(p, sizes))
        informative[:COMPONENTS, :, s] = density.T @ P_S
        bias[:COMPONENTS, :, s] = density.T @ (P_S * bias_at_p)
    return GroupKinds(R, G, likelihood, bias, informative, size), kind.reshape(-1)


def baseline_bias(counts: Floats, kinds: GroupKinds) -> tuple[Floats, Floats]:
    """[..., kinds] groups of each kind -> [..., strata] mean bias, and each stratum's share.

    NaN where there is no informative group, and for the bias of a stratum with less than a
    thousandth of them.
    """
    law = _law(counts, kinds.likelihood)
    is_of_size = kinds.size[:, None] == np.arange(kinds.size.max() + 1)  # [kinds, G values]
    groups = counts @ is_of_size
    bias_sum = np.einsum("...k,kgs,...g->...s", law, kinds.bias, groups)
    mass = np.einsum("...k,kgs,...g->...s", law, kinds.informative, groups)
    is_mixed = (kinds.R > 0) & (kinds.R < kinds.G)
    any_mixed = counts @ is_mixed > 0
    total = np.where(any_mixed, mass.sum(-1), np.nan)[..., None]
    share = mass / total
    bias = bias_sum / np.maximum(mass, 1e-300)
    return np.where(share > 1e-3, bias, np.nan), share


def _law(counts: Floats, likelihood: Floats) -> Floats:
    """[..., K + 2] the shares of the components, by expectation maximisation.

    The likelihood is concave in them, so that it finds the maximum from anywhere.
    """
    n = counts.sum(-1, keepdims=True)
    components = likelihood.shape[1]
    law = np.full((*counts.shape[:-1], components), 1 / components)
    for _ in range(ITERATIONS):
        law *= (counts / (law @ likelihood.T)) @ likelihood / n
    return law

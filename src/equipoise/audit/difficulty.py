"""The bias of the group baseline by difficulty, from how many responses of each group were right.

The closed form E[p̂|S] − p (theory.baseline_bias) wants the success rate p of a prompt, which p̂ is
a poor stand-in for: of the informative groups of 8, those with p = .01 nearly all show p̂ = 1/8,
where the bias is half of what it is at .01. So the law of p over prompts is estimated first, by
maximum likelihood from all groups, degenerate ones included: a mixture of K Beta laws (Bernstein
polynomials, which can take any smooth shape) and of prompts that are always wrong or always right.
The biases are then averaged over the prompts of that law that give informative groups.

Binary rewards only. What p̂ cannot tell apart (a prompt never solved and one solved once in a
hundred times) stays uncertain however many prompts there are: groups of 8 know eight moments of the
law. So the interval is not resampled, for every resample would leave open the same; it holds every
value that some mixture has whose counts do not differ from the log's by more than chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from equipoise import theory
from equipoise.audit.bootstrap import NOTHING, Estimate
from equipoise.audit.log import Floats, Integers

COMPONENTS = 32
ITERATIONS = 100  # more sharpen the law by less than what a thousand groups tell of it
STRATA = {"hard": (0.0, 0.25), "moderate": (0.25, 0.75), "easy": (0.75, 1.0)}
CHANCE = 3.841  # 95 % of χ² with one degree
REFUSED = 1e-3  # chance of counts at which the best mixture is no longer taken for the law
HALVINGS = 14  # of the way to an interval's end
STRICT = 1e3  # standard errors that a law off an equation would count as
TRIES = 5000  # of a solver that needs a hundred


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


def baseline(
    sums: Floats, kinds: GroupKinds, prompts: int
) -> tuple[dict[str, Estimate], dict[str, Estimate]]:
    """[P, kinds] groups of each prompt -> by stratum the mean bias, and its share of the
    informative groups.

    Nothing where there is no informative group, nor of the bias of a stratum with less than a
    thousandth of them; no interval with less than two prompts, or where no mixture fits the counts.
    """
    counts = sums.sum(0)
    is_mixed = (kinds.R > 0) & (kinds.R < kinds.G)
    if not counts[is_mixed].any():
        nothing = dict.fromkeys(STRATA, NOTHING)
        return nothing, nothing
    law = _law(counts, kinds.likelihood)
    misfit = None if prompts < 2 else _misfit(sums, kinds, law)
    # A few points, say: what mixtures leave room for says nothing of a law that is none.
    if misfit is not None and misfit(None)[0] > stats.chi2.isf(REFUSED, len(kinds.R)):
        misfit = None
    groups = np.bincount(kinds.size, counts)
    # [strata, K + 2]
    bias, informative = (np.einsum("kgs,g->sk", x, groups) for x in (kinds.bias, kinds.informative))
    everywhere = informative.sum(0)
    biases, shares = dict.fromkeys(STRATA, NOTHING), dict.fromkeys(STRATA, NOTHING)
    for s, stratum in enumerate(STRATA):
        shares[stratum] = _ratio(informative[s], everywhere, law, misfit)
        if informative[s] @ law > 1e-3 * (everywhere @ law):
            biases[stratum] = _ratio(bias[s], informative[s], law, misfit)
    return biases, shares


def _law(counts: Floats, likelihood: Floats) -> Floats:
    """[K + 2] the shares of the components, by expectation maximisation.

    The likelihood is concave in them, so that it finds the maximum from anywhere.
    """
    components = likelihood.shape[1]
    law = np.full(components, 1 / components)
    for _ in range(ITERATIONS):
        law *= (counts / (likelihood @ law)) @ likelihood / counts.sum()
    return law


# How far the best law is from the counts, and that law; of those laws for which Σ law·equation = 0
# where an equation is given.
Misfit = Callable[[Floats | None], tuple[float, Floats]]


def _misfit(sums: Floats, kinds: GroupKinds, law: Floats) -> Misfit:
    """Pearson's χ² of the counts of kinds; their variances are those that `law` expects."""
    counts = sums.sum(0)
    is_of_size = kinds.size[:, None] == np.arange(kinds.size.max() + 1)  # [kinds, G values]
    groups = counts @ is_of_size
    seen = groups[kinds.size, None] * kinds.likelihood
    # What never came says something too: all of it is one kind of each size.
    unseen = groups[:, None] * (1 - is_of_size.T @ kinds.likelihood).clip(0)
    expected = np.vstack([seen, unseen])
    # Where less than one group is expected, one is no surprise.
    variance = (expected @ law).clip(1.0) * _repeated(sums, seen @ law)
    strict = STRICT * np.sqrt(counts.sum())
    rows = np.vstack([expected / np.sqrt(variance)[:, None], np.full_like(law, strict)])
    wanted = np.append(np.append(counts, np.zeros_like(groups)) / np.sqrt(variance), strict)

    def misfit(equation: Floats | None) -> tuple[float, Floats]:
        if equation is None:
            best, residual = optimize.nnls(rows, wanted, maxiter=TRIES)
        else:
            scaled = strict * equation / np.abs(equation).max()
            system = np.vstack([rows, scaled]), np.append(wanted, 0.0)
            best, residual = optimize.nnls(*system, maxiter=TRIES)
        return float(residual) ** 2, best

    return misfit


def _repeated(sums: Floats, expected: Floats) -> float:
    """By how much the counts vary more than they would if every group were of another prompt:
    groups of one are alike (Rao and Scott, 1981).
    """
    total = expected.sum()
    varies = ((sums - sums.sum(1, keepdims=True) * (expected / total)) ** 2).sum(0)
    expects = expected > 0
    alone = (1 - expected / total)[expects].sum()
    # Where all groups are of one kind their counts cannot vary.
    return max(1.0, float((varies[expects] / expected[expects]).sum() / alone)) if alone else 1.0


def _ratio(above: Floats, below: Floats, law: Floats, misfit: Misfit | None) -> Estimate:
    """Σ law·above / Σ law·below, and the least and the largest that the counts leave room for."""
    value = float(above @ law / (below @ law))
    if misfit is None:
        return Estimate(value)
    least, best = misfit(None)

    def fits(ratio: float) -> bool:
        return misfit(above - ratio * below)[0] - least <= CHANCE

    inside = float(above @ best / np.maximum(below @ best, 1e-300))
    of_components = above[below > 0] / below[below > 0]
    low = _end(fits, inside, float(of_components.min()))
    high = _end(fits, inside, float(of_components.max()))
    # The law stops short of what fits best, and with many prompts it may be refused itself.
    return Estimate(min(max(value, low), high), low, high)


def _end(fits: Callable[[float], bool], inside: float, outside: float) -> float:
    """The last value from inside to outside that fits."""
    if fits(outside):
        return outside
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if fits(middle) else (inside, middle)
    return inside

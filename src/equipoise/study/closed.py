"""Whether a run's coefficients have the balances of the closed forms, on its own rollouts.

From every logged batch: Σ c_i T_i and Σ c_i of each group, out of the coefficients that the trainer
wrote down, beside what `theory` says of the group's rewards and lengths alone. Covered: advantages
grpo and r − p̂ of rewards 0 and 1, all aggregation rules, HA-DW with its anchor from the log,
cancellations none and min_replace of token-level surrogates. Elsewhere there is nothing to compare
with, and nothing is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise import theory
from equipoise.objective import Objective
from equipoise.train import Config, RunFolder, read_lines

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Group:
    """Rewards that are 0 and 1, lengths, and the coefficients times the number of prompts."""

    right: NDArray[np.bool_]
    T: Floats
    c: Floats


def agreement(folder: RunFolder, config: Config) -> dict[str, Any] | None:
    """Means over mixed groups of mass and exchangeability, measured and closed; how far off.

    None where no rollouts were logged, or where there is no closed form for the objective.
    """
    objective = config.build_objective()
    if not _covered(objective):
        return None
    anchors = {line["step"]: line.get("difficulty/anchor") for line in read_lines(folder.metrics)}
    rows = []
    for file in sorted(folder.rollouts.glob("step-*.parquet")):
        step = int(file.stem.removeprefix("step-"))
        groups, mean_length = _groups(file)
        rows += [_both(group, objective, anchors.get(step), mean_length) for group in groups]
    if not rows:
        return None
    measured, expected = np.array(rows).transpose(1, 0, 2)
    scale = np.abs(measured).max(0) + np.abs(expected).max(0) + 1e-12
    return {
        "groups": len(rows),
        "mass": [float(f"{x:.6g}") for x in (measured[:, 0].mean(), expected[:, 0].mean())],
        "exchangeability": [
            float(f"{x:.6g}") for x in (measured[:, 1].mean(), expected[:, 1].mean())
        ],
        "off": float(f"{(np.abs(measured - expected) / np.maximum(scale, 1e-3)).max():.3g}"),
    }


def _covered(objective: Objective) -> bool:
    return (
        objective.advantage.name in ("grpo", "dr_grpo")
        and objective.advantage.options.get("std", "paper") == "paper"
        and objective.difficulty_choice.name in ("none", "hadw")
        and not getattr(objective.difficulty, "recentre", False)
        and objective.cancellation in ("none", "min_replace")
        and not objective.needs_whole_groups
        and objective.averaged_groups == "all"
    )


def _groups(file: Any) -> tuple[list[Group], Floats]:
    """The groups of a logged batch with right and wrong responses, and the batch's lengths."""
    import pyarrow.parquet as pq

    table = pq.read_table(file, columns=["group", "reward", "length", "coefficient"])
    group, reward, length, c = (np.asarray(table.column(i)) for i in range(4))
    prompts = len(np.unique(group))
    found = []
    for g in np.unique(group):
        here = group == g
        right = reward[here] > 0.5
        if right.any() and not right.all():
            found.append(Group(right, length[here].astype(float), prompts * c[here]))
    return found, length.astype(float)


def _both(
    group: Group, objective: Objective, anchor: float | None, lengths: Floats
) -> tuple[list[float], list[float]]:
    """[Σ c T, Σ c] measured, and in closed form."""
    G, k = len(group.T), int(group.right.sum())
    up, down = _masses(G, k, objective, anchor)
    ell = _effective_lengths(group, objective, lengths)
    # the smallest weight for all is the largest effective length
    if objective.cancellation == "min_replace":
        ell = np.full(G, ell.max())
    signs = {1: group.right, -1: ~group.right}
    inverse = {sign: float(np.mean(1 / ell[where])) for sign, where in signs.items()}
    share = {sign: float(np.mean((group.T / ell)[where])) for sign, where in signs.items()}
    if up == down:
        mass = up / G * (share[1] - share[-1])
        net = float(theory.exchangeability_sum(up, 1 / inverse[1], 1 / inverse[-1], G))
        if np.ptp(ell) == 0:  # one effective length: sign-length coupling in its plain form
            T_plus, T_minus = group.T[group.right].mean(), group.T[~group.right].mean()
            mass = float(theory.mass_imbalance(up, T_plus, T_minus, G, ell[0]))
    else:
        mass = (up * share[1] - down * share[-1]) / G
        net = (up * inverse[1] - down * inverse[-1]) / G
    return [float((group.c * group.T).sum()), float(group.c.sum())], [mass, net]


def _masses(G: int, k: int, objective: Objective, anchor: float | None) -> tuple[float, float]:
    """Σ_{S+} A and Σ_{S−} |A| with HA-DW's factors; their difference: `theory.reweighted_sum`."""
    p = k / G
    m = k * (1 - p)
    if objective.advantage.name == "grpo":
        m /= math.sqrt(p * (1 - p) + objective.advantage.options["eps"])
    difficulty = objective.difficulty_choice.options
    if not difficulty:
        return m, m
    assert anchor is not None
    distance = difficulty["sharpness"] * (anchor - p)
    return difficulty["lam"] * math.exp(distance) * m, difficulty["lam"] * math.exp(-distance) * m


def _effective_lengths(group: Group, objective: Objective, lengths: Floats) -> Floats:
    """ℓ_i as formulas.md §1 has it, from plain means."""
    rule, options = objective.aggregation.name, objective.aggregation.options
    T, ones = group.T, np.ones_like(group.T)
    if rule == "token":
        mean: float = T.mean() if options["over"] == "group" else lengths.mean()
        return ones * mean
    if rule == "sequence":
        return T
    if rule == "constant":
        length: float = options["length"]
        return ones * length
    if rule == "power":
        alpha: float = options["alpha"]
        scale: float = (lengths**-alpha).mean() * (options["length"] or lengths.mean())
        return T**alpha * scale
    of_sign = np.where(group.right, T[group.right].mean(), T[~group.right].mean())
    pull = 1 + np.where(group.right, 1, -1) * options["imbalance"]
    common: float = T.mean() if options["over"] == "group" else lengths.mean()
    effective: Floats = common * (of_sign / T.mean()) ** options["strength"] / pull
    return effective

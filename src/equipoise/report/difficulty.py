"""The difficulty weights Φ of a run's responses, made again from what was logged.

A run logs advantages after difficulty, the anchor C of each step and what each prompt earned
before; Φ follows from those and the rewards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from equipoise.report.runs import Run, version
from equipoise.report.series import spaced

MOST_STEPS = 60
SHARES = (0.1, 0.5, 0.9)


def name(run: Run) -> str:
    """The run's difficulty: none, hadw, hadw_history or debias."""
    spec = run.option("objective.difficulty")
    if isinstance(spec, dict):
        return str(spec.get("name", "none"))
    return str(spec or "none")


CHOICES = ("advantage", "difficulty", "cancellation")
NEEDED = ("accuracy", "past_successes", "past_attempts", "past_age")


def phi(
    objective: Mapping[str, Any],
    anchor: float,
    *,
    accuracy: Sequence[float],
    group: Sequence[int],
    advantage: Sequence[float],
    past_successes: Sequence[float],
    past_attempts: Sequence[float],
    past_age: Sequence[float],
) -> list[float]:
    """What the run's `objective` multiplied the A_i of responses of whole groups by, 0 where A_i = 0;
    `advantage` is read for its sign alone, which Φ > 0 keeps. past_*: successes and attempts of
    each response's prompt in earlier steps, and steps since then.

    A ValueError where this version does not know the objective.
    """
    import torch

    from equipoise.objective.difficulty import Success
    from equipoise.objective.groups import Batch, Groups
    from equipoise.objective.objective import Objective

    chosen = {slot: objective[slot] for slot in CHOICES if objective.get(slot)}
    difficulty = Objective.preset(objective.get("preset") or "grpo", **chosen).difficulty
    assert difficulty is not None
    rate = torch.tensor(accuracy, dtype=torch.float64)
    groups = Groups.of(torch.tensor(group))
    A = torch.sign(torch.tensor(advantage, dtype=torch.float64))
    # recentring needs sizes as well, and moved those that were logged
    if getattr(difficulty, "recentre", False):
        A = Batch(rate, torch.ones_like(rate), groups, 0.0).centred
    past = torch.tensor([past_successes, past_attempts, past_age], dtype=torch.float64).t()
    success = Success.of_accuracies(rate, groups, int(groups.counts.max()))
    weighed, _ = difficulty.reweight(A, success, anchor, past)
    weights: list[float] = torch.where(A == 0, 0.0, weighed / A).tolist()
    return weights


def anchors(run: Run) -> dict[int, float]:
    """Step → the anchor C⁻ its batch was weighed against; empty without difficulty weights."""
    if name(run) == "none":
        return {}
    logged = zip(run.steps, run.metrics.get("difficulty/anchor", []), strict=False)
    return {step: C for step, C in logged if C is not None}


def over_time(run: Run) -> dict[str, list[Any]]:
    """Quantiles (10, 50, 90 %) of Φ where A > 0 ("positive") and A < 0, at logged "steps"."""
    out: dict[str, list[Any]] = {"steps": [], "positive": [], "negative": []}
    C = anchors(run)
    spec = json.dumps(run.config.get("objective", {}))
    for step in spaced([s for s in run.rollouts if s in C], MOST_STEPS):
        file = run.rollouts[step]
        sides = _quantiles(file, version(file), spec, C[step])
        if sides is not None:
            for key, value in zip(out, (step, *sides), strict=True):
                out[key].append(value)
    return out


@lru_cache(maxsize=4096)
def _quantiles(
    file: Path, version: tuple[int, ...], spec: str, anchor: float
) -> tuple[list[float], list[float]] | None:
    """None where the file cannot be read by this version."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file, columns=["group", "advantage", *NEEDED]).to_pydict()
        weights = np.array(phi(json.loads(spec), anchor, **table))
    # another version's rollouts, or its difficulty
    except (OSError, pa.ArrowException, ValueError, TypeError):
        return None
    A = np.array(table["advantage"])
    if not (A > 0).any() or not (A < 0).any():
        return None

    def rounded(values: Any) -> list[float]:
        """Six digits are more than a page shows, and half its size."""
        return [float(f"{value:.6g}") for value in values]

    up = np.quantile(weights[A > 0], SHARES)
    down = np.quantile(weights[A < 0], SHARES)
    return rounded(up), rounded(down)

"""The difficulty weights Φ of a run's responses, made again from what was logged by the objective's own code.

A run logs advantages after difficulty, the anchor C of each step and what each prompt earned before; Φ follows from
those and the rewards.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
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
    return str(spec.get("name", "none") if isinstance(spec, dict) else spec or "none")


def phi(
    spec: Any,
    anchor: float,
    reward: Sequence[float],
    group: Sequence[int],
    advantage: Sequence[float],
    past_reward: Sequence[float | None],
) -> list[float]:
    """Φ_i of responses of whole groups, 0 where A_i = 0; `advantage` is read for its sign alone, which Φ > 0 keeps.
    `past_reward` is the mean reward of each response's prompt in earlier steps, None for a new one.

    A ValueError where this version does not know the difficulty.
    """
    import torch

    from equipoise.objective.choice import choose
    from equipoise.objective.difficulty import DIFFICULTIES, HADW, Success
    from equipoise.objective.groups import Batch, Groups

    difficulty = choose("difficulty", DIFFICULTIES, spec)()
    r = torch.tensor(reward, dtype=torch.float64)
    batch = Batch(r, torch.ones_like(r), Groups.of(torch.tensor(group)), 0.0)
    sign = torch.sign(torch.tensor(advantage, dtype=torch.float64))
    if isinstance(difficulty, HADW) and difficulty.recentre:  # recentring moved A, and may have turned its sign
        difficulty, sign = dataclasses.replace(difficulty, recentre=False), torch.sign(batch.centred)
    past = torch.tensor([torch.nan if x is None else x for x in past_reward], dtype=torch.float64)
    success = Success(difficulty.rate(r), batch.groups)
    return difficulty.reweight(sign, success, anchor, difficulty.rate(past).clamp(0, 1))[0].abs().tolist()


def anchors(run: Run) -> dict[int, float]:
    """Step → the anchor C⁻ its batch was weighed against; empty for a run without difficulty weights."""
    logged = zip(run.steps, run.metrics.get("difficulty/anchor", []), strict=False)
    return {step: C for step, C in logged if C is not None} if name(run) != "none" else {}


def over_time(run: Run) -> dict[str, list[Any]]:
    """Quantiles (10, 50, 90 %) of Φ over responses with A > 0 ("positive") and A < 0, at "steps" that have rollouts."""
    out: dict[str, list[Any]] = {"steps": [], "positive": [], "negative": []}
    C = anchors(run)
    spec = json.dumps(run.option("objective.difficulty"))
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
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file, columns=["reward", "group", "advantage", "past_reward"]).to_pydict()
        weights = np.array(phi(json.loads(spec), anchor, **table))
    except (OSError, pa.ArrowException, ValueError, TypeError):  # another version's rollouts, or its difficulty
        return None
    A = np.array(table["advantage"])
    if not (A > 0).any() or not (A < 0).any():
        return None
    up, down = ([float(f"{q:.6g}") for q in np.quantile(weights[side], SHARES)] for side in (A > 0, A < 0))
    return up, down

"""TRL's log_completions: completions/completions_STEP.parquet with prompt, completion, rewards and advantage.

TRL writes its last generation batch at every log, so updating more than once per batch repeats whole steps; they count
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from equipoise.audit.columns import is_numeric
from equipoise.audit.log import AuditError, Floats, Integers, Log

COLUMNS = ("prompt", "completion", "advantage")


def reward_columns(names: Sequence[str]) -> Sequence[str]:
    return names[names.index("completion") + 1 : names.index("advantage")]


def without_words(rewards: dict[str, float], piece: dict[str, Any]) -> dict[str, float]:
    """TRL puts a user's own columns among the rewards; those that hold no numbers are no rewards."""
    return {c: weight for c, weight in rewards.items() if is_numeric(piece[c])} or rewards


def training(log: Log, text: Integers) -> tuple[Any, list[str]]:
    """Which rows [B] are training's, each batch once, and what the user should know of the others.

    The log is in the order of the files, `text` [B] tells responses apart.
    """
    repeated = _repeated(log, text)
    notes = [f"left out {_listed(log.step[repeated])}: TRL wrote the step before once more"] if repeated.any() else []
    return ~repeated, notes


def _repeated(log: Log, text: Integers) -> Any:
    repeated = np.zeros(len(log), bool)
    before: tuple[Any, ...] | None = None
    order = np.argsort(log.step, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(log.step[order])) + 1):
        now = (log.prompt[rows], text[rows], log.reward[rows])
        repeated[rows] = before is not None and all(np.array_equal(a, b) for a, b in zip(before, now, strict=True))
        before = now
    return repeated


def check_explained(log: Log, advantage: Floats, summed: tuple[str, ...]) -> None:
    """Several reward columns: their sum must be what TRL took its advantages of, or some is no reward, or weighed."""
    if len(summed) < 2:
        return
    g, n = log.group, np.bincount(log.group)

    def centred(x: Floats) -> Floats:
        return x - (np.bincount(g, x) / np.maximum(n, 1))[g]

    def over(x: Floats) -> Floats:
        return np.bincount(g, x)

    r, A = centred(log.reward), centred(advantage)
    size = np.sqrt(over(r * r) * over(A * A))
    fit = over(r * A)[size > 1e-9] / size[size > 1e-9]
    if len(fit) and np.median(fit) < 0.999:
        raise AuditError(
            f"the sum of the columns {', '.join(summed)} does not explain the column advantage (median correlation "
            f"within groups {np.median(fit):.2f}): say what the reward is with columns reward=NAME+0.5*NAME"
        )


def _listed(steps: Iterable[int]) -> str:
    each = sorted({int(s) for s in steps})
    shown = ", ".join(map(str, each[:5])) + (", …" if len(each) > 5 else "")
    return f"step {shown}" if len(each) == 1 else f"{len(each)} steps ({shown})"

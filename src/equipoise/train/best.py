"""Which checkpoint of a run is the best: the one whose evaluation had the highest metric.

The step before training is no checkpoint and does not count. Of equals the first is kept: it is the
one with the least drift. `checkpoints/best` is a link to it. Not covered: whether a difference
between two evaluations is more than luck, which their intervals in eval.jsonl say.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from equipoise.train.folder import RunError

BEST = "best"


class Best:
    """The best evaluation so far by `metric`; an empty metric keeps none."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.step: int | None = None
        self.value = float("-inf")

    def see(self, step: int, evaluation: Mapping[str, Any]) -> None:
        if self.metric and self.metric not in evaluation:
            raise RunError(
                f'train.keep_best = "{self.metric}": the evaluations of this run have none: reward '
                "functions that give numbers have no answers to vote for; take acc@N"
            )
        value = evaluation.get(self.metric)
        if step > 0 and value is not None and value > self.value:
            self.step, self.value = step, float(value)

    def see_all(self, evaluations: Iterable[Mapping[str, Any]]) -> None:
        """Those of eval.jsonl, when a run goes on; earlier ones may have been of other samples."""
        for evaluation in evaluations:
            if self.metric in evaluation:
                self.see(evaluation["step"], evaluation)

    def link(self, checkpoints: Path) -> None:
        """`checkpoints/best`, relative, so that a moved or copied run keeps it."""
        if self.step is None:
            return
        temporary = checkpoints / f".linking-{BEST}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(f"step-{self.step}")
        os.replace(temporary, checkpoints / BEST)


def discard_dangling(checkpoints: Path) -> None:
    """A run that goes on from an earlier step may have lost its best one."""
    link = checkpoints / BEST
    if not link.exists():
        link.unlink(missing_ok=True)

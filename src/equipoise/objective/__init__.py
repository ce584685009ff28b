"""The mathematics: every GRPO-style objective as five exact, composable choices. torch only; no models, no I/O."""

from equipoise.objective.credit import Credit
from equipoise.objective.groups import flatten, positions, response_ids, unflatten
from equipoise.objective.loss import LossOutput, Stats, merge_metrics
from equipoise.objective.names import named
from equipoise.objective.objective import Objective
from equipoise.objective.presets import PRESETS

__all__ = [
    "PRESETS",
    "Credit",
    "LossOutput",
    "Objective",
    "Stats",
    "flatten",
    "merge_metrics",
    "named",
    "positions",
    "response_ids",
    "unflatten",
]

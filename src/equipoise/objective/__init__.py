"""The mathematics: every GRPO-style objective as five exact, composable choices. torch only;
no models, no I/O.
"""

from equipoise.objective.credit import Credit
from equipoise.objective.groups import flatten, positions, response_ids, unflatten
from equipoise.objective.loss import LossOutput, Stats, merge_metrics
from equipoise.objective.names import named
from equipoise.objective.objective import Objective
from equipoise.objective.padded import padded_loss
from equipoise.objective.presets import PRESETS
from equipoise.objective.tokens import distillation, entropy_mask, log_kept, on_support

__all__ = [
    "PRESETS",
    "Credit",
    "LossOutput",
    "Objective",
    "Stats",
    "distillation",
    "entropy_mask",
    "flatten",
    "log_kept",
    "merge_metrics",
    "named",
    "on_support",
    "padded_loss",
    "positions",
    "response_ids",
    "unflatten",
]

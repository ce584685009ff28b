"""equipoise: reinforcement learning for reasoning models, with its biases measured and removed."""

from equipoise.objective import (
    PRESETS,
    Credit,
    LossOutput,
    Objective,
    flatten,
    merge_metrics,
    positions,
    response_ids,
    unflatten,
)

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "Credit",
    "LossOutput",
    "Objective",
    "flatten",
    "merge_metrics",
    "positions",
    "response_ids",
    "unflatten",
]

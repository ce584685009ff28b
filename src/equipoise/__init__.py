"""equipoise: reinforcement learning for reasoning models, with its biases measured and removed."""

import importlib
from types import ModuleType

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


def __getattr__(name: str) -> ModuleType:
    """`equipoise.theory` and `equipoise.rewards` on first use: scipy takes a second to import."""
    if name in ("theory", "rewards"):
        return importlib.import_module(f"equipoise.{name}")
    raise AttributeError(f"module 'equipoise' has no attribute {name!r}")

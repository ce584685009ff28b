"""equipoise: reinforcement learning for reasoning models,
with each of its biases measured and removable.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipoise.objective import (
        PRESETS,
        Credit,
        LossOutput,
        Objective,
        distillation,
        entropy_mask,
        flatten,
        log_kept,
        merge_metrics,
        on_support,
        padded_loss,
        positions,
        response_ids,
        unflatten,
    )
    from equipoise.train import Config, Trainer, TrainerCallback

__version__ = "1.0.0"

__all__ = [
    "PRESETS",
    "Config",
    "Credit",
    "LossOutput",
    "Objective",
    "Trainer",
    "TrainerCallback",
    "distillation",
    "entropy_mask",
    "flatten",
    "log_kept",
    "merge_metrics",
    "on_support",
    "padded_loss",
    "positions",
    "response_ids",
    "unflatten",
]

# these of equipoise.train, the others of equipoise.objective
TRAINING = ("TrainerCallback", "Config", "Trainer")
PACKAGES = ("objective", "theory", "verifiers", "tasks", "audit", "report")


def __getattr__(name: str) -> Any:
    """The public names on first use: a verifier's worker must not wait seconds for torch."""
    if name in __all__:
        package = "train" if name in TRAINING else "objective"
        return getattr(importlib.import_module(f"equipoise.{package}"), name)
    if name in PACKAGES:
        return importlib.import_module(f"equipoise.{name}")
    raise AttributeError(f"module 'equipoise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *PACKAGES, "__version__"]

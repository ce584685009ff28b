"""equipoise: reinforcement learning for reasoning models, with its biases measured and removed."""

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

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "Credit",
    "LossOutput",
    "Objective",
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

PACKAGES = ("objective", "theory", "verifiers", "tasks", "audit", "report")


def __getattr__(name: str) -> Any:
    """The public names on first use: a verifier's worker process must not wait two seconds for torch."""
    if name in __all__:
        return getattr(importlib.import_module("equipoise.objective"), name)
    if name in PACKAGES:
        return importlib.import_module(f"equipoise.{name}")
    raise AttributeError(f"module 'equipoise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *PACKAGES, "__version__"]

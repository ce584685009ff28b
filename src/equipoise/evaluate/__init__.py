"""Evaluation: acc@n, best@n, pass@k, maj@n with intervals; peak and last."""

from equipoise.evaluate.metrics import (
    Estimate,
    Peak,
    acc,
    best,
    bootstrap,
    length_cv,
    length_gap,
    majority,
    mean_pass_at_k,
    pass_at_k,
    peak,
    wilson,
)
from equipoise.evaluate.run import evaluate, line

__all__ = [
    "Estimate",
    "Peak",
    "acc",
    "best",
    "bootstrap",
    "evaluate",
    "length_cv",
    "length_gap",
    "line",
    "majority",
    "mean_pass_at_k",
    "pass_at_k",
    "peak",
    "wilson",
]

"""Evaluation: acc@n, best@n, pass@k, maj@n with intervals; the papers' benchmarks."""

from equipoise.evaluate.folder import EvaluationError
from equipoise.evaluate.metrics import (
    Peak,
    Score,
    acc,
    average,
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
from equipoise.evaluate.protocol import PROTOCOLS, Protocol
from equipoise.evaluate.regrade import regrade
from equipoise.evaluate.request import EvaluationRequest, evaluate_checkpoints, open_benchmarks
from equipoise.evaluate.run import Evaluation, Judge, Judged, TaskVerifier, evaluate, line
from equipoise.evaluate.suite import BenchmarkPlan, evaluate_benchmarks
from equipoise.evaluate.summary import over_checkpoints

__all__ = [
    "PROTOCOLS",
    "BenchmarkPlan",
    "Evaluation",
    "EvaluationError",
    "EvaluationRequest",
    "Judge",
    "Judged",
    "Peak",
    "Protocol",
    "Score",
    "TaskVerifier",
    "acc",
    "average",
    "best",
    "bootstrap",
    "evaluate",
    "evaluate_benchmarks",
    "evaluate_checkpoints",
    "length_cv",
    "length_gap",
    "line",
    "majority",
    "mean_pass_at_k",
    "open_benchmarks",
    "over_checkpoints",
    "pass_at_k",
    "peak",
    "regrade",
    "wilson",
]

"""TGC's measures of a run (arXiv 2604.13088 v1): how soon it rises, how it shakes, what drifts.

Numbers that a run has written down, for the page and for `equipoise compare`. Log-odds and the
entropy among right answers need `eval.probe = true`. Not here: how they are measured
(objective/loss.py, train/probe.py) and intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from equipoise.evaluate.curve import jitter, steps_to_score
from equipoise.report.runs import Run, number
from equipoise.report.series import mean, present, rounded
from equipoise.report.summary import held_out_metrics

CONTEXTS = "drift/shared_contexts/last_update"
SETS = {
    "probe/answers/drift": (
        "Log-odds between right answers",
        "How far the odds between different right responses to a prompt have moved since the start: mean over prompts "
        "and pairs of |Δ log π_a − Δ log π_b|, nats. At 0 all of them gain alike.",
    ),
    "probe/answers/entropy": (
        "Entropy among right answers",
        "Of the policy over a prompt's right responses of the start, mean over prompts, nats. At 0 one has taken all.",
    ),
    "probe/shared/logprob": (
        "Log-probability at shared contexts",
        "Mean of log π of the start's responses where two to a prompt have the same context: its fall since the start "
        "estimates KL(start ‖ now) there.",
    ),
}


class Stability(NamedTuple):
    """None where a run has not written the number down."""

    steps: float | None  # to the score, between evaluations along a straight line
    jitter: float | None  # of an evaluation around its neighbours, as a share
    # KL(π_old ‖ π) at shared contexts before a batch's last optimizer step, mean over steps
    contexts: float | None
    odds: float | None  # log-odds drift between right answers at the last evaluation, nats
    answers: float | None  # entropy among right answers at the last evaluation, nats
    entropy: float | None  # per token, mean of the last ten steps, nats


def stability(run: Run, metric: str, score: float) -> Stability:
    """`metric`: the held-out one whose curve it is."""
    steps, values = curve_of(run, metric)
    soon = steps_to_score(steps, values, score) if steps else math.inf
    shakes = jitter(values)
    return Stability(
        steps=soon if math.isfinite(soon) else None,
        jitter=None if math.isnan(shakes) else shakes,
        contexts=mean(run.metrics.get(CONTEXTS, [])),
        odds=_last(run, "probe/answers/drift"),
        answers=_last(run, "probe/answers/entropy"),
        entropy=mean(present(run.metrics.get("entropy", []))[-10:]),
    )


def curve_of(run: Run, metric: str) -> tuple[list[float], list[float]]:
    """Steps and values of a held-out metric."""
    found = [(float(e["step"]), v) for e in run.evaluations if (v := number(e, metric)) is not None]
    return [step for step, _ in found], [value for _, value in found]


def _last(run: Run, metric: str) -> float | None:
    values = [v for e in run.evaluations if (v := number(e, metric)) is not None]
    return values[-1] if values else None


def common_score(runs: Sequence[Run], metric: str) -> float | None:
    """The highest score that every run with the metric has reached."""
    peaks = [max(values) for run in runs if (values := curve_of(run, metric)[1])]
    return min(peaks) if peaks else None


COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "jitter": ("jitter (points)", lambda x: f"{100 * x:.1f}"),
    "contexts": ("shared drift ×10³", lambda x: f"{1e3 * x:.2g}"),
    "odds": ("log-odds drift", lambda x: f"{x:.2f}"),
    "answers": ("entropy of answers", lambda x: f"{x:.2f}"),
    "entropy": ("entropy", lambda x: f"{x:.3f}"),
}


def table(runs: Sequence[Run]) -> dict[str, Any] | None:
    """A row per run; columns that no run has a number for are left out."""
    metric = next((m for run in runs for m in held_out_metrics(run) if m.startswith("acc@")), "")
    score = common_score(runs, metric)
    if score is None:
        return None
    found = [stability(run, metric, score) for run in runs]
    shown = {
        key: column
        for key, column in COLUMNS.items()
        if any(getattr(f, key) is not None for f in found)
    }
    rows = []
    for i, each in enumerate(found):
        cells = ["–" if each.steps is None else f"{each.steps:.0f}"]
        for key, (_, form) in shown.items():
            value = getattr(each, key)
            cells.append("–" if value is None else form(value))
        rows.append({"run": i, "cells": [{"text": text} for text in cells]})
    return {
        "columns": ["run", f"steps to {100 * score:.1f}", *(title for title, _ in shown.values())],
        "rows": rows,
    }


def figures(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What the evaluations tell of the fixed set of responses."""
    drawn = []
    for metric, (title, sentence) in SETS.items():
        lines = []
        for i, run in enumerate(runs):
            steps, values = curve_of(run, metric)
            if steps:
                lines.append({"run": i, "x": steps, "y": [rounded(v) for v in values]})
        named = {"id": metric, "title": title, "metric": metric, "sentence": sentence}
        drawn.append({**named, "kind": "lines", "lines": lines})
    return drawn

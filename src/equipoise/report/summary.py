"""The table at the top of the page: a row per run, from its first evaluation to its last."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from equipoise.report.runs import Run, number
from equipoise.report.series import mean, present

SENTENCE = (
    "Held-out scores in percent, ± half the 95 % interval over problems; start→last for greedy and best: new "
    "capability rather than sharpening. A peak is the best of several noisy evaluations and therefore too high. "
    "Loss and gap are means over all steps, the loss ± two standard errors; length (tokens) and entropy (nats per "
    "token) are those of the last step."
)
NOTHING = "No step has been logged yet. The page grows with the run: write it again, or follow it with equipoise watch."


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    accuracy, best = first_metric(runs, "acc@"), first_metric(runs, "best@")
    rows = [_row(run, accuracy, best) for run in runs]
    columns = [c for c in rows[0] if any(row[c] for row in rows)]
    table = {
        "columns": ["run", *columns],
        "rows": [
            {"run": i, "below": objective(run), "cells": [{"text": row[c] or "–"} for c in columns]}
            for i, (run, row) in enumerate(zip(runs, rows, strict=True))
        ],
    }
    begun = any(run.steps or run.evaluations for run in runs)
    sentence = not_finite(runs) + SENTENCE if begun else NOTHING
    return {"id": "summary", "title": "Summary", "sentence": sentence, "table": table}


def not_finite(runs: Sequence[Run]) -> str:
    """Which runs logged a loss that is no finite number: means leave those steps out and look calm."""
    losses = {run.name: run.metrics.get("policy_loss", []) for run in runs}
    found = [
        f"{name} ({missing:,} of {len(loss):,})"
        for name, loss in losses.items()
        if (missing := sum(value is None for value in loss))
    ]
    return f"Steps without a finite loss: {', '.join(found)}. " if found else ""


def _row(run: Run, accuracy: str, best: str) -> dict[str, str]:
    acc, greedy, top = (peak(run, k) or {} for k in (accuracy, "greedy", best))
    low, high = acc.get("low"), acc.get("high")
    interval = "" if low is None or high is None else f" ±{50 * (high - low):.1f}"
    seconds = sum(present(run.metrics.get("timing_s/step", [])))
    return {
        "steps": shown_steps(run),
        f"{accuracy} start": percent(acc.get("start")),
        "peak": f"{percent(acc['peak'])} at {acc['peak_step']}" if acc else "",
        "last": percent(acc.get("last")) + interval,
        "drop": percent(acc.get("drop")),
        "greedy": _from_to(greedy),
        best: _from_to(top),
        "loss ×10³": _loss(run),
        "length gap": _mean(run, "bias/group_length_gap"),
        "length": _last(run, "completions/mean_length", ".0f"),
        "entropy": _last(run, "entropy", ".3f"),
        "time": span(seconds) if seconds else "",
    }


def shown_steps(run: Run) -> str:
    done, wanted = run.steps[-1] if run.steps else 0, run.option("train.steps")
    return str(done) if wanted in (None, done) else f"{done} of {wanted}"


def held_out_metrics(run: Run) -> list[str]:
    """The names of a run's held-out metrics that have an interval, as they were logged."""
    return list(
        dict.fromkeys(k for e in run.evaluations for k in _intervals(e) if number(e, k) is not None)
    )


def _intervals(evaluation: dict[str, Any]) -> dict[str, Any]:
    found = evaluation.get("interval")
    return found if isinstance(found, dict) else {}


def bound(evaluation: dict[str, Any], metric: str, i: int) -> float | None:
    """The lower (0) or upper (1) end of a metric's interval."""
    pair = _intervals(evaluation).get(metric)
    return number({"end": pair[i]}, "end") if isinstance(pair, list) and len(pair) == 2 else None


def peak(run: Run, *keys: str) -> dict[str, Any] | None:
    """A held-out metric's start, peak and its first step, last with its interval, and drop."""
    found = [(v, e) for e in run.evaluations if (v := number(e, *keys)) is not None]
    if not found:
        return None
    best, at = max(found, key=lambda x: x[0])
    last, end = found[-1]
    low, high = (bound(end, keys[0], i) for i in (0, 1))
    return {
        "start": found[0][0],
        "peak": best,
        "peak_step": at["step"],
        "last": last,
        "drop": best - last,
        "low": low,
        "high": high,
    }


def objective(run: Run) -> str:
    """The objective's choices in a few words, as the configuration makes them."""
    section = run.config.get("objective", {})
    slots = ("advantage", "difficulty", "cancellation", "aggregation", "surrogate")
    return " · ".join(
        [str(section.get("preset", "")), *(_choice(section[k]) for k in slots if k in section)]
    )


def _choice(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    options = ", ".join(f"{k}={v}" for k, v in value.items() if k != "name")
    return f"{value.get('name', '')}({options})"


def first_metric(runs: Sequence[Run], start: str) -> str:
    """The held-out metric of these runs that begins so."""
    return next(
        (k for run in runs for k in held_out_metrics(run) if k.startswith(start)), f"{start}n"
    )


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _from_to(found: dict[str, Any]) -> str:
    return f"{percent(found['start'])}→{percent(found['last'])}" if found else ""


def _loss(run: Run) -> str:
    x = present(run.metrics.get("policy_loss", []))
    error = f" ±{2e3 * statistics.stdev(x) / math.sqrt(len(x)):.1f}" if len(x) > 1 else ""
    return signed(1e3 * statistics.fmean(x), 1) + error if x else ""


def signed(value: float, digits: int) -> str:
    """With its sign, which what rounds to 0 has not."""
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def _mean(run: Run, metric: str) -> str:
    value = mean(run.metrics.get(metric, []))
    return "" if value is None else signed(value, 2)


def _last(run: Run, metric: str, form: str) -> str:
    x = present(run.metrics.get(metric, []))
    return format(x[-1], form) if x else ""


def span(seconds: float) -> str:
    m, s = divmod(round(seconds), 60)
    h, m = divmod(m, 60)
    return f"{h} h {m:02d} min" if h else f"{m} min {s:02d} s" if m else f"{s} s"

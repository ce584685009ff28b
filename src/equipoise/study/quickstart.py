"""The main job on the embedded model: four objectives from the same weights, the same prompts, the same draws.

Each run is an ordinary `equipoise train` in its own process with one thread, as many at a time as there are cores (the
model is too small for a run to use two). What they leave is four ordinary run directories, a table and the report.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from equipoise import report
from equipoise.evaluate import peak
from equipoise.study.runs import train_all
from equipoise.train import Config, Interrupted, RunFolder, read_lines

OBJECTIVES: dict[str, dict[str, Any]] = {
    "token": {"aggregation": {"name": "token", "over": "group"}},
    "sequence": {"aggregation": "sequence"},
    "balanced": {"aggregation": "balanced"},
    "balanced+hadw": {"aggregation": "balanced", "difficulty": "hadw"},
}

LEGEND = """
start, peak, last  held-out acc@8 in % (± half the 95 % interval)
greedy, best@8     start→last: new capability rather than sharpening
gap                how much longer wrong responses are, (T̄− − T̄+)/T̄
loss ×10³          mean policy-gradient loss ± 2 standard errors: token drifts
                   because it couples sign and length, HA-DW because its
                   weighted advantages do not sum to 0
"""


def settings(name: str, seed: int, steps: int | None, out: Path) -> Config:
    """The configuration of one of the four runs; they differ in the objective alone."""
    c = Config()
    c.objective.preset = "dapo"
    for slot, choice in OBJECTIVES[name].items():
        setattr(c.objective, slot, choice)
    c.train.seed, c.train.threads, c.train.out = seed, 1, str(out / name)
    c.train.steps = steps or c.train.steps
    c.eval.every = max(c.train.steps // 4, 1)
    c.train.checkpoint_every = c.eval.every
    c.log.terminal = False
    return c


def quickstart(out: Path, seed: int = 0, steps: int | None = None) -> None:
    console = Console(highlight=False)
    begin = time.monotonic()
    configs = {name: settings(name, seed, steps, out) for name in OBJECTIVES}
    console.print(
        f"Training the embedded model with {len(configs)} objectives, {configs['token'].train.steps} steps each,\n"
        "from the same weights, on the same prompts, with the same draws.\n"
    )
    try:
        train_all(configs, console)
    except KeyboardInterrupt:
        raise Interrupted("stopped after the step each run was in; the same command goes on with them") from None
    runs = [summary(name, RunFolder(c.train.out)) for name, c in configs.items()]
    console.print(table(runs))
    console.print(LEGEND)
    page = report.write([c.train.out for c in configs.values()], out / "report.html")
    console.print(f"{time.monotonic() - begin:.0f} s. Runs: {out}/   report: {page}", soft_wrap=True)


@dataclass(frozen=True)
class RunSummary:
    """One run in a row of the table."""

    name: str
    start: dict[str, Any]
    last: dict[str, Any]
    peak: float
    peak_step: float
    gap: float
    drift: float
    drift_error: float


def summary(name: str, folder: RunFolder, metric: str = "acc@8") -> RunSummary:
    evaluations, steps = read_lines(folder.eval), read_lines(folder.metrics)
    best = peak([e["step"] for e in evaluations], [e[metric] for e in evaluations])
    losses = [s["policy_loss"] for s in steps]
    mean = sum(losses) / len(losses)
    error = math.sqrt(sum((x - mean) ** 2 for x in losses) / max(len(losses) - 1, 1) / len(losses))
    gap = sum(s["bias/length_gap"] for s in steps) / len(steps)
    return RunSummary(name, evaluations[0], evaluations[-1], best.peak, best.peak_step, gap, mean, error)


def table(runs: Sequence[RunSummary]) -> Table:
    """Percentages of the held-out prompts; narrow enough for 80 columns."""
    columns = ("objective", "start", "peak", "last", "greedy", "best@8", "gap", "loss ×10³")
    out = Table(*columns, box=None, padding=(0, 1, 0, 0), collapse_padding=True)
    for r in runs:
        low, high = r.last["interval"]["acc@8"]
        out.add_row(
            r.name, f"{100 * r.start['acc@8']:.1f}", f"{100 * r.peak:.1f}",
            f"{100 * r.last['acc@8']:.1f} ±{50 * (high - low):.1f}",
            f"{100 * r.start['greedy']:.1f}→{100 * r.last['greedy']:.1f}",
            f"{100 * r.start['best@8']:.1f}→{100 * r.last['best@8']:.1f}", f"{r.gap:+.2f}",
            f"{1e3 * r.drift:+.1f} ±{2e3 * r.drift_error:.1f}",
        )  # fmt: skip
    return out

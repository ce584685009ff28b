"""The main job on the embedded model: four objectives from the same weights, the same prompts, the same draws.

Each run is an ordinary `equipoise train` in its own process with one thread, as many at a time as there are cores (the
model is too small for a run to use two). What they leave is four ordinary run directories, a table and a page of plots.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from equipoise.evaluate import peak
from equipoise.study.plots import write_plots
from equipoise.train import Config, RunError, RunFolder, dump, read_lines

OBJECTIVES: dict[str, dict[str, Any]] = {
    "token": {"aggregation": {"name": "token", "over": "group"}},
    "sequence": {"aggregation": "sequence"},
    "balanced": {"aggregation": "balanced"},
    "balanced+hadw": {"aggregation": "balanced", "difficulty": "hadw"},
}


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
        f"Training the embedded model with {len(configs)} objectives, {configs['token'].train.steps} steps each: "
        "the same weights, prompts and draws.\n"
    )
    _train_all(configs, out, console)
    runs = [summary(name, RunFolder(c.train.out)) for name, c in configs.items()]
    console.print(table(runs))
    console.print(
        "acc@8: held-out accuracy over 8 samples; greedy and best@8 tell teaching from sharpening.\n"
        "loss: mean policy-gradient loss ± 2 standard errors; away from 0 it drifts (sign-length coupling).\n"
        "gap: how much longer wrong responses are, (T̄− − T̄+)/T̄, mean over the run."
    )
    page = write_plots(out / "plots.html", {name: RunFolder(c.train.out) for name, c in configs.items()})
    console.print(f"\n{time.monotonic() - begin:.0f} s. Runs: {out}/   plots: {page}")


def _train_all(configs: dict[str, Config], out: Path, console: Console) -> None:
    """Run what is not finished yet, a process each; a run that stopped half way goes on where it stopped."""
    out.mkdir(parents=True, exist_ok=True)
    waiting = list(configs)
    running: dict[str, subprocess.Popen[bytes]] = {}
    columns = (
        TextColumn("{task.description:14s}"),
        BarColumn(30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[line]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        shown = {name: bars.add_task(name, total=c.train.steps, line="") for name, c in configs.items()}
        try:
            while waiting or running:
                while waiting and len(running) < (os.cpu_count() or 1):
                    name = waiting.pop(0)
                    running[name] = _start(configs[name])
                time.sleep(0.3)
                for name in configs:
                    _show(bars, shown[name], RunFolder(configs[name].train.out))
                for name, process in list(running.items()):
                    if process.poll() is not None:
                        del running[name]
                        if process.returncode:
                            raise RunError(_failure(name, configs[name]))
        finally:
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.wait()


def _start(config: Config) -> subprocess.Popen[bytes]:
    folder = RunFolder(config.train.out)
    begun = folder.config.exists()
    file = folder.path.with_suffix(".toml")
    file.write_text(dump(config), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(folder.path.with_suffix(".log"), "wb") as log:
        command = [sys.executable, "-m", "equipoise", "train", str(file), *(["--resume"] if begun else [])]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def _show(bars: Progress, bar: Any, folder: RunFolder) -> None:
    records = read_lines(folder.metrics)
    if records:
        last = records[-1]
        bars.update(
            bar,
            completed=last["step"],
            line=f"reward {last['reward/mean']:.2f}  length {last['completions/mean_length']:.0f}",
        )


def _failure(name: str, config: Config) -> str:
    log = Path(config.train.out).with_suffix(".log")
    said = log.read_text(errors="replace").strip().splitlines()
    return f"the run {name} failed: {said[-1] if said else 'it said nothing'} (all of it: {log})"


@dataclass(frozen=True)
class Summary:
    """One run in a row of the table."""

    name: str
    start: dict[str, Any]
    last: dict[str, Any]
    peak: float
    peak_step: int
    gap: float
    drift: float
    drift_error: float
    seconds: float


def summary(name: str, folder: RunFolder, metric: str = "acc@8") -> Summary:
    evaluations, steps = read_lines(folder.eval), read_lines(folder.metrics)
    best = peak([e["step"] for e in evaluations], [e[metric] for e in evaluations])
    losses = [s["policy_loss"] for s in steps]
    mean = sum(losses) / len(losses)
    error = math.sqrt(sum((x - mean) ** 2 for x in losses) / max(len(losses) - 1, 1) / len(losses))
    gap = sum(s["bias/length_gap"] for s in steps) / len(steps)
    seconds = sum(s["timing_s/step"] for s in steps)
    return Summary(name, evaluations[0], evaluations[-1], best.peak, best.peak_step, gap, mean, error, seconds)


def table(runs: Sequence[Summary]) -> Table:
    out = Table("objective", "acc@8 start", "peak (step)", "last", "greedy start → last", "best@8 start → last",
                "gap", "loss", "s", title="Held-out results", box=None)  # fmt: skip
    for r in runs:
        low, high = r.last["interval"]["acc@8"]
        out.add_row(
            r.name, f"{r.start['acc@8']:.3f}", f"{r.peak:.3f} ({r.peak_step})",
            f"{r.last['acc@8']:.3f} [{low:.3f}, {high:.3f}]", f"{r.start['greedy']:.3f} → {r.last['greedy']:.3f}",
            f"{r.start['best@8']:.3f} → {r.last['best@8']:.3f}", f"{r.gap:+.2f}",
            f"{r.drift:+.4f} ± {2 * r.drift_error:.4f}", f"{r.seconds:.0f}",
        )  # fmt: skip
    return out

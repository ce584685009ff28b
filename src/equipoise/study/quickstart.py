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
from equipoise.train import Config, Interrupted, RunError, RunFolder, checkpoint, dump, read_lines

OBJECTIVES: dict[str, dict[str, Any]] = {
    "token": {"aggregation": {"name": "token", "over": "group"}},
    "sequence": {"aggregation": "sequence"},
    "balanced": {"aggregation": "balanced"},
    "balanced+hadw": {"aggregation": "balanced", "difficulty": "hadw"},
}

LEGEND = """
start, peak, last  held-out acc@8 in % (± half the 95 % interval)
greedy, best@8     start→last: what RL taught rather than sharpened
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
        _train_all(configs, out, console)
    except KeyboardInterrupt:
        raise Interrupted("stopped after the step each run was in; the same command goes on with them") from None
    runs = [summary(name, RunFolder(c.train.out)) for name, c in configs.items()]
    console.print(table(runs))
    console.print(LEGEND)
    page = write_plots(out / "plots.html", {name: RunFolder(c.train.out) for name, c in configs.items()})
    console.print(f"{time.monotonic() - begin:.0f} s. Runs: {out}/   plots: {page}")


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
                    if not _finished(configs[name]):
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


def _finished(config: Config) -> bool:
    """Whether the run in that directory is this one and has come to its end: then there is nothing to start."""
    folder = RunFolder(config.train.out)
    if not folder.config.exists() or folder.config.read_text(encoding="utf-8") != dump(config):
        return False
    return config.train.steps in checkpoint.steps(folder.checkpoints)


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


def summary(name: str, folder: RunFolder, metric: str = "acc@8") -> Summary:
    evaluations, steps = read_lines(folder.eval), read_lines(folder.metrics)
    best = peak([e["step"] for e in evaluations], [e[metric] for e in evaluations])
    losses = [s["policy_loss"] for s in steps]
    mean = sum(losses) / len(losses)
    error = math.sqrt(sum((x - mean) ** 2 for x in losses) / max(len(losses) - 1, 1) / len(losses))
    gap = sum(s["bias/length_gap"] for s in steps) / len(steps)
    return Summary(name, evaluations[0], evaluations[-1], best.peak, best.peak_step, gap, mean, error)


def table(runs: Sequence[Summary]) -> Table:
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

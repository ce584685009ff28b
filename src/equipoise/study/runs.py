"""Several training runs: an ordinary `equipoise train` in a process each, with one thread, some at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from equipoise.train import Config, RunError, RunFolder, checkpoint, dump, read_lines


def train_all(configs: dict[str, Config], console: Console, jobs: int = 0) -> None:
    """Run what is not finished yet, `jobs` at a time (0: one per core); what stopped half way goes on from there."""
    waiting = list(configs)
    running: dict[str, subprocess.Popen[bytes]] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[line]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        shown = {name: bars.add_task(name, total=c.train.steps, line="") for name, c in configs.items()}
        try:
            while waiting or running:
                while waiting and len(running) < (jobs or os.cpu_count() or 1):
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
    folder.path.parent.mkdir(parents=True, exist_ok=True)
    file = _beside(folder.path, ".toml")
    file.write_text(dump(config), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(_beside(folder.path, ".log"), "wb") as log:
        command = [sys.executable, "-m", "equipoise", "train", str(file), *(["--resume"] if begun else [])]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def _beside(run: Path, ending: str) -> Path:
    return run.with_name(run.name + ending)


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
    log = _beside(Path(config.train.out), ".log")
    said = log.read_text(errors="replace").strip().splitlines()
    return f"the run {name} failed: {said[-1] if said else 'it said nothing'} (all of it: {log})"

"""Several training runs: an `equipoise train` in a process each, with one thread, forked from one
that has imported the trainer (fork_server.py).
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from equipoise.study.fork_server import ForkServer, RunProcess
from equipoise.train import (
    Config,
    Interrupted,
    RunError,
    RunFolder,
    checkpoint,
    dump,
    load,
    read_lines,
)
from equipoise.train.settle import as_begun
from equipoise.train.stopping import graceful_stop

# runs that get a line each for as long as all go on; of more, only those under way are shown
FEW = 24


def train_all(
    configs: dict[str, Config],
    console: Console,
    jobs: int = 0,
    *,
    stop_at: float = math.inf,
    patient: bool = False,
    weights: bool = True,
    server: ForkServer | None = None,
) -> dict[str, str]:
    """Run what is not finished, `jobs` at a time (0: one per core), from where it stopped.

    `stop_at` (time.monotonic) ends the runs under way after the step they are in, as Ctrl-C and
    SIGTERM do. A run that fails ends all others, or where `patient`, is said, left out, and named
    in the table that comes back. Without
    `weights` a run is done with its last evaluation: no checkpoint is written there, and earlier
    ones go. `server`: one that was opened already.
    """
    waiting = [name for name, config in configs.items() if not _done(config, weights)]
    failed = {name: why for name in waiting if (why := _in_use(configs[name]))}
    if failed and not patient:
        raise RunError(next(iter(failed.values())))
    waiting = [name for name in waiting if name not in failed]
    server = server or ForkServer()
    at_once = jobs or os.cpu_count() or 1
    server.runs_at_once = max(1, min(at_once, len(waiting)))
    with _progress(console) as bars, graceful_stop() as stop:
        board = _Board(bars, configs, done=len(configs) - len(waiting))
        runs = _Runs(server, configs, weights)
        try:
            while (waiting or runs.processes) and not stop.wanted and time.monotonic() < stop_at:
                for name in waiting[: at_once - len(runs.processes)]:
                    waiting.remove(name)
                    runs.begin(name)
                    board.begin(name)
                time.sleep(0.3)
                board.refresh()
                for name, why in runs.ended():
                    if why and not patient:
                        raise RunError(why)
                    if why:
                        failed[name] = why
                        console.print(why, markup=False, soft_wrap=True)
                    board.end(name)
        finally:
            runs.stop()
            server.close()
    if stop.wanted:
        raise Interrupted(
            "stopped after the step each run was in; the same command goes on with them"
        )
    return failed


class _Runs:
    """Those under way."""

    def __init__(self, server: ForkServer, configs: dict[str, Config], weights: bool) -> None:
        self.server, self.configs, self.weights = server, configs, weights
        self.processes: dict[str, RunProcess] = {}

    def begin(self, name: str) -> None:
        self.processes[name] = _start(self.server, self.configs[name], self.weights)

    def ended(self) -> Iterator[tuple[str, str]]:
        """Those that have ended since, each with why it failed, empty where it did not."""
        for name, process in list(self.processes.items()):
            if process.poll() is not None:
                del self.processes[name]
                yield name, self._settled(name, process.returncode)

    def _settled(self, name: str, status: int | None) -> str:
        config = self.configs[name]
        if not self.weights and measured(config):
            _drop_checkpoints(config)
            return ""
        return _failure(name, config) if status else ""

    def stop(self) -> None:
        """All at once, after the step that each is in."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait()


class _Board:
    """A bar for each run; of more than FEW, one for each under way and one for all of them."""

    def __init__(self, bars: Progress, configs: dict[str, Config], done: int) -> None:
        self.bars, self.configs = bars, configs
        self.shown: dict[str, TaskID] = {}
        self.whole: TaskID | None = None
        if len(configs) > FEW:
            self.whole = bars.add_task("runs", total=len(configs), completed=done, line="")
            return
        for name in configs:
            self.begin(name)

    def begin(self, name: str) -> None:
        if name not in self.shown:
            steps = self.configs[name].train.steps
            self.shown[name] = self.bars.add_task(name, total=steps, line="")

    def refresh(self) -> None:
        for name, bar in self.shown.items():
            records = read_lines(RunFolder(self.configs[name].train.out).metrics)
            if records:
                last = records[-1]
                reward = f"reward {last['reward/mean']:.2f}"
                length = f"length {last['completions/mean_length']:.0f}"
                self.bars.update(bar, completed=last["step"], line=f"{reward}  {length}")

    def end(self, name: str) -> None:
        if self.whole is not None:
            self.bars.remove_task(self.shown.pop(name))
            self.bars.advance(self.whole)


def _progress(console: Console) -> Progress:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[line]}", markup=False),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console)


def _done(config: Config, weights: bool) -> bool:
    return finished(config) or (not weights and measured(config))


def finished(config: Config) -> bool:
    """Whether the run in that directory is this one and has ended: then nothing is started."""
    folder = RunFolder(config.train.out)
    return _is_there(config) and config.train.steps in checkpoint.steps(folder.checkpoints)


def measured(config: Config) -> bool:
    """Whether that run has its last evaluation: all that a study asks of it."""
    evaluations = read_lines(RunFolder(config.train.out).eval)
    return _is_there(config) and bool(evaluations) and evaluations[-1]["step"] == config.train.steps


def _drop_checkpoints(config: Config) -> None:
    """Those of hundreds of runs of a real model would fill any disk."""
    checkpoints = RunFolder(config.train.out).checkpoints
    if checkpoints.exists():
        shutil.rmtree(checkpoints)


def _is_there(config: Config) -> bool:
    folder = RunFolder(config.train.out)
    if not folder.config.exists():
        return False
    begun = load(folder.config)
    # A run writes what it made of `auto` into its configuration: that is no other setting.
    return dump(as_begun(begun, config)) == dump(begun)


def _in_use(config: Config) -> str:
    """Why no run can be started there, empty where one can: it would write over the log of the one
    under way.
    """
    folder = RunFolder(config.train.out)
    if not folder.path.is_dir():
        return ""
    try:
        folder.lock(flag="--out")
    except RunError as error:
        return str(error)
    folder.leave()
    return ""


def _start(server: ForkServer, config: Config, weights: bool) -> RunProcess:
    folder = RunFolder(config.train.out)
    begun = folder.config.exists()
    file = _beside(folder.path, ".toml")
    try:
        folder.path.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dump(config), encoding="utf-8")
    except OSError as error:
        raise RunError(f"{file.parent}: no runs can be put there: {error.strerror}") from error
    flags = [*(["--resume"] if begun else []), *([] if weights else ["--no-weights"])]
    arguments = ["train", str(file), *flags]
    return server.start(arguments, _beside(folder.path, ".log"))


def _beside(run: Path, ending: str) -> Path:
    return run.with_name(run.name + ending)


def _failure(name: str, config: Config) -> str:
    log = _beside(Path(config.train.out), ".log")
    said = log.read_text(errors="replace").strip().splitlines()
    last = said[-1] if said else "it said nothing"
    return f"the run {name} failed: {last} (all of it: {log})"

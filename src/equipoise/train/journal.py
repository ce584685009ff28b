"""What a run leaves behind: lines and tables in its directory, trackers, the terminal's words.

The first process alone writes. Not here: what the numbers mean (batch.py, update.py) and
checkpoints (checkpoint.py).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from equipoise.config import Config, dump
from equipoise.evaluate import Evaluation, line
from equipoise.objective import Credit
from equipoise.policy import Policy
from equipoise.train import checkpoint, opening, ranks
from equipoise.train.batch import StepBatch, write_rollouts
from equipoise.train.folder import RunError, RunFolder, append, replace, write_table
from equipoise.train.gaming import Crossing
from equipoise.train.progress import Terminal
from equipoise.train.record import Record
from equipoise.train.run_start import Start, resume_command
from equipoise.train.sample import as_read, first_sample, sample_rows
from equipoise.train.score import last_line
from equipoise.train.trackers import Tracker, open_trackers

TROUBLES_PER_STEP = 20  # kept in troubles.jsonl


@contextlib.contextmanager
def writing(folder: RunFolder) -> Iterator[None]:
    """Around what writes into the run directory: a full disk becomes a sentence."""
    try:
        yield
    except OSError as error:
        kept = checkpoint.steps(folder.checkpoints)
        last, then = "no checkpoint was written yet", "start it again"
        if kept:
            last = f"step {kept[-1]} is the last whole checkpoint"
        if folder.config.exists():
            then = f"go on with: {resume_command(folder)}"
        raise RunError(
            f"{folder.path}: cannot be written: {error.strerror or error}; {last}; make room and {then}"
        ) from error


class Journal:
    """Opened with the run; the terminal is quiet until `open_terminal`."""

    def __init__(self, config: Config, folder: RunFolder, start: Start | None) -> None:
        self.config, self.folder = config, folder
        self.writes = ranks.me() == 0
        self.trackers: list[Tracker] = []
        if start is not None:  # the first process
            self.trackers = open_trackers(
                config.log, folder.path, config.flat(), run=start.record.id
            )
        self.terminal = Terminal(config.train.out, config.train.steps, 0, shown=False)

    def begin(
        self, device: torch.device, record: Record, given: Mapping[str, Any], *, resume: bool
    ) -> None:
        """The files that say what the run is; config.toml, which makes it one, is the last.

        `given`: what a program gave as objects.
        """
        with writing(self.folder):
            record.write(self.folder)
            if given and not resume:
                replace(self.folder.given, json.dumps(given, indent=2) + "\n")
            if not resume:
                environment = json.dumps(opening.environment(device), indent=2)
                replace(self.folder.environment, environment + "\n")
            replace(self.folder.config, dump(self.config))

    def open_terminal(self, done: int) -> Terminal:
        """A line of progress for the steps after `done`."""
        shown = self.config.log.terminal and self.writes
        self.terminal = Terminal(self.config.train.out, self.config.train.steps, done, shown)
        return self.terminal

    def step(self, step: int, batch: StepBatch, metrics: Mapping[str, float]) -> None:
        if self.writes:
            with writing(self.folder):
                append(self.folder.metrics, {"step": step, **metrics})
            for tracker in self.trackers:
                tracker.log(metrics, step)
        self.terminal.step(step, metrics)
        self._troubled(step, batch.troubles)

    def _troubled(self, step: int, troubles: Sequence[Mapping[str, str]]) -> None:
        """What went wrong when responses were judged: the first ones kept, and each kind said once."""
        if self.writes:
            with writing(self.folder):
                for trouble in troubles[:TROUBLES_PER_STEP]:
                    append(self.folder.troubles, {"step": step, **trouble})
        for trouble in troubles:
            subject = f"{trouble['function']}: {trouble['verdict']}"
            self.terminal.once(
                subject, f"{subject}: {last_line(trouble['reason'])} (see {self.folder.troubles})"
            )

    def rollouts(self, step: int, batch: StepBatch, credit: Credit, policy: Policy) -> None:
        """The responses of the first and every `log.rollouts_every`-th step."""
        every = self.config.log.rollouts_every
        if every and self.writes and (step == 1 or step % every == 0):
            shown = as_read(policy, batch.rollouts.prompts)
            with writing(self.folder):
                write_rollouts(self.folder.rollouts, step, batch, credit, shown)
            if self.trackers and self.config.log.samples:
                rows = sample_rows(batch, credit, self.config.log.samples, step)
                for tracker in self.trackers:
                    tracker.samples(rows, step)
        if step == 1:
            self.terminal.say(first_sample(policy, batch))

    def warn(self, step: int, crossings: Sequence[Crossing]) -> None:
        for crossing in crossings:
            self.terminal.warn(f"step {step:4d}  {crossing}")
            with writing(self.folder):
                for prompt, _, response in crossing.examples:
                    about = {"function": crossing.measure, "verdict": "warning", "reason": response}
                    append(self.folder.troubles, {"step": step, "prompt": prompt, **about})

    def evaluation(self, step: int, evaluation: Evaluation, result: dict[str, Any]) -> None:
        """`step-N.parquet`, a row per held-out response: what is behind a line of eval.jsonl."""
        import pyarrow as pa

        if self.writes:
            with writing(self.folder):
                write_table(self.folder.evaluations, step, pa.Table.from_pylist(evaluation.rows()))
                append(self.folder.eval, {"step": step, **result})
            numbers = {f"eval/{k}": v for k, v in result.items() if isinstance(v, float)}
            for tracker in self.trackers:
                tracker.log(numbers, step)
        self.terminal.say(f"step {step:4d}  held out: {line(result)}")
        self._troubled(step, evaluation.troubles())

    def ended(self) -> None:
        """After the last step: the trackers get the report."""
        if self.trackers:
            from equipoise.report import write

            page = write([self.folder.path], self.folder.path / "report.html")
            for tracker in self.trackers:
                tracker.attach(page)

    def close(self) -> None:
        self.terminal.close()
        for tracker in self.trackers:
            tracker.close()

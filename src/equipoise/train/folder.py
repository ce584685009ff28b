"""The run directory: one process at a time, logs of whole lines, all of it for people to read.

config.toml   run.json   given.json   environment.json   metrics.jsonl   eval.jsonl   troubles.jsonl   prompts.parquet
rollouts/step-N.parquet   evaluations/step-N.parquet   checkpoints/step-N/   probe.pt
averaged/   trackers.json
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from equipoise.files import whole

if TYPE_CHECKING:
    import pyarrow as pa

LOCK = ".lock"


class RunError(RuntimeError):
    """A run that cannot start or go on; the message is for the user."""


SFT_CONFIG = "sft.toml"  # in the place of config.toml where a folder holds a supervised warm-up


class RunFolder:
    """The files of a run directory, by name."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.record = self.path / "run.json"  # see record.py
        self.given = self.path / "given.json"  # fingerprints of what a program gave as objects
        # versions and device of the process that began the run
        self.environment = self.path / "environment.json"
        self.metrics = self.path / "metrics.jsonl"
        self.eval = self.path / "eval.jsonl"
        self.troubles = self.path / "troubles.jsonl"  # verdicts somebody should look at
        self.prompts = self.path / "prompts.parquet"
        self.rollouts = self.path / "rollouts"
        self.evaluations = self.path / "evaluations"  # the responses behind eval.jsonl
        # the responses that every evaluation scores, with eval.probe
        self.probe = self.path / "probe.pt"
        self.checkpoints = self.path / "checkpoints"
        self.averaged = self.path / "averaged"  # with train.average: the mean of the last of them
        self._lock: IO[str] | None = None
        self._made: list[Path] = []  # folders that were not there before, the innermost first

    def lock(self, flag: str = "--train.out") -> None:
        """Take the folder for this process until it ends, however it ends.

        `flag`: what names another folder to the command that was given.
        """
        file = self.path / LOCK
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = open(file, "a+")  # noqa: SIM115 (held as long as the process lives)
        except OSError as error:
            raise RunError(
                f"{self.path}: cannot be used as a run directory: {error.strerror}; {flag} names another"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise RunError(
                f"{self.path}: in use by another run (process {lock.read().strip() or 'unknown'}); "
                f"choose another directory with {flag}, or stop that process"
            ) from None
        if not file.exists() or not os.path.samestat(os.fstat(lock.fileno()), file.stat()):
            lock.close()  # a start that failed took it away between our opening and our locking it
            self.lock(flag)
            return
        lock.seek(0)
        lock.truncate()
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def leave(self) -> None:
        """Unlock after a start that failed; remove a folder that this process made for nothing."""
        if self._lock is None:
            return
        if os.listdir(self.path) == [LOCK]:
            (self.path / LOCK).unlink()
            for folder in self._made:
                with contextlib.suppress(OSError):  # somebody else uses it by now
                    folder.rmdir()
        self.unlock()

    def sync(self) -> None:
        """Have the logs on the disk, not only on their way to it."""
        for path in (self.metrics, self.eval, self.troubles):
            if path.exists():
                with open(path, "rb") as f:
                    os.fsync(f.fileno())

    def rewind(self, step: int) -> None:
        """Forget what was logged after `step`: it will be logged again. Torn last lines go as well."""
        for path in (self.metrics, self.eval, self.troubles):
            if path.exists():
                kept = [line for line, record in _whole_lines(path) if record["step"] <= step]
                replace(path, "".join(kept))
        for folder in (self.rollouts, self.evaluations):
            for unfinished in folder.glob(".step-*.writing"):
                unfinished.unlink()
            for path in folder.glob("step-*.parquet"):
                if int(path.stem.removeprefix("step-")) > step:
                    path.unlink()


def _whole_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        if line.endswith("\n"):
            try:
                yield line, json.loads(line)
            except json.JSONDecodeError:
                return
        else:
            return


def torn_inside(path: Path) -> int | None:
    """The first line that is no record though lines follow; a torn last one is only a kill's."""
    if not path.exists():
        return None
    whole = sum(1 for _ in _whole_lines(path))
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return whole + 1 if whole + 1 < len(lines) else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a log that may still be written to."""
    return [record for _, record in _whole_lines(path)] if path.exists() else []


def append(path: Path, record: dict[str, Any]) -> None:
    """One JSON line; numbers that are not finite become null, which JSON can carry."""
    clean = {
        k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()
    }
    with open(path, "a", encoding="utf-8") as f:
        f.write(json.dumps(clean, allow_nan=False) + "\n")


def write_table(folder: Path, step: int, table: pa.Table) -> None:
    """`step-N.parquet`, whole or not at all."""
    import pyarrow.parquet as pq

    folder.mkdir(exist_ok=True)
    with whole(folder / f"step-{step}.parquet") as temporary:
        pq.write_table(table, temporary)


def replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")

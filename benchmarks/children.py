"""Measurements in processes of their own: bounded, with their output in a file.

A child writes one JSON object a line and is read while it runs, so what it measured before it hung,
crashed or ran out of time is kept. It is the first of a process group that is ended with it: an
engine's processes that outlive their parent would hold the GPU. A child may be started early: it
imports what it needs, which takes vLLM half a minute, and waits for its turn before it touches the
device.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

POLL = 0.1  # seconds


class Child:
    """`command` is given the folder as its last argument: there it finds `job.json`, waits for
    `turn`, and appends to `found.jsonl`.
    """

    def __init__(
        self, command: Sequence[str], folder: Path, job: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.log = folder / "log.txt"
        self.read = 0
        (folder / "job.json").write_text(json.dumps(job))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def run(self, limit: float, tell: Callable[[dict[str, Any]], None]) -> str:
        """Give it its turn; why it ended before its time, or nothing."""
        (self.folder / "turn").touch()
        end = time.monotonic() + limit
        try:
            while self.process.poll() is None and time.monotonic() < end:
                self._hear(tell)
                time.sleep(POLL)
            late = self.process.poll() is None
        finally:
            self.end()
        self._hear(tell)
        if late:
            return f"not done after {limit:.0f} s"
        return "" if self.process.returncode == 0 else f"exit {self.process.returncode}: {self._last_words()}"

    def end(self) -> None:
        """The process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _hear(self, tell: Callable[[dict[str, Any]], None]) -> None:
        file = self.folder / "found.jsonl"
        if not file.exists():
            return
        with file.open() as lines:
            lines.seek(self.read)
            while (line := lines.readline()).endswith("\n"):
                self.read = lines.tell()
                tell(json.loads(line))

    def _last_words(self) -> str:
        """The last line that reads like an error, or the last one."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        # torch and vLLM put the rank, or the process and the time, before it
        errors = [line[found.start() :] for line in lines if (found := re.search(r"(?<![\w.])[\w.]*Error: ", line))]
        return (errors or lines or ["no output"])[-1][:300]


def job(folder: Path) -> dict[str, Any]:
    """In the child: what to do, once it is its turn. Call it when all is imported."""
    while not (folder / "turn").exists():
        # A parent that was killed cannot give a turn any more.
        if os.getppid() == 1:
            raise SystemExit("the process that started this one is gone")
        time.sleep(POLL / 10)
    found: dict[str, Any] = json.loads((folder / "job.json").read_text())
    return found


def found(folder: Path, row: Mapping[str, Any]) -> None:
    """In the child: hand over one row."""
    with (folder / "found.jsonl").open("a") as lines:
        lines.write(json.dumps(row) + "\n")


def in_turn(
    started: Sequence[Callable[[], Child]], limit: Callable[[int], float], heard: Callable[[int, dict[str, Any]], None]
) -> dict[int, str]:
    """Run children one after the other, the next one importing meanwhile; why those that failed did.

    `limit(i)`: seconds that child i may take from its turn on; at 0 it and all after it are left out.
    """
    failed: dict[int, str] = {}
    waiting: list[Child] = []
    try:
        for index in range(len(started)):
            seconds = limit(index)
            if seconds <= 0:
                return failed | dict.fromkeys(range(index, len(started)), "no time left")
            if not waiting:
                waiting.append(started[index]())
            child = waiting.pop()
            if index + 1 < len(started):
                waiting.append(started[index + 1]())
            try:
                why = child.run(seconds, lambda row, index=index: heard(index, row))
            finally:
                child.end()
            if why:
                failed[index] = why
    finally:
        for child in waiting:
            child.end()
    return failed


def ended_by_signal() -> None:
    """Let SIGTERM, which `timeout` sends, end the children as an exception would."""

    def stop(*_: Any) -> None:
        raise SystemExit("ended by a signal")

    signal.signal(signal.SIGTERM, stop)

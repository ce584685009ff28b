"""Read run directories as they are, finished or still being written to, by this version or another.

A line that is torn or not a record is passed over and counted, never an error: the next reading
finds it whole, or the page says how many there were. Not here: what the numbers mean (panels.py)
and the rollout files (samples.py).
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.report import verl

MOST_APART = 24  # what colours and dashes can tell apart
MOST_RUNS = 96  # of at most 24 variants
LARGEST_STEP = 2**53  # beyond it a browser's numbers are not whole


class ReportError(ValueError):
    """A report that cannot be made; the message is one sentence for the user."""


class TooManyRuns(ReportError):
    """More than a page holds, or can tell apart."""


@dataclass(frozen=True)
class Run:
    """One run directory; columns of `metrics` match `steps`, None without a finite number."""

    path: Path
    name: str
    config: dict[str, dict[str, Any]]  # sections of config.toml
    toml: str
    steps: list[int]
    metrics: dict[str, list[float | None]]
    evaluations: list[dict[str, Any]]
    rollouts: dict[int, Path]  # step → file
    notes: list[str]  # what could not be read, in sentences

    def option(self, name: str) -> Any:
        section, _, key = name.partition(".")
        return self.config.get(section, {}).get(key)


def is_run(path: Path) -> bool:
    files = (path / "config.toml", path / "metrics.jsonl", *path.glob(verl.FILES))
    return any(file.is_file() for file in files)


def find(paths: Sequence[str | Path]) -> list[Path]:
    """The run directories meant by `paths`: themselves, folders of them, or folders of those."""
    found: list[Path] = []
    for path in map(Path, paths):
        inside = [] if is_run(path) or not path.is_dir() else _inside(path)
        if not path.exists():
            raise ReportError(f"{path}: there is no such run directory")
        if not is_run(path) and not inside:
            raise ReportError(
                f"{path}: not a run directory; one holds the config.toml or metrics.jsonl that `equipoise train` writes"
            )
        found += inside or [path]
    unique = list({p.resolve(): p for p in found}.values())
    if not unique:
        raise ReportError("no run: give at least one run directory")
    if len(unique) > MOST_RUNS:
        raise TooManyRuns(
            f"{len(unique)} runs: a page holds at most {MOST_RUNS}; give fewer, or several pages"
        )
    return unique


def _inside(folder: Path) -> list[Path]:
    """The runs in a folder, or in its folders, as `equipoise compare` lays them out."""
    here = sorted(p for p in folder.iterdir() if is_run(p))
    return here or sorted(
        p for below in folder.iterdir() if below.is_dir() for p in below.iterdir() if is_run(p)
    )


def names(paths: Sequence[Path]) -> list[str]:
    """The folders' names, with as many parents as it takes to tell them apart."""
    parts = [p.resolve().parts for p in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        short = ["/".join(p[-depth:]) for p in parts]
        if max(Counter(short).values()) == 1:
            break
    return short


def read(path: Path, name: str) -> Run:
    notes: list[str] = []
    toml, config = _config(path / "config.toml", notes)
    records = _records(path / "metrics.jsonl", notes)
    evaluations = list(_records(path / "eval.jsonl", notes).values())
    of_verl = _of_verl(path, notes)
    records |= {
        step: verl.metrics(record) for step, record in of_verl.items() if verl.is_step(record)
    }
    evaluations += verl.evaluations(of_verl.values())
    keys = dict.fromkeys(k for r in records.values() for k in r)
    metrics = {k: [_metric(r, k) for r in records.values()] for k in keys if k != "step"}
    metrics = {k: column for k, column in metrics.items() if any(v is not None for v in column)}
    return Run(
        path, name, config, toml, list(records), metrics, evaluations, _rollouts(path), notes
    )


def _of_verl(path: Path, notes: list[str]) -> dict[int, dict[str, Any]]:
    """What verl's file logger left: a file for each start, of which a later one wrote its steps anew."""
    found: dict[int, dict[str, Any]] = {}
    for file in sorted(path.glob(verl.FILES)):
        records = _records(file, notes)
        found |= {
            step: record for step, record in records.items() if isinstance(record.get("data"), dict)
        }
    return dict(sorted(found.items()))


def signature(paths: Iterable[Path]) -> tuple[Any, ...]:
    """Changes whenever a file of these runs does."""
    files = [
        f
        for p in paths
        for f in (
            p / "config.toml",
            p / "metrics.jsonl",
            p / "eval.jsonl",
            *sorted(p.glob(verl.FILES)),
            *_rollouts(p).values(),
        )
    ]
    return tuple((str(f), *version(f)) for f in files)


def version(file: Path) -> tuple[int, ...]:
    try:
        s = file.stat()
    except OSError:
        return ()
    return s.st_ino, s.st_mtime_ns, s.st_size


def _config(file: Path, notes: list[str]) -> tuple[str, dict[str, dict[str, Any]]]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
        table = tomllib.loads(text)
    except OSError:
        notes.append("It has no config.toml: its settings are not known.")
        return "", {}
    except tomllib.TOMLDecodeError as error:
        notes.append(f"Its config.toml is not valid TOML ({error}): its settings are not known.")
        return text, {}
    return text, {section: values for section, values in table.items() if isinstance(values, dict)}


def _records(file: Path, notes: list[str]) -> dict[int, dict[str, Any]]:
    """Step → record, in the order of the steps; of two records of a step, the later one."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    records: dict[int, dict[str, Any]] = {}
    lines = text.split("\n")
    unreadable = 0
    for line in lines[:-1]:  # what follows the last line break is still being written
        try:
            record = json.loads(line)
            step = record["step"]
            if type(step) is not int or not 0 <= step < LARGEST_STEP:
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            unreadable += bool(line.strip())
            continue
        records[step] = record
    if unreadable:
        lines_are, were = ("line", "was") if unreadable == 1 else ("lines", "were")
        notes.append(
            f"{unreadable} {lines_are} of its {file.name} could not be read and {were} passed over."
        )
    return dict(sorted(records.items()))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def _metric(record: dict[str, Any], key: str) -> float | None:
    if key.startswith("verdict/") and key not in record and "verdict/unscored" in record:
        return 0.0  # the share of a verdict that no response of the step got is not logged
    return _number(record.get(key))


def number(record: dict[str, Any], *keys: str) -> float | None:
    """A finite number somewhere in nested tables of a record, or None."""
    value: Any = record
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return _number(value)


def _rollouts(path: Path) -> dict[int, Path]:
    found = {}
    for file in (path / "rollouts").glob("step-*.parquet"):
        if match := re.fullmatch(r"step-(\d{1,15})\.parquet", file.name):
            found[int(match[1])] = file
    return dict(sorted(found.items()))

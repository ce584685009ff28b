"""The files of a log and what is in them, in pieces: Parquet, JSON lines and CSV.

A piece is its first row's number and its columns, as pyarrow arrays or, of JSON lines, as lists.
Only the columns that are wanted are read. Not here: what a column is for (roles.py).
"""

from __future__ import annotations

import contextlib
import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from equipoise.audit.log import AuditError
from equipoise.audit.readers import prime_rl, skyrl, slime
from equipoise.audit.readers.roles import Roles

SUFFIXES = (".parquet", ".jsonl", ".csv", slime.SUFFIX, skyrl.SUFFIX)
TEXT = "utf-8-sig"  # spreadsheets begin a file with a byte order mark, which is no part of a name
ROWS = 1 << 13  # responses held as text at a time
# roles of a CSV file
NUMBERS = ("reward", "length", "step", "advantage", "kept", "sampler_logprob", "trainer_logprob")

Piece = tuple[int, dict[str, Any]]


def files_of(path: Path) -> list[Path]:
    """The files of a log, in the order of the numbers in their names: a path, or a folder's."""
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise AuditError(
                f"{path} is not a log the audit reads: it must be one of {', '.join(SUFFIXES)}"
            )
        return [path]
    if not path.is_dir():
        raise AuditError(f"{path} does not exist: name a log file or a directory of them")
    folders = ("rollouts", "completions", "dumped_data")
    inner = next((path / name for name in folders if (path / name).is_dir()), path)
    if inner == path and all((path / name).is_file() for name in ("config.toml", "metrics.jsonl")):
        raise AuditError(
            f"{path}: the run wrote no rollouts: no step had rewards, or log.rollouts_every was 0"
        )
    if found := prime_rl.files(inner):
        return found
    found = [f for f in inner.iterdir() if f.suffix in SUFFIXES and f.is_file()]
    # slime's evaluations and SkyRL's sums over its own lie among rollouts
    found = [f for f in found if not slime.is_evaluation(f) and f.name != skyrl.SUMS]
    if not found:
        more = ""
        if inner.name == "rollouts":
            more = ": the run wrote no rollouts; train with --log.rollouts_every 1"
        elif any(inner.glob("checkpoint-*")):
            more = ": TRL keeps its completions only with GRPOConfig(log_completions=True)"
        raise AuditError(f"{inner} holds no {', '.join(SUFFIXES)} file{more}")
    return sorted(found, key=lambda f: ([int(n) for n in re.findall(r"\d+", f.name)], f.name))


def names_in(path: Path) -> list[str]:
    """The columns of a file; none for one that is empty."""
    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            return list(file.schema_arrow.names)
    if path.suffix == ".csv":
        with open(path, encoding=TEXT, newline="") as f:
            names = next(csv.reader(f), [])
        if len(names) == 1 and (";" in names[0] or "\t" in names[0]):
            raise AuditError(
                f"{path}: its columns must be separated by commas, and its first line has none: {names[0][:60]!r}"
            )
        return names
    return next((list(record) for _, record in records(path)), [])


def pieces(path: Path, roles: Roles) -> Iterator[Piece]:
    """The columns of these roles, some thousand rows at a time."""
    wanted = sorted({column for columns in roles.values() for column in columns})
    if path.suffix == ".jsonl":
        yield from _jsonl(path, wanted)
        return
    first = 0
    for batch in _parquet(path, wanted) if path.suffix == ".parquet" else _csv(path, roles):
        yield first, {name: batch.column(name) for name in batch.schema.names}
        first += batch.num_rows


def _parquet(path: Path, wanted: list[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(ROWS, columns=wanted)


def _csv(path: Path, roles: Roles) -> Iterator[pa.RecordBatch]:
    if "tokens" in roles:
        raise AuditError(
            f"{path}: a CSV file cannot hold token ids; name a length column, or write Parquet"
        )
    numbers = [c for role in NUMBERS for c in roles.get(role, ())]
    texts = [c for role in ("prompt", "group", "text", "finish") for c in roles.get(role, ())]
    with _csv_blocks(path, dict.fromkeys(numbers, pa.string())) as blocks:
        first = next(blocks, None)
    kinds = dict.fromkeys(texts, pa.string())
    for name in numbers:
        flags = first is not None and _are_flags(first.column(name))
        kinds[name] = pa.bool_() if flags else pa.float64()
    with _csv_blocks(path, kinds) as blocks:
        yield from blocks


@contextlib.contextmanager
def _csv_blocks(path: Path, kinds: dict[str, pa.DataType]) -> Iterator[Iterator[pa.RecordBatch]]:
    parsing = pyarrow.csv.ParseOptions(newlines_in_values=True)  # responses have several lines
    options = pyarrow.csv.ConvertOptions(column_types=kinds, include_columns=sorted(kinds))
    with pyarrow.csv.open_csv(path, parse_options=parsing, convert_options=options) as reader:
        yield iter(reader)


def _are_flags(texts: pa.Array) -> bool:
    return all(text.lower() in ("true", "false") for text in texts.unique().to_pylist())


def _jsonl(path: Path, wanted: list[str]) -> Iterator[Piece]:
    first, count = 0, 0
    held: dict[str, list[Any]] = {name: [] for name in wanted}
    for number, record in records(path):
        for name in wanted:
            if name not in record:
                raise AuditError(f"{path}, row {number}: no column {name}, which the first row has")
            held[name].append(record[name])
        count += 1
        if count - first == ROWS:
            yield first, held
            first, held = count, {name: [] for name in wanted}
    if count > first:
        yield first, held


def records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with open(path, encoding=TEXT) as f:
        for number, line in enumerate(f, 1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                if not line.strip():
                    continue
                raise AuditError(
                    f"{path}, row {number}: not a JSON object ({error.msg}); is the file whole?"
                ) from error
            if not isinstance(record, dict):
                raise AuditError(f"{path}, row {number}: {line.strip()[:40]} is not a JSON object")
            yield number, record

"""Rows that a program has already: a list of dicts, or what the package datasets has opened.

`fingerprint` says whether two are the same data: it reads every row of up to 2^17, and 4,096 rows
from all over larger ones. Not covered: streams without a length (`IterableDataset`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.tasks.row_reader import Row, RowError, Rows, Span
from equipoise.tasks.tables import Hub
from equipoise.tasks.task import TaskError

READ_WHOLE = 1 << 17
READ_OF_MORE = 1 << 12


class Listed:
    """A list of mappings, which are copied: a program may go on changing its own."""

    def __init__(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        for i, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise TaskError(
                    f"dataset[{i}] is {row!r:.80}: must be a dict with a prompt and an answer"
                )
        if not rows:
            raise TaskError("dataset has no rows: give at least one")
        self.name, self.count = name, len(rows)
        self._rows: list[Row] = [dict(row) for row in rows]
        self.size = sum(len(_text(row)) for row in self._rows)

    def where(self, row: int) -> str:
        return f"dataset[{row}]"

    def label(self, row: int, id_: str | None) -> str:
        return str(row + 1) if id_ is None else id_

    def load(self, spans: Sequence[Span]) -> list[Row]:
        return [row for start, stop in sorted(spans) for row in self._rows[start:stop]]


def rows_of(dataset: Any, name: str) -> Rows:
    """A list of dicts, a `datasets.Dataset`, or the train split of a `DatasetDict`."""
    if isinstance(dataset, Mapping):
        if "train" not in dataset:
            raise TaskError(
                f"dataset has the splits {', '.join(map(str, dataset))} and no train: give one of them"
            )
        dataset = dataset["train"]
    if hasattr(dataset, "with_format") and hasattr(dataset, "__len__"):
        return Hub(name, dataset)
    if isinstance(dataset, Sequence) and not isinstance(dataset, str | bytes):
        return Listed(name, dataset)
    raise TaskError(
        f"dataset is a {type(dataset).__name__}: must be a path, a list of dicts, or a datasets.Dataset with a length"
    )


def fingerprint(rows: Rows) -> str:
    """16 hexadecimal digits of the rows' contents, their order and their number."""
    if rows.count <= READ_WHOLE:
        spans = [(0, rows.count)]
    else:
        step = rows.count // READ_OF_MORE
        spans = [(i * step, i * step + 1) for i in range(READ_OF_MORE)]
    found = hashlib.sha256(str(rows.count).encode())
    for row in rows.load(spans):
        found.update(_text(row).encode("utf-8", "surrogatepass") + b"\n")
    return found.hexdigest()[:16]


def _text(row: Row) -> str:
    if isinstance(row, RowError):
        return str(row)
    return json.dumps(row, sort_keys=True, default=str, ensure_ascii=False)

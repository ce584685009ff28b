"""The schema of a data set's rows, and all problems of a file to evaluate on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from equipoise.tasks.data_files import open_rows
from equipoise.tasks.row_reader import RowError, Rows, Span
from equipoise.tasks.schema import Item, Schema, recognise
from equipoise.tasks.task import TaskError

LOOKED_AT, LOOKED_AT_BYTES = 1000, 1 << 26  # the rows in which one must tell the schema
MOST_PROBLEMS = 1 << 17


Recognise = Callable[[str, Mapping[str, Any], Mapping[str, str] | None, str | None], Schema]


def read_problems(
    name: str,
    columns: Mapping[str, str] | None = None,
    verifier: str | None = None,
    recognise: Recognise = recognise,
) -> list[tuple[str, Item]]:
    """Id and content of every row; all count: a benchmark with a hole is another benchmark."""
    rows = open_rows(name)
    if rows.count > MOST_PROBLEMS:
        raise TaskError(
            f"{name}: {rows.count:,} rows to evaluate on: must be at most {MOST_PROBLEMS:,}"
        )
    schema = recognised(rows, columns, verifier, recognise)
    items = []
    for number, row in enumerate(rows.load([(0, rows.count)])):
        try:
            if isinstance(row, RowError):
                raise row
            item = schema.read(row)
        except RowError as error:
            raise TaskError(
                f"{rows.where(number)}: {error}: every row of an evaluation file counts"
            ) from error
        items.append((rows.label(number, item.id), item))
    return items


def recognised(
    rows: Rows,
    columns: Mapping[str, str] | None,
    verifier: str | None = None,
    recognise: Recognise = recognise,
) -> Schema:
    """By the first row that has the columns of a schema; the others may have faults of their own."""
    fault = ""
    for number, row in enumerate(rows.load([first_rows(rows)])):
        try:
            if isinstance(row, RowError):
                raise TaskError(f"{rows.where(number)}: {row}")
            return recognise(rows.where(number), row, columns, verifier)
        except TaskError as error:
            fault = fault or str(error)
    raise TaskError(fault)


def first_rows(rows: Rows) -> Span:
    """Those by which a layout is recognised: some of them, and no more than some bytes."""
    within_bytes = LOOKED_AT_BYTES * rows.count // max(1, rows.size)
    return 0, max(1, min(rows.count, LOOKED_AT, within_bytes))

"""Rollout logs as they were written: our run directories, TRL's, verl's dumps, or any table.

Parquet, JSON lines and CSV are read in pieces, only the columns that are needed. What a column is
for follows from its name; `columns` says it where the name does not:

    prompt   which prompt a response answers (an id or the text)     step    the step it was trained in
    group    which group it belongs to, where a prompt can come twice in a step (default: the prompt)
    reward   a number, or a weighted sum of columns: "right+0.2*format"
    length   tokens in the response, or instead of it    tokens  its token ids    text  its text
    finish   why it ended: "length", true or 1, in capitals or not, means cut at the limit

Without a length or tokens, text is counted in characters, or in the tokens of `tokenizer`. TRL and
verl log text only, without the end-of-sequence token, so their lengths come out one short. Anything
that is not a number where there should be one, a group of one, an unknown column, a torn file:
AuditError, naming file, row (the first is 1) and column.

How it is done, and what is peculiar to each writer, is in `audit.readers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from equipoise.audit.columns import array
from equipoise.audit.log import AuditError, Log
from equipoise.audit.readers import ours
from equipoise.audit.readers.collect import LogCollector
from equipoise.audit.readers.files import files_of
from equipoise.audit.readers.roles import parse_columns
from equipoise.objective import Objective

__all__ = ["Paths", "Table", "from_table", "parse_columns", "read", "run_objective"]

Paths = str | Path | Sequence[str | Path]
Table: TypeAlias = "pa.Table | Mapping[str, Sequence[Any]]"


def read(
    paths: Paths, columns: Mapping[str, str] | None = None, tokenizer: str | None = None
) -> Log:
    """The log in these files and directories, all of it one run."""
    named = _named(paths)
    if not named:
        raise AuditError("no files: name at least one file or directory")
    collector = LogCollector(columns or {}, tokenizer)
    for path in named:
        for file in files_of(path):
            collector.add_file(file)
    return ours.as_trained(collector.log(named), named)


def from_table(
    table: Table, columns: Mapping[str, str] | None = None, tokenizer: str | None = None
) -> Log:
    """A log in memory: a pyarrow table, or a mapping of column names to values."""
    names = table.column_names if isinstance(table, pa.Table) else list(table)
    sizes = {name: len(table[name]) for name in names}
    if len(set(sizes.values())) > 1:
        raise AuditError(f"the columns have {sizes} rows: each must have one entry per response")
    collector = LogCollector(columns or {}, tokenizer)
    collector.add("the table", names, [(0, {name: array(table[name]) for name in names})])
    return collector.log()


def run_objective(paths: Paths) -> Objective | None:
    """The objective a run directory of ours was trained with; None for any other log."""
    return ours.run_objective(_named(paths))


def _named(paths: Paths) -> list[Path]:
    return [Path(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]

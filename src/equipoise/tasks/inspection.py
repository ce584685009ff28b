"""Every row of a data set looked at once: the account, verifiable answers, a clean copy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from equipoise import verifiers
from equipoise.tasks.check import Checker, Summary
from equipoise.tasks.row_reader import Rows
from equipoise.tasks.schema import UNGRADED, Item
from equipoise.tasks.task import TaskError
from equipoise.verifiers.code import judge

AT_ONCE = 1 << 14  # rows


def inspect(rows: Rows, checker: Checker, golds: bool, write: str | Path | None) -> Summary:
    """`golds`: ask the verifiers about the answers. `write` gets the rows that the checker keeps."""
    summary = checker.summary
    asked = verified = 0
    with ExitStack() as stack:
        file = None if write is None else stack.enter_context(_new_file(write))
        for start in range(0, rows.count, AT_ONCE):
            kept: list[tuple[int, Item]] = []
            for number, row in enumerate(
                rows.load([(start, min(start + AT_ONCE, rows.count))]), start
            ):
                if (found := checker.side(number, row)) is not None:
                    kept.append((number, found[1]))
                    if file is not None:
                        file.write(json.dumps(row, default=str) + "\n")
            kept = [(number, item) for number, item in kept if item.verifier != UNGRADED]
            if golds:
                bad = unverifiable([item for _, item in kept])
                asked += len(kept)
                verified += len(kept) - len(bad)
                for k, why in bad.items():
                    summary.example("not verifiable", f"{rows.where(kept[k][0])}: {why}")
    if asked:
        summary.verifiable = verified / asked
    return summary


def unverifiable(items: Sequence[Item]) -> dict[int, str]:
    """Why, for each item whose answer its verifier cannot use."""
    math = [k for k, item in enumerate(items) if item.verifier == "math"]
    found = dict(zip(math, verifiers.check_golds([items[k].answer for k in math]), strict=True))
    for k, item in enumerate(items):
        if item.verifier == "code":
            try:
                judge.tests(item.tests)
            except judge.TestsError as error:
                found[k] = str(error)
    return {k: why for k, why in sorted(found.items()) if why is not None}


def _new_file(path: str | Path) -> Any:
    if not str(path).endswith(".jsonl"):
        raise TaskError(f"write = {path}: must be a name that ends with .jsonl")
    try:
        return open(path, "x", encoding="utf-8")
    except OSError as error:
        raise TaskError(f"{path}: cannot be written: {error.strerror}") from error

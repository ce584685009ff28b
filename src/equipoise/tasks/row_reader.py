"""What a reader of rows gives: rows by spans, and errors in the place of bad rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

Span = tuple[int, int]


class RowError(ValueError):
    """Why a row cannot be used: `label` is what the summary counts it under."""

    def __init__(self, label: str, reason: str) -> None:
        super().__init__(reason)
        self.label = label


Row = dict[str, Any] | RowError


class Loaded(Protocol):
    """Rows of the spans asked for, one after the other."""

    def __len__(self) -> int: ...

    def __getitem__(self, k: int) -> Row: ...

    def __iter__(self) -> Iterator[Row]: ...


class Rows(Protocol):
    """`count` rows of about `size` bytes in memory. `where` says where a row stands; `label` is its
    own id, or else its place, under the name of its file where there are several: files number
    their rows alike.
    """

    name: str
    count: int
    size: int

    def where(self, row: int) -> str: ...

    def label(self, row: int, id_: str | None) -> str: ...

    def load(self, spans: Sequence[Span]) -> Loaded: ...


def file_names(paths: Sequence[Path]) -> list[str]:
    """What `label` puts before an id: nothing for a single file, else what sets the paths apart."""
    if len(paths) == 1:
        return [""]
    above = os.path.commonpath([path.parent for path in paths])
    return [f"{os.path.relpath(path, above)}:" for path in paths]

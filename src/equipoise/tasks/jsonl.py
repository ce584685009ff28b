"""JSONL, plain or gzipped. A file is scanned once for its line ends (16 bytes a row are kept, about
a second per gigabyte) and then read by place; gzip is unpacked into a nameless temporary file
first.

A line that is not UTF-8, JSON or an object is a RowError in its place; a file whose last line is
not JSON was cut short and is refused. Not covered: a file that changes while it is read, except
that a row past its new end is refused.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.files import not_there
from equipoise.tasks.row_reader import Row, RowError, Span, file_names
from equipoise.tasks.task import TaskError

SCAN = 1 << 24  # bytes
BOM = b"\xef\xbb\xbf"


class Jsonl:
    def __init__(self, name: str, paths: Sequence[Path]) -> None:
        self.name, self._paths, self._names = name, list(paths), file_names(paths)
        self._files = [_opened(path) for path in paths]
        scanned = [_lines(file) for file in self._files]
        self._first = np.cumsum([0, *(len(starts) for starts, _, _ in scanned)])
        self._start = np.concatenate([s[0] for s in scanned])
        self._length = np.concatenate([s[1] for s in scanned])
        self._line = np.concatenate([s[2] for s in scanned])
        self.count, self.size = len(self._start), int(self._length.sum())
        if not self.count:
            raise TaskError(f"{name}: has no rows")
        for last in self._first[1:] - 1:
            row = self.row(int(last)) if last >= 0 else {}
            if isinstance(row, RowError) and row.label == "not JSON":
                raise TaskError(
                    f"{self.where(int(last))}: {row}; the file is cut short, or not JSONL"
                )

    def where(self, row: int) -> str:
        return f"{self._paths[self._file(row)]}, line {self._line[row]}"

    def label(self, row: int, id_: str | None) -> str:
        return self._names[self._file(row)] + (str(self._line[row]) if id_ is None else id_)

    def load(self, spans: Sequence[Span]) -> _Lines:
        return _Lines(self, np.concatenate([np.arange(*span) for span in spans]))

    def row(self, row: int) -> Row:
        start, length = int(self._start[row]), int(self._length[row])
        data = os.pread(self._files[self._file(row)].fileno(), length, start)
        if len(data) != length:
            raise TaskError(f"{self.where(row)}: the file has become shorter since it was opened")
        try:
            found = json.loads((data.removeprefix(BOM) if start == 0 else data).decode())
        except UnicodeDecodeError as error:
            return RowError(
                "not UTF-8", f"byte 0x{data[error.start]:02x} at place {error.start} is not UTF-8"
            )
        except RecursionError:
            return RowError("not JSON", "nested too deep to be read")
        except ValueError as error:  # a number may have too many digits for Python
            return RowError("not JSON", f"not valid JSON: {getattr(error, 'msg', error)}")
        if not isinstance(found, dict):
            return RowError(
                "not an object",
                f'there is no "prompt": the row is {json.dumps(found)[:40]}, not an object{_unpack(found)}',
            )
        return found

    def _file(self, row: int) -> int:
        return int(np.searchsorted(self._first, row, "right")) - 1 if len(self._files) > 1 else 0


def _unpack(found: Any) -> str:
    """What to do about a file that is one JSON list of the rows."""
    is_list = isinstance(found, list) and found and isinstance(found[0], dict)
    return "; write each object of the list on a line of its own" if is_list else ""


class _Lines:
    """Rows read from the file each time: JSONL is cheap to reach, and memory is not."""

    def __init__(self, source: Jsonl, numbers: np.ndarray) -> None:
        self._source, self._numbers = source, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, k: int) -> Row:
        return self._source.row(int(self._numbers[k]))

    def __iter__(self) -> Iterator[Row]:
        return (self._source.row(int(number)) for number in self._numbers)


def _opened(path: Path) -> Any:
    try:
        if not path.name.endswith(".gz"):
            return path.open("rb")
        unpacked = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the reader)
        with gzip.open(path, "rb") as packed:
            while part := packed.read(SCAN):
                unpacked.write(part)
        unpacked.flush()
        return unpacked
    except FileNotFoundError:
        raise TaskError(not_there(path)) from None
    except (OSError, EOFError, zlib.error) as error:
        raise TaskError(f"{path}: cannot be read: {error}") from error


def _lines(file: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start, length and number of every line but blank ones; U+2028 ends none."""
    ends, at = [], 0
    while part := os.pread(file.fileno(), SCAN, at):
        ends.append(np.flatnonzero(np.frombuffer(part, np.uint8) == 10) + at)
        at += len(part)
    stop = np.concatenate([*ends, [at]]).astype(np.int64)
    start = np.concatenate([[0], stop[:-1] + 1])
    length = (stop - start).astype(np.int32)
    short = np.flatnonzero((length > 0) & (length <= 4))
    blank = [k for k in short if not os.pread(file.fileno(), int(length[k]), int(start[k])).strip()]
    length[blank] = 0
    kept = np.flatnonzero(length)
    return start[kept], length[kept], (kept + 1).astype(np.int32)

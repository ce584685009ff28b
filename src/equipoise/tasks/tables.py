"""Rows that are stored by columns: Parquet files, and what the package datasets has opened.

Parquet opens by its footers. A span costs the decoding of its row group up to the span, in small
batches: memory does not grow with the size of a row group, but time does. Files with row groups of
1,000 to 10,000 rows are read fastest.

A row with a text that is not UTF-8 is a RowError in its place. A file without its footer, or with a
row group that cannot be decoded, is refused: half a file is no data set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.files import not_there
from equipoise.tasks.row_reader import Row, RowError, Span, file_names
from equipoise.tasks.task import TaskError

BATCH = 4096  # rows decoded at once
# bytes read at once; a memory map would be faster, and look like memory that grows with the file
BUFFER = 1 << 20


class Parquet:
    def __init__(self, name: str, paths: Sequence[Path]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.name, self._paths, self._names = name, list(paths), file_names(paths)
        self._files: list[Any] = []
        groups: list[tuple[int, int, int]] = []
        self.size = 0
        for number, path in enumerate(paths):
            try:
                file = pq.ParquetFile(path, buffer_size=BUFFER, pre_buffer=False)
            except FileNotFoundError:
                raise TaskError(not_there(path)) from None
            except (OSError, pa.ArrowException) as error:
                raise TaskError(
                    f"{path}: cannot be read as Parquet: {first_line(error)}; get the file whole"
                ) from error
            self._files.append(file)
            for group in range(file.num_row_groups):
                meta = file.metadata.row_group(group)
                groups.append((number, group, meta.num_rows))
                self.size += meta.total_byte_size
        self._groups = [(number, group) for number, group, _ in groups]
        self._first = np.cumsum([0, *(rows for _, _, rows in groups)])
        self._file_first = np.cumsum([0, *(file.metadata.num_rows for file in self._files)])
        self.count = int(self._first[-1])
        if not self.count:
            raise TaskError(f"{name}: has no rows")

    def where(self, row: int) -> str:
        number = int(np.searchsorted(self._file_first, row, "right")) - 1
        return f"{self._paths[number]}, row {row - self._file_first[number] + 1}"

    def label(self, row: int, id_: str | None) -> str:
        number = int(np.searchsorted(self._file_first, row, "right")) - 1
        return self._names[number] + (
            str(row - self._file_first[number] + 1) if id_ is None else id_
        )

    def load(self, spans: Sequence[Span]) -> _Table:
        wanted = np.concatenate([np.arange(*span) for span in sorted(spans)])
        group = np.searchsorted(self._first, wanted, "right") - 1
        parts = [
            part
            for g in np.unique(group)
            for part in self._taken(int(g), wanted[group == g] - self._first[g])
        ]
        return _Table(self.name, parts)

    def _taken(self, g: int, inside: np.ndarray) -> Iterator[Any]:
        """Rows of one row group, copied out batch by batch: a slice would keep the whole batch."""
        import pyarrow as pa

        number, group = self._groups[g]
        seen = 0
        try:
            for batch in self._files[number].iter_batches(BATCH, row_groups=[group]):
                here = inside[(inside >= seen) & (inside < seen + len(batch))] - seen
                if len(here):
                    # Not pa.array(here): to convert from numpy, pyarrow would import pandas,
                    # for a third of a second.
                    places = pa.Array.from_buffers(
                        pa.int64(), len(here), [None, pa.py_buffer(here.astype(np.int64))]
                    )
                    yield pa.Table.from_batches([batch]).take(places)
                seen += len(batch)
                if seen > inside[-1]:
                    return
        except (OSError, pa.ArrowException) as error:
            where = f"{self.where(int(self._first[g]))} and on (row group {group + 1})"
            raise TaskError(
                f"{where}: cannot be read: {first_line(error)}; get the file whole"
            ) from error


class _Table:
    def __init__(self, name: str, parts: Sequence[Any]) -> None:
        import pyarrow as pa

        try:
            self._table = pa.concat_tables(parts, promote_options="default").combine_chunks()
        except pa.ArrowException as error:
            raise TaskError(
                f"{name}: its files disagree about their columns: {first_line(error)}"
            ) from error

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, k: int) -> Row:
        try:
            return dict(self._table.slice(k, 1).to_pylist()[0])
        except UnicodeDecodeError as error:
            byte = f"byte 0x{error.object[error.start]:02x} at place {error.start} of a text"
            return RowError("not UTF-8", f"{byte} is not UTF-8")

    def __iter__(self) -> Iterator[Row]:
        for start in range(0, len(self), BATCH):
            try:
                yield from self._table.slice(start, BATCH).to_pylist()
            except UnicodeDecodeError:
                yield from (self[k] for k in range(start, min(start + BATCH, len(self))))


class Hub:
    """A data set that the package datasets has opened: a memory-mapped Arrow table."""

    def __init__(self, name: str, dataset: Any) -> None:
        self.name, self.count = name, len(dataset)
        self.size = int(dataset.data.nbytes)
        self._dataset = dataset.with_format("arrow")
        if not self.count:
            raise TaskError(f"{name}: has no rows")

    def where(self, row: int) -> str:
        return f"{self.name}, row {row + 1}"

    def label(self, row: int, id_: str | None) -> str:
        return str(row + 1) if id_ is None else id_

    def load(self, spans: Sequence[Span]) -> _Table:
        return _Table(self.name, [self._dataset[start:stop] for start, stop in sorted(spans)])


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]

"""An evaluation on disk: its settings, every response with its verdict, and the result.

    settings.json                       what was asked for; a folder holds one evaluation of one model
    samples/BENCHMARK/chunk-N.parquet   a row per response: benchmark, prompt_id, sample, response, length, finish,
                                        verdict, reason, answer, value, lenient, level, subject;
                                        `lenient` is the verdict by the lenient rules of mathematics
    result.json, result.md              the metrics, made anew from the samples whenever they change

Files appear whole or not at all, so a chunk that is there is done, and an evaluation killed at any
time goes on with the first that is missing. What a killed writer leaves is a name that begins with
a dot; the next writer replaces it.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from equipoise.files import whole

COLUMNS = {
    "benchmark": "string", "prompt_id": "string", "sample": "int32", "response": "string", "length": "int32",
    "finish": "string", "verdict": "string", "reason": "string", "answer": "string", "value": "float64",
    "lenient": "string", "level": "string", "subject": "string",
}  # fmt: skip

Row = dict[str, Any]


class EvaluationError(RuntimeError):
    """An evaluation that cannot start or go on; the message is one sentence for the user."""


class Folder:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._settings = self.path / "settings.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes out for as long as the block runs, however it ends."""
        with _explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            file = open(self.path / ".lock", "a")  # noqa: SIM115 (closed below)
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise EvaluationError(
                    f"{self.path}: another process writes to it; wait for it, or choose another --out"
                ) from None
            yield

    def settings(self) -> dict[str, Any] | None:
        """None where the folder holds no evaluation."""
        try:
            found = json.loads(self._settings.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise EvaluationError(
                f"{self._settings}: cannot be read: {error}; restore or delete it"
            ) from error
        if not isinstance(found, dict) or not isinstance(found.get("benchmarks"), dict):
            raise EvaluationError(
                f"{self._settings}: is not the settings of an evaluation; choose another --out"
            )
        return found

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        self.write("settings.json", json.dumps(settings, indent=2) + "\n")

    def write(self, name: str, text: str) -> None:
        with _explained(self.path), whole(self.path / name, durable=True) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def has_chunk(self, benchmark: str, number: int) -> bool:
        return self._chunk(benchmark, number).is_file()

    def write_chunk(self, benchmark: str, number: int, rows: Sequence[Row]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kinds = pa.schema([(name, getattr(pa, kind)()) for name, kind in COLUMNS.items()])
        table = pa.Table.from_pylist([{**row, **_texts(row)} for row in rows], schema=kinds)
        path = self._chunk(benchmark, number)
        with _explained(self.path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole(path, durable=True) as temporary:
                pq.write_table(table, temporary)

    def chunk(self, benchmark: str, number: int) -> list[Row]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self._chunk(benchmark, number)
        try:
            return list(pq.read_table(path).to_pylist())
        except FileNotFoundError:
            raise EvaluationError(
                f"{path}: is missing: the evaluation is not finished; run it again"
            ) from None
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise EvaluationError(
                f"{path}: cannot be read: {reason}; delete it and evaluate again"
            ) from error

    def _chunk(self, benchmark: str, number: int) -> Path:
        return self.path / "samples" / benchmark / f"chunk-{number:05d}.parquet"


def _texts(row: Row) -> dict[str, str | None]:
    """Parquet holds UTF-8; a lone surrogate in a response becomes a question mark."""
    return {k: v.encode("utf-8", "replace").decode() for k, v in row.items() if isinstance(v, str)}


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EvaluationError(
            f"{path}: cannot be written: {error.strerror or error}; make room or choose another --out, and run it again"
        ) from error

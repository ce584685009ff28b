"""What a run directory knows of itself, in run.json: id, place, data, last checkpoint.

The last checkpoint is written down outside of the checkpoints, so that a resumed run can tell one
that was deleted from one that was never written. Runs of earlier versions have no run.json.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from equipoise.train.folder import RunError, RunFolder, replace


@dataclass
class Record:
    """`id` names the run to trackers; `data`: the fingerprints of tasks/fingerprint.py."""

    id: str
    place: str  # the directory, as a whole path
    checkpoint: int = 0  # step of the last one that was written
    data: list[dict[str, str]] = field(default_factory=list)

    def wrote(self, folder: RunFolder, step: int) -> None:
        """A checkpoint of `step` is there, and is the last."""
        self.checkpoint = step
        self.write(folder)

    def write(self, folder: RunFolder) -> None:
        replace(folder.record, json.dumps(dataclasses.asdict(self), indent=2) + "\n")


def new_record(folder: RunFolder) -> Record:
    return Record(secrets.token_hex(4), str(folder.path.resolve()))


def read_record(folder: RunFolder) -> Record | None:
    """None for a run of an earlier version."""
    try:
        found = json.loads(folder.record.read_text(encoding="utf-8"))
        return Record(**found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise RunError(
            f"{folder.record}: cannot be read: {error}; restore it, or delete it to go on without"
        ) from error


def here(record: Record, folder: RunFolder) -> Record:
    """The record of a resumed run. A moved one stays who it was; a copy whose original is still
    there becomes another run, so that the two do not write to one run of a tracker.
    """
    now = str(folder.path.resolve())
    if record.place == now:
        return record
    return dataclasses.replace(
        record, place=now, id=secrets.token_hex(4) if _is_original(record) else record.id
    )


def _is_original(record: Record) -> bool:
    try:
        other: Any = read_record(RunFolder(record.place))
    except RunError:
        return False
    return other is not None and other.id == record.id

"""Files that are no tables, as columns: prime-rl's episodes, slime's torch files, SkyRL's dumps.

The columns have the names that roles.py knows,
so that everything after it is the same for every writer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.audit.readers import prime_rl, skyrl, slime
from equipoise.audit.readers.files import names_in, records


@dataclass(frozen=True)
class Dump:
    """The responses in a file, and what its writer leaves out of it."""

    writer: str
    columns: dict[str, list[Any]]
    note: str = ""
    rates: bool = True  # False where advantages stand for rewards


def dump_of(path: Path) -> Dump | None:
    """What a file holds, where it is one of these; None for a table."""
    if path.suffix == slime.SUFFIX:
        return Dump("slime", slime.columns(path))
    if path.suffix == skyrl.SUFFIX:
        return Dump("SkyRL", skyrl.columns(path), skyrl.NO_REWARDS, rates=False)
    if path.suffix != ".jsonl":
        return None
    names = set(names_in(path))
    if names.issuperset(prime_rl.COLUMNS):
        return Dump("prime-rl", prime_rl.columns(path, records(path)))
    if names.issuperset(skyrl.EVALUATION):
        return Dump("SkyRL", skyrl.evaluation_columns(path, records(path)), skyrl.IS_EVALUATION)
    return None

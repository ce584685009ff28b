"""Files that are there whole or not at all, for a reader at any time and after a kill at any time."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Where to write; the file takes its name when the block ends, and is gone when that raises.

    With `durable` it is on the disk before it has its name,
    so that a power cut leaves the old file or the new one.
    """
    temporary = path.with_name(f".{path.name}.writing")
    try:
        yield temporary
        if durable:
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def not_there(path: str | Path) -> str:
    """The sentence for a file that is missing: with the nearest name beside it, or the folder that is missing too."""
    path = Path(path)
    said, folder = f"{path}: there is no such file", path.parent
    if not folder.is_dir():
        absent = (
            f"nor a folder {folder}"
            if path.is_absolute()
            else f"{Path.cwd()} has no folder {folder}"
        )
        return f"{said}; {absent}"
    near = nearest(path)
    if near:
        return f"{said}; did you mean {near}?"
    # a name in a configuration is seen from where equipoise starts, not from the configuration
    return said if path.is_absolute() else f"{said} in {Path.cwd() / folder}"


def nearest(path: Path, pattern: str = "*") -> Path | None:
    """What is there in the place of a missing `path`, by its name; None where no name is near."""
    names = [there.name for there in path.parent.glob(pattern)]
    near = difflib.get_close_matches(path.name, names, n=1)
    return path.with_name(near[0]) if near else None

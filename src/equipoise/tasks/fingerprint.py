"""Fingerprints of the data a task reads, by which a resumed run knows that they are still the same.

A file is known by the SHA-256 of its bytes; one above `WHOLE` bytes by its size and `PIECES` pieces
from all over it, so that it costs a second and not minutes. Whatever else prompts come from (the
hub, reasoning-gym, a list) is known by the first prompts of its stream: a row more or less changes
the order of them all.

Not covered: a row of a large file that was edited in place, between the pieces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from equipoise.tasks.data_files import files_of
from equipoise.tasks.task import Task

WHOLE = 1 << 28
PIECES, PIECE = 64, 1 << 20
PROMPTS = 64  # of the stream

Fingerprint = dict[str, str]  # option, file, sha256


def fingerprints(task: Task, held_out: str = "", avoid: Sequence[str] = ()) -> list[Fingerprint]:
    """Of every file, in the order they are read, with the option that names it."""
    named = [
        ("task.name", task.name),
        ("task.held_out", held_out),
        *(("task.avoid", name) for name in avoid),
    ]
    found: list[Fingerprint] = []
    for option, name in named:
        files = files_of(name)
        found += [{"option": option, "file": str(file), "sha256": of_file(file)} for file in files]
    if not any(one["option"] == "task.name" for one in found):
        found.insert(0, {"option": "task.name", "file": task.name, "sha256": of_stream(task)})
    return found


def of_file(path: Path) -> str:
    size = path.stat().st_size
    with open(path, "rb") as file:
        if size <= WHOLE:
            return hashlib.file_digest(file, "sha256").hexdigest()
        found = hashlib.sha256(f"{size}".encode())
        for k in range(PIECES):
            file.seek((size - PIECE) * k // (PIECES - 1))  # the first and the last byte are in it
            found.update(file.read(PIECE))
        return found.hexdigest()


def of_stream(task: Task) -> str:
    found = hashlib.sha256()
    for i in range(PROMPTS):
        prompt = task.prompt(i)
        found.update(repr((prompt.id, prompt.text, prompt.answer)).encode("utf-8", "surrogatepass"))
    return found.hexdigest()


def changed(before: Sequence[Fingerprint], now: Sequence[Fingerprint]) -> str | None:
    """What is another than it was, as the middle of a sentence; None where nothing is.
    A file may lie elsewhere.
    """
    for option in dict.fromkeys(one["option"] for one in (*before, *now)):
        was, is_ = ([one for one in side if one["option"] == option] for side in (before, now))
        for old, new in zip(was, is_, strict=False):
            if old["sha256"] != new["sha256"]:
                return f"{new['file']} ({option}) is not what it was"
        if len(was) != len(is_):
            return f"{option} had {len(was)} files and has {len(is_)} now"
    return None

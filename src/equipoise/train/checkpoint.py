"""Checkpoints that are whole or not there: written aside, synced to the disk, then renamed.

`step-N/` holds the weights in Hugging Face format (plain AutoModelForCausalLM opens it) and
`trainer.pt`: optimizer, RNG, task position and objective state. Both are read as plain data
(tensors, numbers, texts): a checkpoint somebody else prepared can hold wrong numbers, but it cannot
run anything. `SHA256SUMS` tells damaged files from whole ones, to `fault` and to `sha256sum -c`.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise import policy as models
from equipoise.train.folder import RunError

STATE = "trainer.pt"
SUMS = "SHA256SUMS"


def steps(folder: Path) -> list[int]:
    """The steps of the complete checkpoints, oldest first."""
    return [step for step in all_steps(folder) if (folder / f"step-{step}" / STATE).is_file()]


def all_steps(folder: Path) -> list[int]:
    """Those of which a file is missing as well."""
    found = (
        (re.fullmatch(r"step-(\d+)", p.name) for p in folder.iterdir()) if folder.is_dir() else ()
    )
    return sorted(int(m[1]) for m in found if m)


def fault(folder: Path, step: int) -> str | None:
    """What is wrong with a checkpoint, to end a sentence; None for a whole one. Reads it all."""
    path = folder / f"step-{step}"
    if not path.is_dir():
        return "is missing"
    sums = _sums(path)
    for name in (STATE, *sums):
        if not (path / name).is_file():
            return f"is damaged: {name} is missing"
    for name, digest in sums.items():
        if _digest(path / name) != digest:
            return f"is damaged: {name} is not what was written"
    if not sums and not zipfile.is_zipfile(path / STATE):  # of an earlier version
        return f"is damaged: {STATE} is cut short or overwritten"
    return None


def save(
    folder: Path,
    step: int,
    policy: models.Policy,
    state: dict[str, Any],
    keep: int,
    weights: dict[str, Tensor] | None = None,
    best: int | None = None,
) -> Path:
    """Write `step-N` whole or not at all; keep the `best` and `keep` earlier ones."""
    folder.mkdir(parents=True, exist_ok=True)
    target, temporary = folder / f"step-{step}", folder / f".writing-step-{step}"
    discard_unfinished(folder)
    try:
        models.save(policy, temporary, weights)
        with open(temporary / STATE, "wb") as f:
            torch.save({**state, "step": step, "rng": rng_state()}, f)
        _write_sums(temporary)
        # On the disk before it has its name: after a power cut a renamed folder of empty files
        # would look whole.
        _sync(temporary)
        if target.exists():  # the same step again, after a resume from an older one
            _remove(target)
        temporary.rename(target)
        _sync_directory(folder)
    except Exception as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _disk_error(error) or error from error
    # Only now that the new one is whole may an old one go.
    for old in steps(folder)[: -keep - 1]:
        if old != best:
            _remove(folder / f"step-{old}")
    return target


def load(folder: Path, step: int, policy: models.Policy) -> dict[str, Any]:
    """Weights into the policy and RNG in place; returns the rest of the state."""
    path = folder / f"step-{step}"
    if not zipfile.is_zipfile(path / STATE):
        raise RunError(
            f"{path / STATE}: is missing, cut short or overwritten; use another checkpoint"
        )
    models.restore(policy, path)
    try:
        # mmap: a process that takes its shard of the optimizer's state reads no more.
        state: dict[str, Any] = torch.load(
            path / STATE, map_location="cpu", weights_only=True, mmap=True
        )
    except pickle.UnpicklingError as error:
        raise RunError(
            f"{path / STATE}: it holds more than tensors, numbers and texts, and is not loaded, because such a file "
            f"can run commands; its weights can be used: begin a new run with --model.name {path}"
        ) from error
    set_rng_state(state["rng"])
    return state


def discard_after(folder: Path, step: int) -> None:
    """Remove the checkpoints of later steps: what comes after `step` will be another run's."""
    for later in all_steps(folder):
        if later > step:
            _remove(folder / f"step-{later}")


def discard_unfinished(folder: Path) -> None:
    for path in (*folder.glob(".writing-*"), *folder.glob(".removing-*")):
        shutil.rmtree(path)


def rng_state() -> dict[str, Any]:
    """As plain data: an array of numpy's cannot be loaded as such."""
    state = np.random.get_state()
    assert isinstance(state, tuple)
    name, words, *rest = state
    return {
        "python": random.getstate(),
        "numpy": (name, words.tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    name, words, *rest = state["numpy"]
    np.random.set_state((name, np.array(words, np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def _write_sums(folder: Path) -> None:
    """In the form of the tool sha256sum."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    (folder / SUMS).write_text(
        "".join(f"{_digest(path)}  {path.relative_to(folder)}\n" for path in files)
    )


def _sums(folder: Path) -> dict[str, str]:
    """Digests by file; none for a checkpoint of an earlier version."""
    file = folder / SUMS
    lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _disk_error(error: BaseException | None) -> OSError | None:
    """A full disk as the OSError it is: safetensors and tokenizers put its number into the text of
    an exception of their own, torch.save raises another on top of it.
    """
    if error is None or isinstance(error, OSError):
        return error
    number = re.search(r"\(os error (\d+)\)", str(error))
    if number is None:
        return _disk_error(error.__context__)
    return OSError(int(number[1]), os.strerror(int(number[1])))


def _remove(path: Path) -> None:
    """Rename first: a checkpoint that is being deleted must not look complete."""
    doomed = path.with_name(f".removing-{path.name}")
    path.rename(doomed)
    shutil.rmtree(doomed)


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as f:
                os.fsync(f.fileno())
    for path in (folder, *(p for p in folder.rglob("*") if p.is_dir())):
        _sync_directory(path)


def _sync_directory(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Whose a run directory is: a new run wants a new one, a resumed run the settings it began with."""

from __future__ import annotations

from equipoise.config import Config, load
from equipoise.train.folder import RunError, RunFolder, read_lines

# What a resumed run may set anew: nothing that changes the weights it ends with.
MAY_CHANGE = ("train.steps", "train.out", "train.checkpoint_every", "train.keep", "train.max_", "log.", "eval.",
              "reward.workers", "reward.max_unscored", "reward.judge")  # fmt: skip


def check_claim(folder: RunFolder, config: Config, resume: bool) -> None:
    """A new run wants a new directory, a resumed one the settings it began with."""
    begun = folder.config.exists()
    if begun and not resume:
        steps = [r["step"] for r in read_lines(folder.metrics)]
        raise RunError(
            f"{folder.path}: holds a run already (at step {steps[-1] if steps else 0}); "
            f"--resume goes on with it, --train.out DIR starts another"
        )
    if resume and not begun:
        raise RunError(f"{folder.path}: holds no run to resume; start it without --resume")
    if resume:
        changed = differences(load(folder.config), config)
        if changed:
            raise RunError(f"{folder.path}: a resumed run keeps its settings, but these differ: {'; '.join(changed)}")


def differences(old: Config, new: Config) -> list[str]:
    a, b = old.flat(), new.flat()
    free = MAY_CHANGE if old.optim.schedule == "constant" else MAY_CHANGE[1:]  # a schedule depends on train.steps
    return [f"{k} was {a[k]!r}, now {b[k]!r}" for k in a if a[k] != b[k] and not k.startswith(free)]

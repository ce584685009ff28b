"""What a program may hang into a run, called after steps, evaluations and checkpoints.

A callback returns True to ask for the end: the step is finished, its evaluation and its checkpoint
are written, and `train` returns as if the run had been that long. It sees numbers and paths; what
it changes in them changes nothing. Under torchrun the first process alone calls them, and the
others stop with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.config import ConfigError
from equipoise.objective.choice import did_you_mean

EVENTS = ("on_step", "on_evaluation", "on_checkpoint")


class TrainerCallback:
    """Override what is needed. Any object with one of these methods serves as well."""

    def on_step(self, step: int, metrics: Mapping[str, float]) -> bool | None:
        """After an update; `metrics` are those of the step's line in metrics.jsonl."""

    def on_evaluation(self, step: int, result: Mapping[str, Any]) -> bool | None:
        """After an evaluation, also the one before step 1; `result`: its line in eval.jsonl."""

    def on_checkpoint(self, step: int, path: Path) -> bool | None:
        """After a checkpoint is whole; `path` is a folder in Hugging Face format."""


class Callbacks:
    """All of a run's. `stopped_by` names the first that asked for the end."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        for callback in callbacks:
            _check(callback)
        self.callbacks = list(callbacks)
        self.stopped_by = ""

    def call(self, event: str, step: int, what: Any) -> None:
        for callback in self.callbacks:
            method = getattr(callback, event, None)
            answer = None if method is None else method(step, what)
            # A comparison of numpy's numbers gives a bool that is not True.
            if isinstance(answer, bool | np.bool_) and answer and not self.stopped_by:
                self.stopped_by = _name(callback)


def _check(callback: Any) -> None:
    """A method that nobody calls is a mistake that nobody sees."""
    if isinstance(callback, type):
        raise ConfigError(
            f"callbacks: {_name(callback)} is a class: must be an object, {_name(callback)}()"
        )
    methods = [name for name in dir(callback) if name.startswith("on_")]
    for name in methods:
        if name not in EVENTS:
            hint = did_you_mean(name, EVENTS)
            raise ConfigError(
                f"callbacks: {_name(callback)}.{name} is never called;{hint} ({', '.join(EVENTS)})"
            )
    if not methods:
        raise ConfigError(
            f"callbacks: {_name(callback)} has none of {', '.join(EVENTS)}: must have one at least"
        )


def _name(callback: Any) -> str:
    return callback.__name__ if isinstance(callback, type) else type(callback).__name__

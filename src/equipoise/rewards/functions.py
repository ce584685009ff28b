"""A user's own reward function, `module:function` as f(prompt, response, row) -> float | Verdict, in worker processes.

It keeps the caller's rights, environment and import path, gets a deadline, and cannot take the run with it: an
exception in it is a `crashed` verdict whose reason is the traceback. Every worker imports the module for itself, so
what the module keeps in memory is not shared between calls.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from equipoise.rewards.pool import Outcome
from equipoise.rewards.pools import pool
from equipoise.rewards.verdict import Verdict

IMPORT_SECONDS = 120.0


class FunctionError(ValueError):
    """A function that cannot be called; the message is one sentence for the user."""


def check(name: str, workers: int = 0) -> None:
    """Import the function where it will run, and refuse what cannot be called."""
    verdict = pool("user", workers).submit(name, None, seconds=IMPORT_SECONDS).result()
    if isinstance(verdict, Verdict):
        why = verdict.reason.strip().splitlines()[-1]
        raise FunctionError(f'"{name}" cannot be imported as module:function: {why}')


def submit(
    name: str, prompt: str, response: str, row: Mapping[str, Any], *, seconds: float, workers: int = 0
) -> Future[Outcome]:
    try:
        return pool("user", workers).submit(name, [prompt, response, _plain(row)], seconds=seconds)
    except TypeError as error:
        raise FunctionError(f"{name}: its row cannot be sent to another process: {error}") from error


def call(name: str, arguments: list[Any] | None) -> Verdict | float:
    """In the worker."""
    function = _imported(name)
    return 1.0 if arguments is None else function(*arguments)


@functools.cache
def _imported(name: str) -> Callable[..., Verdict | float]:
    module, _, attribute = name.partition(":")
    function = getattr(importlib.import_module(module), attribute)
    if not callable(function):
        raise TypeError(f"it is not a function but {function!r}")
    return function  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """A row as JSON has it: arrays and numbers of numpy and torch become lists and numbers, tuples become lists."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value.tolist() if hasattr(value, "tolist") else value

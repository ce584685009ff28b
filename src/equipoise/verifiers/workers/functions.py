"""A user's own reward function, `module:function` or `file.py:function`, in worker processes.

Two forms are taken, each plain or async: f(prompt, response, row) -> float | Verdict for one
response, and TRL's f(prompts, completions, **columns) -> list of them for the responses to one
prompt. Which one it is, its arguments say.

It keeps the caller's rights, environment and import path, gets a deadline, and cannot take the run
with it: an exception in it is a `crashed` verdict whose reason is the traceback. Every worker
imports the module for itself, so what the module keeps in memory is not shared between calls.

A function that a program gives as an object instead of a name is called in this process, in one
thread of its own. It may be a closure and keep a state; what it raises is a verdict as well, but
nothing can end one that hangs.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from equipoise.verifiers.verdict import Outcome, Reply, Verdict
from equipoise.verifiers.workers.shared import pool
from equipoise.verifiers.workers.worker import outcome_of

IMPORT_SECONDS = 120.0
ONE, GROUP = 1.0, 2.0  # what a function is called with: one response, or all responses to a prompt
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class FunctionError(ValueError):
    """A function that cannot be called; the message is one sentence for the user."""


def check(name: str, workers: int = 0, columns: Sequence[str] | None = None) -> bool:
    """Import the function where it will run, refuse what cannot be called; whether of groups.

    `columns` are those of the data, to hold the arguments of a function of TRL's form against;
    None does not.
    """
    names = None if columns is None else list(columns)
    outcome = pool("user", workers).submit(name, "check", names, seconds=IMPORT_SECONDS).result()
    if isinstance(outcome, Verdict):
        _refuse_wrong(name, outcome)
        why = outcome.reason.strip().splitlines()[-1] + _line(name, outcome.reason)
        raise FunctionError(f'"{name}" cannot be imported as module:function: {why}')
    return outcome == GROUP


def _line(name: str, traceback: str) -> str:
    """` (line N)`, the last one of the function's own file that the traceback names."""
    file = name.rpartition(":")[0]
    lines = re.findall(rf'File "{re.escape(file)}", line (\d+)', traceback)
    return f" (line {lines[-1]})" if lines else ""


def check_given(
    function: Callable[..., Any], name: str, columns: Sequence[str] | None = None
) -> bool:
    """As `check`, of a function that a program gave as an object."""
    outcome = _form(function, columns)
    _refuse_wrong(name, outcome)
    return outcome == GROUP


def _refuse_wrong(name: str, outcome: Verdict | float) -> None:
    if isinstance(outcome, Verdict) and outcome.kind == "wrong":
        raise FunctionError(f'"{name}" {outcome.reason}')


def submit(
    name: str,
    prompt: str,
    response: str,
    row: Mapping[str, Any],
    *,
    seconds: float,
    workers: int = 0,
) -> Future[Any]:
    """f(prompt, response, row) as a future."""
    return _submit(name, "one", prompt, response, _plain(row), seconds=seconds, workers=workers)


def submit_given(
    function: Callable[..., Any], prompt: str, response: str, row: Mapping[str, Any]
) -> Future[Reply]:
    """f(prompt, response, row) of this process as a future."""
    return _here().submit(
        outcome_of, functools.partial(_called, function), ["one", prompt, response, _plain(row)]
    )


def submit_given_group(
    function: Callable[..., Any],
    prompts: Sequence[Any],
    completions: Sequence[Any],
    columns: Mapping[str, Sequence[Any]],
) -> Future[Reply]:
    """f(prompts, completions, **columns) of this process as a future."""
    arguments = ["group", list(prompts), list(completions), _plain(columns)]
    return _here().submit(outcome_of, functools.partial(_called, function), arguments)


@functools.cache
def _here() -> ThreadPoolExecutor:
    """One thread for all: a function need not bear being called twice at a time."""
    return ThreadPoolExecutor(1, thread_name_prefix="reward")


def submit_group(
    name: str,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    columns: Mapping[str, Sequence[Any]],
    *,
    seconds: float,
    workers: int = 0,
) -> Future[Reply]:
    """f(prompts, completions, **columns) as a future: a list, or one verdict for a failed call."""
    arguments = (list(prompts), list(completions), _plain(columns))
    return _submit(name, "group", *arguments, seconds=seconds, workers=workers)


def _submit(name: str, form: str, *arguments: Any, seconds: float, workers: int) -> Future[Reply]:
    try:
        return pool("user", workers).submit(name, form, *arguments, seconds=seconds)
    except TypeError as error:
        raise FunctionError(
            f"{name}: its row cannot be sent to another process: {error}"
        ) from error


def call(name: str, form: str, *arguments: Any) -> Any:
    """In the worker."""
    function = _imported(name)
    return _form(function, *arguments) if form == "check" else _called(function, form, *arguments)


def _called(function: Callable[..., Any], form: str, *arguments: Any) -> Any:
    if form == "group":
        return _of_group(function, *arguments)
    outcome = _awaited(function(*arguments))
    if isinstance(outcome, list):
        raise ValueError(
            f"it gave {outcome!r:.200} for one response: must be a finite number, or a Verdict"
        )
    return outcome


@functools.cache
def _imported(name: str) -> Callable[..., Any]:
    source, _, attribute = name.rpartition(":")
    module = _from_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    function: object = getattr(module, attribute)
    if not callable(function):
        raise TypeError(f"it is not a function but {function!r}")
    return function


def _from_file(path: Path) -> Any:
    """As Python runs a script: what lies beside the file can be imported."""
    sys.path.insert(0, str(path.parent))
    # By its path, because a file may have the name of an installed module.
    spec = importlib.util.spec_from_file_location(str(path), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[str(path)] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _form(function: Callable[..., Any], columns: Sequence[str] | None) -> Verdict | float:
    """ONE or GROUP; a `wrong` verdict where it can be called in neither way."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C, and silent about its arguments
        return ONE
    if not _takes_groups(signature):
        try:
            signature.bind("prompt", "response", {})
        except TypeError:
            return Verdict(
                "wrong",
                f"takes {signature}: must be f(prompt, response, row) for one response, or TRL's "
                "f(prompts, completions, **columns) for a group",
            )
        return ONE
    required = [
        p.name
        for p in signature.parameters.values()
        if p.default is p.empty and p.kind not in VARIABLE
    ]
    missing = [
        name
        for name in required
        if columns is not None and name not in ("prompts", "completions", *columns)
    ]
    if missing:
        known = ", ".join(columns or ())
        return Verdict(
            "wrong", f'asks for "{missing[0]}", which is no column of the data ({known})'
        )
    return GROUP


def _takes_groups(signature: inspect.Signature) -> bool:
    """TRL calls by keyword: such a function names `completions`, or takes whatever comes."""
    parameters = signature.parameters
    return "completions" in parameters or [p.kind for p in parameters.values()] == [
        inspect.Parameter.VAR_KEYWORD
    ]


def _of_group(
    function: Callable[..., Any],
    prompts: list[Any],
    completions: list[Any],
    columns: dict[str, list[Any]],
) -> list[Outcome]:
    given = {**columns, "prompts": prompts, "completions": completions}
    parameters = inspect.signature(function).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        given = {name: values for name, values in given.items() if name in parameters}
    outcomes = _awaited(function(**given))
    if hasattr(outcomes, "tolist"):
        outcomes = outcomes.tolist()
    if not isinstance(outcomes, list | tuple) or len(outcomes) != len(completions):
        raise ValueError(
            f"it gave {outcomes!r:.200}: must be a list of a finite number or a Verdict for each of the "
            f"{len(completions)} completions"
        )
    return list(outcomes)


def _awaited(value: Any) -> Any:
    return _loop().run_until_complete(value) if inspect.isawaitable(value) else value


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """One for all calls in this worker: a client belongs to the loop it was made in."""
    return asyncio.new_event_loop()


def _plain(value: Any) -> Any:
    """A row as JSON has it: arrays and tuples become lists, numpy's and torch's numbers plain."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "isoformat"):  # dates and times, which a Parquet file has and JSON has not
        return value.isoformat()
    return value.tolist() if hasattr(value, "tolist") else value

"""A task by its name in a configuration."""

from __future__ import annotations

import difflib
import functools
import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.tasks import schema
from equipoise.tasks.arithmetic import Arithmetic
from equipoise.tasks.data_files import KINDS
from equipoise.tasks.dataset import Dataset, TokenCount
from equipoise.tasks.demonstrations import ArithmeticSteps, recognise
from equipoise.tasks.gym import Gym
from equipoise.tasks.row_reader import Rows
from equipoise.tasks.task import Task, TaskError
from equipoise.toml import toml


def open_task(
    name: str,
    seed: int,
    *,
    columns: Mapping[str, str] | None = None,
    verifier: str | None = None,
    answer_in: str = "auto",
    rules: str = "strict",
    template: str = "",
    suffix: str = "",
    strict: bool = False,
    dedupe: bool = True,
    max_prompt_chars: int = 100_000,
    max_prompt_tokens: int = 0,
    count_tokens: TokenCount | None = None,
    held_out: str | Path | None = None,
    avoid: Sequence[str | Path] = (),
    gym: Mapping[str, Mapping[str, Any]] | None = None,
    rows: Rows | None = None,
    graded: bool = True,
) -> Task:
    """`arithmetic`, or `arithmetic:N` with N chains that come again; `gym:NAME` or
    `gym:NAME*WEIGHT+…` (reasoning-gym, with its tasks' settings in `gym`); or prompts of a file, a
    glob or a folder (.jsonl, .jsonl.gz, .parquet) or of `hub:owner/name:config:split`, with the
    options of :class:`Dataset`. `rows`: prompts that a program has in memory, for which `name` is
    only a name. `graded`: the task's verdict is asked for, so that every row must have an answer.
    """
    is_gym, is_built_in = name.startswith("gym:"), name.partition(":")[0] == "arithmetic"
    if rows is None and (is_gym or is_built_in):
        of_rows: dict[str, Any] = {
            "held_out": held_out,
            "avoid": avoid,
            "columns": columns,
            "verifier": verifier,
        }
        of_rows |= {"template": template, "suffix": suffix} | ({} if is_gym else {"gym": gym})
        _refuse_without_rows(name, of_rows)
    if rows is None and is_gym:
        return Gym(name.removeprefix("gym:"), seed=seed, options=gym)
    if rows is None and is_built_in:
        return _arithmetic(name, seed)
    on_disk = name.endswith(KINDS) or Path(name).is_dir() or glob.has_magic(name)
    if rows is not None or name.startswith("hub:") or on_disk:
        return Dataset(
            name,
            seed,
            columns=columns,
            verifier=verifier,
            answer_in=answer_in,
            rules=rules,
            template=template,
            suffix=suffix,
            strict=strict,
            dedupe=dedupe,
            max_prompt_chars=max_prompt_chars,
            max_prompt_tokens=max_prompt_tokens,
            count_tokens=count_tokens,
            held_out=held_out,
            avoid=avoid,
            recognise=functools.partial(schema.recognise, graded=graded),
            rows=rows,
        )
    raise _not_a_task(name)


def _refuse_without_rows(name: str, given: Mapping[str, Any]) -> None:
    """Options about rows of data are an error with a task that makes its own problems."""
    for option, value in given.items():
        if value:
            shown = toml(str(value) if isinstance(value, Path) else value)
            raise TaskError(
                f"task.{option} = {shown}: has no effect with task.name = {toml(name)}, which makes its own problems; "
                "leave it out"
            )


def _arithmetic(name: str, seed: int) -> Arithmetic:
    _, several, size = name.partition(":")
    if not several:
        return Arithmetic(seed=seed)
    if not (size.isdecimal() and int(size) > 0):
        raise TaskError(f'task.name = "{name}": the number of chains must be at least 1')
    return Arithmetic(seed=seed, size=int(size))


def _not_a_task(name: str) -> TaskError:
    """With the nearest name, or how to turn the file into one that is read."""
    others = f"gym:NAME, hub:OWNER/NAME, or a file, glob or folder of {', '.join(KINDS)}"
    if difflib.get_close_matches(name, ["arithmetic"]):
        near = f'did you mean "arithmetic"? (or {others})'
        return TaskError(f'task.name = "{name}" is not a task; {near}')
    hint = ""
    if name.endswith(".csv"):
        parquet = f"{name.removesuffix('.csv')}.parquet"
        code = f"from pyarrow import csv, parquet as p; p.write_table(csv.read_csv('{name}'), '{parquet}')"
        hint = f'; turn it into one: python -c "{code}"'
    elif name.endswith(".json"):
        code = f"import json; [print(json.dumps(row)) for row in json.load(open('{name}'))]"
        hint = f'; turn a list of rows into one: python -c "{code}" > {name}l'
    return TaskError(f'task.name = "{name}" is not a task: arithmetic, {others}{hint}')


def open_demonstrations(
    name: str, seed: int, *, gym: Any = None, **options: Any
) -> Dataset | ArithmeticSteps:
    """Prompts with the responses to imitate (`Prompt.answer`); options of :class:`Dataset`."""
    if name == "arithmetic":
        return ArithmeticSteps(seed)
    if name.startswith("gym:"):
        raise TaskError(
            f"task.name = {name}: reasoning-gym has answers and no worked responses to imitate"
        )
    return Dataset(name, seed, recognise=recognise, **options)

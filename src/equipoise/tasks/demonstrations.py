"""Prompts with the response to imitate (`Prompt.answer`), for a supervised warm-up.

The same readers, splits, templates and limits as for reinforcement learning;
what differs is which column counts:

    messages                a conversation that ends with the assistant's message
    prompt and completion   or problem, question, instruction; with response, completion, solution, output or answer
    MBPP                    the question with its tests, and its code in a ```python block

`task.columns = { prompt = …, answer = … }` names others. A response may be messages too (TRL's
form): the assistant's one. `arithmetic` writes its own steps, without a slip. Not covered:
reasoning-gym, whose items have answers and no worked responses, and conversations of which several
turns are to be imitated.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from equipoise.tasks import schema
from equipoise.tasks.arithmetic import Arithmetic, trace
from equipoise.tasks.fields import (
    Messages,
    id_of,
    level_of,
    message_of,
    present,
    question_of,
    shown,
)
from equipoise.tasks.row_reader import RowError
from equipoise.tasks.schema import ABSENT, Item, Schema, value_at
from equipoise.tasks.task import Prompt, TaskError

CONVERSATIONS = ("messages", "conversation", "conversations")
QUESTIONS = ("prompt", "problem", "question", "instruction")
RESPONSES = ("response", "completion", "solution", "output", "answer")
NO_VERIFIER = "none"  # of an item: nothing is graded, so no reference can be unfit


def recognise(
    where: str,
    row: Mapping[str, Any],
    columns: Mapping[str, str] | None = None,
    verifier: str | None = None,
) -> Schema:
    """The schema of rows like this one; no verifier judges them, whichever the configuration names."""
    columns = columns or {}
    if not columns and "test_list" in row and "code" in row:
        return Schema("MBPP, code", _mbpp)
    conversation = next((column for column in CONVERSATIONS if column in row), None)
    if not columns and conversation is not None:
        return Schema(conversation, lambda row: _conversation(row, conversation))
    found = {}
    for role, known in (("prompt", QUESTIONS), ("answer", RESPONSES)):
        column = columns.get(role) or next((column for column in known if column in row), None)
        if column is None:
            raise TaskError(
                f"{where}: there is no response to imitate among {', '.join(row) or 'no columns'}: say which columns, "
                'task.columns = { prompt = "…", answer = "…" }'
            )
        found[role] = column
    return Schema(
        f"{found['prompt']}, {found['answer']}",
        lambda row: _pair(row, found["prompt"], found["answer"]),
    )


def _pair(row: Mapping[str, Any], prompt: str, response: str) -> Item:
    named = {
        column: value
        for column in (prompt, response)
        if (value := value_at(row, column)) is not ABSENT
    }
    id_ = id_of(row)
    question, messages = question_of(named, prompt, id_)
    return Item(question, _response(named, response), NO_VERIFIER, messages, id_, level_of(row))


def _response(row: Mapping[str, Any], column: str) -> str:
    value = present(row, column, "response")
    if isinstance(value, list):
        said = [message_of(column, message) for message in value]
        if [message["role"] for message in said] != ["assistant"]:
            raise RowError(
                "no response",
                f'"{column}" is {shown(value)}: must be one message, the assistant\'s',
            )
        value = said[0]["content"]
    if not isinstance(value, str) or not value.strip():
        raise RowError(
            "no response", f'"{column}" is {shown(value)}: must be a text that is not empty'
        )
    return value


def _conversation(row: Mapping[str, Any], column: str) -> Item:
    value = present(row, column, "prompt")
    said = value if isinstance(value, list) else []
    *before, last = said or [None]
    turns: Messages = tuple(message_of(column, message) for message in said)
    if len(turns) < 2 or turns[-1]["role"] != "assistant":
        raise RowError(
            "no response",
            f'"{column}" is {shown(value)}: must be messages that end with the assistant\'s',
        )
    id_ = id_of(row)
    question, messages = question_of({column: before}, column, id_)
    return Item(
        question, _response({column: [last]}, column), NO_VERIFIER, messages, id_, level_of(row)
    )


def _mbpp(row: Mapping[str, Any]) -> Item:
    item = schema.mbpp(row)
    code = _response(row, "code").strip().replace("\r\n", "\n")
    return Item(item.question, f"```python\n{code}\n```", NO_VERIFIER, None, item.id, item.level)


class ArithmeticSteps:
    """The built-in task with its steps written out, none of them wrong."""

    name = "arithmetic"

    def __init__(self, seed: int = 0) -> None:
        self.task = Arithmetic(seed)

    def prompt(self, i: int) -> Prompt:
        return _worked(self.task.prompt(i))

    def evaluation(self, per_level: int | None = None) -> list[Prompt]:
        return [_worked(prompt) for prompt in self.task.evaluation(per_level)]


def _worked(prompt: Prompt) -> Prompt:
    numbers = [int(number) for number in prompt.id.split("+")]
    flawless = trace(numbers, random.Random(0), slip=0.0, notice=0.0, again=0.0, twice=0.0)
    return Prompt(prompt.id, prompt.text, flawless, prompt.level)

"""What a task is: a stream of training prompts, a fixed held-out set, and a verifier.

A task keeps no position. `prompt(i)` depends on the task's seed and on i alone, so the whole state
of the training data is one integer, and resuming a run is starting to count where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from equipoise.verifiers.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question: `text` is what the model reads, `answer` the reference.

    `level` names the difficulty where the task has several; `meta` carries what a verifier needs
    beside the answer. `messages` is the question as a conversation of {role, content}, where the
    data has it so; `text` is then its contents, for a model that is prompted without a chat
    template.
    """

    id: str
    text: str
    answer: str
    level: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, str], ...] | None = None


class TaskError(ValueError):
    """A task that cannot be opened; the message is one sentence for the user."""


class Task(Protocol):
    """`max_tokens`: the longest response worth sampling; `stop`: strings that end one as well."""

    @property
    def name(self) -> str: ...

    @property
    def max_tokens(self) -> int: ...

    @property
    def stop(self) -> tuple[str, ...]: ...

    def prompt(self, i: int) -> Prompt:
        """Item i ≥ 0 of the endless training stream."""
        ...

    def evaluation(self, per_level: int | None = None) -> list[Prompt]:
        """The fixed held-out prompts of every seed; the first `per_level` of each level."""
        ...

    def grade(self, prompt: Prompt, response: str) -> Verdict | Future[Verdict]:
        """Judge one response by its final answer, at once or in a worker process."""
        ...

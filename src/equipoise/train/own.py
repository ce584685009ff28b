"""A user's reward function in a run, called for each response or, TRL's way, for each prompt.

A function whose first calls of a draw have all failed is not asked again in that draw, so that one
that hangs costs a few deadlines and not one for each response. Not here: what its outcomes are
worth (score.py), and when a run stops for them (tally.py).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any

from equipoise.config import ConfigError, RewardConfig
from equipoise.tasks import Prompt
from equipoise.verifiers import Verdict
from equipoise.verifiers.verdict import Outcome, Reply
from equipoise.verifiers.workers import functions

# kinds that say something about the function, not about the response
FAILURES = ("crashed", "timeout", "limit")
# that failed, and no call that did not: the draw's other calls are not made
HOPELESS_CALLS, HOPELESS_RESPONSES = 4, 16


@dataclass(frozen=True)
class Ungrouped:
    """A response that waits for the others to its prompt."""

    response: str


@dataclass(frozen=True)
class Asked:
    """The outcome of one response, when its call is done; `place` among the call's several."""

    function: OwnFunction
    call: Future[Reply]
    place: int = 0

    def result(self) -> Outcome:
        try:
            reply = self.call.result()
        except CancelledError:
            return self.function.not_asked()
        return reply[self.place] if isinstance(reply, list) else reply


class OwnFunction:
    """`columns` are those of the rows, None where they are not known yet; `chat`: conversations
    instead of texts; `given`: the function itself, where a program gave it, which is then called in
    this process and without a deadline.
    """

    def __init__(
        self,
        name: str,
        config: RewardConfig,
        *,
        columns: Sequence[str] | None = None,
        chat: bool = False,
        option: str = "reward.functions",
        given: Callable[..., Any] | None = None,
    ) -> None:
        self.name, self.chat, self.given = name, chat, given
        self.seconds, self.workers = config.seconds, config.workers
        try:
            if given is None:
                self.takes_groups = functions.check(name, config.workers, columns)
            else:
                self.takes_groups = functions.check_given(given, name, columns)
        except functions.FunctionError as error:
            raise ConfigError(f"{option}: {error}") from error
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """A new draw: what failed in the last one is asked again."""
        self._calls = self._responses = 0  # that have failed
        self._success = False
        self._failure = Verdict("crashed")
        self._pending: list[Future[Any]] = []

    @property
    def hopeless(self) -> bool:
        return (
            not self._success
            and self._calls >= HOPELESS_CALLS
            and self._responses >= HOPELESS_RESPONSES
        )

    def not_asked(self) -> Verdict:
        reason = f"not asked, because the first {self._calls} calls failed: {self._failure.reason}"
        return Verdict(self._failure.kind, reason)

    def __call__(self, prompt: Prompt, response: str) -> Asked | Ungrouped | Verdict:
        if self.takes_groups:
            return Ungrouped(response)
        if self.hopeless:
            return self.not_asked()
        arguments = (prompt.text, response, row(prompt))
        if self.given is not None:
            return self._watched(functions.submit_given(self.given, *arguments), 1)
        call = functions.submit(self.name, *arguments, seconds=self.seconds, workers=self.workers)
        return self._watched(call, 1)

    def ask_groups(
        self, prompts: Sequence[Prompt], waiting: Sequence[Ungrouped]
    ) -> list[Asked | Verdict]:
        """A call for each prompt: `seconds` for each response, and it fails or is killed as one."""
        asked: list[Asked | Verdict] = []
        pairs = zip(prompts, waiting, strict=True)
        for _, group in itertools.groupby(pairs, key=lambda pair: pair[0].id):
            of_prompt, responses = zip(
                *((prompt, item.response) for prompt, item in group), strict=True
            )
            asked += self._ask_group(of_prompt, responses)
        return asked

    def _ask_group(
        self, prompts: Sequence[Prompt], responses: Sequence[str]
    ) -> list[Asked | Verdict]:
        size = len(responses)
        if self.hopeless:
            return [self.not_asked()] * size
        rows = [row(prompt) for prompt in prompts]
        arguments = (
            [_conversation(prompt) if self.chat else prompt.text for prompt in prompts],
            [[{"role": "assistant", "content": text}] if self.chat else text for text in responses],
            {column: [row.get(column) for row in rows] for column in rows[0]},
        )
        if self.given is not None:
            call = functions.submit_given_group(self.given, *arguments)
        else:
            seconds = self.seconds * size
            call = functions.submit_group(
                self.name, *arguments, seconds=seconds, workers=self.workers
            )
        asked = self._watched(call, size)
        return [Asked(self, asked.call, place) for place in range(size)]

    def _watched(self, call: Future[Any], size: int) -> Asked:
        self._pending.append(call)
        call.add_done_callback(lambda done: self._count(done, size))
        return Asked(self, call)

    def _count(self, done: Future[Reply], size: int) -> None:
        """In the pool's thread."""
        if done.cancelled() or done.exception() is not None:
            return
        reply = done.result()
        with self._lock:
            if not isinstance(reply, Verdict) or reply.kind not in FAILURES:
                self._success = True
                return
            self._calls += 1
            self._responses += size
            self._failure = reply
        if self.hopeless:
            for call in self._pending:
                call.cancel()


def row(prompt: Prompt) -> Mapping[str, Any]:
    """What a function gets besides prompt and response."""
    return {"id": prompt.id, "answer": prompt.answer, "level": prompt.level, **prompt.meta}


def _conversation(prompt: Prompt) -> list[dict[str, str]]:
    return [dict(m) for m in prompt.messages or ({"role": "user", "content": prompt.text},)]

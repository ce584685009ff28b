"""From responses to rewards and accuracies: verdicts of the task,
of the built-in shapes and of the user's functions, and what each verdict is worth.

A response's reward is the weighted sum of what its outcomes are worth. Its accuracy, how right it
is, is another thing: the functions that judge answers say it, which are all but `tags` and `boxed`.
The first verdict among theirs decides. Where they give numbers alone their weighted sum does, on
the range that the objective's difficulty names (0 to 1 without one). Training and held-out
evaluation have this one accuracy, but for partial credit, which is no right answer to an
evaluation.

Verdicts of worker processes are futures: `ask` starts them, `settle` waits for them, and meanwhile
sampling goes on. Functions that judge a group at a time are asked by `settle`, when its responses
are all there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.config import ConfigError, RewardConfig
from equipoise.evaluate import Judged
from equipoise.objective import Objective
from equipoise.objective.choice import did_you_mean
from equipoise.tasks import Prompt, Task
from equipoise.train.own import FAILURES, Asked, OwnFunction, Ungrouped, row
from equipoise.train.tally import Tally, labels
from equipoise.verifiers import SCORES, Verdict, response_format
from equipoise.verifiers.code import backend
from equipoise.verifiers.verdict import Outcome

Answer = Outcome | Future[Verdict] | Future[Outcome] | Asked | Ungrouped
RewardFunction = Callable[[Prompt, str], Answer]
SHAPES = ("tags", "boxed")  # say how a response is written, and nothing of its answer
BUILT_IN = ("task", *SHAPES)
Rate = Callable[[Tensor], Tensor]
NUMBER = "scored"  # stands for a verdict's kind where a function gave a plain number
LOOKED_AT = 16  # prompts that say whether a task needs isolation
TROUBLES = ("crashed", "bad_gold", "unavailable")  # verdicts somebody should look at


@dataclass
class Scores:
    """rewards [B, K], NaN without a score; verdicts [B]: the kind of the one that decides."""

    rewards: Tensor
    # [B] of the verdict that decides: 1 correct, 0 not, its partial credit; of a number, its rate
    accuracy: Tensor
    verdicts: list[str]
    troubles: list[dict[str, str]]  # prompt, function, verdict and reason of what went wrong
    kinds: list[list[str]]  # [B][K] of each function's verdict, "scored" for a plain number
    tallies: list[Tally]  # [K]


class Scorer:
    """`beside`: whether verdicts come from worker processes, so that asking early pays. `chat`:
    whether the data is conversational for functions of TRL's form.
    """

    def __init__(
        self,
        config: RewardConfig,
        task: Task,
        *,
        chat: bool = False,
        option: str = "reward.functions",
        given: Mapping[str, Callable[..., Any]] | None = None,
        rate: Rate = lambda reward: reward,
    ) -> None:
        """`given`: functions that a program gave as objects, by their names in the configuration;
        `rate`: rewards as success rates.
        """
        self.config, self.rate = config, rate
        self.functions: list[RewardFunction] = [
            _function(name, config, task, chat, option, (given or {}).get(name))
            for name in config.functions
        ]
        self.beside = False

    def conversational(self, on: bool) -> None:
        """Say whether the data is conversational once the model, which may decide it, is there."""
        for function in self.functions:
            if isinstance(function, OwnFunction):
                function.chat = on

    def ask(self, prompt: Prompt, text: str) -> list[Answer]:
        answers = [function(prompt, text) for function in self.functions]
        # Learned from the answers: a function that returns at once gains nothing from being asked
        # while others are still sampled, and would hold the sampler up.
        self.beside = self.beside or any(isinstance(answer, Future | Asked) for answer in answers)
        return answers

    def settle(self, prompts: Sequence[Prompt], asked: Sequence[list[Answer]]) -> Scores:
        return self._scores(prompts, self._outcomes(prompts, asked))

    @property
    def name(self) -> str:
        """Who says how right a response is; the task's verifier always does, where it comes first."""
        names = [self.config.functions[k] for k in self._judging]
        return "task" if names[0] == "task" else " + ".join(names)

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Judged]:
        """For an evaluation: the deciding verdict, else the number as accuracy; and the reward."""
        asked = [self.ask(prompt, text) for prompt, text in zip(prompts, responses, strict=True)]
        rows = self._outcomes(prompts, asked)
        scores = self._scores(prompts, rows)
        paid = scores.rewards @ torch.tensor(self.config.weights, dtype=torch.float64)
        # A number may be anything; an accuracy ends at 0 and at 1.
        rates = scores.accuracy.clamp(0, 1).tolist()
        judged = []
        for prompt, outcomes, rate, reward in zip(prompts, rows, rates, paid.tolist(), strict=True):
            verdict = self._decides(outcomes)
            trouble = next(iter(self._troubles(prompt, outcomes)), None)
            if verdict is None:
                judged.append(Judged(NUMBER, None, rate, reward, trouble))
            else:
                judged.append(Judged(verdict.kind, verdict.answer, None, reward, trouble))
        return judged

    def _outcomes(
        self, prompts: Sequence[Prompt], asked: Sequence[list[Answer]]
    ) -> list[list[Outcome]]:
        """[B][K], when all have come."""
        columns = [
            self._settle_groups(k, prompts, [answers[k] for answers in asked])
            for k in range(self._count)
        ]
        settled = [[_outcome(answer) for answer in column] for column in columns]
        for function in self.functions:
            if isinstance(function, OwnFunction):
                function.begin()
        return [[column[i] for column in settled] for i in range(len(prompts))]

    def _scores(self, prompts: Sequence[Prompt], rows: Sequence[list[Outcome]]) -> Scores:
        columns = [[outcomes[k] for outcomes in rows] for k in range(self._count)]
        tallies = [
            self._tally(k, label, prompts, columns[k])
            for k, label in enumerate(labels(self.config.functions))
        ]
        verdicts = [self._decides(outcomes) for outcomes in rows]
        worths = [[worth(outcome, self.config) for outcome in outcomes] for outcomes in rows]
        rewards = torch.tensor(worths, dtype=torch.float64).view(len(rows), self._count)
        return Scores(
            rewards,
            self._accuracy(verdicts, rewards),
            [NUMBER if verdict is None else verdict.kind for verdict in verdicts],
            [
                trouble
                for p, outcomes in zip(prompts, rows, strict=True)
                for trouble in self._troubles(p, outcomes)
            ],
            [[kind_of(outcome) for outcome in outcomes] for outcomes in rows],
            tallies,
        )

    @property
    def _judging(self) -> list[int]:
        """The functions that judge answers; all of them where they look at the writing alone."""
        names = self.config.functions
        return [k for k, name in enumerate(names) if name not in SHAPES] or list(range(len(names)))

    def _decides(self, outcomes: Sequence[Outcome]) -> Verdict | None:
        """The verdict that says how right a response is; None where there are numbers alone."""
        for k in self._judging:
            outcome = outcomes[k]
            if isinstance(outcome, Verdict):
                return outcome
        return None

    def _accuracy(self, verdicts: Sequence[Verdict | None], rewards: Tensor) -> Tensor:
        """[B]; a verdict that says nothing of a response leaves it to what the response is worth."""
        said = [None if verdict is None else verdict.accuracy for verdict in verdicts]
        known = torch.tensor([math.nan if a is None else a for a in said], dtype=torch.float64)
        weights = torch.tensor(self.config.weights, dtype=torch.float64)
        numbers = rewards[:, self._judging] @ weights[self._judging]
        # A verdict wins over the numbers: a bonus for length or form must not pass for accuracy.
        return torch.where(known.isnan(), self.rate(numbers), known)

    @property
    def _count(self) -> int:
        return len(self.config.functions)

    def _settle_groups(
        self, k: int, prompts: Sequence[Prompt], answers: list[Answer]
    ) -> Sequence[Answer]:
        function = self.functions[k]
        if not isinstance(function, OwnFunction) or not function.takes_groups:
            return answers
        return function.ask_groups(
            prompts, [answer for answer in answers if isinstance(answer, Ungrouped)]
        )

    def _tally(
        self, k: int, label: str, prompts: Sequence[Prompt], outcomes: Sequence[Outcome]
    ) -> Tally:
        tally = Tally(self.config.functions[k], label)
        for prompt, outcome in zip(prompts, outcomes, strict=True):
            reward = worth(outcome, self.config)
            tally.kinds[kind_of(outcome)] += 1
            if not math.isnan(reward):
                tally.scored += 1
                tally.total += reward
            if self._failed(k, prompt, outcome):
                tally.failed += 1
                tally.reason = tally.reason or last_line(outcome.reason)  # type: ignore[union-attr]
        return tally

    def _failed(self, k: int, prompt: Prompt, outcome: Outcome) -> bool:
        """A program that crashes is its own fault; whatever else crashes is the function's."""
        runs_programs = self.config.functions[k] == "task" and prompt.meta.get("verifier") == "code"
        return isinstance(outcome, Verdict) and outcome.kind in FAILURES and not runs_programs

    def _troubles(self, prompt: Prompt, outcomes: Sequence[Outcome]) -> list[dict[str, str]]:
        troubles = []
        for name, outcome in zip(self.config.functions, outcomes, strict=True):
            looked_at = TROUBLES if name in BUILT_IN else (*TROUBLES, *FAILURES)
            if isinstance(outcome, Verdict) and outcome.kind in looked_at:
                about = {"function": name, "verdict": outcome.kind, "reason": outcome.reason}
                troubles.append({"prompt": prompt.id, **about})
        return troubles


def rate_of(objective: Objective) -> Rate:
    """Rewards as success rates: on the range that difficulty names, else themselves."""
    return (lambda reward: reward) if objective.difficulty is None else objective.difficulty.rate


def check_own(config: RewardConfig, given: Mapping[str, Callable[..., Any]]) -> None:
    """Import the user's functions and refuse what cannot be called, before all else."""
    for name in config.functions:
        if name not in BUILT_IN and ":" not in name:
            near = did_you_mean(name, BUILT_IN)
            raise ConfigError(
                f'reward.functions: "{name}" is not known;{near} ({", ".join(BUILT_IN)}, or '
                "module:function or file.py:function of your own)"
            )
        if name not in BUILT_IN:
            OwnFunction(name, config, given=given.get(name))
    if config.judge:
        OwnFunction(config.judge, config, option="reward.judge")


def check_isolation(task: Task) -> None:
    """Refuse a task whose responses must be isolated where nothing here can: before a model is
    loaded, not after the first responses had no score. Looks at the first prompts.
    """
    # A task may mix kinds of prompts, so more than one is looked at; a stream has no end to look
    # to.
    first = [task.prompt(i).meta for i in range(LOOKED_AT)]
    if not any("tests" in meta or "entry" in meta for meta in first):
        return
    if (why := backend.problem()) is not None:
        raise ConfigError(
            f'task.name = "{task.name}": its responses are judged in isolation, and there is none here: {why}; '
            "or name a runner in sandbox.backend"
        )


def _function(
    name: str,
    config: RewardConfig,
    task: Task,
    chat: bool,
    option: str,
    given: Callable[..., Any] | None,
) -> RewardFunction:
    if name == "task":
        return task.grade
    if name == "tags":
        return lambda prompt, response: response_format.tags(response, config.tags)
    if name == "boxed":
        return lambda prompt, response: response_format.boxed(response)
    columns = None if task is None else list(row(task.prompt(0)))
    return OwnFunction(name, config, columns=columns, chat=chat, option=option, given=given)


def _outcome(answer: Answer) -> Outcome:
    return answer.result() if isinstance(answer, Future | Asked) else answer  # type: ignore[return-value]


def kind_of(outcome: Outcome) -> str:
    return outcome.kind if isinstance(outcome, Verdict) else NUMBER


def last_line(reason: str) -> str:
    """Of a traceback, what went wrong."""
    return one_line((reason.strip().splitlines() or ["no reason given"])[-1][:200])


def one_line(text: str) -> str:
    """For the terminal, which must not obey what a model wrote."""
    return "".join(c if c.isprintable() else "⏎" if c == "\n" else "\ufffd" for c in text)


def worth(outcome: Outcome, config: RewardConfig) -> float:
    """A number is its own reward; a verdict gets what the table says, NaN for "mask"."""
    if not isinstance(outcome, Verdict):
        return float(outcome)
    if outcome.kind in SCORES and outcome.value is not None:
        return config.wrong + outcome.value * (config.correct - config.wrong)
    # What a timeout or a crash is worth is the configuration's to say: a number, wrong, or mask.
    price = getattr(config, outcome.kind)
    if isinstance(price, str):
        return config.wrong if price == "wrong" else math.nan
    return float(price)

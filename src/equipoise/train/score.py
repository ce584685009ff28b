"""From responses to rewards: verdicts of the task, of the built-in shapes and of the user's functions, and what each
verdict is worth.

Verdicts of worker processes are futures: `ask` starts them, `settle` waits for them, and meanwhile sampling goes on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.rewards import SCORES, Verdict, functions, shape
from equipoise.rewards.hosts import NO_SCORE
from equipoise.tasks import Prompt, Task
from equipoise.train.config import ConfigError, RewardConfig

Outcome = float | Verdict
RewardFunction = Callable[[Prompt, str], Outcome | Future[Outcome]]
TROUBLES = ("crashed", "bad_gold", "unavailable")  # verdicts somebody should look at


@dataclass
class Scores:
    """rewards [B, K], NaN where a verdict is worth no score; verdicts [B]: the kind of each response's first one."""

    rewards: Tensor
    accuracy: Tensor  # [B] of the first verdict: 1 correct, 0 not, its partial credit; NaN where it says nothing
    verdicts: list[str]
    troubles: list[dict[str, str]]  # prompt, function, verdict and reason of what went wrong


class Scorer:
    """`beside`: whether verdicts come from worker processes, so that asking early pays."""

    def __init__(self, config: RewardConfig, task: Task) -> None:
        self.config = config
        self.functions: list[RewardFunction] = [_function(name, config, task) for name in config.functions]
        self.beside = False

    def ask(self, prompt: Prompt, text: str) -> list[Outcome | Future[Outcome]]:
        outcomes = [function(prompt, text) for function in self.functions]
        self.beside = self.beside or any(isinstance(outcome, Future) for outcome in outcomes)
        return outcomes

    def settle(self, prompts: Sequence[Prompt], asked: Sequence[list[Outcome | Future[Outcome]]]) -> Scores:
        rewards: list[list[float]] = []
        accuracies: list[float] = []
        kinds: list[str] = []
        troubles = []
        for prompt, row in zip(prompts, asked, strict=True):
            outcomes = [o.result() if isinstance(o, Future) else o for o in row]
            verdict = next((o for o in outcomes if isinstance(o, Verdict)), None)
            kinds.append("scored" if verdict is None else verdict.kind)
            accuracies.append(math.nan if verdict is None else accuracy(verdict))
            rewards.append([worth(o, self.config) for o in outcomes])
            troubles += [
                {"prompt": prompt.id, "function": name, "verdict": o.kind, "reason": o.reason}
                for name, o in zip(self.config.functions, outcomes, strict=True)
                if isinstance(o, Verdict) and o.kind in TROUBLES
            ]
        return Scores(
            torch.tensor(rewards, dtype=torch.float64).view(len(rewards), len(self.functions)),
            torch.tensor(accuracies, dtype=torch.float64),
            kinds,
            troubles,
        )


def _function(name: str, config: RewardConfig, task: Task) -> RewardFunction:
    if name == "task":
        return task.grade
    if name == "tags":
        return lambda prompt, response: shape.tags(response, config.tags)
    if name == "boxed":
        return lambda prompt, response: shape.boxed(response)
    try:
        functions.check(name, config.workers)
    except functions.FunctionError as error:
        raise ConfigError(f"reward.functions: {error}; or one of task, tags, boxed") from error
    return functools.partial(_ask_user, name, config)


def _ask_user(name: str, config: RewardConfig, prompt: Prompt, response: str) -> Future[Outcome]:
    row = {"id": prompt.id, "answer": prompt.answer, "level": prompt.level, **prompt.meta}
    return functions.submit(name, prompt.text, response, row, seconds=config.seconds, workers=config.workers)


def accuracy(verdict: Verdict) -> float:
    """Whether the response is right, whatever the reward makes of it; NaN where the verdict says nothing about it."""
    if verdict.kind in NO_SCORE:
        return math.nan
    if verdict.kind in SCORES and verdict.value is not None:
        return verdict.value
    return float(verdict.kind == "correct")


def worth(outcome: Outcome, config: RewardConfig) -> float:
    """A number is its own reward; a verdict gets what the table says, NaN for "mask"."""
    if not isinstance(outcome, Verdict):
        return float(outcome)
    if outcome.kind in SCORES and outcome.value is not None:
        return config.wrong + outcome.value * (config.correct - config.wrong)
    price = getattr(config, outcome.kind)
    if isinstance(price, str):
        return config.wrong if price == "wrong" else math.nan
    return float(price)

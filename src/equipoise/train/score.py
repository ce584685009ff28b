"""From responses to rewards: the task's verdict through the reward table, and the user's own functions."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from equipoise.rewards import Verdict
from equipoise.tasks import Prompt, Task
from equipoise.train.config import ConfigError, RewardConfig
from equipoise.train.folder import RunError

RewardFunction = Callable[[Prompt, str], float | Verdict]
UNSCORED = ("bad_gold", "unavailable")  # says nothing about the response: the response is left out of the batch


def reward_functions(config: RewardConfig, task: Task) -> list[RewardFunction]:
    """`task` is the task's own verifier; `module:function` is called as f(prompt text, response, row)."""
    return [task.grade if name == "task" else _imported(name) for name in config.functions]


def _imported(name: str) -> RewardFunction:
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f'reward.functions: "{name}" cannot be imported as module:function: {error}') from error

    if not callable(function):
        raise ConfigError(f'reward.functions: "{name}" is not a function but {function!r}')

    def call(prompt: Prompt, response: str) -> float | Verdict:
        row = {"id": prompt.id, "answer": prompt.answer, "level": prompt.level, **prompt.meta}
        outcome = function(prompt.text, response, row)
        if isinstance(outcome, Verdict):
            return outcome
        try:
            value = float(outcome)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise RunError(
                f"reward.functions: {name} gave {outcome!r} for a response to prompt {prompt.id}: the rule is a finite "
                "number, or a Verdict"
            )
        return value

    return call


def score(
    functions: Sequence[RewardFunction], config: RewardConfig, prompts: Sequence[Prompt], texts: Sequence[str]
) -> tuple[Tensor, list[str]]:
    """Rewards [B, K] and the kind of each response's first verdict; NaN where a verdict is no score."""
    rewards: list[list[float]] = []
    kinds: list[str] = []
    for prompt, text in zip(prompts, texts, strict=True):
        outcomes = [f(prompt, text) for f in functions]
        verdicts = [o for o in outcomes if isinstance(o, Verdict)]
        kinds.append(verdicts[0].kind if verdicts else "scored")
        rewards.append([_reward(o, config) for o in outcomes])
    return torch.tensor(rewards, dtype=torch.float64).view(len(rewards), len(functions)), kinds


def _reward(outcome: float | Verdict, config: RewardConfig) -> float:
    if not isinstance(outcome, Verdict):
        return float(outcome)
    if outcome.kind in UNSCORED:
        return math.nan
    if outcome.value is not None:
        return config.wrong + outcome.value * (config.correct - config.wrong)
    return config.correct if outcome.kind == "correct" else config.wrong


def overlong_penalty(lengths: Tensor, max_tokens: int, buffer: int) -> Tensor:
    """DAPO's soft punishment: 0 up to max_tokens − buffer, falling linearly to −1 at max_tokens."""
    return ((max_tokens - buffer - lengths) / buffer).clamp(-1, 0).to(torch.float64)

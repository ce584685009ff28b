"""Our rewards for responses another trainer sampled, exactly as `equipoise train` gives them.

A response is known by the place of its prompt in our task:
the item of the training stream, or of the held-out set.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from equipoise.config import Config
from equipoise.tasks import Prompt, Task
from equipoise.train.score import Scorer
from equipoise.verifiers.code import backend
from equipoise.verifiers.response_format import overlong

TRAIN, HELD_OUT = "train", "held out"
Place = tuple[str, int]


class Rewards:
    """Gives rewards [B][K], one for each of reward.functions, and the first verdicts' kinds [B].

    A reward is NaN where its verdict has no score.
    """

    def __init__(self, config: Config, task: Task) -> None:
        self.config = config
        self.task = task
        backend.use(config.sandbox.backend, config.sandbox.limits())
        self._scorer = Scorer(config.reward, task, chat=config.task.chat is True)

    @cached_property
    def _held_out(self) -> list[Prompt]:
        return self.task.evaluation(self.config.eval.per_level)

    def prompt(self, place: Place) -> Prompt:
        split, index = place
        if split == TRAIN:
            return self.task.prompt(index)
        return self._held_out[index]

    def __call__(
        self, places: Sequence[Place], texts: Sequence[str], lengths: Sequence[int]
    ) -> tuple[list[list[float]], list[str]]:
        prompts = [self.prompt(place) for place in places]
        asked = [
            self._scorer.ask(prompt, text) for prompt, text in zip(prompts, texts, strict=True)
        ]
        scores = self._scorer.settle(prompts, asked)
        rewards = scores.rewards.tolist()
        buffer = self.config.reward.overlong_buffer
        most = self.config.rollout.max_tokens or self.task.max_tokens
        if buffer:
            for row, length in zip(rewards, lengths, strict=True):
                row[0] += overlong(length, most, buffer)
        return rewards, scores.verdicts

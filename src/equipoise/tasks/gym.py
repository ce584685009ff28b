"""Any reasoning-gym task, graded by its own scorer; partial credit is a real-valued reward.

Training item i is the task's item i under the run's seed, held-out items come from a seed of their own; a training item
whose question is held out is passed over, so the two cannot overlap.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from equipoise.rewards.verdict import Verdict
from equipoise.tasks.task import Prompt, TaskError

HELD_OUT_SEED = 7_777_777
HELD_OUT = 256
STREAM = 1_000_000_000


class Gym:
    """`max_tokens` is a default; set rollout.max_tokens to what the task needs."""

    max_tokens = 256
    stop: tuple[str, ...] = ()

    def __init__(self, task: str, seed: int = 0) -> None:
        try:
            import reasoning_gym
        except ImportError as error:
            raise TaskError(f"task.name = gym:{task} needs reasoning-gym: pip install equipoise[gym]") from error
        try:
            self._train = reasoning_gym.create_dataset(task, size=STREAM, seed=seed)
            self._held_out = reasoning_gym.create_dataset(task, size=HELD_OUT, seed=HELD_OUT_SEED)
        except (ValueError, AssertionError) as error:  # it checks a task's options by assertions
            raise TaskError(f"gym:{task}: {error}") from error
        self.name = f"gym:{task}"

    def prompt(self, i: int) -> Prompt:
        entry = self._train[i]
        while entry["question"] in self._held_out_questions:
            i += STREAM // 2
            entry = self._train[i % STREAM]
        return self._prompt(f"train-{i}", entry)

    def evaluation(self, per_level: int | None = None) -> list[Prompt]:
        entries = [self._held_out[i] for i in range(HELD_OUT if per_level is None else min(per_level, HELD_OUT))]
        return [self._prompt(f"held-out-{i}", entry) for i, entry in enumerate(entries)]

    def grade(self, prompt: Prompt, response: str) -> Verdict:
        """The text after the last "Answer:", or the last line, goes to the task's own scorer."""
        given = response.rpartition("Answer:")[2].strip().splitlines()
        answer = given[-1].strip() if given else ""
        if not answer:
            return Verdict("unparsed", "an empty response", value=0.0)
        try:
            value = float(self._train.score_answer(answer, prompt.meta["entry"]))
        except Exception as error:  # some scorers trip over what a model may write
            return Verdict("crashed", f"{type(error).__name__}: {error}")
        return Verdict("correct" if value >= 1.0 else "wrong", f"scored {value:g}", value=value, answer=answer)

    @cached_property
    def _held_out_questions(self) -> set[str]:
        return {self._held_out[i]["question"] for i in range(HELD_OUT)}

    @staticmethod
    def _prompt(name: str, entry: dict[str, Any]) -> Prompt:
        return Prompt(id=name, text=entry["question"], answer=str(entry["answer"]), meta={"entry": entry})

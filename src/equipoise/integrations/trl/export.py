"""`equipoise export trl`: a configuration as a script for TRL's GRPOTrainer.

    launch.py      the script, with what became of every option; its arguments are settings of GRPOConfig
    grpo.yaml      those settings, for TRL's own parser
    config.toml    the configuration, for the prompts and rewards, which stay ours

`dataset`, `held_out` and `reward_functions` are what the script calls; options.py has what becomes
of each option, script.py the files' text. The objective runs through
:mod:`equipoise.integrations.trl.plugin`; TRL's own defaults hold for whatever no option of ours
speaks of.

Not covered: several optimizer steps on parts of one batch of rollouts (ours takes the whole batch
for each), and our evaluation (acc@n and so on): TRL reports the mean reward of the held-out
prompts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from equipoise.config import Config, dump
from equipoise.integrations.data import Row, trl_row
from equipoise.integrations.launch import (
    ExportError,
    Launch,
    open_task,
    portable,
    refuse_without_teacher,
    settled,
)
from equipoise.integrations.reward import HELD_OUT, TRAIN, Place, Rewards
from equipoise.integrations.trl.options import passes_of, settings, step_prompts
from equipoise.integrations.trl.script import grpo_yaml, script
from equipoise.tasks import Task
from equipoise.train.tally import labels
from equipoise.verifiers.host_functions import Completion, text_of


def export_trl(config: Config, out: Path) -> Launch:
    """Write the launch of a configuration into a new folder."""
    config = portable(settled(config))
    refuse_without_teacher(config, "TRL")
    if config.rollout.group_size < 2:
        raise ExportError("rollout.group_size = 1: TRL's rule is at least 2 responses per prompt")
    task = open_task(config)
    config.rollout.max_tokens = config.rollout.max_tokens or task.max_tokens
    found = settings(config, task)
    files = {
        "launch.py": script(config, found),
        "grpo.yaml": grpo_yaml(found),
        "config.toml": dump(config),
    }
    launch = Launch("TRL", config, found, files)
    launch.write(out)
    return launch


def split_arguments(config: Config) -> list[str]:
    """How the batch is split among several processes, as arguments to TRL's parser."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes == 1:
        return []
    per_pass, accumulated = passes_of(config, processes)
    out = [
        "--per_device_train_batch_size",
        str(per_pass),
        "--gradient_accumulation_steps",
        str(accumulated),
    ]
    parts = config.rollout.prompts // step_prompts(config)
    return out if parts == 1 else [*out, "--steps_per_generation", str(accumulated * parts)]


def dataset(config: Config, task: Task) -> Any:
    """The prompts of the whole run in the order of our own draws, as a `datasets.Dataset`."""
    count = config.rollout.prompts * config.train.steps
    return _datasets().Dataset.from_list(
        [_row(config, task.prompt(i), TRAIN, i) for i in range(count)]
    )


def held_out(config: Config, task: Task) -> Any:
    prompts = task.evaluation(config.eval.per_level)
    return _datasets().Dataset.from_list(
        [_row(config, p, HELD_OUT, i) for i, p in enumerate(prompts)]
    )


def _row(config: Config, prompt: Any, split: str, index: int) -> Row:
    chat, system = config.task.chat, config.task.system
    assert chat != "auto", "settled when the launch was written"
    return {**trl_row(prompt, chat, system), "split": split, "index": index}


def tokenizer(config: Config, model: str) -> Any:
    """None where TRL's own will do; like TRL's, one with another chat template pads left."""
    if not config.task.chat_template:
        return None
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(model, padding_side="left", truncation_side="left")
    found.chat_template = config.task.chat_template
    return found


def _datasets() -> Any:
    import datasets

    return datasets


def reward_functions(config: Config, task: Task) -> list[Callable[..., list[float | None]]]:
    """TRL's reward functions, one for each of ours; None from all where one has no score."""
    rewards = Rewards(config, task)
    last: dict[str, Any] = {}

    def scores(
        texts: list[str], places: list[Place], lengths: list[int]
    ) -> tuple[list[list[float]], list[str]]:
        """Of all functions at once; TRL asks for one after the other."""
        if last.get("asked") != (texts, places):
            last.update(asked=(texts, places), answer=rewards(places, texts, lengths))
        return last["answer"]  # type: ignore[no-any-return]

    def function(k: int, name: str) -> Callable[..., list[float | None]]:
        def reward(
            completions: Sequence[Completion],
            completion_ids: Sequence[Sequence[int]],
            split: Sequence[str],
            index: Sequence[int],
            log_extra: Callable[[str, list[Any]], None] | None = None,
            **rest: Any,
        ) -> list[float | None]:
            places = list(zip(split, index, strict=True))
            rows, verdicts = scores(
                [text_of(c) for c in completions], places, [len(ids) for ids in completion_ids]
            )
            if k == 0 and log_extra is not None:
                log_extra("verdict", verdicts)
            return [None if any(map(math.isnan, row)) else row[k] for row in rows]

        reward.__name__ = name
        return reward

    return [function(k, name) for k, name in enumerate(labels(config.reward.functions))]

"""`equipoise export verl`: a configuration as overrides for verl's main_ppo, and its prompts.

    launch.sh        the command, with what became of every option; arguments are further overrides
    train.parquet    the prompts of the run in the order in which ours would draw them
    val.parquet      the held-out prompts
    config.toml      the configuration, for the reward function below

The objective runs through :mod:`equipoise.integrations.verl.plugin`, rewards through
`compute_score` here, which asks our task and our [reward] section; options.py has what becomes of
each option. verl's own defaults hold for whatever no option of ours speaks of.

Not covered: Megatron, critics, reward models, agents with tools;
verl has none of our evaluation but the mean reward.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from equipoise.config import Config, dump, load
from equipoise.integrations.data import Row, messages_of, source_of, verl_row, write_parquet
from equipoise.integrations.launch import (
    Launch,
    open_task,
    portable,
    refuse_existing,
    refuse_without_teacher,
    settled,
)
from equipoise.integrations.reward import HELD_OUT, TRAIN, Rewards
from equipoise.integrations.verl.options import settings
from equipoise.integrations.verl.script import script
from equipoise.tasks import Prompt, Task


def export_verl(config: Config, out: Path) -> Launch:
    """Write the launch of a configuration into a new folder."""
    config = portable(settled(config))
    refuse_without_teacher(config, "verl")
    task = open_task(config)
    found = settings(config, task)
    launch = Launch(
        "verl", config, found, {"config.toml": dump(config), "launch.sh": script(config, found)}
    )
    data = {"train.parquet": _rows(config, task), "val.parquet": _held_out(config, task)}
    for name in (*launch.files, *data):
        refuse_existing(out / name)
    for name, rows in data.items():
        write_parquet(rows, out / name)
    launch.write(out)  # last: a launch that is there is whole
    return launch


def _rows(config: Config, task: Task) -> Iterator[Row]:
    rollout = config.rollout
    count = (
        rollout.prompts
        * config.train.steps
        * (rollout.max_draws if rollout.dynamic_sampling else 1)
    )
    return (_row(config, task, task.prompt(i), TRAIN, i) for i in range(count))


def _held_out(config: Config, task: Task) -> Iterator[Row]:
    prompts = task.evaluation(config.eval.per_level)
    return (_row(config, task, prompt, HELD_OUT, i) for i, prompt in enumerate(prompts))


def _row(config: Config, task: Task, prompt: Prompt, split: str, index: int) -> Row:
    messages = tuple(messages_of(prompt, config.task.system)) if config.task.chat else None
    shown = dataclasses.replace(prompt, messages=messages)
    return verl_row(shown, source_of(task.name), split, index)


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any],
    config: str,
) -> dict[str, Any]:
    """verl's custom_reward_function: the weighted sum of our rewards, and whether it was right.

    The length is verl's to judge (reward.overlong_buffer),
    and a verdict without a score counts as a wrong answer.
    """
    rewards = _rewards(config)
    place = str(extra_info["split"]), int(extra_info["index"])
    (row,), (verdict,) = rewards([place], [solution_str], [0])
    prices = rewards.config.reward
    total = sum(
        k * (prices.wrong if math.isnan(r) else r) for k, r in zip(prices.weights, row, strict=True)
    )
    return {"score": total, "acc": float(verdict == "correct"), "verdict": verdict}


def _rewards(path: str) -> Rewards:
    """Opened once in a process, whose threads ask for it all at once."""
    with _opening:
        return _opened(path)


_opening = threading.Lock()


@functools.cache
def _opened(path: str) -> Rewards:
    config = load(path)
    return Rewards(config, open_task(config))

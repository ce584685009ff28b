"""A task by its name in a configuration."""

from __future__ import annotations

from equipoise.tasks.arithmetic import Arithmetic
from equipoise.tasks.dataset import Dataset
from equipoise.tasks.gym import Gym
from equipoise.tasks.task import Task, TaskError


def open_task(name: str, seed: int) -> Task:
    """`arithmetic`, `gym:NAME` (a reasoning-gym task) or the path of a .jsonl file."""
    if name == "arithmetic":
        return Arithmetic(seed=seed)
    if name.startswith("gym:"):
        return Gym(name.removeprefix("gym:"), seed=seed)
    if name.endswith(".jsonl"):
        return Dataset(name, seed=seed)
    raise TaskError(f'task.name = "{name}" is not a task: arithmetic, gym:NAME or a .jsonl file')

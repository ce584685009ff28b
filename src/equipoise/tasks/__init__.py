"""Where prompts come from: built-in arithmetic, reasoning-gym, files and hub data sets."""

from equipoise.tasks.arithmetic import Arithmetic
from equipoise.tasks.check import Summary
from equipoise.tasks.dataset import Dataset
from equipoise.tasks.gym import Gym
from equipoise.tasks.open import open_demonstrations, open_task
from equipoise.tasks.task import Prompt, Task, TaskError

__all__ = [
    "Arithmetic",
    "Dataset",
    "Gym",
    "Prompt",
    "Summary",
    "Task",
    "TaskError",
    "open_demonstrations",
    "open_task",
]

"""What a run knows of each prompt: how often it was answered, with what mean reward, and when last.

Every scored response counts, also of groups that dynamic sampling drops: leaving out what nobody or everybody solved
would make hard prompts look easier and easy ones harder. Kept in checkpoints, and as `prompts.parquet` for people.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class PromptHistory:
    """`seen`: prompt id → [responses, sum of rewards, step]."""

    def __init__(self) -> None:
        self.seen: dict[str, list[float]] = {}

    def mean_rewards(self, ids: Sequence[str]) -> list[float]:
        """The mean reward of each prompt so far, NaN for one that was never seen."""
        return [self.seen[i][1] / self.seen[i][0] if i in self.seen else math.nan for i in ids]

    def record(self, ids: Sequence[str], rewards: Sequence[float], step: int) -> None:
        for i, reward in zip(ids, rewards, strict=True):
            attempts, total, _ = self.seen.get(i, (0, 0.0, 0))
            self.seen[i] = [attempts + 1, total + reward, step]

    def state_dict(self) -> dict[str, Any]:
        return {"seen": {i: list(facts) for i, facts in self.seen.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = {i: list(facts) for i, facts in state["seen"].items()}

    def write(self, path: Path) -> None:
        """A row per prompt, whole or not at all."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = list(zip(*self.seen.values(), strict=True)) or [(), (), ()]
        table = pa.table(
            {
                "prompt_id": pa.array(self.seen, pa.string()),
                "attempts": pa.array(columns[0], pa.int64()),
                "mean_reward": pa.array(self.mean_rewards(list(self.seen)), pa.float64()),
                "last_step": pa.array(columns[2], pa.int64()),
            }
        )
        temporary = path.with_name(f".{path.name}.writing")
        pq.write_table(table, temporary)
        temporary.replace(path)

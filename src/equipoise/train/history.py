"""What a run knows of each prompt: how often it was answered, with what success, when last.

Every scored response counts, also of groups that dynamic sampling drops: leaving out what nobody or
everybody solved would make hard prompts look easier and easy ones harder. Success is accuracy,
whatever shaping makes of the reward. Kept in checkpoints, and as `prompts.parquet` for people.

An objective that weighs by history takes an attempt of k steps ago for decay^k of one. Attempts of
several steps have different ages, so they are discounted here, up to the last one's step; the
objective discounts the steps since then, which `counts` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equipoise.files import whole


class PromptHistory:
    """`seen`: prompt id → [responses, sum of their successes, last step, and the first two discounted
    up to it].
    """

    def __init__(self, decay: float = 1.0) -> None:
        self.decay = decay
        self.seen: dict[str, list[float]] = {}

    def counts(self, ids: Sequence[str], step: int) -> list[list[float]]:
        """Discounted successes and attempts, and steps since the last, for each prompt; zeros for a
        new one.
        """
        out = []
        for i in ids:
            _, _, last, attempts, successes = self.seen.get(i, (0, 0.0, step, 0.0, 0.0))
            out.append([successes, attempts, step - last])
        return out

    def record(self, ids: Sequence[str], successes: Sequence[float], step: int) -> None:
        for i, success in zip(ids, successes, strict=True):
            count, total, last, attempts, recent = self.seen.get(i, (0, 0.0, step, 0.0, 0.0))
            worth = self.decay ** (step - last)
            self.seen[i] = [
                count + 1,
                total + success,
                step,
                worth * attempts + 1,
                worth * recent + success,
            ]

    def copy(self) -> PromptHistory:
        """As it is now; `record` puts new facts in the place of old ones, so they can be shared."""
        same = PromptHistory(self.decay)
        same.seen = dict(self.seen)
        return same

    def state_dict(self) -> dict[str, Any]:
        return {"seen": {i: list(facts) for i, facts in self.seen.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # the first runs had no discounted counts
        self.seen = {i: [*facts, *facts[: 5 - len(facts)]] for i, facts in state["seen"].items()}

    def write(self, path: Path) -> None:
        """A row per prompt, whole or not at all."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = list(zip(*self.seen.values(), strict=True)) or [(), (), ()]
        table = pa.table(
            {
                "prompt_id": pa.array(self.seen, pa.string()),
                "attempts": pa.array(columns[0], pa.int64()),
                "accuracy": pa.array(
                    [total / count for count, total, *_ in self.seen.values()], pa.float64()
                ),
                "last_step": pa.array(columns[2], pa.int64()),
            }
        )
        with whole(path) as temporary:
            pq.write_table(table, temporary)

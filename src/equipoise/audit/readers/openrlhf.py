"""OpenRLHF writes no rollouts: its trackers get one response a step, which has no group.

Its `Experience` holds them in memory. `columns` makes a table of a step's experiences (what
`make_experience_batch` returns) for `audit.from_table` or a Parquet file; the file is recognised by
the experience's own field names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

COLUMNS = ("prompts", "rewards", "response_length", "truncated")


def columns(experiences: Iterable[Any], step: int) -> dict[str, list[Any]]:
    """The responses of a step's experiences, by column."""
    out: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, "step")}
    for experience in experiences:
        rewards = experience.rewards.reshape(-1).tolist()
        out["prompts"] += list(experience.prompts)
        out["rewards"] += rewards
        out["response_length"] += [int(n) for n in experience.response_length.reshape(-1).tolist()]
        out["truncated"] += [bool(cut) for cut in experience.truncated.reshape(-1).tolist()]
        out["step"] += [step] * len(rewards)
    return out

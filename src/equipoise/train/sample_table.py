"""A few responses of a step as rows of a table, for people who follow a run in a tracker.

Not covered: all of them, which are in the rollout files of the run directory.
"""

from __future__ import annotations

from equipoise.objective import Credit
from equipoise.train.batch import StepBatch


def sample_rows(
    batch: StepBatch, credit: Credit, count: int, step: int
) -> list[dict[str, str | float]]:
    """At most `count` rows spread evenly over the batch: different prompts if there are many."""
    total = len(batch.texts)
    chosen = range(0, total, max(1, -(-total // count)))
    group = batch.rollouts.prompt.tolist()
    lengths = batch.rollouts.lengths.tolist()
    rows: list[dict[str, str | float]] = []
    for i in chosen:
        prompt = batch.prompts[group[i]]
        rows.append(
            {
                "step": step,
                "prompt_id": prompt.id,
                "prompt": prompt.text,
                "response": batch.texts[i],
                "reward": float(batch.total[i]),
                "verdict": batch.verdicts[i],
                "advantage": float(credit.advantage[i]),
                "length": lengths[i],
            }
        )
    return rows

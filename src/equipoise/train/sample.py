"""What the model read and wrote: prompts with special tokens, a run's first response, and a few
responses of a step for a tracker. All of them are in the rollout files of the run directory.
"""

from __future__ import annotations

from collections.abc import Sequence

from equipoise import policy as models
from equipoise.objective import Credit
from equipoise.train.batch import StepBatch
from equipoise.train.score import one_line

SHOWN = 600  # characters of a prompt and of a response on the terminal


def as_read(policy: models.Policy, prompts: Sequence[Sequence[int]]) -> list[str]:
    """The texts of encoded prompts, special tokens and template included."""
    return [str(text) for text in policy.tokenizer.batch_decode([list(ids) for ids in prompts])]


def first_sample(policy: models.Policy, batch: StepBatch) -> str:
    """The first prompt of a step and its first response, in two lines for the terminal."""
    (prompt,) = as_read(policy, batch.rollouts.prompts[:1])
    length, finish = int(batch.rollouts.lengths[0]), batch.rollouts.finish[0]
    end = "cut" if finish == "length" else "ended"
    verdict = f"{batch.verdicts[0]}, reward {float(batch.total[0]):g}, {length} tokens, {end}"
    return (
        f"the model read   {short(prompt)}\nit answered      {short(batch.texts[0])}  ({verdict})"
    )


def short(text: str) -> str:
    """One line, of a long text its beginning and its end."""
    if len(text) > SHOWN:
        half = SHOWN // 2
        text = f"{text[:half]} … {len(text) - 2 * half:,} characters … {text[-half:]}"
    return one_line(text)


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

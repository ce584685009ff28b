"""What the model read and wrote: prompts with special tokens, and a run's first response."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise import policy as models
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

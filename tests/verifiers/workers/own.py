"""Reward functions in every form that is taken, and some that are not; test_functions.py writes this file elsewhere."""

import asyncio
import dataclasses
import time

import numpy as np

from equipoise.verifiers import Verdict


@dataclasses.dataclass
class Kept:
    """A dataclass looks up the module it stands in."""

    calls: int = 0


KEPT = Kept()


def one(prompt, response, row):
    return float(len(response) + len(row["answer"]))


async def one_async(prompt, response, row):
    await asyncio.sleep(0)
    return float(len(response))


def group(prompts, completions, answer, **columns):
    """The share of the group that says the same, and where it stands: only a whole group can tell."""
    assert sorted(columns) == ["id", "level", "steps"]
    return [completions.count(c) / len(completions) + 10 * (c == a) for c, a in zip(completions, answer, strict=True)]


def group_without_columns(completions):
    return np.array([len(c) for c in completions])


async def group_async(prompts, completions, **columns):
    loop = asyncio.get_running_loop()
    KEPT.loop = getattr(KEPT, "loop", loop)
    assert KEPT.loop is loop  # a client made at the first call can be used at the next
    return await asyncio.gather(*[_length(c) for c in completions])


async def _length(completion):
    await asyncio.sleep(0.01)
    return float(len(completion))


def group_verdicts(completions, **columns):
    return [Verdict("correct" if c == "right" else "unparsed", "r" * 5000) for c in completions]


def keywords(**columns):
    return [1.0] * len(columns["completions"])


def conversational(prompts, completions, **columns):
    """As TRL's own examples read them where the data is conversational."""
    assert prompts[0][-1]["role"] == "user"
    return [float(len(completion[0]["content"])) for completion in completions]


def too_few(completions, **columns):
    return [1.0]


def not_a_list(completions, **columns):
    return 1.0


def none_for_the_second(completions, **columns):
    return [1.0, None]


def text_for_the_second(completions, **columns):
    return [1.0, "1"]


def a_list_for_one(prompt, response, row):
    return [1.0]


def needs_images(completions, images, **columns):
    return [0.0 for _ in completions]


def wrong_signature(text, reference):
    return 0.0


def hangs(prompt, response, row):
    time.sleep(60)


def group_hangs(completions, **columns):
    time.sleep(60)


class Method:
    def __call__(self, prompt, response, row):
        return 3.0


method = Method()

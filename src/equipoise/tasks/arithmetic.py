"""The built-in task: chains of two to five numbers, added up in written-out steps.

    prompt      47+8+5=
    response    +8=54~+8=55+5=60#60

A step adds the next number to the running sum; `~` after a step says that the writer has seen a
slip and writes it again. `#` marks the answer. The verifier looks at the answer alone; nothing
obliges a model to write steps.

Training and held-out prompts are apart by construction: a hash of the numbers, whatever their
order, puts every chain on one side. The additions inside the chains are shared (there are only so
many), so held-out means a new chain, not a new addition table.

`trace` writes the synthetic responses the embedded model is warmed up on. Its second attempts, and
numbers added twice, are what makes wrong answers run longer than right ones.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from equipoise.tasks.order import shuffled
from equipoise.tasks.task import Prompt
from equipoise.verifiers.verdict import Verdict

LEVELS = ("2", "3", "4", "5")
HELD_OUT_ONE_IN = 8
EVALUATION_PER_LEVEL = 64
MOST_PER_LEVEL = 90


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Chains of each level equally often; `seed` orders the stream, not the held-out set.

    `size`: that many chains, which come again in every epoch; 0 is a stream without an end.
    """

    seed: int = 0
    size: int = 0
    name: str = "arithmetic"
    max_tokens: int = 64
    stop: tuple[str, ...] = ()

    def prompt(self, i: int) -> Prompt:
        if i < 0:
            raise ValueError(f"prompt({i}): the training stream starts at 0")
        if self.size:
            epoch, place = divmod(i, self.size)
            i = int(shuffled(np.arange(self.size), self.seed, epoch)[place])
        draw = random.Random(f"equipoise/arithmetic/{self.seed}/{i}")
        return _draw_chain(draw, draw.choice(LEVELS), held_out=False)

    def evaluation(self, per_level: int | None = None) -> list[Prompt]:
        size = EVALUATION_PER_LEVEL if per_level is None else per_level
        if not 1 <= size <= MOST_PER_LEVEL:
            raise ValueError(
                f"evaluation(per_level={per_level}): 1 to {MOST_PER_LEVEL} are held out per level"
            )
        return [prompt for level in LEVELS for prompt in _held_out(level, size)]

    def grade(self, prompt: Prompt, response: str) -> Verdict:
        return grade(response, prompt.answer)


def grade(response: str, answer: str) -> Verdict:
    """The number after the last `#`, if the response ends with it and takes back no other.

    - no `#`, a `#` without a number behind it, or anything but white space after the last number: unparsed;
    - several `#` with different numbers: wrong, even if one of them is right;
    - the number must be written as the reference is: ASCII digits, no sign, no leading zeros.

    A response cut off in the middle of its number is graded as it stands; whoever cut it knows.
    """
    marked = [re.match(r"\s*([0-9]+)", after) for after in response.split("#")[1:]]
    if not marked:
        return Verdict("unparsed", "no answer mark #")
    if not all(marked):
        return Verdict("unparsed", "an answer mark # without a number behind it")
    given = [match.group(1) for match in marked if match]
    if response.rpartition("#")[2].strip() != given[-1]:
        return Verdict("unparsed", "text after the answer")
    if len(set(given)) > 1:
        return Verdict(
            "wrong", f"several answers: {', '.join(number[:20] for number in given[:4])}"
        )
    if given[-1] != answer:
        return Verdict("wrong", f"answered {given[-1][:20]}, expected {answer}", answer=given[-1])
    return Verdict("correct", answer=given[-1])


def trace(
    numbers: Sequence[int],
    draw: random.Random,
    slip: float,
    notice: float,
    again: float,
    twice: float,
) -> str:
    """A worked response to a chain, with the mistakes of a hasty writer.

    A step's result is wrong with probability `slip`. A wrong result is seen with probability
    `notice` and the step written again, now wrong with probability `again`. A number is added a
    second time with probability `twice`.
    """
    written, total = "", numbers[0]
    for number in numbers[1:]:
        for _ in range(1 + (draw.random() < twice)):
            right, chance = total + number, slip
            while True:
                total = _slip(right, draw) if draw.random() < chance else right
                written += f"+{number}={total}"
                if total == right or draw.random() >= notice:
                    break
                written += "~"
                chance = again
    return f"{written}#{total}"


def _slip(result: int, draw: random.Random) -> int:
    """A result gone wrong the way sums do: a carry lost or gained, or a digit one or two off."""
    return max(result + draw.choice((-10, 10, -10, 10, -1, 1, -2, 2, -20, 20)), 0)


def _draw_chain(draw: random.Random, level: str, held_out: bool) -> Prompt:
    while True:
        numbers = [draw.randint(10, 99), *(draw.randint(1, 9) for _ in range(int(level) - 1))]
        if _is_held_out(numbers) == held_out:
            text = "+".join(map(str, numbers))
            return Prompt(id=text, text=f"{text}=", answer=str(sum(numbers)), level=level)


def _is_held_out(numbers: Sequence[int]) -> bool:
    key = "+".join(map(str, sorted(numbers)))
    return hashlib.sha256(key.encode()).digest()[0] % HELD_OUT_ONE_IN == 0


@cache
def _held_out(level: str, size: int) -> tuple[Prompt, ...]:
    """The first `size` different held-out chains of a level: longer lists begin as shorter ones."""
    draw = random.Random(f"equipoise/arithmetic/held-out/{level}")
    chosen: dict[tuple[int, ...], Prompt] = {}
    while len(chosen) < size:
        prompt = _draw_chain(draw, level, held_out=True)
        chosen.setdefault(tuple(sorted(map(int, prompt.id.split("+")))), prompt)
    return tuple(chosen.values())

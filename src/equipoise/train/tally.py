"""What each reward function did in a step, and when the run stops for it.

A step in which a function fails (crashes or times out) on more than half of the responses trains
nothing; the third such step in a row stops the run. A program that crashes in the sandbox is the
response's failure, not the verifier's, and is not counted here. Not here: responses without a score
(`reward.max_unscored`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

MOST = 0.5  # share of a function's responses past which it has failed in a step
STEPS = 3  # such steps in a row before the run stops
KINDS = ("crashed", "timeout", "unparsed")


@dataclass
class Tally:
    """One function over the responses of a step, those without a score as well."""

    name: str  # as the configuration has it
    label: str  # as metrics have it
    kinds: Counter[str] = field(default_factory=Counter)
    scored: int = 0
    total: float = 0.0  # of the rewards of those
    failed: int = 0
    reason: str = ""  # of the first failure

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.name,
            self.label,
            self.kinds + other.kinds,
            self.scored + other.scored,
            self.total + other.total,
            self.failed + other.failed,
            self.reason or other.reason,
        )

    @property
    def fails(self) -> bool:
        return self.failed > MOST * self.kinds.total()

    def metrics(self) -> dict[str, float]:
        responses = max(self.kinds.total(), 1)
        mean = self.total / self.scored if self.scored else math.nan
        shares = {f"rewards/{self.label}/{kind}": self.kinds[kind] / responses for kind in KINDS}
        return {f"rewards/{self.label}/mean": mean, **shares}


def joined(parts: Sequence[Sequence[Tally]]) -> list[Tally]:
    """The tallies of several draws, or of several processes, function by function."""
    return [sum(rest, first) for first, *rest in zip(*parts, strict=True)]


def labels(names: Sequence[str]) -> list[str]:
    """Short names of functions for metrics and columns: behind the colon, numbered if alike."""
    short = [name.rpartition(":")[2] for name in names]
    return [name if short.count(name) == 1 else f"{name}_{k}" for k, name in enumerate(short)]


class Failing:
    """The functions that have failed in the last steps, and for how many steps in a row each."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self.sentence = ""  # why the run must stop

    def see(self, tallies: Sequence[Tally]) -> bool:
        """Take in a step; whether it must not be trained on."""
        failed = [tally for tally in tallies if tally.fails]
        self.steps = {tally.name: self.steps.get(tally.name, 0) + 1 for tally in failed}
        for tally in failed:
            if self.steps[tally.name] >= STEPS:
                self.sentence = _sentence(tally)
        return bool(failed)


def _sentence(tally: Tally) -> str:
    timeouts = tally.kinds["timeout"]
    if timeouts > tally.failed / 2:
        how, fix = "timed out", "make it faster, or raise reward.seconds"
    else:
        how = "crashed"
        fix = 'repair it; for a response it cannot read it can return Verdict("unparsed")'
    share = tally.failed / tally.kinds.total()
    return (
        f"the reward function {tally.name} {how} on {share:.0%} of the responses, the third step in a row on more than "
        f"half of them ({tally.reason}); those steps trained nothing: {fix}"
    )

"""The papers' evaluation protocols: how many samples a problem gets, and at which temperature.

    ba      8 samples of every problem at temperature 1: acc@8, best@8 (Balanced Aggregation)
    hadw    16 samples of every AIME and AMC problem, 1 of every other (HA-DW)

What the papers do not say, and is chosen here: HA-DW's temperature (1), and its single sample
elsewhere. Neither paper gives intervals; all metrics here have one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Protocol:
    """`more` names the benchmarks whose problems get another number of samples."""

    samples: int
    temperature: float = 1.0
    more: Mapping[str, int] = field(default_factory=dict)

    def samples_of(self, benchmark: str) -> int:
        return self.more.get(benchmark, self.samples)


PROTOCOLS = {
    "ba": Protocol(8),
    "hadw": Protocol(1, more={"aime24": 16, "aime25": 16, "amc23": 16}),
}

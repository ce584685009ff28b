"""What an attack has found: clusters of exploits, inputs that were slow or crashed, counts.

A cluster is why the judge refused and the shape of the minimal form. A response whose shape holds a
known minimal form of the same kind counts for that cluster without being minimised again.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.study.redteam.judge import REASONS
from equipoise.study.redteam.minimal import contains, shape
from equipoise.study.redteam.problems import Problem
from equipoise.train.folder import replace

Shape = tuple[str, ...]
MOST_TROUBLES = 50  # kept of each kind
EXAMPLES = 5  # of a cluster, besides the first


@dataclass
class Exploit:
    """The first exploit of a cluster; `minimal` is the least of `response` that is one too."""

    prompt: str
    response: str
    minimal: str
    truth: int
    why: str
    shape: str
    phase: str  # "random search" or "RL"
    tried: int  # responses up to this one
    seconds: float  # since the attack began
    seen: int = 1
    examples: list[str] = field(default_factory=list)


@dataclass
class Findings:
    """`tried` and `found` are by phase; `say` hears of every new cluster."""

    clusters: dict[tuple[str, Shape], Exploit] = field(default_factory=dict)
    shapes: Counter[Shape] = field(default_factory=Counter)
    tried: Counter[str] = field(default_factory=Counter)
    honest: int = 0
    troubles: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    troubled: Counter[str] = field(default_factory=Counter)
    say: Callable[[Exploit], None] = lambda exploit: None

    def trouble(
        self, kind: str, problem: Problem, response: str, reason: str, seconds: float
    ) -> None:
        """A verifier that ran out of time or crashed: no exploit, but somebody should know."""
        self.troubled[kind] += 1
        kept = self.troubles.setdefault(kind, [])
        if len(kept) < MOST_TROUBLES:
            kept.append(
                {
                    "prompt": problem.question,
                    "response": response,
                    "reason": reason[-300:],
                    "seconds": seconds,
                }
            )

    def known(self, why: str, whole: Shape) -> Exploit | None:
        """The cluster that explains a response of this shape: that of the longest minimal form."""
        inside = [key for key in self.clusters if key[0] == why and contains(whole, key[1])]
        return self.clusters[max(inside, key=lambda key: len(key[1]))] if inside else None

    def add(self, exploit: Exploit, least: Shape) -> Exploit:
        """A new cluster, or the one that has this shape already."""
        key = exploit.why, least
        if key in self.clusters:
            return self.count(self.clusters[key], exploit.response)
        self.clusters[key] = exploit
        self.say(exploit)
        return exploit

    def count(self, exploit: Exploit, response: str) -> Exploit:
        exploit.seen += 1
        if len(exploit.examples) < EXAMPLES and response not in exploit.examples:
            exploit.examples.append(response)
        return exploit

    def in_order(self) -> list[Exploit]:
        """The worst kind first, of a kind the one found first."""
        rank = {why: i for i, why in enumerate(REASONS)}
        worst = {
            e.why: rank.get(e.why.removeprefix("unmarked: "), len(rank))
            for e in self.clusters.values()
        }
        return sorted(self.clusters.values(), key=lambda e: (worst[e.why], e.why, e.tried))

    def found(self, phase: str) -> int:
        return sum(exploit.phase == phase for exploit in self.clusters.values())


def shape_of(text: str, problem: Problem) -> Shape:
    """With the question's own expression, however it is spaced, as E."""
    expression = r"\s*".join(map(re.escape, problem.expression.split()))
    parts = re.split(rf"(?<!\d){expression}(?!\d)", text)
    shapes = [shape(part, problem.truth) for part in parts]
    whole = list(shapes[0])
    for part in shapes[1:]:
        whole += ["E", *part]
    return tuple(whole)


def write_list(path: Path, findings: Findings, about: Mapping[str, Any]) -> None:
    """One JSON line for each cluster; `about` says which verifier in which version."""
    lines = [
        json.dumps({**dataclasses.asdict(exploit), **about}, ensure_ascii=False)
        for exploit in findings.in_order()
    ]
    replace(path, "".join(f"{line}\n" for line in lines))

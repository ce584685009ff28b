"""All tests of several studies taken together: what would pass if they were one family.

Holm's correction of a study is over its own rows. Whoever reads twenty studies reads all their
tests, so this counts again over all of them: Holm's (no false finding among all, at 5 %) and
Benjamini and Hochberg's (of the findings at most 5 % false, on average, for tests that do not
depend on each other or do so positively). Not here: a test of anything that no study named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from equipoise.evaluate.paired import LEVEL, holm
from equipoise.study.effects import Effect, effects
from equipoise.study.results import read_results


@dataclass(frozen=True)
class Tested:
    study: str
    effect: Effect
    holm: float  # over all tests of all studies


def all_tests(paths: Sequence[str | Path]) -> list[Tested]:
    """Of every study's rows that have two whole seeds, the smallest p first."""
    found = [
        (Path(path).stem, effect)
        for path in paths
        for effect in effects(read_results(path))
        if effect.seeds > 1
    ]
    corrected = holm([effect.p for _, effect in found])
    tested = [Tested(*named, p) for named, p in zip(found, corrected, strict=True)]
    return sorted(tested, key=lambda test: test.effect.p)


def findings(p: Sequence[float]) -> int:
    """Benjamini and Hochberg's step-up: how many of the smallest p keep the rate of false ones."""
    ranked = enumerate(sorted(p), start=1)
    return max((rank for rank, value in ranked if value <= LEVEL * rank / len(p)), default=0)


def show(paths: Sequence[str | Path]) -> None:
    console = Console(highlight=False, markup=False)
    tests = all_tests(paths)
    in_file = [test for test in tests if test.effect.holm < LEVEL]
    everywhere = [test for test in tests if test.holm < LEVEL]
    console.print(
        f"{len(tests)} tests in {len({test.study for test in tests})} studies: {len(in_file)} pass Holm's within "
        f"their study, {len(everywhere)} over all, "
        f"{findings([test.effect.p for test in tests])} keep the rate of false findings below 5 %",
        soft_wrap=True,
    )
    for test in in_file:
        row = test.effect.primary
        mark = "passes over all" if test.holm < LEVEL else "in its study alone"
        console.print(
            f"  {mark}: {test.study}, {row.claim} ({row.metric}): p {test.effect.p:.2g}, "
            f"in its study {test.effect.holm:.2g}, over all {test.holm:.2g}; {test.effect.verdict}",
            soft_wrap=True,
        )
    console.print(_closed_forms(paths), soft_wrap=True)


def _closed_forms(paths: Sequence[str | Path]) -> str:
    """How many groups of how many runs were held to the closed forms, and the worst of them."""
    runs = [run for path in paths for run in read_results(path)["runs"].values()]
    checks = [run["closed_form"] for run in runs if "closed_form" in run]
    if not checks:
        return ""
    groups = sum(check["groups"] for check in checks)
    worst = max(check["off"] for check in checks)
    return (
        f"Closed forms: {groups} groups of {len(checks)} runs (of {len(runs)}), "
        f"none off by more than {worst:.1e} of its scale"
    )

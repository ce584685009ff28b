"""Which runs are one variant: those whose configurations are the same but for the seed.

A run without a configuration is a variant of its own, and so is a repetition of a seed, which is no
second draw. Not here: what is made of a variant's runs (over_seeds.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from equipoise.report.runs import Run

# what seeds of a variant may differ in
APART = frozenset({("train", "seed"), ("train", "out"), ("train", "threads")})


@dataclass(frozen=True)
class VariantRuns:
    """`runs`: their places among the page's runs, in the order of their seeds."""

    name: str
    runs: list[int]


def variants(runs: Sequence[Run]) -> list[VariantRuns]:
    """In the order of their first runs; [] where no two runs are one variant."""
    together: dict[str, list[int]] = {}
    seen: Counter[str] = Counter()
    for i, run in enumerate(runs):
        same = json.dumps(_options(run), sort_keys=True, default=str) if run.config else f"run {i}"
        again = f"{same} seed {run.option('train.seed')}"
        together.setdefault(f"{same} {seen[again]}", []).append(i)
        seen[again] += 1
    found = [sorted(members, key=lambda i: _seed(runs[i])) for members in together.values()]
    if all(len(members) == 1 for members in found):
        return []
    return [
        VariantRuns(name, members) for name, members in zip(_names(runs, found), found, strict=True)
    ]


def _options(run: Run) -> dict[str, Any]:
    """Section.key → value of all options that make a variant; where a run logs to makes none."""
    return {
        f"{section}.{key}": value
        for section, values in run.config.items()
        if section != "log"
        for key, value in values.items()
        if (section, key) not in APART
    }


def _seed(run: Run) -> int:
    seed = run.option("train.seed")
    return seed if isinstance(seed, int) else 0


def _names(runs: Sequence[Run], found: Sequence[Sequence[int]]) -> list[str]:
    """The folder of a variant's seeds, as `compare` makes it, or the options that differ."""
    folders = [{runs[i].path.resolve().parent for i in members} for members in found]
    owners = Counter(folder for parents in folders for folder in parents)
    by_folder = []
    for members, parents in zip(found, folders, strict=True):
        alone = len(members) == 1
        folder = next(iter(parents))
        whole = len(parents) == 1 and owners[folder] == 1
        by_folder.append(runs[members[0]].name if alone else folder.name if whole else "")
    if all(by_folder) and len(set(by_folder)) == len(by_folder):
        return by_folder
    return _distinct([_differing(_options(runs[members[0]]), runs, found) for members in found])


def _differing(options: dict[str, Any], runs: Sequence[Run], found: Sequence[Sequence[int]]) -> str:
    everyone = [_options(runs[members[0]]) for members in found]
    keys = dict.fromkeys(key for each in everyone for key in each)
    differ = [
        key
        for key in keys
        if len({json.dumps(each.get(key), default=str) for each in everyone}) > 1
    ]
    return (
        ", ".join(f"{key.partition('.')[2]}={_short(options.get(key))}" for key in differ)
        or "all runs"
    )


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("name", value))
    return "default" if value is None else str(value)


def _distinct(names: Sequence[str]) -> list[str]:
    """Two that differ in nothing a name shows, as repetitions do, are numbered."""
    seen: Counter[str] = Counter()
    out = []
    for name in names:
        seen[name] += 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out


def aligned(runs: Sequence[Run], found: Sequence[VariantRuns]) -> list[Run]:
    """The runs cut to the steps that all begun seeds of their variant have."""
    out = list(runs)
    for variant in found:
        begun = [runs[i].steps for i in variant.runs if runs[i].steps]
        if len(begun) < 2 or all(steps == begun[0] for steps in begun):
            continue
        shared = set.intersection(*map(set, begun))
        for i in variant.runs:
            out[i] = _cut(runs[i], shared)
    return out


def _cut(run: Run, steps: set[int]) -> Run:
    kept = [k for k, step in enumerate(run.steps) if step in steps]
    return replace(
        run,
        steps=[run.steps[k] for k in kept],
        metrics={name: [column[k] for k in kept] for name, column in run.metrics.items()},
    )

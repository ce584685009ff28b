"""Cells of published studies, trained again: does each lie among the published runs of its variant?

    equipoise study verify studies/results/off_policy.json --variant balanced --seed 100
    equipoise study verify studies/results/accuracy*.json --jobs 8    one cell of each, by its name

On a machine that rounds as the first one did a cell comes out the same to the digit. On others the
runs part ways and the cell is a new draw: it must lie in the 99 % prediction interval of the
published seeds, or between the lowest and the highest of them.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from scipy import stats

from equipoise.study import results as found_in
from equipoise.study import start
from equipoise.study.plan import Study, of_results
from equipoise.study.registered import unit_of
from equipoise.study.results import collect, read_results, value_of
from equipoise.study.runs import train_all
from equipoise.train import Config, ConfigError

WORDS = SAME, INSIDE, OUTSIDE = "the same to the digit", "inside", "OUTSIDE"


class Cell(NamedTuple):
    """A run of a study to train again, and where."""

    results: Mapping[str, Any]
    variant: str
    seed: int
    out: Path

    @property
    def name(self) -> str:
        return f"{self.variant}/seed-{self.seed}"

    @property
    def start(self) -> Path:
        return self.out.with_name(f"{self.out.name}-start")

    def config(self, study: Study) -> Config:
        return study.one(self.variant, self.seed, self.out, start=self.start)


def cells(
    paths: Sequence[str | Path], variant: str | None, seed: int | None, out: Path
) -> dict[str, Cell]:
    """The cell that is named, or where none is, one of each file."""
    if variant is None and seed is None:
        drawn = {Path(path).stem: _drawn(path, out / Path(path).stem) for path in paths}
        if len(drawn) < len(paths):
            raise ConfigError(
                "study verify: each cell has a folder by its file's name; two are alike"
            )
        return drawn
    if variant is None or seed is None or len(paths) > 1:
        raise ConfigError(
            "study verify: --variant and --seed together name a cell of one file; without them one of each is drawn"
        )
    results = read_results(paths[0])
    known = of_results(results).variants
    if variant not in known:
        raise ConfigError(f'--variant "{variant}" is not one of {", ".join(known)}')
    return {Path(paths[0]).stem: Cell(results, variant, seed, out)}


def _drawn(path: str | Path, out: Path) -> Cell:
    """With the file's name as the seed: the same at every call, so that the command goes on where
    it was stopped.
    """
    results = read_results(path)
    published = [
        (variant, seed)
        for variant in of_results(results).variants
        for seed in sorted(found_in.finished(results, variant))
    ]
    if not published:
        raise ConfigError(f"{path}: no run of it is finished, so none can be trained again")
    return Cell(results, *random.Random(Path(path).stem).choice(published), out)


def verify(which: Mapping[str, Cell], jobs: int = 0) -> bool:
    """Train them again: whether all lie among the published."""
    console = Console(highlight=False, markup=False)
    failed = {
        stem: "one published run has no interval"
        for stem, cell in which.items()
        if len(found_in.finished(cell.results, cell.variant)) < 2
    }
    studies = {stem: of_results(cell.results) for stem, cell in which.items() if stem not in failed}
    start.make_all(
        {
            which[stem].start: study.start
            for stem, study in studies.items()
            if study.start is not None
        }
    )
    configs = {stem: which[stem].config(study) for stem, study in studies.items()}
    failed |= train_all(configs, console, jobs, patient=len(which) > 1, weights=False)
    said: Counter[str] = Counter()
    for stem, cell in which.items():
        console.print(f"{stem}: {cell.name}", soft_wrap=True)
        if stem in failed:
            console.print(f"  {failed[stem]}", soft_wrap=True)
            continue
        again = collect(studies[stem], {cell.name: configs[stem]}, {})["runs"][cell.name]
        said += _beside(cell, again, console)
    counts = ", ".join(f"{said[word]} {word}" for word in WORDS if said[word])
    cells_said = f"{len(which)} {'cell' if len(which) == 1 else 'cells'}, {len(failed)} failed"
    console.print(f"{cells_said}; measures: {counts or 'none'}")
    return not (said[OUTSIDE] or failed)


def _beside(cell: Cell, again: Mapping[str, Any], console: Console) -> Counter[str]:
    """What the study tests, of this cell beside the published ones."""
    found: Counter[str] = Counter()
    for metric, at in dict.fromkeys(
        (row.metric, row.at) for row in of_results(cell.results).primary
    ):
        published = {
            seed: value_of(record, metric, at)
            for seed, record in found_in.finished(cell.results, cell.variant).items()
        }
        value, own, unit = value_of(again, metric, at), published.get(cell.seed), unit_of(metric)
        all_seeds = np.array(list(published.values()))
        mean, half = prediction(all_seeds)
        low, high = min(mean - half, all_seeds.min()), max(mean + half, all_seeds.max())
        word = SAME if value == own else INSIDE if low <= value <= high else OUTSIDE
        found[word] += 1
        of_seed = "" if own is None else f"{unit * own:.4g} with this seed, "
        console.print(
            f"  {metric} {at}: {unit * value:.4g}, published {of_seed}{unit * mean:.4g} ±{unit * half:.2g} over "
            f"{len(all_seeds)} (99 % of single runs): {word}",
            soft_wrap=True,
        )
    return found


def prediction(values: np.ndarray) -> tuple[float, float]:
    """The mean, and half the interval that one more run lies in 99 times of 100."""
    spread = values.std(ddof=1) * math.sqrt(1 + 1 / len(values))
    return float(values.mean()), float(stats.t.ppf(0.995, len(values) - 1) * spread)

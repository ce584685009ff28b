"""A study written down before its runs: variants, seeds, and the differences that will be tested.

    equipoise study run studies/off_policy.toml --out runs/off_policy    train what is missing, then test
    equipoise study show studies/results/off_policy.json                 the tables again, from the results alone
    equipoise study verify studies/results/off_policy.json --variant balanced --seed 100

A study file has `question`, `seeds = [first, last]`, a table `config` (as for `equipoise train`), `variants` (dotted
options each) and the `primary` differences: a metric of the last evaluation and the two variants to subtract. Only
these are tested, with Holm's correction over them; whatever else the results show is exploratory and is called so.

The results are one small JSON file: every evaluation's numbers of every run, no weights and no samples. Runs of a seed
share prompts and draws, so the unit is the difference within a seed, and only seeds that every variant has finished
count. Not covered: searching for learning rates, and measures that are not in an evaluation.
"""

from __future__ import annotations

import json
import math
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from equipoise.study.compare import holm, interval, paired_p, seeds_needed
from equipoise.study.runs import train_all
from equipoise.train import Config, ConfigError, RunFolder, load, read_lines
from equipoise.train.folder import replace

Numbers = dict[str, float]  # metric → value of one evaluation


@dataclass(frozen=True)
class Primary:
    """One difference named beforehand: `metric` of the last evaluation, `plus` − `minus`."""

    claim: str
    metric: str
    plus: str
    minus: str


@dataclass(frozen=True)
class Study:
    question: str
    seeds: range
    config: dict[str, Any]  # sections of a configuration
    variants: dict[str, dict[str, Any]]  # name → dotted option → value
    primary: list[Primary]

    def configs(self, out: Path) -> dict[str, Config]:
        """Seed by seed: a study that is stopped half way has whole pairs."""
        return {
            f"{name}/seed-{seed}": self.one(name, seed, out / name / f"seed-{seed}")
            for seed in self.seeds
            for name in self.variants
        }

    def one(self, variant: str, seed: int, out: Path) -> Config:
        options = {**_flat(self.config), **self.variants[variant]}
        options |= {"train.seed": seed, "train.out": str(out), "log.terminal": False}
        options.setdefault("train.threads", 1)
        return load(None, [part for key, value in options.items() for part in (f"--{key}", _text(value))])


def read(path: str | Path) -> Study:
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    return _study(table, str(path))


def _study(table: Mapping[str, Any], name: str) -> Study:
    keys = {"question", "seeds", "config", "variants", "primary"}
    if set(table) != keys:
        odd = ", ".join(sorted(set(table) ^ keys))
        raise ConfigError(f"{name}: a study must have {', '.join(sorted(keys))}, and nothing else: look at {odd}")
    first, last = table["seeds"]
    if not 0 <= first < last:
        raise ConfigError(f"{name}: seeds = [{first}, {last}] must be the first and the last of two or more")
    primary = [Primary(**row) for row in table["primary"]]
    for row in primary:
        for variant in (row.plus, row.minus):
            if variant not in table["variants"]:
                raise ConfigError(f'{name}: "{variant}" is not one of the variants {", ".join(table["variants"])}')
    return Study(table["question"], range(first, last + 1), table["config"], table["variants"], primary)


def _flat(sections: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}


def _text(value: Any) -> str:
    """As an override on the command line has it: a text as it stands, anything else in TOML."""
    return value if isinstance(value, str) else _toml(value)


def _toml(value: Any) -> str:
    """JSON is TOML for texts, numbers, truth values and lists of them; only tables are written otherwise."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    return json.dumps(value)


def run(path: str | Path, out: Path, jobs: int = 0, minutes: float = math.inf) -> None:
    """Train what is not trained yet, for at most `minutes`; then write `results.json` and print the tables."""
    console = Console(highlight=False)
    study = read(path)
    configs = study.configs(out)
    for config in configs.values():
        config.check()
    count = f"{len(study.variants)} variants × {len(study.seeds)} seeds"
    console.print(f"{study.question}\n{count}, {next(iter(configs.values())).train.steps} steps each\n")
    failed = train_all(configs, console, jobs, stop_at=time.monotonic() + 60 * minutes, patient=True)
    results = collect(study, {name: RunFolder(config.train.out) for name, config in configs.items()}, failed)
    replace(out / "results.json", json.dumps(results, indent=1) + "\n")
    show(results, console)
    console.print(f"\n{out / 'results.json'}", soft_wrap=True)


def collect(study: Study, folders: Mapping[str, RunFolder], failed: Mapping[str, str]) -> dict[str, Any]:
    """Everything the tables need, and the study itself: the file can be read without the one that it came from."""
    runs: dict[str, dict[str, Any]] = {}
    for name, folder in folders.items():
        last = study.config.get("train", {}).get("steps")
        evaluations = read_lines(folder.eval)
        if name in failed:
            runs[name] = {"failed": failed[name]}
        elif evaluations and evaluations[-1]["step"] == (last or evaluations[-1]["step"]):
            runs[name] = {"evaluations": {str(e["step"]): _numbers(e) for e in evaluations}}
    return {
        "question": study.question,
        "seeds": [study.seeds[0], study.seeds[-1]],
        "config": study.config,
        "variants": study.variants,
        "primary": [vars(row) for row in study.primary],
        "runs": runs,
    }


def read_results(path: str | Path) -> dict[str, Any]:
    try:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; `equipoise study run` writes results.json") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: not a results file: {error}") from error
    if not isinstance(results, dict) or "runs" not in results:
        raise ConfigError(f"{path}: not a results file: it has no runs")
    return results


def _numbers(evaluation: Mapping[str, Any]) -> Numbers:
    """The numbers of an evaluation by name, those of a level as `level/5/acc@8`, rounded to what samples can tell."""
    found = {k: round(v, 6) for k, v in evaluation.items() if isinstance(v, float)}
    for level, values in evaluation.get("by_level", {}).items():
        found |= {f"level/{level}/{k}": round(v, 6) for k, v in values.items()}
    return found


def last_of(results: Mapping[str, Any], variant: str, metric: str) -> dict[int, float]:
    """seed → the metric at the end of each finished run of a variant."""
    found = {}
    for name, record in results["runs"].items():
        owner, _, seed = name.rpartition("/seed-")
        if owner == variant and "evaluations" in record:
            numbers = list(record["evaluations"].values())[-1]
            if metric not in numbers:
                raise ConfigError(f"{metric} is not in the evaluations ({', '.join(numbers)})")
            found[int(seed)] = numbers[metric]
    return found


@dataclass(frozen=True)
class Tested:
    primary: Primary
    seeds: int
    mean: float
    low: float
    high: float
    p: float
    holm: float
    needed: int | None  # seeds to see one point with 80 % power


def primary_tests(results: Mapping[str, Any]) -> list[Tested]:
    rows = [Primary(**row) for row in results["primary"]]
    within = [_within(results, row) for row in rows]
    raw = [paired_p(np.array(d)) if len(d) > 1 else 1.0 for d in within]
    tested = []
    for row, d, p, corrected in zip(rows, within, raw, holm(raw), strict=True):
        mean = float(np.mean(d)) if d else math.nan
        low, high = interval(d) if d else (-math.inf, math.inf)
        needed = seeds_needed(float(np.std(d, ddof=1))) if len(d) > 1 else None
        tested.append(Tested(row, len(d), mean, low, high, p, corrected, needed))
    return tested


def _within(results: Mapping[str, Any], row: Primary) -> list[float]:
    plus, minus = (last_of(results, variant, row.metric) for variant in (row.plus, row.minus))
    return [plus[seed] - minus[seed] for seed in sorted(plus.keys() & minus.keys())]


def show(results: Mapping[str, Any], console: Console | None = None) -> None:
    console = console or Console(highlight=False)
    console.print(_variant_table(results))
    console.print("\nDifferences named before the runs:")
    for tested in primary_tests(results):
        console.print(_said(tested), soft_wrap=True)
    failed = {name: record["failed"] for name, record in results["runs"].items() if "failed" in record}
    for name, why in failed.items():
        console.print(f"failed: {name}: {why}")


def _variant_table(results: Mapping[str, Any]) -> Table:
    metrics = list(dict.fromkeys(row["metric"] for row in results["primary"]))
    table = Table("variant", "seeds", *(f"{m} last" for m in metrics), box=None, padding=(0, 2, 0, 0))
    for variant in results["variants"]:
        cells = []
        for metric in metrics:
            values = list(last_of(results, variant, metric).values())
            low, high = interval(values) if len(values) > 1 else (math.nan, math.nan)
            mean = float(np.mean(values)) if values else math.nan
            cells.append(f"{100 * mean:.1f} ±{50 * (high - low):.1f}")
        table.add_row(variant, str(len(last_of(results, variant, metrics[0]))), *cells)
    return table


def _said(tested: Tested) -> str:
    row = tested.primary
    needed = "more seeds than anyone runs" if tested.needed is None else f"{tested.needed} seeds"
    return (
        f"{row.claim}\n  {row.metric}, {row.plus} − {row.minus}: {100 * tested.mean:+.2f} points "
        f"(95 % {100 * tested.low:+.2f} to {100 * tested.high:+.2f})\n"
        f"  p {tested.p:.2g}, after Holm {tested.holm:.2g}; {tested.seeds} seeds, {needed} would show 1 point"
    )


def verify(path: str | Path, variant: str, seed: int, out: Path) -> bool:
    """Train one cell again and hold it against the published runs of its variant: True where it lies among them.

    Where rounding differs between machines, the runs part ways and the cell is a new draw: it must lie in the 99 %
    prediction interval of the published seeds. Where it does not, the cell comes out the same to the digit.
    """
    from scipy import stats

    console = Console(highlight=False)
    results = read_results(path)
    study = _study({k: v for k, v in results.items() if k != "runs"}, str(path))
    if variant not in study.variants:
        raise ConfigError(f'--variant "{variant}" is not one of {", ".join(study.variants)}')
    config = study.one(variant, seed, out)
    failed = train_all({f"{variant}/seed-{seed}": config}, console, 1)
    again = collect(study, {f"{variant}/seed-{seed}": RunFolder(config.train.out)}, failed)
    inside = True
    for metric in dict.fromkeys(row.metric for row in study.primary):
        published = list(last_of(results, variant, metric).values())
        spread = np.std(published, ddof=1) * math.sqrt(1 + 1 / len(published))
        half = float(stats.t.ppf(0.995, len(published) - 1) * spread)
        mean, value = float(np.mean(published)), last_of(again, variant, metric)[seed]
        same = value == last_of(results, variant, metric).get(seed)
        holds = abs(value - mean) <= half
        inside = inside and holds
        console.print(
            f"{metric}: {100 * value:.2f}, published {100 * mean:.2f} ±{100 * half:.2f} (99 % of single runs): "
            f"{'the same to the digit' if same else 'inside' if holds else 'OUTSIDE'}"
        )
    return inside

"""A study written down before its runs: train it, show what it found (`verify` trains cells again).

    equipoise study run studies/sign_balance.toml --out runs/sign        train what is missing, then test
    equipoise study run A.toml B.toml --out runs/all --minutes 20        several in one pool, seed by seed
    equipoise study show studies/results/sign_balance.json               the tables again, from the results alone
    equipoise study show studies/results/*.json                          all their tests as one family (`overall`)
    equipoise study show RESULTS.json --figure dose.svg                  and the dose curves
    equipoise study show RESULTS.json --difference gspo grpo acc@8       one that no row names: no test

What a study is: `plan`. Its results, one small file: `results`. The tests: `effects`. Runs of a
seed share prompts and draws, so the unit is the effect within a seed, and only seeds whose runs are
all finished count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from equipoise.evaluate.paired import interval
from equipoise.study import results as found_in
from equipoise.study import start
from equipoise.study.dose_figure import figure
from equipoise.study.effects import Effect, effects, size_that_matters, within
from equipoise.study.plan import Primary, Study, in_turn, of_results, read, table_of
from equipoise.study.results import collect, read_results, write_results
from equipoise.study.runs import train_all
from equipoise.train import ConfigError, Interrupted


def run(paths: Sequence[str | Path], out: Path, jobs: int = 0, minutes: float = math.inf) -> None:
    """Train what is not trained yet, for at most `minutes`; write each study's results.

    They are shown when all of its runs are done: who goes on must not have looked before. One
    study's runs go into `out`, those of several into a folder each, and into one pool. Runs that a
    results.json there has already are not trained again: a study can go on elsewhere. Its finished
    runs keep no weights.
    """
    stop_at = time.monotonic() + 60 * minutes
    console = Console(highlight=False, markup=False)
    placed = _placed(paths, out)
    earlier = {each.folder: _earlier(each) for each in placed}
    done = {each.prefix + name for each in placed for name in earlier[each.folder]}
    configs = {name: config for name, config in in_turn(placed).items() if name not in done}
    for config in configs.values():
        config.check()
    for stem, study, _ in placed:
        cells = f"{len(study.cells())} runs × {len(study.seeds)} seeds"
        console.print(f"{stem or 'study'}: {study.question}\n  {cells}", soft_wrap=True)
    start.make_all(
        {folder / "start": study.start for _, study, folder in placed if study.start is not None}
    )
    try:
        failed = train_all(configs, console, jobs, stop_at=stop_at, patient=True, weights=False)
    except Interrupted:  # what is finished can go on elsewhere; nothing of it is shown
        for each in placed:
            _written(each, {}, earlier[each.folder])
        raise
    # all are written before any is looked at
    collected = {each.folder: _written(each, failed, earlier[each.folder]) for each in placed}
    for each in placed:
        results = collected[each.folder]
        console.print(f"\n{each.stem or results['question']}")
        runs = len(each.study.configs(each.folder))
        if len(results["runs"]) < runs:
            console.print(
                f"{len(results['runs'])} of {runs} runs are done; nothing is compared yet.\n"
                f"The same command goes on; what there is: equipoise study show {each.results}",
                soft_wrap=True,
            )
            continue
        show(results, console)
        if drawing := figure(results):
            (each.folder / "dose.svg").write_text(drawing, encoding="utf-8")
        console.print(f"{each.results}", soft_wrap=True)


class _Placed(NamedTuple):
    """A study and where its runs go; `stem` is its name among several, empty where it is alone."""

    stem: str
    study: Study
    folder: Path

    @property
    def prefix(self) -> str:
        """Of the names of its runs."""
        return f"{self.stem}/" if self.stem else ""

    @property
    def results(self) -> Path:
        return self.folder / "results.json"


def _placed(paths: Sequence[str | Path], out: Path) -> list[_Placed]:
    if len(paths) == 1:
        return [_Placed("", read(paths[0]), out)]
    studies = [(Path(path).stem, read(path)) for path in paths]
    stems = [stem for stem, _ in studies]
    if len(set(stems)) < len(stems):
        raise ConfigError(
            f"{', '.join(stems)}: each study has a folder by its name, so no two may be called alike"
        )
    return [_Placed(stem, study, out / stem) for stem, study in studies]


def _earlier(placed: _Placed) -> dict[str, Any]:
    """The finished runs of an earlier sitting; refused where they are another study's."""
    file = placed.results
    if not file.exists():
        return {}
    results = read_results(file)
    if table_of(of_results(results)) != table_of(placed.study):
        raise ConfigError(f"{file}: these are the results of another study; give another --out")
    return {name: record for name, record in results["runs"].items() if "failed" not in record}


def _written(
    placed: _Placed, failed: Mapping[str, str], earlier: Mapping[str, Any]
) -> dict[str, Any]:
    """The study's results, of this sitting and of earlier ones."""
    own = {
        name.removeprefix(placed.prefix): why
        for name, why in failed.items()
        if name.startswith(placed.prefix)
    }
    results = collect(placed.study, placed.study.configs(placed.folder), own)
    results["runs"] |= earlier
    placed.folder.mkdir(parents=True, exist_ok=True)
    write_results(results, placed.results)
    return results


def show(results: Mapping[str, Any], console: Console | None = None) -> None:
    console = console or Console(highlight=False, markup=False)
    console.print(_variant_table(results))
    named = {
        "before": "named before the runs",
        "after": "written down after the runs (PROTOCOL.md)",
    }
    console.print(f"\nEffects {named[of_results(results).written]}:")
    for effect in effects(results):
        console.print(_said(effect), soft_wrap=True)
    console.print(regime(results), soft_wrap=True)
    console.print(agreement(results), soft_wrap=True)
    for name, record in results["runs"].items():
        if "failed" in record:
            console.print(f"failed: {name}: {record['failed']}")


def show_difference(
    results: Mapping[str, Any], plus: str, minus: str, metric: str, at: str
) -> None:
    """plus − minus within seeds, whatever the rows name: an interval, and no test of it.

    A variant at another than the shared rate is named with it, as in `gspo@0.0002`.
    """
    known = sorted({name.rpartition("/seed-")[0] for name in results["runs"]})
    for variant in (plus, minus):
        if variant not in known:
            raise ConfigError(f'--difference: "{variant}" is not one of {", ".join(known)}')
    row = Primary("", metric, plus, minus, at)
    differences = within(results, row, None)
    if len(differences) < 2:
        raise ConfigError(
            f"--difference: {plus} and {minus} share {len(differences)} finished seeds and need two"
        )
    unit = unit_of(metric)
    low, high = interval(differences)
    Console(highlight=False, markup=False).print(
        f"exploratory, named after the runs: no test\n"
        f"  {_heading(row)}, {plus} − {minus}: {unit * float(np.mean(differences)):+.4g}{_word(unit)} "
        f"(95 % {unit * low:+.4g} to {unit * high:+.4g}), {len(differences)} seeds",
        soft_wrap=True,
    )


def draw(results: Mapping[str, Any], path: Path) -> None:
    """The dose curves as an SVG file."""
    drawing = figure(results)
    if not drawing:
        raise ConfigError(
            f"--figure {path}: there is nothing to draw without a dose and two whole seeds"
        )
    path.write_text(drawing, encoding="utf-8")


def _variant_table(results: Mapping[str, Any]) -> Table:
    study = of_results(results)
    rows = list({(row.metric, row.at, row.rate): row for row in study.primary}.values())
    table = Table("variant", "seeds", *map(_heading, rows), box=None, padding=(0, 2, 0, 0))
    for variant in study.variants:
        cells = []
        for row in rows:
            values = list(found_in.values(results, variant, row).values())
            cells.append(_mean_and_interval(values, unit_of(row.metric)))
        table.add_row(variant, str(len(found_in.finished(results, variant))), *cells)
    return table


def _mean_and_interval(values: list[float], unit: float) -> str:
    """One run has no interval, and none has no mean."""
    if not values:
        return "–"
    mean = f"{unit * float(np.mean(values)):.4g}"
    if len(values) == 1:
        return mean
    low, high = interval(values)
    return f"{mean} ±{unit * (high - low) / 2:.2g}"


def _heading(row: Primary) -> str:
    when = "" if row.metric.startswith("run/") else f" {row.at}"
    return f"{row.metric}{when}{' own rate' if row.rate == 'own' else ''}"


def unit_of(metric: str) -> float:
    return 100.0 if found_in.is_share(metric) else 1.0


def _word(unit: float) -> str:
    return " points" if unit == 100 else ""


def _said(effect: Effect) -> str:
    row, unit = effect.primary, unit_of(effect.primary.metric)
    if effect.seeds < 2:
        return f"{row.claim}: not tested\n  it needs two whole seeds and has {effect.seeds}"
    what = f"{row.plus} − {row.minus}"
    if row.dosed:
        what = {
            "slope": "from the lowest to the highest dose",
            "bend": "the middle above the ends",
        }[row.shape]
    # a sum of shares that is 0 but for rounding
    mean = 0.0 if abs(effect.mean) < 1e-12 * (effect.high - effect.low) else effect.mean
    word = _word(unit)
    size = f"{unit * size_that_matters(row, effect.mean):.3g}{word}"
    needed = "more seeds than anyone runs" if effect.needed is None else f"{effect.needed} seeds"
    top = ""
    if effect.top is not None:
        at = effect.top
        top = f"  its top lies at {at.at:.3g} (95 % {at.low:.3g} to {at.high:.3g}); the middle is {at.middle:g}\n"
    return (
        f"{row.claim}: {effect.verdict}\n"
        f"  {_heading(row)}, {what}: {unit * mean:+.4g}{word} "
        f"(95 % {unit * effect.low:+.4g} to {unit * effect.high:+.4g})\n"
        f"{top}"
        f"  p {effect.p:.2g}, after Holm {effect.holm:.2g}; {effect.seeds} seeds, {needed} would show {size}"
    )


def regime(results: Mapping[str, Any]) -> str:
    """The start policy's responses: the means over all runs of what the first step measured."""
    first = [record["first"] for record in results["runs"].values() if "first" in record]
    if not first:
        return ""
    gap, cv, success, mixed = (
        np.mean([f[name] for f in first if f[name] is not None]) for name in found_in.REGIME
    )
    return (
        f"\nRegime at the first step: length gap within groups {gap:+.3f}, length CV within groups {cv:.3f}, "
        f"success {success:.2f}, groups with right and wrong {mixed:.2f}"
    )


def agreement(results: Mapping[str, Any]) -> str:
    """Measured biases beside the closed forms, on the runs' own rollouts."""
    lines = []
    for variant in of_results(results).variants:
        checks = [
            r["closed_form"]
            for r in found_in.finished(results, variant).values()
            if "closed_form" in r
        ]
        if checks:
            groups = sum(c["groups"] for c in checks)
            mass, net = (
                np.mean([c[key] for c in checks], axis=0) for key in ("mass", "exchangeability")
            )
            lines.append(
                f"  {variant}: Σ c T {mass[0]:+.5f} ({mass[1]:+.5f}), Σ c {net[0]:+.6f} ({net[1]:+.6f}), "
                f"{groups} groups, no group off by more than {max(c['off'] for c in checks):.1e}"
            )
    if lines:
        return "\n".join(["\nBiases of the logged batches, measured (closed form):", *lines])
    return ""

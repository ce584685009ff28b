"""One configuration over values of options and over seeds: is there a difference, how sure?

Runs of one seed see the same prompts with the same draws from the same weights, so they are
compared in pairs: the unit is the difference within a seed. Every pair of variants gets a mean
difference with a 95 % interval (Student's t), a p-value of the paired t-test, and Holm's correction
for the number of pairs. Seeds are what is drawn anew; the held-out prompts are the same for all, so
the answer is about training noise on these prompts, not about other prompts.
"""

from __future__ import annotations

import copy
import csv
import io
import itertools
import json
import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from equipoise import report
from equipoise.config.config import accuracies
from equipoise.evaluate import peak
from equipoise.evaluate.paired import Difference, in_words, interval, paired_differences
from equipoise.objective.choice import did_you_mean
from equipoise.report.metrics import meaning
from equipoise.report.runs import Run, read
from equipoise.report.stability import COLUMNS, Stability, curve_of, stability
from equipoise.study.runs import train_all
from equipoise.train import Config, ConfigError, RunFolder, load, read_lines

Rows = tuple[list[str], list[list[str]]]  # heads, and the cells of each row
EXAMPLE = "objective.aggregation=token,sequence,balanced"
# What a comparison sets itself for each of its runs, and the option that says how.
OWN = {
    "train.seed": "--seeds says how many seeds every variant has",
    "train.out": "--out says where all runs go",
    "log.terminal": "runs beside each other share no terminal",
}
# Of an evaluation, beside its accuracies; with eval.probe also probe/… and start/…
MEASURED = ("reward", "length", "length_gap")
JUDGED = ("gaming/greedy", "gaming/greedy_drop")  # by the second judge, of the greedy responses
PROBED = ("probe/", "start/")


@dataclass(frozen=True)
class Variant:
    """`scores`: the metric's last value of each seed's run, by seed; `peaks`: its highest.

    `runs`: what each seed's run has written down, for TGC's measures.
    """

    name: str
    scores: list[float]
    peaks: list[float]
    metric: str = ""
    runs: list[Run] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))

    def stability(self, score: float) -> list[Stability]:
        return [stability(run, self.metric, score) for run in self.runs]


def compare(
    path: str | None,
    vary: Sequence[str],
    seeds: int,
    out: Path,
    metric: str,
    jobs: int,
    overrides: Sequence[str],
) -> None:
    """Train what is not trained yet, then write the tables, results.json and report.html."""
    console = Console(highlight=False, markup=False)
    grid = variants(vary)
    places = {name: re.sub(r"[^\w+.-]", "-", name).strip("-.") or "variant" for name in grid}
    configs = {
        f"{name}/seed-{seed}": _config(path, settings, seed, out / places[name], overrides)
        for name, settings in grid.items()
        for seed in range(seeds)
    }
    for config in configs.values():
        check_metric(metric, config)
    steps = next(iter(configs.values())).train.steps
    size = f"{_counted(len(grid), 'variant')} × {_counted(seeds, 'seed')}, {steps} steps each"
    alone = "; nothing to compare it with: --vary takes several values" if len(grid) == 1 else ""
    console.print(f"{size}{alone}\n", soft_wrap=True)
    train_all(configs, console, jobs)
    runs = {
        name: [RunFolder(configs[f"{name}/seed-{seed}"].train.out) for seed in range(seeds)]
        for name in grid
    }
    found = [_variant(name, folders, metric) for name, folders in runs.items()]
    pairs = differences(found)
    for heads, rows in _all_rows(found, pairs, metric):
        shown = Table(*heads, box=None, padding=(0, 2, 0, 0))
        for row in rows:
            shown.add_row(*row)
        console.print(shown)
    words = verdict(found, pairs, metric)
    console.print(f"\n{words}\n")
    files = {"table.md": markdown(found, pairs, metric, words), "table.tex": latex(found, metric)}
    files |= {"table.csv": as_csv(found), "results.json": as_json(found, pairs, metric, words)}
    for name, text in files.items():
        (out / name).write_text(text, encoding="utf-8")
    paths = [folder.path for folders in runs.values() for folder in folders]
    try:
        page = f"report: {report.write(paths, out / 'report.html')}"
    except report.TooManyRuns as error:  # a large grid has its tables all the same
        page = f"no report: {error}"
    console.print(f"{out}/table.md  table.tex  table.csv  results.json   {page}", soft_wrap=True)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def variants(vary: Sequence[str]) -> dict[str, dict[str, str]]:
    """`["a.b=x,y", "c.d=1,2"]` as the grid {"x, 1": {"a.b": "x", "c.d": "1"}, …}."""
    axes = []
    for text in vary:
        key, equals, values = text.partition("=")
        found = _split(values)
        if not equals or "." not in key or len(found) < 1 or "" in found:
            raise ConfigError(f"--vary {text}: must be section.key=value,value, as {EXAMPLE}")
        if key in OWN:
            raise ConfigError(f"--vary {text}: {key} is compare's own; {OWN[key]}")
        if len({_label(value) for value in found}) < len(found):
            raise ConfigError(f"--vary {text}: a value stands twice")
        axes.append([(key, value) for value in found])
    if not axes:
        raise ConfigError(f"--vary is missing: what should differ, as {EXAMPLE}")
    return {
        ", ".join(_label(value) for _, value in point): dict(point)
        for point in itertools.product(*axes)
    }


def _label(value: str) -> str:
    """`{ name = "balanced", over = "batch" }` as balanced(over=batch), anything else as it is."""
    try:
        table = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:  # a bare word
        return value
    if not isinstance(table, dict) or "name" not in table:
        return value
    options = ", ".join(f"{key}={option}" for key, option in table.items() if key != "name")
    return f"{table['name']}({options})" if options else str(table["name"])


def _split(text: str) -> list[str]:
    """At commas outside of brackets, braces and quotes."""
    parts, depth, quote = [""], 0, ""
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        elif c in "[{(":
            depth += 1
        elif c in "]})":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += c
    return [part.strip() for part in parts]


def _config(
    path: str | None, settings: dict[str, str], seed: int, out: Path, overrides: Sequence[str]
) -> Config:
    pairs = [part for key, value in settings.items() for part in (f"--{key}", value)]
    config = copy.deepcopy(
        load(path, [*overrides, *pairs, "--train.seed", str(seed), "--log.terminal", "false"])
    )
    config.train.out = str(out / f"seed-{seed}")
    config.train.threads = config.train.threads or 1
    if not config.eval.every:
        raise ConfigError("eval.every = 0: a comparison needs evaluations; must be at least 1")
    return config


def check_metric(metric: str, config: Config) -> None:
    """Refuse what no evaluation of this configuration can have: before it is trained, not after."""
    wanted = config.eval
    if wanted.probe and metric.startswith(PROBED) and meaning("eval.jsonl", metric):
        return
    known = [*accuracies(wanted.samples, greedy=wanted.greedy), *MEASURED]
    known += JUDGED if wanted.greedy else ()
    if metric not in known:
        probed = " (with eval.probe = true)" if metric.startswith(PROBED) else ""
        raise ConfigError(
            f"--metric {metric}: no evaluation has such a number{probed};"
            f"{did_you_mean(metric, known)} ({', '.join(known)})"
        )


def _variant(name: str, folders: Sequence[RunFolder], metric: str) -> Variant:
    scores, peaks, runs = [], [], []
    for folder in folders:
        evaluations = read_lines(folder.eval)
        known = [k for k, v in evaluations[-1].items() if isinstance(v, float)]
        if metric not in known:
            raise ConfigError(
                f"--metric {metric}: {folder.eval} has no such number ({', '.join(known)})"
            )
        scores.append(evaluations[-1][metric])
        runs.append(read(folder.path, name))
        peaks.append(peak(*curve_of(runs[-1], metric)).peak)
    return Variant(name, scores, peaks, metric, runs)


def differences(found: Sequence[Variant]) -> list[Difference]:
    """All pairs, in the order of the variants; [] with a single seed, which shows no noise."""
    if len(found[0].scores) < 2:
        return []
    pairs = itertools.combinations(found, 2)
    return paired_differences({(a.name, b.name): np.subtract(b.scores, a.scores) for a, b in pairs})


def verdict(found: Sequence[Variant], pairs: Sequence[Difference], metric: str) -> str:
    """What can be said, in words."""
    if len(found) < 2:
        return "One variant: nothing to compare."
    if not pairs:
        return "One seed: nothing can be said about a difference; use --seeds 2 or more, 5 to begin with."
    return in_words(pairs, metric)


def _row(v: Variant) -> tuple[str, str, str, str]:
    low, high = interval(v.scores)
    shown = f"{100 * low:.1f} to {100 * high:.1f}" if math.isfinite(low) else "one seed"
    return f"{100 * v.mean:.1f}", shown, f"{100 * float(np.mean(v.peaks)):.1f}", str(len(v.scores))


def score_rows(found: Sequence[Variant], metric: str) -> Rows:
    heads = ["variant", f"{metric} last", "95 % of the mean", "peak", "seeds"]
    return heads, [[v.name, *_row(v)] for v in found]


def stability_rows(found: Sequence[Variant]) -> Rows:
    """Steps to a score that all runs reach, as a median over seeds; the other measures as means
    over those that have them. A measure that no run has is left out.
    """
    score = common_score(found)
    measured = {v.name: v.stability(score) for v in found}
    everyone = [each for of_seeds in measured.values() for each in of_seeds]
    shown = {
        key: column
        for key, column in COLUMNS.items()
        if any(getattr(x, key) is not None for x in everyone)
    }
    rows = []
    for name, of_seeds in measured.items():
        steps = [math.inf if each.steps is None else each.steps for each in of_seeds]
        cells = [name, f"{np.median(steps):.0f}" if steps else "–"]
        for key, (_, form) in shown.items():
            values = [x for each in of_seeds if (x := getattr(each, key)) is not None]
            cells.append(form(float(np.mean(values))) if values else "–")
        rows.append(cells)
    return ["variant", f"steps to {100 * score:.1f}", *(title for title, _ in shown.values())], rows


def common_score(found: Sequence[Variant]) -> float:
    """The lowest peak of all runs: the highest score that each of them has reached."""
    return min(p for v in found for p in v.peaks)


def pair_rows(pairs: Sequence[Difference]) -> Rows:
    heads = ["pair", "difference", "95 %", "p", "p (Holm)", "seeds for 1 point"]
    rows = []
    for d in pairs:
        needed = "-" if d.seeds_for_a_point is None else str(d.seeds_for_a_point)
        between = f"{100 * d.low:+.1f} to {100 * d.high:+.1f}"
        numbers = [f"{100 * d.mean:+.1f}", between, f"{d.p:.2g}", f"{d.holm:.2g}", needed]
        rows.append([f"{d.b} − {d.a}", *numbers])
    return heads, rows


def _all_rows(found: Sequence[Variant], pairs: Sequence[Difference], metric: str) -> list[Rows]:
    """The tables: scores, TGC's measures over seeds and, if there are any, differences."""
    tables = [score_rows(found, metric), stability_rows(found)]
    return [*tables, pair_rows(pairs)] if pairs else tables


def markdown(found: Sequence[Variant], pairs: Sequence[Difference], metric: str, words: str) -> str:
    parts = []
    for heads, rows in _all_rows(found, pairs, metric):
        first, *rest = (f"| {' | '.join(cells)} |" for cells in (heads, *rows))
        parts.append("\n".join([first, "|---" * len(heads) + "|", *rest]))
    return "\n\n".join([*parts, words]) + "\n"


def latex(found: Sequence[Variant], metric: str) -> str:
    """A booktabs table; the highest mean in bold."""
    best = max(v.mean for v in found)
    lines = [
        r"\begin{tabular}{lccc}",
        r"\toprule",
        rf"variant & {_tex(metric)} & 95\,\% & peak \\",
        r"\midrule",
    ]
    for v in found:
        mean, between, top, _ = _row(v)
        mean = rf"\textbf{{{mean}}}" if v.mean == best else mean
        lines.append(rf"{_tex(v.name)} & {mean} & {between} & {top} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _tex(text: str) -> str:
    escapes = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(escapes.get(c, rf"\{c}" if c in "&%$#_{}" else c) for c in text)


def as_csv(found: Sequence[Variant]) -> str:
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(("variant", "seed", "last", "peak"))
    rows.writerows(
        (v.name, i, s, p)
        for v in found
        for i, (s, p) in enumerate(zip(v.scores, v.peaks, strict=True))
    )
    return out.getvalue()


def as_json(found: Sequence[Variant], pairs: Sequence[Difference], metric: str, words: str) -> str:
    record: dict[str, Any] = {"metric": metric, "verdict": words}
    score = common_score(found)
    record["score"] = score
    record["variants"] = [
        {
            "name": v.name,
            "last": v.scores,
            "peak": v.peaks,
            **_by_seed(v.stability(score)),
        }
        for v in found
    ]
    record["differences"] = [d.__dict__ for d in pairs]
    return json.dumps(record, indent=2) + "\n"


def _by_seed(measured: Sequence[Stability]) -> dict[str, list[float | None]]:
    """A list over the seeds of each measure; None where a run has not written it down."""
    names = {
        "steps": "steps_to_score",
        "contexts": "context_drift",
        "odds": "log_odds_drift",
        "answers": "answer_entropy",
    }
    return {
        names.get(key, key): [getattr(each, key) for each in measured] for key in Stability._fields
    }


def default_metric(path: str | None, overrides: Sequence[str]) -> str:
    return f"acc@{load(path, overrides).eval.samples}"

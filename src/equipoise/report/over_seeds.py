"""The page's panels over variants: means over seeds with 95 % intervals of the mean.

The figures are those of the single runs, folded: at each step the mean over seeds and Student's t
interval. The tables are made anew, because an interval cannot be had from a cell. A variant of one
seed has no interval. Not here: which runs are a variant (variants.py), and the single runs, which
the page keeps beside this view (panels.py).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from equipoise.evaluate.paired import in_words, interval, paired_differences
from equipoise.report import stability, words
from equipoise.report.panels import Figure, Panel, bars, decimals, first_crossing, window
from equipoise.report.runs import Run
from equipoise.report.series import Column, mean, present, rounded
from equipoise.report.summary import (
    first_metric,
    not_finite,
    objective,
    peak,
    percent,
    shown_steps,
    signed,
    span,
)
from equipoise.report.variants import VariantRuns

MOST_BANDS = 4  # of a figure; more variants have bars (page/lines.js)
SUMMARY = (
    "A variant is the runs that share every option but the seed: means over seeds, ± half the 95 % interval of the "
    "mean (Student's t). Held-out scores in percent. A peak is the best of several noisy evaluations and "
    "therefore too high. The button beside the variants shows single runs."
)


def sentences(runs: Sequence[Run], variants: int) -> dict[str, str]:
    """What stands above a panel of variants, where it differs from that of single runs."""
    mark = "Band" if variants <= MOST_BANDS else "Bar (band, where four or fewer are shown)"
    drawn = f"Line: mean over seeds. {mark}: 95 % interval of that mean (Student's t)."
    return {
        "summary": not_finite(runs) + SUMMARY,
        "held-out": f"On prompts no run trains on. {drawn}",
        "training": (
            f"Every figure has all variants on the same axes; running means of {window(runs)} steps. {drawn}"
        ),
    }


def over_seeds(
    made: Sequence[Panel], runs: Sequence[Run], found: Sequence[VariantRuns]
) -> Iterator[Panel]:
    """`made`: the panels of the single runs, cut to the steps that the seeds of a variant share."""
    groups = [[runs[i] for i in variant.runs] for variant in found]
    said = sentences(runs, len(found))
    for panel in made:
        table = TABLES[panel["id"]](panel, groups) if "table" in panel else None
        if table:
            table = {**table, "columns": _named(table, found)}
        folded: Panel = {**panel, "sentence": said.get(panel["id"], panel["sentence"])}
        if "figures" in panel:
            folded["figures"] = [_fold(figure, found) for figure in panel["figures"]]
        yield {**folded, "table": table} if table else folded
        if panel["id"] == "summary" and (compared := differences(groups, found)):
            yield compared


def _named(table: dict[str, Any], found: Sequence[VariantRuns]) -> list[str]:
    head, *rest = table["columns"]
    if table.get("runs_across"):
        return [head, *(variant.name for variant in found)]
    return ["variant", *rest]


def _fold(figure: Figure, found: Sequence[VariantRuns]) -> Figure:
    # what the band of one run would mean
    figure = {key: value for key, value in figure.items() if key != "spread"}
    if figure["kind"] == "peaks":
        sentence = f"Means over seeds. {figure['sentence']}"
        return {
            **figure,
            "sentence": sentence,
            "rows": [_fold_marks(row, found) for row in figure["rows"]],
        }
    lines = []
    for i, variant in enumerate(found):
        of_seeds = [line for line in figure["lines"] if line["run"] in variant.runs]
        if of_seeds:
            lines.append({"run": i, **_mean_line(of_seeds)})
    return {**figure, "lines": lines, "band": True}


def _mean_line(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Where the lines have steps of their own, at those that all have; else as aligned."""
    if "x" in lines[0]:
        values = [dict(zip(line["x"], line["y"], strict=True)) for line in lines]
        steps = [step for step in lines[0]["x"] if all(step in each for each in values)]
        columns = [[each[step] for each in values] for step in steps]
        return {"x": steps, **_intervals(columns)}
    return _intervals(list(zip(*(line["y"] for line in lines), strict=True)))


def _intervals(columns: Sequence[Column]) -> dict[str, list[float | None]]:
    """Mean and interval over the seeds of each point; a hole where a seed has no number."""
    y: list[float | None] = []
    low: list[float | None] = []
    high: list[float | None] = []
    for values in columns:
        known = present(values)
        whole = len(known) == len(values)
        ends = interval(known) if whole else (-math.inf, math.inf)
        y.append(rounded(statistics.fmean(known)) if whole else None)
        low.append(rounded(ends[0]) if math.isfinite(ends[0]) else None)
        high.append(rounded(ends[1]) if math.isfinite(ends[1]) else None)
    line = {"y": y}
    return {**line, "low": low, "high": high} if present(low) else line


def _fold_marks(row: dict[str, Any], found: Sequence[VariantRuns]) -> dict[str, Any]:
    marks = []
    for i, variant in enumerate(found):
        of_seeds = [mark for mark in row["marks"] if mark["run"] in variant.runs]
        if of_seeds:
            numbers = {key: [mark[key] for mark in of_seeds] for key in of_seeds[0]}
            means = {k: rounded(statistics.fmean(numbers[k])) for k in ("peak", "last", "drop")}
            step = statistics.median_low(numbers["peak_step"])
            marks.append({"run": i, **means, "peak_step": step})
    return {**row, "marks": marks}


def between(values: Column, form: Callable[[float], str], half: Callable[[float], str]) -> str:
    """The mean of what is there, ± half its interval where there are two or more."""
    known = present(values)
    if not known:
        return ""
    low, high = interval(known)
    error = f" ±{half((high - low) / 2)}" if math.isfinite(low) else ""
    return form(statistics.fmean(known)) + error


def summary_table(panel: Panel, groups: Sequence[Sequence[Run]]) -> dict[str, Any]:
    everyone = [run for group in groups for run in group]
    accuracy, best = first_metric(everyone, "acc@"), first_metric(everyone, "best@")
    rows = [_summary_row(group, accuracy, best) for group in groups]
    columns = [c for c in rows[0] if any(row[c] for row in rows)]
    shown = []
    for i, (group, row) in enumerate(zip(groups, rows, strict=True)):
        cells = [{"text": row[c] or "–"} for c in columns]
        shown.append({"run": i, "below": objective(group[0]), "cells": cells})
    return {"columns": ["variant", *columns], "rows": shown}


def _summary_row(group: Sequence[Run], accuracy: str, best: str) -> dict[str, str]:
    scores = {
        key: [found for run in group if (found := peak(run, key))]
        for key in (accuracy, "greedy", best)
    }

    def points(metric: str, part: str) -> str:
        return between([found[part] for found in scores[metric]], percent, percent)

    def from_to(metric: str) -> str:
        start = mean([found["start"] for found in scores[metric]])
        return f"{percent(start)}→{points(metric, 'last')}" if scores[metric] else ""

    def over_steps(metric: str, scale: float, digits: int) -> str:
        values = [
            scale * v for run in group if (v := mean(run.metrics.get(metric, []))) is not None
        ]
        return between(values, lambda v: signed(v, digits), lambda v: f"{v:.{digits}f}")

    seconds = [sum(present(run.metrics.get("timing_s/step", []))) for run in group]
    return {
        "seeds": str(len(group)),
        "steps": " / ".join(dict.fromkeys(map(shown_steps, group))),
        f"{accuracy} start": percent(mean([found["start"] for found in scores[accuracy]])),
        "peak": points(accuracy, "peak"),
        "last": points(accuracy, "last"),
        "greedy": from_to("greedy"),
        best: from_to(best),
        "loss ×10³": over_steps("policy_loss", 1e3, 1),
        "length gap": over_steps("bias/group_length_gap", 1, 2),
        "time, each": span(statistics.fmean(seconds)) if any(seconds) else "",
    }


def differences(groups: Sequence[Sequence[Run]], found: Sequence[VariantRuns]) -> Panel | None:
    """Every pair of variants at the last evaluation, within seeds evaluated at the same step."""
    metric = first_metric([run for group in groups for run in group], "acc@")
    last = [_last_by_seed(group, metric) for group in groups]
    within = {}
    for a, b in itertools.combinations(range(len(found)), 2):
        seeds = [seed for seed in last[a] if seed in last[b]]
        if len(seeds) > 1:
            within[found[a].name, found[b].name] = [last[b][seed] - last[a][seed] for seed in seeds]
    if not within:
        return None
    pairs = paired_differences(within)
    rows = []
    for d in pairs:
        needed = "–" if d.seeds_for_a_point is None else str(d.seeds_for_a_point)
        ends = f"{signed(100 * d.low, 1)} to {signed(100 * d.high, 1)}"
        texts = (signed(100 * d.mean, 1), ends, f"{d.p:.2g}", f"{d.holm:.2g}", str(d.seeds), needed)
        rows.append({"head": f"{d.b} − {d.a}", "cells": [{"text": text} for text in texts]})
    columns = ["pair", "difference", "95 %", "p", "p (Holm)", "seeds", "seeds for 1 point"]
    sentence = (
        f"{in_words(pairs, metric)} Points of {metric} at the last evaluation, within seeds (paired t): runs of one "
        "seed see the same prompts. About training noise on these held-out prompts, not about other prompts."
    )
    named = {"id": "differences", "title": "Differences between variants", "sentence": sentence}
    return {**named, "table": {"columns": columns, "rows": rows}}


def _last_by_seed(group: Sequence[Run], metric: str) -> dict[tuple[Any, int], float]:
    """(Seed, step of the last evaluation) → score."""
    found = {}
    for run in group:
        steps, values = stability.curve_of(run, metric)
        if steps:
            found[run.option("train.seed"), int(steps[-1])] = values[-1]
    return found


def means_table(panel: Panel, groups: Sequence[Sequence[Run]]) -> dict[str, Any]:
    """A row per metric: each variant's mean over steps and seeds, with a bar."""
    rows = []
    for row in panel["table"]["rows"]:
        values = [[mean(run.metrics.get(row["metric"], [])) for run in group] for group in groups]
        texts = [between(each, decimals, lambda v: f"{v:.3f}") or "–" for each in values]
        shares = bars([mean(each) for each in values])
        rows.append(
            {**row, "cells": [{"text": t, "bar": b} for t, b in zip(texts, shares, strict=True)]}
        )
    return {**panel["table"], "rows": rows}


def gaming_table(panel: Panel, groups: Sequence[Sequence[Run]]) -> dict[str, Any]:
    """How many seeds crossed a threshold, and the first step at which one did."""
    rows = []
    for row in panel["table"]["rows"]:
        cells = []
        for group in groups:
            crossed = [
                step for run in group if (step := first_crossing(run, row["metric"])) is not None
            ]
            several = f"{len(crossed)} of {len(group)} seeds, " if len(group) > 1 else ""
            cells.append({"text": f"{several}from step {min(crossed)}" if crossed else "never"})
        rows.append({**row, "cells": cells})
    return {**panel["table"], "rows": rows}


def stability_table(panel: Panel, groups: Sequence[Sequence[Run]]) -> dict[str, Any] | None:
    """Steps to the common score as a median, for some may never reach it; else means."""
    everyone = [run for group in groups for run in group]
    metric = first_metric(everyone, "acc@")
    score = stability.common_score(everyone, metric)
    if score is None:
        return None
    rows = []
    for i, group in enumerate(groups):
        measured = [stability.stability(run, metric, score) for run in group]
        steps = statistics.median(
            math.inf if each.steps is None else each.steps for each in measured
        )
        texts = [f"{steps:.0f}" if math.isfinite(steps) else "–"]
        for key in _measures(panel):
            form = stability.COLUMNS[key][1]
            texts.append(between([getattr(each, key) for each in measured], form, form) or "–")
        rows.append({"run": i, "cells": [{"text": text} for text in texts]})
    return {**panel["table"], "rows": rows}


def _measures(panel: Panel) -> list[str]:
    """The keys of the columns that the table of the single runs has."""
    titles = {title: key for key, (title, _) in stability.COLUMNS.items()}
    return [titles[title] for title in panel["table"]["columns"] if title in titles]


def words_table(panel: Panel, groups: Sequence[Sequence[Run]]) -> dict[str, Any]:
    """The words of the single runs, with mean shares over seeds."""
    found = [words.first_and_last(group) for group in groups]
    rows = [
        {**row, "cells": [words.cell(each.get(row["head"])) for each in found]}
        for row in panel["table"]["rows"]
    ]
    return {**panel["table"], "rows": rows}


TABLES: dict[str, Callable[[Panel, Sequence[Sequence[Run]]], dict[str, Any] | None]] = {
    "summary": summary_table,
    "gaming": gaming_table,
    "functions": means_table,
    "bias": means_table,
    "stability": stability_table,
    "words": words_table,
}

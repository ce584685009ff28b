"""What the page shows: a panel is a title, a sentence, and figures or a table of plain numbers.

A panel is made by a function of the runs, and PANELS lists them in the order of the page: one more,
one more function. Everything is computed here; the script in the page only draws. Not here: the
samples and the settings, which the page has views of its own for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from equipoise.report import difficulty
from equipoise.report import stability as measures
from equipoise.report.meanings import BIAS, ENTROPY, HELD_OUT, TRAINING, Shown
from equipoise.report.runs import Run, number
from equipoise.report.series import (
    WINDOW,
    Column,
    at_ends,
    bucket_size,
    cumulative,
    mean,
    present,
    rounded,
    running_mean,
    thin,
)
from equipoise.report.summary import bound, held_out_metrics, peak, signed, summary
from equipoise.report.words import words
from equipoise.verifiers.gaming import MEASURES

GREEDY = "gaming/greedy"
Panel = dict[str, Any]
Figure = dict[str, Any]


def points(runs: Sequence[Run]) -> int:
    """Points per curve: enough for a screen, and 3 MB at most for the numbers of all curves."""
    curves = 2 * sum(len(run.metrics) for run in runs)
    return max(20, min(500, 300_000 // max(curves, 1)))


def lines_over_steps(
    runs: Sequence[Run], metric: str, bold: Callable[[Column], Column], faint: str | None
) -> list[dict[str, Any]]:
    """A line per run that has the metric: `bold` of it and, beneath it, another metric as it is."""
    n, lines = points(runs), []
    for i, run in enumerate(runs):
        if metric in run.metrics:
            line = {"run": i, "y": at_ends(bold(run.metrics[metric]), n)}
            lines.append(
                {**line, "faint": thin(run.metrics[faint], n)} if faint in run.metrics else line
            )
    return lines


def figure(id: str, title: str, sentence: str, lines: list[dict[str, Any]], **more: Any) -> Figure:
    named = {"id": id, "kind": "lines", "title": title, "sentence": sentence}
    return {**named, "lines": lines, **more}


def across(head: str, runs: Sequence[Run], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A table with a column per run."""
    return {"columns": [head, *(run.name for run in runs)], "runs_across": True, "rows": rows}


def curve(runs: Sequence[Run], shown: Shown, **more: Any) -> Figure:
    """A metric's running mean over the steps of every run that has it, above each step's value."""
    metric, title, sentence = shown
    n = points(runs)

    def smooth(column: Column) -> Column:
        return running_mean(column, WINDOW * bucket_size(len(column), n))

    lines = lines_over_steps(runs, metric, smooth, metric)
    return figure(metric, title, sentence, lines, metric=metric, holes=holes(runs, metric), **more)


def holes(runs: Sequence[Run], metric: str) -> str:
    """Steps at which a run that has the metric logged no finite number, in words."""
    columns = [run.metrics[metric] for run in runs if metric in run.metrics]
    missing = sum(value is None for column in columns for value in column)
    steps = sum(map(len, columns))
    return f"No finite number at {missing:,} of {steps:,} steps." if missing else ""


def window(runs: Sequence[Run]) -> str:
    """Steps that the running means of these runs are over: ten points of the curve."""
    sizes = {bucket_size(len(run.steps), points(runs)) for run in runs}
    ends = dict.fromkeys(f"{WINDOW * size}" for size in (min(sizes), max(sizes)))
    return " to ".join(ends)


def panel(
    id: str,
    title: str,
    sentence: str,
    figures: Sequence[Figure],
    nothing: float = -1.0,
    **more: Any,
) -> Panel | None:
    """None without figures; those that never exceed `nothing` are named instead of drawn."""
    figures = [f for f in figures if f.get("lines") or f.get("rows")]
    drawn = [f for f in figures if f["kind"] != "lines" or _largest(f) > nothing]
    still = [f["title"] for f in figures if f not in drawn]
    if not figures:
        return None
    return {
        "id": id,
        "title": title,
        "sentence": sentence,
        "figures": drawn,
        "still": still,
        "nothing": nothing,
        **more,
    }


def _largest(figure: Figure) -> float:
    values = [
        v for line in figure["lines"] for v in (*line["y"], *line.get("faint", ())) if v is not None
    ]
    return max(map(abs, values), default=0.0)


def held_out(runs: Sequence[Run]) -> Panel | None:
    """Each held-out metric, and peak against last (Balanced Aggregation's Figure 1)."""
    metrics = list(dict.fromkeys(m for run in runs for m in held_out_metrics(run)))
    figures = [_evaluations(runs, m) for m in metrics]
    first = [f for f in figures if f["id"].startswith(("eval/acc@", "eval/best@", "eval/greedy"))]
    figures = [*first, _peaks(runs, metrics), *(f for f in figures if f not in first)]
    return panel(
        "held-out",
        "Held-out accuracy",
        "On prompts no run trains on; bars and bands are 95 % intervals.",
        figures,
    )


def _evaluations(runs: Sequence[Run], metric: str) -> Figure:
    lines = []
    for i, run in enumerate(runs):
        found = [(e, v) for e in run.evaluations if (v := number(e, metric)) is not None]
        low, high = ([rounded(bound(e, metric, k)) for e, _ in found] for k in (0, 1))
        y = [rounded(v) for _, v in found]
        if found:
            lines.append(
                {"run": i, "x": [e["step"] for e, _ in found], "y": y, "low": low, "high": high}
            )
    sentence = HELD_OUT.get(metric.partition("@")[0], "")
    return figure(f"eval/{metric}", metric, sentence, lines, unit="percent", span=0.05)


def _peaks(runs: Sequence[Run], metrics: Sequence[str]) -> Figure:
    accuracy = next((m for m in metrics if m.startswith("acc@")), "")
    tables = [e.get("by_level") for run in runs for e in run.evaluations]
    levels = sorted({level for table in tables if isinstance(table, dict) for level in table})
    keys: dict[str, tuple[str, ...]] = {m: (m,) for m in metrics}
    keys |= {f"{accuracy}, level {k}": ("by_level", k, accuracy) for k in levels}
    rows = []
    for label, path in keys.items():
        found = [(i, p) for i, run in enumerate(runs) if (p := peak(run, *path))]
        marks = []
        for i, p in found:
            numbers = {k: rounded(p[k]) for k in ("peak", "last", "drop")}
            marks.append({"run": i, **numbers, "peak_step": p["peak_step"]})
        rows += [{"label": label, "marks": marks}] if marks else []
    sentence = (
        "In percent. Filled: the best evaluation of the run. Hollow: the last one. The line between them is what the "
        "run lost again (Balanced Aggregation, Figure 1). All on one scale, each around its own middle."
    )
    named = {"id": "peaks", "kind": "peaks", "title": "Peak and last", "sentence": sentence}
    return {**named, "rows": rows}


def training(runs: Sequence[Run]) -> Panel | None:
    size = max(bucket_size(len(run.steps), points(runs)) for run in runs)
    each = "each step" if size == 1 else f"the mean of {size} steps"
    sentence = f"Every figure has all runs on the same axes. Line: running mean of {window(runs)} steps. Faint: {each}."
    return panel("training", "Training", sentence, [curve(runs, s) for s in TRAINING], nothing=0.0)


def drift(runs: Sequence[Run]) -> Panel | None:
    """Balanced Aggregation's Figure 2: the policy-gradient loss when signs couple with lengths."""
    on_policy = "On-policy it is −Σ c·T: 0 where positives and negatives pull equally hard."
    each = curve(runs, ("policy_loss", "Policy-gradient loss", on_policy), zero=True, span=1e-3)
    total = {
        **each,
        "id": "policy_loss/sum",
        "title": "Policy-gradient loss, summed",
        "sentence": "Over all steps so far. Level: no drift. The slope is the pull of each step.",
        "lines": lines_over_steps(runs, "policy_loss", cumulative, None),
    }
    sentence = (
        "Balanced Aggregation, Figure 2. Token aggregation drifts where wrong answers are longer, difficulty weights "
        "because their advantages do not sum to 0; sequence and balanced aggregation alone stay at 0."
    )
    return panel("drift", "Loss drift", sentence, [each, total])


def stability(runs: Sequence[Run]) -> Panel | None:
    """TGC's measures: what a run's curve does, and what training moves that no reward asks for."""
    moved = (
        "KL(π_old ‖ π) where two or more responses to a prompt have the same context, before the last optimizer step "
        "of each batch. With one step a batch there is none."
    )
    figures = [
        curve(runs, (measures.CONTEXTS, "Drift at shared contexts", moved), zero=True),
        *measures.figures(runs),
    ]
    sentence = (
        "Token Gradient Cancellation's measures. Steps: to the highest score that every run here has reached. Jitter: "
        "the noise of an evaluation around its neighbours. Shared drift needs several optimizer steps a batch; "
        "log-odds and the entropy of answers need eval.probe. Entropy is per token, the mean of the last ten steps."
    )
    table = measures.table(runs)
    more: Panel = {} if table is None else {"table": table}
    drawn = panel("stability", "Drift and jitter", sentence, figures, **more)
    if drawn is None and table is not None:  # a table stands without figures
        return {"id": "stability", "title": "Drift and jitter", "sentence": sentence, **more}
    return drawn


def lengths(runs: Sequence[Run]) -> Panel | None:
    """Balanced Aggregation's Figure 3: the two facts about lengths that decide which rule suits."""
    spread = (
        "bias/group_length_cv",
        "Length spread",
        "Standard deviation over mean of the lengths, within groups.",
    )
    gap = (
        "bias/group_length_gap",
        "Length gap",
        "(T̄− − T̄+) / T̄ within groups: above 0, wrong responses are longer.",
    )
    figures = [{**curve(runs, s, zero=True), "id": f"lengths/{s[0]}"} for s in (spread, gap)]
    sentence = (
        "Balanced Aggregation, Figure 3. A large spread and a small gap favour token aggregation, a small spread and a "
        "large gap sequence; balanced is meant for both."
    )
    return panel("lengths", "Lengths", sentence, figures)


def bias(runs: Sequence[Run]) -> Panel | None:
    """Every bias/* metric: a table of means, then each over time with what it means."""
    found = list(dict.fromkeys(m for run in runs for m in run.metrics if m.startswith("bias/")))
    rows, figures = [], []
    for metric in sorted(found, key=[*BIAS, *found].index):
        what, zero = BIAS.get(
            metric, ("A measure that this version has no sentence for.", "no such bias")
        )
        title = metric.removeprefix("bias/")
        cells = _compared([mean(run.metrics.get(metric, [])) for run in runs])
        rows.append({"head": title, "metric": metric, "cells": cells})
        drawn = curve(runs, (metric, title, what), zero=True, span=1e-2, means=f"0 means: {zero}.")
        figures.append({**drawn, "metric": title})
    table = across("mean over all steps", runs, rows)
    sentence = (
        "Measured in every training batch from the coefficients themselves: c = w·A is what the gradient of each token "
        "of a response is multiplied by, T is the response's length. Bars compare the runs within a row."
    )
    return panel("bias", "Biases", sentence, figures, table=table)


def _compared(means: Sequence[float | None]) -> list[dict[str, Any]]:
    texts = ["–" if m is None else decimals(m) for m in means]
    return [{"text": text, "bar": bar} for text, bar in zip(texts, bars(means), strict=True)]


def decimals(value: float) -> str:
    return signed(value, 3).removeprefix("+")


def bars(means: Sequence[float | None]) -> list[float | None]:
    """Each as a share of the largest in its row."""
    largest = max(map(abs, present(means)), default=0.0)
    visible = largest >= 5e-4  # what the table prints as 0 has no bar
    return [None if m is None else rounded(m / largest) if visible else 0.0 for m in means]


def weights(runs: Sequence[Run]) -> Panel | None:
    """HA-DW (or debias): the anchor, and the weights Φ it led to."""
    metric = "difficulty/anchor"
    said = "Line: C⁻, the success rate believed before each batch. Faint: the batch's mean reward."
    drawn = lines_over_steps(runs, metric, list, "reward/mean")
    anchor = figure(metric, "Anchor", said, drawn, metric=metric)
    over_time = {line["run"]: difficulty.over_time(runs[line["run"]]) for line in anchor["lines"]}
    figures = [anchor, _phi(over_time, "positive", "A > 0"), _phi(over_time, "negative", "A < 0")]
    sentence = (
        "They multiply each advantage. HA-DW raises right answers to prompts that are harder than the anchor and "
        "lowers those to easier ones; wrong answers the other way round. A prompt at the anchor gets λ. "
        "Recentred, all answers of a group get one number."
    )
    return panel("difficulty", "Difficulty weights", sentence, figures)


def _phi(over_time: dict[int, dict[str, list[Any]]], side: str, which: str) -> Figure:
    lines = []
    for i, found in over_time.items():
        low, y, high = ([quantiles[k] for quantiles in found[side]] for k in range(3))
        lines += [{"run": i, "x": found["steps"], "y": y, "low": low, "high": high}] if y else []
    sentence = "Median over the responses. Made again from the rollout files and the anchor."
    spread = "Bar or band: 10 % to 90 % of the responses."
    return figure(f"difficulty/{side}", f"Φ where {which}", sentence, lines, spread=spread)


def entropy(runs: Sequence[Run]) -> Panel | None:
    sentence = (
        "With one update per batch the ratio ρ is 1 up to rounding, and nothing is clipped, unless batches are sampled "
        "ahead."
    )
    figures = [curve(runs, s, zero=True) for s in ENTROPY]
    return panel("entropy", "Entropy and clipping", sentence, figures, nothing=1e-6)


def gaming(runs: Sequence[Run]) -> Panel | None:
    """The signs that the reward is being gamed, each with its threshold, and what crossed one."""
    shown = [
        (m, measure) for m, measure in MEASURES.items() if any(m in run.metrics for run in runs)
    ]
    figures, rows = [], []
    for metric, measure in shown:
        side = f"Warned of {'above' if measure.above else 'below'} {measure.threshold:g}."
        said = (metric, measure.title, measure.sentence)
        figures.append(curve(runs, said, zero=True, means=side))
        cells = [_crossing(run, metric) for run in runs]
        rows.append({"head": metric.removeprefix("gaming/"), "metric": metric, "cells": cells})
    table = across("beyond its threshold", runs, rows)
    sentence = (
        "A second judge, apart from the reward, grades a sample of every step. A measure beyond its threshold asks for "
        "a look at the samples; it is no proof. Honest learning lowers the number of different answers within groups."
    )
    for metric, title in (
        ("distinct_in_groups", "Different answers within groups"),
        ("judged", "Responses judged"),
    ):
        figures.append(curve(runs, (f"gaming/{metric}", title, "")))
    if any(number(e, GREEDY) is not None for run in runs for e in run.evaluations):
        figures.append(_judged_greedy(runs))
    return panel("gaming", "Is the reward being gamed?", sentence, figures, table=table)


def first_crossing(run: Run, metric: str) -> int | None:
    """The first step whose running mean lies beyond the threshold."""
    column = running_mean(run.metrics.get(metric, []))
    found = (
        s
        for s, v in zip(run.steps, column, strict=False)
        if v is not None and MEASURES[metric].crossed(v)
    )
    return next(found, None)


def _crossing(run: Run, metric: str) -> dict[str, str]:
    step = first_crossing(run, metric)
    return {"text": "never" if step is None else f"from step {step}"}


def _judged_greedy(runs: Sequence[Run]) -> Figure:
    lines = []
    for i, run in enumerate(runs):
        found = [(e["step"], v) for e in run.evaluations if (v := number(e, GREEDY)) is not None]
        if found:
            lines.append(
                {"run": i, "x": [step for step, _ in found], "y": [rounded(v) for _, v in found]}
            )
    drop = MEASURES["gaming/greedy_drop"]
    sentence = f"On held-out prompts. Warned of where it falls by {drop.threshold:g} while the reward rises."
    return figure(GREEDY, "Greedy accuracy by the judge", sentence, lines, unit="percent")


def functions(runs: Sequence[Run]) -> Panel | None:
    """Each reward function: its mean, and the shares that crashed, timed out or had no answer."""
    metrics = list(
        dict.fromkeys(m for run in runs for m in run.metrics if m.startswith("rewards/"))
    )
    names = list(dict.fromkeys(m.removeprefix("rewards/").rpartition("/")[0] for m in metrics))
    columns = {"mean": "mean reward", "crashed": "crashed", "timeout": "timed out"}
    columns["unparsed"] = "no answer found"
    figures, rows = [], []
    for name, (kind, title) in itertools.product(names, columns.items()):
        metric, head = f"rewards/{name}/{kind}", f"{name}: {title}"
        figures.append(curve(runs, (metric, head, "")))
        cells = _compared([mean(run.metrics.get(metric, [])) for run in runs])
        rows.append({"head": head, "metric": metric, "cells": cells})
    table = across("mean over all steps", runs, rows)
    sentence = "Before weights and length shaping. A function that fails on most responses for three steps stops a run."
    return panel("functions", "Reward functions", sentence, figures, nothing=0.0, table=table)


def others(runs: Sequence[Run]) -> Panel | None:
    """Every metric no other panel shows: nothing that was logged is out of reach."""
    shown = {metric for metric, _, _ in (*TRAINING, *ENTROPY)} | {
        "policy_loss",
        "difficulty/anchor",
        measures.CONTEXTS,
    }
    elsewhere = ("bias/", "rewards/", "gaming/")
    left = sorted(
        {m for run in runs for m in run.metrics if m not in shown and not m.startswith(elsewhere)}
    )
    figures = [curve(runs, (m, m, "")) for m in left]
    return panel("others", "All other metrics", "As logged.", figures, nothing=0.0, closed=True)


PANELS: tuple[Callable[[Sequence[Run]], Panel | None], ...] = (
    summary, held_out, training, gaming, functions, drift, stability, lengths, bias, weights, entropy, others,
    words,
)  # fmt: skip


def panels(runs: Sequence[Run]) -> Iterator[Panel]:
    for make in PANELS:
        if made := make(runs):
            yield made

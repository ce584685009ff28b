"""From graded samples to metrics: per benchmark, level and subject, and over checkpoints.

A problem with a sample whose verdict says nothing about the response (`bad_gold`, `unavailable`) is
left out and counted; every other verdict that is not `correct` is a wrong answer, and the counts of
all are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from equipoise.evaluate import metrics
from equipoise.evaluate.folder import Row
from equipoise.evaluate.metrics import Score
from equipoise.evaluate.vote import candidates
from equipoise.verifiers.verdict import NO_SCORE

HEADLINE = ("acc", "best", "maj")

Summary = dict[str, Any]


def summarise(rows: Sequence[Row], samples: int, votes: bool) -> Summary:
    """The metrics of one benchmark from the rows of its samples, `samples` of each problem."""
    problems: dict[str, list[Row]] = {}
    for row in rows:
        problems.setdefault(row["prompt_id"], []).append(row)
    kept: list[list[Row]] = []
    left_out: Counter[str] = Counter()
    for group in problems.values():
        unscored = [row["verdict"] for row in group if row["verdict"] in NO_SCORE]
        left_out.update(unscored[:1])
        if not unscored:
            kept.append(group)
    out: Summary = {"problems": len(kept), "samples": samples}
    out |= measured(kept, samples, votes) if kept else {}
    if any(_lenient(row) != row["verdict"] for group in kept for row in group):
        outcomes = [[float(_lenient(row) == "correct") for row in group] for group in kept]
        out["by_lenient_rules"] = {f"acc@{samples}": asdict(metrics.acc(outcomes))}
    out["length"] = sum(row["length"] for row in rows) / len(rows)
    out["truncated"] = sum(row["finish"] == "length" for row in rows) / len(rows)
    out["verdicts"] = dict(Counter(row["verdict"] for row in rows).most_common())
    if left_out:
        out["left_out"] = dict(left_out)
        out["left_out_because"] = next(row["reason"] for row in rows if row["verdict"] in NO_SCORE)
    for part in ("level", "subject"):
        groups: dict[str, list[list[Row]]] = {}
        for group in kept:
            if group[0][part] is not None:
                groups.setdefault(group[0][part], []).append(group)
        if len(groups) > 1:
            out[f"by_{part}"] = {
                name: {"problems": len(groups[name]), **measured(groups[name], samples, votes)}
                for name in sorted(groups, key=_natural)
            }
    return out


def _lenient(row: Row) -> str:
    """The verdict by the lenient rules; samples of earlier versions have none."""
    return str(row.get("lenient") or row["verdict"])


def measured(
    problems: Sequence[Sequence[Row]], samples: int, votes: bool
) -> dict[str, dict[str, float]]:
    """acc@n; for n > 1 best@n, maj@n where answers can be voted for, and pass@k between."""
    outcomes = [[float(row["verdict"] == "correct") for row in group] for group in problems]
    found: dict[str, Score] = {f"acc@{samples}": metrics.acc(outcomes)}
    if samples > 1:
        found[f"best@{samples}"] = metrics.best(outcomes)
        if votes:
            answers = [candidates([row["answer"] for row in group]) for group in problems]
            found[f"maj@{samples}"] = metrics.majority(answers, outcomes)
        k = 2
        while k < samples:
            found[f"pass@{k}"] = metrics.mean_pass_at_k(outcomes, k)
            k *= 2
    return {name: asdict(estimate) for name, estimate in found.items()}


def average(benchmarks: Mapping[str, Summary]) -> dict[str, dict[str, float]]:
    """The metrics that all benchmarks have, each counted alike; acc even if samples differ.

    Nothing where a benchmark has no score at all:
    an average over the others would be of another set.
    """
    if len(benchmarks) < 2 or not all(summary["problems"] for summary in benchmarks.values()):
        return {}
    out = {}
    for name in estimates(next(iter(benchmarks.values()))):
        if all(name in summary for summary in benchmarks.values()):
            out[name] = _averaged([summary[name] for summary in benchmarks.values()])
    if not any(name.startswith("acc@") for name in out):
        out["acc"] = _averaged(
            [summary[f"acc@{summary['samples']}"] for summary in benchmarks.values()]
        )
    return out


def over_checkpoints(results: Mapping[int, Summary]) -> Summary:
    """Peak, last and drop of every headline metric over a run's checkpoints, per benchmark and for
    the average; the results themselves under `checkpoints`.
    """
    steps = sorted(results)

    def peaks(parts: Mapping[int, Summary]) -> dict[str, Any]:
        """`parts`: one benchmark's summary, or the average, at each step."""
        names = [name for name in estimates(parts[steps[-1]]) if name.partition("@")[0] in HEADLINE]
        return {
            name: asdict(metrics.peak(steps, [parts[step][name]["value"] for step in steps]))
            for name in names
            if all(name in parts[step] for step in steps)
        }

    return {
        "steps": steps,
        "benchmarks": {
            name: peaks({step: results[step]["benchmarks"][name] for step in steps})
            for name in results[steps[-1]]["benchmarks"]
        },
        "average": peaks({step: results[step]["average"] for step in steps}),
        "checkpoints": {str(step): results[step] for step in steps},
    }


def estimates(summary: Mapping[str, Any]) -> list[str]:
    """Names of what has a value and an interval."""
    return [
        name
        for name, found in summary.items()
        if isinstance(found, dict) and found.keys() == {"value", "low", "high"}
    ]


def _averaged(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return asdict(metrics.average([Score(**estimate) for estimate in found]))


def _natural(name: str) -> tuple[bool, int, str]:
    """Level 10 after level 9."""
    return (not name.isdigit(), int(name) if name.isdigit() else 0, name)

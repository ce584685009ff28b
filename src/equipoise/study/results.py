"""The results of a study in one small file: every evaluation of every run, no weights.

A run's record has `steps` and `curves` (metric → a value per evaluation), `run` (metrics of
training, mean over steps), `first` (the regime: what the first step's rollouts were like) and
`closed_form` (`closed`). A metric is named as in eval.jsonl, `level/5/acc@8` for one of a level,
`run/NAME` for one of training. A run that failed says why.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.evaluate.curve import jitter
from equipoise.study import closed
from equipoise.study.plan import Primary, Study, at_rate, table_of
from equipoise.train import Config, ConfigError, RunFolder, read_lines
from equipoise.train.folder import replace

DIGITS = 6  # significant
# Metrics of training that mechanisms are about;
# all else of metrics.jsonl stays in the run's folder.
KEPT = (
    "entropy",
    "reward/mean",
    "policy_loss",
    "completions/mean_length",
    "grad_norm",
    "approx_kl",
)
KEPT_BEGIN = ("bias/", "pushed/", "drift/", "clip_ratio/", "difficulty/")
REGIME = ("bias/group_length_gap", "bias/group_length_cv", "accuracy/mean", "groups/informative")
POINTS = ("acc@", "best@", "pass@", "maj@", "greedy", "level/", "start/")  # shares, told in points


def collect(
    study: Study, configs: Mapping[str, Config], failed: Mapping[str, str]
) -> dict[str, Any]:
    """Everything the tables need, and the study itself: the file can be read alone."""
    runs: dict[str, dict[str, Any]] = {}
    for name, config in configs.items():
        folder = RunFolder(config.train.out)
        evaluations = read_lines(folder.eval)
        if name in failed:
            runs[name] = {"failed": failed[name]}
        elif evaluations and evaluations[-1]["step"] == config.train.steps:
            runs[name] = _record(evaluations, read_lines(folder.metrics))
            agreement = closed.agreement(folder, config)
            if agreement is not None:
                runs[name]["closed_form"] = agreement
    return {**table_of(study), "runs": runs}


def _record(evaluations: list[dict[str, Any]], metrics: list[dict[str, Any]]) -> dict[str, Any]:
    numbers = [_numbers(evaluation) for evaluation in evaluations]
    names = dict.fromkeys(name for each in numbers for name in each)
    curves = {name: [each.get(name) for each in numbers] for name in names}
    record: dict[str, Any] = {
        "steps": [evaluation["step"] for evaluation in evaluations],
        "curves": curves,
    }
    if metrics:
        record["run"] = {
            name: _rounded(_over_steps(metrics, name)) for name in metrics[0] if _kept(name)
        }
        record["first"] = {name: _rounded(metrics[0].get(name)) for name in REGIME}
    return record


def _kept(name: str) -> bool:
    return name in KEPT or name.startswith(KEPT_BEGIN)


def _over_steps(metrics: list[dict[str, Any]], name: str) -> float | None:
    """A step in which nothing was trained has none."""
    values = [line[name] for line in metrics if line.get(name) is not None]
    return math.fsum(values) / len(values) if values else None


def _numbers(evaluation: Mapping[str, Any]) -> dict[str, float | None]:
    """The numbers of an evaluation by name, those of a level as `level/5/acc@8`."""
    found = {
        k: _rounded(v)
        for k, v in evaluation.items()
        if isinstance(v, float) and not k.startswith("gaming/")
    }
    for level, values in evaluation.get("by_level", {}).items():
        found |= {f"level/{level}/{k}": _rounded(v) for k, v in values.items()}
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")


def write_results(results: Mapping[str, Any], path: Path) -> None:
    """The study readable, and a line per run."""
    head = {key: value for key, value in results.items() if key != "runs"}
    lines = [
        f" {json.dumps(name)}: {json.dumps(record)}" for name, record in results["runs"].items()
    ]
    body = json.dumps(head, indent=1)[:-2] + ',\n "runs": {\n' + ",\n".join(lines) + "\n }\n}\n"
    replace(path, body)


def read_results(path: str | Path) -> dict[str, Any]:
    if Path(path).suffix == ".toml":
        raise ConfigError(
            f"{path}: a study's plan, not its results; `equipoise study run` trains it and writes results.json"
        )
    try:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: there is no such file; `equipoise study run` writes results.json"
        ) from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: not a results file: {error}") from error
    if not isinstance(results, dict) or "runs" not in results:
        raise ConfigError(f"{path}: not a results file: it has no runs")
    return results


def curve(record: Mapping[str, Any], metric: str) -> list[float]:
    """The metric at every evaluation; NaN where one has none.
    The first study's file has a table per evaluation.
    """
    if "evaluations" in record:
        values = [numbers.get(metric) for numbers in record["evaluations"].values()]
    else:
        values = record["curves"].get(metric, [None])
    if all(value is None for value in values):
        known = (
            record["curves"] if "curves" in record else next(iter(record["evaluations"].values()))
        )
        raise ConfigError(f"{metric} is not in the evaluations ({', '.join(known)})")
    return [math.nan if value is None else value for value in values]


def value_of(record: Mapping[str, Any], metric: str, at: str) -> float:
    """One number of a run: a metric of training, or of its evaluations `at` some point."""
    if metric.startswith("run/"):
        found = record.get("run", {}).get(metric.removeprefix("run/"))
        if found is None:
            raise ConfigError(
                f"{metric} is not in the metrics of training ({', '.join(record.get('run', {}))})"
            )
        return float(found)
    values = curve(record, metric)
    if at == "last":
        return values[-1]
    return float(np.mean(values[1:])) if at == "mean" else jitter(values)


def finished(results: Mapping[str, Any], variant: str) -> dict[int, Mapping[str, Any]]:
    """seed → the record of each finished run of a variant, which may name its rate."""
    found = {}
    for name, record in results["runs"].items():
        owner, _, seed = name.rpartition("/seed-")
        if owner == variant and "failed" not in record:
            found[int(seed)] = record
    return found


def values(results: Mapping[str, Any], variant: str, row: Primary) -> dict[int, float]:
    """seed → the primary's number of each finished run of a variant, at the rate that it asks for."""
    rates = results.get("rates", ())
    if row.rate == "shared" or not rates:
        return {
            seed: value_of(r, row.metric, row.at) for seed, r in finished(results, variant).items()
        }
    return _at_own_rate(results, variant, row, list(rates))


def _at_own_rate(
    results: Mapping[str, Any], variant: str, row: Primary, rates: list[float]
) -> dict[int, float]:
    """Each seed at the rate that is best on average over the *other* seeds: none chooses its own.

    Best is the highest accuracy over the whole run, whatever the primary's own metric.
    """
    shared = results["config"]["optim"]["lr"]
    runs = {
        rate: finished(results, at_rate(variant, None if rate == shared else rate))
        for rate in rates
    }
    seeds = sorted(set.intersection(*(set(of_rate) for of_rate in runs.values())))
    if len(seeds) < 2:
        return {}
    accuracy = f"acc@{results['config'].get('eval', {}).get('samples', 8)}"
    score = {
        rate: [value_of(runs[rate][seed], accuracy, "mean") for seed in seeds] for rate in rates
    }
    found = {}
    for place, seed in enumerate(seeds):
        best = max(rates, key=lambda rate: math.fsum(score[rate]) - score[rate][place])
        found[seed] = value_of(runs[best][seed], row.metric, row.at)
    return found


def is_share(metric: str) -> bool:
    """Whether a metric is reported in points (percent)."""
    return metric.startswith(POINTS)

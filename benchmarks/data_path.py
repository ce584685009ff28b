"""Biases of the data path, injected into synthetic logs: truth, estimate, interval, coverage over 200 logs.

    python -m benchmarks.data_path [--logs 200] [--out benchmarks/results/data_path.json]

A prompt's success rate p is Beta(1.2, 1.2); a harder prompt has longer responses. Then:

limit      a response beyond 700 tokens is cut, and its reward is 0, whatever it would have been
filter     nine in ten groups with equal rewards are dropped before the loss (a bounded refill lets the tenth through)
discard    informative groups are dropped, a twentieth of them and a quarter of those with a response at the limit
resume     each of a prompt's three visits is lost with probability .08
top-p      tokens are drawn at top-p .9 from contexts of known law, and the engine's log-probabilities are noisy

The truths are of the law, not of a log: integrals where there is one, else the same law with 200,000 prompts.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.audit import data_path, from_table
from equipoise.audit.bootstrap import Estimate

PROMPTS, G, LIMIT = 200, 8, 700
RESUMED = 300  # prompts of the logs with lost visits
FILTERED, DISCARDED, SLOW = 0.9, 0.05, 0.25
EPOCHS, LOST = 3, 0.08
TOP_P, WORDS, CONTEXTS, NOISE = 0.9, 50, 400, 0.02
POPULATION = 200_000
RESULTS = Path(__file__).parent / "results" / "data_path.json"
Columns = dict[str, NDArray[Any]]


def responses(rng: np.random.Generator, prompts: int) -> Columns:
    """Rows of `prompts` groups, with what each response would have been without a limit (`right`, `whole`)."""
    p = rng.beta(1.2, 1.2, prompts)
    group = np.repeat(np.arange(prompts), G)
    whole = 400 * (1.8 - 0.8 * p[group]) * np.exp(0.5 * rng.standard_normal(len(group)) - 0.125)
    right = rng.random(len(group)) < p[group]
    cut = whole > LIMIT
    return {
        "prompt_id": group,
        "right": right,
        "finish": cut,
        "reward": (right & ~cut).astype(float),
        "length": np.ceil(np.minimum(whole, LIMIT)).astype(int),
    }


def kept(rng: np.random.Generator, columns: Columns) -> NDArray[np.bool_]:
    """Which rows were trained on, after the filter and the discards."""
    right = columns["reward"].reshape(-1, G).sum(1)
    equal = (right == 0) | (right == G)
    slow = columns["finish"].reshape(-1, G).any(1)
    chance = np.where(equal, FILTERED, np.where(slow, SLOW, DISCARDED))
    return np.repeat(rng.random(len(right)) >= chance, G)


def logged(columns: Columns, **more: Any) -> Any:
    rows = {name: columns[name] for name in ("prompt_id", "finish", "reward", "length")}
    return from_table(rows | more)


def limit_and_selection(rng: np.random.Generator) -> dict[str, Estimate]:
    columns = responses(rng, PROMPTS)
    return data_path(logged(columns, kept=kept(rng, columns))).estimates


def resume(rng: np.random.Generator) -> dict[str, Estimate]:
    """Visits of prompts, with their number known, and without."""
    seen = rng.random((RESUMED, EPOCHS)) >= LOST
    prompt = np.nonzero(seen)[0]
    rows = np.repeat(prompt, 2)
    visit = np.repeat(np.arange(len(prompt)), 2)
    n = len(rows)
    log = from_table({"prompt_id": rows, "group": visit, "reward": np.arange(n) % 2.0, "length": np.full(n, 9)})
    known = data_path(log, epochs=EPOCHS, prompts=RESUMED).estimates["lost"]
    return {"lost, prompts known": known, "lost, prompts unknown": data_path(log, epochs=EPOCHS).estimates["lost"]}


def contexts() -> NDArray[np.float64]:
    """−log S of contexts from flat to peaked, at TOP_P."""
    rng = np.random.default_rng(7)
    logits = rng.standard_normal((CONTEXTS, WORDS)) * np.linspace(0.5, 4, CONTEXTS)[:, None]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    ordered = -np.sort(-p, 1)
    before = np.cumsum(ordered, 1) - ordered
    return -np.log((ordered * (before < TOP_P)).sum(1))


def top_p_columns(rng: np.random.Generator, prompts: int, mass: NDArray[np.float64]) -> Columns:
    """A prompt's tokens come from contexts of its own part of the range."""
    columns = responses(rng, prompts)
    length = np.minimum(columns["length"], 60)
    start = rng.integers(0, CONTEXTS // 2, prompts)[columns["prompt_id"]]
    row = np.repeat(np.arange(len(length)), length)
    drawn = start[row] + rng.integers(0, CONTEXTS // 2, len(row))
    distance = np.bincount(row, mass[drawn] + NOISE * rng.standard_normal(len(row)))
    policy = -0.7 * length
    return columns | {"length": length, "sampler_logprob": policy + distance, "trainer_logprob": policy}


def top_p(rng: np.random.Generator) -> dict[str, Estimate]:
    columns = top_p_columns(rng, PROMPTS, contexts())
    more = {name: columns[name] for name in ("sampler_logprob", "trainer_logprob")}
    found = data_path(logged(columns, **more)).estimates
    return {"sampler_distance": found["sampler_distance"]}


def truths() -> dict[str, float]:
    """Of the law, from 200,000 prompts; the known chances are exact."""
    rng = np.random.default_rng(20_261_116)
    columns = responses(rng, POPULATION)
    keep = kept(rng, columns)
    reward, length, cut = columns["reward"], columns["length"], columns["finish"]
    by_group = reward.reshape(-1, G)
    mixed = (by_group.min(1) < by_group.max(1)).repeat(G)
    wrong = reward < by_group.mean(1).repeat(G)
    few = top_p_columns(rng, 4000, contexts())
    return {
        "truncated": cut.mean(),
        "truncated_wrong": cut[wrong].mean(),
        "reward_beyond_limit": (columns["right"] & cut).mean(),
        "discarded": 1 - keep.mean(),
        "filtered": FILTERED,
        "discarded_informative": 1 - keep[mixed].mean(),
        "kept_reward": reward[keep].mean() - reward.mean(),
        "kept_length": length[keep].mean() / length.mean() - 1,
        "lost, prompts known": LOST,
        "lost, prompts unknown": LOST,
        "sampler_distance": (few["sampler_logprob"] - few["trainer_logprob"]).sum() / few["length"].sum(),
    }


INJECTED: tuple[Callable[[np.random.Generator], dict[str, Estimate]], ...] = (limit_and_selection, resume, top_p)


def coverage(logs: int) -> dict[str, dict[str, Any]]:
    """For each quantity: the truth, the mean estimate and interval, and how often the interval held the truth."""
    true = truths()
    found: dict[str, list[Estimate]] = defaultdict(list)
    for seed in range(logs):
        for inject in INJECTED:
            for name, estimate in inject(np.random.default_rng((seed, 1))).items():
                found[name].append(estimate)
    out = {}
    for name, truth in true.items():
        estimates = found[name]
        values = [e.value for e in estimates if e.value is not None]
        held = [e.low is not None and e.high is not None and e.low <= truth <= e.high for e in estimates]
        out[name] = {
            "truth": round(float(truth), 5),
            "estimate": round(float(np.mean(values)), 5) if values else None,
            "low": round(float(np.mean([e.low for e in estimates])), 5),
            "high": round(float(np.mean([e.high for e in estimates])), 5),
            "coverage": round(float(np.mean(held)), 4),
            "logs": len(estimates),
        }
    return out


def line(name: str, row: dict[str, Any]) -> str:
    """A row of the table in docs/audit.md."""
    estimate = "bounds" if row["estimate"] is None else f"{row['estimate']:.4f}"
    interval = f"{row['low']:.4f} to {row['high']:.4f}"
    return f"| {name} | {row['truth']:.4f} | {estimate} | {interval} | {100 * row['coverage']:.1f} % |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    found = coverage(options.logs)
    for name, row in found.items():
        print(line(name, row))
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    setting = {"prompts": PROMPTS, "prompts_of_lost": RESUMED, "group": G, "limit": LIMIT}
    setting |= {"top_p": TOP_P, "epochs": EPOCHS}
    record = {"setting": setting, "versions": versions, "results": found}
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Seconds a step with the next batch sampled meanwhile and without: `python benchmarks/overlap.py --model Qwen3-0.6B`.

    python benchmarks/overlap.py --model Qwen3-1.7B --prompts 64 --longest 8192 --mean 1500 --limit 150
    python benchmarks/overlap.py --model abacus --longest 48 --mean 16 --steps 3 --out toy     # on a CPU, in a minute

Whole runs of `rollout.ahead` 0 and 1 in turn, in one process: the same shape with random weights, the same prompts and
the same lengths, which are lognormal and as wide as papers' (`--cv`): a response is cut where its length says. Rewards
are the verifier's and the flip of a coin, so that every group teaches. The first steps are left out, because they
compile and the first batch is sampled beside nothing, and the last one, which trains beside nothing. `bound` is what
could be gained at most if the two did not slow each other down: the step against the same without its shorter part.
Every run is ended after `--limit` seconds, which is then its result; the file is written anew after each.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import shapes
import torch
from lengths import lognormal  # benchmarks/lengths.py
from report import write  # benchmarks/report.py
from timing import attempt  # benchmarks/timing.py
from transformers.utils import logging as transformers_logging

from equipoise.rollout import native, paged
from equipoise.rollout.batch import Request
from equipoise.train import Config, Trainer, read_lines
from equipoise.train.score import Scores

PARTS = ("rollout", "reward", "wait", "assign", "train", "log", "step")
WARM = 2  # first steps that are left out
LAST = 1  # last steps likewise
TOY = "abacus"
PROMPT = 100  # tokens
GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[TOY, *shapes.SHAPES], default=TOY)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--longest", type=int, default=4096, help="tokens of the longest response")
    parser.add_argument("--mean", type=float, default=800.0, help="tokens of the mean response")
    parser.add_argument("--cv", type=float, default=1.0, help="standard deviation over mean of the lengths")
    parser.add_argument("--steps", type=int, default=4, help="steps that count, of each run")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each kind, in turn")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a run at most")
    parser.add_argument("--out", default="overlap", help="benchmarks/results/OUT.json")
    options = parser.parse_args()
    transformers_logging.disable_progress_bar()
    found: dict[str, Any] = {"options": vars(options), "runs": [], "ratio": None}
    with tempfile.TemporaryDirectory() as temporary:
        config = prepared(options, Path(temporary))
        for turn in range(options.rounds):
            for ahead in (0, 1):
                measure = measured(config(turn, ahead), spread(options))
                found["runs"].append({"round": turn, "ahead": ahead, **attempt(measure, options.limit)})
                found |= compared(found["runs"])
                write(options.out, found)
                print(json.dumps(found["runs"][-1]), flush=True)
                gc.collect()
                torch.cuda.empty_cache()
    print(f"a step without takes {found['ratio']} times as long as one with; bound {found['bound']}")


def prepared(options: argparse.Namespace, folder: Path) -> Callable[[int, int], Config]:
    """The configuration of a run, by its round and `rollout.ahead`."""
    cuda = torch.cuda.is_available()
    data = folder / "prompts.jsonl"
    if options.model != TOY:
        shapes.save(options.model, folder / "model", "cuda" if cuda else "cpu")
        count = options.prompts * (options.steps + WARM + LAST)
        rows = [{"problem": text, "answer": "1"} for text in shapes.prompts(count, PROMPT)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def config(turn: int, ahead: int) -> Config:
        c = Config()
        if options.model != TOY:
            c.model.name, c.task.name, c.task.verifier = str(folder / "model"), str(data), "math"
            c.task.dedupe = False
        c.model.dtype = "bfloat16" if cuda else "float32"
        c.rollout.prompts, c.rollout.group_size = options.prompts, options.group
        c.rollout.max_tokens, c.rollout.ahead = options.longest, ahead
        c.objective.preset, c.optim.lr = "dapo", 1e-6
        c.train.steps, c.train.checkpoint_every = WARM + options.steps + LAST, 10**6
        c.train.out = str(folder / f"run-{turn}-{ahead}")
        c.eval.every, c.log.rollouts_every, c.log.terminal = 0, 0, False
        return c

    return config


def spread(options: argparse.Namespace) -> Callable[..., Request]:
    """`request` with a length for every response, the same ones at every step, in an order of its own."""
    lengths = lognormal(options.prompts * options.group, options.mean, options.cv, options.longest)
    plain = native.request

    def asked(*arguments: Any) -> Request:
        found, step = plain(*arguments), arguments[5]
        order = torch.randperm(found.rows, generator=torch.Generator().manual_seed(step))
        limit = torch.minimum(found.limit, lengths[order].to(found.limit.device))
        return dataclasses.replace(found, limit=limit)

    return asked


def measured(config: Config, asked: Callable[..., Request]) -> Callable[[], dict[str, Any]]:
    def run() -> dict[str, Any]:
        with _lengths(asked):
            trainer = Trainer(config)
            trainer._checkpoint = lambda: None  # what is measured are steps
            scorer = trainer.collector.scorer
            scorer.settle = _with_coins(scorer.settle)
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            trainer.run()
        peak = torch.cuda.max_memory_allocated() / GIB if torch.cuda.is_available() else None
        return figures(read_lines(trainer.folder.metrics)[WARM:-LAST]) | {"peak_gib": peak}

    return run


@contextlib.contextmanager
def _lengths(asked: Callable[..., Request]) -> Iterator[None]:
    with mock.patch.object(native, "request", asked), mock.patch.object(paged, "request", asked):
        yield


def _with_coins(settle: Callable[..., Scores]) -> Callable[..., Scores]:
    flips = torch.Generator().manual_seed(0)

    def settled(*args: Any) -> Scores:
        scores = settle(*args)
        coins = torch.randint(2, scores.rewards.shape, generator=flips).to(scores.rewards)
        return dataclasses.replace(scores, rewards=scores.rewards + coins)

    return settled


def figures(records: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Of the steps that count: medians of their parts, and every step's seconds."""
    parts = [part for part in PARTS if f"timing_s/{part}" in records[0]]
    lags = [record.get("rollout/lag", 0.0) for record in records]
    return {
        "seconds": {part: statistics.median(record[f"timing_s/{part}"] for record in records) for part in parts},
        "steps": [record["timing_s/step"] for record in records],
        "tokens_per_s": statistics.median(record["tokens_per_s"] for record in records),
        "mean_length": statistics.mean(record["completions/mean_length"] for record in records),
        "max_length": max(record["completions/max_length"] for record in records),
        "lag": statistics.mean(lags),
        "rollout_kl": statistics.mean(record.get("rollout/kl", 0.0) for record in records),
    }


def compared(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many times as long a step without takes, by the median of all rounds' steps; None before both have run."""
    steps = {ahead: [s for run in runs if run["ahead"] == ahead for s in run.get("steps", ())] for ahead in (0, 1)}
    plain = [run["seconds"] for run in runs if run["ahead"] == 0 and "seconds" in run]
    ratio = statistics.median(steps[0]) / statistics.median(steps[1]) if all(steps.values()) else None
    bound = statistics.median(_bound(seconds) for seconds in plain) if plain else None
    return {"ratio": ratio, "bound": bound}


def _bound(seconds: dict[str, float]) -> float:
    """Of a run without: its step against what is left where the shorter part costs nothing."""
    sampled, trained = seconds["rollout"] + seconds["reward"], seconds["train"]
    return seconds["step"] / (seconds["step"] - min(sampled, trained))


if __name__ == "__main__":
    main()

"""What a second process saves, against the model of docs/scaling.md: `python benchmarks/ranks.py [--out FILE]`.

The embedded model trains a few steps with batches of several sizes, on one process and on two (gloo, one thread each).
The model's two formulas, a decode step of a fixed and a proportional part and a training pass that has a floor and a
rate, are fitted to one process; what they say of two is then compared with what two took, the slower of them.

Times are processor seconds of each process: waiting for the other one is not in them, what the exchange of gradients
computes is. So a busy machine measures the same, and links do not count: this is an error of how the work divides.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from equipoise.train import Trainer, load, ranks

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results" / "ranks.json"
SIZES = (2, 8, 16, 32, 64)  # prompts; the smallest has the floor of a pass, and is not predicted
GROUP = 8
STEPS = 6  # the first of them is left out
ROUNDS = 2  # one and two processes in turn, so that neither has the machine's better minute


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the JSON (default: %(default)s)")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)  # one of the processes: where its times go
    options = parser.parse_args()
    if options.inside is not None:
        inside(options.inside)
        return
    found: dict[str, Any] = {"machine": platform.machine(), "torch": torch.__version__, "group": GROUP, "points": []}
    for turn in range(ROUNDS):
        for count in (1, 2):
            found["points"] += [{"round": turn, **point} for point in measured(count)]
            found["errors"] = errors(found["points"])
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for part, by_size in found["errors"].items():
        print(part, {prompts: f"{error:+.0%}" for prompts, error in by_size.items()})


def measured(count: int) -> list[dict[str, Any]]:
    """A point for each size, of `count` processes."""
    with tempfile.TemporaryDirectory() as folder:
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        subprocess.run([*start, str(Path(__file__).resolve()), "--inside", folder], check=True, cwd=ROOT)
        of_ranks = [json.loads((Path(folder) / f"rank-{rank}.json").read_text()) for rank in range(count)]
    return [point(prompts, [of_rank[str(prompts)] for of_rank in of_ranks]) for prompts in SIZES]


def point(prompts: int, of_ranks: list[list[dict[str, float]]]) -> dict[str, Any]:
    """The medians over the steps of what the slower process took, and of how much it had to do."""
    found: dict[str, Any] = {"processes": len(of_ranks), "prompts": prompts}
    for part, work in (("rollout", ("steps", "tokens")), ("training", ("tokens",))):
        slower = [max(at_once, key=lambda one: one[part]) for at_once in zip(*of_ranks, strict=True)]
        found[part] = {name: statistics.median(one[name] for one in slower) for name in (part, *work)}
    return found


def inside(folder: Path) -> None:
    """One process: the processor seconds of every step, for every size."""
    torch.set_num_threads(1)
    found = {str(prompts): _steps(prompts, folder) for prompts in SIZES}
    (folder / f"rank-{ranks.me()}.json").write_text(json.dumps(found))


def _steps(prompts: int, folder: Path) -> list[dict[str, float]]:
    asked = {
        "model.device": "cpu", "rollout.prompts": prompts, "rollout.group_size": GROUP, "train.steps": STEPS,
        "train.out": str(folder / f"run-{prompts}"), "train.threads": 1, "eval.every": 0, "log.terminal": False,
        "log.rollouts_every": 0, "train.checkpoint_every": 1000, "optim.lr": 1e-6,
    }  # fmt: skip
    overrides = [part for key, value in asked.items() for part in (f"--{key}", json.dumps(value))]
    trainer = Trainer(load(ROOT / "examples" / "abacus.toml", overrides))
    steps: list[dict[str, float]] = []

    def sampled(seconds: float, rollouts: Any) -> None:
        lengths = rollouts.lengths
        steps.append({"rollout": seconds, "steps": int(lengths.max()), "tokens": int(lengths.sum()), "training": 0.0})

    def trained(seconds: float, _: Any) -> None:
        steps[-1]["training"] = seconds

    sampler: Any = trainer.collector.sampler
    sampler.sample = timed(sampler.sample, sampled)
    trainer.updater.update = timed(trainer.updater.update, trained)  # type: ignore[method-assign]
    trainer.run()
    return steps[1:]


def timed(call: Callable[..., Any], tell: Callable[[float, Any], None]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **more: Any) -> Any:
        begun = time.process_time()
        found = call(*arguments, **more)
        tell(time.process_time() - begun, found)
        return found

    return wrapped


def errors(points: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Predicted over measured, minus 1, of two processes: of each part, by prompts; the mean over rounds."""
    one = [p for p in points if p["processes"] == 1]
    a, b = fit_rollout([(p["rollout"]["rollout"], p["rollout"]["steps"], p["rollout"]["tokens"]) for p in one])
    floor, rate = fit_training([(p["training"]["training"], p["training"]["tokens"]) for p in one])
    found: dict[str, dict[str, float]] = {"rollout": {}, "training": {}}
    for prompts in SIZES[1:]:
        two = [p for p in points if p["processes"] == 2 and p["prompts"] == prompts]
        if two:
            drawn, passed = [p["rollout"] for p in two], [p["training"] for p in two]
            said = statistics.mean(a * one["steps"] + b * one["tokens"] for one in drawn)
            found["rollout"][str(prompts)] = said / statistics.mean(one["rollout"] for one in drawn) - 1
            said = statistics.mean(max(floor, one["tokens"] / rate) for one in passed)
            found["training"][str(prompts)] = said / statistics.mean(one["training"] for one in passed) - 1
    return found


def fit_rollout(points: list[tuple[float, float, float]]) -> tuple[float, float]:
    """a, b of seconds = a·steps + b·tokens, by least squares of the relative error."""
    rows = torch.tensor([[steps / t, tokens / t] for t, steps, tokens in points], dtype=torch.float64)
    a, b = torch.linalg.lstsq(rows, torch.ones(len(rows), 1, dtype=torch.float64)).solution[:, 0].tolist()
    return a, b


def fit_training(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Seconds that a pass takes at least (the smallest batch's), and tokens a second of the largest batch."""
    least = min(tokens for _, tokens in points)
    most = max(tokens for _, tokens in points)
    floor = statistics.median(t for t, tokens in points if tokens == least)
    return floor, statistics.median(tokens / t for t, tokens in points if tokens == most)


if __name__ == "__main__":
    main()

"""A run of verl's main program beside our trainer: the same prompts, the same rates, each engine's own draws.

    equipoise export verl examples/abacus.toml LAUNCH --rollout.prompts 16 …   # OPTIONS below
    LAUNCH/launch.sh                                                           # writes RUN/verl-TIME.jsonl
    python -m benchmarks.verl_gpu --verl "one H200=RUN/verl-TIME.jsonl" --ours FOLDER

Each run of verl is kept as its curve: rewards, gradients, measures of bias, the distance of the sampler from the actor,
seconds. Ours is trained here, on the CPU in float32, six times on verl's prompts with other draws, at verl's rates
(which come a step later): how far runs lie apart that differ by their draws alone.

Not covered: speed. The GPU was shared with other work, and the embedded model has 109 thousand parameters.
"""

from __future__ import annotations

import argparse
import json
import statistics
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

from equipoise.config import OptimConfig
from equipoise.tasks.arithmetic import Arithmetic
from equipoise.train import Trainer, load, update

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "verl_gpu.json"
CONFIG = ROOT / "examples" / "abacus.toml"
STEPS, DRAWS = 20, 6
OPTIONS = {
    "rollout.prompts": 16, "rollout.group_size": 16, "train.steps": STEPS, "train.checkpoint_every": STEPS,
    "eval.every": STEPS, "eval.per_level": 4, "eval.samples": 4,
}  # fmt: skip
# What is kept of each step, and what verl calls it.
KEPT = {
    "reward": "critic/rewards/mean",
    "length": "response_length/mean",
    "grad_norm": "actor/grad_norm",
    "mass_balance": "bias/mass_balance",
    "anchor": "difficulty/anchor",
    "probs_diff_mean": "training/rollout_probs_diff_mean",
    "probs_diff_max": "training/rollout_probs_diff_max",
    "ratio_max": "rollout_corr/rollout_is_max",
    "seconds": "timing_s/step",
    "generation_seconds": "timing_s/gen",
}
HELD_OUT = "val-core/arithmetic/acc/mean@4"


def curve_of_verl(path: Path) -> dict[str, Any]:
    """Of the file that verl's logger wrote: each kept metric over the steps, and the held-out accuracy."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    steps = [row["data"] for row in rows if KEPT["reward"] in row["data"]]
    found: dict[str, Any] = {}
    for name, theirs in KEPT.items():
        if theirs in steps[0]:
            found[name] = [float(f"{step[theirs]:.5g}") for step in steps]
    found["held_out"] = {row["step"]: row["data"][HELD_OUT] for row in rows if HELD_OUT in row["data"]}
    return found


def a_step_later(o: OptimConfig, step: int, total: int) -> float:
    """verl's first step is at rate 0."""
    return update_rate(o, step - 1, total)


update_rate = update.learning_rate


def curve_of_ours(folder: Path, draws: int) -> list[float]:
    """The rewards of our trainer on the prompts of seed 0, with the draws of another."""
    if not (folder / "metrics.jsonl").exists():
        options = {**OPTIONS, "train.seed": draws, "train.out": folder, "model.device": "cpu", "log.terminal": "false"}
        flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        with mock.patch.object(update, "learning_rate", a_step_later):
            Trainer(load(CONFIG, flags), task=Arithmetic(seed=0)).run()
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [round(row["reward/mean"], 6) for row in map(json.loads, lines) if "reward/mean" in row]


def halves(rewards: list[float]) -> tuple[float, float]:
    return statistics.fmean(rewards[: STEPS // 2]), statistics.fmean(rewards[STEPS // 2 :])


def lines(record: dict[str, Any]) -> list[str]:
    """The rows of the page's table: mean reward of steps 1 to 10 and 11 to 20."""
    runs = [halves(rewards) for rewards in record["ours"]["rewards"]]
    told = [f"{statistics.fmean(half):.3f} ± {statistics.stdev(half):.3f}" for half in zip(*runs, strict=True)]
    rows = [f"| equipoise, CPU, float32, {len(runs)} runs | {told[0]} | {told[1]} |"]
    for name, run in record["verl"].items():
        first, second = halves(run["reward"])
        rows.append(f"| verl, {name} | {first:.3f} | {second:.3f} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verl", action="append", default=[], metavar="NAME=METRICS")
    parser.add_argument("--about", action="append", default=[], metavar="NAME=JSON", help="what no metric says")
    parser.add_argument("--ours", type=Path, required=True)
    parser.add_argument("--json", type=Path, default=RESULTS)
    given = parser.parse_args()
    about = {name: json.loads(text) for name, _, text in (item.partition("=") for item in given.about)}
    record = {
        "options": OPTIONS,
        "verl": {
            name: {**about.get(name, {}), **curve_of_verl(Path(path))}
            for name, _, path in (item.partition("=") for item in given.verl)
        },
        "ours": {
            "versions": {name: version(name) for name in ("torch", "transformers")},
            "rewards": [curve_of_ours(given.ours / str(draws), draws) for draws in range(DRAWS)],
        },
    }
    given.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("\n".join(lines(record)))


if __name__ == "__main__":
    main()

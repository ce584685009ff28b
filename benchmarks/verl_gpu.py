"""A run of verl's main program beside our trainer: the same prompts, the same rates, each engine's own draws.

    equipoise export verl examples/abacus.toml LAUNCH --rollout.prompts 16 …   # OPTIONS below
    LAUNCH/launch.sh                                                           # writes RUN/verl-TIME.jsonl
    python -m benchmarks.verl_gpu --verl "one H200=RUN/verl-TIME.jsonl" --audit "one H200=RUN/rollouts" --ours FOLDER

Each run of verl is kept as its curve: rewards, gradients, measures of bias, the distance of the sampler from the actor,
seconds; a step that was done again after a resume counts as it was done last. Runs in the file that are not named stay.
Ours is trained here, on the CPU in float32 and in bfloat16, twelve times each on verl's prompts with other draws, at
verl's rates (which come a step later): how far runs lie apart that differ by their draws alone, and whether the
precision shows beside that.

Not covered: speed. The embedded model has 109 thousand parameters, and the first run's GPU was shared with other work.
"""

from __future__ import annotations

import argparse
import json
import statistics
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from equipoise.audit import measure
from equipoise.config import OptimConfig
from equipoise.tasks.arithmetic import Arithmetic
from equipoise.train import Trainer, load, update

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "verl_gpu.json"
CONFIG = ROOT / "examples" / "abacus.toml"
OBJECTIVE = "dapo+balanced+hadw"  # which is CONFIG's
STEPS, DRAWS, DTYPES = 20, 12, ("float32", "bfloat16")
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
    """Of what verl's logger wrote, a file or the run's folder with one of each start: each kept metric over the steps,
    and the held-out accuracy."""
    files = sorted(path.glob("verl-*.jsonl")) if path.is_dir() else [path]
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    by_step = {row["step"]: row["data"] for row in rows if KEPT["reward"] in row["data"]}
    steps = [by_step[step] for step in sorted(by_step)]
    found: dict[str, Any] = {}
    for name, theirs in KEPT.items():
        if theirs in steps[0]:
            found[name] = [float(f"{step[theirs]:.5g}") for step in steps]
    found["held_out"] = {str(row["step"]): row["data"][HELD_OUT] for row in rows if HELD_OUT in row["data"]}
    return found


def audited(rollouts: Path) -> dict[str, Any]:
    """How many times as hard right responses pulled as wrong ones, and its 95 % interval over prompts."""
    found = measure(rollouts, OBJECTIVE, tokenizer="abacus").overall
    pull = found.objectives[OBJECTIVE]["coupling"]
    return {
        "responses": found.responses,
        "prompts": found.prompts,
        "coupling": [round(value, 3) for value in (pull.value, pull.low, pull.high)],
    }


class ProductsThroughFloat32(TorchDispatchMode):
    """Takes products of bfloat16 in float32 and rounds them once. It is what torch does on a CPU without instructions
    for bfloat16, to the bit, a hundred times as fast."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and isinstance(args[0], Tensor) and args[0].dtype == torch.bfloat16:
            if func is torch.ops.aten.mm.default:
                return torch.mm(*(matrix.float() for matrix in args)).bfloat16()
            if func is torch.ops.aten.addmm_.default:
                return args[0].copy_(torch.addmm(*(matrix.float() for matrix in args), **(kwargs or {})))
        return func(*args, **(kwargs or {}))


def a_step_later(o: OptimConfig, step: int, total: int) -> float:
    """verl's first step is at rate 0."""
    return update_rate(o, step - 1, total)


update_rate = update.learning_rate


def curve_of_ours(folder: Path, draws: int, dtype: str) -> list[float]:
    """The rewards of our trainer on the prompts of seed 0, with the draws of another."""
    if not (folder / "metrics.jsonl").exists():
        ours = {"model.device": "cpu", "model.dtype": dtype, "train.seed": draws, "train.out": folder}
        options = {**OPTIONS, **ours, "log.terminal": "false"}
        flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        with mock.patch.object(update, "learning_rate", a_step_later), ProductsThroughFloat32():
            Trainer(load(CONFIG, flags), task=Arithmetic(seed=0)).run()
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [round(row["reward/mean"], 6) for row in map(json.loads, lines) if "reward/mean" in row]


def halves(rewards: list[float]) -> tuple[float, float]:
    return statistics.fmean(rewards[: STEPS // 2]), statistics.fmean(rewards[STEPS // 2 :])


def table_row(name: str, runs: list[list[float]]) -> str:
    """Mean reward of steps 1 to 10 and 11 to 20; of several runs with their standard deviation."""
    both_halves = list(zip(*map(halves, runs), strict=True))
    if len(runs) == 1:
        cells = [f"{half[0]:.3f}" for half in both_halves]
    else:
        name = f"{name}, {len(runs)} runs"
        cells = [f"{statistics.fmean(half):.3f} ± {statistics.stdev(half):.3f}" for half in both_halves]
    return f"| {name} | {cells[0]} | {cells[1]} |"


def lines(record: dict[str, Any]) -> list[str]:
    """The rows of the page's table."""
    ours = [table_row(f"equipoise, CPU, {dtype}", runs) for dtype, runs in record["ours"]["rewards"].items()]
    verl = [
        table_row(f"verl, {name}", [run["reward"] for run in launch["runs"]]) for name, launch in record["verl"].items()
    ]
    return ours + verl


def of_rounding(single: list[list[float]], half: list[list[float]]) -> str:
    """What bfloat16 adds to the reward of steps 11 to 20, over pairs of runs with one seed, and its standard error."""
    added = [halves(b)[1] - halves(a)[1] for a, b in zip(single, half, strict=True)]
    return f"{statistics.fmean(added):+.3f} ± {statistics.stdev(added) / len(added) ** 0.5:.3f}"


def both_of_rounding(record: dict[str, Any]) -> dict[str, str]:
    ours = record["ours"]["rewards"]
    verl = {name: [run["reward"] for run in launch["runs"]] for name, launch in record["verl"].items()}
    return {
        "equipoise": of_rounding(ours["float32"], ours["bfloat16"]),
        "verl": of_rounding(verl["one CPU worker, float32"], verl["one CPU worker, bfloat16"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verl", action="append", default=[], metavar="NAME=METRICS", help="a name may come again")
    parser.add_argument("--about", action="append", default=[], metavar="NAME=JSON", help="what no metric says")
    parser.add_argument("--audit", action="append", default=[], metavar="NAME=ROLLOUTS", help="of each run of a name")
    parser.add_argument("--ours", type=Path, required=True)
    parser.add_argument("--json", type=Path, default=RESULTS)
    given = parser.parse_args()
    record = json.loads(given.json.read_text(encoding="utf-8")) if given.json.exists() else {"verl": {}}
    record["options"] = OPTIONS
    named = [item.partition("=")[::2] for item in given.verl]
    for name in dict(named):
        record["verl"].setdefault(name, {})["runs"] = [curve_of_verl(Path(path)) for n, path in named if n == name]
    for name, text in (item.partition("=")[::2] for item in given.about):
        record["verl"][name] = {**json.loads(text), "runs": record["verl"][name]["runs"]}
    rollouts = [item.partition("=")[::2] for item in given.audit]
    for name in dict(rollouts):
        audits = [audited(Path(path)) for n, path in rollouts if n == name]
        record["verl"][name]["audit"] = audits if len(audits) > 1 else audits[0]
    record["ours"] = {
        "versions": {name: version(name) for name in ("torch", "transformers")},
        "rewards": {
            dtype: [curve_of_ours(given.ours / dtype / str(draws), draws, dtype) for draws in range(DRAWS)]
            for dtype in DTYPES
        },
    }
    given.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("\n".join(lines(record)))
    print("bfloat16 less float32, steps 11 to 20:", both_of_rounding(record))


if __name__ == "__main__":
    main()

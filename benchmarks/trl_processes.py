"""TRL's engines beside our own trainer: 20 steps of the same exported launch, with DDP, FSDP2 and a vLLM server.

    python benchmarks/trl_processes.py --seeds 3 --out FOLDER
    python benchmarks/trl_processes.py --colocated FOLDER     # a launch with vLLM in TRL's process, run elsewhere

The launch is what `equipoise export trl` writes, started by `accelerate launch` on two CPU processes (gloo); sharding
there goes through tests/integrations/trl/sharded.py, and the server is that of vllm_server.py beside it. Prompts are
the same everywhere, draws are each engine's own. What is compared is the mean reward of the last ten steps, seed by
seed, with its 95 % interval over the seeds. TRL's tables of completions are audited, and its seconds a step are kept.

vLLM itself needs a GPU: of a run there, FOLDER/launch and FOLDER/out are read, and beside it stand the runs above with
the same seed, and so the same prompts.

Not covered: speed: the seconds are of two processes on two cores that do other things as well.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
import runpy
import statistics
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

from equipoise.audit import measure

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "trl_processes.json"
COLOCATED = ROOT / "benchmarks" / "results" / "trl_vllm.json"
CONFIG = ROOT / "examples" / "abacus.toml"
OBJECTIVE = "dapo+balanced+hadw"  # which is CONFIG's
STEPS, LAST = 20, 10
OPTIONS = {
    "train.steps": STEPS, "rollout.prompts": 8, "rollout.group_size": 8, "train.threads": 1, "model.device": "cpu",
    "train.checkpoint_every": STEPS, "eval.every": 0, "log.terminal": False, "optim.warmup": 0,
}  # fmt: skip
LAUNCH = ("--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")
FSDP2 = ("--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
ENGINES = {
    "TRL, 2 processes, DDP": (*LAUNCH, "--multi_gpu"),  # which is DDP; `--cpu` would start one process
    "TRL, 2 processes, FSDP2": (*LAUNCH, *FSDP2),
    "TRL, 2 processes, ZeRO-2": (*LAUNCH, "--use_deepspeed", "--zero_stage", "2"),
    "TRL, a server with vLLM's endpoints": ("--num_processes", "1", *LAUNCH[2:], "--cpu"),
}
SERVER = list(ENGINES)[-1]
# What the run with vLLM sets besides OPTIONS, and what TRL logs of its sampler beside the trainer.
OPTIONS_OF_COLOCATED = ("model.dtype", "rollout.engine", "rollout.engine_memory", "train.seed")
SAMPLING = (
    "sampling_logp_difference/mean", "sampling_logp_difference/max", "importance_sampling_ratio/min",
    "importance_sampling_ratio/mean", "importance_sampling_ratio/max",
)  # fmt: skip
# Two-sided 95 % quantiles of Student's t, by the degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


def flags(seed: int) -> list[str]:
    """The seed decides on the prompts, here and in TRL, and on the draws of each."""
    options = {**OPTIONS, "train.seed": seed}
    return [part for name, value in options.items() for part in (f"--{name}", str(value).lower())]


def interval(values: list[float]) -> tuple[float, float]:
    """The mean of a few runs and half the width of its 95 % interval."""
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), STUDENT[len(values) - 1] * spread


def run(*command: str) -> None:
    subprocess.run([sys.executable, *command], check=True, cwd=ROOT)


def seeds_of_trl(launches: str, out: str, count: int, server: bool) -> None:
    """The launch of each seed, in the processes that Accelerate started: TRL is imported once."""
    import pytest

    sys.path.insert(0, str(ROOT))  # for `tests`
    from equipoise.policy.names import ABACUS
    from tests.integrations.trl.sharded import allow_cpu
    from tests.integrations.trl.vllm_server import served

    allow_cpu()
    for seed in range(count):
        launch = f"{launches}/{seed}/launch.py"
        sys.argv = [launch, "--output_dir", f"{out}/{seed}"]
        with contextlib.ExitStack() as stack:
            if server:
                patch = stack.enter_context(pytest.MonkeyPatch.context())
                _, address = stack.enter_context(served(patch, str(ABACUS)))
                sys.argv += ["--use_vllm", "true", "--vllm_mode", "server", "--vllm_server_base_url", address]
            runpy.run_path(launch, run_name="__main__")


def folder_of(name: str) -> str:
    return re.sub(r"\W+", "-", name)


def logged_by_trl(out: Path, name: str) -> list[float]:
    state = json.loads((out / f"checkpoint-{STEPS}" / "trainer_state.json").read_text(encoding="utf-8"))
    return [entry[name] for entry in state["log_history"] if name in entry]


def audited(out: Path) -> dict[str, Any]:
    """How many times as hard right responses pulled as wrong ones, by the audit of TRL's tables of completions."""
    found = measure(out, OBJECTIVE, tokenizer="abacus")
    coupling = found.overall.objectives[OBJECTIVE]["coupling"]
    return {
        "responses": found.overall.responses, "steps": len(found.steps),
        "coupling": [round(value, 4) for value in (coupling.value, coupling.low, coupling.high)],
    }  # fmt: skip


def rewards_of_ours(out: Path) -> list[float]:
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row["reward/mean"] for row in map(json.loads, lines) if "reward/mean" in row]


def curves(out: Path, engines: list[str], count: int) -> dict[str, list[list[float]]]:
    found: dict[str, list[list[float]]] = {"equipoise": []}
    for seed in range(count):
        folder = out / "equipoise" / str(seed)
        if not folder.exists():
            run("-m", "equipoise", "train", str(CONFIG), *flags(seed), "--train.out", str(folder))
        found["equipoise"].append(rewards_of_ours(folder))
        launch = out / "launch" / str(seed)
        if not launch.exists():
            run("-m", "equipoise", "export", "trl", str(CONFIG), str(launch), *flags(seed))
    for name in engines:
        folder = out / folder_of(name)
        if not (folder / str(count - 1) / f"checkpoint-{STEPS}").exists():
            inside = [__file__, "--inside", str(out / "launch"), str(folder), str(count)]
            inside += ["server"] if name == SERVER else []
            run("-m", "accelerate.commands.launch", *ENGINES[name], *inside)
        found[name] = [logged_by_trl(folder / str(seed), "reward") for seed in range(count)]
    return found


def record(found: dict[str, list[list[float]]]) -> dict[str, Any]:
    packages = ("torch", "transformers", "accelerate", "trl")
    versions = {name: version(name) for name in packages}
    return {"options": OPTIONS, "versions": versions, "engines": summary(found)}


def summary(found: dict[str, list[list[float]]]) -> dict[str, Any]:
    last = {name: [statistics.fmean(curve[-LAST:]) for curve in runs] for name, runs in found.items()}
    engines = {}
    for name, runs in found.items():
        # On the same prompts: their difference from seed to seed is in both, and drops out.
        apart = [theirs - ours for theirs, ours in zip(last[name], last["equipoise"], strict=True)]
        engines[name] = {
            "last_ten": dict(zip(("mean", "half_width"), interval(last[name]), strict=True)),
            "minus_ours": dict(zip(("mean", "half_width"), interval(apart), strict=True)),
            "curves": [[round(value, 6) for value in curve] for curve in runs],
        }
    return engines


def line(name: str, row: dict[str, Any]) -> str:
    """A row of the page's table."""
    cells = (f"{row[key]['mean']:.3f} ± {row[key]['half_width']:.3f}" for key in ("last_ten", "minus_ours"))
    return f"| {name} | {' | '.join(cells)} |".replace("| -", "| −")


def told_by_trl(out: Path, name: str, count: int) -> dict[str, Any]:
    """What the runs of an engine left behind, besides their rewards."""
    runs = [out / folder_of(name) / str(seed) for seed in range(count)]
    seconds = [seconds_of(run) for run in runs]
    return {
        "seconds": round(statistics.median(value for each in seconds for value in each), 2),
        "step_seconds": seconds,
        "audit": [audited(run) for run in runs],
    }


def seconds_of(out: Path) -> list[float]:
    return [round(value, 3) for value in logged_by_trl(out, "step_time")]


def audit_line(name: str, row: dict[str, Any]) -> str:
    """A row of the page's second table: median seconds a step, and the pull of right to wrong by seed."""
    pulls = ("{:.2f} [{:.2f}, {:.2f}]".format(*found["coupling"]) for found in row["audit"])
    return f"| {name} | {row['seconds']:.1f} | {' | '.join(pulls)} |"


def versions_of(out: Path) -> dict[str, str]:
    """What TRL wrote into the model card of a run."""
    card = (out / "README.md").read_text(encoding="utf-8")
    return {name.lower(): number for name, number in re.findall(r"^- (\w+): ([\d.]+)$", card, re.MULTILINE)}


def minus(curve: list[float], engines: dict[str, Any], seed: int) -> dict[str, float]:
    """The mean reward of a run's last ten steps, less that of each engine with the same seed."""
    last = statistics.fmean(curve[-LAST:])
    return {name: round(last - statistics.fmean(row["curves"][seed][-LAST:]), 4) for name, row in engines.items()}


def colocated(folder: Path, engines: dict[str, Any]) -> dict[str, Any]:
    """What a run with vLLM in TRL's process left behind."""
    config = tomllib.loads((folder / "launch" / "config.toml").read_text(encoding="utf-8"))
    parts = [name.split(".") for name in (*OPTIONS, *OPTIONS_OF_COLOCATED)]
    out = folder / "out"
    curve = logged_by_trl(out, "reward")
    return {
        "options": {f"{section}.{key}": config[section][key] for section, key in parts},
        "versions": versions_of(out),
        "curve": curve,
        "minus": minus(curve, engines, config["train"]["seed"]),
        "step_seconds": seconds_of(out),
        "sampling": {name: [float(f"{v:.5g}") for v in logged_by_trl(out, f"sampling/{name}")] for name in SAMPLING},
        "audit": audited(out),
    }


def colocated_lines(run: dict[str, Any]) -> list[str]:
    """The rows of the page's table of the run with vLLM."""
    return [f"| {name} | {value:+.3f} |".replace("| -", "| −") for name, value in run["minus"].items()]


def main() -> None:
    if sys.argv[1:2] == ["--inside"]:
        seeds_of_trl(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:] == ["server"])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, choices=range(2, 6))
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--out", type=Path)
    which.add_argument("--colocated", type=Path)
    parser.add_argument("--about", type=json.loads, default={}, help="what the run's folder does not say, as JSON")
    parser.add_argument(
        "--engines", nargs="+", choices=ENGINES, default=[name for name in ENGINES if "ZeRO" not in name]
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.colocated:
        engines = json.loads(RESULTS.read_text(encoding="utf-8"))["engines"]
        found = {**given.about, **colocated(given.colocated, engines)}
        (given.json or COLOCATED).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print("\n".join(colocated_lines(found)))
        return
    result = record(curves(given.out, given.engines, given.seeds))
    for name in given.engines:
        result["engines"][name] |= told_by_trl(given.out, name, given.seeds)
    (given.json or RESULTS).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name, row in result["engines"].items():
        print(line(name, row))
    for name in given.engines:
        print(audit_line(name, result["engines"][name]))


if __name__ == "__main__":
    main()

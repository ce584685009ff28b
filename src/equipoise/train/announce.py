"""What a run says before its first step and after its last: what is trained, how, on what, where;
and what to do next.

Sentences alone: nothing here changes a number. The line of each step is progress.py's.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.config import Config
from equipoise.evaluate.run import judged_by
from equipoise.kernels import cache
from equipoise.objective import Objective
from equipoise.objective.difficulty import RangeError
from equipoise.policy import Policy, parameter_count, weight_bytes
from equipoise.tasks import Dataset, Task
from equipoise.train.ahead import Ahead, OnPolicy
from equipoise.train.batch import Collector
from equipoise.train.folder import RunFolder
from equipoise.train.given import RunInputs
from equipoise.train.planner import free_room
from equipoise.train.progress import Terminal
from equipoise.train.settle import Settled
from equipoise.train.update import Updater

GIB = 2**30
ON_POLICY = (
    "one optimizer step a batch: every ratio π/π_old is 1, so {} clips nothing and is a plain policy gradient; "
    "train.mini_batch or train.updates make several steps of a batch"
)
UNCORRECTED = (
    "{}: responses are drawn from a policy in 8 bits and trained as if the trainer's had drawn them, because "
    "objective.mismatch = none; rollout/kl says how far apart the two are, and tis weighs by it"
)
AHEAD = (
    "rollout.ahead = 1: each batch is sampled while the one before trains, by weights a step older; "
    "π_old is theirs, and rollout/lag says how many optimizer steps they lack"
)


def header(
    folder: RunFolder,
    updater: Updater,
    batches: OnPolicy | Ahead,
    *,
    held_out: int,
    frozen: int,
    kernels: int | None,
) -> list[str]:
    """A line each for model, objective, data, run and memory; on CUDA, for the kernels too.

    held_out: prompts of an evaluation; frozen: models beside the policy; kernels: compiled ones.
    """
    policy, objective = updater.policy, updater.objective
    lines = [
        ("model", _model(policy)),
        ("objective", repr(objective).removeprefix("Objective(").removesuffix(")")),
        *(("", f"note: {note}") for note in objective.notes),
        ("data", _data(batches.collector, held_out)),
        *_shortened(batches.collector, policy.context),
        ("run", _run(folder, batches.collector)),
        ("memory", _memory(updater, batches, frozen)),
    ]
    if policy.device.type == "cuda" and kernels is not None:
        lines.append(("kernels", kernels_before(kernels)))
    return _aligned(lines)


def settled(found: Settled[Config], objective: Objective, task: Task, terminal: Terminal) -> None:
    """Say what the data are, what `auto` came to, and what the configuration makes of ratios."""
    if isinstance(task, Dataset):
        terminal.say(str(task.summary))
    for note in found.notes:
        terminal.say(note)
    for warning in found.warnings:
        terminal.warn(warning)
    config = found.config
    if config.rollout.eight_bits and objective.mismatch.name == "none":
        terminal.warn(UNCORRECTED.format(config.rollout.eight_bits))
    if config.rollout.ahead:
        terminal.say(AHEAD)
    elif config.updates_per_batch == 1 and objective.surrogate.name != "reinforce":
        terminal.say(ON_POLICY.format(objective.surrogate.name))


def closing(
    config: Config,
    folder: RunFolder,
    given: RunInputs,
    evaluations: Sequence[Mapping[str, Any]],
    *,
    step: int,
    seconds: float,
    stopped_by: str,
    weights: bool,
) -> list[str]:
    """What came of the run, and the commands that look into it; `weights`: it left a checkpoint."""
    path = shlex.quote(str(folder.path))
    ended = f"ended by {stopped_by} after" if stopped_by else "done:"
    kept = f"{folder.checkpoints}/step-{step}" if weights else f"none of step {step} (--no-weights)"
    lines = [
        ("", ""),
        ("", f"{ended} step {step} of {config.train.steps}, {seconds:,.0f} s"),
    ]
    if len(evaluations) > 1:
        lines.append(("held out", _moved(evaluations[0], evaluations[-1])))
    lines += [
        ("weights", kept),
        (
            "next",
            f"equipoise report {path}   writes {folder.path}/report.html: curves, biases, responses",
        ),
        ("", f"equipoise audit {path}    what this objective, and others, make of these responses"),
    ]
    # The command line has no objects of a program.
    if weights and given.rows is None and given.task is None and not given.functions:
        lines.append(
            ("", f"equipoise eval {path}     the last checkpoint on the task's held-out prompts")
        )
    return _aligned(lines)


def out_of_range(error: RangeError) -> str:
    """What to do where a difficulty was given rewards that are no success rates."""
    return (
        f"{error.found}: objective.difficulty weighs prompts by their success rate. Have the reward "
        'lie in [0, 1], say its bounds (objective.difficulty = {name = "…", reward_range = [LOW, HIGH]}), '
        'or take objective.difficulty = "none"'
    )


def kernels_before(compiled: int) -> str:
    said = f"{compiled} compiled ones in {cache.folder()}; the first step compiles what is missing, once"
    problem = cache.problem()
    return said if problem is None else f"{said}; {problem}"


def kernels_after(before: int, step: int) -> str | None:
    """After the first step of a process; None where nothing was compiled."""
    new = cache.count() - before
    if not new:
        return None
    return f"step {step:4d}  kernels: {new} compiled, which later runs take from {cache.folder()}"


def _aligned(lines: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{name:<9}  {text}".rstrip() for name, text in lines]


def _model(policy: Policy) -> str:
    every = parameter_count(policy.model)
    trained = sum(p.numel() for p in policy.parameters())
    share = "" if trained == every else f", {_number(trained)} of them trained"
    dtype = str(policy.dtype).removeprefix("torch.")
    return f"{policy.name}: {_number(every)} parameters{share}, {dtype} on {policy.device}"


def _number(count: int) -> str:
    if count >= 1e9:
        return f"{count / 1e9:.2f}B"
    return f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count:,}"


def _data(collector: Collector, held_out: int) -> str:
    rollout, longest = collector.config.rollout, collector.params.max_tokens
    a_step = f"{rollout.prompts} prompts × {rollout.group_size} responses a step, {longest:,} tokens each at most"
    return f"{collector.task.name}: {a_step}{_held_out(collector.task, held_out)}"


def _shortened(collector: Collector, context: int) -> list[tuple[str, str]]:
    """A note where no response can have rollout.max_tokens tokens."""
    longest = collector.params.max_tokens
    if longest < context:
        return []
    note = f"note: a response ends where the model's context of {context:,} tokens does, prompt included"
    if collector.config.reward.overlong_buffer:
        note += f"; reward.overlong_buffer counts back from {longest:,}, a length that none reaches"
    return [("", note)]


def _held_out(task: Task, asked: int) -> str:
    """How many prompts an evaluation asks, and of how many, where eval.per_level takes some."""
    every = task.summary.held_out if isinstance(task, Dataset) else asked
    if not asked:
        return ""
    return f", {asked} of {every} held out" if every > asked else f", {asked} held out"


def _run(folder: RunFolder, collector: Collector) -> str:
    config = collector.config
    every = "never evaluated"
    if config.eval.every:
        every = f"evaluated every {config.eval.every} by {judged_by(collector.scorer.name)}"
    steps = "1 step" if config.train.steps == 1 else f"{config.train.steps} steps"
    kept = f"checkpoint every {config.train.checkpoint_every}"
    return f"{folder.path}: {steps}, {every}, {kept}, learning rate {config.optim.lr:g}"


def _memory(updater: Updater, batches: OnPolicy | Ahead, frozen: int) -> str:
    """What is there for the whole run; a pass is measured, and said, at the first step."""
    policy, optimizer = updater.policy, updater.optimizer
    weights = weight_bytes(policy.model)
    gradients, states = optimizer.gradient_bytes(), optimizer.state_bytes()
    _, left = free_room(policy.device, updater.config.train.memory_cap, 0)
    also = f" and {frozen} frozen beside them" if frozen else ""
    if isinstance(batches, Ahead):
        also += f", {_bytes(batches.snapshot.nbytes)} for a copy that samples"
    return f"weights {_bytes(weights)}{also}, gradients {_bytes(gradients)}, optimizer {_bytes(states)}; {left}"


def _bytes(count: float) -> str:
    if count < GIB / 10:
        return f"{count / 2**20:.1f} MiB"
    return f"{count / GIB:.1f} GiB"


def _moved(first: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """Each accuracy from the first evaluation to the last, with the last one's interval."""
    parts = []
    for name, (low, high) in last["interval"].items():
        if name in first:
            moved = f"{first[name]:.3f} → {last[name]:.3f} [{low:.3f}, {high:.3f}]"
            parts.append(f"{name} {moved}")
    return "  ".join(parts)

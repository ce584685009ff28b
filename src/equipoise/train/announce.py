"""What a run says before its first step and after its last: what is trained, how, on what, where;
and what to do next. And why it stops, where it cannot learn.

Sentences alone: nothing here changes a number. The line of each step is progress.py's.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from equipoise.evaluate.run import judged_by
from equipoise.kernels import cache
from equipoise.objective.difficulty import RangeError
from equipoise.policy import parameter_count, weight_bytes
from equipoise.tasks import Dataset
from equipoise.train.ahead import Ahead
from equipoise.train.batch import StepBatch
from equipoise.train.planner import free_room
from equipoise.train.score import last_line

if TYPE_CHECKING:
    from equipoise.train.loop import Trainer

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


def opening(trainer: Trainer) -> None:
    """Say how the run begins, or goes on."""
    terminal = trainer.journal.terminal
    if trainer.start is not None and trainer.start.sentence:
        terminal.say(trainer.start.sentence)
    for line in header(trainer):
        terminal.say(line)
    for changed in trainer.changed:
        terminal.warn(changed)
    if isinstance(trainer.task, Dataset):
        terminal.say(str(trainer.task.summary))
    for note in trainer.settled.notes:
        terminal.say(note)
    for warning in trainer.settled.warnings:
        terminal.warn(warning)
    eight_bits = trainer.config.rollout.eight_bits
    if eight_bits and trainer.objective.mismatch.name == "none":
        terminal.warn(UNCORRECTED.format(eight_bits))
    if trainer.config.rollout.ahead:
        terminal.say(AHEAD)
        return
    surrogate = trainer.objective.surrogate.name
    if trainer.config.updates_per_batch == 1 and surrogate != "reinforce":
        terminal.say(ON_POLICY.format(surrogate))


def header(trainer: Trainer) -> list[str]:
    """A line each for model, objective, data, run and memory; on CUDA, for the kernels too."""
    lines = [
        ("model", _model(trainer)),
        ("objective", repr(trainer.objective).removeprefix("Objective(").removesuffix(")")),
        *(("", f"note: {note}") for note in trainer.objective.notes),
        ("data", _data(trainer)),
        ("run", _run(trainer)),
        ("memory", _memory(trainer)),
    ]
    if trainer.policy.device.type == "cuda" and trainer.kernels is not None:
        lines.append(("kernels", kernels_before(trainer.kernels)))
    return _aligned(lines)


def closing(
    trainer: Trainer, evaluations: Sequence[Mapping[str, Any]], seconds: float
) -> list[str]:
    """What came of the run, and the commands that look into it."""
    path = shlex.quote(str(trainer.folder.path))
    stopped_by = trainer.callbacks.stopped_by
    ended = f"ended by {stopped_by} after" if stopped_by else "done:"
    lines = [
        ("", ""),
        ("", f"{ended} step {trainer.step} of {trainer.config.train.steps}, {seconds:,.0f} s"),
    ]
    if len(evaluations) > 1:
        lines.append(("held out", _moved(evaluations[0], evaluations[-1])))
    lines += [
        ("weights", f"{trainer.folder.checkpoints}/step-{trainer.step}"),
        (
            "next",
            f"equipoise report {path}   writes {trainer.folder.path}/report.html: curves, biases, responses",
        ),
        ("", f"equipoise audit {path}    what this objective, and others, make of these responses"),
    ]
    given = trainer.given
    # The command line has no objects of a program.
    if given.rows is None and given.task is None and not given.functions:
        lines.append(
            ("", f"equipoise eval {path}     the last checkpoint on the task's held-out prompts")
        )
    return _aligned(lines)


QUIET_STEPS = 5  # without anything to learn from, after which the terminal says so


CUT_STEPS = 10  # whose gradients were far longer than the clip norm, likewise


def problem(trainer: Trainer) -> str:
    """Why the run cannot learn as it is; empty where it can."""
    reasons = f"{trainer.folder.troubles} has the reasons"
    if trainer.failing.sentence:
        return f"{trainer.failing.sentence}; {reasons}"
    if trainer.unscored:
        return f"{trainer.unscored}; {reasons}: repair the verifier or the data, or raise reward.max_unscored"
    if trainer.uninformative >= trainer.config.train.max_uninformative:
        return f"{nothing_to_learn(trainer)}, or raise train.max_uninformative"
    return ""


def nothing_to_learn(trainer: Trainer) -> str:
    """How long no group has taught anything, and what may have done it."""
    causes = "is the reward always the same, the task too hard or too easy"
    if trainer.unread > 0.5:
        causes = (
            f"no answer could be read in {trainer.unread:.0%} of the last step's responses: do the prompts say how to "
            "write it, which task.suffix can add, is it cut off at rollout.max_tokens"
        )
    if trainer.step > trainer.uninformative:  # an update came before: it may have broken the model
        causes += f", or the learning rate, {trainer.config.optim.lr}, too large"
    return (
        f"no two responses to the same prompt differed in reward for {trainer.uninformative} steps: "
        f"there is nothing to learn from; look at {trainer.folder.rollouts} ({causes}?)"
    )


def always_cut(trainer: Trainer) -> str:
    """That clipping decides how large a step is, and what to do about it."""
    norms, clip = trainer.cut_norms, trainer.config.optim.clip_norm
    sentence = (
        f"the gradients of {len(norms)} steps had norms from {min(norms):.2g} to {max(norms):.2g} and were all cut to "
        f"optim.clip_norm = {clip:g}: it, and not the objective, decides how large a step is; raise it or set it to 0"
    )
    if trainer.objective.aggregation.name == "constant":
        sentence += ", or set objective.aggregation.length to rollout.max_tokens"
    return sentence


def out_of_range(error: RangeError) -> str:
    """What to do where a difficulty was given rewards that are no success rates."""
    return (
        f"{error.found}: objective.difficulty weighs prompts by their success rate. Have the reward "
        'lie in [0, 1], say its bounds (objective.difficulty = {name = "…", reward_range = [LOW, HIGH]}), '
        'or take objective.difficulty = "none"'
    )


def troubles(batch: StepBatch) -> str:
    """How many of each verdict that needs looking at, and the first one's reason."""
    counts = Counter(trouble["verdict"] for trouble in batch.troubles)
    many = ", ".join(f"{kind} {n}" for kind, n in counts.most_common())
    if not batch.troubles:
        return "masked"
    return f"{many}; the first: {last_line(batch.troubles[0]['reason'])}"


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


def _model(trainer: Trainer) -> str:
    policy = trainer.policy
    every = parameter_count(policy.model)
    trained = sum(p.numel() for p in policy.parameters())
    share = "" if trained == every else f", {_number(trained)} of them trained"
    dtype = str(policy.dtype).removeprefix("torch.")
    return f"{policy.name}: {_number(every)} parameters{share}, {dtype} on {policy.device}"


def _number(count: int) -> str:
    if count >= 1e9:
        return f"{count / 1e9:.2f}B"
    return f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count:,}"


def _data(trainer: Trainer) -> str:
    rollout, longest = trainer.config.rollout, trainer.collector.params.max_tokens
    a_step = f"{rollout.prompts} prompts × {rollout.group_size} responses a step, {longest:,} tokens each at most"
    return f"{trainer.task.name}: {a_step}{_held_out(trainer)}"


def _held_out(trainer: Trainer) -> str:
    """How many prompts an evaluation asks, and of how many, where eval.per_level takes some."""
    asked, task = len(trainer.held_out), trainer.task
    every = task.summary.held_out if isinstance(task, Dataset) else asked
    if not asked:
        return ""
    return f", {asked} of {every} held out" if every > asked else f", {asked} held out"


def _run(trainer: Trainer) -> str:
    config = trainer.config
    every = "never evaluated"
    if config.eval.every:
        judge = judged_by(trainer.collector.scorer.name)
        every = f"evaluated every {config.eval.every} by {judge}"
    steps = "1 step" if config.train.steps == 1 else f"{config.train.steps} steps"
    kept = f"checkpoint every {config.train.checkpoint_every}"
    return f"{trainer.folder.path}: {steps}, {every}, {kept}, learning rate {config.optim.lr:g}"


def _memory(trainer: Trainer) -> str:
    """What is there for the whole run; a pass is measured, and said, at the first step."""
    policy = trainer.policy
    weights = weight_bytes(policy.model)
    copies = sum(model is not None for model in (trainer.reference, trainer.teacher))
    gradients = trainer.updater.optimizer.gradient_bytes()
    optimizer = trainer.updater.optimizer.state_bytes()
    _, left = free_room(policy.device, trainer.config.train.memory_cap, 0)
    also = f" and {copies} frozen beside them" if copies else ""
    if isinstance(trainer.batches, Ahead):
        also += f", {_bytes(trainer.batches.snapshot.nbytes)} for a copy that samples"
    return f"weights {_bytes(weights)}{also}, gradients {_bytes(gradients)}, optimizer {_bytes(optimizer)}; {left}"


def _bytes(count: float) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{count / 2**20:.1f} MiB"


def _moved(first: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """Each accuracy from the first evaluation to the last, with the last one's interval."""
    parts = []
    for name, (low, high) in last["interval"].items():
        if name in first:
            moved = f"{first[name]:.3f} → {last[name]:.3f} [{low:.3f}, {high:.3f}]"
            parts.append(f"{name} {moved}")
    return "  ".join(parts)

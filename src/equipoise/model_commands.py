"""The commands that open a model and sample from it: `equipoise eval` and `equipoise bias`.

Apart from cli.py because torch is imported here, which a command like `equipoise objectives` has no
need of. What is sampled and measured is elsewhere.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from equipoise import policy as models
from equipoise import rollout, tasks
from equipoise.config import ConfigError, TaskConfig
from equipoise.evaluate import (
    PROTOCOLS,
    Evaluation,
    EvaluationError,
    EvaluationRequest,
    Judge,
    buckets,
    evaluate,
    evaluate_checkpoints,
    line,
    open_benchmarks,
    table,
)
from equipoise.evaluate.run import SEED, judged_by
from equipoise.policy import Policy
from equipoise.policy.chat import Chat
from equipoise.policy.names import check_name
from equipoise.study import bias, bias_page, bias_text
from equipoise.tasks import Prompt, Task
from equipoise.train import checkpoint
from equipoise.train.batch import count_tokens, encode_prompt
from equipoise.train.own_task import OwnTask, own_chat, own_task
from equipoise.train.score import Scorer, check_isolation
from equipoise.train.settle import Outline, open_chat


@dataclass(frozen=True)
class HeldOut:
    """The held-out prompts of a task, and how a model is asked for them and judged."""

    options: argparse.Namespace
    own: OwnTask
    task: Task
    prompts: Sequence[Prompt]
    judge: Judge
    chat_of: Callable[[Policy], Chat]

    def evaluate(self, model: Policy, seed: int, *, greedy: bool) -> Evaluation:
        chat = self.chat_of(model)
        if isinstance(self.judge, Scorer):
            self.judge.conversational(chat.on)
        options, own, task = self.options, self.own, self.task
        return evaluate(
            model,
            rollout.sampler(model),
            task,
            self.prompts,
            [encode_prompt(model, prompt, chat) for prompt in self.prompts],
            samples=options.samples or own.samples,
            greedy=greedy,
            temperature=own.temperature if options.temperature is None else options.temperature,
            seed=seed,
            max_tokens=options.max_tokens or own.max_tokens or task.max_tokens,
            stop=(*task.stop, *own.stop),
            judge=self.judge,
        )

    def __str__(self) -> str:
        how = "" if self.own.run is None else ", as its run evaluates"
        asked = f"{len(self.prompts)} held-out prompts, judged by {judged_by(self.judge.name)}"
        return f"{self.task.name}{how}: {asked}"


def evaluate_model(options: argparse.Namespace, rest: list[str]) -> None:
    """`equipoise eval`."""
    kept = checkpoint.steps(Path(options.model) / "checkpoints")
    if options.benchmarks:
        if rest:
            raise ConfigError(f"{rest[0]} is for a task: benchmarks come with their own prompts")
        folder = Path(options.model) / "checkpoints"
        _evaluate_benchmarks(options, {step: folder / f"step-{step}" for step in kept})
        return
    if unused := [o for o in ("data", "limit", "chunk", "out", "markdown") if getattr(options, o)]:
        raise ConfigError(f"--{unused[0]} is for benchmarks: name some with --benchmarks")
    name = _last_checkpoint(options.model)
    loaded = functools.cache(lambda: _policy(name, options))
    held_out = _held_out(options, name, rest, loaded)
    policy = loaded()
    evaluation = held_out.evaluate(policy, SEED, greedy=True)
    result = evaluation.metrics
    if options.base:
        base = held_out.evaluate(_policy(options.base, options), buckets.BASE_SEED, greedy=False)
        result["by_difficulty"] = buckets.by_difficulty(base, evaluation)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{policy.name} on {held_out}; {held_out.chat_of(policy)}")
    _show_evaluation(result, options.base)


def _held_out(
    options: argparse.Namespace, name: str, rest: list[str], loaded: Callable[[], Policy]
) -> HeldOut:
    """Whatever can be refused is, before a model is loaded."""
    own = own_task(name, options.task, rest)
    for model in (name, options.base or name):
        check_name(model)
    task, chat_of = _task(options, own.task, loaded, graded=own.graded)
    check_isolation(task)
    per_level = options.per_level or own.per_level
    try:
        prompts = task.evaluation(per_level)
    except ValueError as error:
        raise ConfigError(f"--per-level {per_level}: {error}") from error
    judge, instead = own.judge(task, prompts)
    for note in filter(None, (own.note(task), instead)):
        print(f"equipoise: note: {note}", file=sys.stderr)
    return HeldOut(options, own, task, prompts, judge, chat_of)


def _last_checkpoint(model: str) -> str:
    """Of a run; any other model is itself."""
    folder = Path(model) / "checkpoints"
    kept = checkpoint.steps(folder)
    return str(folder / f"step-{kept[-1]}") if kept else model


def _show_evaluation(result: dict[str, Any], base: str | None) -> None:
    print(line(result))
    for level, values in result["by_level"].items():
        print(f"  level {level}: " + "  ".join(f"{k} {v:.3f}" for k, v in values.items()))
    for name, row in result.get("by_difficulty", {}).items():
        accuracy = next(key for key in row if key.startswith("acc@"))
        low, high = row["interval"]
        success = (
            f"{row['prompts']} prompts, {accuracy} {row[accuracy]:.3f} ({low:.3f} to {high:.3f})"
        )
        print(f"  {name} for {base}: {success}")


def _evaluate_benchmarks(options: argparse.Namespace, checkpoints: dict[int, Path]) -> None:
    """A model, or every checkpoint of a run, each into its own folder."""
    if options.per_level is not None:
        raise EvaluationError(
            "--per-level is for a task; --limit takes the first problems of each benchmark"
        )
    if options.base:
        raise EvaluationError(
            "--base is for a task: benchmarks are not told apart by another model's success rate"
        )
    if options.protocol not in PROTOCOLS:
        raise EvaluationError(
            f'--protocol "{options.protocol}" is not a protocol: {", ".join(PROTOCOLS)}'
        )
    names = [name.strip() for name in options.benchmarks.split(",") if name.strip()]
    own = own_chat(options.model)  # a run is asked as it was trained
    asked = options.chat if options.chat is not None or own.chat == "auto" else own.chat
    request = EvaluationRequest(
        open_benchmarks(names, options.data, options.limit),
        PROTOCOLS[options.protocol],
        samples=options.samples or 0,
        temperature=options.temperature,
        max_tokens=options.max_tokens,
        chunk=options.chunk,
        chat=asked,
        system=own.system,
        options=own.chat_template_kwargs or {},
    )

    def say(said: str) -> None:
        print(said, file=sys.stderr)

    if checkpoints:
        out = Path(options.out) if options.out else Path(options.model) / "evaluation"
        result = evaluate_checkpoints(
            request, lambda path: _policy(path, options), checkpoints, out, say
        )
    else:
        if options.out:
            out = Path(options.out)
        else:
            out = Path("evaluation") / (Path(options.model).name or "model")
        result = request.evaluate(_policy(options.model, options), out, say)
    if options.json:
        print(json.dumps(result, indent=2))
    elif options.markdown:
        print(table.markdown(result), end="")
    else:
        table.show(result)
        print(f"\nsamples, result.json and result.md are in {out}")


def _policy(name: str | Path, options: argparse.Namespace) -> Policy:
    device = (
        options.device
        if options.device != "auto"
        else "cuda"
        if torch.cuda.is_available()
        else "cpu"
    )
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise models.ModelError(f"--device {device}: there is no CUDA device here; use cpu or auto")
    return models.load(name, dtype=getattr(torch, options.dtype), device=device)


def _task(
    options: argparse.Namespace, section: TaskConfig, policy: Callable[[], Policy], *, graded: bool
) -> tuple[Task, Callable[[Policy], Chat]]:
    """The task of a section, opened as `train` would; and how its prompts are shown to a model."""
    if options.chat is not None:
        section = section.model_copy(update={"chat": options.chat})
    chat_of = functools.cache(lambda model: open_chat(section, Outline.of(model)))
    task = tasks.open_task(
        section.name,
        seed=0,
        **section.options(),
        count_tokens=lambda prompt: count_tokens(policy(), prompt, chat_of(policy())),
        graded=graded,
    )
    return task, chat_of


def measure_bias(options: argparse.Namespace, rest: list[str]) -> None:
    """`equipoise bias`."""
    name = _last_checkpoint(options.model)
    loaded = functools.cache(lambda: _policy(name, options))
    section = own_task(name, options.task, rest).task
    task, chat_of = _task(options, section, loaded, graded=True)  # it compares verdicts
    prompts = bias.stream(task, options.prompts)
    policy = loaded()
    result = bias.measure(
        bias.sample(
            policy,
            rollout.sampler(policy),
            task,
            prompts,
            group=options.group,
            groups=options.groups,
            samples=options.samples,
            temperature=options.temperature,
            max_tokens=options.max_tokens,
            chat=chat_of(policy),
            progress=lambda n: print(f"{n} of {len(prompts)} prompts sampled", file=sys.stderr),
        )
    )
    title, out = f"{policy.name} on {task.name}", Path(options.out)
    record = bias_text.as_json(
        result, {"model": policy.name, "task": task.name, "temperature": options.temperature}
    )
    out.mkdir(parents=True, exist_ok=True)
    (out / "bias.json").write_text(record, encoding="utf-8")
    (out / "bias.html").write_text(
        bias_page.page(result, f"The bias of the advantage: {title}"), encoding="utf-8"
    )
    if options.json:
        print(record, end="")
        return
    bias_text.show(result, title)
    print(f"\nbias.json and bias.html are in {out}")

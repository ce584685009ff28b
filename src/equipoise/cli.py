"""The command line. Every command is a few lines here; what it does is elsewhere.

Exit codes: 0 done, 1 failed with a sentence, 2 the command line was wrong, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser()
    arguments, overrides = _without_overrides(arguments)
    options, rest = parser.parse_known_args(arguments)
    rest += overrides
    if rest and options.command not in ("train", "compare"):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        options.run(options, rest)
    except KeyboardInterrupt:
        sys.exit(130)
    except _user_errors() as error:
        print(f"equipoise: {error}", file=sys.stderr)
        sys.exit(130 if type(error).__name__ == "Interrupted" else 1)


def _without_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """`--section.key value` apart from the rest: argparse would take its value for the configuration file."""
    others: list[str] = []
    overrides: list[str] = []
    left = list(arguments)
    while left:
        key, equals, _ = left[0].partition("=")
        if key.startswith("--") and "." in key:
            taken = 1 if equals else 2
            overrides += left[:taken]
            left = left[taken:]
        else:
            others.append(left.pop(0))
    return others, overrides


def _user_errors() -> tuple[type[Exception], ...]:
    """Errors whose message is a sentence for the user; anything else is a bug and shows its traceback."""
    loaded = sys.modules
    names = [("equipoise.train.config", "ConfigError"), ("equipoise.train.folder", "RunError"),
             ("equipoise.policy.model", "ModelError"), ("equipoise.tasks.task", "TaskError"),
             ("equipoise.rewards.pool", "PoolError"), ("equipoise.audit.log", "AuditError"),
             ("equipoise.report.runs", "ReportError")]  # fmt: skip
    return tuple(getattr(loaded[module], name) for module, name in names if module in loaded)


def _at_least(least: float, kind: type = int) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = kind(text)
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text}: the rule is at least {least}")
        return value

    number.__name__ = kind.__name__  # what argparse calls a text that is no number
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="equipoise",
        description="Reinforcement learning for reasoning models, with its biases measured and removed.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: object, sentence: str, **more: object) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=sentence, description=sentence, **more)  # type: ignore[arg-type]
        command.set_defaults(run=run)
        return command

    quickstart = add("quickstart", _quickstart, "train the embedded model with four objectives and compare them")
    quickstart.add_argument("--out", default="runs/quickstart", help="where the runs go (default: %(default)s)")
    quickstart.add_argument("--seed", type=int, default=0, help="seed of prompts and draws (default: %(default)s)")
    quickstart.add_argument("--steps", type=_at_least(1), default=None, help="steps per run (default: the preset's)")

    train = add("train", _train, "train a model as a configuration says", add_help=False, usage=(
        "equipoise train CONFIG.toml [--resume] [--section.key value ...]"))  # fmt: skip
    train.add_argument("config", nargs="?", help="a TOML file; see examples/")
    train.add_argument("--resume", action="store_true", help="go on where a run in the same directory stopped")
    train.add_argument("-h", "--help", action="store_true", dest="show_help", help="every option with its sentence")

    evaluate = add("eval", _eval, "sample a model on a task's held-out prompts and report acc@n, best@n, pass@k, maj@n")
    evaluate.add_argument("model", help="a folder, a run directory (its last checkpoint), a hub name, abacus or smollm")
    evaluate.add_argument(
        "--task", default="arithmetic", help="arithmetic, gym:NAME or a .jsonl file (default: %(default)s)"
    )
    evaluate.add_argument("--samples", type=_at_least(1), default=8, help="responses per prompt (default: %(default)s)")
    evaluate.add_argument(
        "--temperature", type=_at_least(0, float), default=1.0, help="of those responses (default: %(default)s)"
    )
    evaluate.add_argument(
        "--per-level", type=_at_least(1), default=None, help="prompts per level (default: the task's)"
    )
    evaluate.add_argument("--max-tokens", type=_at_least(0), default=0, help="longest response; 0 takes the task's own")
    evaluate.add_argument("--chat", action="store_true", help="wrap prompts in the chat template")
    evaluate.add_argument("--json", action="store_true", help="print the result as JSON")

    add("objectives", _objectives, "list the presets as the five choices they are made of, with their sources")
    compare = add("compare", _compare, "train a configuration over values and seeds, and say whether they differ")
    compare.add_argument("config", nargs="?", help="a TOML file; without one, all defaults")
    compare.add_argument(
        "--vary", action="append", default=[], metavar="KEY=A,B", help="an option and its values; several make a grid"
    )
    compare.add_argument("--seeds", type=_at_least(1), default=5, help="runs per variant (default: %(default)s)")
    compare.add_argument("--metric", default=None, help="of the last evaluation (default: acc@n)")
    compare.add_argument("--out", default="runs/compare", help="where runs and tables go (default: %(default)s)")
    compare.add_argument("--jobs", type=_at_least(1), default=0, help="runs at a time (default: one per core)")

    audit = add("audit", _audit, "measure which biases an objective has on a rollout log, and say what to change")
    audit.add_argument("files", nargs="+", help="run directories, TRL completions, verl dumps, Parquet, JSONL or CSV")
    audit.add_argument(
        "--objective", default=None, help="a preset, or choices as dapo+balanced+hadw (default: the log's)"
    )
    audit.add_argument("--against", default=None, metavar="A,B", help="other objectives to compare it with")
    audit.add_argument("--columns", default=None, metavar="ROLE=COLUMN,…", help="what the columns of another log are")
    audit.add_argument("--tokenizer", default=None, help="a folder or hub name, for logs with text but no tokens")
    audit.add_argument("--json", action="store_true", help="print the numbers as JSON")

    page = add("report", _report, "write one self-contained HTML page about one or several runs")
    page.add_argument("runs", nargs="+", help="run directories, or folders of them")
    page.add_argument("--out", default=None, help="the file (default: report.html in the first directory)")

    watch = add("watch", _watch, "serve that page on localhost while a run goes on")
    watch.add_argument("runs", nargs="+", help="run directories, or folders of them")
    watch.add_argument("--port", type=_at_least(0), default=8765, help="0 takes a free one (default: %(default)s)")

    add("doctor", _doctor, "say what is installed, what can be used here, and what to do about the rest")
    add("theory", _theory, "print the closed forms of the papers' bias theorems as tables")
    return parser


def _quickstart(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.study.quickstart import quickstart

    quickstart(Path(options.out), options.seed, options.steps)


def _train(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.train import Trainer, describe, load, ranks

    if options.show_help or options.config is None:
        print("usage: equipoise train CONFIG.toml [--resume] [--section.key value ...]\n")
        print("Train a model as a configuration says. A section is a table of the TOML file; every option can be")
        print("overridden on the command line.\n")
        print("  CONFIG.toml  see examples/\n  --resume     go on where a run in the same directory stopped\n")
        print(describe())
        if not options.show_help:
            sys.exit(2)
        return
    _quiet_transformers()
    Trainer(load(options.config, rest), resume=options.resume).run()
    ranks.stop()


def _eval(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise import policy as models
    from equipoise import rollout, tasks
    from equipoise.evaluate import evaluate, line
    from equipoise.train import ConfigError, checkpoint
    from equipoise.train.batch import encode_prompt

    _quiet_transformers()
    name = options.model
    kept = checkpoint.steps(Path(name) / "checkpoints")
    policy = models.load(Path(name) / "checkpoints" / f"step-{kept[-1]}" if kept else name)
    task = tasks.open_task(options.task, seed=0)
    try:
        prompts = task.evaluation(options.per_level)
    except ValueError as error:
        raise ConfigError(f"--per-level {options.per_level}: {error}") from error
    result = evaluate(
        policy, rollout.sampler(policy), task, prompts, [encode_prompt(policy, p, options.chat) for p in prompts],
        samples=options.samples, temperature=options.temperature, greedy=True,
        max_tokens=options.max_tokens or task.max_tokens, stop=task.stop,
    )  # fmt: skip
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{policy.name} on {task.name}: {len(prompts)} held-out prompts\n{line(result)}")
    for level, values in result["by_level"].items():
        print(f"  level {level}: " + "  ".join(f"{k} {v:.3f}" for k, v in values.items()))


def _objectives(options: argparse.Namespace, rest: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from equipoise.objective import PRESETS, Objective

    columns = ("preset", "advantage", "difficulty", "cancellation", "aggregation", "surrogate", "source")
    table = Table(*columns, box=None)
    for name, preset in PRESETS.items():
        o = Objective.preset(name)
        choices = (o.advantage, o.difficulty_choice, o.cancellation, o.aggregation, o.surrogate)
        table.add_row(name, *map(str, choices), preset.source)
    console = Console(width=max(Console().width, 160))
    console.print(table)
    console.print("\nEvery preset takes any advantage, difficulty, cancellation and aggregation:")
    console.print('  Objective.preset("dapo", aggregation="balanced", difficulty="hadw")', highlight=False)


def _compare(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.study.compare import compare, default_metric

    metric = options.metric or default_metric(options.config, rest)
    compare(options.config, options.vary, options.seeds, Path(options.out), metric, options.jobs, rest)


def _audit(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.audit import AuditError, main_text

    columns = None
    if options.columns is not None:
        pairs = [pair.partition("=") for pair in options.columns.split(",")]
        if not all(role and equals and column for role, equals, column in pairs):
            raise AuditError(f"--columns {options.columns}: the rule is role=column,role=column, as reward=score")
        columns = {role: column for role, _, column in pairs}
    against = None if options.against is None else options.against.split(",")
    colour = sys.stdout.isatty()
    print(main_text(options.files, options.objective, against, columns, options.tokenizer, options.json, colour))


def _report(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.report import write

    print(write(options.runs, options.out or Path(options.runs[0]) / "report.html"))


def _watch(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.report import watch

    watch(options.runs, options.port)


def _doctor(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.doctor import report

    sys.exit(0 if report(print) else 1)


def _theory(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.theory import tables

    print(tables.render())


def _quiet_transformers() -> None:
    """Its progress bars for a model of a second's loading would drown the run's own lines."""
    from transformers.utils import logging

    logging.disable_progress_bar()

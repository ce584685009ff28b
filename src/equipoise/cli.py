"""The command line. Every command is a few lines here; what it does is elsewhere.

Exit codes: 0 done, 1 failed with a sentence, 2 the command line was wrong, 130 stopped by Ctrl-C,
141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import errno
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from equipoise.arguments import SFT_USAGE, TRAIN_USAGE, build_parser, option_names

TRAIN_HELP = f"""usage: {TRAIN_USAGE}

Train a model as a configuration says. A section is a table of the TOML file; every option can be
overridden on the command line.

  CONFIG.toml    what is not in it has a default; the repository has some in examples/
  RUN            a run directory; it goes on where it lies, with its own settings
  --resume       go on with a run after its last checkpoint
  --from-step N  go on after the checkpoint of step N, and forget what came later; 0 begins again
  --no-weights   write no checkpoint when the run is done: its evaluations are what is wanted
"""
SFT_HELP = f"""usage: {SFT_USAGE}

Imitate the responses of a data set, as a configuration says, so that reinforcement learning can start
from a model that knows the form. The columns are told by their names: messages, or prompt and
completion, or those of task.columns.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = build_parser()
    arguments, overrides = _without_overrides(arguments)
    if not arguments:
        parser.print_help(sys.stderr)
        sys.exit(2)
    if not arguments[0].startswith("-") and arguments[0] not in RUN:
        parser.error(
            f'"{arguments[0]}" is not a command;{_did_you_mean(arguments[0], RUN)} ({", ".join(RUN)})'
        )
    options, rest = parser.parse_known_args(arguments)
    if options.command in ("eval", "bias"):  # their task takes options, and nothing else does
        others = [word for word in overrides if word.startswith("--")]
        unknown = rest + [word for word in others if not word.startswith("--task.")]
    elif options.command in ("train", "sft", "compare", "export"):
        unknown = []
    else:
        unknown = rest + overrides
    if unknown:
        parser.error(_unrecognized(option_names(parser, options.command), unknown))
    if bare := [word for word in rest if word.startswith("-")]:
        parser.error(
            _without_section(bare[0], option_names(parser, options.command), options.command)
        )
    rest += overrides
    try:
        RUN[options.command](options, rest)
        print(end="", flush=True)  # also where there is no output at all
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        from equipoise.train.progress import discard_output, reader_gone

        if not reader_gone():  # a pipe that broke elsewhere is a bug and shows its traceback
            raise
        discard_output()
        sys.exit(141)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        what = error.filename or "its output"
        print(f"equipoise: {what} cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)
    except _user_errors() as error:
        print(f"equipoise: {error}", file=sys.stderr)
        sys.exit(130 if type(error).__name__ == "Interrupted" else 1)


def _unrecognized(flags: Sequence[str], unknown: Sequence[str]) -> str:
    wrong = next((word for word in unknown if word.startswith("-")), None)
    hint = "" if wrong is None else f";{_did_you_mean(wrong, flags)} ({', '.join(flags)})"
    return f"unrecognized arguments: {' '.join(unknown)}{hint}"


def _without_section(word: str, flags: Sequence[str], command: str) -> str:
    """A key of a configuration without its section is an error that names the section."""
    import difflib

    from equipoise.config import Config
    from equipoise.config.errors import meant_by, options_of

    def options(key: str) -> str:
        return " or ".join(f"--{name}" for name in meant_by(key, Config))

    key = word.lstrip("-").partition("=")[0].replace("-", "_")
    keys = {key: options(key) for section in options_of(Config).values() for key in section}
    known = keys | {flag.lstrip("-").replace("-", "_"): f'"{flag}"' for flag in flags}
    # What is less alike than this has one word in common, as logging_steps and from_step.
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if meant := options(key) or (known[close[0]] if close else ""):
        return f"{word} is not an option; did you mean {meant}?"
    listed = "sft" if command == "sft" else "train"
    return (
        f"{word} is not an option; use one of ({', '.join(flags)}, or --section.key of the "
        f"configuration: `equipoise {listed} --help` lists them)"
    )


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    from equipoise.objective.choice import did_you_mean  # torch: for a mistake alone

    return did_you_mean(word, known)


def _without_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """`--section.key value` apart from the rest: argparse would take its value for the file."""
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
    """Errors whose message is for the user; any other is a bug and shows its traceback."""
    loaded = sys.modules
    names = [
        ("equipoise.config", "ConfigError"),
        ("equipoise.train.folder", "RunError"),
        ("equipoise.policy.names", "ModelError"),
        ("equipoise.tasks.task", "TaskError"),
        ("equipoise.verifiers.workers.process_pool", "PoolError"),
        ("equipoise.tasks.sandbox_server", "RunnerError"),
        ("equipoise.verifiers.code.backend", "BackendError"),
        ("equipoise.evaluate.folder", "EvaluationError"),
        ("equipoise.audit.log", "AuditError"),
        ("equipoise.report.runs", "ReportError"),
        ("equipoise.integrations.launch", "ExportError"),
        ("equipoise.integrations.hub", "PushError"),
    ]
    return tuple(getattr(loaded[module], name) for module, name in names if module in loaded)


def _quickstart(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.study.fork_server import ForkServer

    server = ForkServer()
    server.open()  # it imports while this process does
    from equipoise.study.quickstart import quickstart

    quickstart(Path(options.out), options.seed, options.steps, server)


def _no_configuration(command: str) -> NoReturn:
    """A wrong command line; all options by their hundreds would hide what is missing."""
    print(f"usage: equipoise {command} CONFIG.toml [--section.key value ...]", file=sys.stderr)
    print(
        f"equipoise: {command} needs a configuration, a TOML file: the repository has some in examples/, and what a "
        f"file leaves out has a default. `equipoise {command} --help` lists every option.",
        file=sys.stderr,
    )
    sys.exit(2)


def _train(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.train import Trainer, configured, describe, finished, ranks

    if options.config is None and not options.show_help:
        _no_configuration("train")
    if options.show_help:
        print(f"{TRAIN_HELP}\n{describe()}")
        return
    config = configured(options.config, rest, resume=options.resume)
    if options.resume and options.from_step is None and (said := finished(config)):
        print(said)
        return
    Trainer(
        config,
        resume=options.resume,
        from_step=options.from_step,
        weights=not options.no_weights,
    ).run()
    ranks.stop()


def _sft(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.config.sft import SftConfig, load_sft
    from equipoise.train import describe
    from equipoise.train.sft import Sft

    if options.config is None and not options.show_help:
        _no_configuration("sft")
    if options.show_help:
        print(f"{SFT_HELP}\n{describe(SftConfig)}")
        return
    Sft(load_sft(options.config, rest), resume=options.resume).run()


def _eval(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.model_commands import evaluate_model

    evaluate_model(options, rest)


def _regrade(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.evaluate import regrade, table

    report = regrade(options.out, options.data)
    if options.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        table.show_changes(report)


def _sandbox(options: argparse.Namespace, rest: list[str]) -> None:
    """The token comes from the environment, or is made and printed once."""
    import os
    import secrets

    from equipoise.tasks import sandbox_server
    from equipoise.verifiers.code.backend import BACKEND_VARIABLE, TOKEN_VARIABLE

    token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
    with sandbox_server.server(token, host=options.host, port=options.port) as server:
        print(f"the trainer needs:\n  export {BACKEND_VARIABLE}={server.url}", flush=True)
        if TOKEN_VARIABLE not in os.environ:
            print(f"  export {TOKEN_VARIABLE}={token}", flush=True)
        server.serve_forever()


def _objectives(options: argparse.Namespace, rest: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from equipoise.objective import PRESETS, Objective

    slots = ("advantage", "difficulty", "cancellation", "aggregation", "surrogate")
    console = Console()
    # Seven columns on a narrow terminal would be broken into each other.
    narrow = console.is_terminal and console.width < 160
    heads = [" → ".join(slots)] if narrow else [*slots, "source"]
    table = Table("preset", *heads, box=None)
    for name, preset in PRESETS.items():
        o = Objective.preset(name)
        choices = (o.advantage, o.difficulty_choice, o.cancellation, o.aggregation, o.surrogate)
        said = [*map(str, choices)]
        told = [f"{' → '.join(said)}\n{preset.source}\n"] if narrow else [*said, preset.source]
        table.add_row(name, *told)
    if not narrow:
        console.width = max(console.width, 160)
    console.print(table)
    console.print("\nEvery preset takes any advantage, difficulty, cancellation and aggregation:")
    console.print('  objective.preset = "dapo+balanced+hadw"', highlight=False)


def _compare(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.study.compare import compare, default_metric

    metric = options.metric or default_metric(options.config, rest)
    compare(
        options.config, options.vary, options.seeds, Path(options.out), metric, options.jobs, rest
    )


def _study(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.study import overall, registered, verify
    from equipoise.study.results import read_results

    if options.action == "run":
        minutes = float("inf") if options.minutes is None else options.minutes
        registered.run(options.file, Path(options.out), options.jobs, minutes)
        return
    if options.action == "show" and len(options.file) > 1:
        overall.show(options.file)
        return
    if options.action == "verify":
        cells = verify.cells(options.file, options.variant, options.seed, Path(options.out))
        sys.exit(0 if verify.verify(cells, options.jobs) else 1)
    (file,) = options.file
    results = read_results(file)
    if options.difference is not None:
        plus, minus, metric = options.difference
        registered.show_difference(results, plus, minus, metric, options.at)
        return
    registered.show(results)
    if options.figure is not None:
        registered.draw(results, Path(options.figure))


def _audit(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.audit import main_text, parse_columns
    from equipoise.audit.data_path import Counts

    columns = None if options.columns is None else parse_columns(options.columns)
    against = None if options.against is None else options.against.split(",")
    counts = Counts(sampled=options.sampled, epochs=options.epochs, prompts=options.prompts)
    text = main_text(
        options.files,
        options.objective,
        against,
        columns=columns,
        tokenizer=options.tokenizer,
        as_json=options.json,
        color=sys.stdout.isatty(),
        counts=counts,
    )
    print(text)


def _bias(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.model_commands import measure_bias

    measure_bias(options, rest)


def _report(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.report import write

    print(write(options.runs, options.out or Path(options.runs[0]) / "report.html"))


def _watch(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.report import watch

    watch(options.runs, options.port)


def _push(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.integrations.hub import push

    said = push(
        options.run,
        options.to,
        weights=options.weights,
        private=options.private,
        dry_run=options.dry_run,
    )
    print(said)


def _export(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.integrations.command import export

    # argparse leaves OUT behind --to unread
    late = options.out is None and rest and not rest[0].startswith("-")
    out = rest.pop(0) if late else options.out
    print(export(options.what, options.source, out, options.to, rest))


def _redteam(options: argparse.Namespace, rest: list[str]) -> None:
    """Exit code 1 says that exploits were found, or still work."""
    from equipoise.study.redteam.command import RedTeamRequest, redteam, replayed
    from equipoise.study.redteam.replay import attacked

    verifier = options.verifier
    if not verifier:
        verifier = "math" if options.replay is None else attacked(Path(options.replay))
    names = ("judge", "model", "device", "minutes", "seed", "python", "path")
    request = RedTeamRequest(
        verifier, out=Path(options.out), **{name: getattr(options, name) for name in names}
    )
    if options.replay is None:
        sys.exit(1 if redteam(request).clusters else 0)
    sys.exit(1 if replayed(Path(options.replay), request.target) else 0)


def _doctor(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.doctor import report

    sys.exit(0 if report(print) else 1)


def _theory(options: argparse.Namespace, rest: list[str]) -> None:
    from equipoise.theory import tables

    print(tables.render())


RUN = {
    "quickstart": _quickstart,
    "train": _train,
    "sft": _sft,
    "eval": _eval,
    "regrade": _regrade,
    "objectives": _objectives,
    "compare": _compare,
    "study": _study,
    "audit": _audit,
    "bias": _bias,
    "report": _report,
    "watch": _watch,
    "export": _export,
    "push": _push,
    "redteam": _redteam,
    "sandbox": _sandbox,
    "doctor": _doctor,
    "theory": _theory,
}

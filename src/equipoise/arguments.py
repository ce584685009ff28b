"""The arguments of every command: their names, bounds and sentences.
What a command does is in :mod:`equipoise.cli`.

Nothing here imports more than argparse, so that `equipoise --help` answers at once. The options of
`equipoise train` are those of a configuration (:mod:`equipoise.config`), and not covered here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

from equipoise import __version__

TRAIN_USAGE = "equipoise train CONFIG.toml | RUN --resume [--from-step N] [--no-weights] [--section.key value ...]"
SFT_USAGE = "equipoise sft CONFIG.toml [--resume] [--section.key value ...]"

TASK_HELP = (
    "arithmetic, gym:NAME, hub:NAME, or a file or folder (default: the run's own, else arithmetic)"
)
TASK_OPTIONS = (
    "The task takes every option of a configuration's [task], as train does: --task.template hadw "
    "--task.columns '{prompt = \"question\"}'; equipoise train --help lists them."
)


class Argument(NamedTuple):
    names: tuple[str, ...]
    options: dict[str, Any]  # of argparse's add_argument


class Command(NamedTuple):
    name: str
    sentence: str
    arguments: tuple[Argument, ...]
    options: dict[str, Any]  # of argparse's add_parser


class _Help(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        # argparse forgets that commands stand further in than options: longer names would have a line of their own.
        self._action_max_length = max(len(command.name) for command in COMMANDS) + 4


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="equipoise",
        formatter_class=_Help,
        description="Reinforcement learning for reasoning models, "
        "with each of its biases measured and removable.",
    )
    parser.add_argument("--version", action="version", version=f"equipoise {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, sentence, arguments, options in COMMANDS:
        command = commands.add_parser(name, help=sentence, description=sentence, **options)
        for names, settings in arguments:
            command.add_argument(*names, **settings)
    return parser


def option_names(parser: argparse.ArgumentParser, command: str) -> list[str]:
    """The long options of a command, as they are typed."""
    (commands,) = [
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    ]
    actions = commands.choices[command]._actions
    return [flag for action in actions for flag in action.option_strings if flag.startswith("--")]


def _at_least(least: float, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = kind(text)
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text}: must be at least {least}")
        return value

    number.__name__ = kind.__name__  # what argparse calls a text that is no number
    return number


def _command(name: str, sentence: str, *arguments: Argument, **options: Any) -> Command:
    return Command(name, sentence, arguments, options)


def _arg(name: str, sentence: str, *, shown_default: object = None, **options: Any) -> Argument:
    """`shown_default`: a default that the help page prints."""
    if shown_default is not None:
        options["default"] = shown_default
        sentence += " (default: %(default)s)"
    return Argument((name,), {**options, "help": sentence})


def _number(
    name: str,
    sentence: str,
    least: float,
    *,
    kind: type[int] | type[float] = int,
    **options: Any,
) -> Argument:
    return _arg(name, sentence, type=_at_least(least, kind), **options)


def _flag(name: str, sentence: str) -> Argument:
    return _arg(name, sentence, action="store_true")


def _chat(sentence: str) -> Argument:
    return _arg("--chat", sentence, action=argparse.BooleanOptionalAction, default=None)


DEVICE = _arg("--device", "cpu, cuda, or auto: a GPU where there is one", shown_default="auto")
DTYPE = _arg("--dtype", "of the weights", shown_default="float32", choices=("float32", "bfloat16"))
# of a command whose options are those of a configuration
HELP = Argument(
    ("-h", "--help"),
    {"action": "store_true", "dest": "show_help", "help": "every option with its sentence"},
)
RUNS = _arg("runs", "run directories, or folders of them", nargs="+")
JSON = _flag("--json", "print the result as JSON")

COMMANDS = (  # in the order of the help page
    _command(
        "quickstart",
        "train the embedded model with four objectives and compare them",
        _arg("--out", "where the runs go", shown_default="runs/quickstart"),
        _arg("--seed", "seed of prompts and draws", shown_default=0, type=int),
        _number("--steps", "steps per run (default: the preset's)", 1),
    ),
    _command(
        "train",
        "train a model as a configuration says",
        _arg(
            "config",
            "a TOML file, as in the repository's examples/; or a run directory, with --resume",
            nargs="?",
        ),
        _flag("--resume", "go on with a run after its last checkpoint"),
        _number("--from-step", "go on after this step's checkpoint", 0),
        _flag("--no-weights", "write no checkpoint when the run is done"),
        HELP,
        add_help=False,
        usage=TRAIN_USAGE,
    ),
    _command(
        "sft",
        "imitate the responses of a data set, before reinforcement learning",
        _arg("config", "a TOML file, as in the repository's examples/", nargs="?"),
        _flag("--resume", "go on where a run in the same directory stopped"),
        HELP,
        add_help=False,
        usage=SFT_USAGE,
    ),
    _command(
        "eval",
        "sample a model on benchmarks, or on a task's held-out prompts: acc@n, best@n, maj@n",
        _arg(
            "model",
            "a folder, a hub name, abacus, smollm, or a run: all its checkpoints, for --task the last",
        ),
        _arg("--task", TASK_HELP),
        _arg(
            "--benchmarks",
            "names with commas, instead of a task: math500, aime24, gsm8k, humaneval …",
        ),
        _arg("--data", "folder with the benchmarks' files (default: from the hub)"),
        _arg(
            "--protocol",
            "samples per problem of a benchmark: ba, 8; hadw, 16 on AIME and AMC, else 1",
            default="ba",
        ),
        _number(
            "--samples",
            "responses per prompt (default: the protocol's; of a task the run's, else 8)",
            1,
        ),
        _number(
            "--temperature",
            "of those responses (default: the protocol's, the run's, else 1)",
            0,
            kind=float,
        ),
        _number("--limit", "problems of each benchmark, from the first (default: all)", 1),
        _arg(
            "--base",
            "another model, by whose success rate a task's prompts are easy, mid or hard",
        ),
        _number("--per-level", "prompts per level (default: the run's, else all)", 1),
        _number(
            "--max-tokens", "longest response; 0 takes the run's or the task's own", 0, default=0
        ),
        _chat("use the chat template (default: as the run, else for models trained on it)"),
        _number(
            "--chunk", "problems sampled and kept together; 0 makes 512 responses", 0, default=0
        ),
        _arg(
            "--out",
            "where samples and result go (default: RUN/evaluation/step-N or evaluation/MODEL)",
        ),
        DEVICE,
        DTYPE,
        JSON,
        _flag("--markdown", "print the benchmarks' result as Markdown"),
        epilog=TASK_OPTIONS,
    ),
    _command(
        "regrade",
        "grade the responses an evaluation kept again, and say what changed",
        _arg("out", "a folder that eval wrote, or one that holds several of them"),
        _arg("--data", "where the benchmarks' files are now (default: where they were)"),
        _flag("--json", "print what changed as JSON"),
    ),
    _command(
        "objectives",
        "list the presets as the five choices they are made of, with their sources",
    ),
    _command(
        "compare",
        "train a configuration over values and seeds, and say whether they differ",
        _arg("config", "a TOML file; without one, all defaults", nargs="?"),
        _arg(
            "--vary",
            "an option and its values; several make a grid",
            action="append",
            default=[],
            metavar="KEY=A,B",
        ),
        _number("--seeds", "runs per variant", 1, shown_default=5),
        _arg("--metric", "of the last evaluation (default: acc@n)"),
        _arg("--out", "where runs and tables go", shown_default="runs/compare"),
        _number("--jobs", "runs at a time (default: one per core)", 1, default=0),
    ),
    _command(
        "study",
        "run a study written down beforehand, show its results, or train cells of it again",
        _arg(
            "action",
            "run FILE.toml; show or verify RESULTS.json",
            choices=("run", "show", "verify"),
        ),
        _arg(
            "file",
            "studies (see studies/) to run; results to show (of several: all tests counted) or to verify",
            nargs="+",
        ),
        _arg("--out", "where its runs go", shown_default="runs/study"),
        _number("--jobs", "runs at a time (default: one per core)", 1, default=0),
        _number("--minutes", "stop after so long; go on with run", 0, kind=float),
        _arg("--figure", "show: draw the dose curves too", metavar="FILE.svg"),
        _arg(
            "--difference",
            "show: PLUS − MINUS within seeds alone, exploratory: an interval, no test",
            nargs=3,
            metavar=("PLUS", "MINUS", "METRIC"),
        ),
        _arg(
            "--at",
            "of --difference: the last evaluation, their mean, or the jitter",
            shown_default="mean",
            choices=("last", "mean", "jitter"),
        ),
        _arg("--variant", "verify: which variant (default: a cell of each file, drawn)"),
        _arg("--seed", "verify: which seed", type=int),
    ),
    _command(
        "audit",
        "measure which biases an objective has on a rollout log, and say what to change",
        _arg("files", "run directories, dumps of other trainers, Parquet, JSONL or CSV", nargs="+"),
        _arg("--objective", "a preset, or choices as dapo+balanced+hadw (default: the log's)"),
        _arg("--against", "other objectives to compare it with", metavar="A,B"),
        _arg("--columns", "what the columns of another log are", metavar="ROLE=COLUMN,…"),
        _arg("--tokenizer", "a folder or hub name, for logs with text but no tokens"),
        _number("--sampled", "groups that were sampled in all", 1, metavar="N"),
        _number("--epochs", "how often each prompt was due", 1, metavar="N"),
        _number("--prompts", "how many prompts there were", 2, metavar="N"),
        _flag("--json", "print the numbers as JSON"),
    ),
    _command(
        "bias",
        "sample prompts twice and measure how far each advantage is from the truth, by difficulty",
        _arg("model", "a folder, a hub name, abacus, smollm, or a run: its last checkpoint"),
        _arg("--task", TASK_HELP),
        _number("--group", "responses of a group, for the estimate", 2, shown_default=8),
        _number("--groups", "groups per prompt", 1, shown_default=4),
        _number("--samples", "responses per prompt, for the truth", 2, shown_default=128),
        _number("--prompts", "of the training stream, all different", 2, shown_default=256),
        _number("--temperature", "of all responses", 0, kind=float, shown_default=1.0),
        _number("--max-tokens", "longest response; 0 takes the task's own", 0, default=0),
        _chat("use the chat template (default: for models trained on it)"),
        _arg("--out", "folder for bias.json and bias.html", shown_default="bias"),
        DEVICE,
        DTYPE,
        JSON,
        epilog=TASK_OPTIONS,
    ),
    _command(
        "report",
        "write one self-contained HTML page about one or several runs",
        RUNS,
        _arg("--out", "the file (default: report.html in the first directory)"),
    ),
    _command(
        "watch",
        "serve the report on localhost while a run goes on",
        RUNS,
        _number("--port", "0 takes a free one", 0, shown_default=8765),
    ),
    _command(
        "export",
        "write a configuration, a data set or a run's rollouts for TRL or verl",
        _arg("what", "trl or verl: the launch of a configuration; data; or rollouts"),
        _arg(
            "source",
            "a configuration (TOML), a data set by its name as a task, or a run directory",
        ),
        _arg(
            "out",
            "the folder, for data the .parquet file (default, for a launch: WHAT)",
            nargs="?",
        ),
        _arg("--to", "whose files, for data and rollouts: trl or verl", metavar="HOST"),
        epilog="A configuration takes overrides as train does, a data set those of [task]: "
        "--task.columns '{prompt = ...}'",
    ),
    _command(
        "push",
        "publish a run's weights on the Hugging Face hub, with a card of data, objective and biases",
        _arg("run", "a run directory"),
        _arg("--to", "the model's name on the hub", required=True, metavar="OWNER/NAME"),
        _arg(
            "--weights",
            "last, best, averaged or a step (default: best if kept, else last)",
            default="",
        ),
        _flag("--private", "make the repository private, if it is new"),
        _flag("--dry-run", "only write the folder that would be uploaded"),
    ),
    _command(
        "redteam",
        "train a policy to fool a verifier, and list what it accepts wrongly",
        _arg(
            "--verifier",
            "math, math-lenient, arithmetic, math-verify, trl, verl-math, "
            "verl-prime … or your module:function(prompt, response, row) "
            "(default: math; with --replay the one its list names)",
            default="",
        ),
        _arg(
            "--judge",
            "your module:function that says what is honest (default: the built-in judge)",
            default="",
        ),
        _arg("--model", "embedded, smollm, a folder or a hub name", shown_default="embedded"),
        DEVICE,
        _number("--minutes", "how long to attack", 0, kind=float, shown_default=5.0),
        _arg("--seed", "seed of problems and draws", shown_default=0, type=int),
        _arg("--out", "where list, page and runs go", shown_default="runs/redteam"),
        _arg(
            "--python",
            "another interpreter to run the verifier in (another environment)",
            default="",
        ),
        _arg(
            "--path",
            "a folder put first on the verifier's import path (another checkout)",
            default="",
        ),
        _arg("--replay", "only try an earlier run's exploits.jsonl again", metavar="FILE"),
    ),
    _command(
        "sandbox",
        "serve verdicts over HTTP to a trainer whose container cannot isolate programs",
        _arg("action", "run until Ctrl-C; it does not start without a sandbox", choices=("serve",)),
        _arg("--host", "address to listen on", shown_default="127.0.0.1"),
        _number("--port", "0 takes a free one", 0, shown_default=8770),
    ),
    _command(
        "doctor", "say what is installed, what can be used here, and what to do about the rest"
    ),
    _command("theory", "print the closed forms of the papers' bias theorems as tables"),
)

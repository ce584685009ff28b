"""The arguments of every command: their names, bounds and sentences.
What a command does is in :mod:`equipoise.cli`.

Nothing here imports more than argparse, so that `equipoise --help` answers at once. The options of
`equipoise train` are those of a configuration (:mod:`equipoise.config`), and not covered here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from equipoise import __version__

AddCommand = Callable[..., argparse.ArgumentParser]  # (name, its sentence, …)

TRAIN_USAGE = "equipoise train CONFIG.toml | RUN --resume [--from-step N] [--section.key value ...]"

TASK_HELP = (
    "arithmetic, gym:NAME, hub:NAME, or a file or folder (default: the run's own, else arithmetic)"
)
TASK_OPTIONS = (
    "The task takes every option of a configuration's [task], as train does: --task.template hadw "
    "--task.columns '{prompt = \"question\"}'; equipoise train --help lists them."
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="equipoise",
        description="Reinforcement learning for reasoning models, with its biases measured and removed.",
    )
    parser.add_argument("--version", action="version", version=f"equipoise {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, sentence: str, **more: object) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=sentence, description=sentence, **more)  # type: ignore[arg-type]

    for command in COMMANDS:
        command(add)
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


def _quickstart(add: AddCommand) -> None:
    quickstart = add("quickstart", "train the embedded model with four objectives and compare them")
    quickstart.add_argument(
        "--out", default="runs/quickstart", help="where the runs go (default: %(default)s)"
    )
    quickstart.add_argument(
        "--seed", type=int, default=0, help="seed of prompts and draws (default: %(default)s)"
    )
    quickstart.add_argument(
        "--steps", type=_at_least(1), default=None, help="steps per run (default: the preset's)"
    )


def _train(add: AddCommand) -> None:
    train = add("train", "train a model as a configuration says", add_help=False, usage=TRAIN_USAGE)
    train.add_argument(
        "config", nargs="?", help="a TOML file; see examples/; or a run directory, with --resume"
    )
    train.add_argument(
        "--resume", action="store_true", help="go on with a run after its last checkpoint"
    )
    train.add_argument(
        "--from-step", type=_at_least(0), default=None, help="go on after this step's checkpoint"
    )
    train.add_argument(
        "-h", "--help", action="store_true", dest="show_help", help="every option with its sentence"
    )


def _sft(add: AddCommand) -> None:
    sft = add(
        "sft",
        "imitate the responses of a data set, before reinforcement learning",
        add_help=False,
        usage=("equipoise sft CONFIG.toml [--resume] [--section.key value ...]"),
    )
    sft.add_argument("config", nargs="?", help="a TOML file; see examples/")
    sft.add_argument(
        "--resume", action="store_true", help="go on where a run in the same directory stopped"
    )
    sft.add_argument(
        "-h", "--help", action="store_true", dest="show_help", help="every option with its sentence"
    )


def _eval(add: AddCommand) -> None:
    evaluate = add(
        "eval",
        "sample a model on benchmarks, or on a task's held-out prompts: acc@n, best@n, maj@n",
        epilog=TASK_OPTIONS,
    )
    option = evaluate.add_argument
    option(
        "model",
        help="a folder, a hub name, abacus, smollm, or a run: all its checkpoints, for --task the last",
    )
    option("--task", help=TASK_HELP)
    option(
        "--benchmarks",
        help="names with commas, instead of a task: math500, aime24, gsm8k, humaneval …",
    )
    option("--data", help="folder with the benchmarks' files (default: from the hub)")
    option(
        "--protocol",
        default="ba",
        help="samples per problem of a benchmark: ba, 8; hadw, 16 on AIME and AMC, else 1",
    )
    option(
        "--samples",
        type=_at_least(1),
        default=None,
        help="responses per prompt (default: the protocol's; of a task the run's, else 8)",
    )
    option(
        "--temperature",
        type=_at_least(0, float),
        default=None,
        help="of those responses (default: the protocol's, the run's, else 1)",
    )
    option(
        "--limit",
        type=_at_least(1),
        default=None,
        help="problems of each benchmark, from the first (default: all)",
    )
    option(
        "--base", help="another model, by whose success rate a task's prompts are easy, mid or hard"
    )
    option(
        "--per-level",
        type=_at_least(1),
        default=None,
        help="prompts per level (default: the run's, else all)",
    )
    option(
        "--max-tokens",
        type=_at_least(0),
        default=0,
        help="longest response; 0 takes the run's or the task's own",
    )
    option(
        "--chat",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="use the chat template (default: as the run, else for models trained on it)",
    )
    option(
        "--chunk",
        type=_at_least(0),
        default=0,
        help="problems sampled and kept together; 0 makes 512 responses",
    )
    option(
        "--out",
        help="where samples and result go (default: RUN/evaluation/step-N or evaluation/MODEL)",
    )
    option(
        "--device",
        default="auto",
        help="cpu, cuda, or auto: a GPU where there is one (default: %(default)s)",
    )
    option(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16"),
        help="of the weights (default: %(default)s)",
    )
    option("--json", action="store_true", help="print the result as JSON")
    option("--markdown", action="store_true", help="print the benchmarks' result as Markdown")


def _regrade(add: AddCommand) -> None:
    regrade = add("regrade", "grade the responses an evaluation kept again, and say what changed")
    regrade.add_argument("out", help="a folder that eval wrote, or one that holds several of them")
    regrade.add_argument(
        "--data", help="where the benchmarks' files are now (default: where they were)"
    )
    regrade.add_argument("--json", action="store_true", help="print what changed as JSON")


def _objectives(add: AddCommand) -> None:
    add("objectives", "list the presets as the five choices they are made of, with their sources")


def _compare(add: AddCommand) -> None:
    compare = add(
        "compare", "train a configuration over values and seeds, and say whether they differ"
    )
    compare.add_argument("config", nargs="?", help="a TOML file; without one, all defaults")
    compare.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="an option and its values; several make a grid",
    )
    compare.add_argument(
        "--seeds", type=_at_least(1), default=5, help="runs per variant (default: %(default)s)"
    )
    compare.add_argument("--metric", default=None, help="of the last evaluation (default: acc@n)")
    compare.add_argument(
        "--out", default="runs/compare", help="where runs and tables go (default: %(default)s)"
    )
    compare.add_argument(
        "--jobs", type=_at_least(1), default=0, help="runs at a time (default: one per core)"
    )


def _study(add: AddCommand) -> None:
    study = add(
        "study", "run a study written down beforehand, show its results, or train one cell again"
    )
    study.add_argument(
        "action",
        choices=("run", "show", "verify"),
        help="run FILE.toml; show or verify RESULTS.json",
    )
    study.add_argument(
        "file",
        nargs="+",
        help="studies (see studies/) to run; the results of one to show or verify",
    )
    study.add_argument(
        "--out", default="runs/study", help="where its runs go (default: %(default)s)"
    )
    study.add_argument(
        "--jobs", type=_at_least(1), default=0, help="runs at a time (default: one per core)"
    )
    study.add_argument(
        "--minutes",
        type=_at_least(0, float),
        default=None,
        help="stop after so long; go on with run",
    )
    study.add_argument(
        "--figure", default=None, metavar="FILE.svg", help="show: draw the dose curves too"
    )
    study.add_argument("--variant", default=None, help="verify: which variant")
    study.add_argument("--seed", type=int, default=None, help="verify: which seed")


def _audit(add: AddCommand) -> None:
    audit = add(
        "audit", "measure which biases an objective has on a rollout log, and say what to change"
    )
    audit.add_argument(
        "files", nargs="+", help="run directories, dumps of other trainers, Parquet, JSONL or CSV"
    )
    audit.add_argument(
        "--objective",
        default=None,
        help="a preset, or choices as dapo+balanced+hadw (default: the log's)",
    )
    audit.add_argument(
        "--against", default=None, metavar="A,B", help="other objectives to compare it with"
    )
    audit.add_argument(
        "--columns",
        default=None,
        metavar="ROLE=COLUMN,…",
        help="what the columns of another log are",
    )
    audit.add_argument(
        "--tokenizer", default=None, help="a folder or hub name, for logs with text but no tokens"
    )
    audit.add_argument(
        "--sampled",
        type=_at_least(1),
        default=None,
        metavar="N",
        help="groups that were sampled in all",
    )
    audit.add_argument(
        "--epochs",
        type=_at_least(1),
        default=None,
        metavar="N",
        help="how often each prompt was due",
    )
    audit.add_argument(
        "--prompts",
        type=_at_least(2),
        default=None,
        metavar="N",
        help="how many prompts there were",
    )
    audit.add_argument("--json", action="store_true", help="print the numbers as JSON")


def _bias(add: AddCommand) -> None:
    bias = add(
        "bias",
        "sample prompts twice and measure how far each advantage is from the truth, by difficulty",
        epilog=TASK_OPTIONS,
    )
    option = bias.add_argument
    option("model", help="a folder, a hub name, abacus, smollm, or a run: its last checkpoint")
    option("--task", help=TASK_HELP)
    option(
        "--group",
        type=_at_least(2),
        default=8,
        help="responses of a group, for the estimate (default: %(default)s)",
    )
    option(
        "--groups", type=_at_least(1), default=4, help="groups per prompt (default: %(default)s)"
    )
    option(
        "--samples",
        type=_at_least(2),
        default=128,
        help="responses per prompt, for the truth (default: %(default)s)",
    )
    option(
        "--prompts",
        type=_at_least(2),
        default=256,
        help="of the training stream, all different (default: %(default)s)",
    )
    option(
        "--temperature",
        type=_at_least(0, float),
        default=1.0,
        help="of all responses (default: %(default)s)",
    )
    option(
        "--max-tokens",
        type=_at_least(0),
        default=0,
        help="longest response; 0 takes the task's own",
    )
    option(
        "--chat",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="use the chat template (default: for models trained on it)",
    )
    option(
        "--out", default="bias", help="folder for bias.json and bias.html (default: %(default)s)"
    )
    option(
        "--device",
        default="auto",
        help="cpu, cuda, or auto: a GPU where there is one (default: %(default)s)",
    )
    option(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16"),
        help="of the weights (default: %(default)s)",
    )
    option("--json", action="store_true", help="print the result as JSON")


def _report(add: AddCommand) -> None:
    page = add("report", "write one self-contained HTML page about one or several runs")
    page.add_argument("runs", nargs="+", help="run directories, or folders of them")
    page.add_argument(
        "--out", default=None, help="the file (default: report.html in the first directory)"
    )


def _watch(add: AddCommand) -> None:
    watch = add("watch", "serve that page on localhost while a run goes on")
    watch.add_argument("runs", nargs="+", help="run directories, or folders of them")
    watch.add_argument(
        "--port", type=_at_least(0), default=8765, help="0 takes a free one (default: %(default)s)"
    )


def _export(add: AddCommand) -> None:
    export = add(
        "export",
        "write a configuration, a data set or a run's rollouts for TRL or verl",
        epilog=(
            "A configuration takes overrides as train does, a data set those of [task]: --task.columns '{prompt = ...}'"
        ),
    )
    export.add_argument(
        "what", help="trl or verl: the launch of a configuration; data; or rollouts"
    )
    export.add_argument(
        "source",
        help="a configuration (TOML), a data set by its name as a task, or a run directory",
    )
    export.add_argument(
        "out",
        nargs="?",
        help="the folder, for data the .parquet file (default, for a launch: WHAT)",
    )
    export.add_argument(
        "--to", default=None, metavar="HOST", help="whose files, for data and rollouts: trl or verl"
    )


def _push(add: AddCommand) -> None:
    push = add(
        "push",
        "publish a run's weights on the Hugging Face hub, with a card of data, objective and biases",
    )
    push.add_argument("run", help="a run directory")
    push.add_argument(
        "--to", required=True, metavar="OWNER/NAME", help="the model's name on the hub"
    )
    push.add_argument(
        "--weights",
        default="",
        help="last, best, averaged or a step (default: best if kept, else last)",
    )
    push.add_argument(
        "--private", action="store_true", help="make the repository private, if it is new"
    )
    push.add_argument(
        "--dry-run", action="store_true", help="only write the folder that would be uploaded"
    )


def _redteam(add: AddCommand) -> None:
    attack = add("redteam", "train a policy to fool a verifier, and list what it accepts wrongly")
    option = attack.add_argument
    option(
        "--verifier",
        default="math",
        help="math, math-lenient, arithmetic, math-verify, trl, verl-math, "
        "verl-prime … or your module:function(prompt, response, row) (default: %(default)s)",
    )
    option(
        "--judge",
        default="",
        help="your module:function that says what is honest (default: the built-in judge)",
    )
    option(
        "--model",
        default="embedded",
        help="embedded, smollm, a folder or a hub name (default: %(default)s)",
    )
    option(
        "--device",
        default="auto",
        help="cpu, cuda, or auto: a GPU where there is one (default: %(default)s)",
    )
    option(
        "--minutes",
        type=_at_least(0, float),
        default=5.0,
        help="how long to attack (default: %(default)s)",
    )
    option("--seed", type=int, default=0, help="seed of problems and draws (default: %(default)s)")
    option(
        "--out", default="runs/redteam", help="where list, page and runs go (default: %(default)s)"
    )
    option(
        "--python",
        default="",
        help="another interpreter to run the verifier in (another environment)",
    )
    option(
        "--path",
        default="",
        help="a folder put first on the verifier's import path (another checkout)",
    )
    option(
        "--replay",
        default=None,
        metavar="FILE",
        help="only try an earlier run's exploits.jsonl again",
    )


def _sandbox(add: AddCommand) -> None:
    runner = add(
        "sandbox", "serve verdicts over HTTP to a trainer whose container cannot isolate programs"
    )
    runner.add_argument(
        "action", choices=("serve",), help="run until Ctrl-C; it does not start without a sandbox"
    )
    runner.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    runner.add_argument(
        "--port", type=_at_least(0), default=8770, help="0 takes a free one (default: %(default)s)"
    )


def _doctor(add: AddCommand) -> None:
    add("doctor", "say what is installed, what can be used here, and what to do about the rest")


def _theory(add: AddCommand) -> None:
    add("theory", "print the closed forms of the papers' bias theorems as tables")


COMMANDS = (  # in the order of the help page
    _quickstart,
    _train,
    _sft,
    _eval,
    _regrade,
    _objectives,
    _compare,
    _study,
    _audit,
    _bias,
    _report,
    _watch,
    _export,
    _push,
    _redteam,
    _sandbox,
    _doctor,
    _theory,
)

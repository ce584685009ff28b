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


def _number(
    command: argparse.ArgumentParser,
    name: str,
    help: str,
    *,
    at_least: int,
    kind: type[int] | type[float] = int,
    default: float | None = None,
    metavar: str | None = None,
) -> None:
    command.add_argument(
        name, type=_at_least(at_least, kind), default=default, metavar=metavar, help=help
    )


def _flag(command: argparse.ArgumentParser, name: str, help: str) -> None:
    command.add_argument(name, action="store_true", help=help)


def _chat(command: argparse.ArgumentParser, help: str) -> None:
    command.add_argument("--chat", action=argparse.BooleanOptionalAction, default=None, help=help)


def _device(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--device",
        default="auto",
        help="cpu, cuda, or auto: a GPU where there is one (default: %(default)s)",
    )


def _dtype(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16"),
        help="of the weights (default: %(default)s)",
    )


def _every_option(command: argparse.ArgumentParser) -> None:
    """--help of a command whose options are those of a configuration."""
    command.add_argument(
        "-h", "--help", action="store_true", dest="show_help", help="every option with its sentence"
    )


def _quickstart(add: AddCommand) -> None:
    quickstart = add("quickstart", "train the embedded model with four objectives and compare them")
    quickstart.add_argument(
        "--out", default="runs/quickstart", help="where the runs go (default: %(default)s)"
    )
    quickstart.add_argument(
        "--seed", type=int, default=0, help="seed of prompts and draws (default: %(default)s)"
    )
    _number(quickstart, "--steps", "steps per run (default: the preset's)", at_least=1)


def _train(add: AddCommand) -> None:
    train = add("train", "train a model as a configuration says", add_help=False, usage=TRAIN_USAGE)
    train.add_argument(
        "config",
        nargs="?",
        help="a TOML file, as in the repository's examples/; or a run directory, with --resume",
    )
    _flag(train, "--resume", "go on with a run after its last checkpoint")
    _number(train, "--from-step", "go on after this step's checkpoint", at_least=0)
    _every_option(train)


def _sft(add: AddCommand) -> None:
    sft = add(
        "sft",
        "imitate the responses of a data set, before reinforcement learning",
        add_help=False,
        usage=("equipoise sft CONFIG.toml [--resume] [--section.key value ...]"),
    )
    sft.add_argument("config", nargs="?", help="a TOML file, as in the repository's examples/")
    _flag(sft, "--resume", "go on where a run in the same directory stopped")
    _every_option(sft)


def _eval(add: AddCommand) -> None:
    evaluate = add(
        "eval",
        "sample a model on benchmarks, or on a task's held-out prompts: acc@n, best@n, maj@n",
        epilog=TASK_OPTIONS,
    )
    evaluate.add_argument(
        "model",
        help="a folder, a hub name, abacus, smollm, or a run: all its checkpoints, for --task the last",
    )
    evaluate.add_argument("--task", help=TASK_HELP)
    evaluate.add_argument(
        "--benchmarks",
        help="names with commas, instead of a task: math500, aime24, gsm8k, humaneval …",
    )
    evaluate.add_argument(
        "--data", help="folder with the benchmarks' files (default: from the hub)"
    )
    evaluate.add_argument(
        "--protocol",
        default="ba",
        help="samples per problem of a benchmark: ba, 8; hadw, 16 on AIME and AMC, else 1",
    )
    _eval_sampling(evaluate)
    evaluate.add_argument(
        "--out",
        help="where samples and result go (default: RUN/evaluation/step-N or evaluation/MODEL)",
    )
    _device(evaluate)
    _dtype(evaluate)
    _flag(evaluate, "--json", "print the result as JSON")
    _flag(evaluate, "--markdown", "print the benchmarks' result as Markdown")


def _eval_sampling(evaluate: argparse.ArgumentParser) -> None:
    """Which prompts, and how they are answered."""
    _number(
        evaluate,
        "--samples",
        "responses per prompt (default: the protocol's; of a task the run's, else 8)",
        at_least=1,
    )
    _number(
        evaluate,
        "--temperature",
        "of those responses (default: the protocol's, the run's, else 1)",
        at_least=0,
        kind=float,
    )
    _number(
        evaluate, "--limit", "problems of each benchmark, from the first (default: all)", at_least=1
    )
    evaluate.add_argument(
        "--base", help="another model, by whose success rate a task's prompts are easy, mid or hard"
    )
    _number(evaluate, "--per-level", "prompts per level (default: the run's, else all)", at_least=1)
    _number(
        evaluate,
        "--max-tokens",
        "longest response; 0 takes the run's or the task's own",
        at_least=0,
        default=0,
    )
    _chat(evaluate, "use the chat template (default: as the run, else for models trained on it)")
    _number(
        evaluate,
        "--chunk",
        "problems sampled and kept together; 0 makes 512 responses",
        at_least=0,
        default=0,
    )


def _regrade(add: AddCommand) -> None:
    regrade = add("regrade", "grade the responses an evaluation kept again, and say what changed")
    regrade.add_argument("out", help="a folder that eval wrote, or one that holds several of them")
    regrade.add_argument(
        "--data", help="where the benchmarks' files are now (default: where they were)"
    )
    _flag(regrade, "--json", "print what changed as JSON")


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
    _number(compare, "--seeds", "runs per variant (default: %(default)s)", at_least=1, default=5)
    compare.add_argument("--metric", help="of the last evaluation (default: acc@n)")
    compare.add_argument(
        "--out", default="runs/compare", help="where runs and tables go (default: %(default)s)"
    )
    _number(compare, "--jobs", "runs at a time (default: one per core)", at_least=1, default=0)


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
    _number(study, "--jobs", "runs at a time (default: one per core)", at_least=1, default=0)
    _number(study, "--minutes", "stop after so long; go on with run", at_least=0, kind=float)
    study.add_argument("--figure", metavar="FILE.svg", help="show: draw the dose curves too")
    study.add_argument("--variant", help="verify: which variant")
    study.add_argument("--seed", type=int, help="verify: which seed")


def _audit(add: AddCommand) -> None:
    audit = add(
        "audit", "measure which biases an objective has on a rollout log, and say what to change"
    )
    audit.add_argument(
        "files", nargs="+", help="run directories, dumps of other trainers, Parquet, JSONL or CSV"
    )
    audit.add_argument(
        "--objective", help="a preset, or choices as dapo+balanced+hadw (default: the log's)"
    )
    audit.add_argument("--against", metavar="A,B", help="other objectives to compare it with")
    audit.add_argument(
        "--columns", metavar="ROLE=COLUMN,…", help="what the columns of another log are"
    )
    audit.add_argument("--tokenizer", help="a folder or hub name, for logs with text but no tokens")
    _number(audit, "--sampled", "groups that were sampled in all", at_least=1, metavar="N")
    _number(audit, "--epochs", "how often each prompt was due", at_least=1, metavar="N")
    _number(audit, "--prompts", "how many prompts there were", at_least=2, metavar="N")
    _flag(audit, "--json", "print the numbers as JSON")


def _bias(add: AddCommand) -> None:
    bias = add(
        "bias",
        "sample prompts twice and measure how far each advantage is from the truth, by difficulty",
        epilog=TASK_OPTIONS,
    )
    bias.add_argument(
        "model", help="a folder, a hub name, abacus, smollm, or a run: its last checkpoint"
    )
    bias.add_argument("--task", help=TASK_HELP)
    _number(
        bias,
        "--group",
        "responses of a group, for the estimate (default: %(default)s)",
        at_least=2,
        default=8,
    )
    _number(bias, "--groups", "groups per prompt (default: %(default)s)", at_least=1, default=4)
    _number(
        bias,
        "--samples",
        "responses per prompt, for the truth (default: %(default)s)",
        at_least=2,
        default=128,
    )
    _number(
        bias,
        "--prompts",
        "of the training stream, all different (default: %(default)s)",
        at_least=2,
        default=256,
    )
    _number(
        bias,
        "--temperature",
        "of all responses (default: %(default)s)",
        at_least=0,
        kind=float,
        default=1.0,
    )
    _number(bias, "--max-tokens", "longest response; 0 takes the task's own", at_least=0, default=0)
    _chat(bias, "use the chat template (default: for models trained on it)")
    bias.add_argument(
        "--out", default="bias", help="folder for bias.json and bias.html (default: %(default)s)"
    )
    _device(bias)
    _dtype(bias)
    _flag(bias, "--json", "print the result as JSON")


def _report(add: AddCommand) -> None:
    page = add("report", "write one self-contained HTML page about one or several runs")
    page.add_argument("runs", nargs="+", help="run directories, or folders of them")
    page.add_argument("--out", help="the file (default: report.html in the first directory)")


def _watch(add: AddCommand) -> None:
    watch = add("watch", "serve that page on localhost while a run goes on")
    watch.add_argument("runs", nargs="+", help="run directories, or folders of them")
    _number(watch, "--port", "0 takes a free one (default: %(default)s)", at_least=0, default=8765)


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
        "--to", metavar="HOST", help="whose files, for data and rollouts: trl or verl"
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
    _flag(push, "--private", "make the repository private, if it is new")
    _flag(push, "--dry-run", "only write the folder that would be uploaded")


def _redteam(add: AddCommand) -> None:
    attack = add("redteam", "train a policy to fool a verifier, and list what it accepts wrongly")
    attack.add_argument(
        "--verifier",
        default="math",
        help="math, math-lenient, arithmetic, math-verify, trl, verl-math, "
        "verl-prime … or your module:function(prompt, response, row) (default: %(default)s)",
    )
    attack.add_argument(
        "--judge",
        default="",
        help="your module:function that says what is honest (default: the built-in judge)",
    )
    attack.add_argument(
        "--model",
        default="embedded",
        help="embedded, smollm, a folder or a hub name (default: %(default)s)",
    )
    _device(attack)
    _number(
        attack,
        "--minutes",
        "how long to attack (default: %(default)s)",
        at_least=0,
        kind=float,
        default=5.0,
    )
    attack.add_argument(
        "--seed", type=int, default=0, help="seed of problems and draws (default: %(default)s)"
    )
    attack.add_argument(
        "--out", default="runs/redteam", help="where list, page and runs go (default: %(default)s)"
    )
    attack.add_argument(
        "--python",
        default="",
        help="another interpreter to run the verifier in (another environment)",
    )
    attack.add_argument(
        "--path",
        default="",
        help="a folder put first on the verifier's import path (another checkout)",
    )
    attack.add_argument(
        "--replay", metavar="FILE", help="only try an earlier run's exploits.jsonl again"
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
    _number(runner, "--port", "0 takes a free one (default: %(default)s)", at_least=0, default=8770)


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

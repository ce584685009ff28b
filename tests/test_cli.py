"""The command line: help for every option, one sentence for every mistake, and what `eval` prints."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest
import torch

from equipoise import __version__, cli
from equipoise.arguments import COMMANDS, build_parser
from equipoise.config.errors import help_of, options_of
from equipoise.objective import PRESETS
from equipoise.train import Config, Trainer

from .train.tiny import make_model, metrics, overrides, settings


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(autouse=True)
def _same_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_every_command_stands_beside_its_sentence(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = build_parser().format_help()
    for command in COMMANDS:
        assert re.search(rf"^ +{command.name} +{re.escape(command.sentence.split()[0])} ", shown, re.M), command.name


def test_help_names_every_command(equipoise):
    code, out, _ = equipoise("--help")
    assert code == 0
    for command in ("quickstart", "train", "eval", "objectives"):
        assert re.search(rf"^ +{command}\s+\w+", out, re.MULTILINE), command


def commands():
    (found,) = [action for action in build_parser()._actions if action.dest == "command"]
    return found.choices


def test_every_command_can_be_run():
    assert commands().keys() == cli.RUN.keys()


@pytest.mark.parametrize("command", ["quickstart", "eval"])
def test_every_option_of_a_command_has_a_sentence(command):
    actions = commands()[command]._actions
    assert len(actions) > 3
    for action in actions:
        assert action.help, action.dest
        assert len(action.help.split()) >= 3, action.dest


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_help_of_train_shows_every_option_with_its_sentence(equipoise, flag):
    code, out, _ = equipoise("train", flag)
    assert code == 0
    assert "--resume" in out
    for section, options in options_of(Config).items():
        for key, option in options.items():
            assert re.search(rf"--{section}\.{key} +{re.escape(help_of(option))}", out), key


@pytest.mark.parametrize("command", ["train", "sft"])
def test_without_a_configuration_it_says_what_is_missing(equipoise, command):
    """And not three hundred lines of options, at whose end a reader looks for the mistake in vain."""
    code, out, err = equipoise(command, "--train.steps", "3")
    assert (code, out) == (2, "")
    assert err.startswith(f"usage: equipoise {command} CONFIG.toml")
    assert f"{command} needs a configuration" in err
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("trian",),
        ("eval",),
        ("quickstart", "--stpes", "3"),
        ("eval", "m", "--a.b", "1"),
        ("eval", "m", "--tsak", "x"),
        ("bias", "m", "--rollout.prompts", "3"),
        ("doctor", "--task.chat", "true"),
    ],
)
def test_a_wrong_command_line_is_2(equipoise, arguments):
    code, _, err = equipoise(*arguments)
    assert code == 2
    assert "usage: equipoise" in err


def test_overrides_may_stand_before_the_configuration(equipoise, model, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("[train]\nsteps = 99\n")
    options = overrides(model, tmp_path / "run", train__steps=1, log__terminal=False, eval__every=0)
    code, _, err = equipoise("train", *options, file)
    assert (code, err) == (0, "")
    code, _, err = equipoise("train", *options, file, "--resume")
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.toml"], "nowhere.toml: there is no such file"),
        (["{file}", "--optm.lr", "1"], 'optm is not a section; did you mean "optim"?'),
        (["{file}", "--optim.lr"], "--optim.lr: the value is missing"),
        (["{file}", "more"], "more: an override is --section.key value"),
        (["--optim.lr", "x", "{file}"], 'optim.lr = "x": must be auto, or a finite number'),
    ],
)
def test_a_mistake_in_training_is_one_sentence(equipoise, tmp_path, arguments, said):
    file = tmp_path / "c.toml"
    file.write_text("")
    code, out, err = equipoise("train", *(a.format(file=file) for a in arguments))
    assert (code, out) == (1, "")
    assert err.startswith(f"equipoise: {said}")
    assert err.count("\n") == 1


def test_a_bug_shows_its_traceback(equipoise, monkeypatch, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("")
    monkeypatch.setattr(Trainer, "__init__", lambda self, config, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        equipoise("train", file)


def test_ctrl_c_is_130(equipoise, monkeypatch, tmp_path):
    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    (tmp_path / "c.toml").write_text("")
    monkeypatch.setattr(Trainer, "__init__", stopped)
    assert equipoise("train", tmp_path / "c.toml") == (130, "", "")


EVAL = ("--per-level", "2", "--samples", "4", "--max-tokens", "8")


def test_eval_prints_what_it_measured(equipoise, model):
    code, out, err = equipoise("eval", model, *EVAL, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert {"acc@4", "best@4", "pass@2", "maj@4", "greedy", "length", "length_gap"} <= result.keys()
    assert 1 <= result["length"] <= 8
    code, out, _ = equipoise("eval", model, *EVAL)
    assert code == 0
    assert "8 held-out prompts" in out
    assert f"acc@4 {result['acc@4']:.3f} [" in out
    assert out.count("  level ") == len(result["by_level"])


def test_eval_of_a_run_is_eval_of_its_last_checkpoint(equipoise, model, tmp_path):
    Trainer(settings(model, tmp_path / "run", train__steps=2, log__terminal=False, eval__every=0)).run()
    of_run = equipoise("eval", tmp_path / "run", *EVAL, "--json")
    of_checkpoint = equipoise("eval", tmp_path / "run" / "checkpoints" / "step-2", *EVAL, "--json")
    assert of_run[0] == 0
    assert of_run == of_checkpoint != equipoise("eval", model, *EVAL, "--json")


def test_eval_in_training_and_on_the_command_line_agree(equipoise, model, tmp_path):
    Trainer(
        settings(model, tmp_path / "run", train__steps=1, log__terminal=False, eval__every=1, eval__samples=4,
                 eval__per_level=2, rollout__max_tokens=8)
    ).run()  # fmt: skip
    logged = json.loads((tmp_path / "run" / "eval.jsonl").read_text().splitlines()[-1])
    assert logged.pop("step") == 1
    measured = {name: value for name, value in logged.items() if not name.startswith("gaming/")}  # against the reward
    assert json.loads(equipoise("eval", tmp_path / "run", *EVAL, "--json")[1]) == measured


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{tmp}/none"], "is not there"),
        (["{model}", "--task", "arithmetics"], 'task.name = "arithmetics" is not a task'),
        (["{model}", "--task", "{tmp}/none.jsonl"], "there is no such file"),
        (["{model}", "--task", "{tmp}/long.jsonl"], "prompt 1: a prompt of 100 tokens leaves no room"),
        (["{model}", "--per-level", "1000"], "--per-level 1000: "),
        (["{model}", "--chat"], "has no chat template"),
        (["{model}", "--task.chat", "true"], "has no chat template"),
        (["{model}", "--task.colums", "{{}}"], "did you mean"),
        (["{model}", "--benchmarks", "gsm8k", "--task.suffix", "x"], "--task.suffix is for a task"),
    ],
)
def test_a_mistake_in_evaluating_is_one_sentence(equipoise, model, tmp_path, arguments, said):
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "1" * 100, "answer": 1}) + "\n")
    code, out, err = equipoise("eval", *(a.format(tmp=tmp_path, model=model) for a in arguments))
    assert (code, out) == (1, "")
    assert err.startswith("equipoise: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value"), [("--samples", "0"), ("--temperature", "-1"), ("--per-level", "0"), ("--max-tokens", "-1"),
                          ("--samples", "some"), ("--temperature", "inf")]
)  # fmt: skip
def test_numbers_out_of_range_are_refused(equipoise, model, option, value):
    code, _, err = equipoise("eval", model, f"{option}={value}")
    assert code == 2
    assert f"argument {option}: " in err
    assert value in err


def test_objectives_fit_a_narrow_terminal(equipoise, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the output for a terminal
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = equipoise("objectives")
    assert code == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert all(name in plain for name in PRESETS)
    assert max(map(len, plain.splitlines())) <= 80


def test_objectives_lists_every_preset_with_its_source(equipoise):
    code, out, _ = equipoise("objectives")
    assert code == 0
    for name, preset in PRESETS.items():
        assert re.search(rf"^ *{name} .*{re.escape(preset.source[:12])}", out, re.MULTILINE), name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], '"trian" is not a command; did you mean "train"? (quickstart, '),
        (["zzz"], '"zzz" is not a command; use one of (quickstart, '),
        (["quickstart", "--stpes", "3"], 'unrecognized arguments: --stpes 3; did you mean "--steps"? ('),
        (["eval", "m", "--tsak", "x"], 'unrecognized arguments: --tsak x; did you mean "--task"? ('),
        (["doctor", "more"], "unrecognized arguments: more\n"),
        (["train", "--steps", "3"], "--steps is not an option; did you mean --train.steps?"),
        (["train", "c.toml", "--lr=1e-3"], "--lr=1e-3 is not an option; did you mean --optim.lr?"),
        (["train", "c.toml", "--learning_rate", "1"], "did you mean --optim.lr?"),
        (["train", "c.toml", "--num-generations=4"], "did you mean --rollout.group_size?"),
        (["train", "c.toml", "--warmup_steps", "9"], "did you mean --optim.warmup?"),
        (["train", "c.toml", "--bf16"], "--bf16 is not an option; did you mean --model.dtype?"),
        (["train", "c.toml", "--grup_size", "4"], "did you mean --rollout.group_size?"),
        (["train", "c.toml", "--temprature", "1"], "did you mean --rollout.temperature or --eval.temperature?"),
        (["train", "c.toml", "--logging_steps", "1"], "--logging_steps is not an option; use one of (--resume, "),
        (["train", "c.toml", "--logging_steps", "1"], "`equipoise train --help` lists them)"),
        (["train", "c.toml", "--resmue"], '--resmue is not an option; did you mean "--resume"?'),
        (["train", "c.toml", "--fast"], "--fast is not an option; use one of (--resume, "),
        (["compare", "c.toml", "--max-tokens", "9"], "did you mean --rollout.max_tokens?"),
    ],
)
def test_a_wrong_word_gets_the_nearest_right_one(equipoise, arguments, said):
    code, _, err = equipoise(*arguments)
    assert code == 2
    assert said in err


def test_the_bare_command_says_what_there_is(equipoise):
    code, out, err = equipoise()
    assert (code, out) == (2, "")
    assert all(re.search(rf"^ +{name}\s", err, re.MULTILINE) for name in cli.RUN)


PROGRAM = [sys.executable, "-m", "equipoise"]
PRINT = ("theory", "train --help")


def ended_with(command, output):
    """The command with its output there."""
    return subprocess.run([*PROGRAM, *command.split()], stdout=output, stderr=subprocess.PIPE, text=True, timeout=900)


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        ("doctor --help", (0,)),
        pytest.param("objectives", (1, 141), marks=pytest.mark.long),  # 1 is rich's own; it imports torch
        *(pytest.param(c, (1, 141), marks=pytest.mark.slow) for c in PRINT),
    ],
)
def test_output_into_head_ends_without_a_word(command, codes):
    """A reader that closes the pipe at once."""
    reader, writer = os.pipe()
    os.close(reader)
    ended = ended_with(command, writer)
    os.close(writer)
    assert ended.stderr == ""
    assert ended.returncode in codes


@pytest.mark.long
@pytest.mark.parametrize("command", PRINT)
def test_output_onto_a_full_disk_is_one_sentence(command):
    with open("/dev/full", "w") as full:
        ended = ended_with(command, full)
    assert ended.stderr == "equipoise: its output cannot be written: No space left on device\n"
    assert ended.returncode == 1


@pytest.mark.long
@pytest.mark.parametrize("command", PRINT)
def test_without_an_output_nothing_is_said(command):
    """As under a service manager that opens none."""
    ended = subprocess.run(
        f"exec {shlex.join([*PROGRAM, *command.split()])} >&-",
        shell=True,
        stderr=subprocess.PIPE,
        text=True,
        timeout=900,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_pipe_that_breaks_elsewhere_is_a_bug(equipoise, monkeypatch):
    def broken(options, rest):
        raise BrokenPipeError

    monkeypatch.setitem(cli.RUN, "theory", broken)
    with pytest.raises(BrokenPipeError):
        equipoise("theory")


def test_a_run_goes_on_where_it_lies_and_says_when_it_is_done(equipoise, model, tmp_path, monkeypatch):
    """The lines of the README in sequence, from another directory than it began in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text('[train]\nout = "runs/mine"\n')
    options = overrides(model, "runs/mine", train__steps=2, log__terminal=False, eval__every=0)
    assert equipoise("train", "c.toml", *options) == (0, "", "")
    (tmp_path / "runs" / "mine").rename(tmp_path / "moved")
    done = "moved: finished: step 2 of 2 is done; --train.steps N trains it on to step N\n"
    assert equipoise("train", "moved", "--resume") == (0, done, "")
    assert equipoise("train", "moved", "--resume", "--train.steps", "3") == (0, "", "")
    assert equipoise("train", "moved", "--resume", "--from-step", "2") == (0, "", "")
    assert not (tmp_path / "runs" / "mine").exists()
    assert [record["step"] for record in metrics(tmp_path / "moved")] == [1, 2, 3]
    assert equipoise("eval", "moved", *EVAL)[0] == 0
    code, _, err = equipoise("train", "moved")
    assert code == 1
    assert err.startswith("equipoise: moved: is a run directory: --resume goes on with it")


def test_the_version_is_the_packages(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"equipoise {__version__}\n"

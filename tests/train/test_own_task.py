"""`equipoise eval RUN` is the run's own evaluation of its last checkpoint, and refuses before it loads a model."""

import json
import shutil

import pytest

from equipoise import model_commands
from equipoise.train import Trainer
from equipoise.train.own_task import own_task, run_behind

from .tiny import evaluations, settings

ROWS = [{"question": f"{a}+{b}", "solution": a + b, "hard": b > 4} for a in range(10, 20) for b in range(1, 9)]
COLUMNS = {"prompt": "question", "answer": "solution", "level": "hard"}


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """On a file with columns of its own, a suffix and levels, evaluated in a manner of its own."""
    folder = tmp_path_factory.mktemp("eval")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    Trainer(
        settings(model, folder / "run", task__name=str(folder / "rows.jsonl"), task__columns=COLUMNS, task__suffix="=",
                 rollout__max_tokens=9, rollout__stop=[";"], eval__samples=3, eval__temperature=0.7, eval__per_level=2,
                 eval__every=1, train__steps=1, log__terminal=False)
    ).run()  # fmt: skip
    return folder / "run"


@pytest.mark.parametrize("place", ["", "checkpoints/step-1"])
def test_eval_of_a_run_says_what_its_own_evaluation_said(equipoise, run, place):
    logged = evaluations(run)[-1]
    code, out, err = equipoise("eval", run / place, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {"acc@3", "greedy"} <= found.keys()
    assert found == {name: logged[name] for name in found}
    assert len(found["by_level"]) == 2


def test_it_says_that_it_asks_as_the_run_does(equipoise, run):
    _, out, _ = equipoise("eval", run)
    assert "rows.jsonl, as its run evaluates: 4 held-out prompts" in out


@pytest.mark.parametrize("place", ["averaged", "hub", "checkpoints/best"])
def test_other_weights_of_a_run_are_evaluated_as_it_is(run, tmp_path, place):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / place).mkdir()
    own = own_task(str(tmp_path / "run" / place), None)
    assert (own.task.suffix, own.samples, own.per_level) == ("=", 3, 2)


def test_options_win_over_the_runs(run):
    own = own_task(str(run), None, ["--task.suffix", "=="])
    assert (own.task.suffix, own.task.columns, own.samples, own.stop) == ("==", COLUMNS, 3, (";",))


def test_another_task_takes_nothing_from_the_run(run):
    own = own_task(str(run), "arithmetic")
    assert (own.task.name, own.task.columns, own.task.suffix, own.samples) == ("arithmetic", None, "", 8)
    assert own.run is None


@pytest.mark.parametrize("place", ["", "global_step_2"])
def test_a_run_of_verl_is_evaluated_as_its_launch_says(run, tmp_path, place):
    (tmp_path / "global_step_2" / "actor" / "huggingface").mkdir(parents=True)
    (tmp_path / "config.toml").write_text((run / "config.toml").read_text())
    own = own_task(str(tmp_path / place), None)
    assert (own.task.columns, own.samples, own.temperature, own.per_level) == (COLUMNS, 3, 0.7, 2)


def test_a_model_that_is_no_run_takes_the_defaults(model):
    assert run_behind(model) is None
    own = own_task(str(model), None)
    assert (own.task.name, own.per_level, own.max_tokens) == ("arithmetic", None, 0)


def test_a_reward_file_that_is_gone_does_not_matter(run, model, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    toml = (run / "config.toml").read_text()
    gone = toml.replace("tests.train.reward_functions:ones", "/gone/rewards.py:f")
    assert gone != toml
    (tmp_path / "run" / "config.toml").write_text(gone + "\n[retired]\noption = 1\n")
    assert own_task(str(tmp_path / "run"), None).task.suffix == "="


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--task", "arithmetics"], 'task.name = "arithmetics" is not a task'),
        (["--task", "arithmetic", "--per-level", "1000"], "--per-level 1000: "),
        (["--task.columns", "{prompt = 'nothing'}"], 'task.columns names "nothing"'),
        (["--base", "./nowhere"], "nowhere is not there"),
        (["--limit", "3"], "--limit is for benchmarks"),
    ],
)
def test_what_can_be_refused_is_before_the_model_is_loaded(equipoise, run, monkeypatch, arguments, said):
    monkeypatch.setattr(model_commands, "_policy", lambda *arguments: pytest.fail("the model was loaded"))
    code, out, err = equipoise("eval", run, *arguments)
    assert (code, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1


def test_data_that_changed_are_said(equipoise, run):
    file = run.parent / "rows.jsonl"
    whole = file.read_text()
    try:
        file.write_text(whole + '{"question": "1+1", "solution": 2, "hard": false}\n')
        code, _, err = equipoise("eval", run)
        assert code == 0
        assert err == f"equipoise: note: {file} (task.name) is not what it was when the run began: its held-out " \
            "prompts may be others\n"  # fmt: skip
    finally:
        file.write_text(whole)

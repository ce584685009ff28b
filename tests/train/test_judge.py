"""Held-out accuracy is the accuracy that training goes by: the run's own functions judge, in the run and in `eval`."""

import json

import pytest
import torch

import equipoise as eq
from equipoise.config import RewardConfig
from equipoise.tasks import Prompt
from equipoise.train import RunFolder, Trainer
from equipoise.train.score import Scorer
from equipoise.verifiers import Verdict

from .tiny import REWARDS, evaluations, settings

PROMPT = Prompt("1", "1+1=", "2")
QUIET = {"log__terminal": False, "train__steps": 1, "eval__every": 1}


class Digits:
    """A task that calls a response right where it ends with the answer."""

    def grade(self, prompt, response):
        return Verdict("correct" if response.endswith(prompt.answer) else "wrong", answer=response[-1:])

    def prompt(self, i):
        return PROMPT


def scorer(*functions, weights=None, **options):
    given = {f"python:{k}": f for k, f in enumerate(functions) if callable(f)}
    names = tuple(f if isinstance(f, str) else f"python:{k}" for k, f in enumerate(functions))
    config = RewardConfig(functions=names, weights=weights or (1.0,) * len(names))
    return Scorer(config, Digits(), given=given, **options)


def accuracies(made, *texts):
    return made.settle([PROMPT] * len(texts), [made.ask(PROMPT, text) for text in texts]).accuracy.tolist()


def half(prompt, response, row):
    return 0.5


def right(prompt, response, row):
    return Verdict("correct" if "7" in response else "wrong")


def test_shapes_say_nothing_of_an_answer_wherever_they_stand():
    boxed = "\\boxed{3}"
    assert accuracies(scorer("boxed", "task"), "2", boxed) == [1, 0]
    assert accuracies(scorer("boxed", half), "2", boxed) == [0.5, 0.5]
    assert accuracies(scorer("tags", "boxed"), boxed) == [0]  # of shapes alone the first decides
    assert scorer("boxed", "task").name == "task"


def test_the_first_verdict_decides_and_numbers_where_there_is_none():
    assert accuracies(scorer(half, right), "7", "2") == [1, 0]
    assert accuracies(scorer(half, half, weights=(1.0, 0.5)), "7") == [0.75]
    assert accuracies(scorer(half, rate=lambda reward: (reward + 1) / 2), "7") == [0.75]
    assert scorer("task", half).name == "task"
    assert scorer(half, "boxed", right).name == "python:0 + python:2"


def test_a_number_is_clipped_for_an_evaluation_and_not_for_training():
    made = scorer(lambda prompt, response, row: float(response))
    assert accuracies(made, "3", "-1", "0.5") == [3, -1, 0.5]
    judged = made.judge([PROMPT] * 3, ["3", "-1", "0.5"])
    assert [(one.outcome, one.reward) for one in judged] == [(1, 3), (0, -1), (0.5, 0.5)]
    assert {one.verdict for one in judged} == {"scored"}


def test_partial_credit_is_no_right_answer_to_an_evaluation():
    made = scorer(lambda prompt, response, row: Verdict("wrong", value=0.7, answer="7"))
    assert accuracies(made, "7") == [0.7]
    (judged,) = made.judge([PROMPT], ["7"])
    assert (judged.outcome, judged.reward, judged.answer) == (0.0, 0.7, "7")


def test_overlong_shaping_is_no_accuracy_of_numbers_either(model, tmp_path):
    options = {"reward__overlong_buffer": 8, "reward__functions": [f"{REWARDS}:same"], **QUIET}
    trainer = Trainer(settings(model, tmp_path / "run", **options))
    batch = trainer.collector.collect(1)
    trainer.folder.leave()
    assert batch.total.unique().numel() > 1
    assert set(batch.accuracy.tolist()) == {0.5}


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """Rewards that the task's verifier, which finds no answer in any response, knows nothing of."""
    out = tmp_path_factory.mktemp("judge") / "run"
    Trainer(settings(model, out, reward__functions=[f"{REWARDS}:spread"], **QUIET)).run()
    return out


def test_a_runs_evaluations_are_judged_by_its_own_functions(run):
    last = evaluations(run)[-1]
    assert last["judge"] == f"{REWARDS}:spread"
    assert last["acc@2"] == pytest.approx(last["reward"])
    assert 0 < last["acc@2"] <= last["best@2"] <= 1


def test_eval_of_a_run_asks_the_runs_judge(equipoise, run):
    code, out, err = equipoise("eval", run, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    logged = evaluations(run)[-1]
    assert {"judge", "reward", "acc@2"} <= found.keys()
    assert found == {name: logged[name] for name in found}
    _, out, _ = equipoise("eval", run)
    assert f"held-out prompts, judged by {REWARDS}:spread" in out


def test_rows_without_answers_have_no_other_judge(equipoise, model, tmp_path):
    rows = "".join(json.dumps({"prompt": f"{a}+{b}="}) + "\n" for a in range(10, 20) for b in range(1, 9))
    (tmp_path / "prompts.jsonl").write_text(rows)
    data = {"task__name": str(tmp_path / "prompts.jsonl"), "reward__functions": [f"{REWARDS}:spread"]}
    Trainer(settings(model, tmp_path / "run", **data, **QUIET)).run()
    config = RunFolder(tmp_path / "run").config
    config.write_text(config.read_text().replace(f"{REWARDS}:spread", "/gone/rewards.py:f"))
    code, out, err = equipoise("eval", tmp_path / "run")
    assert (code, out) == (1, "")
    assert 'reward.functions: "/gone/rewards.py:f" cannot be imported' in err
    assert err.endswith("; the rows of the task have no answers that a verifier could judge by: restore the function\n")
    assert err.count("\n") == 1


def test_eval_says_who_judges_where_the_runs_function_is_gone(equipoise, run):
    config = RunFolder(run).config
    whole = config.read_text()
    try:
        config.write_text(whole.replace(f"{REWARDS}:spread", "/gone/rewards.py:f"))
        code, out, err = equipoise("eval", run)
        assert code == 0
        assert "judged by the task's verifier; " in out
        assert err.startswith("equipoise: note: reward.functions: ")
        assert "one of task" not in err
        assert err.endswith("; judged by the task's verifier instead, which may say otherwise\n")
        assert err.count("\n") == 1
        config.write_text(whole.replace(f"{REWARDS}:spread", "python:right"))
        _, _, err = equipoise("eval", run)
        assert '"python:right": was given to the run by a Python program, which can call trainer.evaluate()' in err
        config.write_text(whole.replace(f'"{REWARDS}:spread"', '"task", "python:right"').replace("[1.0]", "[1.0, 1.0]"))
        _, out, err = equipoise("eval", run)
        assert err == ""  # the task's verdict decided in the run too
        assert "judged by the task's verifier" in out
    finally:
        config.write_text(whole)


def test_data_of_a_program_are_not_a_mistake_in_the_task(equipoise, run):
    config = RunFolder(run).config
    whole = config.read_text()
    try:
        config.write_text(whole.replace('name = "arithmetic"', 'name = "python:dataset"'))
        code, _, err = equipoise("eval", run)
        assert code == 1
        assert 'task.name = "python:dataset": was given to the run by a Python program, which can call' in err
    finally:
        config.write_text(whole)


def test_a_callable_judges_the_runs_evaluations_and_those_of_its_trainer(model, tmp_path, capsys):
    def even(prompt, response, row):
        return float(len(response) % 2 == 0)

    config = settings(model, tmp_path / "run", **QUIET | {"log__terminal": True})
    trainer = eq.Trainer(config, rewards=even)
    result = trainer.train().evaluation
    said = capsys.readouterr().out
    assert "evaluated every 1 by python:even" in said
    assert "equipoise eval" not in said  # the command line has no callable
    assert result["judge"] == "python:even"
    assert result["acc@2"] == result["reward"]
    assert trainer.evaluate()["acc@2"] == result["acc@2"]


def test_a_function_that_fails_in_an_evaluation_is_told(model, tmp_path, capsys):
    options = {"reward__functions": [f"{REWARDS}:fails_on_odd_lengths"], **QUIET, "log__terminal": True}
    trainer = Trainer(settings(model, tmp_path / "run", **options))
    trainer.journal.open_terminal(0)
    trainer._evaluate()
    trainer.folder.leave()
    kept = [json.loads(line) for line in (tmp_path / "run" / "troubles.jsonl").read_text().splitlines()]
    assert {(one["step"], one["verdict"]) for one in kept} == {(0, "crashed")}
    assert "ConnectionError: the reward server is gone (see " in capsys.readouterr().out


def test_scores_of_no_responses(model):
    assert scorer("task", half, weights=(1.0, 1.0)).settle([], []).accuracy.shape == torch.Size([0])

"""Reference answers are checked when data is opened: a bad one is named by its row, left out, or refused."""

import json

import pytest

from equipoise.tasks import TaskError, open_task

ROWS = [("a?", "5"), ("b?", r"\frac{"), ("c?", "x^2"), ("d?", "t(0,4]"), ("e?", "Evelyn"), ("f?", "7"), ("g?", "8")]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"problem": p, "answer": a}) + "\n" for p, a in ROWS))
    return path


def test_rows_that_no_verifier_can_use_are_left_out_and_named(file):
    task = open_task(str(file), 0)
    assert task.summary.dropped == {"not verifiable": 2}
    assert f"{file}, line 2: bad_gold" in str(task.summary)
    assert f"{file}, line 4: bad_gold" in str(task.summary)
    assert task.summary.verifiable == pytest.approx(5 / 7)
    assert task.summary.train + task.summary.held_out == 5
    seen = {task.prompt(i).answer for i in range(50)} | {p.answer for p in task.evaluation()}
    assert seen == {"5", "x^2", "Evelyn", "7", "8"}


def test_strict_refuses_the_first(file):
    with pytest.raises(TaskError, match=r"line 2: bad_gold: .* \(task\.strict refuses it\)"):
        open_task(str(file), 0, strict=True)


def test_data_without_a_usable_answer_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "a?", "answer": "\\\\frac{"}\n')
    with pytest.raises(TaskError, match="not verifiable"):
        open_task(str(path), 0)

"""Tasks from files and from reasoning-gym, as a run opens them."""

import json
import sys
import time
from collections import Counter

import pytest

from equipoise.tasks import Arithmetic, TaskError, open_task
from equipoise.tasks.dataset import Dataset
from equipoise.tasks.gym import Gym

ROWS = [{"prompt": f"{a}+{b}=", "answer": a + b, "level": a % 3} for a in range(10, 20) for b in range(1, 9)]


def write(path, rows, **how):
    path.write_text("".join(json.dumps(row, **how) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def dataset(tmp_path):
    return Dataset(write(tmp_path / "rows.jsonl", ROWS), seed=1)


def test_names_open_tasks(tmp_path):
    assert open_task("arithmetic", 3) == Arithmetic(seed=3)
    assert isinstance(open_task(str(write(tmp_path / "x.jsonl", ROWS)), 3), Dataset)
    with pytest.raises(TaskError, match="is not a task: arithmetic, gym:NAME"):
        open_task("math", 0)


def test_an_epoch_shows_every_training_row_once_in_a_new_order(dataset):
    n = len(dataset.train)
    epochs = [[dataset.prompt(e * n + i).text for i in range(n)] for e in range(3)]
    assert all(Counter(e) == Counter(p.text for p in dataset.train) for e in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_stream_depends_on_seed_and_index_alone(dataset, tmp_path):
    jumping = [300, 0, 70, 1, 299, 69]
    assert [dataset.prompt(i) for i in jumping] == [Dataset(dataset.name, seed=1).prompt(i) for i in jumping]
    assert [Dataset(dataset.name, seed=2).prompt(i) for i in range(20)] != [dataset.prompt(i) for i in range(20)]


def test_held_out_rows_are_never_trained_on(dataset):
    held_out = {p.text for p in dataset.evaluation()}
    assert 2 <= len(held_out) <= 25
    assert held_out.isdisjoint(p.text for p in dataset.train)
    assert len(held_out) + len(dataset.train) == len(ROWS)
    assert held_out == {p.text for p in Dataset(dataset.name, seed=9).evaluation()}


def test_per_level_counts_per_level(dataset):
    everything, one = dataset.evaluation(), dataset.evaluation(1)
    levels = {p.level for p in everything}
    assert levels <= {"0", "1", "2"}
    assert Counter(p.level for p in one) == dict.fromkeys(levels, 1)
    assert all(next(q for q in everything if q.level == p.level) == p for p in one)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_tiny_file_serves_as_it_is(tmp_path, count):
    for shift in range(20):
        rows = [{"prompt": f"{shift}+{k}=", "answer": shift + k} for k in range(count)]
        task = Dataset(write(tmp_path / "tiny.jsonl", rows))
        assert task.prompt(0).text in {r["prompt"] for r in rows}
        assert task.evaluation()


def test_a_row_may_hold_any_line_separator_but_the_newline(tmp_path):
    rows = [{"prompt": f"one\u2028two\x85three\r\nfour {k}", "answer": "a\u2029blue"} for k in range(30)]
    task = Dataset(write(tmp_path / "rows.jsonl", rows, ensure_ascii=False))
    assert len(task.train) + len(task.held_out) == 30
    assert task.prompt(0).text.startswith("one\u2028two\x85three\r\nfour")


def test_a_large_file_is_not_shuffled_again_for_every_prompt(tmp_path):
    task = Dataset(write(tmp_path / "large.jsonl", [{"prompt": f"{k}=", "answer": k} for k in range(10_000)]))
    begin = time.process_time()
    for i in range(900):
        task.prompt(i)
    assert time.process_time() - begin < 2.0  # 900 shuffles of 8,700 rows take more than 3 s


@pytest.mark.parametrize(
    ("response", "answer", "kind"),
    [
        ("so #### 12", "12", "correct"),
        ("Answer: 1,200.", "1200", "correct"),
        ("first 3, then 4", "4", "unparsed"),
        ("Answer: 4.50", "4.5", "correct"),
        ("Answer: Paris", "Paris", "correct"),
        ("Answer: 3\nAnswer: 4", "3", "wrong"),
        ("#### 13", "12", "wrong"),
        ("no idea", "12", "unparsed"),
        ("Answer: -7", "-7", "correct"),
    ],
)
def test_final_answers(tmp_path, response, answer, kind):
    task = Dataset(write(tmp_path / "r.jsonl", [{"prompt": "p", "answer": answer}]))
    assert task.grade(task.prompt(0), response).result().kind == kind


@pytest.fixture(scope="module")
def gym():
    pytest.importorskip("reasoning_gym")
    return Gym("chain_sum", seed=5)


def test_a_gym_stream_depends_on_seed_and_index_alone(gym):
    assert [gym.prompt(i) for i in (5, 0, 5)] == [Gym("chain_sum", seed=5).prompt(i) for i in (5, 0, 5)]
    assert gym.prompt(0) != gym.prompt(1)
    assert gym.prompt(0) != Gym("chain_sum", seed=6).prompt(0)


@pytest.mark.usefixtures("sandboxed")
def test_a_gym_grades_its_own_answers(gym):
    for i in range(20):
        prompt = gym.prompt(i)
        assert gym.grade(prompt, f"Let me see. Answer: {prompt.answer}").result().kind == "correct"
        assert gym.grade(prompt, prompt.answer).result().value == 1.0
        assert gym.grade(prompt, "Answer: 123456789").result().kind == "wrong"
        assert gym.grade(prompt, "").kind == "unparsed"


def test_a_gym_holds_out_the_same_prompts_for_every_seed(gym):
    held_out = gym.evaluation(8)
    assert [p.text for p in held_out] == [p.text for p in Gym("chain_sum", seed=6).evaluation(8)]
    assert len({p.id for p in held_out}) == 8
    assert len(gym.evaluation()) == 256
    assert {p.text for p in held_out}.isdisjoint(gym.prompt(i).text for i in range(200))


def test_a_training_item_that_is_held_out_is_passed_over(gym, monkeypatch):
    other = Gym("chain_sum", seed=5)
    taken = gym.prompt(3).text
    monkeypatch.setitem(other.__dict__, "_held_out_questions", {taken})
    assert other.prompt(3).text != taken
    assert other.prompt(4) == gym.prompt(4)


@pytest.mark.usefixtures("sandboxed")
def test_a_scorer_that_breaks_on_a_response_does_not_break_the_run():
    """It is the model that wrote the response, and a model writes anything."""
    pytest.importorskip("reasoning_gym")
    other = Gym("boxnet", seed=5)
    verdict = other.grade(other.prompt(0), "Answer: [[1]]").result()
    assert verdict.kind == "unparsed"
    assert "AttributeError" in verdict.reason


@pytest.mark.parametrize("name", ["chain_som", "composite", ""])
def test_a_gym_task_that_cannot_be_opened_is_one_sentence(name):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(TaskError, match=f"gym:{name}"):
        open_task(f"gym:{name}", 0)


def test_a_missing_gym_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(TaskError, match=r"needs reasoning-gym: pip install 'equipoise\[gym\]'"):
        open_task("gym:chain_sum", 0)

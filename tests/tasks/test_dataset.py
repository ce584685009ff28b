"""Data sets: a stateless stream whatever is left out, an honest account, and no training on what is held out."""

import hashlib
import json
import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise import verifiers
from equipoise.tasks import Dataset, TaskError, dataset, open_task

from .rows_of import jsonl, parquet, sums


@pytest.fixture(params=["whole", "windows"])
def mode(request, monkeypatch):
    """The same tests for data read whole and by windows; small limits stand for large data."""
    if request.param == "windows":
        monkeypatch.setattr(dataset, "WHOLE_ROWS", 100)
        monkeypatch.setattr(dataset, "WINDOW_ROWS", 128)
    return request.param


def faulty(count):
    """Rows of which every seventh has a fault and every eleventh repeats another; the rest are good."""
    rows = sums(count)
    faults = [{"answer": 1}, {"problem": "", "answer": 1}, {"problem": "p"}, {"problem": "n", "answer": math.nan}]
    for k in range(0, count, 7):
        rows[k] = faults[k // 7 % 4]
    for k in range(5, count - 1, 11):
        rows[k] = rows[k + 1]
    return rows


def held_out(text):
    return hashlib.sha256(" ".join(text.split()).encode()).digest()[0] % 8 == 0


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
def test_the_stream_is_a_function_of_seed_and_position(tmp_path, mode, kind):
    write = parquet if kind == "parquet" else jsonl
    file = write(tmp_path / f"rows.{kind}", faulty(300))
    assert Dataset(file).whole == (mode == "whole")
    forwards = [Dataset(file, seed=3).prompt(i) for i in range(5)]
    task = Dataset(file, seed=3)
    stream = [task.prompt(i) for i in range(700)]
    assert stream[:5] == forwards
    jumping = Dataset(file, seed=3)
    for i in (699, 0, 300, 299, 3, 500):
        assert jumping.prompt(i) == stream[i]
    assert [Dataset(file, seed=4).prompt(i) for i in range(5)] != forwards
    with pytest.raises(ValueError, match="starts at 0"):
        task.prompt(-1)


@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(start=st.integers(0, 10**9), seed=st.integers(0, 2**31))
def test_resuming_anywhere_is_exact(tmp_path, mode, start, seed):
    file = jsonl(tmp_path / "rows.jsonl", faulty(400))
    begun = Dataset(file, seed=seed)
    whole = [begun.prompt(i) for i in range(start, start + 6)]
    assert [Dataset(file, seed=seed).prompt(i) for i in range(start, start + 6)] == whole


def test_another_process_gives_the_same_prompts(tmp_path, mode):
    file = parquet(
        tmp_path / "rows.parquet", [r for r in faulty(600) if "problem" in r and r.get("answer") == r.get("answer")]
    )
    places = [0, 5, 499, 12_345]
    code = (
        "import sys; from equipoise.tasks import dataset, Dataset\n"
        f"dataset.WHOLE_ROWS, dataset.WINDOW_ROWS = {dataset.WHOLE_ROWS}, {dataset.WINDOW_ROWS}\n"
        f"task = Dataset({str(file)!r}, seed=5)\n"
        f"print([task.prompt(i).id for i in {places}], [p.id for p in task.evaluation(9)])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "77"})  # fmt: skip
    task = Dataset(file, seed=5)
    assert said.stdout.strip() == f"{[task.prompt(i).id for i in places]} {[p.id for p in task.evaluation(9)]}"


def test_an_epoch_of_data_read_whole_is_every_training_row_once(tmp_path):
    task = Dataset(jsonl(tmp_path / "rows.jsonl", faulty(300)))
    n = len(task.train)
    epochs = [[task.prompt(e * n + k).id for k in range(n)] for e in range(3)]
    assert all(Counter(epoch) == Counter(p.id for p in task.train) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_an_epoch_of_windows_shows_nearly_every_row_and_repeats_none_nearby(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "WHOLE_ROWS", 100)
    monkeypatch.setattr(dataset, "WINDOW_ROWS", 256)
    rows = sums(4000)
    task = Dataset(jsonl(tmp_path / "rows.jsonl", rows))
    training = [r["problem"] for r in rows if not held_out(r["problem"])]
    epoch = [task.prompt(i).text for i in range(task._windows.slots)]
    assert set(epoch) <= set(training)
    assert len(set(epoch)) > 0.95 * len(training)
    last = {}
    for i, text in enumerate(epoch):
        assert i - last.get(text, -math.inf) > 100
        last[text] = i


def test_a_window_of_faults_hands_on_and_moves_nothing_else(tmp_path, monkeypatch):
    """The prompts at other positions are the same as in data without the faults."""
    monkeypatch.setattr(dataset, "WHOLE_ROWS", 10)
    monkeypatch.setattr(dataset, "WINDOW_ROWS", 8)
    monkeypatch.setattr("equipoise.tasks.order.MIXED", (1, 1))
    rows = sums(200)
    good = Dataset(jsonl(tmp_path / "good.jsonl", rows), held_out=jsonl(tmp_path / "test.jsonl", sums(3, 900)))
    spans = good._windows.spans(0, 2)
    for start, stop in spans:
        rows[start:stop] = [{"problem": "", "answer": 0}] * (stop - start)
    bad = Dataset(jsonl(tmp_path / "bad.jsonl", rows), held_out=tmp_path / "test.jsonl")
    same = [good.prompt(i).text == bad.prompt(i).text for i in range(200)]
    assert [k for k, s in enumerate(same) if not s] == list(range(16, 24))
    assert {bad.prompt(i).text for i in range(16, 24)} == {bad.prompt(i).text for i in range(24, 32)}


def test_nothing_held_out_is_trained_on_and_nothing_else_is_lost(tmp_path, mode):
    rows = sums(600)
    task = Dataset(jsonl(tmp_path / "rows.jsonl", rows), seed=1)
    trained = {task.prompt(i).text for i in range(3000)}
    evaluated = {p.text for p in task.evaluation()}
    assert not trained & evaluated
    assert trained == {r["problem"] for r in rows if not held_out(r["problem"])}
    assert evaluated <= {r["problem"] for r in rows if held_out(r["problem"])}
    assert len(evaluated) == (sum(held_out(r["problem"]) for r in rows) if mode == "whole" else len(evaluated))
    assert [p.id for p in task.evaluation()] == [p.id for p in Dataset(task.name, seed=9).evaluation()]
    assert len(evaluated) > 8


def test_a_held_out_file_is_evaluated_whole_and_left_out_of_training(tmp_path, mode):
    test = jsonl(tmp_path / "test.jsonl", sums(40))
    task = Dataset(jsonl(tmp_path / "train.jsonl", sums(400)), held_out=test)
    assert [p.text for p in task.evaluation()] == [r["problem"] for r in sums(40)]
    assert {task.prompt(i).text for i in range(2000)} == {r["problem"] for r in sums(360, 40)}
    assert task.summary.dropped["held-out file"] == 40
    alone = Dataset(test, held_out=test)
    assert len(alone.evaluation()) == 40
    with pytest.raises(TaskError, match="no row of 40 is left to train on"):
        alone.prompt(0)


def test_rows_that_are_both_trained_on_and_evaluated_are_said_to_be(tmp_path):
    task = Dataset(jsonl(tmp_path / "one.jsonl", sums(1)))
    assert [p.text for p in task.evaluation()] == [task.prompt(0).text]
    said = str(task.summary)
    assert "one.jsonl: 1 row (" in said
    assert "too few to part: all rows are trained on and evaluated" in said
    parted = Dataset(jsonl(tmp_path / "many.jsonl", sums(100)))
    assert "too few to part" not in str(parted.summary)
    given = Dataset(jsonl(tmp_path / "train.jsonl", sums(2, 50)), held_out=tmp_path / "one.jsonl")
    assert "too few to part" not in str(given.summary)


def test_an_evaluation_file_with_a_hole_is_refused(tmp_path):
    file = jsonl(tmp_path / "rows.jsonl", sums(30))
    hole = jsonl(tmp_path / "test.jsonl", [*sums(3, 100), {"problem": "x", "answer": ""}])
    with pytest.raises(
        TaskError, match=r'test\.jsonl, line 4: "answer" is empty: every row of an evaluation file counts'
    ):
        Dataset(file, held_out=hole)


def test_rows_without_answers_are_read_where_nobody_grades(tmp_path):
    file = jsonl(tmp_path / "rows.jsonl", [{"prompt": f"Say {i}.", "level": i % 2, "tone": "dry"} for i in range(30)])
    task = open_task(str(file), 0, graded=False)
    prompt = task.prompt(0)
    assert (prompt.answer, prompt.meta["tone"], prompt.meta["verifier"]) == ("", "dry", "none")
    assert task.grade(prompt, "3").kind == "bad_gold"
    for summary in (task.summary, task.inspect()):
        assert summary.verifiable is None
        assert summary.train + summary.held_out == 30
        assert "answers can be verified" not in str(summary)


BAD = {
    "no prompt": ({"answer": 1}, 'there is no "problem"'),
    "null": ({"problem": None, "answer": 1}, '"problem" is null'),
    "empty prompt": ({"problem": " \n", "answer": 1, "id": "e"}, 'prompt e: "problem" is empty'),
    "no answer": ({"problem": "p"}, 'there is no "answer"'),
    "empty answer": ({"problem": "p", "answer": " "}, '"answer" is empty'),
    "list answer": ({"problem": "p", "answer": [1]}, '"answer" is [1]: must be a text or a number'),
    "NaN answer": ({"problem": "p", "answer": math.nan}, '"answer" is nan: must be a finite number'),
    "NaN reward": ({"problem": "p", "answer": 1, "reward": math.nan}, '"reward" is nan: must be a finite number'),
    "long": ({"problem": "x" * 10_000_000, "answer": 1}, "of 10,000,000 characters: must be at most 100,000"),
    "surrogate": ({"problem": "a\ud800", "answer": 1}, '"problem" has a lone surrogate at place 1'),
    "number": ({"problem": 7, "answer": 1}, '"problem" is 7: must be a text, or messages'),
    "assistant": ({"problem": [{"role": "assistant", "content": "hi"}], "answer": 1}, "must be messages that end"),
    "image": ({"problem": [{"role": "user", "content": [{"type": "image"}]}], "answer": 1}, "must be messages of"),
    "same id": ({"problem": "p", "answer": 1, "id": "a"}, "its id a is that of {file}, line 1"),
    "other answer": ({"problem": "What  is 5 and nothing more?", "answer": 6},
                     "the prompt of {file}, line 6 with another answer, 6 instead of 5"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_data_is_named_counted_and_left_out_or_refused(tmp_path, name):
    row, said = BAD[name]
    rows = sums(40)
    rows[0]["id"] = "a"
    rows.insert(20, row)
    file = jsonl(tmp_path / "rows.jsonl", rows)
    task = Dataset(file)
    ((label, count),) = task.summary.dropped.items()
    (sentence,) = task.summary.examples[label]
    assert count == 1
    assert sentence.startswith(f"{file}, line 21: ")
    assert said.format(file=file) in sentence
    assert f"1 {label}: {sentence}" in str(task.summary)
    assert task.summary.read == 41
    assert task.summary.train + task.summary.held_out == 40
    assert {task.prompt(i).text for i in range(200)} <= {r["problem"] for r in sums(40)}
    with pytest.raises(TaskError) as error:
        Dataset(file, strict=True)
    assert str(error.value) == f"{sentence} (task.strict refuses it)"


def test_bad_bytes_are_left_out_or_refused(tmp_path):
    file = jsonl(tmp_path / "rows.jsonl", sums(40))
    lines = file.read_bytes().split(b"\n")
    lines[7] = lines[7].replace(b"What", b"Wh\xe4t")
    lines[9] = lines[9][:-1]
    file.write_bytes(b"\n".join(lines))
    task = Dataset(file)
    assert task.summary.dropped == {"not UTF-8": 1, "not JSON": 1}
    assert f"{file}, line 8: byte 0xe4" in str(task.summary)
    with pytest.raises(TaskError, match=r"line 8: byte 0xe4 at place \d+ is not UTF-8 \(task.strict refuses it\)"):
        Dataset(file, strict=True)


def test_strict_does_not_mind_what_was_asked_to_be_left_out(tmp_path):
    file = jsonl(tmp_path / "rows.jsonl", [*sums(40), *sums(3)])
    task = Dataset(file, strict=True, max_prompt_tokens=27, count_tokens=lambda prompt: len(prompt.text))
    assert task.summary.dropped == {"duplicate": 3, "too many tokens": 30}
    assert f"{file}, line 41: the prompt of {file}, line 1 again" in str(task.summary)
    assert len(Dataset(file, dedupe=False).train) + len(Dataset(file, dedupe=False).held_out) == 43


def test_tokens_are_counted_on_what_the_model_reads(tmp_path):
    rows = [{"prompt": [{"role": "user", "content": "x" * k}], "label": k} for k in range(1, 31)]
    file = jsonl(tmp_path / "rows.jsonl", rows)
    seen = []
    task = Dataset(
        file, suffix="!!", max_prompt_tokens=12, count_tokens=lambda p: seen.append(p) or len(p.messages[0]["content"])
    )
    assert task.summary.dropped == {"too many tokens": 20}
    assert all(p.text.endswith("!!") for p in seen)
    with pytest.raises(TaskError, match="needs a tokenizer"):
        Dataset(file, max_prompt_tokens=12)


def test_planted_overlaps_are_found(tmp_path, mode):
    planted = "If seven tired sailors row nine leaky boats across the bay in an hour, how long do ten take?"
    rows = sums(300)
    rows[77] = {"problem": f"Think first. {planted} Answer in hours.", "answer": 3}
    rows[191] = {"problem": planted.upper(), "answer": 3}
    bench = jsonl(tmp_path / "bench.jsonl", [*sums(5, 9000), {"problem": planted, "answer": "3"}])
    task = Dataset(jsonl(tmp_path / "rows.jsonl", rows), avoid=[bench])
    summary = task.inspect(golds=False)
    assert summary.dropped == {"evaluation overlap": 2}
    assert f'line 78: "if seven tired sailors row nine leaky boats across the bay in an" of {bench}, problem 6' in str(
        summary
    )
    texts = {task.prompt(i).text for i in range(1500)} | {p.text for p in task.evaluation()}
    assert not any("sailors" in text.lower() for text in texts)


def test_data_of_which_nothing_is_left_says_why(tmp_path, mode):
    rows = sums(150)
    for row in rows[1:]:
        row["answer"] = ""
    rows[0]["problem"] = None
    file = jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(
        TaskError, match=r'"answer" is empty; no row of 150 is left to train on \(\d+ no answer\)'
    ) as error:
        Dataset(file)
    assert "\n" not in str(error.value)


def test_inspect_looks_at_everything_and_writes_what_is_left(tmp_path, mode):
    rows = faulty(500)
    file = jsonl(tmp_path / "rows.jsonl", rows)
    task = Dataset(file)
    before = [task.prompt(i).id for i in range(50)]
    clean = tmp_path / "clean.jsonl"
    summary = task.inspect(golds=False, write=clean)
    good = {row["problem"] for row in rows if isinstance(row.get("answer"), int) and row.get("problem")}
    assert summary.read == summary.rows == 500
    assert summary.train + summary.held_out == len(good)
    assert summary.dropped.total() == 500 - len(good)
    assert {json.loads(line)["problem"] for line in clean.read_text().splitlines()} == good
    assert [task.prompt(i).id for i in range(50)] == before
    assert Dataset(clean).inspect(golds=False).dropped.total() == 0
    with pytest.raises(TaskError, match=r"clean\.jsonl: cannot be written: File exists"):
        task.inspect(golds=False, write=clean)


def test_the_account_of_windows_counts_no_row_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "WHOLE_ROWS", 100)
    monkeypatch.setattr(dataset, "WINDOW_ROWS", 128)
    task = Dataset(jsonl(tmp_path / "rows.jsonl", faulty(700)))
    assert 0 < task.summary.read <= 128
    assert "read so far" in str(task.summary)
    for i in (0, 5000, 300, 100, 0, 600, 200, 10_000, 400, 500):
        task.prompt(i)
    assert task.summary.read <= 700
    assert task.summary.read == task.summary.train + task.summary.held_out + task.summary.dropped.total()


def test_inspect_says_which_answers_no_verifier_can_read(tmp_path, monkeypatch):
    rows = [*sums(10), {"problem": "What?", "answer": "(("}]
    file = jsonl(tmp_path / "rows.jsonl", rows)
    monkeypatch.setattr(
        verifiers, "check_golds", lambda golds: ["cannot be parsed" if g == "((" else None for g in golds]
    )
    summary = Dataset(file).inspect()
    assert summary.verifiable == pytest.approx(10 / 11)
    assert f"{file}, line 11: cannot be parsed" in str(summary)
    assert "90.9% of the answers can be verified" in str(summary)


def test_verifiers_get_the_response_and_the_reference(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(verifiers, "submit_math", lambda *given, **options: asked.append(("math", *given, options)))
    monkeypatch.setattr(verifiers, "submit_code", lambda response, tests: asked.append(("code", response, tests)))
    task = Dataset(jsonl(tmp_path / "math.jsonl", [{"problem": "6*7?", "answer": "42"}]))
    task.grade(task.prompt(0), r"\boxed{42}")
    tests = {"test_list": ["assert f() == 1"]}
    task = Dataset(jsonl(tmp_path / "code.jsonl", [{"text": "f gives 1.", **tests}]))
    task.grade(task.prompt(0), "def f(): return 1")
    options = {"prompt": "6*7?", "form": "any", "answer_in": "auto", "rules": "strict"}
    assert asked == [("math", r"\boxed{42}", "42", options), ("code", "def f(): return 1", tests)]


def test_real_verifiers_grade_what_data_sets_ask(tmp_path):
    task = Dataset(jsonl(tmp_path / "math.jsonl", [{"problem": "Half?", "answer": r"\frac{1}{2}"}]))
    kinds = [task.grade(task.prompt(0), r).result().kind for r in (r"\boxed{0.5}", r"\boxed{\frac{2}{3}}")]
    assert kinds == ["correct", "wrong"]


def test_names_open_data_sets(tmp_path):
    parquet(tmp_path / "rows.parquet", sums(30))
    for name in (tmp_path, tmp_path / "*.parquet", tmp_path / "rows.parquet"):
        assert isinstance(open_task(str(name), 0, max_prompt_chars=50), Dataset)
    with pytest.raises(
        TaskError, match=r'task\.name = "math" is not a task: arithmetic, gym:NAME, hub:OWNER/NAME, or a'
    ):
        open_task("math", 0)
    with pytest.raises(TaskError, match=r'"arithmetics" is not a task; did you mean "arithmetic"\? \(or gym:NAME'):
        open_task("arithmetics", 0)


def test_a_csv_file_is_refused_with_the_line_that_turns_it_into_a_task(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sums.csv").write_text("prompt,answer\n" + "".join(f"{k} + 1 =,{k + 1}\n" for k in range(20)))
    with pytest.raises(TaskError) as error:
        open_task("sums.csv", 0)
    (code,) = re.findall(r'; turn it into one: python -c "(.*)"$', str(error.value))
    exec(code)
    assert len(open_task("sums.parquet", 0).train) > 0


def test_a_json_file_is_refused_with_the_line_that_turns_it_into_a_task(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("sums.json").write_text(json.dumps(sums(20)))
    with pytest.raises(TaskError) as error:
        open_task("sums.json", 0)
    (code,) = re.findall(r'; turn a list of rows into one: python -c "(.*)" > sums.jsonl$', str(error.value))
    exec(code, {})
    Path("sums.jsonl").write_text(capsys.readouterr().out)
    assert len(open_task("sums.jsonl", 0).train) > 0


def test_the_summary_names_the_file_that_is_held_out(tmp_path):
    rows, test = tmp_path / "rows.jsonl", tmp_path / "test.jsonl"
    jsonl(rows, sums(20))
    jsonl(test, sums(5, 20))
    said = str(Dataset(rows, held_out=test).inspect())
    assert f"20 to train on, 0 left out; 5 held out in {test}" in said
    assert "0 held out" not in said


def test_ids_of_several_files_do_not_collide(tmp_path):
    for k in range(2):
        jsonl(tmp_path / f"{k}.jsonl", [{"id": n, **row} for n, row in enumerate(sums(20, 20 * k))])
    task = Dataset(tmp_path)
    assert task.summary.dropped.total() == 0
    assert len({p.id for p in task.train + task.held_out}) == 40


def test_large_rows_make_small_windows(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(dataset, "WINDOW_BYTES", 500)
    task = Dataset(jsonl(tmp_path / "rows.jsonl", sums(100)))
    assert not task.whole
    assert task._windows.window == 500 // (task._rows.size // 100)
    held = {r["problem"] for r in sums(100) if held_out(r["problem"])}
    assert {task.prompt(i).text for i in range(2000)} == {r["problem"] for r in sums(100)} - held
    assert {p.text for p in task.evaluation()} <= held
    assert task.evaluation()

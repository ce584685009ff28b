"""Grading again: no sampling, what changed is said, and nothing is lost."""

import json

import pytest

from equipoise.evaluate import EvaluationError, regrade
from equipoise.evaluate.benchmarks import Benchmark
from equipoise.evaluate.folder import Folder
from equipoise.evaluate.suite import write_run
from equipoise.verifiers import Verdict
from equipoise.verifiers.grade import _done

from .fakes import Writer
from .test_suite import contents, digit, rows_of, run


def repair(data, old, new):
    file = data / "gsm8k.jsonl"
    file.write_text(file.read_text().replace(f"#### {old}", f"#### {new}"))


def test_nothing_changes_where_nothing_is_different(data, tmp_path):
    run(data, tmp_path / "out")
    before = contents(tmp_path / "out")
    report = regrade(tmp_path / "out")
    assert {name: (about["responses"], about["changed"]) for name, about in report.items()} == {
        "gsm8k": (24, 0), "math500": (16, 0),
    }  # fmt: skip
    assert contents(tmp_path / "out") == before


def test_a_repaired_reference_changes_the_verdicts_it_should(data, tmp_path):
    run(data, tmp_path / "out")
    repair(data, 5, 106)
    report = regrade(tmp_path / "out")
    about = report["gsm8k"]
    assert about["changed"] == 3
    assert about["moves"] == {"correct → wrong": 3}
    assert about["examples"][0] == {
        "problem": "6", "sample": 0, "was": "correct", "now": "wrong", "answer": "5", "reference": "106",
        "reason": "answered 5, expected 106",
    }  # fmt: skip
    assert about["before"]["acc@4"]["value"] == pytest.approx(12 / 24)
    assert about["after"]["acc@4"]["value"] == pytest.approx(9 / 24)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["benchmarks"]["gsm8k"] == about["after"]
    assert report["math500"]["changed"] == 0


def test_after_regrading_the_evaluation_goes_on_with_the_new_references(data, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(data, tmp_path / "out", Writer(digit, fail_at=4))
    with pytest.raises(EvaluationError, match=r"chunk-00001\.parquet: is missing: the evaluation is not finished"):
        regrade(tmp_path / "out")
    run(data, tmp_path / "out")
    repair(data, 5, 106)
    regrade(tmp_path / "out")
    again = Writer(digit)
    run(data, tmp_path / "out", again)
    assert again.asked == 0


def test_files_that_moved_are_found_where_data_says(data, tmp_path):
    run(data, tmp_path / "out")
    data.rename(tmp_path / "moved")
    with pytest.raises(EvaluationError, match=r"gsm8k: its problems were in .*gsm8k\.jsonl, which is gone"):
        regrade(tmp_path / "out")
    assert regrade(tmp_path / "out", tmp_path / "moved")["gsm8k"]["changed"] == 0


def test_other_problems_are_refused(data, tmp_path):
    run(data, tmp_path / "out")
    file = data / "gsm8k.jsonl"
    file.write_text(file.read_text().replace("How many", "How much"))
    with pytest.raises(EvaluationError, match=r"gsm8k: the problems in .* are not those that were sampled"):
        regrade(tmp_path / "out")


def test_a_machine_that_cannot_grade_changes_nothing(data, tmp_path, monkeypatch):
    run(data, tmp_path / "out")
    before = contents(tmp_path / "out")
    monkeypatch.setattr(Benchmark, "grade", lambda *rest: _done(Verdict("unavailable", "no sandbox here")))
    with pytest.raises(EvaluationError, match="gsm8k: cannot be graded on this machine: no sandbox here"):
        regrade(tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_responses_stay_as_they_were(data, tmp_path):
    run(data, tmp_path / "out")
    before = rows_of(tmp_path / "out", "gsm8k")
    repair(data, 5, 106)
    regrade(tmp_path / "out")
    after = rows_of(tmp_path / "out", "gsm8k")
    kept = ("prompt_id", "sample", "response", "length", "finish")
    assert [[r[k] for k in kept] for r in after] == [[r[k] for k in kept] for r in before]


def test_the_checkpoints_of_a_run_are_regraded_and_their_peak_made_anew(data, tmp_path):
    results = {step: run(data, tmp_path / "evaluation" / f"step-{step}") for step in (0, 10)}
    write_run(Folder(tmp_path / "evaluation"), results)
    repair(data, 5, 106)
    report = regrade(tmp_path / "evaluation")
    assert set(report) == {f"step {step}: {name}" for step in (0, 10) for name in ("gsm8k", "math500")}
    over = json.loads((tmp_path / "evaluation" / "result.json").read_text())
    assert over["benchmarks"]["gsm8k"]["acc@4"]["peak"] == pytest.approx(9 / 24)


def test_a_folder_without_an_evaluation_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(EvaluationError, match="holds no evaluation"):
            regrade(folder)

import json
from pathlib import Path

import pytest

from equipoise.report import ReportError, write
from equipoise.report.runs import MOST_APART, MOST_RUNS, find, is_run, names, read, signature
from equipoise.report.summary import held_out_metrics
from tests.report.folders import make_run


def log(path, *lines):
    path.mkdir(exist_ok=True)
    (path / "metrics.jsonl").write_text("".join(lines))
    return read(path, "run")


def test_a_torn_last_line_is_not_there_yet(tmp_path):
    whole = [json.dumps({"step": i, "x": i / 10}) + "\n" for i in (1, 2, 3)]
    for cut in range(len(whole[2])):
        run = log(tmp_path / "run", *whole[:2], whole[2][:cut])
        assert run.steps == [1, 2]
        assert not any("metrics" in note for note in run.notes)
    assert log(tmp_path / "run", *whole).metrics["x"] == [0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    "line", ["{", "[]", "null", "3", '"text"', "{}", '{"step": "1"}', '{"step": 1.5}', '{"step": -1}', '{"step": true}',
             '{"step": 99999999999999999999}', "\x00", "[" * 100_000],
)  # fmt: skip
def test_a_line_that_is_no_record_is_passed_over_and_counted(tmp_path, line):
    run = log(tmp_path / "run", '{"step": 1, "x": 1}\n', line + "\n", '{"step": 2, "x": 2}\n')
    assert run.steps == [1, 2]
    assert [n for n in run.notes if "1 line of its metrics.jsonl" in n]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "null", '"text"', "true", "[1]", "1" + "0" * 400])
def test_what_is_not_a_finite_number_is_a_hole(tmp_path, value):
    run = log(tmp_path / "run", '{"step": 1, "x": 1}\n', f'{{"step": 2, "x": {value}}}\n', '{"step": 3}\n')
    assert run.metrics["x"] == [1.0, None, None]


def test_a_verdict_that_no_response_got_has_a_share_of_0(tmp_path):
    lines = ['{"step": 1, "verdict/unscored": 0, "verdict/unparsed": 0.5}\n', '{"step": 2, "verdict/unscored": 0}\n']
    run = log(
        tmp_path / "run", *lines, '{"step": 3, "verdict/unscored": 0, "verdict/unparsed": null}\n', '{"step": 4}\n'
    )
    assert run.metrics["verdict/unparsed"] == [0.5, 0.0, None, None]


def test_of_two_records_of_a_step_the_later_counts(tmp_path):
    run = log(tmp_path / "run", '{"step": 2, "x": 1}\n', '{"step": 1, "x": 5}\n', '{"step": 2, "x": 7}\n')
    assert (run.steps, run.metrics["x"]) == ([1, 2], [5.0, 7.0])


def test_bytes_that_are_no_text_do_not_stop_the_reading(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "x": 1}\n\xff\xfe\x00\n{"step": 2, "x": 2}\n')
    assert read(tmp_path, "run").steps == [1, 2]


def test_a_folder_of_runs_stands_for_its_runs(tmp_path):
    for name in ("b", "a"):
        make_run(tmp_path / name, steps=1)
    (tmp_path / "a.log").write_text("not a run")
    (tmp_path / "empty").mkdir()
    assert find([tmp_path]) == [tmp_path / "a", tmp_path / "b"]
    assert find([tmp_path / "a", tmp_path]) == [tmp_path / "a", tmp_path / "b"]


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    paths = [tmp_path / a / b / "run" for a in "xy" for b in "12"]
    assert names(paths) == ["x/1/run", "x/2/run", "y/1/run", "y/2/run"]
    assert names([tmp_path / "token", tmp_path / "sequence"]) == ["token", "sequence"]


def test_errors_are_sentences(tmp_path):
    page = tmp_path / "page.html"
    with pytest.raises(ReportError, match=r"nowhere: there is no such run directory"):
        write([tmp_path / "nowhere"], page)
    with pytest.raises(ReportError, match=r"not a run directory; one holds the config\.toml"):
        write([tmp_path], page)
    with pytest.raises(ReportError, match="give at least one"):
        write([], page)
    for i in range(MOST_APART + 1):
        log(tmp_path / f"run{i}", "")
    with pytest.raises(ReportError, match=f"{MOST_APART + 1} runs: a page can tell at most {MOST_APART} apart"):
        write([tmp_path], page)
    for i in range(MOST_RUNS + 1):
        log(tmp_path / f"run{i}", "")
    with pytest.raises(ReportError, match=f"{MOST_RUNS + 1} runs: a page holds at most {MOST_RUNS}"):
        write([tmp_path], page)
    for folder in (tmp_path, Path()):
        with pytest.raises(ReportError, match=r"is a folder; name a file, as .*report\.html"):
            write([tmp_path / "run0"], folder)
    with pytest.raises(ReportError, match="cannot be written"):
        write([tmp_path / "run0"], tmp_path / "run0" / "metrics.jsonl" / "page.html")
    assert not page.exists()
    assert not [p for p in tmp_path.parent.iterdir() if p.name.endswith(".writing")]


def test_the_signature_changes_with_any_file(tmp_path):
    run = make_run(tmp_path / "run", steps=5)
    seen = {signature([run])}
    with open(run / "metrics.jsonl", "a") as f:
        f.write('{"step": 6}\n')
    seen.add(signature([run]))
    (run / "metrics.jsonl").write_text("")
    seen.add(signature([run]))
    (run / "rollouts" / "step-5.parquet").unlink()
    seen.add(signature([run]))
    (run / "eval.jsonl").unlink()
    seen.add(signature([run]))
    assert len(seen) == 5


def test_a_run_of_verls_is_drawn_under_our_names(tmp_path):
    """Its file logger writes a file for each start; a start that resumed wrote its steps anew."""
    validated = {"val-core/arithmetic/acc/mean@4": 0.25}
    verl_file(tmp_path, 1, {"step": 0, "data": validated}, *(verl_step(k, 0.1 * k) for k in (1, 2, 3)))
    once = signature([tmp_path])
    verl_file(tmp_path, 2, verl_step(3, 0.9, **{"val-core/arithmetic/acc/mean@4": 0.5}))
    run = read(tmp_path, "verl")
    assert is_run(tmp_path)
    assert signature([tmp_path]) != once
    assert run.steps == [1, 2, 3]
    assert run.metrics["reward/mean"] == pytest.approx([0.1, 0.2, 0.9])
    assert run.metrics["bias/zero_sum"] == [0.0, 0.0, 0.0]
    assert [(e["step"], e["acc@4"]) for e in run.evaluations] == [(0, 0.25), (3, 0.5)]
    assert held_out_metrics(run) == ["acc@4"]


def test_two_sources_of_held_out_prompts_have_no_mean_in_verls_file(tmp_path):
    values = {"val-core/a/acc/mean@4": 0.25, "val-core/b/acc/mean@4": 0.75}
    verl_file(tmp_path, 1, {"step": 0, "data": values})
    assert read(tmp_path, "verl").evaluations == []


def verl_file(folder, start, *records):
    lines = (json.dumps(record) + "\n" for record in records)
    (folder / f"verl-20260101T00000{start}Z.jsonl").write_text("".join(lines))


def verl_step(step, score, **more):
    values = {"training/global_step": step, "critic/score/mean": score, "bias/zero_sum": 0.0}
    return {"step": step, "data": {**values, **more}}

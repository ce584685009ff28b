"""TRL's engines beside our trainer: the intervals are Student's, and the committed curves agree with ours."""

import json
import statistics
from pathlib import Path

import pytest

from benchmarks import trl_processes

PAGE = (Path(__file__).parents[2] / "docs" / "trl.md").read_text(encoding="utf-8")


def test_intervals_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    for values in ([0.41, 0.47], [0.41, 0.47, 0.44], [0.40, 0.49, 0.46, 0.3, 0.35]):
        mean, half = trl_processes.interval(values)
        low, high = stats.t.interval(0.95, len(values) - 1, loc=mean, scale=stats.sem(values))
        assert (mean - half, mean + half) == pytest.approx((low, high), rel=1e-3)


def test_every_seed_is_trained_and_exported_with_its_own_seed(monkeypatch, tmp_path):
    given = []

    def run(*command):
        given.append(command)
        if "train" in command:
            folder = Path(command[command.index("--train.out") + 1])
            folder.mkdir(parents=True)
            (folder / "metrics.jsonl").write_text('{"reward/mean": 0.5}\n', encoding="utf-8")

    monkeypatch.setattr(trl_processes, "run", run)
    found = trl_processes.curves(tmp_path, [], 2)
    assert found == {"equipoise": [[0.5], [0.5]]}
    seeds = [command[command.index("--train.seed") + 1] for command in given]
    assert seeds == ["0", "0", "1", "1"]
    exported = [command[5] for command in given if "export" in command]
    assert exported == [str(tmp_path / "launch" / seed) for seed in ("0", "1")]


def test_the_committed_curves_have_every_step_and_agree_with_ours():
    record = json.loads(trl_processes.RESULTS.read_text(encoding="utf-8"))
    assert record["options"] == trl_processes.OPTIONS
    assert {"equipoise", "TRL, 2 processes, DDP", "TRL, 2 processes, FSDP2"} <= set(record["engines"])
    curves = {name: row["curves"] for name, row in record["engines"].items()}
    again = trl_processes.summary(curves)
    for name, row in again.items():
        assert len(curves[name]) >= 3
        assert {len(curve) for curve in curves[name]} == {trl_processes.STEPS}
        assert trl_processes.line(name, row) in PAGE
        assert abs(row["minus_ours"]["mean"]) <= row["minus_ours"]["half_width"], name


def test_every_run_of_trl_was_timed_and_audited():
    """All of its responses; runs of one seed and the same draws have the same audit."""
    record = json.loads(trl_processes.RESULTS.read_text(encoding="utf-8"))
    rows = {name: row for name, row in record["engines"].items() if name != "equipoise"}
    responses = trl_processes.STEPS * 64
    for name, row in rows.items():
        assert [len(seconds) for seconds in row["step_seconds"]] == [trl_processes.STEPS] * len(row["curves"])
        every = [value for seconds in row["step_seconds"] for value in seconds]
        assert row["seconds"] == round(statistics.median(every), 2)
        assert {(found["responses"], found["steps"]) for found in row["audit"]} == {(responses, trl_processes.STEPS)}
        for value, low, high in (found["coupling"] for found in row["audit"]):
            assert low < value < high
        assert trl_processes.audit_line(name, row) in PAGE
    assert rows["TRL, 2 processes, DDP"]["audit"] == rows["TRL, 2 processes, FSDP2"]["audit"]


def test_the_committed_run_with_vllm_is_whole_and_beside_the_same_seed():
    run = json.loads(trl_processes.COLOCATED.read_text(encoding="utf-8"))
    engines = json.loads(trl_processes.RESULTS.read_text(encoding="utf-8"))["engines"]
    theirs = {name: value for name, value in run["options"].items() if name in trl_processes.OPTIONS}
    assert theirs == {**trl_processes.OPTIONS, "model.device": "cuda"}
    assert run["options"]["rollout.engine"] == "vllm"
    assert {len(run["curve"]), len(run["step_seconds"])} == {trl_processes.STEPS}
    assert {len(values) for values in run["sampling"].values()} == {trl_processes.STEPS}
    assert run["minus"] == trl_processes.minus(run["curve"], engines, run["options"]["train.seed"])
    assert run["audit"]["responses"] == trl_processes.STEPS * 64
    for row in trl_processes.colocated_lines(run):
        assert row in PAGE


def test_a_run_is_compared_with_the_runs_of_its_own_seed():
    engines = {"equipoise": {"curves": [[0.0] * 20, [0.5] * 20]}, "TRL": {"curves": [[0.25] * 20, [1.0] * 20]}}
    assert trl_processes.minus([0.0] * 10 + [0.75] * 10, engines, 1) == {"equipoise": 0.25, "TRL": -0.25}


def test_versions_are_those_that_trl_left(tmp_path):
    (tmp_path / "README.md").write_text("text\n- TRL: 1.16.0\n- Pytorch: 2.11.0\n\n## Citations\n", encoding="utf-8")
    assert trl_processes.versions_of(tmp_path) == {"trl": "1.16.0", "pytorch": "2.11.0"}

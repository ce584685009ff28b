"""TGC's measures of a run, by hand."""

import json

import pytest

from equipoise.report.panels import panels
from equipoise.report.runs import read
from equipoise.report.stability import CONTEXTS, Stability, common_score, stability


def make(folder, scores, *, probe=True, drift=True):
    """A run that was evaluated every ten steps, and what its probe and its last updates told."""
    folder.mkdir()
    (folder / "config.toml").write_text("")
    lines = []
    for k, score in enumerate(scores):
        fixed = {
            "probe/answers/drift": 0.5 * k,
            "probe/answers/entropy": 1.5 - 0.25 * k,
            "probe/shared/logprob": -0.1 * k,
        }
        line = {"step": 10 * k, "acc@8": score, "interval": {"acc@8": [score - 0.1, score + 0.1]}}
        lines.append({**line, **(fixed if probe else {})})
    (folder / "eval.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps = [{"step": s, "entropy": 1 / s, **({CONTEXTS: 1e-3 * s} if drift else {})} for s in range(1, 21)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    return read(folder, folder.name)


def test_measures_of_a_run(tmp_path):
    found = stability(make(tmp_path / "a", [0.2, 0.5, 0.4]), "acc@8", 0.35)
    assert found.steps == pytest.approx(5)
    assert found.jitter == pytest.approx(0.4 / 6**0.5)  # one second difference, 0.2 − 1.0 + 0.4
    assert found.contexts == pytest.approx(1e-3 * sum(range(1, 21)) / 20)
    assert (found.odds, found.answers) == (1.0, 1.0)
    assert found.entropy == pytest.approx(sum(1 / s for s in range(11, 21)) / 10)


def test_what_was_not_written_down_is_none(tmp_path):
    found = stability(make(tmp_path / "a", [0.2, 0.3], probe=False, drift=False), "acc@8", 0.9)
    assert found == Stability(None, None, None, None, None, pytest.approx(found.entropy))


def test_the_common_score_is_one_that_every_run_has_reached(tmp_path):
    runs = [make(tmp_path / "a", [0.2, 0.6, 0.5]), make(tmp_path / "b", [0.2, 0.3, 0.4])]
    assert common_score(runs, "acc@8") == 0.4
    assert common_score(runs, "acc@9") is None


def test_the_panel_has_a_row_per_run_and_a_figure_per_measure(tmp_path):
    runs = [make(tmp_path / "a", [0.2, 0.6, 0.5]), make(tmp_path / "b", [0.2, 0.3, 0.4], probe=False, drift=False)]
    panel = {p["id"]: p for p in panels(runs)}["stability"]
    heads = [
        "run",
        "steps to 40.0",
        "jitter (points)",
        "shared drift ×10³",
        "log-odds drift",
        "entropy of answers",
        "entropy",
    ]
    assert panel["table"]["columns"] == heads
    cells = [[c["text"] for c in row["cells"]] for row in panel["table"]["rows"]]
    assert cells[0] == ["5", "20.4", "10", "1.00", "1.00", "0.067"]
    assert cells[1] == ["20", "0.0", "–", "–", "–", "0.067"]
    lines = {f["id"]: f["lines"] for f in panel["figures"]}
    assert list(lines) == [CONTEXTS, "probe/answers/drift", "probe/answers/entropy", "probe/shared/logprob"]
    assert lines["probe/answers/drift"] == [{"run": 0, "x": [0.0, 10.0, 20.0], "y": [0.0, 0.5, 1.0]}]
    others = {f["id"] for p in panels(runs) if p["id"] == "others" for f in p["figures"]}
    assert CONTEXTS not in others


def test_runs_without_probe_or_drift_have_the_table_alone(tmp_path):
    (panel,) = [
        p for p in panels([make(tmp_path / "a", [0.2, 0.3], probe=False, drift=False)]) if p["id"] == "stability"
    ]
    assert "figures" not in panel
    assert panel["table"]["columns"] == ["run", "steps to 30.0", "entropy"]

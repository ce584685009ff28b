"""benchmarks/papers_step.py: the papers' settings are the recipes', and hours follow from the seconds of a share."""

import json
import tempfile
import tomllib
from argparse import Namespace

import children
import papers_step
import pytest


@pytest.mark.parametrize("setting", papers_step.SETTINGS.values(), ids=lambda setting: setting.model)
def test_the_settings_are_the_recipes(setting):
    recipe = tomllib.loads((papers_step.RECIPES / setting.recipe).read_text(encoding="utf-8"))
    rollout, train = recipe["rollout"], recipe["train"]
    assert setting.model in recipe["model"]["name"]
    assert (setting.prompts, setting.group) == (rollout["prompts"], rollout["group_size"])
    assert (setting.tokens, setting.steps) == (rollout["max_tokens"], train["steps"])
    assert setting.prompts // setting.mini_batches == train["mini_batch"]


def test_hours_are_those_of_whole_batches_and_all_steps(capsys):
    setting = papers_step.SETTINGS["Balanced Aggregation"]
    row = {"seconds": 36.0, "parts": {"rollout": 20.0}, "mean_length": 3000.0, "peak_gib": 50.0}
    found = papers_step.report_row("BA", "equipoise", row, setting, 0.125)
    assert found["batch_seconds"] == pytest.approx(288.0)
    assert found["run_gpu_hours"] == pytest.approx(288 * 500 / 3600)
    assert "40.0 GPU-hours" in capsys.readouterr().out


def asked(**given):
    options = {"toy": False, "settings": list(papers_step.SETTINGS), "shape": [], "engines": ["equipoise"], "set": []}
    return Namespace(**options | given)


@pytest.mark.parametrize("share", [1.0, 0.125, 0.01])
def test_a_share_keeps_the_number_of_mini_batches(share):
    options = asked(share=share)
    for _, _, setting, job in papers_step.jobs_of(options):
        assert job["prompts"] % setting.mini_batches == 0
        assert job["prompts"] >= setting.mini_batches
        if share > 0.1:
            assert job["prompts"] == share * setting.prompts


def test_another_batch_is_whole_and_has_no_hours(capsys):
    options = asked(settings=[], shape=[("Qwen3-0.6B", "32", "16", "512"), ("Qwen3-8B", "3", "5", "16384")], share=0.1)
    (name, _, short, job), (_, _, long, _) = papers_step.jobs_of(options)
    assert (name, job["prompts"]) == ("Qwen3-0.6B, 32 × 16 × 512", 32)
    assert (short.micro, short.checkpointing) == (64, False)
    assert (long.micro, long.checkpointing) == (1, True)
    row = {"seconds": 2.0, "parts": {}, "mean_length": 200.0, "peak_gib": None}
    assert "run_gpu_hours" not in papers_step.report_row(name, "trl", row, short, 1)
    assert "hours" not in capsys.readouterr().out


def test_the_first_step_is_short_and_the_second_reaches_the_limit():
    setting = papers_step.SETTINGS["HA-DW"]
    first, second = (papers_step.drawn(setting, 256, call) for call in (0, 1))
    assert sum(first) < sum(second) / 10
    assert max(second) == setting.tokens


def test_trls_model_has_the_same_name_in_every_run(tmp_path, monkeypatch):
    """vLLM looks for what it compiled by the name; what lies there is this run's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, second = tmp_path / "first", tmp_path / "second"
    name = papers_step.same_name(first, "toy")
    assert papers_step.same_name(second, "toy") == name
    assert name.readlink() == second


@pytest.mark.slow
def test_our_step_runs_at_toy_size(tmp_path):
    setting = papers_step.TOY["Balanced Aggregation"]
    folder = tmp_path / "child"
    folder.mkdir()
    (folder / "turn").touch()
    job = {"setting": setting, "prompts": setting.prompts, "device": "cpu", "dtype": "float32", "memory": 0.02}
    job["set"] = [("rollout.temperature", "0.9")]
    (folder / "job.json").write_text(json.dumps(job))
    papers_step.inside(folder, "equipoise")
    row = json.loads((folder / "found.jsonl").read_text())
    rows = setting.prompts * setting.group
    assert row["mean_length"] == pytest.approx(sum(papers_step.drawn(setting, rows, 1)) / rows)
    assert 0 < row["parts"]["train"] < row["seconds"]
    assert row["set"] == {"rollout.temperature": "0.9"}
    assert children.job(folder)["prompts"] == setting.prompts

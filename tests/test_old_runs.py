"""Run directories of earlier versions still open.

`old_runs/first` is what the first version with a command line wrote, but for its checkpoint: two steps of 3 prompts × 4
responses on the embedded model, dapo with hadw. It has no run.json and no environment.json, half of today's options,
and rollouts without accuracies, histories and columns of single reward functions.
"""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from equipoise.train import configured
from equipoise.train.folder import RunFolder
from equipoise.train.own_task import OwnTask, own_task
from equipoise.train.run_start import check_start

OLD = Path(__file__).parent / "old_runs" / "first"


@pytest.fixture
def old(tmp_path):
    shutil.copytree(OLD, tmp_path / "run")
    return tmp_path / "run"


def test_it_is_old(old):
    """Else these tests say nothing."""
    assert not (old / "run.json").exists()
    assert "sandbox" not in (old / "config.toml").read_text()
    assert "accuracy" not in pq.read_schema(old / "rollouts" / "step-1.parquet").names


def test_the_report_opens_it(equipoise, old):
    code, out, err = equipoise("report", old)
    assert (code, err) == (0, "")
    page = Path(out.strip()).read_text()
    for shown in ("dapo", "reward/mean", "acc@2"):
        assert shown in page


def test_the_audit_measures_what_its_own_log_says(equipoise, old):
    code, out, err = equipoise("audit", old, "--json")
    assert (code, err) == (0, "")
    audit = json.loads(out)
    rewards = [row for step in (1, 2) for row in pq.read_table(old / "rollouts" / f"step-{step}.parquet").to_pylist()]
    assert audit["overall"]["responses"] == len(rewards) == 24
    mean = sum(row["reward"] for row in rewards) / len(rewards)
    assert audit["overall"]["log"]["reward_mean"]["value"] == pytest.approx(mean)
    assert "hadw" in audit["stacks"][audit["objective"]]


def test_its_task_is_known_to_an_evaluation(old):
    (old / "checkpoints").mkdir()
    own = own_task(str(old), None)
    assert own == OwnTask(own.task, own.run, samples=2, temperature=1.0, per_level=1, max_tokens=16)
    assert (own.task.name, own.run.path) == ("arithmetic", old)


def test_it_can_be_resumed(old):
    """Before its first checkpoint was due, from the beginning."""
    config = configured(old, resume=True)
    start = check_start(RunFolder(old), config, resume=True)
    assert start.step == 0
    assert start.sentence == f"{old}: begins again at step 1; steps 1 to 2 were logged already and are computed again"

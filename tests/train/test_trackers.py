"""Trackers: what they are told, on stand-ins; and, where the packages are installed, their offline runs opened again.

The slow tests are those of the packages: pip install wandb trackio mlflow, then python -m pytest -m slow on this file.
"""

import json
import shutil
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from equipoise.train import ConfigError, Trainer

from .tiny import column, make_model, metrics, settings

NAMED = {"log__project": "study", "log__group": "seeds", "log__tags": ["tiny", "first"], "log__entity": "us"}
TABLE = ["step", "prompt_id", "prompt", "response", "reward", "verdict", "advantage", "length"]


class Fake:
    """A package and the run it opens, in one: records every call. Unlike the real ones it knows no names."""

    def __init__(self):
        self.calls = []
        self.id = "given"
        self.info = SimpleNamespace(run_id="given")

    def __getattr__(self, name):
        def called(*arguments, **options):
            self.calls.append((name, arguments, options))
            return self

        return called

    def of(self, *names):
        return [(arguments, options) for name, arguments, options in self.calls if name in names]


@pytest.fixture
def fake(request, monkeypatch):
    fake = Fake()
    monkeypatch.setitem(sys.modules, request.getfixturevalue("name"), fake)
    return fake


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_every_metric_is_logged_under_its_step(run, tmp_path, name, fake):
    run(**{f"log__{name}": True}, train__steps=2, eval__every=2, log__rollouts_every=0)
    logged = fake.of("log", "log_metrics")
    steps = [options["step"] if options else arguments[0]["step"] for arguments, options in logged]
    assert steps == [0, 1, 2, 2]
    assert logged[1][0][0]["reward/mean"] == column(tmp_path / "run", "reward/mean")[0]
    if name == "mlflow":
        allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. /")
        assert all(set(key) <= allowed for arguments, _ in logged for key in arguments[0])
        assert fake.calls[-1][0] == "end_run"
    else:
        assert fake.of("init")[0][1]["config"]["optim.lr"] == 0.01
        assert fake.calls[-1][0] == "finish"


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_project_group_and_tags_reach_the_tracker(run, name, fake):
    run(**{f"log__{name}": True}, train__steps=1, **NAMED)
    if name == "mlflow":
        assert fake.of("set_experiment")[0][0] == ("study",)
        tags = fake.of("start_run")[0][1]["tags"]
        assert tags == {"tiny": "true", "first": "true", "group": "seeds", "entity": "us"}
        return
    options = fake.of("init")[0][1]
    assert (options["project"], options["group"]) == ("study", "seeds")
    if name == "wandb":
        assert (options["entity"], options["tags"]) == ("us", ["tiny", "first"])
    else:  # which has no such fields
        assert (options["config"]["entity"], options["config"]["tags"]) == ("us", ["tiny", "first"])


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_a_resumed_run_keeps_its_identifier(model, tmp_path, name, fake):
    options = {f"log__{name}": True, "log__terminal": False}
    Trainer(settings(model, tmp_path / "run", train__steps=1, **options)).run()
    kept = json.loads((tmp_path / "run" / "trackers.json").read_text())[name]
    Trainer(settings(model, tmp_path / "run", train__steps=2, **options), resume=True).run()
    first, second = (found[1] for found in fake.of("init", "start_run"))
    key = {"wandb": "id", "trackio": "name", "mlflow": "run_id"}[name]
    assert second[key] == kept
    if name == "trackio":
        assert (first["resume"], second["resume"]) == ("never", "allow")
        assert first["name"] == kept != "run"  # another run of the same folder's name is not meant
    else:
        assert first[key] is None
        assert kept == "given"
    assert len(fake.of("log_params")) == (1 if name == "mlflow" else 0)


@pytest.mark.parametrize("name", ["wandb"])
def test_a_copy_beside_its_original_is_another_run(model, tmp_path, name, fake):
    options = {"log__wandb": True, "log__terminal": False}
    Trainer(settings(model, tmp_path / "run", train__steps=1, **options)).run()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    Trainer(settings(model, tmp_path / "copy", train__steps=2, **options), resume=True).run()
    assert [found["id"] for _, found in fake.of("init")] == [None, None]


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_a_table_of_samples_goes_with_each_rollout_file(run, name, fake):
    run(**{f"log__{name}": True}, train__steps=2, log__rollouts_every=2, log__samples=3)
    if name == "mlflow":
        tables = [(list(columns), file) for (columns, file), _ in fake.of("log_table")]
        assert tables == [(TABLE, "samples/step-1.json"), (TABLE, "samples/step-2.json")]
        rows = fake.of("log_table")[0][0][0]["response"]
    else:
        tables = fake.of("Table")
        assert [options["columns"] for _, options in tables] == [TABLE, TABLE]
        rows = tables[0][1]["data"]
    assert len(rows) == 3


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_the_report_is_an_artifact_of_a_run_that_ended(run, tmp_path, name, fake):
    run(**{f"log__{name}": True}, train__steps=1)
    assert (tmp_path / "run" / "report.html").exists()
    call = "add_file" if name == "wandb" else "log_artifact"
    assert fake.of(call)[0][0][0] == str(tmp_path / "run" / "report.html")


@pytest.mark.parametrize("name", ["wandb"])
@pytest.mark.parametrize("another", [False, True])
def test_a_run_has_ended_when_the_trackers_own_process_has(run, fake, name, another):
    """`finish` returns before W&B has written its last records; ending its process would end a program's other runs."""
    fake.run = fake if another else None  # the latest run of the program that goes on
    run(log__wandb=True, train__steps=1)
    ends = [call for call, *_ in fake.calls if call in ("finish", "teardown")]
    assert ends == (["finish"] if another else ["finish", "teardown"])


@pytest.mark.parametrize("name", ["wandb"])
def test_no_samples_where_none_are_wanted(run, fake, name):
    run(log__wandb=True, train__steps=1, log__samples=0)
    assert fake.of("Table") == []


def test_missing_packages_are_named_by_their_extra(model, tmp_path, monkeypatch):
    for extra, package in (("tensorboard", "torch.utils.tensorboard"), ("trackio", "trackio"), ("mlflow", "mlflow")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ConfigError, match=rf"log\.{extra} = true .* pip install 'equipoise\[{extra}\]'"):
            Trainer(settings(model, tmp_path / "run", **{f"log__{extra}": True}))


# The real packages, offline. A run of two steps, then resumed to four: the tracker's own files must hold one run with
# every step's numbers, the tables and the report.


def twice(folder: Path, tracker: str) -> list[dict]:
    options = {f"log__{tracker}": True, "log__terminal": False, "log__rollouts_every": 2, **NAMED}
    name = make_model(folder / "model")
    for steps in (2, 4):
        config = settings(name, folder / "run", train__steps=steps, eval__every=2, **options)
        Trainer(config, resume=steps == 4).run()
    return metrics(folder / "run")


def identifier(folder: Path, tracker: str) -> str:
    return json.loads((folder / "run" / "trackers.json").read_text())[tracker]


@pytest.mark.slow
def test_wandb_opened_again(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    expected = twice(tmp_path, "wandb")
    parts = sorted((tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert len(parts) == 2
    rows, runs, artifacts = [], [], []
    for part in parts:
        (file,) = part.glob("run-*.wandb")
        for record in wandb_records(file):
            kind = record.WhichOneof("record_type")
            if kind == "history":
                items = {"/".join([item.key, *item.nested_key]).strip("/"): item for item in record.history.item}
                rows.append({key: json.loads(item.value_json) for key, item in items.items()})
            elif kind == "run":
                runs.append(record.run)
            elif kind == "request" and record.request.HasField("log_artifact"):
                artifacts.append(record.request.log_artifact.artifact)
            elif kind == "artifact":
                artifacts.append(record.artifact)
    assert {run.run_id for run in runs} == {identifier(tmp_path, "wandb")}
    assert {(run.project, run.run_group, run.entity, *run.tags) for run in runs} == {
        ("study", "seeds", "us", "tiny", "first")
    }
    curve = {row["step"]: row["reward/mean"] for row in rows if "reward/mean" in row}
    assert curve == {record["step"]: record["reward/mean"] for record in expected}
    tables = {row["step"] for row in rows if "samples" in row or any(key.startswith("samples/") for key in row)}
    assert tables == {1, 2, 4}
    written = [json.loads(path.read_text()) for part in parts for path in part.rglob("*.table.json")]
    assert [table["columns"] for table in written] == [TABLE] * 3
    assert {entry.path for artifact in artifacts for entry in artifact.manifest.contents} >= {"report.html"}


def wandb_records(file: Path):
    """The records of an offline run: LevelDB's log format behind a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:  # no room for another head in this block
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(whole)
            whole = b""


@pytest.mark.slow
def test_trackio_opened_again(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    expected = twice(tmp_path, "trackio")
    name = identifier(tmp_path, "trackio")
    assert SQLiteStorage.get_runs("study") == [name]
    logs = SQLiteStorage.get_logs("study", name)
    curve = {row["step"]: row["reward/mean"] for row in logs if "reward/mean" in row}
    assert curve == pytest.approx({record["step"]: record["reward/mean"] for record in expected})
    tables = {row["step"]: row["samples"]["_value"] for row in logs if "samples" in row}
    assert set(tables) == {1, 2, 4}
    assert list(tables[1][0]) == TABLE
    config = SQLiteStorage.get_run_config("study", name)
    assert (config["_Group"], config["tags"]) == ("seeds", ["tiny", "first"])
    assert [artifact["name"] for artifact in SQLiteStorage.get_artifacts("study")] == [f"{name}-report"]


@pytest.mark.slow
def test_mlflow_opened_again(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    expected = twice(tmp_path, "mlflow")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("study")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_id == identifier(tmp_path, "mlflow")
    assert found.info.status == "FINISHED"
    assert found.data.tags["group"] == "seeds"
    curve = {point.step: point.value for point in client.get_metric_history(found.info.run_id, "reward/mean")}
    assert curve == {record["step"]: record["reward/mean"] for record in expected}
    assert [point.step for point in client.get_metric_history(found.info.run_id, "eval/acc_at_2")] == [0, 2, 4]
    table = mlflow.load_table("samples/step-1.json", run_ids=[found.info.run_id])
    assert list(table.columns) == TABLE
    assert "report.html" in {file.path for file in client.list_artifacts(found.info.run_id)}

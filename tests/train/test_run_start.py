"""A resumed run goes on where it lies, from the checkpoint it says, with the data it had; or it says why not, and what
to type, and has changed nothing."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from equipoise.config import dump
from equipoise.train import RunError, RunFolder, Trainer, checkpoint, configured, finished, read_lines
from equipoise.train.record import read_record
from equipoise.train.run_start import check_start

from .tiny import evaluations, metrics, outcome, settings

ROWS = [{"question": f"{a}+{b}=", "solution": a + b} for a in range(10, 20) for b in range(1, 9)]
STATEFUL = {"objective__difficulty": "hadw", "log__terminal": False, "train__checkpoint_every": 1, "eval__every": 2}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the lock, which a process takes and leaves."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def resumed(folder: Path, *overrides: str, from_step: int | None = None) -> Trainer:
    """As `equipoise train FOLDER --resume` does."""
    return Trainer(configured(folder, overrides, resume=True), resume=True, from_step=from_step)


@pytest.fixture(scope="module")
def finished_run(model, tmp_path_factory):
    """Four steps, of which the checkpoints of 2, 3 and 4 are there."""
    out = tmp_path_factory.mktemp("begun") / "run"
    Trainer(settings(model, out, train__steps=4, **STATEFUL)).run()
    return out


@pytest.fixture
def copy(finished_run, tmp_path):
    shutil.copytree(finished_run, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_copied_run_goes_on_where_it_lies(finished_run, copy, model, tmp_path):
    Trainer(settings(model, tmp_path / "whole", train__steps=5, **STATEFUL)).run()
    before = contents(finished_run)
    for path in (copy, copy / "config.toml"):
        assert configured(path, resume=True).train.out == str(copy)
    resumed(copy, "--train.steps", "5").run()
    assert contents(finished_run) == before
    assert metrics(copy) == metrics(tmp_path / "whole")
    assert outcome(copy)["weights"] == outcome(tmp_path / "whole")["weights"]
    assert configured(copy / "config.toml").train.steps == 5
    assert f'out = "{copy}"' in (copy / "config.toml").read_text()


def test_another_directory_is_refused(copy, finished_run, tmp_path):
    with pytest.raises(RunError, match="nowhere: there is no such run; name the folder it lies in now"):
        configured(tmp_path / "nowhere", resume=True)
    with pytest.raises(RunError, match=rf"--train.out {finished_run}: a run resumes where it lies, in {copy}"):
        configured(copy, ["--train.out", str(finished_run)], resume=True)
    assert configured(copy, ["--train.out", f"{copy}/../copy"], resume=True).train.out == f"{copy}/../copy"
    with pytest.raises(RunError, match=r"is a run directory: --resume goes on with it; .*--train.out DIR starts"):
        configured(copy)
    with pytest.raises(RunError, match=r"holds no run: there is no config.toml in it"):
        configured(tmp_path, resume=True)
    assert configured(copy / "config.toml", ["--train.out", "new"]).train.out == "new"


def test_a_config_toml_that_is_no_runs_own_keeps_its_directory(model, tmp_path):
    (tmp_path / "config.toml").write_text(dump(settings(model, tmp_path / "elsewhere")))
    assert configured(tmp_path / "config.toml", resume=True).train.out == str(tmp_path / "elsewhere")


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def scratch(path: Path) -> None:
    """One bit, in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    ("step-4", remove): "is missing",
    ("step-4/trainer.pt", remove): "is damaged: trainer.pt is missing",
    ("step-4/model.safetensors", remove): "is damaged: model.safetensors is missing",
    ("step-4/trainer.pt", cut): "is damaged: trainer.pt is not what was written",
    ("step-4/model.safetensors", scratch): "is damaged: model.safetensors is not what was written",
}


@pytest.mark.parametrize(("file", "damage"), DAMAGES, ids=[f"{damage.__name__} {file}" for file, damage in DAMAGES])
def test_a_checkpoint_that_is_not_whole_is_told_with_the_one_beside(copy, file, damage):
    damage(copy / "checkpoints" / file)
    before = contents(copy)
    command = f"equipoise train {copy} --resume --from-step 3"
    with pytest.raises(RunError) as error:
        resumed(copy, "--train.steps", "5")
    said = str(error.value)
    assert f"{copy}: its last checkpoint, of step 4, {DAMAGES[file, damage]}; nothing was changed." in said
    assert "The checkpoint of step 3 (and of 2) is whole" in said
    assert said.endswith(command)
    assert contents(copy) == before


def test_from_step_goes_on_from_there_to_the_same_end(copy, finished_run):
    remove(copy / "checkpoints" / "step-4")
    trainer = resumed(copy, from_step=2)
    assert trainer.step == 2
    assert checkpoint.steps(RunFolder(copy).checkpoints) == [2]
    assert [record["step"] for record in read_lines(RunFolder(copy).metrics)] == [1, 2]
    assert read_record(RunFolder(copy)).checkpoint == 2
    trainer.run()
    assert outcome(copy) == outcome(finished_run)


def test_from_step_zero_begins_again(copy, finished_run):
    remove(copy / "checkpoints")
    with pytest.raises(RunError, match=r"No checkpoint is whole; to begin again, .* --resume --from-step 0$"):
        resumed(copy)
    resumed(copy, from_step=0).run()
    assert outcome(copy) == outcome(finished_run)


def test_from_step_of_no_checkpoint(copy, model, tmp_path):
    with pytest.raises(RunError, match=r"the checkpoint of step 1 is missing; .*step 4 \(and of 2, 3\) is whole"):
        resumed(copy, from_step=1)
    with pytest.raises(RunError, match="--from-step 3: needs --resume"):
        Trainer(settings(model, tmp_path / "new"), from_step=3)
    assert not (tmp_path / "new").exists()


def test_a_run_of_an_earlier_version_has_neither_record_nor_sums(copy, model, tmp_path):
    """Its log says which checkpoint must have been there."""
    (copy / "run.json").unlink()
    for sums in copy.rglob(checkpoint.SUMS):
        sums.unlink()
    cut(copy / "checkpoints" / "step-4" / "trainer.pt")
    with pytest.raises(RunError, match=r"of step 4, is damaged: trainer.pt is cut short or overwritten; .*of step 3"):
        resumed(copy, "--train.steps", "5")
    remove(copy / "checkpoints" / "step-4")
    remove(copy / "checkpoints" / "step-3")
    with pytest.raises(RunError, match=r"of step 3, is missing; .*of step 2 is whole"):
        resumed(copy, "--train.steps", "5")
    resumed(copy, "--train.steps", "5", from_step=2).run()
    Trainer(settings(model, tmp_path / "whole", train__steps=5, **STATEFUL)).run()
    assert metrics(copy) == metrics(tmp_path / "whole")
    assert read_record(RunFolder(copy)).data


def test_the_sums_are_those_of_sha256sum(copy):
    if shutil.which("sha256sum") is None:
        pytest.skip("there is no sha256sum here")
    folder = copy / "checkpoints" / "step-4"
    subprocess.run(["sha256sum", "--check", "--quiet", checkpoint.SUMS], cwd=folder, check=True)
    listed = {line.split("  ")[1] for line in (folder / checkpoint.SUMS).read_text().splitlines()}
    assert listed == {path.name for path in folder.iterdir()} - {checkpoint.SUMS}


def test_a_log_that_is_torn_inside_is_not_cut(copy):
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join([lines[0], lines[1][:40] + "\n", *lines[2:]]))
    before = contents(copy)
    with pytest.raises(RunError, match=r"metrics.jsonl: line 2 is not a whole record, .*nothing was changed: repair"):
        resumed(copy, "--train.steps", "5")
    assert contents(copy) == before


def test_what_was_logged_after_the_last_checkpoint_is_said(copy):
    for name in ("metrics.jsonl", "eval.jsonl"):
        with open(copy / name, "a") as file:
            file.write('{"step": 5}\n{"step": 6}\n{"st')
    config = configured(copy, ["--train.steps", "9"], resume=True)
    start = check_start(RunFolder(copy), config, resume=True)
    assert start.step == 4
    assert (
        start.sentence == f"{copy}: goes on after step 4 of 9; steps 5 to 6 were logged already and are computed again"
    )


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("5", "goes on after step 4 of 5; step 5 was logged already and is computed again, step 6 is forgotten"),
        ("6", "goes on after step 4 of 6; steps 5 to 6 were logged already and are computed again"),
    ],
)
def test_only_steps_that_come_again_are_said_to(copy, steps, said):
    with open(copy / "metrics.jsonl", "a") as file:
        file.write('{"step": 5}\n{"step": 6}\n')
    config = configured(copy, ["--train.steps", steps], resume=True)
    assert check_start(RunFolder(copy), config, resume=True).sentence == f"{copy}: {said}"


def test_fewer_steps_than_a_run_has_are_not_called_done(copy):
    config = configured(copy, ["--train.steps", "3"], resume=True)
    said = f"{copy}: has trained to step 4 already, beyond train.steps = 3; --from-step 3 goes back to that checkpoint"
    assert finished(config) == said


def test_data_that_are_gone_are_asked_for_by_their_option(copy):
    config = configured(copy, ["--train.steps", "5"], resume=True)
    config.task.name = "gone.jsonl"
    with pytest.raises(RunError) as error:
        check_start(RunFolder(copy), config, resume=True)
    assert str(error.value) == (
        f"{copy}: gone.jsonl (task.name) is not there, seen from {Path.cwd()}; nothing was changed. "
        "--task.name PATH says where it lies now"
    )


def test_a_finished_run_says_so(copy):
    config = configured(copy, resume=True)
    said = f"{copy}: finished: step 4 of 4 is done; --train.steps N trains it on to step N"
    assert finished(config) == said
    config.train.steps = 5
    assert finished(config) is None
    config.train.out = str(copy / "none")
    assert finished(config) is None


def test_a_run_killed_behind_its_last_checkpoint_is_not_finished_before_what_goes_with_it_is_there(copy, finished_run):
    """As the kill leaves it: an old checkpoint half removed, and beside the last one the files of another."""
    folder = RunFolder(copy)
    (folder.checkpoints / ".removing-step-1").mkdir()
    folder.prompts.write_bytes((finished_run / "rollouts" / "step-1.parquet").read_bytes())
    record = json.loads(folder.record.read_text())
    folder.record.write_text(json.dumps(record | {"checkpoint": 3}))
    assert finished(configured(copy, resume=True)) is None
    resumed(copy).run()
    assert list(folder.checkpoints.glob(".*")) == []
    prompts = [pq.read_table(RunFolder(place).prompts).to_pylist() for place in (copy, finished_run)]
    assert prompts[0] == prompts[1]
    assert finished(configured(copy, resume=True)) is not None


def test_the_command_for_settings_that_differ(copy):
    config = configured(copy, ["--optim.lr", "0.5"], resume=True)
    with pytest.raises(RunError, match=rf"optim.lr was 0.01, now 0.5; to go on .*: equipoise train {copy} --resume$"):
        check_start(RunFolder(copy), config, resume=True)


def test_a_probe_that_the_run_did_not_begin_with_is_refused_before_anything_is_trained(copy):
    before = contents(copy)
    with pytest.raises(RunError, match=r"eval.probe = true: probe.pt is not there, and only the evaluation before"):
        resumed(copy, "--train.steps", "6", "--eval.probe", "true")
    assert contents(copy) == before


def test_a_moved_run_keeps_its_id_and_a_copy_gets_one(copy, tmp_path, finished_run):
    def id_of(folder: Path) -> str:
        config = configured(folder, resume=True)
        return check_start(RunFolder(folder), config, resume=True).record.id

    first = id_of(finished_run)
    assert id_of(finished_run) == first
    assert id_of(copy) != first
    record = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**record, "place": str(tmp_path / "gone")}))
    assert id_of(copy) == first


@pytest.fixture
def data_run(model, tmp_path):
    """A run on a file, stopped after its second step."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    columns = {"prompt": "question", "answer": "solution"}
    options = {"task__name": str(file), "task__columns": columns, "train__steps": 2, **STATEFUL}
    Trainer(settings(model, tmp_path / "run", **options)).run()
    return tmp_path / "run", file


def test_data_that_changed_are_refused_by_name(data_run):
    run, file = data_run
    whole = file.read_text()
    before = contents(run)
    file.write_text(whole.replace('"solution": 14', '"solution": 15'))
    with pytest.raises(RunError) as error:
        resumed(run, "--train.steps", "3")
    said = str(error.value)
    assert f"{run}: its data have changed: {file} (task.name) is not what it was" in said
    assert f"equipoise train {run}/config.toml --model.name {run}/checkpoints/step-2 --train.out DIR" in said
    assert contents(run) == before
    file.write_text(whole)
    resumed(run, "--train.steps", "3").run()


def test_the_command_it_names_starts_a_run_with_the_weights(data_run, tmp_path):
    run, file = data_run
    with open(file, "a") as more:
        more.write('{"question": "1+1=", "solution": 2}\n')
    options = ["--model.name", f"{run}/checkpoints/step-2", "--train.out", str(tmp_path / "new")]
    trainer = Trainer(configured(run / "config.toml", options))
    assert trainer.step == 0
    trainer.run()
    assert [record["step"] for record in evaluations(tmp_path / "new")] == [0, 2]


def test_data_may_lie_elsewhere(data_run, tmp_path):
    run, file = data_run
    moved = file.rename(tmp_path / "moved.jsonl")
    trainer = resumed(run, "--train.steps", "3", "--task.name", str(moved))
    assert trainer.step == 2
    trainer.run()


def test_another_stream_is_other_data(copy, monkeypatch):
    """What is no file, such as the built-in task, is known by its first prompts."""
    from equipoise.tasks import Arithmetic

    right = Arithmetic.prompt
    monkeypatch.setattr(Arithmetic, "prompt", lambda self, i: right(self, i + 1))
    with pytest.raises(RunError, match=r"its data have changed: arithmetic \(task.name\) is not what it was"):
        resumed(copy, "--train.steps", "5")


def test_a_start_that_fails_leaves_no_folder(model, tmp_path):
    out = tmp_path / "runs" / "deep" / "run"
    with pytest.raises(ValueError, match="is not a task"):
        Trainer(settings(model, out, task__name="arithmetics"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RunError, match="holds no run to resume"):
        Trainer(settings(model, out), resume=True)
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_fails_leaves_alone_what_was_there(model, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not a task"):
        Trainer(settings(model, tmp_path / "run", task__name="arithmetics"))
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"

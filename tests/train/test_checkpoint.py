"""Checkpoints and logs: whole or not there, whatever stops the process."""

import builtins
import errno
import json
import os
import random
import shutil
import subprocess

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from equipoise import policy as models
from equipoise.train import RunError, RunFolder, checkpoint, read_lines
from equipoise.train.folder import append


@pytest.fixture(scope="module")
def policy(model):
    return models.load(model)


class Killed(BaseException):
    """Nothing in the code under test may catch it: the process is gone."""


DISK = [(os, name) for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")]
DISK += [(torch, "save"), (builtins, "open")]


def die_at(monkeypatch, k: int) -> None:
    """Stop at the k-th operation on the disk; odd k before it is done, even k after."""
    count = 0

    def counted(operation):
        def call(*arguments, **options):
            nonlocal count
            count += 2
            if count > k:
                raise Killed
            result = operation(*arguments, **options)
            if count == k:
                raise Killed
            return result

        return call

    for module, name in DISK:
        monkeypatch.setattr(module, name, counted(getattr(module, name)))


@pytest.mark.parametrize(
    "again",
    [pytest.param(False, id="the next step"), pytest.param(True, id="the same step again", marks=pytest.mark.long)],
)
def test_a_death_anywhere_leaves_a_whole_checkpoint(policy, tmp_path, monkeypatch, again):
    first = {k: v.clone() for k, v in policy.model.state_dict().items()}
    before, after = tmp_path / "before", tmp_path / "after"
    for earlier in (0, 1):
        checkpoint.save(before, earlier, policy, {"kept": "first"}, keep=1)
    step, deaths = (1 if again else 2), 0
    try:
        policy.model.load_state_dict({k: v + 1 for k, v in first.items()})
        checkpoint.save(after, step, policy, {"kept": "second"}, keep=0)
        for k in range(1, 1000):
            folder = tmp_path / str(k)
            shutil.copytree(before, folder)
            with monkeypatch.context() as patch:
                die_at(patch, k)
                try:
                    checkpoint.save(folder, step, policy, {"kept": "second"}, keep=0)
                except Killed:
                    deaths += 1
                    finished = False
                else:
                    finished = True
            found = checkpoint.steps(folder)
            assert found, f"death {k} left no checkpoint"
            state = torch.load(folder / f"step-{found[-1]}" / checkpoint.STATE, weights_only=True)
            assert state["step"] == found[-1]
            wanted = after / f"step-{step}" if state["kept"] == "second" else before / "step-1"
            for file in wanted.iterdir():
                if file.name not in (checkpoint.STATE, checkpoint.SUMS):  # the draws' state goes on
                    assert (folder / f"step-{found[-1]}" / file.name).read_bytes() == file.read_bytes(), (k, file)
            checkpoint.discard_unfinished(folder)
            assert all(p.name.startswith("step-") for p in folder.iterdir())
            if finished:
                assert state["kept"] == "second"
                assert found == [step]
                break
    finally:
        policy.model.load_state_dict(first)
    assert deaths > 20  # the files, their sync, the renames, the old one's removal: each was hit, before and after


def test_the_oldest_go_and_the_last_stay(policy, tmp_path):
    for step in (3, 5, 10, 20):
        checkpoint.save(tmp_path, step, policy, {}, keep=2)
    assert checkpoint.steps(tmp_path) == [5, 10, 20]
    checkpoint.save(tmp_path, 21, policy, {}, keep=0)
    assert checkpoint.steps(tmp_path) == [21]
    assert [p.name for p in tmp_path.iterdir()] == ["step-21"]


def test_what_is_not_whole_is_not_a_checkpoint(tmp_path):
    for name in ("step-3", ".writing-step-4", ".removing-step-2", "step-x", "step-7.old"):
        (tmp_path / name).mkdir()
    (tmp_path / ".writing-step-4" / checkpoint.STATE).touch()
    (tmp_path / "step-9").touch()
    assert checkpoint.steps(tmp_path) == []
    assert checkpoint.steps(tmp_path / "nowhere") == []


def test_plain_transformers_opens_a_checkpoint(policy, tmp_path):
    saved = checkpoint.save(tmp_path, 1, policy, {}, keep=0)
    opened, tokenizer = AutoModelForCausalLM.from_pretrained(saved), AutoTokenizer.from_pretrained(saved)
    for name, weight in policy.model.state_dict().items():
        assert torch.equal(weight, opened.state_dict()[name])
    assert tokenizer("12+3=")["input_ids"] == models.encode(policy, "12+3=")


class Command:
    """What unpickling turns into a call."""

    def __init__(self, file) -> None:
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


def test_a_doctored_state_runs_nothing(policy, tmp_path):
    saved = checkpoint.save(tmp_path / "c", 1, policy, {"kept": 1}, keep=0)
    state = torch.load(saved / checkpoint.STATE, weights_only=True)
    torch.save({**state, "history": Command(tmp_path / "owned")}, saved / checkpoint.STATE)
    with pytest.raises(RunError, match=r"trainer.pt: it holds more than tensors.* --model.name .*step-1"):
        checkpoint.load(tmp_path / "c", 1, policy)
    assert not (tmp_path / "owned").exists()


def test_the_draws_go_on_where_the_checkpoint_was_written(policy, tmp_path):
    def draws():
        return random.random(), np.random.rand(), np.random.randn(), torch.rand(1).item()

    draws()  # an odd number of normals: numpy keeps the second
    checkpoint.save(tmp_path, 1, policy, {}, keep=0)
    expected = draws()
    draws()
    checkpoint.load(tmp_path, 1, policy)
    assert draws() == expected


def full(*arguments, **options):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("where", ["torch.save", "os.fsync", "os.rename"])
def test_a_full_disk_is_an_os_error_and_takes_the_torn_checkpoint_away(policy, tmp_path, monkeypatch, where):
    checkpoint.save(tmp_path, 1, policy, {"kept": "first"}, keep=0)
    monkeypatch.setattr(where, full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, 2, policy, {}, keep=0)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["step-1"]
    assert checkpoint.load(tmp_path, 1, policy)["kept"] == "first"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own; whoever may not mount one does not run these tests."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("left_kb", [0, 4, 60, 84, 88, 92, 120, 200])
def test_a_disk_that_is_really_full_at_any_point(policy, small_disk, left_kb):
    """The writers of weights, tokenizer and state report it in types of their own; all must come out as OSError."""
    checkpoint.save(small_disk / "c", 1, policy, {"kept": "first"}, keep=0)
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize - left_kb * 1024))
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(small_disk / "c", 2, policy, {"more": torch.zeros(100_000)}, keep=0)
    assert [p.name for p in (small_disk / "c").iterdir()] == ["step-1"]
    (small_disk / "ballast").unlink()
    checkpoint.save(small_disk / "c", 2, policy, {"kept": "second"}, keep=0)
    assert checkpoint.load(small_disk / "c", 2, policy)["kept"] == "second"


def test_a_bug_in_writing_is_not_called_a_full_disk(policy, tmp_path):
    with pytest.raises(Exception, match="pickle") as error:
        checkpoint.save(tmp_path, 1, policy, {"cannot be pickled": lambda: 0}, keep=0)
    assert not isinstance(error.value, OSError)
    assert list(tmp_path.iterdir()) == []


def test_rewinding_forgets_later_steps_and_torn_lines(tmp_path):
    folder = RunFolder(tmp_path)
    for step in range(1, 5):
        append(folder.metrics, {"step": step, "x": float("nan")})
    append(folder.eval, {"step": 0})
    with open(folder.metrics, "a") as f:
        f.write('{"step": 5, "x": 1.')
    folder.rollouts.mkdir()
    for name in ("step-2.parquet", "step-3.parquet", "step-10.parquet", ".step-2.parquet.writing"):
        (folder.rollouts / name).touch()
    assert [r["step"] for r in read_lines(folder.metrics)] == [1, 2, 3, 4]
    folder.rewind(2)
    assert [json.loads(line) for line in folder.metrics.read_text().splitlines()] == [
        {"step": 1, "x": None},
        {"step": 2, "x": None},
    ]
    assert read_lines(folder.eval) == [{"step": 0}]
    assert [p.name for p in folder.rollouts.iterdir()] == ["step-2.parquet"]
    append(folder.metrics, {"step": 3})
    assert [r["step"] for r in read_lines(folder.metrics)] == [1, 2, 3]
    folder.rewind(-1)
    assert read_lines(folder.metrics) == read_lines(folder.eval) == []


def test_a_folder_belongs_to_one_at_a_time(tmp_path):
    one, two = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    one.lock()
    with pytest.raises(RunError, match=rf"in use by another run \(process {os.getpid()}\)"):
        two.lock()
    one.unlock()
    two.lock()
    two.unlock()


def test_a_run_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        RunError, match=r"cannot be used as a run directory: Not a directory; --train\.out names another"
    ):
        RunFolder(tmp_path / "file" / "run").lock()


def test_without_weights_nothing_is_written_at_the_end(train, tmp_path):
    options = {"train__steps": 3, "train__checkpoint_every": 2, "eval__every": 3, "eval__per_level": 2}
    ended = train("--no-weights", **options)
    assert ended.code == 0
    assert "none of step 3 (--no-weights)" in ended.stdout
    assert "equipoise eval" not in ended.stdout
    folder = RunFolder(tmp_path / "run")
    assert checkpoint.steps(folder.checkpoints) == [2]
    assert [record["step"] for record in read_lines(folder.eval)] == [0, 3]

"""A killed run, resumed until it ends, is the undisturbed run: weights, optimizer, anchor, metrics, evaluations, files.

The kills are SIGKILLs of a training process at random moments, and at chosen operations on the disk. The processes are
forked from one that has imported everything (fork_server.py), except for one that is a plain `python -m equipoise`.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from equipoise import policy as models
from equipoise.train import RunFolder, Trainer, checkpoint

from .conftest import ENVIRONMENT, ROOT
from .test_input import HELD, wait_for
from .tiny import REWARDS, last_checkpoint, make_model, metrics, outcome, overrides, settings

# Everything that has a state: the anchor of HA-DW, the reference of the KL, the stream under dynamic sampling, the
# schedule, the optimizer over several passes in mini-batches; and a checkpoint at every step, so that kills meet it
# often.
STATEFUL = {
    "objective__preset": "dapo", "objective__aggregation": "balanced", "objective__difficulty": "hadw_history",
    "objective__kl": 0.01, "rollout__top_p": 0.95, "rollout__dynamic_sampling": True, "optim__schedule": "cosine",
    "train__updates": 2, "train__mini_batch": 2, "train__checkpoint_every": 1, "train__keep": 1,
    "log__rollouts_every": 1, "eval__every": 3,
}  # fmt: skip


def command(model, out, file, **options) -> list[str]:
    """Start the run, or go on with it: with --resume as soon as there is something to resume."""
    file.touch()
    resume = ["--resume"] if RunFolder(out).config.exists() else []
    return ["train", str(file), *resume, *overrides(model, out, **options)]


def whole_lines(out) -> int:
    path = RunFolder(out).metrics
    return path.read_bytes().count(b"\n") if path.exists() else 0


def scene(out) -> str:
    """Where the kill has met the run, as far as the directory tells."""
    folder = RunFolder(out)
    if not folder.config.exists():
        return "before the run began"
    names = {p.name.split("-")[0] for p in folder.checkpoints.iterdir()} if folder.checkpoints.is_dir() else set()
    if ".writing" in names:
        return "while a checkpoint was written"
    if ".removing" in names:
        return "while an old checkpoint was removed"
    kept = checkpoint.steps(folder.checkpoints)
    return "between a step's line and its checkpoint" if whole_lines(out) > (kept[-1] if kept else 0) else "in a step"


def kill_and_resume(
    server, model, out, file, kills: int, draw: random.Random, *, least: int = 0, pause: float = 0.25, **options
) -> Counter:
    """SIGKILL the run `kills` times, each after `least` to 2 more steps and a random while; then let it end."""
    scenes: Counter = Counter()
    while sum(scenes.values()) < kills:
        child = server.start(command(model, out, file, **options))
        target, deadline = whole_lines(out) + draw.randint(least, 2), time.monotonic() + 900
        while child.wait(0.003) is None and whole_lines(out) < target and time.monotonic() < deadline:
            pass
        if child.wait(draw.uniform(0.0, pause)) is not None:
            assert child.code == 0, child.end()
            break
        child.kill(signal.SIGKILL)
        assert child.end().code == -signal.SIGKILL
        scenes[scene(out)] += 1
    ended = server.run(command(model, out, file, **options))
    assert ended.code == 0, ended.stderr
    return scenes


def killed_run(server, model, folder, file, kills: int, draw: random.Random, **options) -> Path:
    """One that was killed so often: the first, unless that was done before on a machine where this process waited."""
    for attempt in range(20):
        out = folder / f"killed-{attempt}"
        scenes = kill_and_resume(server, model, out, file, kills, draw, least=1, pause=0.1, **options)
        if sum(scenes.values()) == kills:
            break
    assert sum(scenes.values()) == kills
    return out


def no_leftovers(out) -> bool:
    hidden = {p.name for p in RunFolder(out).path.rglob("*") if p.name.startswith(".")}
    return hidden <= {".lock"}


def test_two_kills_change_nothing(server, model, tmp_path):
    whole, file = tmp_path / "whole", tmp_path / "empty.toml"
    options = STATEFUL | {"train__steps": 6}
    assert server.run(command(model, whole, file, **options)).code == 0
    out = killed_run(server, model, tmp_path, file, 2, random.Random(1), **options)
    assert outcome(out) == outcome(whole)
    assert [r["step"] for r in metrics(out)] == list(range(1, 7))
    assert no_leftovers(out)


@pytest.mark.long
def test_a_kill_of_a_process_that_was_not_forked_changes_nothing(server, model, tmp_path):
    whole, out, file = tmp_path / "whole", tmp_path / "run", tmp_path / "empty.toml"
    (tmp_path / "reward.py").write_text(HELD)
    options = STATEFUL | {"train__steps": 4, "reward__functions": [f"{tmp_path}/reward.py:ones"]}
    options |= {"reward__seconds": 3600.0}
    assert server.run(command(model, whole, file, **options)).code == 0
    (tmp_path / "held").symlink_to(RunFolder(out).metrics)
    plain = subprocess.Popen(
        [sys.executable, "-m", "equipoise", *command(model, out, file, **options)], cwd=ROOT, env=ENVIRONMENT,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(lambda: (tmp_path / "waiting").exists() or plain.poll() is not None)
    plain.kill()
    assert plain.wait() == -signal.SIGKILL
    (tmp_path / "held").unlink()
    assert checkpoint.steps(RunFolder(out).checkpoints)
    assert server.run(command(model, out, file, **options)).code == 0
    assert outcome(out) == outcome(whole)


@pytest.mark.slow
def test_fifty_kills_change_nothing(server, model, tmp_path):
    whole, out, file = tmp_path / "whole", tmp_path / "run", tmp_path / "empty.toml"
    options = STATEFUL | {"train__steps": 130, "train__max_uninformative": 130}
    assert server.run(command(model, whole, file, **options)).code == 0
    begin = time.monotonic()
    scenes = kill_and_resume(server, model, out, file, 60, random.Random(20_260_101), **options)
    print(f"\n{sum(scenes.values())} SIGKILLs in {time.monotonic() - begin:.0f} s: {dict(scenes)}")
    assert sum(scenes.values()) >= 50
    assert scenes["while a checkpoint was written"] > 0
    assert scenes["in a step"] > 0
    assert outcome(out) == outcome(whole)
    assert [r["step"] for r in metrics(out)] == list(range(1, 131))
    assert no_leftovers(out)


@pytest.mark.slow
def test_a_kill_at_every_operation_on_the_disk_changes_nothing(server, model, tmp_path):
    """Each operation of a whole run that makes, renames, syncs or removes a file: killed before it and after it."""
    whole, file = tmp_path / "whole", tmp_path / "empty.toml"
    options = STATEFUL | {"train__steps": 3, "train__keep": 0, "eval__every": 2}
    assert server.run(command(model, whole, file, **options)).code == 0
    wanted, deaths = outcome(whole), 0
    for k in range(1, 10_000):
        out = tmp_path / f"run-{k}"
        code = server.run(command(model, out, file, **options), die_at=k).code
        if code == 0:
            break
        assert code == -signal.SIGKILL
        deaths += 1
        ended = server.run(command(model, out, file, **options))
        assert ended.code == 0, (k, ended.stderr)
        assert outcome(out) == wanted, k
        assert no_leftovers(out), k
    print(f"\n{deaths} SIGKILLs, one at every operation on the disk")
    assert deaths > 60


def test_kills_at_a_few_operations_on_the_disk(server, model, tmp_path):
    whole, file = tmp_path / "whole", tmp_path / "empty.toml"
    options = STATEFUL | {"train__steps": 2, "train__keep": 0}
    assert server.run(command(model, whole, file, **options)).code == 0
    wanted = outcome(whole)
    for k in (5, 44):
        out = tmp_path / f"run-{k}"
        assert server.run(command(model, out, file, **options), die_at=k).code == -signal.SIGKILL
        assert server.run(command(model, out, file, **options)).code == 0
        assert outcome(out) == wanted, k


def test_stopping_at_any_step_and_going_on_is_not_stopping(model, tmp_path):
    """The same through the library, with a longer run asked for each time."""
    options = {"objective__preset": "dapo", "objective__difficulty": "hadw", "log__terminal": False, "eval__every": 2}
    Trainer(settings(model, tmp_path / "whole", train__steps=4, **options)).run()
    for step in (1, 2, 4):
        trainer = Trainer(settings(model, tmp_path / "run", train__steps=step, **options), resume=step > 1)
        assert trainer.step == {1: 0, 2: 1, 4: 2}[step]
        trainer.run()
    whole, run = outcome(tmp_path / "whole"), outcome(tmp_path / "run")
    run["eval"] = [e for e in run["eval"] if e["step"] != 1]  # a run that ends is evaluated at its end
    assert run == whole


def test_a_checkpoint_with_the_uninformative_steps_among_the_skipped_resumes(model, tmp_path):
    """As the first runs wrote it: three numbers under one name."""
    options = {"log__terminal": False, "reward__functions": [f"{REWARDS}:same"], "eval__every": 0}
    Trainer(settings(model, tmp_path / "run", train__steps=2, **options)).run()
    file = last_checkpoint(tmp_path / "run") / checkpoint.STATE
    state = torch.load(file, weights_only=True)
    state["skipped"] = (*state["skipped"], state.pop("uninformative"))
    torch.save(state, file)
    (file.parent / checkpoint.SUMS).unlink()  # nor had they sums
    resumed = Trainer(settings(model, tmp_path / "run", train__steps=3, **options), resume=True)
    assert (resumed.step, resumed.health.uninformative) == (2, 2)
    resumed.run()
    assert resumed.health.uninformative == 3


def test_a_finished_run_resumes_to_nothing(model, tmp_path):
    options = {"train__steps": 2, "log__terminal": False}
    Trainer(settings(model, tmp_path / "run", **options)).run()
    before = outcome(tmp_path / "run")
    Trainer(settings(model, tmp_path / "run", **options), resume=True).run()
    assert outcome(tmp_path / "run") == before


def test_the_written_configuration_runs_the_same_run_again(model, tmp_path, server):
    options = STATEFUL | {"train__steps": 2, "eval__every": 2, "objective__difficulty": {"name": "hadw", "lam": 1.5}}
    file = tmp_path / "empty.toml"
    assert server.run(command(model, tmp_path / "one", file, **options)).code == 0
    written = RunFolder(tmp_path / "one").config
    assert server.run(["train", str(written), "--train.out", str(tmp_path / "two")]).code == 0
    assert outcome(tmp_path / "one") == outcome(tmp_path / "two")


def test_the_logs_are_on_the_disk_before_the_checkpoint_that_vouches_for_them(model, tmp_path, monkeypatch):
    events = []

    def watched(operation, name):
        def call(*arguments):
            events.append(name(*arguments))
            operation(*arguments)

        return call

    monkeypatch.setattr(os, "fsync", watched(os.fsync, lambda fd: Path(os.readlink(f"/proc/self/fd/{fd}")).name))
    monkeypatch.setattr(os, "rename", watched(os.rename, lambda old, new: f"-> {Path(new).name}"))
    Trainer(settings(model, tmp_path / "run", train__steps=1, log__terminal=False)).run()
    renamed = events.index("-> step-1")
    for name in ("metrics.jsonl", "eval.jsonl", "model.safetensors", checkpoint.STATE, ".writing-step-1"):
        assert name in events[:renamed], name
    assert events[renamed + 1] == "checkpoints"


def test_the_seed_decides_where_adapters_begin(model, tmp_path):
    """Before the first checkpoint a killed run has nothing but its seed to begin with again."""
    pytest.importorskip("peft")
    ends = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        trainer = Trainer(
            settings(model, tmp_path / name, train__steps=1, train__seed=seed, model__lora_rank=2, log__terminal=False)
        )
        trainer.run()
        ends.append(outcome(tmp_path / name))
    assert ends[0] == ends[1]
    assert ends[0]["weights"] != ends[2]["weights"]


@pytest.mark.parametrize("checkpointing", [pytest.param(False, marks=pytest.mark.long), True])
def test_adapters_resume_bit_for_bit(model, tmp_path, checkpointing):
    """With dropout: its masks are those of the undisturbed run."""
    pytest.importorskip("peft")
    options = {"model__lora_rank": 2, "log__terminal": False, "objective__kl": 0.01, "model__lora_dropout": 0.2}
    options["model__gradient_checkpointing"] = checkpointing
    Trainer(settings(model, tmp_path / "whole", train__steps=4, eval__every=2, **options)).run()
    for steps in (2, 4):
        Trainer(
            settings(model, tmp_path / "run", train__steps=steps, eval__every=2, **options), resume=steps == 4
        ).run()
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    changed = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert changed["kl"] > 0  # against the model without its adapter


def test_the_reference_of_a_resumed_run_is_where_the_run_began(model, tmp_path):
    options = {"objective__kl": 0.1, "log__terminal": False}
    Trainer(settings(model, tmp_path / "run", train__steps=1, **options)).run()
    resumed = Trainer(settings(model, tmp_path / "run", train__steps=2, **options), resume=True)
    start = models.load(model).model.state_dict()
    assert all(torch.equal(v, start[k]) for k, v in resumed.updater.reference.model.state_dict().items())
    assert any(not torch.equal(v, start[k]) for k, v in resumed.policy.model.state_dict().items())
    resumed.folder.unlock()


def test_another_model_under_the_same_settings_is_not_mixed_in(tmp_path, server):
    """The checkpoint's weights count, not those the run began with."""
    file, options = tmp_path / "empty.toml", {"log__terminal": False, "eval__every": 0}
    a = make_model(tmp_path / "model")
    assert server.run(command(a, tmp_path / "whole", file, train__steps=2, **options)).code == 0
    assert server.run(command(a, tmp_path / "run", file, train__steps=1, **options)).code == 0
    make_model(tmp_path / "model", seed=5)
    assert server.run(command(a, tmp_path / "run", file, train__steps=2, **options)).code == 0
    assert outcome(tmp_path / "run")["weights"] == outcome(tmp_path / "whole")["weights"]

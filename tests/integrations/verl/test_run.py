"""verl's own main_ppo on the CPU, from what `equipoise export verl` wrote to what our commands read.

Ray, verl's FSDP2 workers over gloo, its agent loop and reward workers; the embedded model, our rollout, our verifier.
Each start brings a dozen processes that import verl, about a minute on an idle machine: all of it is slow.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("verl")

from equipoise import cli
from equipoise.audit import measure
from equipoise.integrations.verl import on_cpu
from equipoise.integrations.verl.export import export_verl
from equipoise.policy.names import ABACUS

from ..test_account import configured

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
RECIPES = ROOT / "recipes" / "verl"
LIMIT = 1500  # seconds for a start and a few steps, on a machine that does other things as well
STEPS = 4
OPTIONS = {
    "model.name": "abacus",
    "model.device": "cpu",
    "task.name": "arithmetic",
    "objective.preset": "dapo+balanced+hadw",
    "rollout.prompts": 4,
    "rollout.group_size": 4,
    "optim.warmup": 0,
    "train.steps": STEPS,
    "train.checkpoint_every": 2,
    "eval.every": STEPS,
    "eval.per_level": 2,
    "eval.samples": 2,
}


def environment(**more):
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    # Ray starts its workers at a lower priority: on a busy machine they would starve.
    told = {"PYTHON": sys.executable, "PYTHONPATH": path, "RAY_worker_niceness": "0", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **told, **more}


def start(folder, **more):
    """The launch as a process, its output in a file."""
    with open(folder / "log", "ab") as log:
        return subprocess.Popen(
            [folder / "launch" / "launch.sh"], env=environment(**more), stdout=log, stderr=log, cwd=folder
        )


def ended(process):
    try:
        return process.wait(LIMIT)
    finally:
        process.terminate()
        process.wait(60)


def exported(folder, **options):
    config = configured({**OPTIONS, "train.out": str(folder / "run"), **options})
    export_verl(config, folder / "launch")
    return folder / "run"


def lines(run):
    """verl's records by step, of each start."""
    found = []
    for file in sorted(run.glob("verl-*.jsonl")):
        records = (json.loads(line) for line in file.read_text().splitlines() if line.endswith("}"))
        found.append({record["step"]: record["data"] for record in records})
    return found


def drawn(run, step):
    rows = [json.loads(line) for line in (run / "rollouts" / f"{step}.jsonl").read_text().splitlines()]
    return sorted((row["input"], row["output"], row["score"]) for row in rows)


def test_a_killed_run_resumes_and_is_read_back(tmp_path, capsys):
    """A worker is killed after a checkpoint: the run ends with an error, goes on from the checkpoint when it is
    started again, and draws what it had drawn."""
    run = exported(tmp_path)
    process = start(tmp_path)
    try:
        deadline = time.monotonic() + LIMIT
        while not (run / "rollouts" / "3.jsonl").exists():
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        before = drawn(run, 3)
        worker = re.search(r"\(WorkerDict pid=(\d+)\)", (tmp_path / "log").read_text())
        os.kill(int(worker[1]), signal.SIGKILL)
        assert ended(process) != 0
    finally:
        process.terminate()
    (run / "rollouts" / "3.jsonl").unlink()
    assert ended(start(tmp_path)) == 0
    assert drawn(run, 3) == before
    assert (run / "latest_checkpointed_iteration.txt").read_text() == str(STEPS)
    first, second = lines(run)
    assert min(step for step in second if "training/global_step" in second[step]) == 3
    assert second[3]["difficulty/anchor"] == pytest.approx(first[3]["difficulty/anchor"], abs=1e-9)
    reads_back(run, capsys)


def reads_back(run, capsys):
    found = measure(run / "rollouts")
    assert (len(found.steps), found.group_size) == (STEPS, (4, 4))
    cli.main(["report", str(run)])
    page = (run / "report.html").read_text()
    assert all(name in page for name in ("reward/mean", "bias/mass_balance", "acc@2"))
    capsys.readouterr()
    cli.main(["eval", str(run)])
    told = capsys.readouterr().out
    assert "as its run evaluates: 8 held-out prompts" in told  # two of each level, twice each, as the launch says
    assert "acc@2" in told


def test_two_ranks_train_what_one_does(tmp_path):
    """Two workers over gloo see the same weights and log-probabilities: the first step's draws are another server's,
    so what is compared is the sampler with the actor."""
    run = exported(tmp_path, **{"train.steps": 2, "train.checkpoint_every": 2, "eval.every": 0})
    assert ended(start(tmp_path, GPUS="2")) == 0
    (found,) = lines(run)
    assert sorted(found) == [1, 2]
    for metrics in found.values():
        assert metrics["training/rollout_probs_diff_max"] < 1e-4
        assert metrics["actor/grad_norm"] > 0
    assert len(list((run / "global_step_2" / "actor").glob("model_world_size_2_rank_*.pt"))) == 2


@pytest.mark.parametrize("name", sorted(p.name for p in RECIPES.glob("*_*.sh")))
def test_a_recipe_runs_two_steps_with_a_small_model(name, tmp_path):
    exported(tmp_path)
    rows = tmp_path / "launch"
    standing_in = {"MODEL": str(ABACUS), "TRAIN": str(rows / "train.parquet"), "TEST": str(rows / "val.parquet")}
    # The model answers in a form of its own, which the launch's reward function reads.
    ours = "reward.custom_reward_function"
    words = [
        "actor_rollout_ref.model.custom_chat_template='{{ messages[0][\"content\"] }}'",
        f"{ours}.path=pkg://equipoise.integrations.verl.export",
        f"{ours}.name=compute_score",
        f"+{ours}.reward_kwargs.config={rows / 'config.toml'}",
    ]
    more = {"RUN": str(tmp_path / "run"), "VERL_FILE_LOGGER_PATH": str(tmp_path / "verl-1.jsonl")}
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            [RECIPES / "cpu.sh", RECIPES / name, *words],
            env=environment(**standing_in, **more),
            stdout=log,
            stderr=log,
            cwd=tmp_path,
        )
        assert ended(process) == 0, (tmp_path / "log").read_text()[-3000:]
    (found,) = lines(tmp_path)
    assert sorted(found) == [1, 2]
    assert all("bias/mass_balance" in metrics for metrics in found.values())


def test_the_recipes_get_the_settings_of_a_launch():
    """cpu.sh asks on_cpu for its overrides."""
    ran = subprocess.run(
        [sys.executable, "-m", "equipoise.integrations.verl.on_cpu"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert dict(line.split("=", 1) for line in ran.stdout.splitlines()).keys() == on_cpu.SETTINGS.keys()

"""`equipoise export` on the command line: what it writes and says, and one sentence for a mistake."""

import json
import subprocess

import pyarrow.parquet as pq
import pytest

from equipoise.integrations.launch import ExportError
from equipoise.train import load


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        f"[train]\nout = '{tmp_path / 'out'}'\nsteps = 2\n[rollout]\nprompts = 3\n[log]\nrollouts_every = 0\n"
    )
    return path


def test_a_launch_for_trl(equipoise, config, tmp_path):
    code, out, err = equipoise("export", "trl", config, tmp_path / "launch", "--optim.warmup", "0", "--eval.every=0")
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    assert first == f"{tmp_path / 'launch'}: start it with python {tmp_path / 'launch'}/launch.py"
    assert second.endswith("0 nearly mapped, 0 unmappable")
    assert sorted(p.name for p in (tmp_path / "launch").iterdir()) == ["config.toml", "grpo.yaml", "launch.py"]
    kept = load(tmp_path / "launch" / "config.toml")
    assert (kept.train.steps, kept.optim.warmup) == (2, 0)
    compile((tmp_path / "launch" / "launch.py").read_text(), "launch.py", "exec")


def test_a_launch_for_verl(equipoise, config, tmp_path):
    code, out, err = equipoise("export", "verl", config, tmp_path / "launch")
    assert (code, err) == (0, "")
    assert "eval.greedy=true: unmappable: verl validates once" in out
    script = tmp_path / "launch" / "launch.sh"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    rows = pq.read_table(tmp_path / "launch" / "train.parquet").to_pylist()
    assert [row["extra_info"]["index"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert all(row["extra_info"]["split"] == "held out" for row in pq.read_table(
        tmp_path / "launch" / "val.parquet").to_pylist())  # fmt: skip


def test_the_words_of_the_script_are_the_settings(equipoise, config, tmp_path):
    """Bash itself reads them: quotes, braces, dollars, and the folder of the script, whatever it is called."""
    folder = tmp_path / "a folder, of $mine"
    equipoise("export", "verl", config, folder)
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(fake), "GPUS": "4"}
    ran = subprocess.run([folder / "launch.sh", "more=1"], env=environment, capture_output=True, text=True, check=True)
    words = ran.stdout.splitlines()
    assert words[:3] == ["-m", "verl.trainer.main_ppo", "trainer.n_gpus_per_node=4"]
    assert words[-1] == "more=1"
    assert f"data.train_files='{folder}/train.parquet'" in words
    assert "+actor_rollout_ref.actor.policy_loss.equipoise='${algorithm.equipoise}'" in words
    assert "+algorithm.equipoise.surrogate={name:'ppo_clip',low:0.2,high:0.2}" in words
    assert """actor_rollout_ref.model.custom_chat_template='{{ messages[0]["content"] }}'""" in words


def test_data_wherever_the_file_is_named(equipoise, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"q": "a", "answer": "1"}\n')
    columns = ("--task.columns", '{prompt = "q", answer = "answer"}')
    for name, order in {"a": ("{}", "--to", "verl"), "b": ("--to", "verl", "{}"), "c": ("--to=verl", "{}")}.items():
        file = tmp_path / f"{name}.parquet"
        words = (word.format(file) for word in order)
        code, out, err = equipoise("export", "data", tmp_path / "x.jsonl", *words, *columns)
        assert (code, out, err) == (0, f"{file}: 1 rows\n", "")
        (row,) = pq.read_table(file).to_pylist()
        assert row["prompt"] == [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tlr", "{config}"], 'export: "tlr" is not known; did you mean "trl"? (trl, verl, data, rollouts)'),
        (["trl", "nowhere.toml"], "nowhere.toml: there is no such file"),
        (["trl", "{config}", "--optm.lr", "1"], 'optm is not a section; did you mean "optim"?'),
        (["verl", "{config}", "--to", "trl"], "--to trl: the launch is for verl already"),
        (["verl", "{config}", "--task.name", "nowhere.jsonl"], "nowhere.jsonl"),
        (["trl", "{config}", "--model.name", "smollm"], 'model.name = "smollm" comes out of a Python package'),
        (["trl", "{config}", "--model.name", "./nowhere"], "model './nowhere': nowhere is not there"),
        (["trl", "{config}", "--rollout.group_size", "1", "--objective.preset", "reinforce"],
         "rollout.group_size = 1: TRL's rule is at least 2"),
        (["trl", "{config}", "{config}"], "{config}/launch.py: cannot be written"),
        (["data", "{config}"], "export data {config}: say where to and for whom: OUT --to trl or verl"),
        (["data", "nowhere.jsonl", "x.parquet", "--to", "trl"], "nowhere.jsonl"),
        (["data", "x.jsonl", "x.csv", "--to", "trl"], "x.csv: must be a name that ends with .parquet"),
        (["data", "x.jsonl", "x.parquet", "--to", "slime"], '--to "slime": must be trl or verl'),
        (["data", "x.jsonl", "x.parquet", "--to", "trl", "--task.dedupe", "true"], "--task.dedupe: data are written"),
        (["data", "x.jsonl", "x.parquet", "--to", "trl", "--optim.lr", "1"], "--optim.lr: data are written with"),
        (["rollouts", "nowhere", "out", "--to", "verl"], "nowhere: holds no rollouts/step-N.parquet"),
        (["rollouts", "nowhere", "out", "--to", "verl", "--a.b", "1"], "--a.b: rollouts are written as they are"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(equipoise, config, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = equipoise("export", *(a.format(config=config) if "{config}" in a else a for a in arguments))
    assert (code, out) == (1, "")
    assert err.startswith(f"equipoise: {said.replace('{config}', str(config))}")
    assert err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.toml"]


def test_nothing_is_written_over(equipoise, config, tmp_path):
    assert equipoise("export", "trl", config, tmp_path / "launch")[0] == 0
    (tmp_path / "launch" / "launch.py").write_text("mine")
    code, _, err = equipoise("export", "trl", config, tmp_path / "launch")
    assert code == 1
    assert "launch.py: is there already: move it away, or choose another place" in err
    assert (tmp_path / "launch" / "launch.py").read_text() == "mine"
    (tmp_path / "x.jsonl").write_text(json.dumps({"prompt": "a", "answer": "1"}))
    (tmp_path / "x.parquet").write_text("mine")
    code, _, err = equipoise("export", "data", tmp_path / "x.jsonl", tmp_path / "x.parquet", "--to", "trl")
    assert (code, (tmp_path / "x.parquet").read_text()) == (1, "mine")


def test_a_launch_for_verl_is_there_whole_or_not_at_all(equipoise, config, tmp_path, monkeypatch):
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch" / "val.parquet").write_text("mine")
    code, _, err = equipoise("export", "verl", config, tmp_path / "launch")
    assert code == 1
    assert "val.parquet: is there already" in err
    assert [p.name for p in (tmp_path / "launch").iterdir()] == ["val.parquet"]

    def full(rows, out):
        raise ExportError(f"{out}: cannot be written: No space left on device")

    monkeypatch.setattr("equipoise.integrations.verl.export.write_parquet", full)
    assert equipoise("export", "verl", config, tmp_path / "other")[0] == 1
    assert not (tmp_path / "other" / "launch.sh").exists()


@pytest.mark.parametrize("arguments", [("export",), ("export", "trl")])
def test_a_wrong_command_line_is_2(equipoise, arguments):
    code, _, err = equipoise(*arguments)
    assert code == 2
    assert "usage: equipoise" in err

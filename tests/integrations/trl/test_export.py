"""The exported script under the real TRL: its parser, its trainer, two steps on the embedded model, what it left."""

import importlib.util
import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM

pytest.importorskip("trl")

import datasets
from trl import GRPOConfig, GRPOTrainer, TrlParser

from equipoise import Objective, policy
from equipoise.audit import measure
from equipoise.config import TaskConfig
from equipoise.integrations.data import export_data
from equipoise.integrations.launch import arguments, open_task, settled
from equipoise.integrations.trl import export as trl
from equipoise.integrations.trl.export import export_trl
from equipoise.integrations.trl.plugin import EquipoiseGRPOTrainer, adapted
from equipoise.integrations.trl.script import FIXED, objective_of
from equipoise.policy.names import ABACUS
from equipoise.tasks.arithmetic import grade
from equipoise.tasks.problems import read_problems
from equipoise.verifiers.host_functions import as_trl

from ..test_account import ALL, CONFIGS, configured

SMALL = {"train.steps": 2, "rollout.prompts": 3, "rollout.group_size": 4, "rollout.max_tokens": 16, "train.threads": 1,
         "train.checkpoint_every": 1, "eval.every": 0, "model.device": "cpu", "log.terminal": False,
         "log.rollouts_every": 1}  # fmt: skip
WITHOUT_GPU = {"rollout.engine": "native", "objective.mismatch": "none", "model.name": "abacus", "model.device": "cpu"}


def launched(folder):
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("launch", folder / "launch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parsed(folder, *more):
    (args,) = TrlParser((GRPOConfig,)).parse_args_and_config(["--config", str(folder / "grpo.yaml"), *more])
    return args


def built(folder, monkeypatch):
    """The trainer the script builds, stopped before it trains."""
    found = []
    monkeypatch.setattr(EquipoiseGRPOTrainer, "train", lambda self, **options: found.append(self))
    monkeypatch.setattr(EquipoiseGRPOTrainer, "save_model", lambda self, folder: None)
    monkeypatch.setattr(sys, "argv", ["launch.py"])
    launched(folder).main()
    return found[0]


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "eight bits"])  # they need a GPU
def test_trl_parses_what_was_exported(name, tmp_path):
    """Every setting is one that TRL knows, and has there the value that was exported."""
    config = settled(configured({**CONFIGS[name], "train.out": str(tmp_path / "run"), "model.device": "cpu"}))
    export_trl(config, tmp_path / "launch")
    args = parsed(tmp_path / "launch")
    for key, value in {**FIXED, **arguments(trl.settings(config, open_task(config)))}.items():
        found = getattr(args, key)
        if key == "report_to":
            value = [] if value == ["none"] else value
        assert getattr(found, "value", found) == value, key
    r = config.rollout
    assert args.generation_batch_size == r.prompts * r.group_size  # one batch of rollouts
    in_a_step = args.per_device_train_batch_size * args.gradient_accumulation_steps
    assert in_a_step == (config.train.mini_batch or r.prompts) * r.group_size
    assert args.max_steps == config.optimizer_steps
    assert parsed(tmp_path / "launch", "--learning_rate", "0.25").learning_rate == 0.25
    ours = config.build_objective().choices()
    theirs = adapted(Objective(**objective_of(config)), args, list(config.reward.weights)).choices()
    lost = {"refused": ["difficulty"], "prefix": ["mismatch"]}.get(name, [])  # which the account names
    lost += [] if config.objective.kl else ["kl_estimator"]
    assert {k: v for k, v in theirs.items() if k not in lost} == {k: v for k, v in ours.items() if k not in lost}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"objective.preset": "dapo", "objective.aggregation": "balanced", "objective.difficulty": "hadw"},
        {"objective.preset": "dr_grpo", "objective.kl": 0.1, "objective.kl_estimator": "k3_ratio"},
        {"objective.preset": "dfpo", "objective.kl": 0.1, "objective.kl_estimator": "k1"},
        {**{k: v for k, v in ALL.items() if k.startswith(("objective.", "reward."))}, **WITHOUT_GPU},
    ],
)
def test_the_trainer_of_the_script_has_the_objective_of_the_configuration(options, tmp_path, monkeypatch):
    config = configured({**SMALL, **options, "train.out": str(tmp_path / "run")})
    export_trl(config, tmp_path / "launch")
    trainer = built(tmp_path / "launch", monkeypatch)
    ours, theirs = config.build_objective().choices(), trainer.objective.choices()
    assert theirs.pop("reward_weights") == pytest.approx(ours.pop("reward_weights"))  # TRL keeps them in float32
    assert theirs == ours
    assert len(trainer.reward_funcs) == len(config.reward.functions)


def test_two_steps_on_the_embedded_model(tmp_path, monkeypatch):
    """They run; prompts are ours in our order, rewards are our verdicts, and what is left opens here."""
    config = configured({**SMALL, "train.out": str(tmp_path / "run"), "objective.preset": "dapo", "optim.warmup": 0})
    export_trl(config, tmp_path / "launch")
    monkeypatch.setattr(sys, "argv", ["launch.py"])
    launched(tmp_path / "launch").main()
    out = tmp_path / "run"
    task = open_task(config)
    for step in (1, 2):
        rows = pq.read_table(out / "completions" / f"completions_{step:05d}.parquet").to_pylist()
        drawn = [task.prompt(3 * (step - 1) + i) for i in range(3) for _ in range(4)]
        assert [row["prompt"] for row in rows] == [prompt.text for prompt in drawn]
        for row, prompt in zip(rows, drawn, strict=True):
            assert row["verdict"] == grade(row["completion"], prompt.answer).kind
            assert row["task"] == float(row["verdict"] == "correct")
    start = policy.load("abacus").model.state_dict()
    last = policy.load(out).model.state_dict()
    assert any(not torch.equal(start[k], last[k]) for k in start)
    for name in ("checkpoint-1", "checkpoint-2"):
        opened = policy.load(out / name).model.state_dict()
        assert opened.keys() == AutoModelForCausalLM.from_pretrained(out / name).state_dict().keys()
        assert all(torch.equal(opened[k], last[k]) for k in last) == (name == "checkpoint-2")
    audit = measure(out, "dapo")
    assert (audit.source, audit.overall.groups > 0) == ("TRL", True)


@pytest.mark.slow
def test_two_processes_train_on_the_same_batches(tmp_path):
    """Under torchrun the batch is split, and TRL's log has the prompts that one process would have had."""
    config = configured({**SMALL, "train.out": str(tmp_path / "run"), "rollout.prompts": 4, "train.micro_batch": 4})
    export_trl(config, tmp_path / "launch")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        str(tmp_path / "launch/launch.py"),
    ]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    task = open_task(config)
    for step in (1, 2):
        rows = pq.read_table(tmp_path / "run" / "completions" / f"completions_{step:05d}.parquet").to_pylist()
        drawn = [task.prompt(4 * (step - 1) + i).text for i in range(4) for _ in range(4)]
        assert [row["prompt"] for row in rows] == drawn
    assert policy.load(tmp_path / "run").name == str(tmp_path / "run")


def test_trl_trains_on_data_that_was_exported_for_it(tmp_path):
    """Its own loader, its own trainer with our verifier as its reward function, no launch of ours."""
    rows = [{"problem": f"{i}+1=", "answer": str(i + 1)} for i in range(10, 16)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    export_data(TaskConfig(name=str(tmp_path / "x.jsonl")), "trl", tmp_path / "x.parquet")
    data = datasets.load_dataset("parquet", data_files=str(tmp_path / "x.parquet"), split="train",
                                 cache_dir=str(tmp_path / "cache"))  # fmt: skip
    args = GRPOConfig(
        output_dir=str(tmp_path / "run"), max_steps=1, per_device_train_batch_size=4, num_generations=4,
        max_completion_length=8, use_cpu=True, bf16=False, report_to="none", disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(str(ABACUS), reward_funcs=[as_trl("math")], args=args, train_dataset=data)
    trainer.train()
    assert "rewards/math/mean" in {key for entry in trainer.state.log_history for key in entry}


@pytest.mark.parametrize("prompt", ["{}", [{"role": "user", "content": "{}"}]])
def test_data_that_trl_users_write_is_read(prompt, tmp_path):
    """Parquet and folders of the package datasets, standard and conversational."""

    def row(i):
        text = (
            prompt.format(i) if isinstance(prompt, str) else [{**prompt[0], "content": prompt[0]["content"].format(i)}]
        )
        return {"prompt": text, "solution": f"\\boxed{{{i}}}"}

    data = datasets.Dataset.from_list([row(i) for i in range(3)])
    data.to_parquet(str(tmp_path / "theirs.parquet"))
    data.save_to_disk(str(tmp_path / "folder"))
    for name in ("theirs.parquet", "folder"):
        items = [item for _, item in read_problems(str(tmp_path / name))]
        assert [(item.question, item.answer, item.verifier) for item in items] == [
            (str(i), str(i), "math") for i in range(3)
        ]


def test_the_held_out_prompts_are_ours(tmp_path, monkeypatch):
    config = configured({**SMALL, "train.out": str(tmp_path / "run"), "eval.every": 2, "eval.per_level": 2})
    export_trl(config, tmp_path / "launch")
    trainer = built(tmp_path / "launch", monkeypatch)
    expected = open_task(config).evaluation(2)
    assert trainer.eval_dataset["prompt"] == [prompt.text for prompt in expected]
    (reward,) = trainer.reward_funcs
    columns = {name: trainer.eval_dataset[name] for name in ("split", "index")}
    right = [f"#{prompt.answer}" for prompt in expected]
    assert reward(completions=right, completion_ids=[[0]] * 8, **columns) == [1.0] * 8
    assert reward(completions=right[::-1], completion_ids=[[0]] * 8, **columns) == [0.0] * 8


def test_a_checkpoint_of_ours_is_a_model_for_trl(tmp_path, monkeypatch):
    """`model.name` may be a run of ours: the launch names the folder of its last checkpoint."""
    run = tmp_path / "ours"
    policy.save(policy.load("abacus"), run / "checkpoints" / "step-7")
    config = configured({**SMALL, "model.name": str(run), "train.out": str(tmp_path / "run")})
    export_trl(config, tmp_path / "launch")
    trainer = built(tmp_path / "launch", monkeypatch)
    assert trainer.model.config._name_or_path == str(run / "checkpoints" / "step-7")


def test_lora_and_bfloat16_reach_the_model(tmp_path, monkeypatch):
    pytest.importorskip("peft")
    config = configured({**SMALL, "model.lora_rank": 4, "train.out": str(tmp_path / "run")})
    export_trl(config, tmp_path / "launch")
    trainer = built(tmp_path / "launch", monkeypatch)
    (adapter,) = trainer.model.peft_config.values()
    assert (adapter.r, adapter.lora_alpha) == (4, 32.0)
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}


def test_a_verdict_without_a_score_is_none_to_every_function(tmp_path):
    """TRL adds up what is not None: one function's silence would be a reward of 0 beside another's."""
    config = configured({"reward.functions": ["task", "boxed"], "reward.weights": [1.0, 0.5], "reward.unparsed": "mask",
                         "reward.wrong": -1.0, "rollout.max_tokens": 20, "reward.overlong_buffer": 10})  # fmt: skip
    task = open_task(config)
    right = task.prompt(1).answer
    completions = [f"#{right}", "#1", r"no answer \boxed{1}", [{"role": "assistant", "content": f"#{right}"}]]
    columns = {"completions": completions, "completion_ids": [[0] * n for n in (3, 15, 3, 20)],
               "split": ["train"] * 4, "index": [1] * 4, "prompts": [""] * 4, "trainer_state": None}  # fmt: skip
    by_task, by_box = trl.reward_functions(config, task)
    assert by_task(**columns) == [1.0, -1.5, None, 0.0]
    assert by_box(**columns) == [-1.0, -1.0, None, -1.0]
    assert (by_task.__name__, by_box.__name__) == ("task", "boxed")

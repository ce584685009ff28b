"""The exported override list under the real verl: composed by its hydra, validated by it, its data and rewards loaded.

The training itself is in test_run.py.
"""

import dataclasses
import json
import os
import subprocess
import sys
import typing
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("verl")

from hydra import compose, initialize_config_module
from hydra.utils import get_class
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.core_algos import agg_loss, kl_penalty
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.trainer.ppo.rollout_corr_helper import _parse_rollout_is_threshold
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.torch_functional import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup
from verl.workers.config import HFModelConfig

from equipoise.audit import measure
from equipoise.integrations.launch import arguments, open_task, settled
from equipoise.integrations.verl import export as verl
from equipoise.integrations.verl.export import export_verl
from equipoise.integrations.verl.objective_options import kept
from equipoise.integrations.verl.plugin import divisor, estimate, objective_of
from equipoise.integrations.verl.script import ACTOR, FIXED, HERE
from equipoise.objective import response_ids
from equipoise.policy.names import ABACUS
from equipoise.tasks.problems import read_problems
from equipoise.train.update import learning_rate
from tests.audit.synthetic import Law
from tests.audit.test_read import numbers, verl_dump

from ..test_account import CONFIGS, configured


@pytest.fixture(autouse=True)
def _runs_go_there(tmp_path, monkeypatch):
    """A launch makes the folder of its run, which a relative train.out puts here."""
    monkeypatch.chdir(tmp_path)


def composed(folder):
    """verl's own configuration with the overrides of the script, as bash gives them to it."""
    fake = folder / "words"
    fake.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    fake.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(fake), "GPUS": "2"}
    ran = subprocess.run([folder / "launch.sh"], env=environment, capture_output=True, text=True, check=True)
    words = ran.stdout.split("\0")[2:-1]
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=words)


def exported(tmp_path, options):
    config = configured({"train.steps": 2, "rollout.prompts": 4, "model.name": "abacus", **options})
    export_verl(config, tmp_path / "launch")
    return config, composed(tmp_path / "launch")


@pytest.mark.parametrize("name", CONFIGS)
def test_verl_composes_what_was_exported(name, tmp_path):
    """Every setting is known to verl, or added, with the value that was exported; and verl accepts the whole."""
    small = {
        "rollout.prompts": 6,
        "rollout.group_size": 4,
        "model.name": "abacus",
        "model.lora_rank": 0,
        "model.quantize": "none",
    }
    config = settled(configured({**CONFIGS[name], **small}))
    export_verl(config, tmp_path / "launch")
    job = composed(tmp_path / "launch")
    for key, value in {**FIXED, **arguments(verl.settings(config, open_task(config)))}.items():
        if isinstance(value, str):
            value = value.replace(HERE, str(tmp_path / "launch"))
        found = OmegaConf.select(job, key.removeprefix("+"))
        if OmegaConf.is_config(found):
            found = OmegaConf.to_container(found, resolve=True)
        if value == "${algorithm.equipoise}":
            value = OmegaConf.to_container(job.algorithm.equipoise)
        if key == "trainer.default_local_dir" or key == "trainer.rollout_data_dir":
            value = os.path.abspath(value)
        assert json.loads(json.dumps(found)) == json.loads(json.dumps(value)), key
    validate_config(job, need_reference_policy(job), need_critic(job))
    assert not need_critic(job)
    assert need_reference_policy(job) == (config.objective.kl > 0 and config.objective.kl_estimator != "k3_ratio")
    actor = omega_conf_to_dataclass(job.actor_rollout_ref.actor)
    actor.validate(2, job.data.train_batch_size, job.actor_rollout_ref.model)
    correction = omega_conf_to_dataclass(job.algorithm.rollout_correction, RolloutCorrectionConfig)
    if correction.rollout_is is not None:
        _parse_rollout_is_threshold(correction.rollout_is_threshold)
    objective = objective_of(job.algorithm.equipoise)
    assert divisor(job.algorithm, objective) == (job.actor_rollout_ref.actor.loss_scale_factor or 1.0)
    ours, theirs = config.build_objective().choices(), objective.choices()
    for choice in kept(config.build_objective()):
        assert json.loads(json.dumps(theirs[choice])) == json.loads(json.dumps(ours[choice])), choice


# Sections that verl makes dataclasses of without saying so in its files.
UNSAID = {"algorithm.rollout_correction": RolloutCorrectionConfig}


def typed(job, key):
    """A setting as the only field of a dataclass, with the type that verl gives it; None where verl gives none."""
    section, _, name = key.rpartition(".")
    target = OmegaConf.select(job, section).get("_target_")
    owner = get_class(target) if target else UNSAID.get(section)
    kind = typing.get_type_hints(owner).get(name) if owner else None
    return kind and OmegaConf.structured(dataclasses.make_dataclass("Typed", [(name, kind)]))


@pytest.mark.parametrize("name", CONFIGS)
def test_numbers_are_of_the_type_that_verl_declares(name, tmp_path):
    """verl's vLLM server refuses 32.0 where a field is an int; most other places take what they get."""
    options = {**CONFIGS[name], "model.name": "abacus", "model.quantize": "none", "train.steps": 2}
    config = settled(configured(options))
    export_verl(config, tmp_path / "launch")
    job = composed(tmp_path / "launch")
    checked = 0
    for key in {**FIXED, **arguments(verl.settings(config, open_task(config)))}:
        plain = key.removeprefix("+")
        if (declared := typed(job, plain)) is not None:
            declared[plain.rpartition(".")[2]] = OmegaConf.select(job, plain)  # omegaconf refuses another type
            checked += 1
    assert checked > 35


@pytest.mark.parametrize("options", [{}, {"model.lora_rank": 8, "model.lora_alpha": 12.0}])
def test_the_vllm_server_opens_the_model_section(options, tmp_path):
    """As verl's vLLMHttpServer does, field by field."""
    _, job = exported(tmp_path, options)
    model = omega_conf_to_dataclass(job.actor_rollout_ref.model, dataclass_type=HFModelConfig)
    if options:
        assert (model.lora_rank, model.lora_alpha) == (8, 12)


def test_a_launch_on_cpus_says_so_to_verl_and_to_ray(tmp_path):
    """Ray counts verl's workers as GPUs; a cluster that runs already is told nothing."""
    config, job = exported(tmp_path, {"model.device": "cpu", "train.shard": True, "train.micro_batch": 8})
    assert job.trainer.device == "cpu"
    assert job.actor_rollout_ref.rollout.name == "equipoise"
    assert job.ray_kwargs.ray_init.num_gpus == 2
    assert job.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype == "fp32"
    text = (tmp_path / "launch" / "launch.sh").read_text()
    assert "export VERL_PLATFORM=cpu" in text
    assert text.index("RAY_ADDRESS") < text.index("num_gpus")
    assert (Path(config.train.out).resolve() / "config.toml").read_text() == (
        tmp_path / "launch" / "config.toml"
    ).read_text()


def test_bfloat16_is_left_to_verl(tmp_path):
    """Its default is float32 masters and bfloat16 in the passes; float32 has to be said."""
    _, job = exported(tmp_path, {"model.dtype": "bfloat16"})
    assert job.actor_rollout_ref.actor.fsdp_config.get("mixed_precision") is None


def drawn(rows, width, group):
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, width + 1, (rows,), generator=g)
    mask = (torch.arange(width) < lengths[:, None]).long()
    reward = torch.rand(rows, generator=g).round(decimals=1)
    scores = torch.zeros(rows, width).scatter_(1, lengths[:, None] - 1, reward[:, None])  # at the last token, as verl
    logp, ref = (-2 * torch.rand(rows, width, generator=g, dtype=torch.float64) for _ in range(2))
    return lengths, mask, reward, scores, np.array([f"u{i // group}" for i in range(rows)], dtype=object), logp, ref


@pytest.mark.parametrize(
    "options",
    [
        {"objective.preset": "dapo", "objective.aggregation": "balanced"},
        {"objective.preset": "grpo", "objective.kl": 0.1},
        {
            "objective.preset": "dr_grpo",
            "objective.averaged_groups": "informative",
            "objective.cancellation": "recentre",
        },
    ],
)
def test_the_estimator_of_the_launch_gives_our_coefficients(options, tmp_path):
    config, job = exported(tmp_path, options)
    lengths, mask, reward, scores, index, _, _ = drawn(rows=16, width=12, group=4)
    advantages, _ = estimate(scores, mask, index, config=job.algorithm)
    credit = config.build_objective().assign(reward, index, lengths)
    L = job.actor_rollout_ref.actor.loss_scale_factor or 1.0
    expected = (credit.coefficient * 16 * L)[:, None] * mask
    torch.testing.assert_close(advantages, expected.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_kl_of_the_launch_is_ours_under_a_constant_length(estimator, tmp_path):
    """verl's own KL and average, with the launch's weight and factor, beside the KL in our loss."""
    options = {"objective.preset": "dr_grpo", "objective.aggregation": {"name": "constant", "length": 16.0},
               "objective.kl": 0.1, "objective.kl_estimator": estimator, "rollout.max_tokens": 64}  # fmt: skip
    config, job = exported(tmp_path, options)
    lengths, mask, reward, _, index, logp, ref = drawn(rows=16, width=12, group=4)
    actor = job.actor_rollout_ref.actor
    kld = kl_penalty(logprob=logp, ref_logprob=ref, kl_penalty=actor.kl_loss_type)
    theirs = actor.kl_loss_coef * agg_loss(
        kld, mask, actor.loss_agg_mode, loss_scale_factor=actor.loss_scale_factor, global_batch_size=16, dp_size=1
    )
    objective = config.build_objective()
    credit = objective.assign(reward, index, lengths)
    keep = mask.bool()
    out = objective.loss(logp[keep], logp[keep], credit, response_ids(lengths), ref_logprobs=ref[keep])
    assert float(out.loss - out.stats.policy_loss) == pytest.approx(float(theirs), rel=1e-6)


def test_lora_reaches_the_model(tmp_path):
    """Not validated: for adapters verl asks vLLM, which is not installed beside it here."""
    _, job = exported(tmp_path, {"model.lora_rank": 8})
    model = omega_conf_to_dataclass(job.actor_rollout_ref.model)
    assert (model.lora_rank, model.lora_alpha, model.target_modules) == (8, 32, "all-linear")


def test_main_ppo_itself_takes_the_launch(tmp_path):
    """`--cfg job` prints the configuration that verl's own entry point would train with."""
    config = configured({"model.name": "abacus", "train.steps": 2})
    export_verl(config, tmp_path / "launch")
    environment = {**os.environ, "PYTHON": sys.executable}
    ran = subprocess.run([tmp_path / "launch" / "launch.sh", "--cfg", "job"], env=environment, capture_output=True,
                         text=True, cwd=tmp_path, check=False)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    job = OmegaConf.create(ran.stdout)
    assert job.algorithm.adv_estimator == "equipoise"
    assert job.trainer.total_training_steps == 2


def test_verl_reads_the_prompts(tmp_path):
    """By its own dataset, and the template makes of them what our model reads."""
    from verl.utils.dataset.rl_dataset import RLHFDataset

    config, job = exported(tmp_path, {})
    tokenizer = AutoTokenizer.from_pretrained(ABACUS)
    tokenizer.chat_template = job.actor_rollout_ref.model.custom_chat_template
    rows = RLHFDataset(job.data.train_files, tokenizer, job.data)
    task = open_task(config)
    assert len(rows) == 8
    for i in range(8):
        row, prompt = rows[i], task.prompt(i)
        assert tokenizer.apply_chat_template(row["raw_prompt"], tokenize=False) == prompt.text
        assert row["reward_model"]["ground_truth"] == prompt.answer
        assert row["index"] == i
    assert len(RLHFDataset(job.data.val_files, tokenizer, job.data)) == len(task.evaluation(config.eval.per_level))
    assert [item.question for _, item in read_problems(job.data.train_files)] == [task.prompt(i).text for i in range(8)]


def test_verl_calls_our_rewards(tmp_path):
    """Through its own loader: the weighted sum of what our configuration says, for training and held-out prompts."""
    options = {"reward.functions": ["task", "boxed"], "reward.weights": [1.0, 0.5], "reward.unparsed": "mask",
               "reward.wrong": -1.0}  # fmt: skip
    config, job = exported(tmp_path, options)
    score = get_custom_reward_fn(job)
    task = open_task(config)
    for split, prompts in (("train", [task.prompt(3)]), ("held out", task.evaluation(config.eval.per_level)[3:4])):
        where = {"split": split, "index": 3}
        answers = {f"#{prompts[0].answer}": 1 - 0.5, "#0": -1 - 0.5, r"\boxed{1}": -1 + 0.5}
        for text, expected in answers.items():
            found = score(data_source="arithmetic", solution_str=text, ground_truth="", extra_info=where)
            assert (found["score"], found["acc"]) == (expected, float(expected > 0))


def test_verl_punishes_length_as_we_do(tmp_path):
    """Its reward manager, with the settings of the launch, on responses of every length."""
    import asyncio

    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls

    from equipoise.verifiers.response_format import overlong

    options = {"reward.overlong_buffer": 6, "rollout.max_tokens": 16, "reward.functions": ["task", "boxed"],
               "reward.weights": [0.5, 1.0]}  # fmt: skip
    config, job = exported(tmp_path, options)
    tokenizer = AutoTokenizer.from_pretrained(ABACUS)
    manager = get_reward_manager_cls(job.reward.reward_manager.name)

    async def scored(length):
        judge = manager(job, tokenizer, lambda **rest: {"score": 0.0})
        mask = (torch.arange(16) < length).long()[None]
        data = DataProto.from_dict(
            tensors={"responses": torch.ones(1, 16, dtype=torch.long), "attention_mask": mask},
            non_tensors={"data_source": np.array(["x"], dtype=object), "extra_info": np.array([{}], dtype=object),
                         "reward_model": np.array([{"ground_truth": ""}], dtype=object)},
        )  # fmt: skip
        return float((await judge.run_single(data))["reward_score"])

    for length in range(1, 17):
        expected = config.reward.weights[0] * overlong(length, 16, 6)
        assert asyncio.run(scored(length)) == pytest.approx(expected), length


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_rates_of_verl_are_ours_a_step_later(schedule, tmp_path):
    config = configured({"optim.lr": 1e-3, "optim.schedule": schedule, "optim.warmup": 3, "train.steps": 10})
    theirs = arguments(verl.settings(config, open_task(config)))
    section = f"{ACTOR}.optim"
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=theirs[f"{section}.lr"])
    steps = theirs[f"{section}.lr_warmup_steps"]
    if schedule == "constant":
        scheduler = get_constant_schedule_with_warmup(optimizer, steps)
    else:
        scheduler = get_cosine_schedule_with_warmup(optimizer, steps, 11, theirs[f"{section}.min_lr_ratio"])
    rates = []
    for _ in range(11):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert rates[0] == 0
    assert rates[1:] == pytest.approx([learning_rate(config.optim, k, 10) for k in range(1, 11)])


def test_a_dump_that_verl_wrote_is_audited_as_the_one_our_tests_write(tmp_path):
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    columns = Law().draw(24, seed=0, steps=2)
    expected = measure(verl_dump(tmp_path / "ours", columns, uid=True), "dapo")
    for step in np.unique(columns["step"]):
        rows = np.flatnonzero(columns["step"] == step)
        PPOTrainer._write_generations(
            inputs=[f"user\n{columns['prompt_id'][i]}\nassistant\n" for i in rows],
            outputs=["x" * int(columns["length"][i]) for i in rows],
            gts=["42" if i % 2 else None for i in rows],
            scores=[float(columns["reward"][i]) for i in rows],
            reward_extra_infos_dict={"uid": [f"{columns['prompt_id'][i]}_{i % 8}_0" for i in rows]},
            dump_path=str(tmp_path / "theirs"),
            global_steps=int(step),
        )
    found = measure(tmp_path / "theirs", "dapo")
    assert numbers(found) == numbers(expected)
    assert found.source == "verl"


def test_a_checkpoint_of_ours_is_a_model_for_verl(tmp_path):
    from equipoise import policy

    policy.save(policy.load("abacus"), tmp_path / "run" / "checkpoints" / "step-4")
    _, job = exported(tmp_path, {"model.name": str(tmp_path / "run")})
    model = omega_conf_to_dataclass(job.actor_rollout_ref.model)
    assert model.path == str(tmp_path / "run" / "checkpoints" / "step-4")
    assert model.hf_config.model_type == "llama"
    assert model.tokenizer("12+3=")["input_ids"] == AutoTokenizer.from_pretrained(ABACUS)("12+3=")["input_ids"]

"""Nothing of a configuration is forgotten in an export, whatever its values are; no host is needed to see it."""

import json
import math
from functools import lru_cache

import pytest
import torch

from equipoise.integrations.launch import KINDS, ExportError, Launch, account, arguments, open_task
from equipoise.integrations.trl import export as trl
from equipoise.integrations.trl.script import objective_of
from equipoise.integrations.verl import export as verl
from equipoise.integrations.verl.script import ACTOR
from equipoise.train import load
from equipoise.train.update import learning_rate

SETTINGS = {"trl": trl.settings, "verl": verl.settings}

# For every option a value that is not its default.
OTHERS = {
    "model.name": "some/model", "model.dtype": "bfloat16", "model.device": "cpu", "model.lora_rank": 8,
    "model.lora_alpha": 16.0, "model.lora_targets": ["q_proj"], "model.lora_dropout": 0.1,
    "model.quantize": "nf4",
    "model.gradient_checkpointing": True, "task.name": "gym:chain_sum", "task.chat": True,
    "task.system": "Be brief.", "task.chat_template": "{{ messages[0].content }}",
    "task.chat_template_kwargs": {"enable_thinking": False},
    "task.columns": {"prompt": "question"}, "task.verifier": "math", "task.answer_in": "boxed",
    "task.rules": "lenient", "task.template": "hadw", "task.suffix": " Think.", "task.strict": True,
    "task.dedupe": False, "task.max_prompt_chars": 99, "task.max_prompt_tokens": 77, "task.held_out": "held.jsonl",
    "task.avoid": ["seen.jsonl"], "task.gym": {"chain_sum": {"max_terms": 3}}, "rollout.prompts": 6,
    "rollout.group_size": 4, "rollout.max_tokens": 33, "rollout.temperature": 0.7, "rollout.top_p": 0.9,
    "rollout.top_k": 20, "rollout.min_p": 0.05, "rollout.stop": ["\n"], "rollout.dynamic_sampling": True,
    "rollout.max_draws": 7,
    "rollout.exact": True, "rollout.ahead": 1, "rollout.speculation": 2, "rollout.engine": "vllm",
    "rollout.engine_memory": 0.6, "rollout.cache_dtype": "fp8", "rollout.weights_dtype": "fp8",
    "reward.functions": ["task", "boxed"], "reward.weights": [1.0, 0.2], "reward.correct": 2.0, "reward.wrong": -1.0,
    "reward.unparsed": -2.0, "reward.timeout": "mask", "reward.limit": "mask", "reward.crashed": "mask",
    "reward.bad_gold": 0.0, "reward.unavailable": 0.5, "reward.max_unscored": 0.5, "reward.tags": ["a"],
    "reward.seconds": 3.0, "reward.workers": 2, "reward.overlong_buffer": 8, "reward.mask_truncated": True,
    "reward.judge": "module:f", "reward.length_penalty": 0.2,
    "sandbox.backend": "http://runner:8770", "sandbox.seconds": 2.0, "sandbox.total_seconds": 9.0,
    "sandbox.memory_bytes": 1 << 28, "sandbox.output_bytes": 1 << 20, "sandbox.processes": 8,
    "sandbox.disk_bytes": 1 << 20, "sandbox.files": 50,
    "objective.preset": "gspo", "objective.advantage": "rloo", "objective.difficulty": "hadw",
    "objective.cancellation": "recentre", "objective.aggregation": "balanced", "objective.surrogate": "cispo",
    "objective.averaged_groups": "informative", "objective.combine": "advantages", "objective.kl": 0.04,
    "objective.kl_estimator": "k2", "objective.entropy_bonus": 0.01, "objective.mismatch": {"name": "mis", "cap": 3.0},
    "objective.off_policy_mask": 0.1, "objective.top_entropy_quantile": 0.2, "train.teacher": "abacus",
    "optim.lr": 1e-6, "optim.betas": [0.8, 0.99], "optim.weight_decay": 0.1, "optim.warmup": 3,
    "optim.schedule": "cosine", "optim.clip_norm": 0.0, "optim.state": "8bit", "train.steps": 9, "train.updates": 2,
    "train.mini_batch": 2, "train.micro_batch": 8, "train.micro_tokens": 4096, "train.memory": "20 GiB",
    "train.shard": True,
    "train.seed": 5, "train.out": "elsewhere", "train.checkpoint_every": 4, "train.keep": 1,
    "train.keep_best": "acc@5", "train.average": 2,
    "train.threads": 2, "train.max_skipped": 9, "train.max_uninformative": 9, "eval.every": 3, "eval.samples": 5,
    "eval.temperature": 0.6, "eval.greedy": False, "eval.per_level": 7, "eval.probe": True, "log.rollouts_every": 0,
    "log.terminal": False,
    "log.tensorboard": True, "log.wandb": True, "log.trackio": True, "log.mlflow": True,
    "log.project": "study", "log.entity": "us", "log.group": "seeds", "log.tags": ["a"], "log.samples": 3,
}  # fmt: skip
NEEDS = {
    **{f"model.lora_{name}": {"model.lora_rank": 8} for name in ("alpha", "targets", "dropout")},
    "model.quantize": {"model.lora_rank": 8}, "train.keep_best": {"eval.samples": 5},
    "reward.functions": {"reward.functions": ["task", "tags"], "reward.weights": [1.0, 0.2]},
    "reward.weights": {"reward.functions": ["task", "boxed"], "reward.weights": [1.0, 1.0]},
    "objective.mismatch": {"rollout.engine": "vllm"}, "rollout.engine_memory": {"rollout.engine": "vllm"},
    "train.micro_tokens": {"rollout.max_tokens": 100, "rollout.prompts": 64}, "train.memory": {"train.micro_batch": 8},
    "train.shard": {"train.micro_batch": 8}, "rollout.weights_dtype": {"model.dtype": "bfloat16"},
    "rollout.max_draws": {"rollout.dynamic_sampling": True}, "objective.kl_estimator": {"objective.kl": 0.04},
    "objective.combine": {"reward.functions": ["task", "boxed"], "reward.weights": [1.0, 0.2]},
}  # fmt: skip


def configured(options):
    return load(None, [part for key, value in options.items() for part in (f"--{key}", toml(value))])


def toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


# All together, but for tasks that need files, for shards, which go with neither LoRA nor vLLM, for batches sampled
# ahead, drafts and 8 bits, which do not go with vLLM, and for what does not go with balanced, recentre or summed
# advantages.
APART = (
    "task.",
    "rollout.ahead",
    "rollout.speculation",
    "rollout.cache_dtype",
    "rollout.weights_dtype",
    "train.shard",
    "train.teacher",
    "objective.top_entropy_quantile",
    "reward.length_penalty",
)
ALL = {key: value for key, value in OTHERS.items() if key == "task.chat" or not key.startswith(APART)}
CONFIGS = {
    "defaults": {},
    "everything else": ALL,
    "kl": {"objective.kl": 0.1, "objective.kl_estimator": "k3_ratio", "objective.entropy_bonus": 0.1},
    "constant": {"objective.preset": "dr_grpo", "objective.kl": 0.1, "optim.schedule": "linear", "optim.warmup": 0},
    "refused": {"objective.difficulty": "hadw_history", "objective.preset": "dfpo", "objective.cancellation": "none"},
    "whole groups": {"objective.preset": "dfpo", "train.micro_batch": 8},
    "each token": {"train.teacher": "abacus", "objective.top_entropy_quantile": 0.2, "reward.length_penalty": 0.2},
    "tokens": {"train.micro_tokens": 5000, "rollout.max_tokens": 100},
    "shards": {"train.shard": True, "train.micro_batch": 16},
    "ahead": {"rollout.ahead": 1, "rollout.speculation": 2},
    "eight bits": {"rollout.cache_dtype": "fp8", "rollout.weights_dtype": "fp8", "model.dtype": "bfloat16"},
    "chat": {
        "task.chat": True,
        "task.system": "Be brief.",
        "task.chat_template": "{{ messages[0].content }}",
        "task.chat_template_kwargs": {"enable_thinking": False},
    },
    "prefix": {"objective.cancellation": "prefix", "rollout.exact": True, "objective.mismatch": "tis"},
}


@pytest.fixture(params=SETTINGS)
def host(request):
    return request.param


def settings(host, config):
    return SETTINGS[host](config, open_task(config))


def test_the_table_of_other_values_has_every_option():
    """A new option fails here first: give it a value, and a kind in both hosts."""
    defaults = load(None).flat()
    assert OTHERS.keys() == defaults.keys()
    for key, value in OTHERS.items():
        assert json.dumps(value) != json.dumps(defaults[key]), key


@pytest.mark.parametrize("name", CONFIGS)
def test_every_option_has_one_kind_and_a_reason(host, name):
    config = configured(CONFIGS[name])
    found = settings(host, config)
    assert found.keys() == config.flat().keys()
    for ours, setting in found.items():
        assert setting.kind in KINDS
        assert setting.theirs or setting.why, ours
        assert setting.kind == "mapped" or len(setting.why.split()) > 3, ours
        assert setting.kind in ("mapped", "nearly") or not setting.theirs, ours
    arguments(found)  # no two options set the same of theirs
    lines = account(config, found)
    assert [line.partition("=")[0] for line in lines] == list(config.flat())
    assert all("\n" not in line for line in lines)


# Options that work in a launch through config.toml, which our own code reads there, and those that change nothing.
READ_THERE = ("task.chat", "reward.", "sandbox.", "eval.per_level", "train.threads", "rollout.exact")


def test_no_option_is_ignored(host):
    """Another value changes what starts the host, or is told as its own business or as lost."""
    without = lru_cache(lambda others: launched(host, json.loads(others)))  # most options need no others
    for ours in (key for key in OTHERS if not key.startswith("task.") or key == "task.chat"):
        others = NEEDS.get(ours, {})
        old, old_code = without(json.dumps(others))
        new, new_code = launched(host, {**others, ours: OTHERS[ours]})
        changed = old_code != new_code
        told = {"own", "unmappable"} & {old[ours].kind, new[ours].kind}
        assert changed or told or ours.startswith(READ_THERE), ours
        assert not changed or arguments(old) != arguments(new) or host == "trl", ours  # which has a script besides


def launched(host, options):
    config = configured(options)
    found = settings(host, config)
    return found, code(host, config, found)


def code(host, config, found):
    """What starts the host, without the account."""
    text = trl.script(config, found) + trl.grpo_yaml(found) if host == "trl" else verl.script(config, found)
    return [line for line in text.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(
    "key", ["rollout.prompts", "rollout.group_size", "train.mini_batch", "train.micro_batch", "train.updates"]
)
def test_what_is_counted_otherwise_changes_what_it_counts(host, key):
    before, after = settings(host, configured({})), settings(host, configured({key: OTHERS[key]}))
    assert arguments(before) != arguments(after)


def test_an_option_that_nobody_has_mapped_is_named(tmp_path):
    config = configured({})
    found = dict(settings("trl", config))
    del found["optim.lr"]
    said = Launch("TRL", config, found, {}).summary()
    assert 'optim.lr="auto": unmappable: an option that the export does not know yet' in said


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 3])
def test_the_rates_of_trl_are_ours_an_update_later(schedule, warmup):
    """theirs(k + 1) of a run one update longer is ours(k); the first is at rate 0 where there is a warm-up."""
    from transformers import get_scheduler

    updates = 10
    config = configured({"optim.lr": 1e-3, "optim.schedule": schedule, "optim.warmup": warmup, "train.steps": updates})
    theirs = arguments(settings("trl", config))
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=theirs["learning_rate"])
    scheduler = get_scheduler(theirs["lr_scheduler_type"], optimizer, theirs["warmup_steps"], updates + 1)
    rates = []
    for _ in range(updates + 1):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    ours = [learning_rate(config.optim, k, updates) for k in range(1, updates + 1)]
    assert rates[1:] == pytest.approx(ours)
    assert rates[0] == (0 if warmup else config.optim.lr)


def test_a_batch_that_cannot_be_cut_as_asked_is_cut_nearly_so(host):
    config = configured({"rollout.prompts": 6, "rollout.group_size": 4, "train.micro_batch": 9})
    setting = settings(host, config)["train.micro_batch"]
    assert setting.kind == "nearly"
    assert set(setting.theirs.values()) == {8}  # the largest divisor of 24 up to 9


def test_a_batch_over_processes_stays_the_batch(monkeypatch):
    config = configured({"rollout.prompts": 6, "rollout.group_size": 4, "train.micro_batch": 4})
    assert trl.split_arguments(config) == []
    for processes, (per_pass, passes) in {2: (4, 3), 3: (4, 2), 8: (3, 1)}.items():
        monkeypatch.setenv("WORLD_SIZE", str(processes))
        said = trl.split_arguments(config)
        assert said == ["--per_device_train_batch_size", str(per_pass), "--gradient_accumulation_steps", str(passes)]
        assert per_pass * passes * processes == 24
    monkeypatch.setenv("WORLD_SIZE", "5")
    with pytest.raises(ValueError, match="24 responses per step over 5 processes"):
        trl.split_arguments(config)


def test_mini_batches_are_counted_as_each_host_counts_them(monkeypatch):
    """HA-DW's 256 prompts in optimizer steps of 16, G = 8, micro-batches of 4: 16 steps a batch, three passes."""
    options = {"rollout.prompts": 256, "rollout.group_size": 8, "train.mini_batch": 16, "train.micro_batch": 4,
               "train.updates": 3, "train.steps": 5, "optim.warmup": 96, "eval.every": 2}  # fmt: skip
    config = configured(options)
    theirs = arguments(settings("verl", config))
    assert (theirs["data.train_batch_size"], theirs[f"{ACTOR}.ppo_mini_batch_size"]) == (256, 16)
    assert theirs[f"{ACTOR}.ppo_epochs"] == 3
    assert theirs[f"{ACTOR}.optim.lr_warmup_steps"] == 2  # batches: 48 optimizer steps each
    theirs = arguments(settings("trl", config))
    per_pass, passes = theirs["per_device_train_batch_size"], theirs["gradient_accumulation_steps"]
    assert (per_pass, per_pass * passes) == (4, 16 * 8)
    assert per_pass * theirs["steps_per_generation"] == 256 * 8
    assert (theirs["num_iterations"], theirs["max_steps"], theirs["eval_steps"]) == (3, 5 * 48, 2 * 48)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert trl.split_arguments(config)[-2:] == ["--steps_per_generation", str(16 * 16)]


def test_mini_batches_that_a_host_cannot_cut_are_told(host):
    uneven = settings(host, configured({"rollout.prompts": 6, "train.mini_batch": 4}))["train.mini_batch"]
    assert uneven.kind == "nearly"
    assert "3" in uneven.why or 3 in uneven.theirs.values()
    if host == "trl":
        whole = settings(host, configured({"train.mini_batch": 4, "objective.preset": "dfpo"}))["train.mini_batch"]
        assert (whole.kind, whole.theirs) == ("unmappable", {})


def test_a_gradient_norm_without_limit_is_no_limit_of_0_in_verl():
    """There 0 would be the limit, and every gradient 0."""
    config = configured({"optim.clip_norm": 0.0})
    assert arguments(settings("verl", config))[f"{ACTOR}.optim.clip_grad"] == math.inf
    assert arguments(settings("trl", config))["max_grad_norm"] == 0.0  # TRL's own word for no limit


def test_an_alpha_that_verl_cannot_hold_is_refused():
    """Its field is an int: rounded, every adapter would be scaled otherwise."""
    config = configured({"model.lora_rank": 8, "model.lora_alpha": 12.5})
    with pytest.raises(ExportError, match=r"model\.lora_alpha = 12\.5: verl takes whole numbers alone"):
        settings("verl", config)
    assert not settings("verl", configured({"model.lora_alpha": 12.5}))["model.lora_alpha"].theirs
    whole = arguments(settings("verl", configured({"model.lora_rank": 8, "model.lora_alpha": 12.0})))
    assert json.dumps(whole["actor_rollout_ref.model.lora_alpha"]) == "12"


def test_a_kl_is_weighed_for_the_sum_that_verl_makes_of_it():
    """dr_grpo divides a response's tokens by its length L', verl by the longest response L: the weight makes up."""
    options = {"objective.preset": "dr_grpo", "objective.aggregation": {"name": "constant", "length": 16.0},
               "objective.kl": 0.1, "objective.kl_estimator": "k2", "rollout.max_tokens": 64}  # fmt: skip
    theirs = arguments(settings("verl", configured(options)))
    assert theirs[f"{ACTOR}.kl_loss_coef"] / theirs[f"{ACTOR}.loss_scale_factor"] == pytest.approx(0.1 / 16)
    assert theirs[f"{ACTOR}.loss_agg_mode"] == "seq-mean-token-sum-norm"
    token = settings("verl", configured({**options, "objective.aggregation": "token"}))
    assert token["objective.kl"].kind == "nearly"


def test_what_a_plug_in_refuses_is_left_out_and_said():
    history = configured({"objective.difficulty": "hadw_history"})
    assert settings("trl", history)["objective.difficulty"].kind == "unmappable"
    assert objective_of(history)["difficulty"] == {"name": "none"}
    for options in ({"objective.cancellation": "prefix"}, {"objective.preset": "dfpo"}):
        found = settings("verl", configured(options))
        assert found["objective.cancellation"].kind == "unmappable"
        assert "+algorithm.equipoise.cancellation" not in arguments(found)


def test_a_launch_names_its_files_from_the_root(tmp_path, monkeypatch):
    """It may be started from another folder than the one it was exported in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1?", "answer": "2"}\n' * 2)
    from equipoise.integrations.launch import portable

    config = portable(configured({"task.name": "data.jsonl", "train.out": "runs/a", "model.name": "Qwen/Qwen3-1.7B"}))
    assert config.task.name == str(tmp_path / "data.jsonl")
    assert config.train.out == str(tmp_path / "runs" / "a")
    assert config.model.name == "Qwen/Qwen3-1.7B"
    assert portable(configured({"task.name": "gym:chain_sum"})).task.name == "gym:chain_sum"


def test_long_prompts_are_left_out_by_the_models_own_count(tmp_path):
    """abacus reads characters, so a prompt of five has five tokens or more."""
    lines = [json.dumps({"prompt": "1+" * n + "1=", "answer": "1"}) for n in (1, 2, 9, 10)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    options = {"task.name": str(tmp_path / "data.jsonl"), "task.max_prompt_tokens": 12}
    task = open_task(configured(options))
    kept = [*(task.prompt(i) for i in range(8)), *task.evaluation()]
    assert {prompt.text for prompt in kept} == {"1+1=", "1+1+1="}
    with pytest.raises(
        ExportError, match=r"task\.chat = auto is decided by the model, and nobody/nothing cannot be opened"
    ):
        open_task(configured({**options, "model.name": "nobody/nothing"}))


def test_what_a_host_does_not_have_of_masks_penalties_and_teachers_is_told(host):
    """Neither dropped without a word, nor left in the objective that the host then refuses."""
    options = {"objective.off_policy_mask": 0.1, "objective.top_entropy_quantile": 0.2, "train.teacher": "abacus"}
    found = settings(host, configured(options))
    assert found["train.teacher"].kind == found["objective.top_entropy_quantile"].kind == "unmappable"
    mask = found["objective.off_policy_mask"]
    assert mask.kind == {"trl": "nearly", "verl": "unmappable"}[host]
    if host == "trl":
        assert objective_of(configured(options))["off_policy_mask"] == 0.1
    else:
        assert "off_policy_mask" not in str(arguments(found))
    assert all(settings(host, configured({}))[name].kind == "mapped" for name in options)


def test_a_length_penalty_needs_rewards_that_are_accuracies(host):
    """The plug-ins have no verdicts: rewards stand for them, which shaping or prices would turn into something else."""
    penalty = {"reward.length_penalty": 0.2}

    def put(options):
        config = configured(penalty | options)
        found = settings(host, config)
        if host == "trl":
            alpha = objective_of(config)["length_penalty"]
        else:
            alpha = arguments(found).get("+algorithm.equipoise.length_penalty", 0.0)
        return found["reward.length_penalty"].kind, alpha

    assert put({}) == ("mapped", 0.2)
    for shaped in (
        {"reward.overlong_buffer": 8}, {"reward.correct": 2.0}, {"reward.wrong": -1.0}, {"reward.unparsed": -0.5},
        {"reward.weights": [0.5]}, {"reward.functions": ["task", "boxed"], "reward.weights": [1.0, 0.2]},
    ):  # fmt: skip
        assert put(shaped) == ("unmappable", 0.0), shaped


def test_icepop_is_verls_mask_between_two_bounds_and_nothing_of_trls():
    options = {"rollout.engine": "vllm", "objective.mismatch": {"name": "icepop", "alpha": 0.4, "beta": 3.0}}
    theirs = arguments(settings("verl", configured(options)))
    correction = "algorithm.rollout_correction.rollout_is"
    assert (theirs[correction], theirs[f"{correction}_threshold"]) == ("token", "0.4_3.0")
    found = settings("trl", configured(options))["objective.mismatch"]
    assert (found.kind, found.theirs) == ("unmappable", {})


@pytest.mark.parametrize("export", [trl.export_trl, verl.export_verl])
def test_distillation_alone_has_no_launch(export, tmp_path):
    """Without its teacher every advantage would be 0, and the host would train on nothing without a word."""
    config = configured({"objective.preset": "distillation", "train.teacher": "abacus"})
    with pytest.raises(ExportError, match=r"learns from train\.teacher alone, and (TRL|verl) has none"):
        export(config, tmp_path / "launch")
    assert not (tmp_path / "launch").exists()

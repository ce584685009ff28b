"""What becomes of each option of a configuration in verl: overrides of the same meaning, of nearly the
same with what differs, or none with the reason.

Not covered: the launch that is made of them, which is script.py's and export.py's.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from equipoise.config import VERDICTS, Config
from equipoise.config.sections import PRECISIONS
from equipoise.integrations.launch import (
    SHAPED,
    ExportError,
    Setting,
    mapped,
    mapped_if,
    model_folder,
    nearly,
    nearly_if,
    own,
    refused,
    rewards_are_accuracies,
    sandbox_settings,
    tracker_settings,
    truncation,
    unmappable,
)
from equipoise.integrations.verl import on_cpu
from equipoise.integrations.verl.objective_options import objective_settings
from equipoise.integrations.verl.script import ACTOR, HERE, MODEL, ROLLOUT
from equipoise.tasks import Task

LONGEST_PROMPT = 2048  # verl wants limits where we have none
TOKENS = 16384  # of a pass, as verl's own default
IN_FILES = "columns template suffix strict dedupe max_prompt_chars avoid gym"  # options of [task]
TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")
# the rows of a launch without chat have one message, the text
PLAIN_TEMPLATE = '{{ messages[0]["content"] }}'


def settings(config: Config, task: Task) -> dict[str, Setting]:
    """What becomes of every option."""
    return {
        **_model(config),
        **_task(config),
        **_rollout(config, task),
        **_reward(config, task),
        **objective_settings(config, longest=_most(config, task)),
        **_optim(config),
        **_train(config, task),
        **_eval(config),
        **_log(config),
        **sandbox_settings(config),
    }


def _model(config: Config) -> dict[str, Setting]:
    model = config.model
    fsdp = f"{ACTOR}.fsdp_config"
    targets = list(model.lora_targets) or "all-linear"
    dtypes: dict[str, Any] = {
        f"{fsdp}.model_dtype": "fp32",
        f"{fsdp}.dtype": model.dtype,
        f"{ROLLOUT}.dtype": model.dtype,
    }
    # verl computes in bfloat16 unless told here: it ignores fsdp_config.dtype
    if model.dtype == "float32":
        dtypes[f"+{fsdp}.mixed_precision"] = dict.fromkeys(
            ("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32"
        )
    return {
        "model.name": mapped({f"{MODEL}.path": model_folder(model.name)}),
        "model.dtype": mapped(
            dtypes, "float32 masters there too" if model.dtype == "bfloat16" else ""
        ),
        "model.device": mapped(on_cpu.SETTINGS, "verl's FSDP workers on CPUs, over gloo")
        if model.device == "cpu"
        else own(
            "Ray places the workers on the GPUs of the cluster: GPUS and NODES of launch.sh say how many"
        ),
        "model.lora_rank": mapped({f"{MODEL}.lora_rank": model.lora_rank}),
        "model.lora_alpha": _lora_alpha(config),
        "model.lora_targets": mapped({f"{MODEL}.target_modules": targets}),
        "model.lora_dropout": refused(model.lora_dropout, "verl's adapters have no dropout"),
        "model.quantize": refused(model.quantize != "none", "verl opens the base whole"),
        "model.gradient_checkpointing": mapped(
            {f"{MODEL}.enable_gradient_checkpointing": model.gradient_checkpointing}
        ),
    }


def _lora_alpha(config: Config) -> Setting:
    alpha = float(config.model.lora_alpha)
    if not config.model.lora_rank:
        return mapped(why="no adapters")
    if not alpha.is_integer():
        raise ExportError(
            f"model.lora_alpha = {alpha:g}: verl takes whole numbers alone; take {max(1, round(alpha))}"
        )
    return mapped({f"{MODEL}.lora_alpha": int(alpha)})


def _task(config: Config) -> dict[str, Setting]:
    task = config.task
    done = mapped(why="done in the two .parquet files")
    files = {"data.train_files": f"{HERE}/train.parquet", "data.shuffle": False}
    plain = nearly(
        {f"{MODEL}.custom_chat_template": PLAIN_TEMPLATE},
        "verl always applies a chat template: this one writes the text alone, without a token at its beginning",
    )
    options = {
        f"+data.apply_chat_template_kwargs.{k}": v
        for k, v in (task.chat_template_kwargs or {}).items()
    }
    limit = {
        "data.max_prompt_length": task.max_prompt_tokens or LONGEST_PROMPT,
        "data.truncation": "error",
    }
    none = f"verl wants a limit, and stops at a longer prompt: {LONGEST_PROMPT} was put, raise it if need be"
    return {
        **{f"task.{name}": done for name in IN_FILES.split()},
        "task.name": mapped(files, "the prompts in the order in which ours would draw them"),
        "task.chat": mapped(why="verl always applies the chat template") if task.chat else plain,
        "task.system": mapped(why="the first message of each row"),
        "task.chat_template": mapped_if(
            task.chat_template,
            {f"{MODEL}.custom_chat_template": task.chat_template},
            "the tokenizer's own",
        ),
        "task.chat_template_kwargs": mapped_if(options, options, "none"),
        **{
            f"task.{name}": mapped(why="compute_score asks the task")
            for name in ("verifier", "answer_in", "rules")
        },
        "task.max_prompt_tokens": nearly_if(not task.max_prompt_tokens, limit, none),
        "task.held_out": mapped({"data.val_files": f"{HERE}/val.parquet"}),
    }


def _rollout(config: Config, task: Task) -> dict[str, Setting]:
    rollout = config.rollout
    again = {
        "algorithm.filter_groups.enable": rollout.dynamic_sampling,
        "algorithm.filter_groups.metric": "reward",
    }
    draws = {"algorithm.filter_groups.max_num_gen_batches": rollout.max_draws}
    return {
        "rollout.prompts": mapped(
            {"data.train_batch_size": rollout.prompts}, "counted in prompts there too"
        ),
        "rollout.group_size": mapped({f"{ROLLOUT}.n": rollout.group_size}),
        "rollout.max_tokens": mapped({"data.max_response_length": _most(config, task)}),
        "rollout.temperature": mapped({f"{ROLLOUT}.temperature": rollout.temperature}),
        "rollout.top_p": truncation({f"{ROLLOUT}.top_p": rollout.top_p}, rollout.top_p < 1),
        "rollout.top_k": truncation({f"{ROLLOUT}.top_k": rollout.top_k}, True)
        if rollout.top_k
        else mapped({f"{ROLLOUT}.top_k": -1}, "-1 keeps all there"),
        "rollout.min_p": refused(rollout.min_p, "verl gives its samplers no min_p", "0, as verl"),
        "rollout.stop": refused(
            task.stop or rollout.stop,
            "verl's agent loop takes no strings that end a response",
            "none, as verl",
        ),
        "rollout.dynamic_sampling": mapped_if(rollout.dynamic_sampling, again, "off"),
        "rollout.max_draws": nearly(
            draws, "verl 0.9's trainer draws until the batch is full, whatever this says"
        )
        if rollout.dynamic_sampling
        else mapped(why="no dynamic sampling"),
        "rollout.exact": mapped(why="verl's old log-probabilities are always the actor's own"),
        "rollout.ahead": refused(
            rollout.ahead, "verl's one-step off-policy trainer is another entry point", "0, as verl"
        ),
        "rollout.speculation": own("verl's engine drafts for itself; no response depends on it"),
        "rollout.engine": _engine(config),
        "rollout.engine_memory": mapped(
            {f"{ROLLOUT}.gpu_memory_utilization": rollout.engine_memory}
        )
        if rollout.engine == "vllm"
        else own("verl's own share is left to vLLM"),
        **{
            f"rollout.{name}": refused(
                getattr(rollout, name) != "auto",
                "verl's vLLM has settings of its own for 8 bits",
                "auto, as verl",
            )
            for name in PRECISIONS
        },
    }


def _engine(config: Config) -> Setting:
    if config.model.device == "cpu":
        return mapped({f"{ROLLOUT}.name": "equipoise"}, "our sampler: verl has none for CPUs")
    return mapped(
        {f"{ROLLOUT}.name": "vllm"},
        "" if config.rollout.engine == "vllm" else "verl samples with vLLM",
    )


def _reward(config: Config, task: Task) -> dict[str, Setting]:
    reward = config.reward
    ours = "reward.custom_reward_function"
    call = {
        f"{ours}.path": "pkg://equipoise.integrations.verl.export",
        f"{ours}.name": "compute_score",
        f"+{ours}.reward_kwargs.config": f"{HERE}/config.toml",
    }
    done = mapped(why="compute_score reads it from config.toml")
    names = ("weights", "correct", "wrong", "tags", "seconds")
    prices = {
        f"reward.{kind}": nearly(
            {}, "verl knows no response without a reward: it gets that of a wrong one"
        )
        if getattr(reward, kind) == "mask"
        else done
        for kind in VERDICTS
    }
    buffer = {
        "reward.reward_manager.name": "dapo",
        "+reward.reward_kwargs.overlong_buffer_cfg.enable": True,
        "+reward.reward_kwargs.overlong_buffer_cfg.len": reward.overlong_buffer,
        "+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor": reward.weights[0],
        "+reward.reward_kwargs.overlong_buffer_cfg.log": False,
        "+reward.reward_kwargs.max_resp_len": _most(config, task),
    }
    return {
        "reward.functions": mapped(
            call, "compute_score asks our functions, with their deadline, and sums"
        ),
        **{f"reward.{name}": done for name in names},
        **prices,
        "reward.max_unscored": own("verl does not stop for the share of responses without a score"),
        "reward.judge": own("the gaming/* metrics are our trainer's"),
        "reward.workers": mapped(
            why="compute_score reads it: processes of each of verl's reward workers"
        ),
        "reward.overlong_buffer": mapped(buffer, "the factor is the first reward's weight")
        if reward.overlong_buffer
        else mapped(why="off"),
        "reward.length_penalty": _length_penalty(config),
        "reward.mask_truncated": refused(
            reward.mask_truncated, "verl keeps responses that were cut in the loss", "off, as verl"
        ),
    }


def _length_penalty(config: Config) -> Setting:
    alpha = config.reward.length_penalty
    if alpha and not rewards_are_accuracies(config):
        return SHAPED
    return mapped_if(alpha, {"+algorithm.equipoise.length_penalty": alpha}, "off")


def _optim(config: Config) -> dict[str, Setting]:
    optim, updates = config.optim, config.updates_per_batch
    section = f"{ACTOR}.optim"
    steps = math.ceil(optim.warmup / updates)
    late = "its first step is at rate 0, so that every rate comes a step later"
    each = "" if updates == 1 else ", and its rate changes once a step, not with every update"
    kind = {f"{section}.lr_scheduler_type": optim.schedule}
    schedules = {
        "constant": mapped(kind),
        "cosine": nearly({**kind, f"{section}.min_lr_ratio": 0.0}, late + each),
        "linear": unmappable("verl has constant and cosine: constant was put"),
    }
    eight = optim.state == "8bit"
    optimizer, package = ("AdamW8bit", "bitsandbytes") if eight else ("AdamW", "torch")
    return {
        "optim.lr": mapped({f"{section}.lr": optim.lr}),
        "optim.betas": mapped({f"{section}.betas": list(optim.betas)}),
        "optim.weight_decay": mapped({f"{section}.weight_decay": optim.weight_decay}),
        "optim.warmup": nearly({f"{section}.lr_warmup_steps": steps}, late + each)
        if optim.warmup
        else mapped({f"{section}.lr_warmup_steps": -1, f"{section}.lr_warmup_steps_ratio": 0.0}),
        "optim.schedule": schedules[optim.schedule],
        "optim.clip_norm": mapped(
            {f"{section}.clip_grad": optim.clip_norm or math.inf},
            "" if optim.clip_norm else "0 would make every gradient 0 there",
        ),
        "optim.state": nearly_if(
            eight,
            {f"{section}.optimizer": optimizer, f"{section}.optimizer_impl": f"{package}.optim"},
            "bitsandbytes' own 8 bits",
        ),
    }


def _train(config: Config, task: Task) -> dict[str, Setting]:
    train, rollout = config.train, config.rollout
    epochs = rollout.max_draws if rollout.dynamic_sampling else 1
    out = Path(train.out)
    return {
        "train.steps": mapped(
            {"trainer.total_training_steps": train.steps, "trainer.total_epochs": epochs}
        ),
        "train.updates": mapped({f"{ACTOR}.ppo_epochs": train.updates}),
        "train.mini_batch": _mini_batch(config),
        "train.teacher": refused(
            train.teacher, "verl's plug-in has no teacher: the launch learns from rewards alone"
        ),
        **_passes(config, task),
        "train.shard": mapped({f"{ACTOR}.strategy": "fsdp2"})
        if train.shard and config.model.device != "cpu"
        else own("verl shards in any case"),
        "train.memory": own("verl measures no memory: its passes are as large as their limit"),
        "train.seed": mapped(
            {
                "data.seed": train.seed,
                f"{ROLLOUT}.seed": train.seed,
                f"{ACTOR}.data_loader_seed": train.seed,
            },
            "the prompts are ours, the draws the sampler's own",
        ),
        "train.out": mapped(
            {"trainer.default_local_dir": train.out, "trainer.experiment_name": out.name}
        ),
        "train.checkpoint_every": mapped({"trainer.save_freq": train.checkpoint_every}),
        "train.keep": mapped(
            {"trainer.max_actor_ckpt_to_keep": train.keep + 1}, "the last one counts there"
        ),
        "train.keep_best": refused(train.keep_best, "verl keeps the last ones alone"),
        "train.average": refused(train.average, "verl averages no checkpoints"),
        "train.threads": own("verl and Ray set the threads of their processes"),
        "train.max_skipped": own("verl skips an update whose gradient is not finite, and goes on"),
        "train.max_uninformative": own("verl goes on without any difference in reward"),
    }


def _mini_batch(config: Config) -> Setting:
    """Counted in prompts there too; a batch falls into equal parts."""
    prompts, most = config.rollout.prompts, config.train.mini_batch
    if not most:
        return mapped(
            {f"{ACTOR}.ppo_mini_batch_size": prompts}, "one mini-batch is the whole batch"
        )
    size = max(n for n in range(1, most + 1) if prompts % n == 0)
    theirs = {f"{ACTOR}.ppo_mini_batch_size": size}
    order = "verl cuts the batch in its own order, ours shuffles its groups for every pass"
    return nearly(
        theirs, order if size == most else f"verl wants a divisor of {prompts} prompts; {order}"
    )


def _passes(config: Config, task: Task) -> dict[str, Setting]:
    """verl fills a pass by a number of responses, or by a number of tokens."""
    train, total = config.train, config.rollout.prompts * config.rollout.group_size
    longest = (config.task.max_prompt_tokens or LONGEST_PROMPT) + _most(config, task)
    budget = {
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.ppo_max_token_len_per_gpu": max(train.micro_tokens, longest),
    }
    if train.micro_tokens:
        least = (
            f"verl wants room for the longest prompt with the longest response, {longest} tokens"
        )
        by_tokens = "verl fills a pass by tokens or by responses: by train.micro_tokens here"
        return {
            "train.micro_tokens": nearly_if(train.micro_tokens < longest, budget, least),
            "train.micro_batch": refused(train.micro_batch, by_tokens, "no limit"),
        }
    if not train.micro_batch:
        budget[f"{ACTOR}.ppo_max_token_len_per_gpu"] = max(TOKENS, 2 * longest)
        none = mapped(why="no limit, but train.micro_batch has one for verl")
        return {
            "train.micro_batch": nearly(budget, "verl wants a limit, here in tokens"),
            "train.micro_tokens": none,
        }
    fits = max(n for n in range(1, min(train.micro_batch, total) + 1) if total % n == 0)
    names = (
        f"{ACTOR}.ppo_micro_batch_size_per_gpu",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    )
    theirs = dict.fromkeys(names, fits)
    rule = f"verl wants a divisor of {total} responses"
    return {
        "train.micro_batch": nearly_if(fits != train.micro_batch, theirs, rule),
        "train.micro_tokens": mapped(why="no limit"),
    }


def _eval(config: Config) -> dict[str, Setting]:
    evaluation = config.eval
    sampling = f"{ROLLOUT}.val_kwargs"
    drawn = {
        f"{sampling}.temperature": evaluation.temperature,
        f"{sampling}.do_sample": evaluation.temperature > 0,
    }
    when = {
        "trainer.test_freq": evaluation.every or -1,
        "trainer.val_before_train": bool(evaluation.every),
    }
    return {
        "eval.every": mapped(when),
        "eval.samples": mapped({f"{sampling}.n": evaluation.samples}),
        "eval.temperature": mapped(drawn),
        "eval.greedy": refused(
            evaluation.greedy, "verl validates once, with the samples above", "off"
        ),
        "eval.per_level": mapped(why="the rows of val.parquet"),
        "eval.probe": refused(evaluation.probe, "verl has no fixed set to score", "off"),
    }


def _log(config: Config) -> dict[str, Setting]:
    log = config.log
    console = ["console"] if log.terminal else []
    loggers = [*console, "file", *(name for name in TRACKERS if getattr(log, name))]
    said = mapped(why="in trainer.logger")
    every = {"trainer.rollout_data_dir": f"{config.train.out}/rollouts"}
    return {
        "log.rollouts_every": nearly(every, "verl writes every step")
        if log.rollouts_every > 1
        else mapped_if(log.rollouts_every, every, "none, as verl"),
        "log.terminal": mapped({"trainer.logger": loggers}),
        **{f"log.{name}": said for name in TRACKERS},
        "log.project": mapped({"trainer.project_name": log.project}),
        **tracker_settings(config, "verl tells trackers a project and a name alone"),
        "log.samples": own("trainer.log_val_generations shows responses of validations"),
    }


def _most(config: Config, task: Task) -> int:
    return config.rollout.max_tokens or task.max_tokens

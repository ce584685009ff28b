"""What becomes of each option of a configuration in TRL: a setting of GRPOConfig of the same meaning,
of nearly the same with what differs, or none with the reason.

Not covered: the launch that is made of them, which is script.py's and export.py's.
"""

from __future__ import annotations

from typing import Any

from equipoise.config import VERDICTS, Config
from equipoise.config.sections import PRECISIONS
from equipoise.integrations.launch import (
    SHAPED,
    ExportError,
    Setting,
    mapped,
    mapped_if,
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
from equipoise.objective import Objective
from equipoise.tasks import Task

# options that our task, our reward functions and our objective read there as well
OF_TASK = (
    "name columns verifier answer_in rules template suffix strict dedupe max_prompt_chars "
    "max_prompt_tokens held_out avoid gym"
)
OF_REWARD = "functions correct wrong tags seconds workers overlong_buffer"
OF_OBJECTIVE = (
    "preset advantage cancellation aggregation surrogate averaged_groups combine entropy_bonus"
)
TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")
EVALUATED_AT_ONCE = 64  # responses
EIGHT_BITS = "adamw_bnb_8bit"


def settings(config: Config, task: Task) -> dict[str, Setting]:
    """What becomes of every option; settings of GRPOConfig by their names."""
    return {
        **_model(config),
        **_task(config),
        **_rollout(config, task),
        **_reward(config),
        **_objective(config),
        **_optim(config),
        **_train(config),
        **_eval(config),
        **_log(config),
        **sandbox_settings(config),
    }


def _model(config: Config) -> dict[str, Setting]:
    model, half = config.model, config.model.dtype == "bfloat16"
    weights = {"model_init_kwargs": {"dtype": "float32"}}
    devices = {"cpu": mapped({"use_cpu": True}), "auto": own("Accelerate takes the GPUs there are")}
    elsewhere = own("Accelerate places the model: CUDA_VISIBLE_DEVICES says which GPUs it sees")
    return {
        "model.name": mapped(why="MODEL of launch.py"),
        "model.dtype": nearly_if(
            half, {**weights, "bf16": half}, "float32 weights, and bfloat16 where autocast takes it"
        ),
        "model.device": devices.get(model.device, elsewhere),
        **{
            f"model.lora_{name}": mapped(why="ADAPTER of launch.py")
            for name in model.lora_options()
        },
        "model.quantize": refused(
            model.quantize != "none",
            "launch.py opens the base whole: give model_init_kwargs a quantization_config",
        ),
        "model.gradient_checkpointing": mapped(
            {"gradient_checkpointing": model.gradient_checkpointing}
        ),
    }


def _task(config: Config) -> dict[str, Setting]:
    options = config.task.chat_template_kwargs
    opened = mapped(why="our task, which launch.py opens")
    as_written = "messages" if config.task.chat else "text, which TRL continues as it stands"
    return {
        **{f"task.{name}": opened for name in OF_TASK.split()},
        "task.chat": mapped(why=f"launch.py gives TRL prompts as {as_written}"),
        "task.system": mapped(why="the first message of launch.py's prompts"),
        "task.chat_template": mapped(why="launch.py gives it to the tokenizer"),
        "task.chat_template_kwargs": mapped_if(options, {"chat_template_kwargs": options}, "none"),
    }


def _rollout(config: Config, task: Task) -> dict[str, Setting]:
    rollout = config.rollout
    vllm = rollout.engine == "vllm"
    stop = [*task.stop, *rollout.stop]
    per_pass, accumulated = passes_of(config, 1)
    again = "TRL draws each batch once: groups without a difference in reward stay in it"
    if not stop:
        stopped = mapped(why="none, as TRL")
    elif vllm:
        stopped = mapped({"generation_kwargs": {"stop": stop}})
    else:
        stopped = unmappable(
            "TRL gives generate() no tokenizer for stop strings; rollout.engine = vllm has them"
        )
    return {
        "rollout.prompts": mapped(
            {"gradient_accumulation_steps": accumulated},
            f"passes of {per_pass} for {step_prompts(config)} × {rollout.group_size} responses; "
            "counted in responses there, and split anew for several processes",
        ),
        "rollout.group_size": mapped({"num_generations": rollout.group_size}),
        "rollout.max_tokens": mapped(
            {"max_completion_length": rollout.max_tokens or task.max_tokens}
        ),
        "rollout.temperature": mapped({"temperature": rollout.temperature}),
        "rollout.top_p": truncation({"top_p": rollout.top_p}, rollout.top_p < 1),
        "rollout.top_k": truncation({"top_k": rollout.top_k}, rollout.top_k > 0),
        "rollout.min_p": truncation({"min_p": rollout.min_p}, rollout.min_p > 0),
        "rollout.stop": stopped,
        "rollout.dynamic_sampling": refused(rollout.dynamic_sampling, again, "off, as TRL"),
        "rollout.max_draws": refused(rollout.dynamic_sampling, again, "no dynamic sampling"),
        "rollout.exact": mapped(why="TRL's old log-probabilities are always the trainer's own"),
        "rollout.ahead": refused(
            rollout.ahead, "TRL samples a batch when it is trained", "0, as TRL"
        ),
        "rollout.speculation": own("TRL's engine drafts for itself; no response depends on it"),
        "rollout.engine": mapped(
            {"use_vllm": vllm, **({"vllm_mode": "colocate"} if vllm else {})},
            "" if vllm else "TRL samples with transformers",
        ),
        "rollout.engine_memory": mapped_if(
            vllm, {"vllm_gpu_memory_utilization": rollout.engine_memory}, "no vLLM"
        ),
        **{
            f"rollout.{name}": refused(
                getattr(rollout, name) != "auto",
                "TRL samples in the model's precision",
                "auto, as TRL",
            )
            for name in PRECISIONS
        },
    }


def step_prompts(config: Config) -> int:
    """Prompts per optimizer step: TRL's parts of a batch are equal."""
    prompts, most = config.rollout.prompts, config.train.mini_batch
    if not most or config.build_objective().needs_whole_groups:
        return prompts
    return max(n for n in range(1, most + 1) if prompts % n == 0)


def _mini_batch(config: Config) -> Setting:
    """TRL counts passes: of an optimizer step, and of a batch of rollouts."""
    train, prompts = config.train, step_prompts(config)
    if not train.mini_batch:
        return mapped(why="the whole batch, TRL's default")
    if prompts == config.rollout.prompts > train.mini_batch:
        return unmappable(
            "TRL shuffles responses into optimizer steps, and the objective needs whole groups: one step"
        )
    steps = passes_of(config, 1)[1] * config.rollout.prompts // prompts
    why = "TRL shuffles responses, not groups, into optimizer steps"
    if prompts != train.mini_batch:
        why += f", and {prompts} prompts per step, because its parts are equal"
    return nearly({"steps_per_generation": steps}, why)


def passes_of(config: Config, processes: int) -> tuple[int, int]:
    """Responses per pass of one process, and passes per optimizer step."""
    total = step_prompts(config) * config.rollout.group_size
    share, rest = divmod(total, processes)
    if rest:
        raise ExportError(
            f"{total} responses per step over {processes} processes: must be as many for each"
        )
    most = share
    if not config.build_objective().needs_whole_groups:
        most = min(_wanted(config) or share, share)
    per_pass = max(n for n in range(1, most + 1) if share % n == 0)
    return per_pass, share // per_pass


def _wanted(config: Config) -> int:
    """Responses per pass that both limits allow, if all are the longest; 0 is no limit."""
    train, longest = config.train, config.task.max_prompt_tokens + config.rollout.max_tokens
    fit = max(1, train.micro_tokens // longest) if train.micro_tokens and longest else 0
    return min(filter(None, (train.micro_batch, fit)), default=0)


def _reward(config: Config) -> dict[str, Setting]:
    reward = config.reward
    done = mapped(why="our reward functions, by config.toml")
    return {
        **{f"reward.{name}": done for name in (*OF_REWARD.split(), *VERDICTS)},
        "reward.weights": mapped({"reward_weights": list(reward.weights)}),
        "reward.max_unscored": own("TRL warns of responses without a score, and goes on"),
        "reward.judge": own("the gaming/* metrics are our trainer's"),
        "reward.length_penalty": SHAPED
        if reward.length_penalty and not rewards_are_accuracies(config)
        else mapped(why="OBJECTIVE of launch.py"),
        "reward.mask_truncated": mapped({"mask_truncated_completions": reward.mask_truncated}),
    }


def _objective(config: Config) -> dict[str, Setting]:
    objective = config.build_objective()
    ours = mapped(why="OBJECTIVE of launch.py")
    history = unmappable(
        "hadw_history needs the earlier rewards of each prompt, which TRL does not keep: none was put"
    )
    ratio = objective.kl_estimator == "k3_ratio"
    return {
        **{f"objective.{name}": ours for name in OF_OBJECTIVE.split()},
        "objective.difficulty": history
        if objective.difficulty_choice.name == "hadw_history"
        else ours,
        "objective.kl": mapped({"beta": objective.kl}, "OBJECTIVE of launch.py has it too"),
        "objective.kl_estimator": mapped(
            {"use_bias_correction_kl": ratio}, "OBJECTIVE of launch.py has it too"
        ),
        "objective.mismatch": _mismatch(config, objective),
        "objective.off_policy_mask": nearly(
            {}, "TRL compares with π_old unless it corrects vLLM's log-probabilities"
        )
        if config.objective.off_policy_mask
        else ours,
        "objective.top_entropy_quantile": refused(
            config.objective.top_entropy_quantile < 1,
            "TRL takes the quantile of each micro-batch, and our plug-in refuses that: every token was kept",
            "off, as TRL",
        ),
    }


def _mismatch(config: Config, objective: Objective) -> Setting:
    name, cap = objective.mismatch.name, objective.mismatch.options.get("cap")
    correction = "vllm_importance_sampling_correction"
    if config.rollout.engine != "vllm":
        why = "TRL's own sampling leaves no log-probabilities to weigh"
        return refused(name != "none", why, "no vLLM")
    if name == "none":
        return mapped({correction: False})
    if name == "icepop":
        return unmappable(
            "TRL truncates, or masks above a bound; it has no mask with two bounds that keeps the weight"
        )
    mode = {"tis": "token_truncate", "mis": "sequence_mask"}[name]
    section = "vllm_importance_sampling"
    return mapped({correction: True, f"{section}_mode": mode, f"{section}_clip_max": cap})


def _optim(config: Config) -> dict[str, Setting]:
    optim, eight = config.optim, config.optim.state == "8bit"
    late = "its first update is at rate 0, so that every rate comes an update later"
    kind = (
        "constant_with_warmup" if optim.schedule == "constant" and optim.warmup else optim.schedule
    )
    return {
        "optim.lr": mapped({"learning_rate": optim.lr}),
        "optim.betas": mapped({"adam_beta1": optim.betas[0], "adam_beta2": optim.betas[1]}),
        "optim.weight_decay": nearly_if(
            optim.weight_decay,
            {"weight_decay": optim.weight_decay},
            "TRL leaves biases and norms out of the decay",
        ),
        "optim.warmup": nearly_if(optim.warmup, {"warmup_steps": optim.warmup}, late),
        "optim.schedule": nearly_if(
            optim.schedule != "constant",
            {"lr_scheduler_type": kind},
            "every rate comes an update later",
        ),
        "optim.clip_norm": mapped({"max_grad_norm": optim.clip_norm}),
        "optim.state": nearly_if(
            eight,
            {"optim": EIGHT_BITS if eight else "adamw_torch_fused"},
            "bitsandbytes' own 8 bits",
        ),
    }


def _train(config: Config) -> dict[str, Setting]:
    train = config.train
    per_pass, _ = passes_of(config, 1)
    updates = train.updates * config.rollout.prompts // step_prompts(config)
    counted = "" if updates == 1 else "counted in updates there"
    wanted = _wanted(config) or step_prompts(config) * config.rollout.group_size
    in_tokens = "counted in responses there: as many as fit if prompts and responses have the most tokens they may"
    passes = {"per_device_train_batch_size": per_pass}
    why = "TRL wants a divisor of the batch"
    if config.build_objective().needs_whole_groups:
        why = (
            "the objective needs whole groups, and TRL shuffles responses into passes: all at once"
        )
    return {
        "train.steps": mapped({"max_steps": train.steps * updates}, counted),
        "train.updates": mapped({"num_iterations": train.updates}),
        "train.mini_batch": _mini_batch(config),
        "train.teacher": refused(
            train.teacher, "GRPOTrainer has no teacher: the launch learns from rewards alone"
        ),
        "train.micro_batch": nearly_if(per_pass != wanted, passes, why),
        "train.micro_tokens": nearly({}, in_tokens)
        if train.micro_tokens
        else mapped(why="no limit"),
        "train.memory": own(
            f"TRL measures no memory: a pass has {per_pass} responses, whether they fit or not"
        ),
        "train.shard": own(
            "Accelerate shards where it is launched so: accelerate launch --use_fsdp --fsdp_version 2 "
            "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --fsdp_state_dict_type FULL_STATE_DICT launch.py"
        )
        if train.shard
        else mapped(why="off, as TRL"),
        "train.seed": mapped({"seed": train.seed}, "the prompts are ours, the draws are TRL's own"),
        "train.out": mapped({"output_dir": train.out}),
        "train.checkpoint_every": mapped({"save_steps": train.checkpoint_every * updates}, counted),
        "train.keep": mapped({"save_total_limit": train.keep + 1}, "the last one counts there"),
        "train.keep_best": refused(
            train.keep_best, "TRL evaluates by the mean reward, not by ours"
        ),
        "train.average": refused(train.average, "TRL averages no checkpoints"),
        "train.threads": mapped(why="launch.py sets torch's")
        if train.threads
        else own("torch chooses its own number"),
        "train.max_skipped": own("TRL does not stop for numbers that are not finite"),
        "train.max_uninformative": own("TRL goes on without any difference in reward"),
    }


def _eval(config: Config) -> dict[str, Setting]:
    evaluation, rollout = config.eval, config.rollout
    when: dict[str, Any] = {
        "eval_strategy": "steps" if evaluation.every else "no",
        "eval_on_start": bool(evaluation.every),
    }
    if evaluation.every:
        when["eval_steps"] = (
            evaluation.every * config.train.updates * rollout.prompts // step_prompts(config)
        )
    at_once = evaluation.samples * max(1, EVALUATED_AT_ONCE // evaluation.samples)
    samples = {"num_generations_eval": evaluation.samples, "per_device_eval_batch_size": at_once}
    only = f"TRL evaluates at the temperature it trains with, {rollout.temperature:g}"
    return {
        "eval.every": mapped(when, "TRL reports the mean reward, not acc@n"),
        "eval.samples": mapped(samples),
        "eval.temperature": refused(
            evaluation.every and evaluation.temperature != rollout.temperature, only, only
        ),
        "eval.greedy": refused(
            evaluation.greedy and evaluation.every, "TRL evaluates by sampling alone", "off"
        ),
        "eval.per_level": mapped(why="launch.py gives TRL that many"),
        "eval.probe": refused(evaluation.probe, "TRL has no fixed set to score", "off"),
    }


def _log(config: Config) -> dict[str, Setting]:
    log = config.log
    report = [name for name in TRACKERS if getattr(log, name)] or ["none"]
    on = {"log_completions": log.rollouts_every > 0}
    differs = []
    if log.rollouts_every > 1:
        differs.append("TRL writes completions with every line it logs")
    if log.rollouts_every and config.eval.every:
        differs.append("an evaluation's take the place of its step's")
    return {
        "log.rollouts_every": nearly_if(differs, on, "; ".join(differs)),
        "log.terminal": mapped({"disable_tqdm": not log.terminal}),
        "log.tensorboard": mapped({"report_to": report}),
        **{f"log.{name}": mapped(why="in report_to") for name in TRACKERS if name != "tensorboard"},
        "log.project": mapped({"project": log.project}),
        **tracker_settings(
            config, "TRL leaves it to the tracker: WANDB_ENTITY, WANDB_RUN_GROUP, WANDB_TAGS"
        ),
        "log.samples": own("log_completions shows all of them, num_completions_to_print some"),
    }

"""One sentence for what is wrong with a configuration: the option and its value, the rule it broke, and the fix.

pydantic finds the mistake; its own messages name Python types and have no "did you mean".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from equipoise.config.sections import Must
from equipoise.objective.choice import did_you_mean
from equipoise.toml import toml

# What a value must be, by pydantic's name of the error, with the bound that was broken.
RULES = {
    "bool_type": "true or false",
    "finite_number": "finite",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_type": "a whole number",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "string_too_short": "at least a character long",
    "string_type": "a text",
}
# What other trainers call an option.
NAMED_ELSEWHERE = {
    "adam_beta1": "optim.betas",
    "adam_beta2": "optim.betas",
    "batch_size": "rollout.prompts",
    "beta": "objective.kl",
    "bf16": "model.dtype",
    "cliprange": "objective.surrogate",
    "data_path": "task.name",
    "dataset": "task.name",
    "dataset_name": "task.name",
    "delta": "objective.surrogate",
    "epochs": "train.steps",
    "epsilon": "objective.surrogate",
    "epsilon_high": "objective.surrogate",
    "eval_steps": "eval.every",
    "generation_batch_size": "rollout.prompts",
    "gradient_accumulation_steps": "train.micro_batch",
    "importance_sampling_level": "objective.surrogate",
    "kl_coef": "objective.kl",
    "learning_rate": "optim.lr",
    "load_in_4bit": "model.quantize",
    "log_completions": "log.rollouts_every",
    "lora_r": "model.lora_rank",
    "loss_agg_mode": "objective.aggregation",
    "loss_type": "objective.aggregation",
    "lr_scheduler_type": "optim.schedule",
    "mask_truncated_completions": "reward.mask_truncated",
    "max_completion_length": "rollout.max_tokens",
    "max_grad_norm": "optim.clip_norm",
    "max_new_tokens": "rollout.max_tokens",
    "max_prompt_length": "task.max_prompt_tokens",
    "max_response_length": "rollout.max_tokens",
    "max_steps": "train.steps",
    "model_name_or_path": "model.name",
    "num_generations": "rollout.group_size",
    "num_iterations": "train.updates",
    "num_train_epochs": "train.steps",
    "output_dir": "train.out",
    "per_device_train_batch_size": "train.micro_batch",
    "report_to": "log.wandb",
    "reward_funcs": "reward.functions",
    "reward_weights": "reward.weights",
    "save_steps": "train.checkpoint_every",
    "save_total_limit": "train.keep",
    "scale_rewards": "objective.advantage",
    "steps_per_generation": "train.mini_batch",
    "system_prompt": "task.system",
    "torch_dtype": "model.dtype",
    "use_peft": "model.lora_rank",
    "use_vllm": "rollout.engine",
    "vllm_gpu_memory_utilization": "rollout.engine_memory",
    "warmup_steps": "optim.warmup",
}


class ConfigError(ValueError):
    """A configuration that cannot be run; the message is one sentence for the user."""


def sentence(kind: type[BaseModel], error: ValidationError) -> str:
    """What is wrong first. `kind` is the model of the whole configuration."""
    found = error.errors(include_url=False)[0]
    place, value, context = found["loc"], found["input"], found.get("ctx", {})
    if found["type"] == "extra_forbidden":
        return _unknown(kind, place)
    if len(place) < 2 and found["type"] == "value_error":
        return str(context["error"])  # a rule between options has named them
    if len(place) < 2:
        return f"{place[0]} = {shown(value)}: must be a section of options"
    option = options_of(kind)[place[0]][place[1]]
    if found["type"] == "missing":
        # of a tuple that is too short: the tuple is wrong, not the element it lacks
        place = place[:-1]
    name = _name(place)
    if found["type"] == "value_error":
        return f"{name} = {shown(value)}: {context['error']}"
    must = [note.be for note in option.metadata if isinstance(note, Must)]
    if must and not isinstance(place[-1], int):  # an element breaks a rule of its own
        return f"{name} = {shown(value)}: must be {must[0]}"
    if found["type"] == "literal_error":
        known = get_args(option.annotation)
        return f"{name} = {shown(value)} is not known;{did_you_mean(value, known)} ({', '.join(known)})"
    rule = RULES[found["type"]].format(**{name: _plain(bound) for name, bound in context.items()})
    return f"{name} = {shown(value)}: must be {rule} ({help_of(option)})"


def _plain(bound: Any) -> str:
    """A whole number to its last digit, which 6 of 19 would not tell."""
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _unknown(kind: type[BaseModel], place: Sequence[str | int]) -> str:
    sections = options_of(kind)
    what, known = ("a section", sections) if len(place) == 1 else ("an option", sections[place[0]])
    if meant := meant_by(str(place[-1]), kind):
        return f"{_name(place)} is not {what}; did you mean {' or '.join(meant)}?"
    hint = did_you_mean(place[-1], sorted(known))
    return f"{_name(place)} is not {what};{hint} ({', '.join(sorted(known))})"


def meant_by(key: str, kind: type[BaseModel]) -> list[str]:
    """The options, as `section.key`, that have this name in another section or are known by it elsewhere."""
    sections = options_of(kind)
    found = [f"{section}.{key}" for section, options in sections.items() if key in options]
    other = NAMED_ELSEWHERE.get(key, "")
    if not found and other.partition(".")[0] in sections:
        found = [other]
    return found


def _name(place: Sequence[str | int]) -> str:
    """`section.option[i]`. Further texts name the branches of a union, which is no place in the file."""
    return ".".join(map(str, place[:2])) + "".join(
        f"[{i}]" for i in place[2:] if isinstance(i, int)
    )


def options_of(kind: type[BaseModel]) -> dict[Any, dict[Any, FieldInfo]]:
    """Every option's field by section and name."""
    sections = {name: field.annotation for name, field in kind.model_fields.items()}
    return {name: section.model_fields for name, section in sections.items()}  # type: ignore[union-attr]


def help_of(option: FieldInfo) -> str:
    """The option's sentence, which may stand in several lines of the source."""
    return " ".join((option.description or "").split())


def shown(value: Any) -> str:
    """As the file would have it; a program may have set what no file can hold."""
    try:
        return toml(value)
    except TypeError:
        return repr(value)

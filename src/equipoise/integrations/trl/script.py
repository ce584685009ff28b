"""The text of a launch for TRL: launch.py, and GRPOConfig's settings as YAML."""

from __future__ import annotations

import json
import math
import string
from collections.abc import Mapping
from typing import Any

from equipoise.config import Config
from equipoise.integrations.launch import (
    Setting,
    account,
    arguments,
    model_folder,
    rewards_are_accuracies,
)
from equipoise.policy import Lora

# What every launch sets: TRL's policy must be the one that sampled, prompts come in our order,
# and it logs every step.
FIXED: dict[str, Any] = {
    "disable_dropout": True,
    "shuffle_dataset": False,
    "logging_steps": 1,
    "num_completions_to_print": 0,
    "save_strategy": "steps",
}


def objective_of(config: Config) -> dict[str, Any]:
    """Keyword arguments of `Objective`, without what GRPOConfig decides (weights, mismatch)."""
    choices = config.build_objective().choices()
    if choices["difficulty"]["name"] == "hadw_history":
        choices["difficulty"] = {"name": "none"}
    if not rewards_are_accuracies(config):
        choices["length_penalty"] = 0.0
    return {k: v for k, v in choices.items() if k not in ("reward_weights", "mismatch")}


def grpo_yaml(found: Mapping[str, Setting]) -> str:
    """YAML that is JSON after each key; PyYAML takes 1e-06 for a text, hence the point."""
    lines = [f"{name}: {_yaml(value)}" for name, value in {**FIXED, **arguments(found)}.items()]
    return "\n".join(lines) + "\n"


def _yaml(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        digits, e, power = repr(value).partition("e")
        return f"{digits if '.' in digits else digits + '.0'}{e}{power}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    return json.dumps(value)


LAUNCH = string.Template('''\
"""Train with TRL as grpo.yaml and config.toml beside this file say; written by `equipoise export trl`.

    python launch.py                                one process
    accelerate launch --num_processes 8 launch.py   several: the batch is split among them, and stays the same
    python launch.py --learning_rate 1e-6           any setting of TRL's GRPOConfig
"""

# What became of every option:
$account

import sys
from pathlib import Path

import torch
from trl import GRPOConfig, TrlParser

from equipoise import Objective
from equipoise.integrations.trl import export as ours
from equipoise.integrations.launch import open_task
from equipoise.integrations.trl.plugin import EquipoiseGRPOTrainer
from equipoise.train import load

HERE = Path(__file__).resolve().parent
MODEL = $model
OBJECTIVE = {
$choices
}
ADAPTER = $adapter  # LoRA, or None: all weights


def main() -> None:
    config = load(HERE / "config.toml")
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    (args,) = TrlParser((GRPOConfig,)).parse_args_and_config(
        ["--config", str(HERE / "grpo.yaml"), *ours.split_arguments(config), *sys.argv[1:]]
    )
    peft_config = None
    if ADAPTER is not None:
        from peft import LoraConfig

        peft_config = LoraConfig(**ADAPTER)
    task = open_task(config)
    trainer = EquipoiseGRPOTrainer(
        model=MODEL,
        objective=Objective(**OBJECTIVE),
        args=args,
        reward_funcs=ours.reward_functions(config, task),
        train_dataset=ours.dataset(config, task),
        eval_dataset=ours.held_out(config, task) if config.eval.every else None,
        processing_class=ours.tokenizer(config, MODEL),
        peft_config=peft_config,
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    if trainer.is_fsdp_enabled:  # Accelerate's default saves shards, and then no model is left in output_dir
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    trainer.save_model(args.output_dir)


if __name__ == "__main__":
    main()
''')


def script(config: Config, found: Mapping[str, Setting]) -> str:
    """The text of launch.py: the objective's choices, under the account of what became of ours."""
    choices = [f"    {name!r}: {choice!r}," for name, choice in objective_of(config).items()]
    adapter = Lora(**config.model.lora_options()).arguments() if config.model.lora_rank else None
    return LAUNCH.substitute(
        account="\n".join(f"#   {line}" for line in account(config, found)),
        choices="\n".join(choices),
        model=repr(model_folder(config.model.name)),
        adapter=repr(adapter),
    )

"""The configuration of a supervised warm-up: the sections of a training run that apply, and one of its own.

A file for `equipoise sft` has [model], [task] and [optim] as one for `equipoise train` has them, and [sft]. Options of
[task] that judge answers (verifier, answer_in, rules) do nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from equipoise.config import sections
from equipoise.config.errors import ConfigError, sentence
from equipoise.config.files import chat_template, folders_of, table_of


class SftOptimConfig(sections.OptimConfig):
    """Imitation takes larger steps than reinforcement learning: other rates by default."""

    lr: sections.Rate = "auto"
    """peak learning rate of AdamW; auto goes by the model's size: 1e-3 below 10M parameters, 1e-4 below 200M, 3e-5
    below 1B, else 1e-5; ten times as much with LoRA from 10M on"""


class SftSection(sections.Section):
    batch: sections.AtLeastOne = 32
    """demonstrations per optimizer step"""
    epochs: sections.AtLeastOne = 1
    """how often every demonstration is shown, where steps is 0"""
    steps: sections.Count = 0
    """optimizer steps; 0 takes those of the epochs"""
    max_tokens: sections.Count = 0
    """longest response that is imitated; longer ones are left out and counted; 0 is no limit but the context"""
    micro_tokens: sections.Count = 0
    """tokens of prompts and responses per pass; 0 leaves it to memory"""
    eval_every: sections.Count = 20
    """steps between held-out losses, the first before training; 0 is never"""
    held_out: sections.AtLeastOne = 256
    """held-out demonstrations that the loss is of, at most"""
    seed: sections.Seed = 0
    """seed of the order of demonstrations"""
    out: sections.Name = "runs/sft"
    """the folder of the run; its checkpoints are models that `equipoise train --model.name` starts from"""
    checkpoint_every: sections.AtLeastOne = 100
    """steps between checkpoints; one is always written at the end"""
    keep: sections.Count = 1
    """checkpoints to keep besides the last"""
    threads: sections.Threads = 0
    """CPU threads of torch; 0 leaves torch's own choice"""
    terminal: bool = True
    """a line of progress per step"""


class SftConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", revalidate_instances="always")

    model: sections.ModelConfig = Field(default_factory=sections.ModelConfig)
    task: sections.TaskConfig = Field(default_factory=sections.TaskConfig)
    optim: SftOptimConfig = Field(default_factory=SftOptimConfig)
    sft: SftSection = Field(default_factory=SftSection)


def load_sft(path: str | Path | None, overrides: Sequence[str] = ()) -> SftConfig:
    """Read a TOML file (None: all defaults), apply `--section.key value` overrides, check, and return the whole."""
    try:
        config = SftConfig.model_validate(table_of(path, overrides, SftConfig))
    except ValidationError as error:
        raise ConfigError(sentence(SftConfig, error)) from error
    config.task.chat_template = chat_template(config.task.chat_template, folders_of(path))
    return config

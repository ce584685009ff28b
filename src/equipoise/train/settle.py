"""What a configuration leaves to the model (`auto`): the chat template, and the rate.

Both are settled once, when the model is there, said to the user, and written into the run's
configuration: a resumed run has what it began with. A rate that a pretrained model is unlikely to
survive is a warning, never refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from equipoise import policy as models
from equipoise.config import Config, ConfigError, ModelConfig, TaskConfig
from equipoise.config.files import chat_template
from equipoise.config.sft import SftConfig
from equipoise.policy.chat import Chat, Decision, decide
from equipoise.toml import toml

SETTLED = ("task.chat", "optim.lr")

# Peak learning rates by the model's parameters. 5e-4: the embedded model; 1e-5: SmolLM2-135M; 3e-6:
# Qwen2.5-Coder-0.5B on GSM8K, as measured here; 1e-6: HA-DW's and Balanced Aggregation's papers,
# 1.7B to 7B.
SMALLEST_PRETRAINED = 10_000_000
RATES = (
    (SMALLEST_PRETRAINED, 5e-4),
    (200_000_000, 1e-5),
    (1_000_000_000, 3e-6),
    (float("inf"), 1e-6),
)
SFT_RATES = (
    (SMALLEST_PRETRAINED, 1e-3),
    (200_000_000, 1e-4),
    (1_000_000_000, 3e-5),
    (float("inf"), 1e-5),
)
# times as much: an adapter starts from nothing,
# and moves the weights by a product of two small matrices
LORA = 10.0
TOO_HIGH = 10.0  # times the default


@dataclass(frozen=True)
class Outline:
    """What of a model decides: name, tokenizer, the tokens that end its texts, its size."""

    name: str
    tokenizer: Any
    ends: Sequence[int]
    parameters: int

    @classmethod
    def of(cls, policy: models.Policy) -> Outline:
        return cls(policy.name, policy.tokenizer, policy.eos, models.parameter_count(policy.model))


Rates = Sequence[tuple[float, float]]  # parameters below which a rate holds
C = TypeVar("C", Config, SftConfig)


@dataclass(frozen=True)
class Settled(Generic[C]):
    """The configuration without `auto`, what it does with prompts, and notes for the user."""

    config: C
    chat: Chat
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def settle(config: C, model: Outline, rates: Rates = RATES) -> Settled[C]:
    """`config` is not changed; the tokenizer gets the template that the configuration brings."""
    chat = open_chat(config.task, model)
    notes = [str(chat)]
    lora = bool(config.model.lora_rank)
    rate, rate_note, warning = _rate(config.optim.lr, model.parameters, lora, rates)
    task = config.task.model_copy(update={"chat": chat.on, "chat_template": _template(config.task)})
    optim = config.optim.model_copy(update={"lr": rate})
    settled = config.model_copy(update={"task": task, "optim": optim})
    return Settled(settled, chat, notes + rate_note, warning + _idle_lora(config.model))


def open_chat(task: TaskConfig, model: Outline) -> Chat:
    """What `task.chat` and its options come to for this model."""
    template = _template(task)
    if template:
        # saved with the checkpoints: who uses the model needs it too
        model.tokenizer.chat_template = template
    decision = _decided(task, model)
    if not decision.on and (
        unused := [name for name in ("system", "chat_template_kwargs") if getattr(task, name)]
    ):
        has_one = model.tokenizer.chat_template is not None
        fix = "task.chat = true uses it" if has_one else "task.chat_template gives it one"
        raise ConfigError(
            f"task.{unused[0]} = {toml(getattr(task, unused[0]))}: only a chat template writes it, and {decision.why}; "
            f"{fix}"
        )
    choice = task.chat == "auto" and model.tokenizer.chat_template is not None
    other = f"; task.chat = {toml(not decision.on)} has it the other way" if choice else ""
    return Chat(decision.on, task.system, task.chat_template_kwargs or {}, decision.why + other)


def _decided(task: TaskConfig, model: Outline) -> Decision:
    if task.chat != "auto":
        return Decision(task.chat, f"task.chat = {toml(task.chat)}")
    if task.chat_template:
        return Decision(True, "task.chat_template is given")
    return decide(model.tokenizer, model.name, model.ends)


def _template(task: TaskConfig) -> str:
    """Read when the file was loaded; a configuration that a program made may still name a file."""
    return chat_template(task.chat_template, [Path.cwd()])


def default_rate(parameters: int, lora: bool, rates: Rates = RATES) -> float:
    """The learning rate for a model of this size."""
    rate = next(rate for most, rate in rates if parameters < most)
    return rate * LORA if lora and parameters >= SMALLEST_PRETRAINED else rate


def _rate(
    asked: float | Literal["auto"], parameters: int, lora: bool, rates: Rates
) -> tuple[float, list[str], list[str]]:
    """The rate, how it was found, and what may come of it."""
    default = default_rate(parameters, lora, rates)
    size = f"{parameters / 1e6:,.0f}M" if parameters >= 1e6 else f"{parameters:,}"
    how = f"a model of {size} parameters{' with LoRA' if lora else ''}"
    if asked == "auto":
        note = f"learning rate: {default:g} (the default for {how}; optim.lr sets another)"
        return default, [note], []
    if parameters < SMALLEST_PRETRAINED or asked <= TOO_HIGH * default:
        return asked, [], []
    warning = (
        f"warning: optim.lr = {asked:g} is {asked / default:,.0f} times the default for {how}, {default:g}: a "
        "pretrained model is likely to lose what it knows within a few steps"
    )
    return asked, [], [warning]


def _idle_lora(model: ModelConfig) -> list[str]:
    """A warning where options of adapters were set and there are none."""
    default = ModelConfig()
    names = ("lora_alpha", "lora_targets", "lora_dropout")
    changed = [name for name in names if getattr(model, name) != getattr(default, name)]
    if model.lora_rank or not changed:
        return []
    options = " and ".join(f"model.{name} = {toml(getattr(model, name))}" for name in changed)
    do = "does" if len(changed) == 1 else "do"
    return [f"warning: {options} {do} nothing: model.lora_rank = 0 trains every weight"]


def as_begun(begun: C, config: C) -> C:
    """A resumed run's configuration: what it leaves to `auto` is what the run began with."""
    changed = {}
    for name in SETTLED:
        section, _, option = name.partition(".")
        if getattr(getattr(config, section), option) == "auto":
            value = getattr(getattr(begun, section), option)
            changed[section] = getattr(config, section).model_copy(update={option: value})
    return config.model_copy(update=changed)

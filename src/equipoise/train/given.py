"""What a program gives a run instead of names: model, data, task, reward functions, objective.

A configuration can write names alone, so an object stands in it as "python:NAME", and `given.json`
in the run directory keeps a fingerprint of each: a run that is resumed must be given the same data
and the same model again, and says so where the source of a reward function has changed. An
objective is written out as its choices and needs nothing more. Not here: opening any of it
(loop.py).
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise import policy as models
from equipoise.config import Config, ConfigError, load
from equipoise.config.config import validated
from equipoise.config.errors import meant_by
from equipoise.config.files import located
from equipoise.objective import Objective
from equipoise.objective.choice import did_you_mean
from equipoise.tasks import Task
from equipoise.tasks.in_memory import fingerprint, rows_of
from equipoise.tasks.row_reader import Rows

PYTHON = "python:"  # before the name of what a program gave as an object
DTYPES = ("float32", "bfloat16")
LOOKED_AT = 1024  # numbers of each weight that the fingerprint of a model reads

Reward = str | Callable[..., Any]
ConfigLike = Config | Mapping[str, Any] | str | Path | None


@dataclass
class RunInputs:
    """A whole configuration, and the objects behind its "python:" names."""

    config: Config
    policy: models.Policy | None = None
    task: Task | None = None
    rows: Rows | None = None
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """For given.json; empty where the configuration says everything."""
        record: dict[str, Any] = {}
        if self.policy is not None:
            record["model"] = {
                "name": self.config.model.name,
                "fingerprint": _of_weights(self.policy, self.config),
            }
        if self.rows is not None:
            about = {"rows": self.rows.count, "fingerprint": fingerprint(self.rows)}
            record["data"] = {"name": self.config.task.name, **about}
        if self.functions:
            record["rewards"] = {
                name: _of_source(function) for name, function in self.functions.items()
            }
        return record


def gather(
    config: ConfigLike = None,
    *,
    model: Any = None,
    tokenizer: Any = None,
    task: str | Task | None = None,
    dataset: Any = None,
    rewards: Sequence[Reward] | Reward | None = None,
    objective: str | Objective | None = None,
) -> RunInputs:
    """The arguments of `Trainer` as a configuration and the objects beside it; loads nothing."""
    table = read_table(config)
    policy = _take_model(table["model"], model, tokenizer)
    rows = _take_data(table["task"], task, dataset)
    functions = _take_rewards(table["reward"], rewards)
    _take_objective(table, objective)
    own_task = None if task is None or isinstance(task, str) else task
    given = RunInputs(validated(table), policy, own_task, rows, functions)
    _refuse_missing(given)
    return given


# what arguments of TRL's GRPOTrainer are here
TRL_ARGUMENTS = {
    "args": "config",
    "eval_dataset": 'config={"task.held_out": …}',
    "peft_config": 'config={"model.lora_rank": …}',
    "processing_class": "tokenizer",
    "reward_funcs": "rewards",
}


def unknown_argument(name: str, known: Sequence[str]) -> str:
    """What to say of `Trainer(name=…)`: an option, also by another trainer's name, goes into config."""
    meant = [f'config={{"{option}": …}}' for option in meant_by(name, Config)]
    if name in TRL_ARGUMENTS:
        meant = [TRL_ARGUMENTS[name]]
    hint = f" did you mean {' or '.join(meant)}?" if meant else did_you_mean(name, known)
    return f'Trainer has no argument "{name}";{hint} ({", ".join(known)})'


def read_table(config: ConfigLike) -> dict[str, Any]:
    """All sections of a configuration, of the file of one, or of a mapping of options: nested, or
    by "section.option". A mapping is checked when the other arguments have been put into it.
    """
    table: dict[str, Any] = {name: {} for name in Config.model_fields}
    if config is None or isinstance(config, str | Path):
        config = load(config)
    if isinstance(config, Config):
        return table | config.model_dump()
    for key, value in config.items():
        section, dot, option = key.partition(".")
        values = {option: value} if dot else value
        if not isinstance(values, Mapping) or not isinstance(table.get(section), dict):
            # no such section, or not a section's options: refused by its name
            validated({section: values})
        table[section].update(values)
    return table


def _take_model(section: dict[str, Any], model: Any, tokenizer: Any) -> models.Policy | None:
    if model is None or isinstance(model, str | Path):
        if tokenizer is not None:
            raise ConfigError(
                "tokenizer: goes with a model object; a model's name or path brings its own"
            )
        section.update({} if model is None else {"name": str(model)})
        return None
    if section.get("lora_rank"):
        raise ConfigError(
            f"model.lora_rank = {section['lora_rank']}: goes with a model's name or path; wrap a model object with peft"
        )
    policy = model if isinstance(model, models.Policy) else _policy_of(model, tokenizer)
    dtype = str(policy.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise ConfigError(f"model: its weights are {dtype}: must be {' or '.join(DTYPES)}")
    if section.get("gradient_checkpointing"):
        policy.checkpoint_gradients()
    section.update(name=f"{PYTHON}{policy.name}", dtype=dtype, device=str(policy.device))
    return policy


def _policy_of(model: Any, tokenizer: Any) -> models.Policy:
    """A transformers or peft model with its tokenizer."""
    if not hasattr(model, "generate"):
        raise ConfigError(
            f"model is a {type(model).__name__}: must be a name, a path, an equipoise Policy, or a transformers model "
            "that generates text"
        )
    if tokenizer is None:
        raise ConfigError(
            "tokenizer: a model object needs its tokenizer; give tokenizer=AutoTokenizer…"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    name = getattr(model, "name_or_path", "") or type(model).__name__
    return models.Policy(model, tokenizer, name)


def _take_data(section: dict[str, Any], task: str | Task | None, dataset: Any) -> Rows | None:
    if task is not None and dataset is not None:
        raise ConfigError("task and dataset are both given: must be one of them")
    if task is not None:
        section["name"] = task if isinstance(task, str) else f"{PYTHON}{task.name}"
    if dataset is None:
        return None
    if isinstance(dataset, str | Path):
        section["name"] = str(dataset)
        return None
    section["name"] = f"{PYTHON}dataset"
    return rows_of(dataset, section["name"])


def _take_rewards(
    section: dict[str, Any], rewards: Sequence[Reward] | Reward | None
) -> dict[str, Callable[..., Any]]:
    if rewards is None:
        return {}
    given: dict[str, Callable[..., Any]] = {}
    names: list[str] = []
    for function in [rewards] if isinstance(rewards, str) or callable(rewards) else rewards:
        if isinstance(function, str):
            names.append(located(function, None))
        elif callable(function):
            names.append(_unused(f"{PYTHON}{_called(function)}", names))
            given[names[-1]] = function
        else:
            raise ConfigError(
                f"rewards: {function!r} is not a function; give a callable, or a name as in the file"
            )
    section["functions"] = names
    weights = section.get("weights", 1.0)  # one value stands for a list of one
    each = weights if isinstance(weights, list | tuple) else [weights]
    if all(weight == 1 for weight in each):  # the default, for however many there are
        section["weights"] = [1.0] * len(names)
    return given


def _called(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "lambda" if name == "<lambda>" else name


def _unused(name: str, taken: Sequence[str]) -> str:
    """Two functions may have one name, as two lambdas have."""
    if name not in taken:
        return name
    numbered = (f"{name}_{k}" for k in itertools.count(2))
    return next(other for other in numbered if other not in taken)


def _take_objective(table: dict[str, Any], objective: str | Objective | None) -> None:
    """A name is a preset's; an object is written out as all of its choices."""
    if isinstance(objective, str):
        table["objective"]["preset"] = objective
    if objective is None or isinstance(objective, str):
        return
    choices = objective.choices()
    weights, penalty = choices.pop("reward_weights"), choices.pop("length_penalty")
    choices["off_policy_mask"] = choices["off_policy_mask"] or 0.0
    for name, choice in choices.items():
        # TOML has no null, and an option that is None is one that was left out.
        if isinstance(choice, dict):
            choice = {k: v for k, v in choice.items() if v is not None}
        table["objective"][name] = choice
    table["reward"]["length_penalty"] = penalty
    if weights != [1.0]:
        table["reward"]["weights"] = weights


def _refuse_missing(given: RunInputs) -> None:
    """A configuration names an object that nobody gave, as when a program's run is resumed."""
    config = given.config
    named: list[tuple[str, str, object]] = [("model.name", config.model.name, given.policy)]
    named += [("task.name", config.task.name, given.rows or given.task)]
    named += [
        ("reward.functions", name, given.functions.get(name)) for name in config.reward.functions
    ]
    for option, name, found in named:
        if name.startswith(PYTHON) and found is None:
            raise ConfigError(
                f'{option} = "{name}": was given to the run by a Python program, and is not here; go on in that '
                "program, with the same arguments and eq.Trainer(..., resume=True)"
            )


def check_same(kept: Path, given: RunInputs) -> list[str]:
    """Refuse a resumed run whose data or model is another; returns what is said of functions."""
    if not kept.exists():
        return []
    old, new = json.loads(kept.read_text(encoding="utf-8")), given.record()
    for what in ("data", "model"):
        if old.get(what) != new.get(what):
            raise ConfigError(
                f"{what}: {_shown(new.get(what))} is not what the run began with, {_shown(old.get(what))}; "
                "give it the same again, or start another run with train.out"
            )
    before, now = old.get("rewards", {}), new.get("rewards", {})
    changed = [name for name in now if before.get(name) != now[name]]
    return [f"{name}: its source has changed since the run began" for name in changed]


def _shown(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return "nothing"
    return ", ".join(f"{key} {value}" for key, value in record.items())


def _of_source(function: Callable[..., Any]) -> str:
    """Of the function's source where Python has it, else of its name."""
    try:
        text = inspect.getsource(function if inspect.isroutine(function) else type(function))
    except (OSError, TypeError):
        text = repr(getattr(function, "__qualname__", type(function).__qualname__))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _of_weights(policy: models.Policy, config: Config) -> str:
    """Names and shapes of the weights, and with a KL, whose reference is the model as it begins,
    the first numbers of each. Without one, a resumed run takes all weights that are trained from
    its checkpoint.
    """
    found = hashlib.sha256()
    for name, weight in policy.model.named_parameters():
        found.update(f"{name} {tuple(weight.shape)}".encode())
        if config.objective.kl:
            found.update(weight.detach().flatten()[:LOOKED_AT].float().cpu().numpy().tobytes())
    return found.hexdigest()[:16]

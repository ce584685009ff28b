"""What a run opens before its first step: processes checked, the model, the engine that samples.

Not here: the run directory (folder.py, run_start.py), the task,
and what a resumed run reads (loop.py).
"""

from __future__ import annotations

import functools
import importlib.metadata
import platform

import torch

from equipoise import __version__
from equipoise import policy as models
from equipoise.config import Config, ConfigError, ModelConfig
from equipoise.rollout import Sampler
from equipoise.rollout import sampler as native_sampler
from equipoise.rollout.vllm import VllmSampler
from equipoise.train import ranks
from equipoise.train.given import RunInputs

PACKAGES = ("transformers", "tokenizers", "numpy")


def check_processes(config: Config) -> None:
    """Refuse what cannot be shared by the processes that torchrun started.

    Each refuses before it has joined the others: one that left them while they join would be what
    they complain of.
    """
    count = ranks.expected()
    if config.rollout.prompts < count:
        raise ConfigError(
            f"rollout.prompts = {config.rollout.prompts}: must be at least one for each of the {count} processes"
        )
    if 0 < config.train.mini_batch < count:
        raise ConfigError(
            f"train.mini_batch = {config.train.mini_batch}: must be at least one prompt for each of the "
            f"{count} processes, or 0"
        )
    if config.rollout.engine == "vllm" and count > 1:
        raise ConfigError(f'rollout.engine = "vllm": needs one process, not {count}; use native')


def load_policy(given: RunInputs) -> models.Policy:
    """The model that is trained, fit for the way it is trained: a program's, or the named one."""
    config = given.config
    policy = given.policy or open_model(config.model)
    if config.train.shard and not policy.is_llama_like:
        raise ConfigError(
            f"train.shard = true: needs a Llama-like model, and {config.model.name} is none"
        )
    return policy


def open_model(model: ModelConfig) -> models.Policy:
    """On the device that the configuration names; refused where it cannot be trained."""
    policy = models.load(
        model.name,
        dtype=getattr(torch, model.dtype),
        device=device(model.device),
        gradient_checkpointing=model.gradient_checkpointing,
        lora=models.Lora(**model.lora_options()) if model.lora_rank else None,
        four_bit=model.quantize == "nf4",
    )
    models.check_packing(policy)
    return policy


def device(name: str) -> str:
    """`auto` as the device there is; one that is not there is refused."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    there = torch.cuda.device_count()
    if name != "cpu" and int(name.partition(":")[2] or 0) >= there:
        raise ConfigError(
            f'model.device = "{name}": there are {there} CUDA devices here; use cpu or auto'
        )
    return name


def open_engine(config: Config, policy: models.Policy) -> Sampler:
    if config.rollout.engine == "vllm":
        return VllmSampler(policy, memory=config.rollout.engine_memory)
    try:
        return native_sampler(policy, **config.rollout.sampler_options())
    except ValueError as error:
        raise ConfigError(str(error)) from error


def close_engine(sampler: Sampler) -> None:
    """vLLM holds processes and memory of its own; the other samplers hold nothing."""
    if isinstance(sampler, VllmSampler):
        sampler.close()


@functools.cache
def _versions() -> dict[str, str]:
    # torch's own word also names its build, 2.13.0+cu130
    others = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"torch": torch.__version__, **others}


def environment(device: torch.device) -> dict[str, str]:
    """Versions and device, as `environment.json` keeps them."""
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "equipoise": __version__,
        **_versions(),
        "python": platform.python_version(),
        "system": platform.system(),
        "device": card,
    }

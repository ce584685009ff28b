"""LoRA on a bfloat16 base against the same base in 4 bits (NF4), packed by bitsandbytes and by torchao.

Random weights of Qwen2.5-7B's shape, adapters of rank 16 on all linear layers, gradient
checkpointing. For each base: bytes of the model, peak and time of a forward and backward pass over `--tokens` tokens,
time to make every weight whole once (`whole`), time and memory of sampling, and how far weights, log-probabilities and
the adapters' gradient are from the bfloat16 base's. torchao runs twice: as it is, and with its unpacking compiled.
Errors are of random normal weights; trained ones have outliers, and err more.

    python benchmarks/quantized.py                        7B on one GPU, into benchmarks/results/quantized.json
    python benchmarks/quantized.py --shape SmolLM2-135M --device cpu --tokens 256 --out small.json
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import report
import shapes
import torch
from peft import LoraConfig, get_peft_model
from timing import attempt
from torch import Tensor

from equipoise import policy as models
from equipoise.policy import quantized
from equipoise.rollout import SamplingParams
from equipoise.rollout import sampler as open_sampler

RANK, REPEATS = 16, 3
PROMPTS, GROUP, PROMPT, NEW = 16, 8, 64, 64  # of the sampling that is timed
GIB = 2**30
LIMIT = 240.0  # seconds for each base


class TorchaoNf4:
    """NF4 with doubly quantised scales, by torchao."""

    compiled = False

    def __init__(self, weight: Tensor) -> None:
        from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4

        self.shape = weight.shape
        self._packed = to_nf4(weight, block_size=quantized.BLOCK, scaler_block_size=256)
        self._whole = _compiled() if self.compiled else _unpacked

    @property
    def nbytes(self) -> int:
        return sum(getattr(self._packed, name).nbytes for name in ("quantized_data", "quantized_scalers"))

    def whole(self) -> Tensor:
        return self._whole(self._packed)


class CompiledTorchaoNf4(TorchaoNf4):
    compiled = True


def _unpacked(packed: Any) -> Tensor:
    weight: Tensor = packed.get_original_weight()
    return weight


@functools.cache
def _compiled() -> Callable[[Any], Tensor]:
    return torch.compile(_unpacked, dynamic=False)  # brings the compiler, which takes seconds to import


BASES: dict[str, Callable[[Tensor], quantized.Packed] | None] = {
    "bfloat16": None,
    "bitsandbytes": quantized.Nf4,
    "torchao": TorchaoNf4,
    "torchao compiled": CompiledTorchaoNf4,
}


def adapted(shape: str, device: str, packing: Callable[[Tensor], quantized.Packed] | None) -> models.Policy:
    """The policy, with adapters that change the output, the same for every base."""
    model = shapes.build(shape, end=None, device=device)
    if packing is not None:
        quantized.quantize(model, device, packing)
    torch.manual_seed(1)
    model = get_peft_model(model, LoraConfig(**models.Lora(rank=RANK).arguments()))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.002)
    words = SimpleNamespace(eos_token_id=None, pad_token_id=1)
    return models.Policy(model, words, shape, gradient_checkpointing=True)


def packed_text(policy: models.Policy, tokens: int) -> models.Pack:
    """Prompts with four responses each, about so many tokens in all."""
    generator = torch.Generator().manual_seed(2)
    length = min(256, tokens // 4)
    rows = tokens // length
    text = torch.randint(2, policy.core.config.vocab_size, (rows * length,), generator=generator)
    prompts = [[3, 4, 5]] * -(-rows // 4)
    return models.pack(prompts, text.to(policy.device), torch.full((rows,), length), torch.arange(rows) // 4)


def timed(device: str, call: Callable[[], Any]) -> float:
    """Median seconds after a call that warms up."""
    call()
    seconds = []
    for _ in range(REPEATS):
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def model_bytes(policy: models.Policy) -> int:
    """Of every parameter, and of what 4-bit layers hold."""
    packed = [m.packed.nbytes for m in policy.model.modules() if isinstance(m, quantized.QuantizedLinear)]
    return sum(packed) + sum(p.nbytes for p in policy.model.parameters())


def measure(shape: str, device: str, tokens: int, base: str, known: dict[str, Tensor]) -> dict[str, Any]:
    """`known` has what the bfloat16 base gave, to compare with; it is filled by that base."""
    policy = adapted(shape, device, BASES[base])
    pack = packed_text(policy, tokens)
    out: dict[str, Any] = {"model_gib": model_bytes(policy) / GIB}

    def train() -> Tensor:
        for parameter in policy.parameters():
            parameter.grad = None
        found = models.token_logprobs(policy, pack).logprobs
        found.mean().backward()
        return found.detach()

    logprobs = train()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    out["pass_s"] = timed(device, train)
    if device == "cuda":
        out["pass_peak_gib"] = torch.cuda.max_memory_allocated() / GIB
    gradient = torch.cat([p.grad.float().flatten() for p in policy.parameters() if p.grad is not None])
    layers = [m for m in policy.model.modules() if isinstance(m, quantized.QuantizedLinear)]
    out["whole_s"] = timed(device, lambda: [layer.weight for layer in layers]) if layers else 0.0
    first = policy.core.model.layers[0].mlp.down_proj.get_base_layer().weight
    for name, value in (("weight", first), ("logprob", logprobs), ("gradient", gradient)):
        reference = known.setdefault(name, value.detach().float().cpu())
        distance = (value.detach().float().cpu() - reference).norm()
        out[f"{name}_error"] = float(distance / reference.norm())
    return out | sampled(policy, device)


def sampled(policy: models.Policy, device: str) -> dict[str, float]:
    """The sampler's own speed and what it holds, its merged copies among it."""
    ours = open_sampler(policy)
    prompts = [[3 + i] * PROMPT for i in range(PROMPTS)]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        seconds = timed(device, lambda: ours.sample(prompts, GROUP, SamplingParams(max_tokens=NEW)))
    found = {"sampling_s": seconds, "sampled_tokens_per_s": PROMPTS * GROUP * NEW / seconds}
    if device == "cuda":
        found["sampling_held_gib"] = torch.cuda.memory_allocated() / GIB
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(shapes.SHAPES), default="Qwen2.5-7B")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--base", choices=list(BASES), nargs="*", default=list(BASES))
    parser.add_argument("--out", help="another file than benchmarks/results/quantized.json")
    options = parser.parse_args()
    known: dict[str, Tensor] = {}
    results: dict[str, Any] = {}
    for base in options.base:
        results[base] = attempt(lambda b=base: measure(options.shape, options.device, options.tokens, b, known), LIMIT)  # type: ignore[misc]
        gc.collect()
        if options.device == "cuda":
            torch.cuda.empty_cache()
        print(f"{base:17s} " + "  ".join(f"{name} {_short(value)}" for name, value in results[base].items()))
    figures = {"shape": options.shape, "device": options.device, "tokens": options.tokens, "results": results}
    if options.out:
        Path(options.out).write_text(json.dumps(figures, indent=2) + "\n")
    else:
        report.write("quantized", figures)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()

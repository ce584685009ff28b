"""The papers' scale on one GPU: 0.6B to 8B parameters, responses of 4,096 and 16,384 tokens.

    python benchmarks/scale.py [attend] [sample] [train] [--seconds 45] [--models NAME …]

Random weights in bfloat16. `attend`: decode attention over a paged cache of lengths uniform from 1 to 512, 4,096
and 16,384, 256 rows, as a share of the rate of a copy measured in the same run, for several splits of a row.
`sample`: the paged sampler, 16 prompts of 100 tokens × 16 responses that never end, log-probabilities of the drawn
tokens returned; milliseconds a step by the length reached, until 4,096 tokens or `--seconds` are over, and
the byte bound of each (every weight once, every live key and value once). `train`: forward and backward of four
responses of 16,384 tokens, with gradient checkpointing where it does not fit without; MFU counted with
6·parameters + 12·layers·heads·head_dim·length operations a token (causality not subtracted, as torchtitan counts; and
`causal`: with half of the attention), recomputation not counted, against the rate of a large product in the same run.
Written after every part to benchmarks/results/scale.json.
"""

from __future__ import annotations

import argparse
import gc
import time
from typing import Any

import decode_kernels
import packing
import torch
from report import write  # benchmarks/report.py
from sampler import ceilings  # benchmarks/sampler.py
from shapes import SHAPES, Shape, endless

from equipoise.kernels import decode
from equipoise.rollout import PagedSampler, SamplingParams, paged

MODELS = ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B")
PROMPT, GROUP, ROWS, NEW, LONG = 100, 16, 256, 4096, 16_384


class TimeIsUpError(Exception):
    """Sampling is cut off after its seconds."""


def attend(shape: Shape, longest: int, bandwidth: float) -> dict[str, Any]:
    """Microseconds of one layer's attention for each number of splits."""
    decode_kernels.LONGEST = longest
    small = decode_kernels.Shape(shape.heads, shape.kv_heads, shape.head_dim, 0, 0, 0, False)
    layers = 2 if longest > 4096 else 4
    held = decode_kernels.cache(small, ROWS, layers)
    q = torch.randn(ROWS, shape.heads, shape.head_dim, device="cuda", dtype=torch.bfloat16)
    found = {}
    for splits in (1, 2, 4, 8, 16):
        calls = [
            lambda i=i, splits=splits: decode.attend(
                q, *held.pool[i % layers], held.rows, shape.head_dim**-0.5, None, None, splits
            )
            for i in range(2 * layers)
        ]
        s = decode_kernels.seconds(calls, 3)
        found[str(splits)] = {"us": 1e6 * s, "share_of_copy": held.live_bytes / s / bandwidth}
    return found


def sample(name: str, limits: dict[str, float], limit: float) -> dict[str, Any]:
    """Milliseconds a step by length, and tokens per second of the whole call."""
    policy = endless(name)
    sampler = PagedSampler(policy)
    g = torch.Generator().manual_seed(1)
    prompts = torch.randint(0, 30_000, (ROWS // GROUP, PROMPT), generator=g).tolist()
    sampler.sample(prompts, GROUP, SamplingParams(max_tokens=64, seed=0))  # captures the graphs
    marks: list[tuple[int, float]] = []
    original = paged._Call._steps

    def noting(call: Any, number: int) -> None:
        original(call, number)
        torch.cuda.synchronize()
        marks.append((number, time.perf_counter()))
        if marks[-1][1] - start > limit:
            raise TimeIsUpError

    paged._Call._steps = noting
    torch.cuda.synchronize()
    start = time.perf_counter()
    try:
        sampler.sample(prompts, GROUP, SamplingParams(max_tokens=NEW, seed=1))
        whole = True
    except TimeIsUpError:
        whole = False
    finally:
        paged._Call._steps = original
    steps = sum(number for number, _ in marks)
    return {
        "rows": ROWS,
        "tokens_per_response": steps,
        "whole": whole,
        "seconds": marks[-1][1] - start,
        "tokens_per_second": ROWS * steps / (marks[-1][1] - start),
        "by_length": by_length(policy, marks, limits),
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def by_length(policy: Any, marks: list[tuple[int, float]], limits: dict[str, float]) -> list[dict[str, float]]:
    """Steps in windows of 512 tokens: milliseconds, and the byte bound's share of them."""
    config, attn = policy.core.config, policy.core.model.layers[0].self_attn
    weights = 2 * sum(q.numel() for q in policy.model.parameters())
    a_token = 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * attn.head_dim
    rows, done, begun, began = [], 0, 0, marks[0][1]
    for number, at in marks[1:]:
        done += number
        if done - begun >= 512:
            ms = 1e3 * (at - began) / (done - begun)
            length = (done + begun) / 2
            live = ROWS // GROUP * PROMPT + ROWS * length
            bound = 1e3 * (weights + live * a_token) / limits["bytes"]
            rows.append({"length": length, "ms": ms, "byte_bound_ms": bound, "of_byte_bound": bound / ms})
            begun, began = done, at
    return rows


def train(name: str, limits: dict[str, float]) -> dict[str, Any]:
    """Tokens per second and MFU of a forward and backward pass over long responses."""
    policy = endless(name)
    packing.BUDGET = 2 * LONG + 2 * PROMPT
    b = packing.batch(torch.full((4,), LONG), PROMPT, 4, 30_000)
    run, entries = packing.packed_passes(policy, b, "prompt")
    found: dict[str, Any] = {}
    try:
        s = packing.seconds(run, policy.model, 1)
    except torch.OutOfMemoryError:
        policy.model.zero_grad()
        torch.cuda.empty_cache()
        policy.checkpoint_gradients()
        s = packing.seconds(run, policy.model, 1)
    config, attn = policy.core.config, policy.core.model.layers[0].self_attn
    # the embedding is looked up, not multiplied: a tied one counts once, as the head
    weights = sum(q.numel() for q in policy.model.parameters())
    if not config.tie_word_embeddings:
        weights -= policy.core.model.embed_tokens.weight.numel()
    scores = 12 * config.num_hidden_layers * config.num_attention_heads * attn.head_dim * LONG
    rate = entries / s
    found.update(
        seconds=s,
        tokens=entries,
        tokens_per_second=rate,
        gradient_checkpointing=policy.gradient_checkpointing,
        mfu=rate * (6 * weights + scores) / limits["operations"],
        causal_mfu=rate * (6 * weights + scores / 2) / limits["operations"],
        mfu_of_989=rate * (6 * weights + scores) / 989e12,
        peak_gib=torch.cuda.max_memory_allocated() / 2**30,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", default=["attend", "sample", "train"])
    parser.add_argument("--seconds", type=float, default=45.0, help="of sampling, a model")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device; there is none here")
    limits = ceilings()
    results: dict[str, Any] = {}
    for part in options.parts:
        for name in options.models:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            if part == "attend":
                bandwidth = decode_kernels.copy_bandwidth()
                found: Any = {str(n): attend(SHAPES[name], n, bandwidth) for n in (512, NEW, LONG)}
            elif part == "sample":
                found = sample(name, limits, options.seconds)
            else:
                found = train(name, limits)
            results.setdefault(part, {})[name] = found
            print(part, name, found, flush=True)
            write("scale", {"ceilings": limits, "results": results})


if __name__ == "__main__":
    main()

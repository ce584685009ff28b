"""The paged sampler with its cache, its weights or both in 8 bits, beside bfloat16 in the same run: speed and mismatch.

    python benchmarks/fp8.py [attend] [speed] [difference] [trained] [--models NAME …] [--lengths N …] [--limit SECONDS]

`attend`: one layer's decode attention over 256 rows whose lengths are uniform up to --lengths, microseconds and the
rate at which the cache's bytes are read; several numbers of warps and pipeline stages of the kernel over 8 bits.
`speed`: shapes with random weights, 16 prompts of 100 tokens × 16 responses that never end, tokens per second of the
four variants up to the length that all of them reached in their share of the time, and for each 256 tokens.
`difference`: log π_sampler − log π_trainer of the tokens that the sampler drew, the trainer in bfloat16; random weights
attend almost evenly, which hides errors of keys, so `trained` has the same of trained models (abacus, smollm), also on
the CPU.
Written after every part to benchmarks/results/fp8.json.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import time
from typing import Any

import decode_kernels
import torch
from report import earlier, write  # benchmarks/report.py
from rollout import abacus_prompts, smollm_prompts  # benchmarks/rollout.py
from shapes import SHAPES, endless

from equipoise import policy as p
from equipoise.kernels import decode, fp8
from equipoise.objective.regularizer import k3
from equipoise.rollout import PagedSampler, SamplingParams, paged

VARIANTS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "fp8 cache": {"cache_dtype": "fp8"},
    "fp8 weights": {"weights_dtype": "fp8"},
    "fp8 both": {"cache_dtype": "fp8", "weights_dtype": "fp8"},
}
PARTS = ("attend", "speed", "difference", "trained")
PROMPT, GROUP, ROWS, PART = 100, 16, 256, 256
TRAINED = {"abacus": (abacus_prompts, 64, 16, 48), "smollm": (smollm_prompts, 8, 4, 48)}  # prompts, responses, tokens


class TimeIsUpError(Exception):
    """Sampling is cut off after its seconds."""


def random_prompts(policy: p.Policy, count: int) -> list[list[int]]:
    g = torch.Generator().manual_seed(1)
    return torch.randint(0, policy.core.config.vocab_size, (count, PROMPT), generator=g).tolist()


def attend(name: str, longest: int) -> dict[str, Any]:
    """Microseconds and bytes per second of one layer's attention, by what the cache is made of."""
    from equipoise.kernels import triton_paged

    decode_kernels.LONGEST, shape, layers = longest, SHAPES[name], 4
    held = decode_kernels.cache(
        decode_kernels.Shape(shape.heads, shape.kv_heads, shape.head_dim, 0, 0, 0, False), ROWS, layers
    )
    q = torch.randn(ROWS, shape.heads, shape.head_dim, device="cuda", dtype=torch.bfloat16)

    def measured(caches: list[tuple[torch.Tensor, ...]], live: float) -> dict[str, float]:
        def call(keys: torch.Tensor, values: torch.Tensor, *scales: torch.Tensor) -> None:
            decode.attend(q, keys, values, held.rows, shape.head_dim**-0.5, None, None, 1, *scales)

        s = decode_kernels.seconds([lambda i=i: call(*caches[i % layers]) for i in range(2 * layers)], 5)
        return {"us": 1e6 * s, "bytes_per_second": live / s}

    found = {"bf16": measured([tuple(layer) for layer in held.pool], held.live_bytes)}
    narrow = []
    for keys, values in held.pool:
        k, v = fp8.quantize(keys), fp8.quantize(values)
        across = v.entries.transpose(2, 3).contiguous().transpose(2, 3)
        narrow.append((k.entries, across, torch.stack((k.scale, v.scale))))
    live = held.live_bytes * (shape.head_dim + 4) / (2 * shape.head_dim)
    before = triton_paged.OWN_FP8
    for warps, stages in ((4, 2), (4, 3), (4, 4)):
        triton_paged.OWN_FP8 = triton_paged.KernelLaunch(warps, stages)
        found[f"fp8, {warps} warps, {stages} stages"] = measured(narrow, live)
    triton_paged.OWN_FP8 = before
    return found


def speed(policy: p.Policy, length: int, limit: float) -> dict[str, Any]:
    """Tokens per second of every variant, each of which has its share of `limit` seconds."""
    marks = {}
    for name, options in VARIANTS.items():
        sampler = PagedSampler(policy, **options)
        prompts = random_prompts(policy, ROWS // GROUP)
        sampler.sample(prompts, GROUP, SamplingParams(max_tokens=32, seed=0))  # compiles the kernels
        marks[name] = sampled(sampler, prompts, length, limit / len(VARIANTS))
        del sampler
        gc.collect()
        torch.cuda.empty_cache()
    common = min(max(found) for found in marks.values())
    plain = marks["bf16"]
    return {
        name: {
            "tokens_per_second": ROWS * common / found[common],
            "times_bf16": plain[common] / found[common],
            "tokens_per_response": common,
            "by_length": by_length(found, common),
        }
        for name, found in marks.items()
    }


def sampled(sampler: PagedSampler, prompts: list[list[int]], length: int, limit: float) -> dict[int, float]:
    """Seconds by the tokens that every response had by then."""
    marks: dict[int, float] = {}
    original = paged._Call._steps

    def noting(call: Any, number: int) -> None:
        original(call, number)
        torch.cuda.synchronize()
        marks[max(marks, default=0) + number] = time.perf_counter() - start
        if time.perf_counter() - start > limit:
            raise TimeIsUpError

    paged._Call._steps = noting
    torch.cuda.synchronize()
    start = time.perf_counter()
    try:
        sampler.sample(prompts, GROUP, SamplingParams(max_tokens=length, seed=1))
    except TimeIsUpError:
        pass
    finally:
        paged._Call._steps = original
    return marks


def by_length(marks: dict[int, float], common: int) -> dict[str, float]:
    """Tokens per second between two lengths."""
    ends = sorted({n for n in marks if n % PART == 0 and n <= common} | {min(marks), common})
    return {f"{a}-{b}": ROWS * (b - a) / (marks[b] - marks[a]) for a, b in itertools.pairwise(ends)}


@torch.no_grad()
def difference(policy: p.Policy, prompts: list[list[int]], group: int, tokens: int) -> dict[str, Any]:
    """log π_sampler − log π_trainer of what each variant draws."""
    found = {}
    for name, options in VARIANTS.items():
        rollouts = PagedSampler(policy, **options).sample(prompts, group, SamplingParams(max_tokens=tokens, seed=2))
        pack = p.pack(rollouts.prompts, rollouts.tokens, rollouts.lengths, rollouts.prompt)
        trainer = p.token_logprobs(policy, pack).logprobs
        apart = rollouts.logprobs - trainer
        found[name] = {
            "mean": float(apart.abs().mean()),
            "mean_signed": float(apart.mean()),
            "max": float(apart.abs().max()),
            "kl": float(k3(rollouts.logprobs, trainer).mean()),
            "capped_at_2": float((apart < -torch.tensor(2.0).log()).float().mean()),
            "tokens": len(apart),
        }
    return found


def trained(name: str, device: str) -> dict[str, Any]:
    """In bfloat16 on CUDA; on the CPU, by the reference, in float32: what 8 bits alone do."""
    policy = p.load(name, dtype=torch.bfloat16 if device == "cuda" else torch.float32, device=device)
    prompts, count, group, tokens = TRAINED[name]
    return {"device": device, **difference(policy, prompts(policy, count), group, tokens)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--models", nargs="+", default=["Qwen3-1.7B", "Qwen3-8B"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 2048])
    parser.add_argument("--trained", nargs="+", choices=list(TRAINED), default=["abacus"])
    parser.add_argument("--limit", type=float, default=240.0, help="seconds; what has no time left is not measured")
    options = parser.parse_args()
    end = time.perf_counter() + options.limit
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and options.parts != ["trained"]:
        raise SystemExit("this benchmark needs a CUDA device; there is none here (`trained` alone runs without)")
    results = earlier("fp8")

    def keep(part: str, name: str, found: Any) -> None:
        results.setdefault(part, {})[name] = found
        print(part, name, found, flush=True)
        write("fp8", {"prompt": PROMPT, "group": GROUP, "rows": ROWS, "results": results})

    cases = [(name, n) for name in options.models for n in options.lengths] if "speed" in options.parts else []
    if "trained" in options.parts:
        for name in options.trained:
            keep("trained", name, trained(name, device))
    for model in options.models if device == "cuda" else []:
        if "attend" in options.parts:
            for n in options.lengths:
                keep("attend", f"{model}, {n}", attend(model, n))
        if not {"difference", "speed"} & set(options.parts):
            continue
        policy = endless(model)
        if "difference" in options.parts and time.perf_counter() < end:
            keep("difference", model, difference(policy, random_prompts(policy, 2), GROUP, 256))
        for n in options.lengths:
            left = end - time.perf_counter()
            if (model, n) in cases and left > 0:
                keep("speed", f"{model}, {n}", speed(policy, n, left / len(cases)))
            cases = [case for case in cases if case != (model, n)]
        del policy
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

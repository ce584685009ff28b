"""Tokens per second of the paged sampler with drafts looked up (`speculation` = k) against none, at several numbers of
rows. Writes benchmarks/results/speculation_gpu.json.

    python benchmarks/speculation_gpu.py [--shape NAME …] [--limit SECONDS]
    python benchmarks/speculation_gpu.py --model FOLDER --prompts FILE.jsonl [--column question]

Without --model: random weights of real shapes and prompts of 100 random tokens. They draw almost uniformly, so hardly a
draft is right, and what is measured is what a step with drafts costs: `break_even`, its time over that of a step
without, is how many tokens a pass must give before it pays. With a model of one's own and prompts, the gain itself.

Every case is called twice with the same seed, and the second call is timed: prompts, host and all. `same` is the share
of the responses that are those without drafts, token by token: all of them in float32; in bfloat16 products of other
shapes round otherwise, and a response in which one token falls on the other side goes another way from there. A case
begins only while there is time left of --limit; what was measured by then is written. With --eight-bits all of this
over a cache in 8 bits (cache), weights in 8 bits (weights) or both.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import shapes  # benchmarks/shapes.py
import torch
from report import earlier, write  # benchmarks/report.py

from equipoise import policy as p
from equipoise.policy.chat import Chat
from equipoise.rollout import PagedSampler, Rollouts, SamplingParams, paged

GROUP, PROMPT = 16, 100


def random_prompts(policy: p.Policy, count: int) -> list[list[int]]:
    g = torch.Generator().manual_seed(1)
    found: list[list[int]] = torch.randint(0, policy.core.config.vocab_size, (count, PROMPT), generator=g).tolist()
    return found


def read_prompts(policy: p.Policy, file: Path, column: str) -> list[list[int]]:
    chat = Chat(on=policy.tokenizer.chat_template is not None)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [chat.encode(policy, row[column]) for row in rows]


def timed(sampler: PagedSampler, prompts: list[list[int]], params: SamplingParams) -> tuple[float, int, Rollouts]:
    """Seconds and steps of a call, and what it gave."""
    steps, original = [0], paged._Call._steps

    def counting(call: Any, number: int) -> None:
        steps[0] += number
        original(call, number)

    paged._Call._steps = counting  # type: ignore[method-assign]
    try:
        start = time.perf_counter()
        rollouts = sampler.sample(prompts, GROUP, params)
        if rollouts.tokens.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - start, steps[0], rollouts
    finally:
        paged._Call._steps = original  # type: ignore[method-assign]


def responses(rollouts: Rollouts) -> list[list[int]]:
    return [tokens.tolist() for tokens in rollouts.tokens.split(rollouts.lengths.tolist())]


def measure(
    policy: p.Policy,
    prompts: list[list[int]],
    rows: int,
    drafts: list[int],
    params: SamplingParams,
    end: float,
    precision: dict[str, Any],
) -> dict[str, Any]:
    """Figures of each number of drafts, the first of which is none."""
    found: dict[str, Any] = {}
    without: list[list[int]] = []
    for count in drafts:
        if time.monotonic() > end:
            print("  the time is up", flush=True)
            break
        sampler = PagedSampler(policy, rows=rows, speculation=count, **precision)
        timed(sampler, prompts, params)
        seconds, steps, rollouts = timed(sampler, prompts, params)
        said = responses(rollouts)
        without = without or said
        figures = {
            "tokens_per_second": round(len(rollouts.tokens) / seconds),
            "ms_a_step": round(1e3 * seconds / steps, 3),
            "steps": steps,
            "same": sum(a == b for a, b in zip(said, without, strict=True)) / len(said),
        }
        if rollouts.drafts is not None:
            figures |= rollouts.drafts.metrics()
        if "0" in found:
            figures["speed_up"] = round(figures["tokens_per_second"] / found["0"]["tokens_per_second"], 3)
            figures["break_even"] = round(figures["ms_a_step"] / found["0"]["ms_a_step"], 3)
        found[str(count)] = figures
        print(f"  {rows:>5} rows, {count} drafts: {figures}", flush=True)
        del sampler
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", nargs="+", default=["Qwen2.5-0.5B", "Qwen2.5-1.5B"], help="random weights of these")
    parser.add_argument("--model", help="a folder in Hugging Face format instead")
    parser.add_argument("--prompts", type=Path, help="JSONL of its prompts")
    parser.add_argument("--column", default="question", help="the prompt's in that file")
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256, 1024], help="responses decoded together")
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 2, 4], help="tokens drafted; begin with 0")
    parser.add_argument("--tokens", type=int, default=512, help="longest response")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument(
        "--eight-bits", nargs="+", choices=["cache", "weights"], default=[], help="what is sampled with in 8 bits"
    )
    parser.add_argument(
        "--device", default="cuda", help="cpu: a try of the benchmark itself, by the kernels' reference"
    )
    parser.add_argument("--limit", type=float, default=300, help="seconds after which no case is begun")
    args = parser.parse_args()
    if args.model and args.prompts is None:
        parser.error("--model needs --prompts")
    end = time.monotonic() + args.limit
    params = SamplingParams(max_tokens=args.tokens, temperature=args.temperature)
    dtype = getattr(torch, args.dtype)
    precision = {f"{name}_dtype": "fp8" for name in args.eight_bits}
    results = earlier("speculation_gpu")
    for name in [args.model] if args.model else args.shape:
        print(name, flush=True)
        if args.model:
            policy = p.load(name, dtype=dtype, device=args.device)
            prompts = read_prompts(policy, args.prompts, args.column)
        else:
            policy = shapes.endless(name, device=args.device, dtype=dtype)
            prompts = random_prompts(policy, max(args.rows) // GROUP)
        measured: dict[str, Any] = {"tokens": args.tokens, "temperature": args.temperature, "dtype": args.dtype}
        results[", ".join([Path(name).name, *(f"fp8 {part}" for part in args.eight_bits)])] = measured
        for rows in args.rows:
            asked = prompts[: max(1, rows // GROUP)]
            measured[f"{rows} rows"] = measure(policy, asked, rows, args.drafts, params, end, precision)
        write("speculation_gpu", {"results": results})


if __name__ == "__main__":
    main()

"""Tokens per second of the native sampler against transformers' `generate`, in one run, on the embedded model and on
SmolLM2-135M-Instruct (G = 8). Writes benchmarks/results/rollout.json.

    python benchmarks/rollout.py [--repeat 3] [--only abacus|smollm]

Both get the same weights (float32), the same prompts, the same number of responses in one batch, the same limit and the
same plain sampling at temperature 1. `generate` runs with its cache, SDPA attention and no gradients. Counted are the
tokens of the responses up to and including the end-of-sequence token; what `generate` computes for rows that have
already ended is its loss, as it would be in training. `same length` gives every response the full length instead, so
that nothing is gained by finished rows leaving the batch. The two alternate and the best time of each counts.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
import transformers
from report import RESULTS, write  # benchmarks/report.py

from equipoise import policy
from equipoise.rollout import NativeSampler, SamplingParams
from equipoise.tasks import Arithmetic


def abacus_prompts(p: policy.Policy, count: int) -> list[list[int]]:
    task = Arithmetic(seed=0)
    return [policy.encode(p, task.prompt(i).text) for i in range(count)]


def smollm_prompts(p: policy.Policy, count: int) -> list[list[int]]:
    questions = [
        f"What is {17 + 9 * i} + {5 + 7 * i}{' - 8' if i % 2 else ''}? Think step by step, then say the answer."
        for i in range(count)
    ]
    return [policy.encode(p, [{"role": "user", "content": q}]) for q in questions]


def native(p: policy.Policy, prompts: list[list[int]], n: int, max_tokens: int, seed: int) -> int:
    return len(NativeSampler(p).sample(prompts, n, SamplingParams(max_tokens=max_tokens, seed=seed)).tokens)


@torch.no_grad()
def generate(p: policy.Policy, prompts: list[list[int]], n: int, max_tokens: int, seed: int) -> int:
    torch.manual_seed(seed)
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(t)) + t for t in prompts])
    mask = torch.tensor([[0] * (width - len(t)) + [1] * len(t) for t in prompts])
    out = p.model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        num_return_sequences=n,
        max_new_tokens=max_tokens,
        eos_token_id=list(p.eos) or None,
        pad_token_id=p.tokenizer.pad_token_id,
        use_cache=True,
    )[:, width:]
    ended = torch.isin(out, torch.tensor(p.eos)).cumsum(1)
    return int(((ended - torch.isin(out, torch.tensor(p.eos)).long()) == 0).sum())


def compare(p: policy.Policy, prompts: list[list[int]], n: int, max_tokens: int, repeat: int) -> dict[str, Any]:
    peers = {"native": native, "generate": generate}
    best = dict.fromkeys(peers, 0.0)
    mean = dict.fromkeys(peers, 0.0)
    for seed in range(repeat):
        for name, run in peers.items():
            # The peer sees the model as transformers loads it, not with our attention in between.
            p.core.config._attn_implementation = "sdpa" if run is generate else "equipoise"
            start = time.perf_counter()
            tokens = run(p, prompts, n, max_tokens, seed)
            best[name] = max(best[name], tokens / (time.perf_counter() - start))
            mean[name] += tokens / (len(prompts) * n) / repeat
    return {
        "prompts": len(prompts),
        "responses_per_prompt": n,
        "max_tokens": max_tokens,
        "mean_length": {k: round(v, 1) for k, v in mean.items()},
        "tokens_per_second": {k: round(v, 1) for k, v in best.items()},
        "ratio": round(best["native"] / best["generate"], 2),
    }


def without_end(p: policy.Policy) -> policy.Policy:
    """The same policy whose responses never end before the limit."""
    p.__dict__["eos"] = ()
    p.core.generation_config.eos_token_id = None
    return p


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each")
    parser.add_argument("--only", choices=["abacus", "smollm"], help="one model instead of both")
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()

    earlier = RESULTS / "rollout.json"
    results = json.loads(earlier.read_text())["results"] if args.only and earlier.exists() else {}
    if args.only != "smollm":
        p = policy.load("abacus")
        train, evaluation = abacus_prompts(p, 32), abacus_prompts(p, 256)
        native(p, train, 16, 64, 0), generate(p, train, 16, 64, 0)  # warm up
        results["abacus, a training batch"] = compare(p, train, 16, 64, args.repeat)
        results["abacus, an evaluation"] = compare(p, evaluation, 8, 64, args.repeat)
        results["abacus, same length"] = compare(without_end(p), train, 16, 64, args.repeat)
    if args.only != "abacus":
        p = policy.load("smollm")
        prompts = smollm_prompts(p, 8)
        native(p, prompts, 1, 4, 0), generate(p, prompts, 1, 4, 0)  # warm up
        results["smollm, one prompt"] = compare(p, prompts[:1], 8, 128, 1)
        results["smollm, eight prompts"] = compare(p, prompts, 8, 128, 1)
        results["smollm, same length"] = compare(without_end(p), prompts, 8, 32, 1)

    print(f"{'':28}{'native':>12}{'generate':>12}  tokens/s{'ratio':>8}")
    for name, row in results.items():
        speed = row["tokens_per_second"]
        print(f"{name:28}{speed['native']:12,.0f}{speed['generate']:12,.0f}{row['ratio']:18.2f}")
    write("rollout", {"transformers": transformers.__version__, "results": results})


if __name__ == "__main__":
    main()

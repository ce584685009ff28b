"""Tokens per second of the paged sampler on a GPU against transformers' `generate` and `generate_batch` (continuous
batching), and milliseconds per step against what the memory and the arithmetic allow. Writes
benchmarks/results/sampler.json.

    python benchmarks/sampler.py [--only NAME …] [--without-peers]

Models of real shapes with random weights in bfloat16; 64 prompts of 100 tokens, 16 responses each, 512 tokens, no
end-of-sequence token, temperature 1: everyone does the same work. `generate` runs with SDPA attention and its dynamic
cache, and with prompts of one length, so that it needs no mask; 512 tokens for the first model, 128 for the others
(which flatters it: its cache is short). `generate_batch` runs for the first model, with 32 tokens, timed from its first
token to its last, without its start-up. All are warmed up with whole batches. Takes three minutes on an H200.
The byte bound of a step is every weight once and every live key and value once, over the bandwidth of a copy measured
in the same run; the compute bound is the step's multiplications over the rate of a large product, likewise.
`varied` (first model): 256 prompts × 16 whose responses end by chance (mean 200 tokens, at most 512), 2,048 rows.
`difference` is |log π| of the sampler less the trainer's on the same tokens; `rounding` is each one's distance from the
trainer in float32: with random weights every token's log-probability carries the whole rounding of its logit.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from report import RESULTS, write  # benchmarks/report.py
from shapes import endless
from transformers import GenerationConfig

from equipoise import policy as p
from equipoise.rollout import PagedSampler, SamplingParams, paged

PROMPT, GROUP, TOKENS = 100, 16, 512


MODELS = ("SmolLM2-135M", "Qwen3-0.6B", "Qwen2.5-1.5B")
FIRST = MODELS[0]


def prompts(policy: p.Policy, count: int) -> list[list[int]]:
    g = torch.Generator().manual_seed(1)
    return torch.randint(0, policy.core.config.vocab_size, (count, PROMPT), generator=g).tolist()


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = run()
    torch.cuda.synchronize()
    return time.perf_counter() - start, result


def ceilings() -> dict[str, float]:
    """Bytes per second of a copy (read and written) and multiply-adds·2 per second of a bfloat16 product."""
    source = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    copy, product = [], []
    for _ in range(15):
        copy.append(seconds(lambda: target.copy_(source))[0])
        product.append(seconds(lambda: a @ b)[0])
    return {"bytes": 2 * source.nbytes / min(copy), "operations": 2 * 8192**3 / min(product)}


def ours(policy: p.Policy, sampler: PagedSampler, count: int, tokens: int, seed: int = 0) -> tuple[float, Any]:
    params = SamplingParams(max_tokens=tokens, seed=seed)
    return seconds(lambda: sampler.sample(prompts(policy, count), GROUP, params))


def bounds(policy: p.Policy, rows: int, limits: dict[str, float]) -> dict[str, float]:
    """Mean milliseconds a step that memory and arithmetic allow, over TOKENS steps of `rows` rows."""
    config, attn = policy.core.config, policy.core.model.layers[0].self_attn
    weights = sum(q.numel() for q in policy.model.parameters())
    live = rows // GROUP * PROMPT + rows * (TOKENS + 1) / 2
    cache = live * 2 * config.num_hidden_layers * config.num_key_value_heads * attn.head_dim * 2
    seen = rows * (PROMPT + (TOKENS + 1) / 2)
    scores = seen * 4 * config.num_hidden_layers * config.num_attention_heads * attn.head_dim
    return {
        "bytes": 1e3 * (2 * weights + cache) / limits["bytes"],
        "compute": 1e3 * (2 * weights * rows + scores) / limits["operations"],
    }


def steps(policy: p.Policy, sampler: PagedSampler, limits: dict[str, float]) -> dict[str, Any]:
    """Whole calls, with their prompts and the host's work, over their steps."""
    found = {}
    for rows in (256, 512, 1024):
        with ending_by_chance(policy, 20):  # a short call captures what the long one needs
            ours(policy, sampler, rows // GROUP, TOKENS)
        time_taken, _ = ours(policy, sampler, rows // GROUP, TOKENS, seed=1)
        step, bound = 1e3 * time_taken / TOKENS, bounds(policy, rows, limits)
        found[str(rows)] = {
            "ms": round(step, 3),
            "byte_bound_ms": round(bound["bytes"], 3),
            "compute_bound_ms": round(bound["compute"], 3),
            "of_byte_bound": round(bound["bytes"] / step, 3),
            "tokens_per_second": round(rows * TOKENS / time_taken),
        }
    return found


def generate(policy: p.Policy, count: int, tokens: int) -> float:
    ids = torch.tensor(prompts(policy, count), device="cuda")
    settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "num_return_sequences": GROUP}

    def run() -> Any:
        return policy.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, pad_token_id=0, **settings
        )

    with torch.no_grad():
        taken, out = seconds(run)
    assert out.shape == (count * GROUP, PROMPT + tokens)
    return count * GROUP * tokens / taken


def generate_batch(policy: p.Policy, count: int, tokens: int) -> float:
    inputs = [row for row in prompts(policy, count) for _ in range(GROUP)]
    settings = GenerationConfig(
        max_new_tokens=tokens, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1, pad_token_id=0
    )
    done = []
    # From the first token to the last: loading, planning and warming up are left out.
    with torch.no_grad():
        taken, out = seconds(
            lambda: policy.model.generate_batch(
                inputs, generation_config=settings, record_timestamps=True, progress_bar=False
            )
        )
    for result in out.values():
        assert len(result.generated_tokens) == tokens
        done.extend(result.timestamps or [])
    if done:
        taken = max(done) - min(done)
    return len(inputs) * tokens / taken


def varied(policy: p.Policy, sampler: PagedSampler) -> dict[str, Any]:
    """Lengths that vary like a geometric distribution's."""
    computed, original = [0], paged._Call._steps

    def counting(call: Any, number: int) -> None:
        computed[0] += number * next(b for b in paged.BUCKETS if b >= call.scheduler.count)
        original(call, number)

    with ending_by_chance(policy, 20):
        ours(policy, sampler, 256, TOKENS)
    paged._Call._steps = counting
    try:
        with ending_by_chance(policy, 200):
            taken, rollouts = ours(policy, sampler, 256, TOKENS, seed=1)
    finally:
        paged._Call._steps = original
    lengths = rollouts.lengths.float()
    return {
        "mean_length": round(float(lengths.mean()), 1),
        "cv": round(float(lengths.std() / lengths.mean()), 2),
        "tokens_per_second": round(float(lengths.sum()) / taken),
        "useful_rows": round((float(lengths.sum()) - len(lengths)) / computed[0], 3),
    }


@contextlib.contextmanager
def ending_by_chance(policy: p.Policy, mean: int) -> Iterator[None]:
    """Every `mean`th token of the vocabulary ends a response; random weights draw almost uniformly."""
    policy.__dict__["eos"] = tuple(range(0, policy.core.config.vocab_size, mean))
    try:
        yield
    finally:
        policy.__dict__["eos"] = ()


@torch.no_grad()
def difference(policy: p.Policy, sampler: PagedSampler) -> dict[str, float]:
    _, rollouts = ours(policy, sampler, 4, TOKENS)
    pack = p.pack(rollouts.prompts, rollouts.tokens, rollouts.lengths, rollouts.prompt)
    trained = p.token_logprobs(policy, pack).logprobs
    wide = p.Policy(copy.deepcopy(policy.model).float(), policy.tokenizer, policy.name)
    exact = p.token_logprobs(wide, pack).logprobs
    d = rollouts.logprobs - trained
    return {
        "mean": float(d.abs().mean()),
        "max": float(d.abs().max()),
        "mean_signed": float(d.mean()),
        "rounding_sampler": float((rollouts.logprobs - exact).abs().mean()),
        "rounding_trainer": float((trained - exact).abs().mean()),
        "tokens": len(d),
    }


def attempt(name: str, run: Callable[[], Any]) -> Any:
    """A peer that fails is a finding, not the end of the benchmark."""
    try:
        return run()
    except Exception as error:
        traceback.print_exc()
        return f"{name} failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def measure(name: str, limits: dict[str, float]) -> dict[str, Any]:
    policy = endless(name)
    sampler = PagedSampler(policy)
    found: dict[str, Any] = {"steps": steps(policy, sampler, limits)}
    found["tokens_per_second"] = {"paged": found["steps"]["1024"]["tokens_per_second"]}
    found["difference"] = difference(policy, sampler)
    if name == FIRST:
        found["varied"] = varied(policy, sampler)
    return found


def compare(name: str, peer: str, tokens: int, found: dict[str, Any]) -> None:
    """A peer's tokens per second, and how many times ours those are."""
    policy, label = endless(name), f"{peer}, {tokens} tokens"
    policy.core.set_attn_implementation("sdpa")
    if peer == "generate":
        attempt(label, lambda: generate(policy, 64, 16))
    rate = attempt(label, lambda: (generate if peer == "generate" else generate_batch)(policy, 64, tokens))
    found["tokens_per_second"][label] = rate
    if not isinstance(rate, str):
        found.setdefault("ratio", {})[label] = round(found["tokens_per_second"]["paged"] / rate, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=MODELS, nargs="+", help="these models; the others' figures are kept")
    parser.add_argument("--without-peers", action="store_true", help="ours alone")
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    limits = ceilings()
    print(f"copy {limits['bytes'] / 1e12:.2f} TB/s, product {limits['operations'] / 1e12:.0f} TFLOP/s", flush=True)
    earlier = RESULTS / "sampler.json"
    results = json.loads(earlier.read_text())["results"] if args.only and earlier.exists() else {}

    def save() -> None:  # after every part, so that a run that is cut short leaves what it has
        torch.cuda.empty_cache()
        write("sampler", {"transformers": transformers.__version__, "ceilings": limits, "results": results})

    names = args.only or list(MODELS)
    for name in names:
        found = results[name] = measure(name, limits)
        for rows, row in found["steps"].items():
            share = f"{100 * row['of_byte_bound']:.0f} % of the byte bound"
            print(
                f"{name:14} {rows:>5} rows {row['ms']:8.3f} ms a step, {share}, {row['tokens_per_second']:,} tokens/s"
            )
        for key in ("difference", "varied"):
            print(f"{name:14} {key}: {found.get(key)}", flush=True)
        save()
    peers = [(name, "generate", TOKENS) for name in names]
    peers += [(FIRST, "generate_batch", 32)] if FIRST in names else []
    for name, peer, tokens in [] if args.without_peers else peers:
        compare(name, peer, tokens, results[name])
        print(f"{name:14} {results[name]['tokens_per_second']} ratio {results[name].get('ratio')}", flush=True)
        save()


if __name__ == "__main__":
    main()

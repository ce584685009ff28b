"""What the objective costs on the CPU: `assign` + `loss`, forward and backward with metrics, against a bare product.

The bare product is `(exp(logp - old) * adv[response]).sum()` forward and backward over the same tokens: the least any
importance-weighted objective must do. "eager" is PPO-clip with the usual metrics, written the usual way. All timed in
one run, interleaved. The least time of each is compared, because other work on the machine only ever adds to one; the
medians are written beside it. Ratios are printed and written to benchmarks/results/objective.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from report import write  # benchmarks/report.py

import equipoise as eq

ROWS, GROUP, TOKENS = 2048, 16, 1 << 20


def batch(seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    share = torch.rand(ROWS, generator=g) + 0.25
    lengths = (share / share.sum() * TOKENS).floor().long()
    lengths[0] += TOKENS - lengths.sum()
    old = -torch.rand(TOKENS, generator=g)
    return {
        "rewards": (torch.rand(ROWS, generator=g) < 0.4).float(),
        "group": torch.arange(ROWS) // GROUP,
        "lengths": lengths,
        "response": eq.response_ids(lengths),
        "old": old,
        "logp": (old + 0.05 * torch.randn(TOKENS, generator=g)).requires_grad_(),
    }


def bare(b: dict[str, torch.Tensor]) -> None:
    (torch.exp(b["logp"] - b["old"]) * b["rewards"][b["response"]]).sum().backward()


def eager(b: dict[str, torch.Tensor]) -> None:
    """PPO-clip over flat tokens with clip fractions, ratio statistics and KL, as most trainers write it."""
    r = b["rewards"].view(-1, GROUP)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)).view(-1)
    weight = 1 / (ROWS * b["lengths"])
    a = adv[b["response"]]
    log_ratio = (b["logp"] - b["old"]).clamp(-20, 20)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(0.8, 1.2)
    loss = -(torch.min(ratio * a, clipped * a) * weight[b["response"]]).sum()
    with torch.no_grad():
        metrics = [
            ((ratio > 1.2) & (a > 0)).float().mean(),
            ((ratio < 0.8) & (a < 0)).float().mean(),
            ratio.mean(), ratio.std(), ratio.min(), ratio.max(),
            (ratio - 1 - log_ratio).mean(),
            b["logp"].isfinite().all(),
        ]  # fmt: skip
    loss.backward()
    torch.stack([m.float() for m in metrics])


def ours(objective: eq.Objective) -> Callable[[dict[str, torch.Tensor]], None]:
    def step(b: dict[str, torch.Tensor]) -> None:
        credit = objective.assign(b["rewards"], b["group"], b["lengths"])
        out = objective.loss(b["logp"], b["old"], credit, b["response"])
        out.loss.backward()
        assert len(out.metrics) > 15

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(2)
    hadw = {"difficulty": "hadw", "aggregation": "balanced"}
    steps: dict[str, Callable[[dict[str, torch.Tensor]], None]] = {
        "bare": bare,
        "eager": eager,
        "grpo": ours(eq.Objective.preset("grpo")),
        "grpo + balanced + hadw": ours(eq.Objective.preset("grpo", **hadw)),
        **{name: ours(eq.Objective.preset(name)) for name in eq.PRESETS if name != "grpo"},
    }
    b = batch()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(repeats + 3):
        for name, step in steps.items():
            b["logp"].grad = None
            start = time.perf_counter()
            step(b)
            if i >= 3:
                seconds[name].append(time.perf_counter() - start)
    least = {name: min(s) for name, s in seconds.items()}
    median = {name: statistics.median(s) for name, s in seconds.items()}
    ratios = {name: s / least["bare"] for name, s in least.items()}
    print(f"{TOKENS:,} tokens, {ROWS:,} responses, {torch.get_num_threads()} threads, least of {repeats}")
    for name, s in least.items():
        print(f"{name:24s} {1e3 * s:8.2f} ms   {ratios[name]:5.2f} × bare")
    added = least["grpo + balanced + hadw"] / least["grpo"] - 1
    print(f"balanced + hadw add {100 * added:.1f} % to grpo")
    result = {"seconds": least, "median_seconds": median, "ratio_to_bare": ratios, "balanced_hadw_added": added}
    write("objective", result)


if __name__ == "__main__":
    main()

"""What the objective costs on the CPU: `assign` + `loss`, forward and backward with metrics, against a bare product.

The bare product is `(exp(logp - old) * adv[response]).sum()` forward and backward over the same tokens: the least any
importance-weighted objective must do. "eager" is PPO-clip with the usual metrics, written the usual way. Every step is
timed right beside the bare product, now before and now after it. The least time of each is compared, because other work
on the machine only ever adds to one; the median of the paired ratios is written beside it. Passes over the tokens and
the bytes they move are counted as well (passes.py): they depend on no machine.

What balanced and HA-DW add to grpo is the median over rounds of the ratio of the two, each timed right after the other,
now one first and now the other, with an interval of 95 % for that median. Once as `loss` is called above, and once with
token ids and positions, from which `assign` finds the tokens that responses share.

Ratios are printed and written to benchmarks/results/objective.json.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from passes import counted  # benchmarks/passes.py
from report import write  # benchmarks/report.py

import equipoise as eq

ROWS, GROUP, TOKENS = 2048, 16, 1 << 20
HADW = {"difficulty": "hadw", "aggregation": "balanced"}

Step = Callable[[dict[str, torch.Tensor]], None]


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
        "position": eq.positions(lengths),
        "ids": torch.randint(0, 50_000, (TOKENS,), generator=g),
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


def ours(objective: eq.Objective, *, with_ids: bool = False) -> Step:
    def step(b: dict[str, torch.Tensor]) -> None:
        ids, position = (b["ids"], b["position"]) if with_ids else (None, None)
        credit = objective.assign(b["rewards"], b["group"], b["lengths"], tokens=ids)
        out = objective.loss(b["logp"], b["old"], credit, b["response"], position=position)
        out.loss.backward()
        assert len(out.metrics) > 15

    return step


class Clock:
    """Seconds of a step: of the wall, or of the CPU in one thread, which other work on the machine disturbs less."""

    def __init__(self, b: dict[str, torch.Tensor], *, cpu: bool) -> None:
        self.b = b
        self.now = time.thread_time if cpu else time.perf_counter

    def seconds(self, step: Step) -> float:
        self.b["logp"].grad = None
        start = self.now()
        step(self.b)
        return self.now() - start


def paired(steps: dict[str, Step], clock: Clock, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each step and of the bare product next to it, of each round."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for i in range(rounds + 3):
        for name, step in steps.items():
            if i % 2:
                beside = clock.seconds(bare)
                took = clock.seconds(step)
            else:
                took = clock.seconds(step)
                beside = clock.seconds(bare)
            if i >= 3:
                times[name].append((took, beside))
    return times


def moved(step: Step, b: dict[str, torch.Tensor]) -> dict[str, float]:
    """Passes over the tokens, and the bytes that they move for each token."""
    b["logp"].grad = None
    with counted(TOKENS) as passes:
        step(b)
    return {"passes": round(passes.number, 2), "bytes": round(passes.bytes, 1)}


def added(plain: Step, more: Step, clock: Clock, rounds: int) -> dict[str, float]:
    """What `more` takes above `plain`, as a share of it: the median over rounds, and an interval of 95 % for it."""
    ratios = []
    for i in range(rounds + 2):
        first, second = (plain, more) if i % 2 else (more, plain)
        times = {first: clock.seconds(first), second: clock.seconds(second)}
        if i >= 2:
            ratios.append(times[more] / times[plain] - 1)
    low, high = median_interval(ratios)
    return {"median": statistics.median(ratios), "low": low, "high": high, "rounds": rounds}


def median_interval(x: list[float]) -> tuple[float, float]:
    """An interval that holds the median of what x was drawn from with probability 0.95 or more: two of x itself.

    How many of n lie below that median is binomial(n, 1/2).
    """
    n, ordered = len(x), sorted(x)
    k = next(k for k in range(n) if sum(math.comb(n, j) for j in range(k + 1)) / 2**n > 0.025)
    return ordered[max(k - 1, 0)], ordered[n - 1 - max(k - 1, 0)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="seconds of the CPU, with --threads 1: for a busy machine")
    options = parser.parse_args()
    if options.cpu and options.threads != 1:
        parser.error("--cpu counts the seconds of one thread: give --threads 1")
    torch.set_num_threads(options.threads)
    grpo, both = eq.Objective.preset("grpo"), eq.Objective.preset("grpo", **HADW)
    steps: dict[str, Step] = {
        "eager": eager,
        "grpo": ours(grpo),
        "grpo + balanced + hadw": ours(both),
        **{name: ours(eq.Objective.preset(name)) for name in eq.PRESETS if name != "grpo"},
    }
    b = batch()
    clock = Clock(b, cpu=options.cpu)
    times = paired(steps, clock, options.repeats)
    bare_times = [beside for pairs in times.values() for _, beside in pairs]
    least = {"bare": min(bare_times), **{name: min(took for took, _ in pairs) for name, pairs in times.items()}}
    ratios = {name: s / least["bare"] for name, s in least.items()}
    medians = {name: statistics.median(took / beside for took, beside in pairs) for name, pairs in times.items()}
    traffic = {name: moved(step, b) for name, step in {"bare": bare, **steps}.items()}
    print(f"{TOKENS:,} tokens, {ROWS:,} responses, {options.threads} threads, least of {options.repeats}")
    for name, s in least.items():
        x = traffic[name]
        print(
            f"{name:24s} {1e3 * s:8.2f} ms   {ratios[name]:5.2f} × bare   "
            f"(median of ratios {medians.get(name, 1.0):5.2f})   {x['passes']:5.1f} passes, "
            f"{x['bytes']:5.1f} bytes a token, {x['bytes'] / traffic['bare']['bytes']:.2f} × bare"
        )
    overhead = {
        "without token ids": added(ours(grpo), ours(both), clock, 4 * options.repeats),
        "with token ids": added(ours(grpo, with_ids=True), ours(both, with_ids=True), clock, options.repeats),
    }
    for name, x in overhead.items():
        print(
            f"balanced + hadw add {100 * x['median']:.2f} % to grpo {name} "
            f"(95 %: {100 * x['low']:.2f} to {100 * x['high']:.2f}, {x['rounds']} rounds)"
        )
    result = {
        "threads": options.threads,
        "clock": "cpu" if options.cpu else "wall",
        "seconds": least,
        "median_bare_seconds": statistics.median(bare_times),
        "ratio_to_bare": ratios,
        "median_ratio_to_bare": medians,
        "traffic": traffic,
        "balanced_hadw_added": overhead,
    }
    write("objective", result)


if __name__ == "__main__":
    main()

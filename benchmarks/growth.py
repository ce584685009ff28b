"""How time and memory grow with tokens, group size, vocabulary and model size: a training pass and sampling on one GPU.

Random weights in bfloat16, prompts of 100 tokens, 128 new tokens a response. Each axis is varied alone from a common
point (SmolLM2-135M's shape, 32,768 response tokens, 16 responses to a prompt); the size axis takes five shapes from
135M to 3B. Training goes forward and backward over micro-batches of at most 16,384 entries, as the trainer does.
Peak memory is what is allocated, weights and gradients included. The slope is that of log time (or memory) against the
log of the axis, by least squares over the points whose time is not the same few milliseconds of overhead: those from
the third on. Past 1.1 it would be called a surprise.
Writes benchmarks/results/growth.json and benchmarks/results/growth.svg.
"""

from __future__ import annotations

import functools
import gc
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import packing
import torch
from packing import batch, packed_passes  # benchmarks/packing.py
from report import RESULTS, write  # benchmarks/report.py
from shapes import SHAPES, endless

from equipoise import policy as models
from equipoise.rollout import SamplingParams
from equipoise.rollout import sampler as open_sampler

PROMPT, NEW, GROUP, TOKENS = 100, 128, 16, 32_768
RUNS = 5
AXES: dict[str, tuple[int, ...]] = {
    "tokens": (8_192, 16_384, 32_768, 65_536, 131_072, 262_144),
    "group size": (4, 16, 32, 64),
    "vocabulary": (32_000, 64_000, 128_000, 256_000),
}
SMALLEST = next(iter(SHAPES))


def measured(run: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of a run, the median of five after a first one, and their peak in GiB."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    print("    " + " ".join(f"{s:.3f}" for s in seconds), flush=True)
    return statistics.median(seconds), torch.cuda.max_memory_allocated() / 2**30


def point(policy: models.Policy, tokens: int, group: int) -> dict[str, float]:
    responses = max(group, tokens // NEW)
    b = batch(torch.full((responses,), NEW), PROMPT, group, 30_000)
    run, _ = packed_passes(policy, b, "prompt")

    def train() -> None:
        policy.model.zero_grad()
        run()

    seconds, peak = measured(train)
    policy.model.zero_grad()
    sample = functools.partial(open_sampler(policy).sample, b.prompts, group, SamplingParams(max_tokens=NEW))
    sampling, held = measured(sample)
    del sample
    gc.collect()
    torch.cuda.empty_cache()
    return {
        "training seconds": seconds, "training GiB": peak, "sampling seconds": sampling, "sampling GiB": held,
    }  # fmt: skip


def slope(x: list[float], y: list[float]) -> float:
    a, b = ([math.log(v) for v in values[2:] if v > 0] for values in (x, y))
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    return sum((u - mean_a) * (v - mean_b) for u, v in zip(a, b, strict=True)) / sum((u - mean_a) ** 2 for u in a)


def keep(axes: dict[str, dict[str, Any]], axis: str, values: list[float], points: list[dict[str, float]]) -> None:
    """Tell an axis' slopes and write all that there is so far."""
    slopes = {name: slope(values, [p[name] for p in points]) for name in points[0]}
    print(f"{axis}: slopes " + ", ".join(f"{name} {s:.2f}" for name, s in slopes.items()), flush=True)
    axes[axis] = {"values": values, "points": points, "slopes": slopes}
    write("growth", {"axes": axes})
    (RESULTS / "growth.svg").write_text(picture(axes))


def picture(axes: dict[str, dict[str, Any]]) -> str:
    """Log-log plots, one for each axis and measure, as SVG."""
    names, width, height, gap = list(next(iter(axes.values()))["points"][0]), 200, 150, 62
    lines = []
    for column, (axis, found) in enumerate(axes.items()):
        for row, name in enumerate(names):
            left, top = gap + column * (width + gap), 30 + row * (height + gap)
            xs, ys = found["values"], [p[name] for p in found["points"]]
            low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)) + 1e-9)
            place = [
                (left + width * math.log(x / xs[0]) / math.log(xs[-1] / xs[0]),
                 top + height * (1 - (math.log10(y) - low) / max(high - low, 1)))
                for x, y in zip(xs, ys, strict=True)
            ]  # fmt: skip
            dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in place)
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in place)
            lines += [
                f'<rect x="{left}" y="{top}" width="{width}" height="{height}" class="frame"/>',
                f'<polyline points="{path}"/>{dots}',
                f'<text x="{left}" y="{top - 6}">{name}, slope {found["slopes"][name]:.2f}</text>',
                f'<text x="{left - 4}" y="{top + height}" class="end">{10.0**low:g}</text>',
                f'<text x="{left - 4}" y="{top + 8}" class="end">{10.0**high:g}</text>',
                f'<text x="{left}" y="{top + height + 14}">{xs[0]:,.0f}</text>',
                f'<text x="{left + width}" y="{top + height + 14}" class="end">{xs[-1]:,.0f}</text>',
                f'<text x="{left + width / 2}" y="{top + height + 28}" class="middle">{axis}</text>',
            ]
    size = f"{gap + len(axes) * (width + gap)} {40 + len(names) * (height + gap)}"
    style = (
        "text{font:11px sans-serif}.end{text-anchor:end}.middle{text-anchor:middle}"
        ".frame{fill:none;stroke:#999}polyline{fill:none;stroke:#06c;stroke-width:1.5}circle{fill:#06c}"
    )
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}">', f"<style>{style}</style>",
                      *lines, "</svg>", ""])  # fmt: skip


def main() -> None:
    packing.BUDGET = 16_384
    axes: dict[str, dict[str, Any]] = {}
    policy = endless(SMALLEST)
    for axis, values in AXES.items():
        points = []
        for value in values:
            if axis == "vocabulary":
                policy = endless(SMALLEST, value)
            tokens, group = value if axis == "tokens" else TOKENS, value if axis == "group size" else GROUP
            points.append(point(policy, tokens, group))
            print(f"  {axis} {value:,}: " + ", ".join(f"{k} {v:.3f}" for k, v in points[-1].items()), flush=True)
        keep(axes, axis, [float(v) for v in values], points)
    points, sizes = [], []
    for name in SHAPES:
        del policy
        torch.cuda.empty_cache()
        policy = endless(name)
        sizes.append(float(sum(p.numel() for p in policy.parameters())))
        points.append(point(policy, TOKENS, GROUP))
        print(f"  {name}: " + ", ".join(f"{k} {v:.3f}" for k, v in points[-1].items()), flush=True)
    keep(axes, "parameters", sizes, points)


if __name__ == "__main__":
    main()

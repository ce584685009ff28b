"""What 8, 64 and 512 GPUs would do with verl, on paper, from measured parts: `python benchmarks/scaling.py`.

Parts measured on one H200 (benchmarks/results: sampler, growth, step_gpu, vllm_engine) and one CPU core (verify) are
fitted by one or two numbers each; how work divides was tried on two CPU processes (ranks). What was not measured (links
between GPUs, verl's share of our training rate, vLLM's cost on its host) is a range, and every figure is given at both
ends. docs/scaling.md has the formulas, the tables and the model's error.

Not covered: verl's own time between the parts, pipeline and tensor parallelism, failures, stragglers other than the
longest response, evaluation.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
GPUS = (8, 64, 512)


@dataclass(frozen=True)
class Shape:
    """A model as far as its time depends on it; `tests/benchmarks/test_scaling.py` holds it to benchmarks/shapes.py."""

    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    def cache(self, tokens: float) -> float:
        """Bytes of keys and values in bfloat16."""
        return 4 * self.layers * self.kv_heads * self.head_dim * tokens

    def scores(self, seen: float) -> float:
        """Operations of attention over `seen` pairs of tokens, forward."""
        return 4 * self.layers * self.heads * self.head_dim * seen


SHAPES = {
    "SmolLM2-135M": Shape(134_515_008, 30, 9, 3, 64),
    "Qwen3-0.6B": Shape(596_049_920, 28, 16, 8, 128),
    "Qwen2.5-1.5B": Shape(1_543_714_304, 28, 12, 2, 128),
    "Qwen3-1.7B": Shape(1_720_574_976, 28, 16, 8, 128),
    "Qwen3-4B": Shape(4_022_468_096, 36, 32, 8, 128),
    "Qwen2.5-7B": Shape(7_615_616_512, 28, 28, 4, 128),
}


@dataclass(frozen=True)
class Machine:
    """One GPU and its host: the first seven are measured or fitted to measurements, the rest are assumptions."""

    bandwidth: float  # bytes a second of a copy
    operations: float  # a second, of a bfloat16 product
    step: float  # s a decode step costs whatever is in it
    slack: float  # how much longer than its bound the arithmetic of a decode step takes
    pass_seconds: float  # s that a training pass takes at least: its launches
    training: float  # operations a second of a training pass
    wake: float  # s that waking the sampler and sending it weights takes besides their bytes
    links: float = 50e9  # bytes a second that a GPU receives while weights or gradients go round
    share: float = 1.0  # verl's training rate over ours
    host: float = 0.0  # s of the sampler's host per token and GPU
    cache: float = 90e9  # bytes of a GPU's memory for the sampler's cache


# The best and the worst of what was not measured. The worst host is vLLM 0.26 as it ran in process on one H200: 22.8
# thousand tokens a second at 1,024 rows of Qwen2.5-1.5B's shape, bound by its host.
BEST = {"links": 200e9, "share": 1.0, "host": 0.0}
WORST = {"links": 10e9, "share": 0.5, "host": 1 / 22_800}


@dataclass(frozen=True)
class Work:
    """A step: `responses` to `prompts` of `prompt` tokens, of lognormal length, cut at `longest`."""

    responses: int
    group: int = 16
    prompt: int = 200
    mean: float = 2_000.0
    variation: float = 0.8  # standard deviation over mean, before the cut
    longest: int = 8_192
    verdicts: float = 4_565.0  # a second and core
    cores: int = 1
    entries: int = 16_384  # of a training pass

    def living(self, step: float) -> float:
        """The share of responses with more than `step` tokens."""
        if step >= self.longest:
            return 0.0
        spread = math.sqrt(math.log1p(self.variation**2))
        centre = math.log(self.mean) - spread**2 / 2
        return 0.5 * math.erfc((math.log(max(step, 1e-9)) - centre) / (spread * math.sqrt(2)))

    def tokens(self, stride: int = 16) -> float:
        """Mean tokens of a response, after the cut."""
        return sum(stride * self.living(s + stride / 2) for s in range(0, self.longest, stride))


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def decode_points() -> list[tuple[str, float, float, float]]:
    """(shape, seconds, byte bound, compute bound) of every measured decode step."""
    results = load("sampler")["results"]
    keys = ("ms", "byte_bound_ms", "compute_bound_ms")
    return [(name, *(row[k] / 1e3 for k in keys)) for name, r in results.items() for row in r["steps"].values()]


def fit_decode(points: list[tuple[str, float, float, float]]) -> tuple[float, float]:
    """a, b of seconds = a + bytes + b·compute, by least squares of the relative error."""
    rows = [(1 / t, c / t, (t - byte) / t) for _, t, byte, c in points]
    aa, ab, bb = (sum(x[i] * x[j] for x in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    ya, yb = (sum(x[i] * x[2] for x in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    return (ya * bb - yb * ab) / determinant, (yb * aa - ya * ab) / determinant


def training_points() -> list[tuple[float, int, float]]:
    """(seconds, passes, operations) of the passes in growth.json: sizes, and tokens of the smallest shape."""
    axes, found = load("growth")["axes"], []
    sizes, tokens = axes["parameters"], axes["tokens"]
    cases = [(p, 32_768.0, row) for p, row in zip(sizes["values"], sizes["points"], strict=True)]
    cases += [(sizes["values"][0], n, row) for n, row in zip(tokens["values"], tokens["points"], strict=True)]
    for parameters, count, row in cases:
        entries = count * (1 + 100 / (128 * 16))  # prompts of 100 tokens, shared by 16 responses of 128
        found.append((row["training seconds"], math.ceil(entries / 16_384), 6 * parameters * entries))
    return found


def fit_training(points: list[tuple[float, int, float]]) -> tuple[float, float]:
    """Seconds a pass takes at least (the median of the smallest model's), and the largest model's rate."""
    least = statistics.median(t / passes for t, passes, _ in points if t / passes < 0.1)
    _, rate = max((operations, operations / t) for t, _, operations in points if t > 0.5 and operations > 2e14)
    return least, rate


def sent(bandwidth: float, shape: Shape) -> float:
    """Seconds to read and write all weights in bfloat16 on a GPU."""
    return 2 * shape.parameters * 2 / bandwidth


def woken(name: str) -> float:
    """Seconds that vLLM took on one H200 to wake and to have all weights sent, after the first time."""
    seconds = load("vllm_engine")["results"][name][0]["moved"]["seconds"]
    return float(seconds["wake_up"] + seconds["collective_rpc"])


def machine(**assumed: float) -> Machine:
    ceilings = load("sampler")["ceilings"]
    wake = woken("SmolLM2-135M") - sent(ceilings["bytes"], SHAPES["SmolLM2-135M"])
    return Machine(
        ceilings["bytes"], ceilings["operations"], *fit_decode(decode_points()), *fit_training(training_points()), wake,
        **assumed,
    )  # fmt: skip


def decode(m: Machine, shape: Shape, rows: float, groups: float, prompt: float, drawn: float) -> float:
    """Seconds of one decode step: `rows` responses to `groups` prompts, each `drawn` tokens long by now."""
    bytes_ = 2 * shape.parameters + shape.cache(groups * prompt + rows * drawn)
    operations = 2 * shape.parameters * rows + shape.scores(rows * (prompt + drawn))
    return max(m.step + bytes_ / m.bandwidth + m.slack * operations / m.operations, m.host * rows)


def rollout(m: Machine, shape: Shape, work: Work, gpus: int, stride: int = 64) -> float:
    """Seconds until the longest response of a GPU has ended; in waves, where the cache does not hold all of them."""
    rows = work.responses / gpus
    fit = m.cache / shape.cache(work.prompt / work.group + work.tokens())
    waves = max(1.0, rows / fit)
    total = 0.0
    for start in range(0, work.longest, stride):
        drawn = start + stride / 2
        alive = rows / waves * work.living(drawn)
        # Somebody is alive for as long as a response of the whole batch is expected to be: all wait for the longest.
        if work.responses * work.living(drawn) < 1:
            break
        alive = max(alive, 1.0)
        total += stride * decode(m, shape, alive, max(alive / work.group, 1.0), work.prompt, drawn)
    return waves * total


def training(m: Machine, shape: Shape, work: Work, gpus: int) -> float:
    """Forward and backward over a GPU's share; FSDP2 gathers weights twice and reduces gradients once, beside it."""
    entries = work.responses / gpus * (work.tokens() + work.prompt / work.group)
    passes = max(1, math.ceil(entries / work.entries))
    pairs = work.responses / gpus * work.tokens() ** 2 / 2
    operations = 6 * shape.parameters * entries + 3 * shape.scores(pairs)
    arithmetic = max(passes * m.pass_seconds, operations / (m.training * m.share))
    moved = passes * 8 * shape.parameters * (gpus - 1) / gpus  # 2 + 2 bytes of weights, 4 of gradients
    return max(arithmetic, moved / m.links)


def hand_over(m: Machine, shape: Shape, gpus: int) -> float:
    """All weights in bfloat16 to every GPU, a copy of them there, and what that costs for any model."""
    return m.wake + 2 * shape.parameters * (gpus - 1) / gpus / m.links + sent(m.bandwidth, shape)


def reward(work: Work) -> float:
    return work.responses / (work.verdicts * work.cores)


def parts(m: Machine, shape: Shape, work: Work, gpus: int) -> dict[str, float]:
    return {
        "rollout": rollout(m, shape, work, gpus), "reward": reward(work),
        "hand-over": hand_over(m, shape, gpus), "training": training(m, shape, work, gpus),
    }  # fmt: skip


def errors() -> dict[str, float]:
    """Relative errors where something was measured: predicted / measured − 1, the one farthest from 0."""
    points = decode_points()

    def worst(values: list[float]) -> float:
        return max(values, key=abs)

    unseen = []
    for name in {p[0] for p in points}:
        a, b = fit_decode([p for p in points if p[0] != name])
        unseen += [(a + byte + b * c) / t - 1 for shape, t, byte, c in points if shape == name]
    a, b = fit_decode(points)
    least, rate = fit_training(training_points())
    m, steps = machine(), load("step_gpu")["results"]
    found = {
        "decode, fitted": worst([(a + byte + b * c) / t - 1 for _, t, byte, c in points]),
        "decode, a shape left out": worst(unseen),
        "training, fitted": worst([max(n * least, o / rate) / t - 1 for t, n, o in training_points()]),
    }
    for name, prompts, entries in (("SmolLM2-135M", 64, 65_536), ("Qwen3-0.6B", 32, 21_800)):
        ours, shape = steps[name]["equipoise"], SHAPES[name]
        work = Work(prompts * 16, prompt=100, mean=ours["length"], variation=1e-3, longest=256, entries=entries)
        found[f"rollout of a whole step, {name}"] = rollout(m, shape, work, 1, 16) / ours["rollout"] - 1
        found[f"training of a whole step, {name}"] = training(m, shape, work, 1) / ours["train"] - 1
    for name in ("Qwen3-1.7B", "Qwen3-4B"):
        found[f"hand-over, fixed term of SmolLM2-135M, {name}"] = hand_over(m, SHAPES[name], 1) / woken(name) - 1
    for part, by_prompts in load("ranks")["errors"].items():
        most = max(by_prompts, key=int)
        found[f"{part} on two processes, fitted to one, {most} prompts (CPU)"] = by_prompts[most]
    return found


def signed(error: float) -> str:
    return f"{error:+.0%}".replace("-", "−").replace("%", " %")


def table(name: str, work_of: Any) -> list[str]:
    lines = ["| GPUs | responses | rollout s | reward s | hand-over s | training s | step s | longest part |",
             "|---:|---:|---:|---:|---:|---:|---:|---|"]  # fmt: skip
    for gpus in GPUS:
        work, shape = work_of(gpus), SHAPES[name]
        low, high = (parts(machine(**assumed), shape, work, gpus) for assumed in (BEST, WORST))
        spans = [f"{low[part]:.1f}–{high[part]:.1f}" for part in low]
        longest = " or ".join(dict.fromkeys(max(p, key=lambda part: p[part]) for p in (low, high)))
        whole = f"{sum(low.values()):.0f}–{sum(high.values()):.0f}"
        lines.append(f"| {gpus} | {work.responses:,} | {' | '.join(spans)} | {whole} | {longest} |")
    return lines


TABLES = {
    "Qwen2.5-1.5B, one batch of 8,192 responses": ("Qwen2.5-1.5B", lambda gpus: Work(8_192)),
    "Qwen2.5-7B, one batch of 8,192 responses": ("Qwen2.5-7B", lambda gpus: Work(8_192)),
    "Qwen2.5-7B, 256 responses a GPU": ("Qwen2.5-7B", lambda gpus: Work(256 * gpus)),
    "Qwen2.5-7B, 256 responses a GPU, code verdicts on 16 cores a node": (
        "Qwen2.5-7B", lambda gpus: Work(256 * gpus, verdicts=34.9, cores=2 * gpus),
    ),
}  # fmt: skip


def main() -> None:
    for title, (name, work_of) in TABLES.items():
        print(f"\n{title}:\n\n" + "\n".join(table(name, work_of)))
    print("\n| the model against | error |\n|---|---:|")
    for name, error in errors().items():
        print(f"| {name} | {signed(error)} |")


if __name__ == "__main__":
    main()

"""Our 8-bit AdamW against torchao's, bitsandbytes' and torch's fused one in 32 bits: python benchmarks/optimizer.py

Matrices in the shapes of Qwen3-0.6B's layers (28 of them, 440 million numbers), float32 weights for everyone, so that
nobody keeps a second copy. Milliseconds a step, bytes of state per number, and how far the weights are from where
float32 moments take them after 20 steps of the same noisy gradients, as a share of the whole way.
Ours in bfloat16 has float32 masters besides and writes both; it is shown for itself. A peer that is missing, fails or
takes too long is a line that says so. Writes benchmarks/results/optimizer.json.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import time
from collections.abc import Callable
from typing import Any

import torch
from report import write  # benchmarks/report.py
from timing import attempt, seconds
from torch import Tensor

from equipoise.train.optimizer import AdamW

SHAPES = ((2048, 1024), (1024, 1024), (1024, 1024), (1024, 2048), (3072, 1024), (3072, 1024), (1024, 3072))
LAYERS, STEPS = 28, 20
LR, BETAS, DECAY = 1e-3, (0.9, 0.95), 0.1
MOST = 30.0  # seconds a candidate may take: torchao compiles its step

Parameters = list[torch.nn.Parameter]
Step = Callable[[], None]


def ours(parameters: Parameters) -> Step:
    optimizer = AdamW(parameters, betas=BETAS, weight_decay=DECAY, state="8bit")

    def step() -> None:
        for weight, master in optimizer.rounded:  # a backward pass would have put it there
            master.grad = weight.grad.float()
        optimizer.step(LR)

    return step


def fused(parameters: Parameters) -> Step:
    return torch.optim.AdamW(parameters, lr=LR, betas=BETAS, weight_decay=DECAY, fused=True).step


def torchao(parameters: Parameters) -> Step:
    from torchao.optim import AdamW8bit

    return AdamW8bit(parameters, lr=LR, betas=BETAS, weight_decay=DECAY).step


def bitsandbytes(parameters: Parameters) -> Step:
    from bitsandbytes.optim import AdamW8bit

    return AdamW8bit(parameters, lr=LR, betas=BETAS, weight_decay=DECAY).step


CANDIDATES: dict[str, Callable[[Parameters], Step]] = {
    "fused": fused,
    "ours": ours,
    "bitsandbytes": bitsandbytes,
    "torchao": torchao,
}


def weights(layers: int, dtype: torch.dtype, device: str = "cuda") -> Parameters:
    g = torch.Generator(device).manual_seed(0)
    made = (torch.randn(s, generator=g, device=device) * 0.02 for s in SHAPES * layers)
    return [torch.nn.Parameter(x.to(dtype)) for x in made]


def give_gradients(parameters: Parameters, t: int) -> None:
    """A direction of each weight's own, with noise as large: sizes differ by row, as those of a model do."""
    for i, p in enumerate(parameters):
        g = torch.Generator(p.device).manual_seed(1000 * t + i)
        fixed = torch.Generator(p.device).manual_seed(i)
        scale = torch.randn(p.shape[0], 1, generator=fixed, device=p.device).exp()
        way = torch.randn(p.shape, generator=fixed, device=p.device)
        noise = torch.randn(p.shape, generator=g, device=p.device)
        p.grad = (1e-3 * scale * (way + noise)).to(p.dtype)


def moved(build: Callable[[Parameters], Step], layers: int = 1, device: str = "cuda") -> list[Tensor]:
    """Where `STEPS` steps take the weights, less where they began."""
    parameters = weights(layers, torch.float32, device)
    begin = [p.detach().clone() for p in parameters]
    step = build(parameters)
    for t in range(STEPS):
        give_gradients(parameters, t)
        step()
    return [p.detach() - b for p, b in zip(parameters, begin, strict=True)]


def apart(found: list[Tensor], wanted: list[Tensor]) -> float:
    """The difference of two movements as a share of the second."""
    squares = [(float((a - b).double().square().sum()), float(b.double().square().sum()))
               for a, b in zip(found, wanted, strict=True)]  # fmt: skip
    return (sum(a for a, _ in squares) / sum(b for _, b in squares)) ** 0.5


def measure(name: str, dtype: torch.dtype, wanted: list[Tensor]) -> dict[str, Any]:
    build = CANDIDATES[name]
    found: dict[str, Any] = {}
    if dtype == torch.float32:
        found["apart"] = apart(moved(build), wanted)
    parameters = weights(LAYERS, dtype)
    count = sum(p.numel() for p in parameters)
    give_gradients(parameters, 0)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    step = build(parameters)
    step()
    torch.cuda.synchronize()
    found["bytes"] = (torch.cuda.memory_allocated() - before) / count
    return found | {"ms": 1e3 * seconds(step, budget=0.4), "numbers": count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=80, help="nothing is begun after this")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    wanted = moved(fused)
    results: dict[str, Any] = {}
    for title, name, dtype in (
        ("fused AdamW, 32 bits", "fused", torch.float32),
        ("ours, 8 bits", "ours", torch.float32),
        ("ours, 8 bits, bfloat16 with masters", "ours", torch.bfloat16),
        ("bitsandbytes, 8 bits", "bitsandbytes", torch.float32),
        ("torchao, 8 bits", "torchao", torch.float32),
    ):
        limit = min(MOST, end - time.monotonic())
        found = attempt(lambda name=name, dtype=dtype: measure(name, dtype, wanted), limit)
        if name in ("bitsandbytes", "torchao") and "failed" not in found:
            found["version"] = importlib.metadata.version(name)
        results[title] = found
        torch.cuda.empty_cache()
        if "failed" in found:
            print(f"{title:38s} {found['failed']}", flush=True)
        else:
            off = f"{100 * found['apart']:.2f} % off" if "apart" in found else ""
            print(f"{title:38s} {found['ms']:7.2f} ms  {found['bytes']:5.2f} bytes a number  {off}", flush=True)
        write("optimizer", {"results": results})


if __name__ == "__main__":
    main()

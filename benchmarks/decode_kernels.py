"""The kernels of a decode step on the GPU: attention over the paged cache, what stands between the products, the draw.

Lengths are uniform from 1 to 511, prompts have 100 tokens and 16 responses each. Times are those of CUDA graphs of many
launches over rotating layers, so that no cache but the GPU's memory holds them; the median of several replays.
Attention's bytes are those of the live cache: every row's own tokens and every prompt once. Beside it in the same run:
a copy, scaled-dot-product attention of torch over a dense cache that holds the prompt once per row (what the native
sampler does), and torch's own operations for the rest. Writes benchmarks/results/decode_kernels.json.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from report import write  # benchmarks/report.py
from torch import Tensor

from equipoise.kernels import decode
from equipoise.kernels import draw as inverse_cdf
from equipoise.kernels.decode import BLOCK, DecodeRows, Norm
from equipoise.kernels.draw import SamplingParams

GROUP, PROMPT, LONGEST = 16, 100, 511
LAUNCHES = 24


class Shape(NamedTuple):
    heads: int
    kv_heads: int
    D: int
    hidden: int
    inner: int
    vocabulary: int
    normed: bool  # queries and keys


SHAPES = {
    "SmolLM2-135M": Shape(9, 3, 64, 576, 1536, 49_152, False),
    "Qwen3-0.6B": Shape(16, 8, 128, 1024, 3072, 151_936, True),
    "Qwen2.5-1.5B": Shape(12, 2, 128, 1536, 8960, 151_936, False),
}


class Cache(NamedTuple):
    rows: DecodeRows
    pool: Tensor  # [layers, 2, blocks, Hk, BLOCK, D]
    live_bytes: int  # of a layer


def cache(shape: Shape, R: int, layers: int, *, block: int = BLOCK, seed: int = 0) -> Cache:
    """Own blocks in an order that has nothing to do with the rows'."""
    g = torch.Generator().manual_seed(seed)
    P, most, most_prompt = R // GROUP, LONGEST // block + 1, -(-PROMPT // block)
    length = torch.randint(1, LONGEST + 1, (R,), generator=g)
    used = torch.arange(most) <= (length // block)[:, None]
    blocks = int(used.sum()) + P * most_prompt + 1
    order = 1 + torch.randperm(blocks - 1, generator=g)
    table = torch.zeros(R, most, dtype=torch.int64)
    table[used] = order[: int(used.sum())]
    rows = DecodeRows(
        table, length, torch.arange(R) // GROUP, order[int(used.sum()) :].view(P, -1), torch.full((P,), PROMPT),
        torch.arange(R).view(P, GROUP),
    )  # fmt: skip
    pool = torch.empty(layers, 2, blocks, shape.kv_heads, block, shape.D, dtype=torch.bfloat16, device="cuda")
    for layer in pool:
        layer.normal_()
    live = 2 * 2 * shape.kv_heads * shape.D * (int(length.sum()) + R + P * PROMPT)
    return Cache(DecodeRows(*(x.int().cuda() for x in rows)), pool, live)


def seconds(calls: list[Callable[[], Any]], replays: int = 7) -> float:
    """Of one call, in a graph of them all."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(replays + 1):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times[1:]) / len(calls)


def copy_bandwidth() -> float:
    """Bytes/s, read and written. By a kernel: a graph would leave a plain copy to the slower copy engine."""
    source = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return 4 * source.numel() / seconds([lambda: torch.neg(source, out=target)] * 4)


def attention(shape: Shape, R: int, bandwidth: float, splits: int = 1) -> dict[str, Any]:
    layers = 8 if R >= 512 else 16
    held = cache(shape, R, layers)
    q = torch.randn(R, shape.heads, shape.D, device="cuda", dtype=torch.bfloat16)
    scale = shape.D**-0.5

    def ours(layer: int) -> Tensor:
        return decode.attend(q, *held.pool[layer], held.rows, scale, None, None, splits)

    s = seconds([lambda i=i: ours(i % layers) for i in range(LAUNCHES)])
    wanted = decode.plain_decode.attend(q[:64], *held.pool[0], first_rows(held.rows, 64), scale, None, None, 1)
    error = float((ours(0)[:64] - wanted).double().norm() / wanted.double().norm())
    dense = torch.randn(2, R, shape.kv_heads, PROMPT + LONGEST + 1, shape.D, device="cuda", dtype=torch.bfloat16)
    at = torch.arange(PROMPT + LONGEST + 1, device="cuda")
    mask = (at <= PROMPT + held.rows.length[:, None])[:, None, None]
    peer = seconds(
        [lambda: F.scaled_dot_product_attention(q[:, :, None], *dense, attn_mask=mask, enable_gqa=True)] * 4, 3
    )
    return {
        "rows": R, "splits": splits, "us": 1e6 * s, "live_bytes": held.live_bytes, "error": error,
        "share_of_copy": held.live_bytes / s / bandwidth, "faster_than_sdpa": peer / s,
    }  # fmt: skip


def first_rows(rows: DecodeRows, R: int) -> DecodeRows:
    """The first rows of whole groups."""
    P = R // GROUP
    return DecodeRows(rows.table[:R], rows.length[:R], rows.prompt[:R], *(x[:P] for x in rows[3:]))


def between_products(shape: Shape, R: int) -> dict[str, float]:
    """µs of the others, and of torch's operations for the same."""
    held = cache(shape, R, 8)
    heads = shape.heads + 2 * shape.kv_heads
    qkv = torch.randn(R, heads, shape.D, device="cuda", dtype=torch.bfloat16)
    x, residual = torch.randn(2, R, shape.hidden, device="cuda", dtype=torch.bfloat16)
    gate_up = torch.randn(R, 2 * shape.inner, device="cuda", dtype=torch.bfloat16)
    rope = torch.randn(2048, shape.D, device="cuda")
    norm, head_norm = (Norm(torch.randn(d, device="cuda").bfloat16(), 1e-6, 0.0) for d in (shape.hidden, shape.D))
    head_norms = (head_norm, head_norm) if shape.normed else (None, None)
    keys = torch.arange(R, device="cuda")

    def us(call: Callable[[int], Any]) -> float:
        return 1e6 * seconds([lambda i=i: call(i) for i in range(LAUNCHES)])

    def plain_norm(_: int) -> Tensor:
        residual.add_(x)
        return F.rms_norm(residual, (shape.hidden,), norm.weight, norm.eps)

    def plain_gate(_: int) -> Tensor:
        gate, up = gate_up.chunk(2, 1)
        return F.silu(gate) * up

    return {
        "store": us(lambda i: decode.store(qkv, *held.pool[i % 8], held.rows, rope, *head_norms)),
        "add_norm": us(lambda i: decode.add_norm(x, residual, norm)),
        "gated": us(lambda i: decode.gated(gate_up, "silu")),
        "uniform": us(lambda i: decode.uniform(keys, held.rows.length)),
        "torch_add_norm": us(plain_norm),
        "torch_gated": us(plain_gate),
    }


def drawing(vocabulary: int, R: int, bandwidth: float) -> dict[str, Any]:
    logits = torch.randn(3, R, vocabulary, device="cuda").mul_(3).bfloat16()
    u = torch.rand(R, device="cuda")
    s = seconds([lambda i=i: decode.draw(logits[i % 3], u, 1.0, None) for i in range(12)])
    reading = seconds([lambda i=i: logits[i % 3].view(torch.int16).amax(1) for i in range(12)])
    peer = seconds([lambda i=i: inverse_cdf.draw(logits[i % 3], u, SamplingParams()) for i in range(3)], 3)
    return {
        "rows": R, "vocabulary": vocabulary, "us": 1e6 * s, "of_one_reading": s * bandwidth / (2 * logits[0].numel()),
        "torch_amax_us": 1e6 * reading, "faster_than_torch": peer / s,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 1024])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device; there is none here")
    bandwidth = copy_bandwidth()
    print(f"copy {bandwidth / 1e12:.2f} TB/s")
    figures: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        for R in options.rows:
            found = {
                "attend": attention(shape, R, bandwidth),
                "us": between_products(shape, R),
                "draw": drawing(shape.vocabulary, R, bandwidth),
            }
            figures[f"{name} {R}"] = found
            a, d = found["attend"], found["draw"]
            print(f"{name} {R}: attend {a['us']:.1f} µs, {a['share_of_copy']:.2f} of a copy, "
                  f"{a['faster_than_sdpa']:.1f}× sdpa, error {a['error']:.1e}; draw {d['us']:.1f} µs, "
                  f"{d['of_one_reading']:.2f} readings, {d['faster_than_torch']:.1f}× torch; "
                  + ", ".join(f"{k} {v:.1f}" for k, v in found["us"].items()), flush=True)  # fmt: skip
    write("decode_kernels", {"copy_bytes_per_s": bandwidth, "launches": LAUNCHES, "shapes": figures})


if __name__ == "__main__":
    main()

"""Does a row of a matrix product have the same bits in a batch of any size? `python benchmarks/row_bits.py` on a GPU.

If it has, sampler and trainer can agree in their products though one multiplies hundreds of rows and the other
thousands. bfloat16 products of torch's own library at the shapes of Qwen3-0.6B, and of Qwen3-8B's longest sum: the
share of the entries of X[:M] Wᵀ that are those of X Wᵀ, bit for bit. Writes benchmarks/results/row_bits.json.
"""

from __future__ import annotations

import argparse

import torch
from report import write  # benchmarks/report.py

PRODUCTS = {  # what is summed over, and the outputs
    "qkv": (1024, 4096),
    "o": (2048, 1024),
    "gate_up": (1024, 6144),
    "down": (3072, 1024),
    "head": (1024, 151_936),
    "down, 8B": (12_288, 4096),
}
ROWS, HEAD_ROWS = 16_384, 4096  # of the whole


def equal_shares(K: int, N: int, whole: int, device: str) -> dict[str, float]:
    x = torch.randn(whole, K, device=device).bfloat16()
    w = (torch.randn(N, K, device=device) / K**0.5).bfloat16()
    y = x @ w.t()
    sizes = [M for M in (1, 16, 64, 128, 256, 512, 1024, 2048, 4096) if whole >= M]
    return {str(M): float((x[:M] @ w.t() == y[:M]).float().mean()) for M in sizes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toy", action="store_true", help="small products on the CPU")
    options = parser.parse_args()
    torch.manual_seed(0)
    found = {}
    for name, (K, N) in PRODUCTS.items():
        if options.toy:
            found[name] = equal_shares(K // 64, N // 64, 256, "cpu")
        else:
            found[name] = equal_shares(K, N, HEAD_ROWS if name == "head" else ROWS, "cuda")
        print(f"{name:10}", "  ".join(f"{M}: {share:.4f}" for M, share in found[name].items()), flush=True)
    if not options.toy:
        write("row_bits", {"results": found})


if __name__ == "__main__":
    main()

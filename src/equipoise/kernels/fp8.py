"""Numbers in 8 bits with a scale for every row (`plain_fp8`), and the product of two such matrices:
on CUDA rows are made by Triton, and the product by `torch._scaled_mm`; plain torch elsewhere.

Not covered: gradients, and rows that are not finite, which stay so.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from equipoise.kernels.plain_fp8 import FP8, Fp8Rows, plain_quantize

__all__ = [
    "ALIGNED",
    "FP8",
    "Fp8Rows",
    "Precision",
    "as_bytes",
    "linear",
    "plain_quantize",
    "problem",
    "quantize",
]

Precision = Literal["auto", "fp8"]  # the model's own, or 8 bits

ALIGNED = 16  # what the sizes of a product must be multiples of on the tensor cores


def quantize(x: Tensor, out: Fp8Rows | None = None) -> Fp8Rows:
    """The rows of x [..., K], contiguous, in 8 bits; into `out` where it is given."""
    if x.is_cuda:
        from equipoise.kernels import triton_fp8

        return triton_fp8.quantize(x, out)
    rows = plain_quantize(x)
    if out is None:
        return rows
    for kept, new in zip(out, rows, strict=True):
        kept.copy_(new)
    return out


def as_bytes(x: Tensor) -> Tensor:
    """A view to index and to fill: torch does neither with 8-bit numbers on every device."""
    return x.view(torch.uint8) if x.dtype == FP8 else x


def linear(x: Fp8Rows, weight: Fp8Rows, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """x [R, K] weightᵀ + bias, weight [N, K]; on CUDA `dtype` must be bfloat16."""
    if x.entries.is_cuda:
        return torch._scaled_mm(
            x.entries,
            weight.entries.t(),
            scale_a=x.scale[:, None],
            scale_b=weight.scale[None],
            bias=bias,
            out_dtype=dtype,
            use_fast_accum=True,
        )
    y = x.wide() @ weight.wide().t()
    return (y if bias is None else y + bias.float()).to(dtype)


def problem(device: torch.device) -> str | None:
    """Why a device has no 8-bit floating point, in words; None where it has."""
    if device.type != "cuda":
        return f"this is {device.type}"
    major, minor = torch.cuda.get_device_capability(device)
    return None if (major, minor) >= (8, 9) else f"this one has {major}.{minor}"

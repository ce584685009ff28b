"""Numbers in 8 bits (float8_e4m3fn) with a scale for every row, and the product of two such matrices.

A row is what shares a scale: an output channel of a weight, a token's activations, a key or value
of one head. The scale comes from the row's own largest entry, so nothing is calibrated, and a row
with an outlier costs no other row its digits. An entry keeps four significant bits: it is off by
at most a 16th of itself, or by 2⁻¹⁰ of the scale where that is more.
Plain torch is the reference, and what the CPU runs; on CUDA rows are made by Triton, and the product
by `torch._scaled_mm`. Not covered: gradients, and rows that are not finite, which stay so.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Precision = Literal["auto", "fp8"]  # the model's own, or 8 bits

FP8 = torch.float8_e4m3fn
LARGEST = 448.0  # an FP8's
# A product, because torch divides by a number in one way on the CPU and in another on CUDA.
INVERSE = 1 / LARGEST
# What a row's largest entry counts as at least: a row of zeros has a scale too, and neither the
# scale nor its inverse leaves float32's range.
FLOOR = 1e-30
ALIGNED = 16  # what the sizes of a product must be multiples of on the tensor cores


class Fp8Rows(NamedTuple):
    """entries [..., K] FP8 and scale [...] float32, whose products they stand for."""

    entries: Tensor
    scale: Tensor

    def wide(self) -> Tensor:
        return self.entries.float() * self.scale[..., None]


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


def plain_quantize(x: Tensor) -> Fp8Rows:
    """The reference of all that rounds to 8 bits: the same bits are asked of Triton."""
    wide = x.float()
    scale = wide.abs().amax(-1).clamp_min(FLOOR) * INVERSE
    return Fp8Rows((wide * scale.reciprocal()[..., None]).to(FP8), scale)


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

"""Numbers in 8 bits (float8_e4m3fn) with a scale for every row, in plain torch: the reference, and the CPU's.

A row is what shares a scale: an output channel of a weight, a token's activations, a key or value
of one head. The scale comes from the row's own largest entry, so nothing is calibrated, and a row
with an outlier costs no other row its digits. An entry keeps four significant bits: it is off by
at most a 16th of itself, or by 2⁻¹⁰ of the scale where that is more.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
LARGEST = 448.0  # an FP8's
# A product, because torch divides by a number in one way on the CPU and in another on CUDA.
INVERSE = 1 / LARGEST
# What a row's largest entry counts as at least: a row of zeros has a scale too, and neither the
# scale nor its inverse leaves float32's range.
FLOOR = 1e-30


class Fp8Rows(NamedTuple):
    """entries [..., K] FP8 and scale [...] float32, whose products they stand for."""

    entries: Tensor
    scale: Tensor

    def wide(self) -> Tensor:
        return self.entries.float() * self.scale[..., None]


def plain_quantize(x: Tensor) -> Fp8Rows:
    """The reference of all that rounds to 8 bits: the same bits are asked of Triton."""
    wide = x.float()
    scale = wide.abs().amax(-1).clamp_min(FLOOR) * INVERSE
    return Fp8Rows((wide * scale.reciprocal()[..., None]).to(FP8), scale)

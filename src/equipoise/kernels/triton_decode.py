"""What one decode step computes between its products, in Triton: all that `plain_decode` has."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from equipoise.kernels.fp8 import Fp8Rows
from equipoise.kernels.plain_decode import Activation
from equipoise.kernels.plain_layers import Norm
from equipoise.kernels.triton_draw import check_contiguous
from equipoise.kernels.triton_draw import draw as draw
from equipoise.kernels.triton_draw import list_kept as list_kept
from equipoise.kernels.triton_draw import uniform as uniform
from equipoise.kernels.triton_fp8 import empty as empty_rows
from equipoise.kernels.triton_fp8 import warps_of_row
from equipoise.kernels.triton_layers import add_norm_kernel, gated_kernel
from equipoise.kernels.triton_paged import attend as attend
from equipoise.kernels.triton_store import store as store


def add_norm(x: Tensor | None, residual: Tensor, norm: Norm) -> Tensor:
    """See the package."""
    y = torch.empty_like(residual)
    _add_norm(x, residual, norm, y, None)
    return y


def add_norm_fp8(x: Tensor | None, residual: Tensor, norm: Norm) -> Fp8Rows:
    """See the package."""
    y = empty_rows(residual.shape, residual.device)
    _add_norm(x, residual, norm, *y)
    return y


def _add_norm(
    x: Tensor | None, residual: Tensor, norm: Norm, y: Tensor, y_scale: Tensor | None
) -> None:
    check_contiguous(residual, *(() if x is None else (x,)))
    R, d = residual.shape
    block = triton.next_power_of_2(d)
    # A row for each program: there are few rows in a step.
    add_norm_kernel[(R,)](
        residual,
        x,
        norm.weight,
        residual,
        y,
        None,
        R,
        d,
        norm.eps,
        norm.offset,
        GEMMA=norm.offset != 0,
        TOKENS=1,
        BLOCK=block,
        y_scale=y_scale,
        num_warps=4 if block <= 2048 else 8,
    )


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """See the package."""
    check_contiguous(gate_up)
    R, f = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty(R, f)
    gated_kernel[(R, triton.cdiv(f, 1024))](
        gate_up, out, f, GELU=activation == "gelu_tanh", ROUNDS=True, BLOCK=1024, num_warps=4
    )
    return out


def gated_fp8(gate_up: Tensor, activation: Activation) -> Fp8Rows:
    """See the package. A program has a whole row, because its scale is that of all of it."""
    check_contiguous(gate_up)
    R, f = len(gate_up), gate_up.shape[1] // 2
    out, block = empty_rows((R, f), gate_up.device), triton.next_power_of_2(f)
    gated_kernel[(R,)](
        gate_up,
        out.entries,
        f,
        GELU=activation == "gelu_tanh",
        ROUNDS=True,
        BLOCK=block,
        out_scale=out.scale,
        num_warps=warps_of_row(block),
    )
    return out

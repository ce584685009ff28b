"""Three functions every layer calls, with their backward passes written out: autograd's own make two to three times as
many passes over memory, which on the CPU costs as much as a small model's matrix products.

Each has a plain counterpart of one line (named in its docstring) that the tests hold it to.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """F.rms_norm(x, x.shape[-1:], weight, eps)"""
    if x.is_cuda:  # has a fused one
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    return _RmsNorm.apply(x, weight, eps)


def swiglu(gate_up: Tensor) -> Tensor:
    """F.silu(gate) * up for the halves of the last axis"""
    return _Swiglu.apply(gate_up)


def rotate(x: Tensor, heads: int, cos: Tensor, sin: Tensor) -> Tensor:
    """x · cos + (−x₂, x₁) · sin in the first `heads` heads of x [U, H, D], with x₁, x₂ the halves of the last axis; the
    other heads pass as they are. cos, sin [U, 1, D/2]."""
    return _Rotate.apply(x, heads, cos, sin)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y = x.float()
        length = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        scale = length.square().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (y * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        # y = w x s with s = (mean x² + ε)^−½:  dx = s (w d − x̂ mean(x̂ w d)),  dw = Σ x̂ d,  x̂ = x s
        normed = x.float() * scale
        d = d.float()
        product = normed * d
        d_weight = product.flatten(0, -2).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        mean = product.matmul(weight.float()[:, None]).div_(x.shape[-1])
        d_x = (d * weight).addcmul_(normed, mean, value=-1).mul_(scale)
        return d_x.to(x.dtype), d_weight, None


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        d_gate_up = torch.empty_like(gate_up)
        d_gate, d_up = d_gate_up.chunk(2, -1)
        # silu = g σ(g);  silu' = σ + silu (1 − σ)
        sigmoid = torch.sigmoid(gate)
        silu = gate * sigmoid
        torch.mul(d, silu, out=d_up)
        slope = silu.addcmul_(silu, sigmoid, value=-1).add_(sigmoid)
        torch.mul(slope.mul_(up), d, out=d_gate)
        return d_gate_up


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, heads: int, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.heads = heads
        return _turn(x, heads, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None, None, None]:
        return _turn(d, ctx.heads, *ctx.saved_tensors, -1), None, None, None


def _turn(x: Tensor, heads: int, cos: Tensor, sin: Tensor, direction: int) -> Tensor:
    out = torch.empty_like(x)
    out[:, heads:] = x[:, heads:]
    x1, x2 = x[:, :heads].chunk(2, -1)
    out1, out2 = out[:, :heads].chunk(2, -1)
    torch.mul(x1, cos, out=out1).addcmul_(x2, sin, value=-direction)
    torch.mul(x2, cos, out=out2).addcmul_(x1, sin, value=direction)
    return out

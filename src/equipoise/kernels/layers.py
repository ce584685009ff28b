"""What every layer calls besides its matrix products, with backward passes written out: autograd's
own make two to three times as many passes over memory, which costs as much as a small model's
matrix products.

On CUDA each is one Triton pass forward and one backward (`triton_layers`; float64 and float16 are
left to torch), elsewhere a few passes of torch's. Each has a plain counterpart (named in its
docstring) that the tests hold it to.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from equipoise.kernels.autograd import apply
from equipoise.kernels.plain_layers import ACTIVATIONS, wide


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """F.rms_norm(x, x.shape[-1:], offset + weight, eps); with an offset (Gemma) it is rounded after
    the product with the weight, without one before and after, as in transformers.
    """
    if x.is_cuda and x.dim() == 2:
        return add_norm(x, None, weight, eps, offset)[1]
    if offset:
        return rms_norm(wide(x), offset + wide(weight), eps).to(x.dtype)
    if x.is_cuda:
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    return apply(_RmsNorm, x, weight, eps)


def add_norm(
    x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """x ← x + delta, and rms_norm(x, weight, eps, offset): the next place of the residual stream
    [U, d] and what the layer reads there. One function, so that the two gradients of x meet in one
    pass.
    """
    if _in_triton(x):
        return apply(_AddNorm, x, delta, weight, eps, offset)
    x = x if delta is None else x + delta
    if x.is_cuda:
        normed = F.rms_norm(x, x.shape[-1:], None, eps)
        return x, normed * (offset + weight)
    return x, rms_norm(x, weight, eps, offset)


def gated(gate_up: Tensor, activation: str) -> Tensor:
    """activation(gate) * up for the halves of the last axis; silu or gelu_tanh"""
    if _in_triton(gate_up):
        return apply(_Gated, gate_up, activation)
    if activation == "silu":
        return apply(_Swiglu, gate_up)
    gate, up = gate_up.chunk(2, -1)
    return ACTIVATIONS[activation](gate) * up


def rotate(x: Tensor, heads: int, cos: Tensor, sin: Tensor) -> Tensor:
    """x · cos + (−x₂, x₁) · sin in the first `heads` heads of x [U, H, D], with x₁, x₂ the halves
    of the last axis; the other heads pass as they are. cos, sin [U, 1, D/2].
    """
    if _in_triton(x):
        return apply(_TritonRotate, x, heads, cos, sin, None, None, 0, 0.0)
    return apply(_Rotate, x, heads, cos, sin)


def norm_rotate(
    qkv: Tensor,
    kv_heads: int,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
) -> Tensor:
    """`rotate` of queries and keys in qkv [U, H + 2 Hk, D], each head normed first (`rms_norm`)."""
    heads = qkv.shape[1] - 2 * kv_heads
    if _in_triton(qkv):
        return apply(_TritonRotate, qkv, heads + kv_heads, cos, sin, q_weight, k_weight, heads, eps)
    q, k, v = qkv.split((heads, kv_heads, kv_heads), 1)
    qkv = torch.cat((rms_norm(q, q_weight, eps), rms_norm(k, k_weight, eps), v), 1)
    return rotate(qkv, heads + kv_heads, cos, sin)


def _in_triton(x: Tensor) -> bool:
    return x.is_cuda and x.dtype in (torch.float32, torch.bfloat16)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, offset: float
    ) -> tuple[Tensor, Tensor]:
        from equipoise.kernels import triton_layers

        x, delta = x.contiguous(), None if delta is None else delta.contiguous()
        total, y, scale = triton_layers.add_norm(x, delta, weight, eps, offset)
        ctx.save_for_backward(total, scale, weight)
        ctx.offset = offset
        ctx.set_materialize_grads(False)
        return total, y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total: Tensor | None, d_y: Tensor | None) -> tuple[Tensor | None, ...]:
        from equipoise.kernels import triton_layers

        total, scale, weight = ctx.saved_tensors
        if d_y is None:
            return d_total, d_total if ctx.needs_input_grad[1] else None, None, None, None
        d_total = None if d_total is None else d_total.contiguous()
        d_x, d_weight, _ = triton_layers.add_norm_gradient(
            d_y.contiguous(), d_total, total, scale, weight, ctx.offset
        )
        return d_x, d_x if ctx.needs_input_grad[1] else None, d_weight, None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, activation: str) -> Tensor:
        from equipoise.kernels import triton_layers

        gate_up = gate_up.contiguous()
        ctx.save_for_backward(gate_up)
        ctx.activation = activation
        return triton_layers.gated(gate_up, activation)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        from equipoise.kernels import triton_layers

        (gate_up,) = ctx.saved_tensors
        gradient, _ = triton_layers.gated_gradient(d.contiguous(), gate_up, ctx.activation)
        return gradient, None


class _TritonRotate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        heads: int,
        cos: Tensor,
        sin: Tensor,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        queries: int,
        eps: float,
    ) -> Tensor:
        from equipoise.kernels import triton_layers

        x = x.contiguous()
        ctx.save_for_backward(None if q_weight is None else x, cos, sin, q_weight, k_weight)
        ctx.constants = heads, queries, eps
        return triton_layers.rotate(x, heads, cos, sin, q_weight, k_weight, queries, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        from equipoise.kernels import triton_layers

        x, cos, sin, q_weight, k_weight = ctx.saved_tensors
        heads, queries, eps = ctx.constants
        d_x, d_q, d_k = triton_layers.rotate_gradient(
            d.contiguous(), x, heads, cos, sin, q_weight, k_weight, queries, eps
        )
        return d_x, None, None, None, d_q, d_k, None, None


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y = wide(x)
        length: Tensor = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        scale = length.square().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (y * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        # y = w x s with s = (mean x² + ε)^−½:  dx = s (w d − x̂ mean(x̂ w d)),  dw = Σ x̂ d,  x̂ = x s
        normed = wide(x) * scale
        d = wide(d)
        product = normed * d
        d_weight = (
            product.flatten(0, -2).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        )
        mean = product.matmul(wide(weight)[:, None]).div_(x.shape[-1])
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
        return _rotated(x, heads, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotated(d, ctx.heads, cos, sin, -1), None, None, None


def _rotated(x: Tensor, heads: int, cos: Tensor, sin: Tensor, direction: int) -> Tensor:
    out = torch.empty_like(x)
    out[:, heads:] = x[:, heads:]
    x1, x2 = x[:, :heads].chunk(2, -1)
    out1, out2 = out[:, :heads].chunk(2, -1)
    torch.mul(x1, cos, out=out1).addcmul_(x2, sin, value=-direction)
    torch.mul(x2, cos, out=out2).addcmul_(x1, sin, value=direction)
    return out

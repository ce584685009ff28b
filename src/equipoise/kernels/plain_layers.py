"""`triton_layers` in plain torch, for any device and precision: its reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


class Norm(NamedTuple):
    """y = x̂·(offset + weight), x̂ = x/√(mean x² + eps). With offset 0, x̂ is rounded before the
    product (Llama); with any other, only the product is (Gemma).
    """

    weight: Tensor
    eps: float
    offset: float


def add_norm(
    x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, offset: float
) -> tuple[Tensor, Tensor, Tensor]:
    total = x if delta is None else x + delta
    exact = wide(total)
    scale = (exact.square().mean(-1) + eps).rsqrt()
    return total, _weighted(total, scale, weight, offset), scale


def normed(x: Tensor, norm: Norm) -> Tensor:
    """x [..., d], normed over its last axis."""
    return add_norm(x, None, *norm)[1]


def add_norm_gradient(
    d_y: Tensor, d_total: Tensor | None, total: Tensor, scale: Tensor, weight: Tensor, offset: float
) -> tuple[Tensor, Tensor, Tensor]:
    normed, d, w = wide(total) * scale[:, None], wide(d_y), wide(weight) + offset
    d_x = (w * d - normed * (normed * w * d).mean(-1, keepdim=True)) * scale[:, None]
    if d_total is not None:
        d_x = d_x + d_total
    y = _weighted(total, scale, weight, offset)
    return d_x.to(total.dtype), (normed * d).sum(0).to(weight.dtype), y


def gated(gate_up: Tensor, activation: str, *, rounds: bool = False) -> Tensor:
    """With `rounds` the activation is rounded before the product, as transformers does."""
    gate, up = wide(gate_up).chunk(2, -1)
    active = ACTIVATIONS[activation](gate)
    if rounds:
        active = wide(active.to(gate_up.dtype))
    return (active * up).to(gate_up.dtype)


def gated_gradient(d: Tensor, gate_up: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        exact = wide(gate_up).detach().requires_grad_()
        gate, up = exact.chunk(2, -1)
        out = ACTIVATIONS[activation](gate) * up
    (d_gate_up,) = torch.autograd.grad(out, exact, wide(d))
    return d_gate_up.to(gate_up.dtype), out.detach().to(gate_up.dtype)


def rotate(
    x: Tensor,
    heads: int,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    queries: int,
    eps: float,
) -> Tensor:
    parts = [x[:, :heads]]
    if q_weight is not None and k_weight is not None:
        parts = [
            F.rms_norm(x[:, :queries], x.shape[-1:], q_weight, eps),
            F.rms_norm(x[:, queries:heads], x.shape[-1:], k_weight, eps),
        ]
    x1, x2 = wide(torch.cat(parts, 1)).chunk(2, -1)
    cos, sin = wide(cos), wide(sin)
    return torch.cat(
        (torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1).to(x.dtype), x[:, heads:]), 1
    )


def rotate_gradient(
    d: Tensor,
    x: Tensor | None,
    heads: int,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    queries: int,
    eps: float,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    if x is None or q_weight is None or k_weight is None:
        return rotate(d, heads, cos, -sin, None, None, queries, eps), None, None
    inputs = [t.detach().requires_grad_() for t in (x, q_weight, k_weight)]
    with torch.enable_grad():
        out = rotate(inputs[0], heads, cos, sin, inputs[1], inputs[2], queries, eps)
    d_x, d_q, d_k = torch.autograd.grad(out, inputs, d)
    return d_x, d_q, d_k


def _weighted(total: Tensor, scale: Tensor, weight: Tensor, offset: float) -> Tensor:
    normed = wide(total) * scale[..., None]
    if not offset:
        normed = wide(normed.to(total.dtype))
    return (normed * (wide(weight) + offset)).to(total.dtype)


def wide(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))

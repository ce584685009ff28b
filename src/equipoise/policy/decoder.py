"""The forward pass of the models in `policy.architectures`: a function over a flat row of tokens.

It calls the transformers model's own modules (so LoRA works) but skips their book-keeping, and
leaves attention to the caller: the trainer attends inside a pack, the samplers into their caches.
`is_llama_like` says whether a model is one of these; it looks at the family and at every setting
that would change the arithmetic, and compares a few logits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from equipoise import kernels
from equipoise.policy import layer as layers
from equipoise.policy.layer import Layer, NormModule, Parts, Rope
from equipoise.policy.projections import Projections

T = TypeVar("T")
Attend = Callable[[Layer, Tensor], Tensor]
"""(layer, qkv [U, H + 2 Hk, D] with queries and keys already rotated) → [U, H, D]"""

THROUGH = "through"  # the method of a module whose weights ranks share (train.shard)


def is_llama_like(core: Any) -> bool:
    return layers.is_described(core) and _first_logits_agree(core)


def hidden_states(
    core: Any,
    inputs: Tensor,
    positions: Tensor,
    attend: Attend,
    *,
    gradient_checkpointing: bool = False,
) -> Tensor:
    """Last hidden states [U, d] before the final norm, of `inputs` [U] at `positions` [U]."""
    parts = layers.describe(core)
    x = parts.embed(inputs)
    ropes = rope_by_layer(parts, x, positions)
    run = _recomputed if gradient_checkpointing and torch.is_grad_enabled() else _layer
    for layer, rope in zip(parts.layers, ropes, strict=True):
        x = gathered(layer.module, run, layer, x, rope, attend, parts.activation)
    return x


def rope_by_layer(parts: Parts, x: Tensor, positions: Tensor) -> list[Rope]:
    """The table that each layer rotates by, cos and sin [U, 1, D/2]."""
    rotated = parts.rope(x, positions).map(lambda c: c[:, None].contiguous())
    if all(layer.rotates for layer in parts.layers):
        return [rotated] * len(parts.layers)
    # A table that turns by nothing, so that layers without rotation run the same kernels.
    unrotated = rotated.without_rotation()
    return [rotated if layer.rotates else unrotated for layer in parts.layers]


def gathered(module: Any, run: Callable[..., T], *arguments: Any) -> T:
    """run(*arguments); where ranks share the module's weights, through what gathers them."""
    through = getattr(module, THROUGH, None)
    result: T = run(*arguments) if through is None else through(run, *arguments)
    return result


def _recomputed(*arguments: Any) -> Tensor:
    x: Tensor = checkpoint(_layer, *arguments, use_reentrant=False)
    return x


def _layer(layer: Layer, x: Tensor, rope: Rope, attend: Attend, activation: str) -> Tensor:
    def attention(qkv: Tensor) -> Tensor:
        qkv = _rotated(layer, qkv.view(len(x), -1, layer.head_dim), rope)
        return attend(layer, qkv).reshape(len(x), -1)

    stream = _PlainStream(x, activation)
    layers.run(layer, stream, attention)
    return stream.total()


class _PlainStream:
    """The residual stream for autograd: a sum and the norm after it are one function."""

    def __init__(self, x: Tensor, activation: str) -> None:
        self.x, self.activation = x, activation
        self.delta: Tensor | None = None

    def norm(self, norm: NormModule) -> Tensor:
        self.x, y = kernels.add_norm(self.x, self.delta, norm.weight, norm.eps, norm.offset)
        self.delta = None
        return y

    def add(self, projection: Projections, y: Tensor) -> None:
        self.delta = projection(y)

    def gated(self, gate_up: Tensor) -> Tensor:
        return kernels.gated(gate_up, self.activation)

    def total(self) -> Tensor:
        return self.x if self.delta is None else self.x + self.delta


def _rotated(layer: Layer, qkv: Tensor, rope: Rope) -> Tensor:
    """qkv [U, H + 2 Hk, D] with its queries and keys normed, where the layer does, and rotated."""
    q, k = layer.q_norm, layer.k_norm
    if q is None or k is None:
        return kernels.rotate(qkv, qkv.shape[1] - layer.kv_heads, rope.cos, rope.sin)
    return kernels.norm_rotate(qkv, layer.kv_heads, q.weight, k.weight, q.eps, rope.cos, rope.sin)


def side_by_side(core: Any) -> None:
    """Lay out weights that share an input one behind the other (`Projections.lay_out`). Layers that
    carry an adapter are left alone, and so are those whose weights ranks share.
    """
    for layer in layers.describe(core).layers:
        if not hasattr(layer.module, THROUGH):
            layer.qkv.lay_out()
            layer.gate_up.lay_out()


def normed(core: Any, x: Tensor) -> Tensor:
    """x [U, d] after the model's last norm."""
    norm = layers.final_norm(core)
    return kernels.rms_norm(x, norm.weight, norm.eps, norm.offset)


@torch.no_grad()
def _first_logits_agree(core: Any) -> bool:
    """Whether these layers give what transformers does: in the model's precision, or in float32.

    bfloat16 alone can be further off than that: SmolLM2's own logits of its first tokens are a
    fifth of the largest away from float32's, and two ways to multiply round apart by as much.
    """
    if _logits_agree(core):
        return True
    return core.dtype != torch.float32 and _logits_agree(copy.deepcopy(core).float())


def _logits_agree(core: Any) -> bool:
    device = next(core.parameters()).device
    inputs = torch.arange(4, device=device) % core.config.vocab_size
    x = hidden_states(core, inputs, torch.arange(4, device=device), causal)
    mine = core.lm_head(normed(core, x))
    theirs = core(input_ids=inputs[None], use_cache=False).logits[0]
    return torch.allclose(
        mine.float(), theirs.float(), rtol=0.05, atol=0.05 * float(theirs.float().abs().max())
    )


def causal(layer: Layer, qkv: Tensor) -> Tensor:
    """Attends within one sequence of length U, inside the layer's window."""
    q, k, v = heads_first(qkv[None], layer.kv_heads)
    o = causal_attention(q, k, v, window_mask(len(qkv), layer.window, qkv.device), layer.scale)
    return o[0].transpose(0, 1)


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None
) -> Tensor:
    """q [b, H, l, D], k and v [b, Hk, l, D] → [b, H, l, D]; causal where no mask is given."""
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
    )


def window_mask(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """Who sees whom [length, length] where the window is shorter; None: causal attention."""
    if window is None or length <= window:
        return None
    column = torch.arange(length, device=device)
    distance = column[:, None] - column
    return (distance >= 0) & (distance < window)


def heads_first(qkv: Tensor, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """[b, l, H + 2 Hk, D] → q [b, H, l, D], k and v [b, Hk, l, D]"""
    q, k, v = qkv.transpose(1, 2).split((qkv.shape[2] - 2 * kv_heads, kv_heads, kv_heads), 1)
    return q, k, v

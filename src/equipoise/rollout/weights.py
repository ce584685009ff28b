"""The weights as the step of the paged sampler takes them: projections of one input are one matrix.

They are the trainer's own tensors, read where it keeps them. Only what a LoRA adapter changes is merged into a copy at
every call (and with weights that ranks share, projections of one input are put side by side in a copy); the copies keep
their addresses, because CUDA graphs hold them. Not covered: models that `policy.decoder` does not know.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.kernels.decode import Norm
from equipoise.policy import decoder

Merged = dict[tuple[int, str, str], Tensor]  # copies by layer, projections, and weight or bias


class Linear(NamedTuple):
    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Layer(NamedTuple):
    norm1: Norm
    qkv: Linear
    q_norm: Norm | None
    k_norm: Norm | None
    o: Linear
    norm2: Norm
    gate_up: Linear
    down: Linear
    scale: float


class Weights(NamedTuple):
    embedding: Tensor
    layers: list[Layer]
    norm: Norm
    head: Linear

    @property
    def vocabulary(self) -> int:
        return len(self.head.weight)

    def logits(self, x: Tensor) -> Tensor:
        """In float32 on CUDA, where that costs no extra pass: bfloat16 would round a logit of 10 by 0.03."""
        if not x.is_cuda or x.dtype == torch.float32:
            return self.head(x)
        z = torch.mm(x, self.head.weight.t(), out_dtype=torch.float32)
        return z if self.head.bias is None else z.add_(self.head.bias)

    def addresses(self) -> tuple[int, ...]:
        parts = [p for layer in self.layers for p in layer[:-1]] + [self.norm, self.head]
        tensors = [t for p in parts if p is not None for t in p if isinstance(t, Tensor)]
        return tuple(t.data_ptr() for t in (self.embedding, *tensors))


def weights_of(core: Any, merged: Merged) -> Weights:
    """Views of the model's weights; copies in the buffers `merged` where projections have an adapter, or may not be
    moved to lie side by side because ranks share their weights."""
    decoder.side_by_side(core)
    layers = []
    for i, layer in enumerate(core.model.layers):
        a, m = layer.self_attn, layer.mlp
        layers.append(
            Layer(
                _norm(layer.input_layernorm),
                _linear(merged, (i, "qkv"), a.q_proj, a.k_proj, a.v_proj),
                _norm(a.q_norm) if hasattr(a, "q_norm") else None,
                _norm(a.k_norm) if hasattr(a, "k_norm") else None,
                _linear(merged, (i, "o"), a.o_proj),
                _norm(layer.post_attention_layernorm),
                _linear(merged, (i, "gate_up"), m.gate_proj, m.up_proj),
                _linear(merged, (i, "down"), m.down_proj),
                a.scaling,
            )
        )
    head = _linear(merged, (len(layers), "head"), core.lm_head)
    return Weights(core.model.embed_tokens.weight, layers, _norm(core.model.norm), head)


def _norm(module: Any) -> Norm:
    return Norm(module.weight.detach(), *decoder.norm_constants(module))


def _linear(merged: Merged, name: tuple[int, str], *projections: Any) -> Linear:
    whole = decoder.joined(*projections) if decoder.is_plain(*projections) else None
    if whole is not None:
        return Linear(*whole)
    weight = _kept(merged, (*name, "weight"), [decoder.merged_weight(p) for p in projections])
    biases = [p.bias for p in projections]
    return Linear(weight, None if biases[0] is None else _kept(merged, (*name, "bias"), biases))


def _kept(merged: Merged, name: tuple[int, str, str], parts: list[Tensor]) -> Tensor:
    """The parts one behind the other, in the same buffer at every call: graphs hold its address."""
    if name in merged:
        return torch.cat(parts, out=merged[name])
    merged[name] = torch.cat(parts)
    return merged[name]

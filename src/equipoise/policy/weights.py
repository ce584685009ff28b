"""A layer's weights as kernels take them: projections of one input are one matrix.

They are the trainer's own tensors, read where it keeps them. Only what a LoRA adapter changes is
merged into a copy at every call (and with weights that ranks share, projections of one input are
put side by side in a copy), and weights in 8 bits are a copy; the copies keep their addresses,
because CUDA graphs hold them. Not covered: models that `policy.architectures` does not know.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.kernels import fp8
from equipoise.kernels.fp8 import Fp8Rows
from equipoise.kernels.plain_layers import Norm
from equipoise.policy import decoder
from equipoise.policy.layer import Layer, LayerWeights, NormModule, Parts, describe
from equipoise.policy.projections import Linear, Projections

PROJECTIONS = ("qkv", "o", "gate_up", "down")
Merged = dict[tuple[int, str, str], Tensor]  # copies by layer, projections, and weight or bias


class Fp8Linear(NamedTuple):
    """weight [out, in] in 8 bits with scale [out], bias [out] or None; `dtype` is its results'."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None
    dtype: torch.dtype

    def __call__(self, x: Tensor | Fp8Rows) -> Tensor:
        rows = fp8.quantize(x) if isinstance(x, Tensor) else x
        return fp8.linear(rows, Fp8Rows(self.weight, self.scale), self.bias, self.dtype)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + self.scale.nbytes


class Weights(NamedTuple):
    parts: Parts
    layers: list[LayerWeights]
    norm: Norm
    head: Linear

    @property
    def vocabulary(self) -> int:
        return len(self.head.weight)

    def logits(self, x: Tensor) -> Tensor:
        """In float32 on CUDA, at no extra cost: bfloat16 would round a logit of 10 by 0.03."""
        if not x.is_cuda or x.dtype == torch.float32:
            return self.head(x)
        z = torch.mm(x, self.head.weight.t(), out_dtype=torch.float32)
        return z if self.head.bias is None else z.add_(self.head.bias)

    def addresses(self) -> tuple[int, ...]:
        tensors = [t for layer in self.layers for t in tensors_of(layer)]
        tensors += [self.norm.weight, *(t for t in self.head if t is not None)]
        return tuple(t.data_ptr() for t in (self.parts.embedding.weight, *tensors))


def tensors_of(weights: LayerWeights) -> list[Tensor]:
    return [t for part in weights if part is not None for t in part if isinstance(t, Tensor)]


def weights_of(core: Any, merged: Merged) -> Weights:
    """Views of the model's weights; copies in the buffers `merged` where projections have an
    adapter, or may not be moved to lie side by side because ranks share their weights.
    """
    decoder.side_by_side(core)
    parts = describe(core)
    layers = [layer_weights(layer, merged) for layer in parts.layers]
    head = _linear(merged, (len(layers), "head"), parts.head)
    return Weights(parts, layers, _norm(parts.norm), head)


def layer_weights(layer: Layer, merged: Merged) -> LayerWeights:
    at = layer.index
    return LayerWeights(
        input_norm=_norm(layer.input_norm),
        qkv=_linear(merged, (at, "qkv"), layer.qkv),
        q_norm=None if layer.q_norm is None else _norm(layer.q_norm),
        k_norm=None if layer.k_norm is None else _norm(layer.k_norm),
        o=_linear(merged, (at, "o"), layer.o),
        mlp_norm=_norm(layer.mlp_norm),
        gate_up=_linear(merged, (at, "gate_up"), layer.gate_up),
        down=_linear(merged, (at, "down"), layer.down),
    )


def in_eight_bits(weights: Weights, kept: dict[tuple[int, str], Fp8Linear]) -> Weights:
    """The projections of all layers in 8 bits, a copy in the buffers `kept`; embedding, norms and
    head are as they were.
    """
    layers = []
    for index, layer in enumerate(weights.layers):
        narrow = {}
        for name in PROJECTIONS:
            whole: Linear = getattr(layer, name)
            there = kept.get((index, name))
            out = None if there is None else Fp8Rows(there.weight, there.scale)
            narrow[name] = Fp8Linear(
                *fp8.quantize(whole.weight, out), whole.bias, whole.weight.dtype
            )
            kept[index, name] = narrow[name]
        layers.append(layer._replace(**narrow))
    return weights._replace(layers=layers)


def _norm(norm: NormModule) -> Norm:
    return Norm(norm.weight.detach(), norm.eps, norm.offset)


def _linear(merged: Merged, name: tuple[int, str], projections: Projections) -> Linear:
    whole = projections.joined() if projections.is_plain else None
    if whole is not None:
        return whole
    weight = _kept(merged, (*name, "weight"), projections.merged_weights())
    biases = projections.biases
    return Linear(weight, None if biases is None else _kept(merged, (*name, "bias"), biases))


def _kept(merged: Merged, name: tuple[int, str, str], parts: list[Tensor]) -> Tensor:
    """The parts one behind the other, in the same buffer at every call: graphs hold its address."""
    if name in merged:
        return torch.cat(parts, out=merged[name])
    merged[name] = torch.cat(parts)
    return merged[name]

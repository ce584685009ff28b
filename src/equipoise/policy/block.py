"""The decoder's layers for training on CUDA: each one function, with its backward pass written out.

The arithmetic is `decoder`'s. Autograd would keep what every step inside a layer was given, and
spend more time on book-keeping than a small model's kernels take; here a layer keeps its input,
queries, keys and values, attention's output, the stream after attention, and the gate: the rest is
made again in passes that the gradient makes anyway. With gradient checkpointing it keeps its input
alone. On the CPU the same functions run in plain torch, for the tests.
Not covered, and left to `decoder`: layers with adapters or sharded weights, biases besides those of
queries, keys and values, and windows shorter than a sequence.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from equipoise.kernels import plain_layers, varlen
from equipoise.kernels.autograd import apply
from equipoise.kernels.plain_layers import Norm
from equipoise.kernels.segments import Segments
from equipoise.policy import decoder
from equipoise.policy import layer as layers
from equipoise.policy.layer import Layer, LayerWeights
from equipoise.policy.pack import Pack
from equipoise.policy.projections import Linear
from equipoise.policy.weights import layer_weights


def serves(core: Any, pack: Pack) -> bool:
    """Whether these functions compute this model here."""
    described = layers.describe(core).layers
    like = described[0].qkv.weights[0].new_empty(0, 1, described[0].head_dim)
    if pack.segments is None or not varlen.serves(like):
        return False
    return all(_is_plain(layer) and _sees_all(layer, pack) for layer in described)


def _is_plain(layer: Layer) -> bool:
    has_whole_weights = all(
        type(module) is torch.nn.Linear and type(module.weight.data) is Tensor
        for projections in layer.projections
        for module in projections.modules
    )
    return has_whole_weights and all(p.biases is None for p in (layer.o, layer.gate_up, layer.down))


def _sees_all(layer: Layer, pack: Pack) -> bool:
    return layer.window is None or layer.window >= pack.longest


def hidden_states(core: Any, pack: Pack, *, gradient_checkpointing: bool = False) -> Tensor:
    """`decoder.hidden_states` of the pack's row: [U, d], before the final norm."""
    assert pack.segments is not None
    parts = layers.describe(core)
    if parts.layers[0].qkv.joined() is None:
        decoder.side_by_side(core)
    x = parts.embed(pack.inputs)
    ropes = decoder.rope_by_layer(parts, x, pack.positions)
    for layer, rope in zip(parts.layers, ropes, strict=True):
        parameters, weights = _parameters(layer), layer_weights(layer, {})
        names = tuple(parameters)
        call = Call(layer, weights, pack.segments, parts.activation, gradient_checkpointing, names)
        x = apply(_Layer, x, rope.cos, rope.sin, call, *parameters.values())
    return x


class Call(NamedTuple):
    """What a layer is computed with besides x and the RoPE table; `weights` are views of its
    parameters, and `names` those parameters' names, in their order.
    """

    layer: Layer
    weights: LayerWeights
    segments: Segments
    activation: str
    checkpointing: bool
    names: tuple[str, ...]


def _parameters(layer: Layer) -> dict[str, Tensor]:
    """By the names that `backward` gives their gradients."""
    found = {"input_norm": layer.input_norm.weight, "mlp_norm": layer.mlp_norm.weight}
    if layer.q_norm is not None and layer.k_norm is not None:
        found |= {"q_norm": layer.q_norm.weight, "k_norm": layer.k_norm.weight}
    for name in ("qkv", "o", "gate_up", "down"):
        for i, weight in enumerate(getattr(layer, name).weights):
            found[f"{name}.{i}"] = weight
    for i, bias in enumerate(layer.qkv.biases or ()):
        found[f"qkv.bias.{i}"] = bias
    return found


class Kept(NamedTuple):
    """Of the forward pass, for the backward pass: x [U, d] the input; qkv [U, H + 2 Hk, D], rotated
    or, where heads are normed, before that; out [U, H, D] and lse [H, U] of attention; middle [U,
    d] the stream after it; gate_up [U, 2 f]; scales [U] of the two norms.
    """

    x: Tensor
    first_scale: Tensor
    qkv: Tensor
    out: Tensor
    lse: Tensor
    middle: Tensor
    second_scale: Tensor
    gate_up: Tensor


class _KeepingStream:
    """The residual stream through one layer, which keeps what the backward pass needs. What is
    added waits for the norm after it, or for the layer's end, to be added in the same pass.
    """

    def __init__(self, x: Tensor, activation: str) -> None:
        self.x, self.activation, self.ops = x, activation, _ops(x)
        self.pending: tuple[Linear, Tensor] | None = None
        self.scales: list[Tensor] = []

    def norm(self, norm: Norm) -> Tensor:
        delta = None
        if self.pending is not None:
            projection, y = self.pending
            delta, self.pending = y @ projection.weight.t(), None
        normed: Tensor
        self.x, normed, scale = self.ops.add_norm(self.x, delta, *norm)
        self.scales.append(scale)
        return normed

    def add(self, projection: Linear, y: Tensor) -> None:
        self.pending = projection, y

    def gated(self, gate_up: Tensor) -> Tensor:
        self.gate_up = gate_up
        out: Tensor = self.ops.gated(gate_up, self.activation)
        return out

    def total(self) -> Tensor:
        assert self.pending is not None
        projection, y = self.pending
        return torch.addmm(self.x, y, projection.weight.t())


def _forward(x: Tensor, cos: Tensor, sin: Tensor, call: Call) -> tuple[Tensor, Kept]:
    layer, w = call.layer, call.weights
    attended: list[tuple[Tensor, Tensor, Tensor]] = []

    def attend(qkv: Tensor) -> Tensor:
        raw = qkv.view(len(x), -1, layer.head_dim)
        rotated = _rotated(raw, cos, sin, layer, w)
        out, lse = varlen.attend(rotated, layer.kv_heads, call.segments, layer.scale)
        attended.append((rotated if w.q_norm is None else raw, out, lse))
        return out.view(len(x), -1)

    stream = _KeepingStream(x, call.activation)
    layers.run(w, stream, attend)
    first_scale, second_scale = stream.scales
    ((qkv, out, lse),) = attended
    return stream.total(), Kept(
        x, first_scale, qkv, out, lse, stream.x, second_scale, stream.gate_up
    )


def _rotated(raw: Tensor, cos: Tensor, sin: Tensor, layer: Layer, w: LayerWeights) -> Tensor:
    heads = raw.shape[1] - 2 * layer.kv_heads
    q_norm, k_norm = _head_norms(w)
    rotated: Tensor = _ops(raw).rotate(
        raw, heads + layer.kv_heads, cos, sin, q_norm, k_norm, heads, _head_eps(w)
    )
    return rotated


def _head_norms(w: LayerWeights) -> tuple[Tensor | None, Tensor | None]:
    if w.q_norm is None or w.k_norm is None:
        return None, None
    return w.q_norm.weight, w.k_norm.weight


def _head_eps(w: LayerWeights) -> float:
    return 0.0 if w.q_norm is None else w.q_norm.eps


class _Layer(torch.autograd.Function):
    """(x, cos, sin, call, the parameters that call.names names) → the next x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, call: Call, *parameters: Tensor
    ) -> Tensor:
        x = x.contiguous()
        result, kept = _forward(x, cos, sin, call)
        ctx.call = call
        kept_tensors = [x] if call.checkpointing else kept
        # The parameters are saved so that autograd notices a change of theirs before the backward
        # pass.
        ctx.save_for_backward(cos, sin, *kept_tensors, *parameters)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        call: Call = ctx.call
        cos, sin, *saved = ctx.saved_tensors
        saved = saved[: len(saved) - len(call.names)]
        kept = _forward(saved[0], cos, sin, call)[1] if call.checkpointing else Kept(*saved)
        del saved
        gradients = _backward(d.contiguous(), cos, sin, call, kept)
        # What has no gradient (cos, sin, the call) has no name among the gradients.
        return tuple(gradients.get(name) for name in ("x", "cos", "sin", "call", *call.names))


def _backward(
    d: Tensor, cos: Tensor, sin: Tensor, call: Call, kept: Kept
) -> dict[str, Tensor | None]:
    """The gradients by name, from d [U, d], that of the layer's output."""
    layer = call.layer
    w = call.weights
    ops = _ops(d)
    U = len(d)
    found: dict[str, Tensor | None] = {}

    d_gate_up, gated = ops.gated_gradient(d @ w.down.weight, kept.gate_up, call.activation)
    found["down.0"] = d.t() @ gated
    del gated
    d_middle, found["mlp_norm"], y = ops.add_norm_gradient(
        d_gate_up @ w.gate_up.weight,
        d,
        kept.middle,
        kept.second_scale,
        w.mlp_norm.weight,
        w.mlp_norm.offset,
    )
    found |= _parts("gate_up", d_gate_up.t() @ y, layer.gate_up.weights)
    del d_gate_up, y
    d_out = (d_middle @ w.o.weight).view_as(kept.out)
    found["o.0"] = d_middle.t() @ kept.out.view(U, -1)

    rotated = kept.qkv if w.q_norm is None else _rotated(kept.qkv, cos, sin, layer, w)
    d_qkv = varlen.attend_gradient(
        d_out, rotated, kept.out, kept.lse, layer.kv_heads, call.segments, layer.scale
    )
    del rotated, d_out
    heads = d_qkv.shape[1] - 2 * layer.kv_heads
    raw = None if w.q_norm is None else kept.qkv
    d_qkv, found["q_norm"], found["k_norm"] = ops.rotate_gradient(
        d_qkv, raw, heads + layer.kv_heads, cos, sin, *_head_norms(w), heads, _head_eps(w)
    )
    d_qkv = d_qkv.view(U, -1)
    found["x"], found["input_norm"], y = ops.add_norm_gradient(
        d_qkv @ w.qkv.weight,
        d_middle,
        kept.x,
        kept.first_scale,
        w.input_norm.weight,
        w.input_norm.offset,
    )
    found |= _parts("qkv", d_qkv.t() @ y, layer.qkv.weights)
    if layer.qkv.biases is not None:
        found |= _parts("qkv.bias", d_qkv.sum(0), layer.qkv.biases)
    return found


def _parts(name: str, d: Tensor, parameters: list[Tensor]) -> dict[str, Tensor]:
    """The gradient of several parameters in one, taken apart."""
    split = d.split([len(p) for p in parameters])
    return {f"{name}.{i}": part for i, part in enumerate(split)}


def _ops(x: Tensor) -> ModuleType:
    if not x.is_cuda:
        return plain_layers
    from equipoise.kernels import triton_layers

    return triton_layers

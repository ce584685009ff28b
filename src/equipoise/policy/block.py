"""The decoder's layers for training on CUDA: each one function, with its backward pass written out.

The arithmetic is `decoder`'s. Autograd would keep what every step inside a layer was given, and spend more time on
book-keeping than a small model's kernels take; here a layer keeps its input, queries, keys and values, attention's
output, the stream after attention, and the gate: the rest is made again in passes that the gradient makes anyway. With
gradient checkpointing it keeps its input alone. On the CPU the same functions run in plain torch, for the tests.
Not covered, and left to `decoder`: layers with adapters or sharded weights, biases besides those of queries, keys and
values, and windows shorter than a sequence.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from equipoise.kernels import plain_layers, varlen
from equipoise.kernels.segments import Stretches
from equipoise.policy import decoder
from equipoise.policy.pack import Pack


def serves(core: Any, pack: Pack) -> bool:
    """Whether these functions compute this model here."""
    head = core.model.layers[0].self_attn
    weight = head.q_proj.weight
    like = weight.new_empty(0, 1, head.head_dim)
    sees_all = all(window is None or window >= pack.longest for window in decoder.windows(core))
    return pack.stretches is not None and varlen.serves(like) and sees_all and all(map(_is_plain, core.model.layers))


def _is_plain(layer: Any) -> bool:
    a, m = layer.self_attn, layer.mlp
    linear = (a.q_proj, a.k_proj, a.v_proj, a.o_proj, m.gate_proj, m.up_proj, m.down_proj)
    return all(type(p) is torch.nn.Linear and type(p.weight.data) is Tensor for p in linear) and not any(
        p.bias is not None for p in linear[3:]
    )


def hidden_states(core: Any, pack: Pack, *, gradient_checkpointing: bool = False) -> Tensor:
    """`decoder.hidden_states` of the pack's row: [U, d], before the final norm."""
    assert pack.stretches is not None
    base, first = core.model, core.model.layers[0]
    a = first.self_attn
    if decoder.joined(a.q_proj, a.k_proj, a.v_proj) is None:
        decoder.side_by_side(core)
    D, has_norms = a.head_dim, hasattr(a, "q_norm")
    x = decoder.embed(core, pack.inputs)
    cos, sin = (c[0, :, None, : D // 2].contiguous() for c in base.rotary_emb(x, pack.positions[None]))
    setting = Setting(
        D, a.k_proj.weight.shape[0] // D, pack.stretches, D**-0.5,
        *decoder.norm_constants(first.input_layernorm), a.q_norm.variance_epsilon if has_norms else 0.0,
        decoder.ACTIVATIONS[core.config.hidden_act], gradient_checkpointing,
    )  # fmt: skip
    for layer in base.layers:
        a, m = layer.self_attn, layer.mlp
        qkv, gate_up = decoder.joined(a.q_proj, a.k_proj, a.v_proj), decoder.joined(m.gate_proj, m.up_proj)
        assert qkv is not None
        assert gate_up is not None
        x = _Layer.apply(
            x, cos, sin, setting, *qkv, gate_up[0], layer.input_layernorm.weight,
            a.q_norm.weight if has_norms else None, a.k_norm.weight if has_norms else None, a.o_proj.weight,
            layer.post_attention_layernorm.weight, m.down_proj.weight,
            a.q_proj.weight, a.k_proj.weight, a.v_proj.weight, a.q_proj.bias, a.k_proj.bias, a.v_proj.bias,
            m.gate_proj.weight, m.up_proj.weight,
        )  # fmt: skip
    return x


class Setting(NamedTuple):
    head_dim: int
    kv_heads: int
    stretches: Stretches
    scale: float  # of the scores
    eps: float
    offset: float  # of the norms' weights
    head_eps: float  # of the queries' and keys' norms
    activation: str
    checkpointing: bool


class Weights(NamedTuple):
    """What a layer computes with; qkv, bias and gate_up are several parameters in one."""

    qkv: Tensor
    bias: Tensor | None
    gate_up: Tensor
    first_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    second_norm: Tensor
    down: Tensor


class Kept(NamedTuple):
    """Of the forward pass, for the backward pass: x [U, d] the input; qkv [U, H + 2 Hk, D], turned or, where heads are
    normed, before that; out [U, H, D] and lse [H, U] of attention; middle [U, d] the stream after it; gate_up [U, 2 f];
    scales [U] of the two norms."""

    x: Tensor
    first_scale: Tensor
    qkv: Tensor
    out: Tensor
    lse: Tensor
    middle: Tensor
    second_scale: Tensor
    gate_up: Tensor


def _forward(x: Tensor, cos: Tensor, sin: Tensor, s: Setting, w: Weights) -> tuple[Tensor, Kept]:
    ops = _ops(x)
    _, y, first_scale = ops.add_norm(x, None, w.first_norm, s.eps, s.offset)
    raw = F.linear(y, w.qkv, w.bias).view(len(x), -1, s.head_dim)
    turned = _turned(raw, cos, sin, s, w)
    out, lse = varlen.attend(turned, s.kv_heads, s.stretches, s.scale)
    delta = out.view(len(x), -1) @ w.o.t()
    middle, y, second_scale = ops.add_norm(x, delta, w.second_norm, s.eps, s.offset)
    gate_up = y @ w.gate_up.t()
    result = torch.addmm(middle, ops.gated(gate_up, s.activation), w.down.t())
    kept = Kept(x, first_scale, turned if w.q_norm is None else raw, out, lse, middle, second_scale, gate_up)
    return result, kept


def _turned(raw: Tensor, cos: Tensor, sin: Tensor, s: Setting, w: Weights) -> Tensor:
    heads = raw.shape[1] - 2 * s.kv_heads
    return _ops(raw).rotate(raw, heads + s.kv_heads, cos, sin, w.q_norm, w.k_norm, heads, s.head_eps)


class _Layer(torch.autograd.Function):
    """(x, …, what `Weights` has, the parameters that qkv, bias and gate_up are made of) → the next x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, s: Setting, *weights: Tensor | None) -> Tensor:
        w, parts = Weights(*weights[:9]), weights[9:]
        x = x.contiguous()
        result, kept = _forward(x, cos, sin, s, w)
        ctx.setting = s
        ctx.sizes = [None if p is None else len(p) for p in parts]
        ctx.save_for_backward(cos, sin, *w, *([x] if s.checkpointing else kept))
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        s: Setting = ctx.setting
        cos, sin, *saved = ctx.saved_tensors
        w = Weights(*saved[:9])
        kept = _forward(saved[9], cos, sin, s, w)[1] if s.checkpointing else Kept(*saved[9:])
        ops, U, d = _ops(d), len(d), d.contiguous()
        del saved

        d_gate_up, gated = ops.gated_gradient(d @ w.down, kept.gate_up, s.activation)
        d_down = d.t() @ gated
        del gated
        d_middle, d_second, y = ops.add_norm_gradient(
            d_gate_up @ w.gate_up, d, kept.middle, kept.second_scale, w.second_norm, s.offset
        )
        d_gate_up = d_gate_up.t() @ y
        del y
        d_out = (d_middle @ w.o).view_as(kept.out)
        d_o = d_middle.t() @ kept.out.view(U, -1)
        turned = kept.qkv if w.q_norm is None else _turned(kept.qkv, cos, sin, s, w)
        d_qkv = varlen.attend_gradient(d_out, turned, kept.out, kept.lse, s.kv_heads, s.stretches, s.scale)
        del turned, d_out
        heads = d_qkv.shape[1] - 2 * s.kv_heads
        raw = None if w.q_norm is None else kept.qkv
        d_qkv, d_q_norm, d_k_norm = ops.rotate_gradient(
            d_qkv, raw, heads + s.kv_heads, cos, sin, w.q_norm, w.k_norm, heads, s.head_eps
        )
        d_qkv = d_qkv.view(U, -1)
        d_x, d_first, y = ops.add_norm_gradient(
            d_qkv @ w.qkv, d_middle, kept.x, kept.first_scale, w.first_norm, s.offset
        )
        q, k, v, *_, gate, up = ctx.sizes
        of_bias = (None,) * 3 if w.bias is None else d_qkv.sum(0).split([q, k, v])
        return (
            d_x, None, None, None, None, None, None, d_first, d_q_norm, d_k_norm, d_o, d_second, d_down,
            *(d_qkv.t() @ y).split([q, k, v]), *of_bias, *d_gate_up.split([gate, up]),
        )  # fmt: skip


def _ops(x: Tensor) -> ModuleType:
    if not x.is_cuda:
        return plain_layers
    from equipoise.kernels import triton_layers

    return triton_layers

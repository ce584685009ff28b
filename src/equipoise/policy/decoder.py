"""The forward pass of Llama-like decoders (Llama, Mistral, Qwen2, Qwen3, Gemma): a function over a flat row of tokens.

It calls the transformers model's own layers (so LoRA works) but skips its book-keeping, and leaves attention to the
caller: the trainer attends inside a pack, the sampler into its cache. `is_llama_like` says whether a model is one of
these; it looks at the architecture and at every setting that would change the arithmetic, and compares a few logits.
Not covered: Gemma 2 and 3 (norms behind the blocks, capped scores, two ropes) and mixtures of experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from equipoise import kernels

T = TypeVar("T")
Attend = Callable[[int, Tensor, int], Tensor]
"""(layer, qkv [U, H + 2 Hk, D] with queries and keys already rotated, Hk) → [U, H, D]; `windows` says how far back each
layer sees."""

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "GemmaForCausalLM")
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
THROUGH = "through"  # the method of a module whose weights ranks share (train.shard)
# The other rope types depend on how long the sequence is, not on the position alone.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def is_llama_like(core: Any) -> bool:
    config = core.config
    return (
        type(core).__name__ in ARCHITECTURES
        and config.hidden_act in ACTIVATIONS
        and config.rope_parameters.get("rope_type", "default") in ROPE_TYPES
        and not getattr(config, "use_bidirectional_attention", False)
        and _first_logits_agree(core)
    )


def windows(core: Any) -> list[int | None]:
    """How many positions, its own included, each layer sees; None: all of them."""
    config = core.config
    size = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * len(core.model.layers)
    return [size if kind == "sliding_attention" else None for kind in kinds]


def hidden_states(
    core: Any, inputs: Tensor, positions: Tensor, attend: Attend, *, gradient_checkpointing: bool = False
) -> Tensor:
    """Last hidden states [U, d] before the final norm, of `inputs` [U] at `positions` [U]."""
    base = core.model
    x = embed(core, inputs)
    half = base.layers[0].self_attn.head_dim // 2
    cos, sin = (c[0, :, None, :half].contiguous() for c in base.rotary_emb(x, positions[None]))
    activation = ACTIVATIONS[core.config.hidden_act]
    run = _recomputed if gradient_checkpointing and torch.is_grad_enabled() else _layer
    for i, layer in enumerate(base.layers):
        x = gathered(layer, run, layer, i, x, cos, sin, attend, activation)
    return x


def gathered(module: Any, run: Callable[..., T], *arguments: Any) -> T:
    """run(*arguments); where ranks share the module's weights, through the method that gathers them for it."""
    through = getattr(module, THROUGH, None)
    return run(*arguments) if through is None else through(run, *arguments)


def _recomputed(*arguments: Any) -> Tensor:
    return checkpoint(_layer, *arguments, use_reentrant=False)


def embed(core: Any, inputs: Tensor) -> Tensor:
    """Embeddings [U, d]; Gemma's are scaled by √d, rounded to their precision first."""
    table = core.model.embed_tokens
    x = table(inputs)
    if type(core).__name__ == "GemmaForCausalLM" and not hasattr(table, "embed_scale"):  # transformers < 5.20
        x = x * float(torch.tensor(x.shape[-1] ** 0.5, dtype=x.dtype))
    return x


def _layer(layer: Any, i: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend, activation: str) -> Tensor:
    attn, mlp = layer.self_attn, layer.mlp
    x, y = _add_norm(layer.input_layernorm, x, None)
    qkv = _side_by_side(y, attn.q_proj, attn.k_proj, attn.v_proj).view(len(x), -1, attn.head_dim)
    kv_heads = qkv.shape[1] // (attn.num_key_value_groups + 2)
    if hasattr(attn, "q_norm"):
        q, k = attn.q_norm, attn.k_norm
        qkv = kernels.norm_rotate(qkv, kv_heads, q.weight, k.weight, q.variance_epsilon, cos, sin)
    else:
        qkv = kernels.rotate(qkv, qkv.shape[1] - kv_heads, cos, sin)
    x, y = _add_norm(layer.post_attention_layernorm, x, attn.o_proj(attend(i, qkv, kv_heads).reshape(len(x), -1)))
    return x + mlp.down_proj(kernels.gated(_side_by_side(y, mlp.gate_proj, mlp.up_proj), activation))


def _side_by_side(x: Tensor, *projections: Any) -> Tensor:
    """The outputs of several projections of x, concatenated; one product where nothing (LoRA) hangs on the layers."""
    if not is_plain(*projections):
        return torch.cat([p(x) for p in projections], -1)
    if x.is_cuda:
        whole = joined(*projections)
        if whole is None:
            return torch.cat([p(x) for p in projections], -1)
        return _Joined.apply(x, *whole, *(p.weight for p in projections), *(p.bias for p in projections))
    bias = None if projections[0].bias is None else torch.cat([p.bias for p in projections])
    return F.linear(x, torch.cat([p.weight for p in projections]), bias)


@torch.no_grad()
def side_by_side(core: Any) -> None:
    """Lay the weights of projections that share an input one behind the other in memory, so that they are one matrix
    without a copy (`joined`). The parameters stay the objects they were; only their memory moves. Layers that carry an
    adapter are left alone. What moves the parameters again (`.to`, a deep copy) undoes it, and it can be done again.
    """
    for layer in core.model.layers:
        if hasattr(layer, THROUGH):  # gathered weights are not ours to move
            continue
        a, m = layer.self_attn, layer.mlp
        for projections in ((a.q_proj, a.k_proj, a.v_proj), (m.gate_proj, m.up_proj)):
            if is_plain(*projections) and joined(*projections) is None:
                _join([p.weight for p in projections])
                if projections[0].bias is not None:
                    _join([p.bias for p in projections])


def is_plain(*projections: Any) -> bool:
    """Whether these are linear layers with whole weights: no adapter hangs on them, no ranks share them."""
    return all(type(p) is torch.nn.Linear and type(p.weight) is torch.nn.Parameter for p in projections)


def _join(parameters: Sequence[Tensor]) -> None:
    whole = torch.cat([p.data for p in parameters])
    for p, part in zip(parameters, whole.split([len(p) for p in parameters]), strict=True):
        p.data = part


def joined(*projections: Any) -> tuple[Tensor, Tensor | None] | None:
    """Weight [Σ out, in] and bias of projections that `side_by_side` laid out, as views; None where it did not."""
    weight = _as_one([p.weight for p in projections])
    biases = [p.bias for p in projections]
    bias = None if biases[0] is None else _as_one(biases)
    return None if weight is None or (biases[0] is not None and bias is None) else (weight, bias)


def _as_one(parts: Sequence[Tensor]) -> Tensor | None:
    storage, end = parts[0].untyped_storage().data_ptr(), parts[0].data_ptr()
    for p in parts:
        if p.untyped_storage().data_ptr() != storage or p.data_ptr() != end or not p.is_contiguous():
            return None
        end += p.numel() * p.itemsize
    first = parts[0].detach()
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())


def merged_weight(projection: Any) -> Tensor:
    """Its weight; where a LoRA adapter of peft hangs on it, a copy with the adapter added."""
    weight = projection.weight
    for adapter in getattr(projection, "active_adapters", ()):
        if adapter in projection.lora_A and not projection.disable_adapters:
            weight = weight + projection.get_delta_weight(adapter)
    return weight


class _Joined(torch.autograd.Function):
    """x weightᵀ + bias, whose gradients go to the parameters that `weight` and `bias` are made of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *parts: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        half = len(parts) // 2
        ctx.sizes, ctx.has_bias = [len(p) for p in parts[:half] if p is not None], bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        n = len(ctx.sizes)
        d_x = d @ weight if ctx.needs_input_grad[0] else None
        d_weights: tuple[Tensor | None, ...] = (None,) * n
        d_biases: tuple[Tensor | None, ...] = (None,) * n
        if any(ctx.needs_input_grad[3 : 3 + n]):
            d_weights = (d.t() @ x).split(ctx.sizes)
        if any(ctx.needs_input_grad[3 + n :]):
            d_biases = d.sum(0).split(ctx.sizes)
        return d_x, None, None, *d_weights, *d_biases


def rms_norm(norm: Any, x: Tensor) -> Tensor:
    return kernels.rms_norm(x, norm.weight, *norm_constants(norm))


def _add_norm(norm: Any, x: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
    return kernels.add_norm(x, delta, norm.weight, *norm_constants(norm))


def norm_constants(norm: Any) -> tuple[float, float]:
    """ε and what is added to the weight: 1 for Gemma, whose weights are kept around 0."""
    if type(norm).__name__ == "GemmaRMSNorm":
        return norm.eps, 1.0
    return norm.variance_epsilon, 0.0


@torch.no_grad()
def _first_logits_agree(core: Any) -> bool:
    device = next(core.parameters()).device
    inputs = torch.arange(4, device=device) % core.config.vocab_size
    mine = core.lm_head(
        rms_norm(core.model.norm, hidden_states(core, inputs, torch.arange(4, device=device), causal(core)))
    )
    theirs = core(input_ids=inputs[None], use_cache=False).logits[0]
    return torch.allclose(mine.float(), theirs.float(), rtol=0.05, atol=0.05 * float(theirs.float().abs().max()))


def causal(core: Any) -> Attend:
    """Attends within one sequence of length U, each layer inside its window."""
    sight = windows(core)

    def attend(layer: int, qkv: Tensor, kv_heads: int) -> Tensor:
        q, k, v = heads_first(qkv[None], kv_heads)
        mask = window_mask(len(qkv), sight[layer], qkv.device)
        o = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != kv_heads
        )
        return o[0].transpose(0, 1)

    return attend


def window_mask(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """Who sees whom [length, length] where a window is shorter than the sequence, else None: plain causal attention."""
    if window is None or length <= window:
        return None
    column = torch.arange(length, device=device)
    distance = column[:, None] - column
    return (distance >= 0) & (distance < window)


def heads_first(qkv: Tensor, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """[b, l, H + 2 Hk, D] → q [b, H, l, D], k and v [b, Hk, l, D]"""
    q, k, v = qkv.transpose(1, 2).split((qkv.shape[2] - 2 * kv_heads, kv_heads, kv_heads), 1)
    return q, k, v

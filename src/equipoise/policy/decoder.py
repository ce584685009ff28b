"""The forward pass of Llama-like decoders (Llama, Mistral, Qwen2, Qwen3) as one function over a flat row of tokens.

It calls the transformers model's own layers (so LoRA works) but skips its book-keeping, and leaves attention to the
caller: the trainer attends inside a pack, the sampler into its cache. `is_llama_like` says whether a model is one of
these; it looks at the architecture and at every setting that would change the arithmetic, and compares a few logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from equipoise.policy import kernels

Attend = Callable[[int, Tensor, int], Tensor]
"""(layer, qkv [U, H + 2 Hk, D] with queries and keys already rotated, Hk) → [U, H, D]"""

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
# The other rope types depend on how long the sequence is, not on the position alone.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def is_llama_like(core: Any) -> bool:
    config = core.config
    return (
        type(core).__name__ in ARCHITECTURES
        and config.hidden_act in ("silu", "swish")
        and config.rope_parameters.get("rope_type", "default") in ROPE_TYPES
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and (getattr(config, "sliding_window", None) is None or type(core).__name__ != "MistralForCausalLM")
        and _first_logits_agree(core)
    )


def hidden_states(
    core: Any, inputs: Tensor, positions: Tensor, attend: Attend, *, gradient_checkpointing: bool = False
) -> Tensor:
    """Last hidden states [U, d] before the final norm, of `inputs` [U] at `positions` [U]."""
    base = core.model
    x = base.embed_tokens(inputs)
    half = base.layers[0].self_attn.head_dim // 2
    cos, sin = (c[0, :, None, :half].contiguous() for c in base.rotary_emb(x, positions[None]))
    for i, layer in enumerate(base.layers):
        if gradient_checkpointing and torch.is_grad_enabled():
            x = checkpoint(_layer, layer, i, x, cos, sin, attend, use_reentrant=False)
        else:
            x = _layer(layer, i, x, cos, sin, attend)
    return x


def _layer(layer: Any, i: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
    attn, mlp = layer.self_attn, layer.mlp
    qkv = _side_by_side(rms_norm(layer.input_layernorm, x), attn.q_proj, attn.k_proj, attn.v_proj)
    qkv = qkv.view(len(x), -1, attn.head_dim)
    kv_heads = qkv.shape[1] // (attn.num_key_value_groups + 2)
    if hasattr(attn, "q_norm"):
        q, k, v = qkv.split((qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads), 1)
        qkv = torch.cat((rms_norm(attn.q_norm, q), rms_norm(attn.k_norm, k), v), 1)
    qkv = kernels.rotate(qkv, qkv.shape[1] - kv_heads, cos, sin)
    x = x + attn.o_proj(attend(i, qkv, kv_heads).reshape(len(x), -1))
    gate_up = _side_by_side(rms_norm(layer.post_attention_layernorm, x), mlp.gate_proj, mlp.up_proj)
    return x + mlp.down_proj(kernels.swiglu(gate_up))


def _side_by_side(x: Tensor, *projections: Any) -> Tensor:
    """The outputs of several projections of x, concatenated; one product where nothing (LoRA) hangs on the layers."""
    if x.is_cuda or any(type(p) is not torch.nn.Linear for p in projections):
        return torch.cat([p(x) for p in projections], -1)
    bias = None if projections[0].bias is None else torch.cat([p.bias for p in projections])
    return F.linear(x, torch.cat([p.weight for p in projections]), bias)


def rms_norm(norm: Any, x: Tensor) -> Tensor:
    return kernels.rms_norm(x, norm.weight, norm.variance_epsilon)


@torch.no_grad()
def _first_logits_agree(core: Any) -> bool:
    device = next(core.parameters()).device
    inputs = torch.arange(4, device=device) % core.config.vocab_size
    mine = core.lm_head(core.model.norm(hidden_states(core, inputs, torch.arange(4, device=device), causal)))
    theirs = core(input_ids=inputs[None], use_cache=False).logits[0]
    return torch.allclose(mine.float(), theirs.float(), rtol=0.05, atol=0.05 * float(theirs.float().abs().max()))


def causal(_: int, qkv: Tensor, kv_heads: int) -> Tensor:
    """Attend within one sequence of length U."""
    q, k, v = heads_first(qkv[None], kv_heads)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != kv_heads)[0].transpose(0, 1)


def heads_first(qkv: Tensor, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """[b, l, H + 2 Hk, D] → q [b, H, l, D], k and v [b, Hk, l, D]"""
    q, k, v = qkv.transpose(1, 2).split((qkv.shape[2] - 2 * kv_heads, kv_heads, kv_heads), 1)
    return q, k, v

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

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [U, H, D], k [U, Hk, D], v [U, Hk, D]) → [U, H, D], queries and keys already rotated."""

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
    cos, sin = (c[0].unsqueeze(1) for c in base.rotary_emb(x, positions[None]))
    sin = signed(sin)
    for i, layer in enumerate(base.layers):
        if gradient_checkpointing and torch.is_grad_enabled():
            x = checkpoint(_layer, layer, i, x, cos, sin, attend, use_reentrant=False)
        else:
            x = _layer(layer, i, x, cos, sin, attend)
    return x


def _layer(layer: Any, i: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
    attn, mlp = layer.self_attn, layer.mlp
    h = rms_norm(layer.input_layernorm, x)
    q, k, v = (proj(h).view(len(h), -1, attn.head_dim) for proj in (attn.q_proj, attn.k_proj, attn.v_proj))
    if hasattr(attn, "q_norm"):
        q, k = rms_norm(attn.q_norm, q), rms_norm(attn.k_norm, k)
    o = attend(i, rotate(q, cos, sin), rotate(k, cos, sin), v)
    x = x + attn.o_proj(o.reshape(len(h), -1))
    h = rms_norm(layer.post_attention_layernorm, x)
    return x + mlp.down_proj(F.silu(mlp.gate_proj(h)) * mlp.up_proj(h))


def rms_norm(norm: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)


def signed(sin: Tensor) -> Tensor:
    """The table `rotate` wants: its first half negated, so that the halves only need to be swapped."""
    half = sin.shape[-1] // 2
    return torch.cat((-sin[..., :half], sin[..., half:]), -1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding in the half-split convention; x [U, H, D], cos and `signed` sin [U, 1, D]."""
    half = x.shape[-1] // 2
    return torch.addcmul(x * cos, torch.cat((x[..., half:], x[..., :half]), -1), sin)


@torch.no_grad()
def _first_logits_agree(core: Any) -> bool:
    device = next(core.parameters()).device
    inputs = torch.arange(4, device=device) % core.config.vocab_size
    mine = core.lm_head(core.model.norm(hidden_states(core, inputs, torch.arange(4, device=device), causal)))
    theirs = core(input_ids=inputs[None], use_cache=False).logits[0]
    return torch.allclose(mine.float(), theirs.float(), rtol=0.05, atol=0.05 * float(theirs.float().abs().max()))


def causal(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend within one sequence of length U."""
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=q.shape[0] != k.shape[0])
    return out[0].transpose(0, 1)

"""Causal attention over a packed row, and the same for transformers' models, which call it by the name `equipoise`.

On CUDA in half precision the row stays as it is (`kernels.varlen`); elsewhere, and in sliding windows, its sequences
are laid out in buckets for torch's SDPA, the reference that the other is held to.
A model loaded by us carries that name as its attention implementation. Called with a `pack` it attends inside each
sequence; called without one (generation, other people's code) it is transformers' SDPA. Sliding windows are honoured;
soft-capped scores and attention sinks are refused, because leaving them out silently would train another model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equipoise.kernels import varlen
from equipoise.policy import decoder
from equipoise.policy.pack import Pack

NAME = "equipoise"


def packed_attention(
    qkv: Tensor, kv_heads: int, pack: Pack, scale: float | None = None, window: int | None = None
) -> Tensor:
    """Queries, keys and values [U, H + 2 Hk, D] of the row → [U, H, D]; each entry sees its sequence up to itself."""
    sees_all = window is None or window >= pack.longest
    if pack.segments is not None and sees_all and varlen.serves(qkv):
        return varlen.varlen_attention(qkv, kv_heads, pack.segments, scale)
    heads = qkv.shape[1] - 2 * kv_heads
    out = []
    gather, shapes, scatter = pack.buckets
    gathered = qkv.index_select(0, gather).split([b * l for b, l in shapes])
    for (b, l), part in zip(shapes, gathered, strict=True):
        q, k, v = decoder.heads_first(part.view(b, l, *part.shape[1:]), kv_heads)
        mask = decoder.window_mask(l, window, q.device)
        o = decoder.causal_attention(q, k, v, mask, scale)
        out.append(o.transpose(1, 2).reshape(b * l, heads, -1))
    return torch.cat(out).index_select(0, scatter)


def _attention_interface(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    pack: Pack | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if softcap is not None or s_aux is not None:
        raise ValueError(f"{type(module).__name__} caps its scores or uses attention sinks; this is not supported")
    if pack is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **rest
        )
    qkv = torch.cat((query[0], key[0], value[0])).transpose(0, 1)
    return packed_attention(qkv, key.shape[1], pack, scaling, sliding_window)[None], None


def register() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention_interface)
    AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])

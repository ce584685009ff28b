"""Causal attention over a packed row, and the same for transformers' models, which call it by the name `equipoise`.

A model loaded by us carries that name as its attention implementation. Called with a `pack` it attends inside each
sequence; called without one (generation, other people's code) it is transformers' SDPA. Sliding windows are honoured;
soft-capped scores and attention sinks are refused, because leaving them out silently would train another model.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.policy.pack import Pack

NAME = "equipoise"


def packed_attention(
    q: Tensor, k: Tensor, v: Tensor, pack: Pack, scale: float | None = None, window: int | None = None
) -> Tensor:
    """q [U, H, D], k and v [U, Hk, D] over the row → [U, H, D]; each entry sees its own sequence up to itself."""
    heads = q.shape[1]
    out = []
    for index in pack.buckets:
        b, l = index.shape
        flat = index.view(-1)
        qb, kb, vb = (x.index_select(0, flat).view(b, l, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
        mask = None
        if window is not None and l > window:
            column = torch.arange(l, device=q.device)
            distance = column[:, None] - column
            mask = (distance >= 0) & (distance < window)
        o = F.scaled_dot_product_attention(
            qb, kb, vb, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=kb.shape[1] != heads
        )
        out.append(o.transpose(1, 2).reshape(b * l, heads, -1))
    return torch.cat(out).index_select(0, pack.scatter)


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
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return packed_attention(q, k, v, pack, scaling, sliding_window)[None], None


def register() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention_interface)
    AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])

"""Causal attention over a packed row, also for transformers' models, by the name `equipoise`.

On CUDA in half precision the row stays as it is (`kernels.varlen`); elsewhere, and in sliding
windows, its sequences are laid out in buckets for torch's SDPA, the reference that the other is
held to. A model loaded by us carries that name as its attention implementation. Called with a
`pack` it attends inside each sequence; called without one (generation, other people's code) it is
transformers' SDPA. Sliding windows are honoured; soft-capped scores and attention sinks are
refused, because leaving them out silently would train another model. Not covered: the order of sums
in SDPA's own backward pass, which on CUDA can change from run to run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from equipoise.kernels import varlen
from equipoise.kernels.autograd import apply
from equipoise.kernels.plain_layers import wide
from equipoise.policy import decoder
from equipoise.policy.pack import Buckets, Pack

NAME = "equipoise"


def packed_attention(
    qkv: Tensor, kv_heads: int, pack: Pack, scale: float | None = None, window: int | None = None
) -> Tensor:
    """q, k, v [U, H + 2 Hk, D] of the row → [U, H, D]; an entry sees its sequence up to itself."""
    sees_all = window is None or window >= pack.longest
    if pack.segments is not None and sees_all and varlen.serves(qkv):
        return varlen.varlen_attention(qkv, kv_heads, pack.segments, scale)
    heads = qkv.shape[1] - 2 * kv_heads
    out = []
    buckets = pack.buckets
    gathered = _gathered(qkv, buckets).split([b * l for b, l in buckets.shapes])
    for (b, l), part in zip(buckets.shapes, gathered, strict=True):
        q, k, v = decoder.heads_first(part.view(b, l, *part.shape[1:]), kv_heads)
        mask = decoder.window_mask(l, window, q.device)
        o = decoder.causal_attention(q, k, v, mask, scale)
        out.append(o.transpose(1, 2).reshape(b * l, heads, -1))
    return torch.cat(out).index_select(0, buckets.scatter)


def _gathered(row: Tensor, buckets: Buckets) -> Tensor:
    """row [U, …] laid out in the buckets: [M, …]"""
    if _adds_in_any_order(row):
        return apply(_Gathered, row, buckets)
    return row.index_select(0, buckets.gather)


def _adds_in_any_order(x: Tensor) -> bool:
    """Whether torch adds gradients of one entry in the threads' order, rounding each time."""
    return x.is_cuda


class _Gathered(torch.autograd.Function):
    """row[gather], with the gradients of an entry (a prompt's) added in a fixed order.

    Padding has no gradient: no output of it is used, and no query before it sees it.
    """

    @staticmethod
    def forward(ctx: Any, row: Tensor, buckets: Buckets) -> Tensor:
        ctx.save_for_backward(buckets.places, buckets.counts)
        return row.index_select(0, buckets.gather)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        places, counts = ctx.saved_tensors
        by_entry = wide(d.index_select(0, places)).flatten(1)
        # `unsafe` leaves out checks of the counts that the host would wait for.
        total = torch.segment_reduce(by_entry, "sum", lengths=counts, unsafe=True)
        return total.view(-1, *d.shape[1:]).to(d.dtype), None


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
        raise ValueError(
            f"{type(module).__name__} caps its scores or uses attention sinks; this is not supported"
        )
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

"""Attention inside segments of a row, without padding; a group's responses see one prompt.

On CUDA in half precision it is one Triton kernel forward and two or three backward
(`triton_attention`); two runs give the same bits. Elsewhere it is a plain loop over the segments,
which the tests hold the kernels to. Not covered: windows, capped scores, dropout.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from equipoise.kernels.autograd import apply
from equipoise.kernels.segments import Segments


def serves(qkv: Tensor) -> bool:
    """Whether this is faster here than padding: on CUDA, in half precision."""
    return qkv.is_cuda and qkv.dtype in (torch.bfloat16, torch.float16) and qkv.shape[-1] <= 256


def varlen_attention(
    qkv: Tensor, kv_heads: int, segments: Segments, scale: float | None = None
) -> Tensor:
    """[U, H + 2 Hk, D] → [U, H, D]"""
    return apply(_Attention, qkv, kv_heads, segments, scale or qkv.shape[-1] ** -0.5)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, kv_heads: int, segments: Segments, scale: float) -> Tensor:
        qkv = qkv.contiguous()
        out, lse = attend(qkv, kv_heads, segments, scale)
        ctx.save_for_backward(qkv, out, lse)
        ctx.constants = kv_heads, segments, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        return attend_gradient(d.contiguous(), *ctx.saved_tensors, *ctx.constants), None, None, None


def attend(qkv: Tensor, kv_heads: int, segments: Segments, scale: float) -> tuple[Tensor, Tensor]:
    """Outputs [U, H, D], and the log-sum-exps [H, U] of the scores; qkv contiguous."""
    if qkv.is_cuda:
        from equipoise.kernels import triton_attention

        return triton_attention.attend(qkv, kv_heads, segments, scale)
    q, k, v = _split(qkv, kv_heads)
    out, lse = torch.empty_like(q), q.new_empty(q.shape[1], len(q))
    for own, seen in _pairs(segments):
        scores = _scores(q[own], k[seen], scale)
        lse[:, own] = scores.logsumexp(-1)
        out[own] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), _repeated(v[seen], q))
    return out, lse


def attend_gradient(
    d: Tensor,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
    kv_heads: int,
    segments: Segments,
    scale: float,
) -> Tensor:
    """The gradient of qkv, from d [U, H, D] and what `attend` gave; all contiguous."""
    if qkv.is_cuda:
        from equipoise.kernels import triton_attention

        return triton_attention.attend_gradient(d, qkv, out, lse, kv_heads, segments, scale)
    q, k, v = _split(qkv, kv_heads)
    d_qkv = torch.zeros_like(qkv)
    dq, dk, dv = _split(d_qkv, kv_heads)
    delta = (d * out).sum(-1).t()
    for own, seen in _pairs(segments):
        p = (_scores(q[own], k[seen], scale) - lse[:, own, None]).exp()
        ds = (
            p
            * (torch.einsum("qhd,khd->hqk", d[own], _repeated(v[seen], q)) - delta[:, own, None])
            * scale
        )
        dq[own] = torch.einsum("hqk,khd->qhd", ds, _repeated(k[seen], q))
        dk.index_add_(0, seen, _gathered(torch.einsum("hqk,qhd->khd", ds, q[own]), k))
        dv.index_add_(0, seen, _gathered(torch.einsum("hqk,qhd->khd", p, d[own]), v))
    return d_qkv


def _split(qkv: Tensor, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = qkv.split((qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads), 1)
    return q, k, v


def _pairs(segments: Segments) -> Iterator[tuple[slice, Tensor]]:
    """The entries of each segment, and of what it sees: its prompt elsewhere, and itself."""
    for a, b in pairwise(segments.cuts.tolist()):
        before = range(0)
        if segments.groups is not None and segments.prompts is not None and a >= segments.groups[0]:
            group = int(np.searchsorted(segments.groups, a, side="right")) - 1
            before = range(*segments.prompts[group : group + 2].tolist())
        yield slice(a, b), torch.tensor([*before, *range(a, b)])


def _scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Scores [H, n, m] of the last n of m places, each of which sees up to itself."""
    scores = torch.einsum("qhd,khd->hqk", q, _repeated(k, q)) * scale
    hidden = torch.ones_like(scores[0], dtype=torch.bool).triu(len(k) - len(q) + 1)
    return scores.masked_fill(hidden, -torch.inf)


def _repeated(x: Tensor, q: Tensor) -> Tensor:
    """[n, Hk, D] → [n, H, D]"""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _gathered(x: Tensor, k: Tensor) -> Tensor:
    """[n, H, D] → [n, Hk, D], summed over the queries of each key"""
    summed: Tensor = x.unflatten(1, (k.shape[1], -1)).sum(2)
    return summed

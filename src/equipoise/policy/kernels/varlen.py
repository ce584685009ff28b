"""Attention inside stretches of a row, without padding, where the responses of a group see their one prompt.

Two calls of a flash attention and a merge: every stretch (a prompt, a response) attends causally to itself, and the
responses of a group attend, all together, to the keys of their prompt. The softmax over both is the mean of the two
outputs, weighed by what each has under its log-sum-exp. In the backward pass each call is given the merged output and
log-sum-exp: it then forms P = exp(S − lse) and δ = Σ dO∘O of the whole softmax, so its part of the gradient is exact.
On CUDA the calls are torch's flash attention, in bfloat16 or float16, with heads of at most 256 in multiples of 8; two
runs give the same bits. Elsewhere they are plain loops over the stretches, for the tests. Not covered: windows, capped
scores, dropout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from equipoise.policy.pack import Spans


def serves(qkv: Tensor) -> bool:
    """Whether this is faster here than padding: on CUDA, in half precision."""
    fits = qkv.shape[-1] % 8 == 0 and qkv.shape[-1] <= 256
    return qkv.is_cuda and qkv.dtype in (torch.bfloat16, torch.float16) and fits


def varlen_attention(
    qkv: Tensor, kv_heads: int, own: Spans, to_prompt: Spans | None = None, prompts: int = 0, scale: float | None = None
) -> Tensor:
    """[U, H + 2 Hk, D] → [U, H, D]. `own` covers the row; `to_prompt` has queries from `prompts` on, keys up to it."""
    return _Attention.apply(qkv, kv_heads, own, to_prompt, prompts, scale or qkv.shape[-1] ** -0.5)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, kv_heads: int, own: Spans, to_prompt: Spans | None, prompts: int, scale: float
    ) -> Tensor:
        out, lse = attend(qkv, kv_heads, own, to_prompt, prompts, scale)
        ctx.save_for_backward(qkv, out, lse)
        ctx.constants = kv_heads, own, to_prompt, prompts, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        return attend_gradient(d, *ctx.saved_tensors, *ctx.constants), None, None, None, None, None


def attend(
    qkv: Tensor, kv_heads: int, own: Spans, to_prompt: Spans | None, prompts: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Outputs [U, H, D], and the log-sum-exps [H, U] of the scores."""
    q, k, v = _split(qkv, kv_heads)
    out, own_lse = _forward(q, k, v, own, True, scale)
    if to_prompt is None or not to_prompt.longest_queries:
        return out, own_lse
    part = _forward(q[prompts:], k[:prompts], v[:prompts], to_prompt, False, scale)
    lse = own_lse.clone()
    merge_(out[prompts:], own_lse[:, prompts:], *part, lse[:, prompts:])
    return out, lse


def attend_gradient(
    d: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, kv_heads: int, own: Spans, to_prompt: Spans | None, prompts: int,
    scale: float,
) -> Tensor:  # fmt: skip
    """The gradient of qkv, from d [U, H, D] and what `attend` gave."""
    q, k, v = _split(qkv, kv_heads)
    dq, dk, dv = _backward(d, q, k, v, out, lse, own, True, scale)
    if to_prompt is not None and to_prompt.longest_queries:
        parts = _backward(
            d[prompts:], q[prompts:], k[:prompts], v[:prompts], out[prompts:], lse[:, prompts:].contiguous(),
            to_prompt, False, scale,
        )  # fmt: skip
        for whole, part in zip((dq[prompts:], dk[:prompts], dv[:prompts]), parts, strict=True):
            whole.add_(part)
    return torch.cat((dq, dk, dv), 1)


def merge_(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor, merged: Tensor) -> None:
    """The softmax over the keys of both, in place of the first: out, other [U, H, D]; its log-sum-exps into `merged`.

    lse, other_lse, merged [H, U] float32, may be parts of wider ones.
    """
    if out.is_cuda:
        from equipoise.policy.kernels import triton_layers

        triton_layers.merge_(out, lse, other, other_lse, merged)
        return
    share = torch.sigmoid(other_lse - lse).t()[..., None]  # of the other
    out.copy_(out + share * (other.to(share.dtype) - out))
    merged.copy_(torch.logaddexp(lse, other_lse))


def _split(qkv: Tensor, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = qkv.split((qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads), 1)
    return q, k, v


def _forward(q: Tensor, k: Tensor, v: Tensor, spans: Spans, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Outputs [U, H, D] and log-sum-exps [H, U] float32 of the queries over the keys of their span."""
    if not q.is_cuda:
        return _plain_forward(q, k, v, spans, causal, scale)
    out, lse, *_ = torch.ops.aten._flash_attention_forward(q, k, v, *spans, 0.0, causal, False, scale=scale)
    return out, lse


def _backward(
    d: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, spans: Spans, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, where the softmax has the log-sum-exp `lse` and the output `out`."""
    if not q.is_cuda:
        return _plain_backward(d, q, k, v, out, lse, spans, causal, scale)
    unused = torch.empty((), dtype=torch.uint64, device=q.device)  # of dropout, which there is none of
    with _deterministic():
        return torch.ops.aten._flash_attention_backward(
            d.contiguous(), q, k, v, out, lse, *spans, 0.0, causal, unused, unused, scale=scale
        )


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """Flash's backward pass sums a query's gradient in the order the blocks happen to finish, unless told not to."""
    # The setters under torch.use_deterministic_algorithms, which also tells the compiler and takes far longer.
    get, warns, fills = (torch._C._get_deterministic_algorithms, torch._C._get_deterministic_algorithms_warn_only,
                         torch._C._get_deterministic_fill_uninitialized_memory)  # fmt: skip
    before, fill = (get(), warns()), fills()
    torch._C._set_deterministic_algorithms(True, warn_only=False)
    torch._C._set_deterministic_fill_uninitialized_memory(False)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before[0], warn_only=before[1])
        torch._C._set_deterministic_fill_uninitialized_memory(fill)


def _plain_forward(q: Tensor, k: Tensor, v: Tensor, spans: Spans, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    out, lse = torch.empty_like(q), q.new_empty(q.shape[1], len(q))
    for rows, columns in _pairs(spans):
        scores = _scores(q[rows], k[columns], causal, scale)
        lse[:, rows] = scores.logsumexp(-1)
        out[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), _repeated(v[columns], q))
    return out, lse


def _plain_backward(
    d: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, spans: Spans, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    delta = (d * out).sum(-1).t()
    for rows, columns in _pairs(spans):
        p = (_scores(q[rows], k[columns], causal, scale) - lse[:, rows, None]).exp()
        ds = p * (torch.einsum("qhd,khd->hqk", d[rows], _repeated(v[columns], q)) - delta[:, rows, None]) * scale
        dq[rows] = torch.einsum("hqk,khd->qhd", ds, _repeated(k[columns], q))
        dk[columns] += _gathered(torch.einsum("hqk,qhd->khd", ds, q[rows]), k)
        dv[columns] += _gathered(torch.einsum("hqk,qhd->khd", p, d[rows]), v)
    return dq, dk, dv


def _pairs(spans: Spans) -> list[tuple[slice, slice]]:
    queries, keys = ([slice(a, b) for a, b in pairwise(x.tolist())] for x in (spans.queries, spans.keys))
    return list(zip(queries, keys, strict=True))


def _scores(q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
    scores = torch.einsum("qhd,khd->hqk", q, _repeated(k, q)) * scale
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -torch.inf)
    return scores


def _repeated(x: Tensor, q: Tensor) -> Tensor:
    """[n, Hk, D] → [n, H, D]"""
    return x.repeat_interleave(q.shape[1] // x.shape[1], 1)


def _gathered(x: Tensor, k: Tensor) -> Tensor:
    """[n, H, D] → [n, Hk, D], summed over the queries of each key"""
    return x.unflatten(1, (k.shape[1], -1)).sum(2)

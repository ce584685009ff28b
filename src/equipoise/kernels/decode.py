"""What a decode step does between its matrix products, over a paged cache:
Triton kernels on CUDA, plain torch elsewhere (and for float64).

bfloat16 and float32. Everything can be captured in a CUDA graph: no function waits for the device,
grids depend on shapes alone, and what changes from step to step (lengths, tables) is read on the
device. The same numbers give the same bits. See `reference` for the cache's layout. Not covered:
writing a prompt's keys, and the truncation by top-k, top-p and min-p (`kernels.draw`).
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from equipoise.kernels import plain_decode, plain_drafts
from equipoise.kernels.fp8 import Fp8Rows
from equipoise.kernels.plain_decode import BLOCK, Activation, DecodeRows
from equipoise.kernels.plain_drafts import LONGEST, Memory, StepRecord
from equipoise.kernels.plain_layers import Norm

__all__ = [
    "BLOCK",
    "LONGEST",
    "Activation",
    "DecodeRows",
    "Memory",
    "Norm",
    "StepRecord",
    "accept",
    "add_norm",
    "add_norm_fp8",
    "attend",
    "draft",
    "draw",
    "gated",
    "gated_fp8",
    "list_kept",
    "store",
    "uniform",
]


def store(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: DecodeRows,
    rope: Tensor,
    q_norm: Norm | None,
    k_norm: Norm | None,
    scales: Tensor | None = None,
) -> Tensor:
    """Norm and rotate queries and keys, write keys and values to the row's places from `length` on.

    qkv [R·width, H + 2 Hk, D] → queries [R·width, H, D]: `width` tokens of a row, one after the
    other, its last and what is drafted after it; 1 without drafts. rope [positions, D] float32: cos
    [D/2] and sin [D/2] of every position; halves of a head rotate together. Give cos and sin as the
    model rounds them to get the model's own bits. `scales` [2, blocks, Hk, BLOCK] float32, where
    keys and values are kept in 8 bits (`kernels.fp8`): one for each of them, which is written too.
    """
    q: Tensor = _of(qkv).store(qkv, keys, values, rows, rope, q_norm, k_norm, scales)
    return q


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: DecodeRows,
    scale: float,
    softcap: float | None,
    window: int | None,
    splits: int,
    scales: Tensor | None = None,
    prompt_splits: int = 1,
) -> Tensor:
    """Attention of queries [R·width, H, D] to their prompt's keys and their row's own 0 … length + j,
    j being the query's number in its row; the row's cache is read once for them.

    With a window, to the last `window` of these. `splits`: into how many parts a long row's work is
    cut, to be done at the same time; 1 is fastest where there are many rows. `prompt_splits`: the
    same of a prompt's.
    """
    out: Tensor = _of(q).attend(
        q, keys, values, rows, scale, softcap, window, splits, scales, prompt_splits
    )
    return out


def add_norm(x: Tensor | None, residual: Tensor, norm: Norm) -> Tensor:
    """residual [R, d] += x [R, d], in place; returns norm(residual). Without x, only the latter."""
    normed: Tensor = _of(residual).add_norm(x, residual, norm)
    return normed


def add_norm_fp8(x: Tensor | None, residual: Tensor, norm: Norm) -> Fp8Rows:
    """What `add_norm` returns, in 8 bits: what a product in 8 bits reads."""
    normed: Fp8Rows = _of(residual).add_norm_fp8(x, residual, norm)
    return normed


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """activation(gate)·up, [R, 2 f] → [R, f]"""
    out: Tensor = _of(gate_up).gated(gate_up, activation)
    return out


def gated_fp8(gate_up: Tensor, activation: Activation) -> Fp8Rows:
    """`gated`, in 8 bits."""
    out: Fp8Rows = _of(gate_up).gated_fp8(gate_up, activation)
    return out


def draw(
    logits: Tensor, u: Tensor, temperature: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Tokens [R] int64 and their log-probabilities [R] by `rollout.draw`'s rule, from logits [R, V]
    and u [R] in [0, 1): the first token, in vocabulary order, whose cumulative probability exceeds
    u; temperature 0 is greedy.

    Sums are taken in another order on the GPU: where u is within rounding of a boundary,
    the neighbour may be drawn.
    """
    drawn: tuple[Tensor, Tensor] = _of(logits).draw(logits, u, temperature, softcap)
    return drawn


def list_kept(kept: Tensor, begin: Tensor, ids: Tensor) -> None:
    """Write the columns where kept [R, V] bool is true, in order, to ids [C] int32 from begin [R]
    int64 on; what would lie behind the end of ids is not written.
    """
    _of(kept).list_kept(kept, begin, ids)


def uniform(keys: Tensor, position: Tensor) -> Tensor:
    """`rollout.uniform`'s number [R] of each response's key [R] int64 at its position [R] int32."""
    u: Tensor = _of(keys).uniform(keys, position)
    return u


def draft(memory: Memory, prompt: Tensor, recent: Tensor, count: int) -> Tensor:
    """The last token of each row and the `count` drafts after it, [R, count + 1] int64, −1 from
    where there is none: prompt [R] and recent [R, LONGEST] are the rows' own.
    """
    tokens: Tensor = _drafts_of(recent).draft(memory, prompt, recent, count)
    return tokens


def accept(
    drawn: Tensor,
    logprobs: Tensor,
    tokens: Tensor,
    rows: DecodeRows,
    block: int,
    record: StepRecord,
    memory: Memory | None,
) -> None:
    """Keep of what was drawn after each of tokens [R, width], drawn and logprobs [R·width], what
    follows right drafts, and at least the first: write it to `record` and, with its contexts, to
    `memory`, and let the rows advance by it.

    A token whose place in the cache is in block 0 is waste, so rows that pad the batch, and those
    that have gone on behind their limit, stay where they are.
    """
    _drafts_of(drawn).accept(drawn, logprobs, tokens, rows, block, record, memory)


def _drafts_of(x: Tensor) -> ModuleType:
    if not x.is_cuda:
        return plain_drafts
    from equipoise.kernels import triton_drafts

    return triton_drafts


def _of(x: Tensor) -> ModuleType:
    if not x.is_cuda or x.dtype == torch.float64:
        return plain_decode
    from equipoise.kernels import triton_decode

    return triton_decode

"""One decode step over a paged cache in plain torch: the Triton kernels' reference, and the CPU's.

Responses lie in blocks of BLOCK tokens, one pool of blocks per layer, keys and values [blocks, Hk,
BLOCK, D]. A row (a response being decoded) owns blocks for its own tokens; its prompt's tokens lie
once, in the prompt's blocks, for all rows that answer it. Arithmetic is float32 (float64 for
float64), rounded where transformers rounds.
In 8 bits (`fp8`) every key and value has a scale: scales [2, blocks, Hk, BLOCK]. For Triton, values
are then a view of [blocks, Hk, D, BLOCK], because a product takes 8-bit numbers in pairs along what
it sums over, and none of a block may be NaN, also where nothing was stored yet.
Makes a dense copy of the part of the cache that it attends to: right, on any device, and slow.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.kernels import draw as inverse_cdf
from equipoise.kernels import fp8, plain_layers
from equipoise.kernels.draw import SamplingParams
from equipoise.kernels.fp8 import Fp8Rows
from equipoise.kernels.plain_layers import Norm, normed
from equipoise.kernels.uniform import uniforms

BLOCK = 64

Activation = Literal["silu", "gelu_tanh"]


class DecodeRows(NamedTuple):
    """What a decode step knows of its R rows and P prompts; int32.

    Block 0 is given to nobody. A row that only pads the batch has length 0, prompt 0, table[:, 0] =
    0 and is in nobody's `members`: it writes to block 0, sees no prompt, and what comes out of it
    is waste.
    """

    table: Tensor  # [R, most] blocks of the row's own tokens, in order
    length: Tensor  # [R] own tokens in the cache before this step's are written
    prompt: Tensor  # [R] which prompt the row answers
    prompt_table: Tensor  # [P, most_prompt]
    prompt_length: Tensor  # [P]
    members: Tensor  # [P, n] rows that answer each prompt, −1 for none, in any order

    def spread(self, queries: int) -> DecodeRows:
        """A row for each of `queries` [R·width], `width` of a row at consecutive positions; their
        `members` are the numbers of the old rows.
        """
        width = queries // len(self.length)
        table, length, prompt = (x.repeat_interleave(width, 0) for x in self[:3])
        ahead = torch.arange(queries, device=length.device, dtype=torch.int32) % width
        return DecodeRows(table, length + ahead, prompt, *self[3:])


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
    """See the package."""
    rows = rows.spread(len(qkv))
    kv_heads, block = keys.shape[1:3]
    q, k, v = qkv.split((qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads), 1)
    cos, sin = rope[_position(rows)][:, None].chunk(2, -1)
    q, k = (
        _rotated(x if norm is None else normed(x, norm), cos, sin)
        for x, norm in ((q, q_norm), (k, k_norm))
    )
    length = rows.length.long()
    at = rows.table.gather(1, (length // block)[:, None])[:, 0]
    if scales is not None:
        (k, k_scale), (v, v_scale) = fp8.plain_quantize(k), fp8.plain_quantize(v)
        scales[:, at, :, length % block] = torch.stack((k_scale, v_scale), 1)
    for pool, x in ((keys, k), (values, v)):
        fp8.as_bytes(pool)[at, :, length % block] = fp8.as_bytes(x)
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
    """See the package; `splits` changes nothing here."""
    kv_heads, block = keys.shape[1:3]
    width = len(q) // len(rows.length)
    row = torch.arange(len(q), device=q.device)[:, None] // width
    rows = rows.spread(len(q))
    prompt, position = rows.prompt.long(), _position(rows)
    start = rows.prompt_length[prompt, None]  # of a row's own tokens
    is_member = (rows.members[prompt] == row).any(1, keepdim=True)
    in_prompt = torch.arange(rows.prompt_table.shape[1] * block, device=q.device)
    own = torch.arange(rows.table.shape[1] * block, device=q.device)
    at = torch.cat((in_prompt.expand(len(q), -1), start + own), 1)
    visible = torch.cat((is_member & (in_prompt < start), own <= rows.length[:, None]), 1)
    if window is not None:
        visible &= position[:, None] - at < window
    tables = rows.prompt_table[prompt], rows.table
    k, v = (
        torch.cat([_gathered(pool, t) for t in tables], 2).to(_wide(q)) for pool in (keys, values)
    )
    if scales is not None:
        k, v = (
            x * torch.cat([_gathered(scale[..., None], t) for t in tables], 2)
            for x, scale in zip((k, v), scales, strict=True)
        )
    # a tail may hold anything, even NaN
    k, v = (x.masked_fill(~visible[:, None, :, None], 0.0) for x in (k, v))
    s = torch.einsum("rkhd,rktd->rkht", q.to(_wide(q)).unflatten(1, (kv_heads, -1)), k) * scale
    s = _capped(s, softcap).masked_fill(~visible[:, None, None], -torch.inf)
    return torch.einsum("rkht,rktd->rkhd", s.softmax(-1), v).flatten(1, 2).to(q.dtype)


def add_norm(x: Tensor | None, residual: Tensor, norm: Norm) -> Tensor:
    """See the package."""
    if x is not None:
        residual += x
    return normed(residual, norm)


def add_norm_fp8(x: Tensor | None, residual: Tensor, norm: Norm) -> Fp8Rows:
    """See the package."""
    return fp8.plain_quantize(add_norm(x, residual, norm))


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """See the package."""
    return plain_layers.gated(gate_up, activation, rounds=True)


def gated_fp8(gate_up: Tensor, activation: Activation) -> Fp8Rows:
    """See the package."""
    return fp8.plain_quantize(gated(gate_up, activation))


def draw(
    logits: Tensor, u: Tensor, temperature: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """See the package."""
    drawn = inverse_cdf.draw(
        _capped(logits.float(), softcap), u, SamplingParams(temperature=temperature)
    )
    return drawn.tokens, drawn.logprobs


def list_kept(kept: Tensor, begin: Tensor, ids: Tensor) -> None:
    """See the package."""
    row, column = kept.nonzero().unbind(1)
    place = begin[row] + kept.cumsum(1)[row, column] - 1
    fits = place < len(ids)
    ids[place[fits]] = column[fits].to(torch.int32)


def uniform(keys: Tensor, position: Tensor) -> Tensor:
    """See the package."""
    return uniforms(keys, position.long()[:, None])[:, 0]


def _position(rows: DecodeRows) -> Tensor:
    return (rows.prompt_length[rows.prompt.long()] + rows.length).long()


def _gathered(pool: Tensor, table: Tensor) -> Tensor:
    """[blocks, Hk, BLOCK, D] by [R, m] → [R, Hk, m·BLOCK, D]"""
    return fp8.as_bytes(pool)[table.long()].view(pool.dtype).transpose(1, 2).flatten(2, 3)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each product is rounded, and their sum; cos and sin are as exact as the table."""
    x1, x2 = x.to(_wide(x)).chunk(2, -1)
    products = (p.to(x.dtype) for p in (x1 * cos, x2 * sin, x2 * cos, x1 * sin))
    first, less, second, more = products
    return torch.cat((first - less, second + more), -1)


def _capped(x: Tensor, softcap: float | None) -> Tensor:
    return x if softcap is None else softcap * torch.tanh(x / softcap)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)

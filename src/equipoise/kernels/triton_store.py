"""Norm and rotate a decode step's queries and keys, and write keys and values to the paged cache, in
Triton: `plain_decode.store`, in 8 bits too.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from equipoise.kernels.plain_decode import DecodeRows
from equipoise.kernels.plain_layers import Norm
from equipoise.kernels.triton_draw import check_contiguous
from equipoise.kernels.triton_fp8 import in_scale, scale_of

HEADS = 16  # of a program


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
    (queries, heads, D), (_, kv_heads, block, _) = qkv.shape, keys.shape
    check_heads(D)
    check_contiguous(qkv, rope, *rows, *in_memory(keys, values, scales))
    H = heads - 2 * kv_heads
    q = qkv.new_empty(queries, H, D)
    _store[(queries, triton.cdiv(heads, HEADS))](
        qkv,
        keys,
        values,
        *(None, None) if scales is None else scales,
        q,
        rows.table,
        rows.length,
        rows.prompt,
        rows.prompt_length,
        rope,
        *(None, 0.0, 0.0) if q_norm is None else q_norm,
        *(None, 0.0, 0.0) if k_norm is None else k_norm,
        rows.table.shape[1],
        H,
        WIDTH=queries // len(rows.length),
        KV_HEADS=kv_heads,
        D=D,
        BLOCK=block,
        HEADS=HEADS,
        num_warps=4,
    )
    return q


def in_memory(keys: Tensor, values: Tensor, scales: Tensor | None) -> tuple[Tensor, ...]:
    """The cache as it must lie; see `plain_decode`."""
    return (keys, values) if scales is None else (keys, values.transpose(2, 3), *scales)


def check_heads(D: int) -> None:
    if D not in (16, 32, 64, 128, 256):
        raise ValueError(
            f"heads of {D} must be a power of two from 16 to 256 for these kernels; use the native sampler"
        )


@triton.jit(do_not_specialize=["most"])
def _store(
    qkv: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    q: tl.tensor,
    table: tl.tensor,
    length: tl.tensor,
    prompt: tl.tensor,
    prompt_length: tl.tensor,
    rope: tl.tensor,
    q_weight: tl.tensor,
    q_eps: tl.tensor,
    q_offset: tl.tensor,
    k_weight: tl.tensor,
    k_eps: tl.tensor,
    k_offset: tl.tensor,
    most: tl.tensor,
    H: tl.tensor,
    WIDTH: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
) -> None:
    query = tl.program_id(0)
    row = query // WIDTH
    HALF: tl.constexpr = D // 2
    dtype: tl.constexpr = q.dtype.element_ty
    heads = H + 2 * KV_HEADS
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    half = tl.arange(0, HALF)[None, :]
    n = tl.load(length + row) + query % WIDTH
    position = (tl.load(prompt_length + tl.load(prompt + row)) + n).to(tl.int64)
    block = tl.load(table + row * most + n // BLOCK).to(tl.int64)
    cos = tl.load(rope + position * D + half)
    sin = tl.load(rope + position * D + HALF + half)
    source = qkv + (query.to(tl.int64) * heads + head) * D + half
    is_query, is_key = head < H, (head >= H) & (head < H + KV_HEADS)
    x1 = tl.load(source, mask=head < heads, other=0.0).to(tl.float32)
    x2 = tl.load(source + HALF, mask=head < heads, other=0.0).to(tl.float32)
    y1, y2 = x1, x2
    if q_weight is not None:
        y1, y2 = _normed_halves(y1, y2, is_query, q_weight, q_eps, q_offset, D, dtype)
    if k_weight is not None:
        y1, y2 = _normed_halves(y1, y2, is_key, k_weight, k_eps, k_offset, D, dtype)
    z1 = (_rounded(y1 * cos, dtype) - _rounded(y2 * sin, dtype)).to(dtype)
    z2 = (_rounded(y2 * cos, dtype) + _rounded(y1 * sin, dtype)).to(dtype)
    to_q = q + (query.to(tl.int64) * H + head) * D + half
    tl.store(to_q, z1, mask=is_query)
    tl.store(to_q + HALF, z2, mask=is_query)
    is_value = (head >= H + KV_HEADS) & (head < heads)
    slot = n % BLOCK
    key_block = (block * KV_HEADS + head - H) * BLOCK
    value_block = key_block - KV_HEADS * BLOCK
    to_key = keys + (key_block + slot) * D + half
    to_value, second = values + (value_block + slot) * D + half, HALF
    y1, y2 = tl.where(is_key, z1, x1.to(dtype)), tl.where(is_key, z2, x2.to(dtype))
    if key_scales is not None:
        y1, y2 = y1.to(tl.float32), y2.to(tl.float32)
        own = scale_of(tl.maximum(tl.max(tl.abs(y1), 1), tl.max(tl.abs(y2), 1)))[:, None]
        tl.store(key_scales + key_block + slot, own, mask=is_key)
        tl.store(value_scales + value_block + slot, own, mask=is_value)
        y1, y2 = in_scale(y1, own), in_scale(y2, own)
        to_value, second = values + value_block * D + half * BLOCK + slot, HALF * BLOCK
    k1, k2, v1, v2 = y1, y2, y1, y2
    if key_scales is not None:
        # Rounded apart: of four 8-bit numbers that are stored as one word and also byte by byte,
        # ptxas 12.8 takes the second byte from another register.
        k1, k2 = tl.where(is_key, y1, 0.0), tl.where(is_key, y2, 0.0)
        v1, v2 = tl.where(is_value, y1, 0.0), tl.where(is_value, y2, 0.0)
    stored: tl.constexpr = keys.dtype.element_ty
    tl.store(to_key, k1.to(stored), mask=is_key)
    tl.store(to_key + HALF, k2.to(stored), mask=is_key)
    tl.store(to_value, v1.to(stored), mask=is_value)
    tl.store(to_value + second, v2.to(stored), mask=is_value)


@triton.jit
def _normed_halves(
    x1: tl.tensor,
    x2: tl.tensor,
    which: tl.tensor,
    weight: tl.tensor,
    eps: tl.tensor,
    offset: tl.tensor,
    D: tl.constexpr,
    dtype: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """The heads `which` normed, the others as they were."""
    half = tl.arange(0, D // 2)[None, :]
    scale = tl.rsqrt((tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1)) / D + eps)[:, None]
    w1, w2 = tl.load(weight + half).to(tl.float32), tl.load(weight + D // 2 + half).to(tl.float32)
    y1, y2 = _weighted(x1 * scale, w1, offset, dtype), _weighted(x2 * scale, w2, offset, dtype)
    return tl.where(which, y1, x1), tl.where(which, y2, x2)


@triton.jit
def _weighted(
    unit: tl.tensor,
    weight: tl.tensor,
    offset: tl.tensor,
    dtype: tl.constexpr,
) -> tl.tensor:
    """unit·(offset + weight), rounded as `Norm` says."""
    rounded = tl.where(offset == 0, _rounded(unit, dtype), unit)
    return _rounded(rounded * (offset + weight), dtype)


@triton.jit
def _rounded(x: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    return x.to(dtype).to(tl.float32)

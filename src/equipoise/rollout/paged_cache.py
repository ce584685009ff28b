"""The paged sampler's cache: keys and values in blocks, as the model has them or in 8 bits, and the
memory they lie in. Which block is whose is the scheduler's affair (blocks.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.kernels import fp8
from equipoise.kernels.decode import BLOCK
from equipoise.kernels.fp8 import Precision
from equipoise.policy import Policy
from equipoise.policy.memory import fits_beside_reserve


class Cache(NamedTuple):
    """Keys and values [layers, blocks, Hk, BLOCK, D]; in 8 bits with scales
    [layers, 2, blocks, Hk, BLOCK], and laid out as `plain_decode` says. A layer's: without `layers`.
    """

    keys: Tensor
    values: Tensor
    scales: Tensor | None

    def of_layer(self, index: int) -> Cache:
        scales = None if self.scales is None else self.scales[index]
        return Cache(self.keys[index], self.values[index], scales)

    def write(self, at: Tensor, k: Tensor, v: Tensor) -> None:
        """Keys and values [U, Hk, D] into a layer's places (block·Hk + head)·BLOCK + slot [U·Hk]."""
        for i, (pool, x) in enumerate(((self.keys, k), (self.values, v))):
            block, D = pool.shape[-2:]
            entries = x.contiguous().view(-1, D)  # a slice of the projection's output
            if self.scales is None:
                pool.view(-1, D).index_copy_(0, at, entries)
                continue
            rows = fp8.quantize(entries)
            self.scales[i].view(-1).index_copy_(0, at, rows.scale)
            places = fp8.as_bytes(pool).flatten(0, 1)
            places[at // block, at % block] = fp8.as_bytes(rows.entries)

    @property
    def addresses(self) -> tuple[int, ...]:
        return tuple(t.data_ptr() for t in self if t is not None)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self if t is not None)


def cache_shape(policy: Policy, blocks: int) -> torch.Size:
    config, attn = policy.core.config, policy.core.model.layers[0].self_attn
    return torch.Size(
        (config.num_hidden_layers, 2, blocks, config.num_key_value_heads, BLOCK, attn.head_dim)
    )


def cache_bytes(policy: Policy, blocks: int, dtype: Precision) -> int:
    shape = cache_shape(policy, blocks)
    if dtype == "auto":
        return shape.numel() * policy.dtype.itemsize
    return shape.numel() + 4 * shape[:-1].numel()  # a byte each, and the scales


def reserve(policy: Policy, blocks: int, dtype: Precision = "auto") -> tuple[Any, Cache]:
    """The cache, and on CUDA the arena it lies in, which gives its memory back to the device when
    it is dropped: what training allocates meanwhile must not break up the room for the next cache.
    """
    device = policy.device
    if device.type != "cuda":
        return None, _empty(policy, blocks, dtype)
    # An arena that is short of memory does not take back what torch keeps in reserve outside of it.
    if not fits_beside_reserve(device, cache_bytes(policy, blocks, dtype)):
        torch.cuda.empty_cache()
    arena = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(arena):
        return arena, _empty(policy, blocks, dtype)


def _empty(policy: Policy, blocks: int, dtype: Precision) -> Cache:
    """Waste goes to block 0, and drafts behind a limit are read from there, with weight 0: it holds
    numbers from the start, so that no NaN comes of it.
    """
    shape, device = cache_shape(policy, blocks), policy.device
    pool = torch.empty(shape, dtype=policy.dtype if dtype == "auto" else fp8.FP8, device=device)
    fp8.as_bytes(pool)[:, :, 0] = 0
    keys, values = pool.unbind(1)
    if dtype == "auto":
        return Cache(keys, values, None)
    fp8.as_bytes(values).zero_()  # no NaN: see `plain_decode`
    *_, block, D = shape
    across = values.flatten(3).unflatten(3, (D, block)).transpose(3, 4)
    scales = torch.empty(shape[:-1], dtype=torch.float32, device=device)
    scales[:, :, 0] = 0
    return Cache(keys, across, scales)

"""Uniform numbers from counters instead of generators: the same (seed, step, prompt, sample,
position) gives the same number wherever and in whatever batch it is asked for. The mixing function
is the finaliser of splitmix64 (Steele,
Lea & Flood 2014), in 64-bit integers that wrap; it is not a cryptographic one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

Key = int | str  # what names a prompt


def _signed(x: int) -> int:
    return (x + (1 << 63)) % (1 << 64) - (1 << 63)


GAMMA = _signed(0x9E3779B97F4A7C15)
FIRST = _signed(0xBF58476D1CE4E5B9)
SECOND = _signed(0x94D049BB133111EB)


def response_keys(seed: int, step: int, keys: Sequence[Key], samples: Tensor) -> Tensor:
    """A key per response [R] int64: `keys` [R] of its prompt, `samples` [R] its number there."""
    named = torch.tensor([_number(k) for k in keys], dtype=torch.int64, device=samples.device)
    h = torch.full_like(named, _signed(seed))
    for part in (torch.full_like(named, _signed(step)), named, samples):
        h = _mix(h + GAMMA) ^ part
    return _mix(h + GAMMA)


def uniforms(keys: Tensor, positions: Tensor) -> Tensor:
    """Uniform on {0, 1, …, 2²⁴−1}/2²⁴, float32, for `keys` [R] and `positions` [T] → [R, T]."""
    h = _mix(keys[:, None] + GAMMA * (positions + 1))
    return _shift(h, 40).float() * 2.0**-24


def _number(key: Key) -> int:
    if isinstance(key, str):
        return int.from_bytes(
            hashlib.blake2b(key.encode(), digest_size=8).digest(), "little", signed=True
        )
    return _signed(key)


def _shift(x: Tensor, by: int) -> Tensor:
    """Logical shift right; torch's >> keeps the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * FIRST
    x = (x ^ _shift(x, 27)) * SECOND
    return x ^ _shift(x, 31)

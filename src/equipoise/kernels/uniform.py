"""Uniform numbers from counters instead of generators: the same (seed, step, prompt, sample,
position) gives the same number wherever and in whatever batch it is asked for. The mixing function
is `splitmix.mix_signed`, which is not a cryptographic one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise import splitmix
from equipoise.splitmix import mix_signed, shifted, signed

Key = int | str  # what names a prompt
GAMMA = signed(int(splitmix.GAMMA))


def response_keys(seed: int, step: int, keys: Sequence[Key], samples: Tensor) -> Tensor:
    """A key per response [R] int64: `keys` [R] of its prompt, `samples` [R] its number there."""
    named = torch.tensor([_number(k) for k in keys], dtype=torch.int64, device=samples.device)
    h = torch.full_like(named, signed(seed))
    for part in (torch.full_like(named, signed(step)), named, samples):
        h = mix_signed(h + GAMMA) ^ part
    return mix_signed(h + GAMMA)


def uniforms(keys: Tensor, positions: Tensor) -> Tensor:
    """Uniform on {0, 1, …, 2²⁴−1}/2²⁴, float32, for `keys` [R] and `positions` [T] → [R, T]."""
    h = mix_signed(keys[:, None] + GAMMA * (positions + 1))
    return shifted(h, 40).float() * 2.0**-24


def _number(key: Key) -> int:
    if isinstance(key, str):
        return int.from_bytes(
            hashlib.blake2b(key.encode(), digest_size=8).digest(), "little", signed=True
        )
    return signed(key)

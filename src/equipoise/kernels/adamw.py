"""AdamW's moments of a matrix in 8 bits, and a step in plain torch, `triton_adamw`'s reference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 256  # entries of a row that share a scale
EPS = 1e-8
# A moment is scale · (k/n)^power, k = 0 … n: near 0, where most entries of a block are, the steps
# are small. √v has the same power as m, because m/√v is what counts.
M_LEVELS, M_ROOTS = 127, 2  # power 2^roots: m = scale · (k/127)⁴, with a sign
V_LEVELS, V_ROOTS = 255, 3  # v = scale · (k/255)⁸
# of the dither along a block; any irrationals will do
M_STRIDE, V_STRIDE = 0.7548776662466927, 0.5698402909980532
# entries worked on at once in plain torch: what lies between the lines of a step is small
CHUNK = 1 << 20


class Rates(NamedTuple):
    """Of step t: p ← (1 − decay) p − step · m / (√v / root + ε), bias corrections included."""

    beta1: float
    beta2: float
    decay: float  # lr · weight_decay
    step: float  # lr / (1 − β₁ᵗ)
    root: float  # √(1 − β₂ᵗ)
    m_phase: float
    v_phase: float


def rates(lr: float, betas: tuple[float, float], weight_decay: float, t: int) -> Rates:
    # Multiples of irrational numbers fill [0, 1) evenly: see `encode`.
    phases = t * (math.sqrt(5) - 1) / 2 % 1, t * (math.sqrt(2) - 1) % 1
    return Rates(
        *betas, lr * weight_decay, lr / (1 - betas[0] ** t), math.sqrt(1 - betas[1] ** t), *phases
    )


@dataclass
class Coded:
    """Moments of a matrix [r, c] in 8 bits: codes [r, c], and scales [r, ⌈c/BLOCK⌉] in float32.

    Blocks end with the row, so that a shard of rows holds a shard of blocks.
    """

    m: Tensor
    v: Tensor
    m_scale: Tensor
    v_scale: Tensor

    @classmethod
    def zeros(cls, like: Tensor) -> Coded:
        rows, columns = like.flatten(1).shape
        codes = torch.zeros(rows, columns, dtype=torch.int8, device=like.device)
        scales = torch.zeros(rows, -(-columns // BLOCK), device=like.device)
        return cls(codes, codes.to(torch.uint8), scales, scales.clone())


def coded_step(
    weight: Tensor,
    master: Tensor,
    gradient: Tensor,
    moments: Coded,
    now: Rates,
    skipped: Tensor | None = None,
) -> None:
    """One step of AdamW in place with 8-bit moments, used before they are rounded.

    `weight` is the master or its rounded copy. Nothing is done where `skipped`, a number on the
    weights' device, is not 0.
    """
    if skipped is not None and bool(skipped):
        return
    columns = torch.arange(BLOCK, device=master.device)
    dither = [
        (columns * a + phase) % 1 for a, phase in ((M_STRIDE, now.m_phase), (V_STRIDE, now.v_phase))
    ]
    for p, g, m8, v8, m_scale, v_scale in _blocks(master, gradient, moments):
        m = decode(m8, m_scale, M_LEVELS, M_ROOTS).lerp_(g, 1 - now.beta1)
        v = (
            decode(v8, v_scale, V_LEVELS, V_ROOTS)
            .mul_(now.beta2)
            .addcmul_(g, g, value=1 - now.beta2)
        )
        p.mul_(1 - now.decay).addcdiv_(m, v.sqrt().div_(now.root).add_(EPS), value=-now.step)
        encode(m, m8, m_scale, M_LEVELS, M_ROOTS, dither[0])
        encode(v, v8, v_scale, V_LEVELS, V_ROOTS, dither[1])
    if weight is not master:
        weight.copy_(master)


def decode(codes: Tensor, scale: Tensor, levels: int, roots: int) -> Tensor:
    x = codes.float().mul_(1 / levels)
    sign = x.sign()
    for _ in range(roots):
        x.square_()
    return x.mul_(sign).mul_(scale[..., None])


def encode(
    x: Tensor, codes: Tensor, scale: Tensor, levels: int, roots: int, dither: Tensor
) -> None:
    """Write x [..., w] as codes and scale [...].

    Of the two levels around an entry the upper one is taken where its share of the way exceeds the
    dither, a number that over the steps is as often below any bound as a random one would be: on
    average nothing is lost. (Rounding to the nearest would stop a moment that changes by less than
    half a level in a step.) An entry that is not 0 keeps at least level 1 in v, where 0 would
    divide by ε.
    """
    scale.copy_(x.abs().amax(-1))
    share = x.abs().div_(scale.clamp_min(torch.finfo(torch.float32).tiny)[..., None])
    k = share
    for _ in range(roots):
        k = k.sqrt()
    k = k.mul_(levels).floor_()
    below, above = k * (1 / levels), (k + 1) * (1 / levels)
    for _ in range(roots):
        below.square_()
        above.square_()
    up = share - below > dither[: x.shape[-1]] * above.sub_(below)
    if codes.dtype == torch.uint8:
        up |= (k == 0) & (share > 0)
    codes.copy_((k + up).mul_(x.sign()))


def _blocks(master: Tensor, gradient: Tensor, moments: Coded) -> Iterator[list[Tensor]]:
    """Views of p, g, m, v [r, b, w] and their scales [r, b]: whole blocks, then each row's rest."""
    wide = [t.flatten(1) for t in (master.detach(), gradient, moments.m, moments.v)]
    columns = wide[0].shape[1]
    whole = columns // BLOCK
    height = max(1, CHUNK // columns)
    for top in range(0, len(master), height):
        at = slice(top, top + height)
        if whole:
            yield [
                *(t[at, : whole * BLOCK].unflatten(1, (whole, BLOCK)) for t in wide),
                moments.m_scale[at, :whole],
                moments.v_scale[at, :whole],
            ]
        if columns % BLOCK:
            yield [
                *(t[at, whole * BLOCK :].unsqueeze(1) for t in wide),
                moments.m_scale[at, whole:],
                moments.v_scale[at, whole:],
            ]

"""What is done to a chunk of logits, in plain torch: the reference of the Triton passes, and the passes of the CPU.

log π = log softmax(x), x = cap(raw)/temperature, cap(r) = softcap·tanh(r/softcap), raw the head's outputs. A chunk has
z = raw − shift, a shift for each token: near the top of its distribution, where they count, logits are then small
numbers, and half precision rounds them by little. Each pass makes two or three wide copies of the chunk; the Triton
ones none.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.policy.kernels.pull import Pull, slopes


class Softmax(NamedTuple):
    temperature: float
    softcap: float | None


class Chunk(NamedTuple):
    """Tokens are columns: the shift is then a bias of the matrix product, which costs nothing."""

    z: Tensor  # [V, n] raw logits less the shift (and less the head's bias)
    shift: Tensor  # [n] wide
    bias: Tensor | None  # [V] the head's
    targets: Tensor  # [n]
    own: Tensor  # [n] wide: the targets' raw logits, not rounded
    softmax: Softmax


def target_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, out: Tensor) -> None:
    """Write the raw logit of each target into out [n], in its precision."""
    torch.sum(hidden.to(out.dtype) * weight[targets].to(out.dtype), 1, out=out)
    if bias is not None:
        out += bias[targets]


def statistics(chunk: Chunk, logprobs: Tensor, entropy: Tensor, lse: Tensor) -> None:
    """Write log π(target), the entropy and log Σ exp x of every token into logprobs, entropy, lse [n]."""
    y, _ = _exponents(chunk)
    own, base = _capped(chunk.own, chunk.softmax)[0], _base(chunk)
    total = y.logsumexp(0)
    logprobs.copy_(own - base - total)
    logp = y.sub_(total)
    # A masked logit of −∞ has probability 0 and adds 0, not 0·∞.
    entropy.copy_(-(logp.exp() * logp.clamp_min(torch.finfo(logp.dtype).min)).sum(0))
    lse.copy_(base + total)


def gradient_(chunk: Chunk, lse: Tensor, entropy: Tensor, g: Tensor | None, h: Tensor | None) -> None:
    """Overwrite z with Σ ∂/∂z of g·log π(target) + h·entropy; a token where both are 0 gets 0, whatever it held."""
    y, slope = _exponents(chunk)
    logp = y.sub_(lse - _base(chunk)).clamp_min_(torch.finfo(y.dtype).min)
    p = logp.exp()
    # ∂ log p_y/∂x = 1_y − p;  ∂H/∂x = −p (log p + H)
    d = torch.zeros_like(p)
    alive = torch.zeros_like(lse, dtype=torch.bool)
    if h is not None:
        d -= p * (logp + entropy) * h
        alive |= h != 0
    if g is not None:
        d -= p * g
        d.scatter_add_(0, chunk.targets[None], g[None])
        alive |= g != 0
    chunk.z.copy_(torch.where(alive, d * slope / chunk.softmax.temperature, 0.0))


def loss_gradient_(chunk: Chunk, pull: Pull, logprobs: Tensor, entropy: Tensor) -> Tensor | None:
    """Overwrite z with the gradient of the loss that pulls; write log π(target) and the entropy of every token.

    A pass may return a factor [n] that the columns of z still lack.
    """
    lse = torch.empty_like(logprobs)
    statistics(chunk, logprobs, entropy, lse)
    gradient_(chunk, lse, entropy, *slopes(pull, logprobs, entropy))
    return None


def scale_rows(x: Tensor, factor: Tensor, out: Tensor) -> None:
    """out = x·factor, x [n, d], factor [n]; 0 where the factor is, whatever x holds. `out` may be x."""
    torch.mul(x, factor[:, None], out=out)
    out[factor == 0] = 0.0


def _capped(raw: Tensor, softmax: Softmax) -> tuple[Tensor, Tensor | float]:
    """x, and cap′(raw)."""
    if softmax.softcap is None:
        return raw / softmax.temperature, 1.0
    t = torch.tanh(raw / softmax.softcap)
    return softmax.softcap / softmax.temperature * t, 1 - t * t


def _base(chunk: Chunk) -> Tensor:
    """x of a raw logit that equals the shift."""
    return _capped(chunk.shift, chunk.softmax)[0]


def _exponents(chunk: Chunk) -> tuple[Tensor, Tensor | float]:
    """x less its base, a new tensor, and cap′."""
    z = chunk.z.to(chunk.shift.dtype, copy=True)
    if chunk.bias is not None:
        z += chunk.bias[:, None]
    if chunk.softmax.softcap is None:
        return z.div_(chunk.softmax.temperature), 1.0
    x, slope = _capped(z.add_(chunk.shift), chunk.softmax)
    return x.sub_(_base(chunk)), slope

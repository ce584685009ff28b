"""What is done to a chunk of logits, in plain torch: the Triton passes' reference, and the CPU's.

log π = log softmax(x), x = cap(raw)/temperature, cap(r) = softcap·tanh(r/softcap), raw the head's
outputs. Logits are counted from a shift, one for each token: near the top of its distribution,
where they count, they are then small numbers, and half precision rounds them by little. Each pass
makes two or three wide copies of the chunk; the Triton ones none.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.kernels.token_terms import Pull, slopes

ALIGNED = 8  # a buffer has room for rows of a multiple of so many columns


class Softmax(NamedTuple):
    temperature: float
    softcap: float | None


class Chunk(NamedTuple):
    hidden: Tensor  # [n, d]
    weight: Tensor  # [V, d] the head's
    bias: Tensor | None  # [V] the head's
    targets: Tensor  # [n]
    own: Tensor  # [n] wide: the targets' raw logits, not rounded
    shift: Tensor  # [n] wide
    softmax: Softmax
    z: Tensor  # [n, V] room for logits and what becomes of them


def target_logits(chunk: Chunk, guess: Tensor | None) -> None:
    """Write the raw logit of each target into `own`, and what it exceeds `guess` by,
    in the hidden states' precision, into `shift`.
    """
    x, w, own = chunk.hidden, chunk.weight[chunk.targets], chunk.own
    torch.sum(x.to(own.dtype) * w.to(own.dtype), 1, out=own)
    if chunk.bias is not None:
        own += chunk.bias[chunk.targets]
    chunk.shift.copy_((own if guess is None else own - guess).to(x.dtype))


def room(buffer: Tensor, n: int, V: int) -> Tensor:
    """Room for the logits of n tokens [n, V]. Tokens lie in columns: the shift is then a bias of
    the matrix product, which is added before it is rounded.
    """
    return buffer[: V * n].view(V, n).t()


def make_logits(chunk: Chunk) -> None:
    """z = raw less the shift (and less the head's bias)."""
    torch.addmm(-chunk.shift.to(chunk.z.dtype), chunk.weight, chunk.hidden.t(), out=chunk.z.t())


def statistics(chunk: Chunk, logprobs: Tensor, entropy: Tensor, lse: Tensor) -> None:
    """Write log π(target), the entropy and log Σ exp x of each token into its buffer [n]."""
    make_logits(chunk)
    _statistics(chunk, logprobs, entropy, lse)


def gradient_(
    chunk: Chunk, lse: Tensor, entropy: Tensor, g: Tensor | None, h: Tensor | None
) -> None:
    """Make z Σ ∂/∂raw of g·log π(target) + h·entropy; 0 where g and h are, whatever z held."""
    make_logits(chunk)
    _gradient(chunk, lse, entropy, g, h)


def loss_gradient_(chunk: Chunk, pull: Pull, logprobs: Tensor, entropy: Tensor) -> Tensor | None:
    """Make z the loss's gradient; write log π(target) and the entropy of every token.

    A pass may return a factor [n] that the rows of z still lack.
    """
    lse = torch.empty_like(logprobs)
    statistics(chunk, logprobs, entropy, lse)
    _gradient(chunk, lse, entropy, *slopes(pull, logprobs, entropy))
    return None


def scale_rows(x: Tensor, factor: Tensor, out: Tensor) -> None:
    """out = x·factor, x [n, d], factor [n]; 0 where the factor is. `out` may be x."""
    torch.mul(x, factor[:, None], out=out)
    out[factor == 0] = 0.0


def _statistics(chunk: Chunk, logprobs: Tensor, entropy: Tensor, lse: Tensor) -> None:
    y, _ = _exponents(chunk)
    own, base = _capped(chunk.own, chunk.softmax)[0], _base(chunk)
    total = y.logsumexp(1)
    logprobs.copy_(own - base - total)
    logp = y.sub_(total[:, None])
    # A masked logit of −∞ has probability 0 and adds 0, not 0·∞.
    entropy.copy_(-(logp.exp() * logp.clamp_min(torch.finfo(logp.dtype).min)).sum(1))
    lse.copy_(base + total)


def _gradient(
    chunk: Chunk, lse: Tensor, entropy: Tensor, g: Tensor | None, h: Tensor | None
) -> None:
    y, slope = _exponents(chunk)
    logp = y.sub_((lse - _base(chunk))[:, None]).clamp_min_(torch.finfo(y.dtype).min)
    p = logp.exp()
    # ∂ log p_y/∂x = 1_y − p;  ∂H/∂x = −p (log p + H)
    d = torch.zeros_like(p)
    alive = torch.zeros_like(lse, dtype=torch.bool)
    if h is not None:
        d -= p * (logp + entropy[:, None]) * h[:, None]
        alive |= h != 0
    if g is not None:
        d -= p * g[:, None]
        d.scatter_add_(1, chunk.targets[:, None], g[:, None])
        alive |= g != 0
    chunk.z.copy_(torch.where(alive[:, None], d * slope / chunk.softmax.temperature, 0.0))


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
        z += chunk.bias
    if chunk.softmax.softcap is None:
        return z.div_(chunk.softmax.temperature), 1.0
    x, slope = _capped(z.add_(chunk.shift[:, None]), chunk.softmax)
    return x.sub_(_base(chunk)[:, None]), slope

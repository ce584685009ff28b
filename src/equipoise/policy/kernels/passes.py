"""What is done to a chunk of logits, in plain torch: the reference of the Triton passes, and the passes of the CPU.

z [n, V] are the head's raw outputs. log π = log softmax(x), x = cap(z)/temperature, cap(z) = softcap·tanh(z/softcap).
Each pass makes two or three float32 copies of the chunk; the Triton ones none.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.policy.kernels.pull import Pull, slopes


class Softmax(NamedTuple):
    temperature: float
    softcap: float | None


def statistics(z: Tensor, targets: Tensor, softmax: Softmax, logprobs: Tensor, entropy: Tensor, lse: Tensor) -> None:
    """Write log π(target), the entropy and log Σ exp x of every row into logprobs, entropy, lse [n]."""
    x = _exponents(z, softmax, lse.dtype)[0]
    logp = x.log_softmax(-1)
    logprobs.copy_(logp.gather(1, targets[:, None])[:, 0])
    # A masked logit of −∞ has probability 0 and adds 0, not 0·∞.
    entropy.copy_(-(logp.exp() * logp.clamp_min(torch.finfo(logp.dtype).min)).sum(1))
    lse.copy_(x.logsumexp(-1))


def gradient_(
    z: Tensor, targets: Tensor, softmax: Softmax, lse: Tensor, entropy: Tensor, g: Tensor | None, h: Tensor | None
) -> None:
    """Overwrite z with Σ ∂/∂z of g·log π(target) + h·entropy; a row where both are 0 becomes 0, whatever it held."""
    x, slope = _exponents(z, softmax, lse.dtype)
    logp = (x - lse[:, None]).clamp_min_(torch.finfo(x.dtype).min)
    p = logp.exp()
    # ∂ log p_y/∂x = 1_y − p;  ∂H/∂x = −p (log p + H)
    d = torch.zeros_like(p)
    alive = torch.zeros_like(lse, dtype=torch.bool)
    if h is not None:
        d -= p * (logp + entropy[:, None]) * h[:, None]
        alive |= h != 0
    if g is not None:
        d -= p * g[:, None]
        d.scatter_add_(1, targets[:, None], g[:, None])
        alive |= g != 0
    z.copy_(torch.where(alive[:, None], d * slope / softmax.temperature, 0.0))


def loss_gradient_(z: Tensor, targets: Tensor, softmax: Softmax, pull: Pull, logprobs: Tensor, entropy: Tensor) -> None:
    """Overwrite z with the gradient of the loss that pulls; write log π(target) and the entropy of every row."""
    lse = torch.empty_like(logprobs)
    statistics(z, targets, softmax, logprobs, entropy, lse)
    gradient_(z, targets, softmax, lse, entropy, *slopes(pull, logprobs, entropy))


def _exponents(z: Tensor, softmax: Softmax, dtype: torch.dtype) -> tuple[Tensor, Tensor | float]:
    """x, and cap′(z)."""
    z = z.to(dtype)
    if softmax.softcap is None:
        return z / softmax.temperature, 1.0
    t = torch.tanh(z / softmax.softcap)
    return softmax.softcap / softmax.temperature * t, 1 - t * t

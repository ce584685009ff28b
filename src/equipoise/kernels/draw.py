"""One token from each row of logits by inverse CDF: the first token, in vocabulary order, whose cumulative probability
exceeds the row's uniform number. One uniform a token, so a response's draws do not depend on its neighbours.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.rollout.rollouts import SamplingParams


class Drawn(NamedTuple):
    """tokens [R] int64; logprobs [R] under the distribution drawn from; kept [R, V] bool: its support, None where
    nothing is truncated."""

    tokens: Tensor
    logprobs: Tensor
    kept: Tensor | None = None


def draw(logits: Tensor, u: Tensor, params: SamplingParams) -> Drawn:
    """logits [R, V], u [R] in [0, 1)."""
    z = logits.float()
    if params.temperature == 0:
        tokens = z.argmax(1, keepdim=True)
        logprobs = z.log_softmax(1).gather(1, tokens)[:, 0]
        return Drawn(tokens[:, 0], logprobs)
    if params.temperature != 1:
        z = z / params.temperature
    truncated = truncate(z, params.top_k, params.top_p, params.min_p) if params.truncates else z
    p = truncated.softmax(1)
    cdf = p.cumsum(1)
    # u < 1 in steps of 2⁻²⁴ keeps u·total below total in float32, so the index is always inside the vocabulary.
    tokens = torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True)
    logprobs = p.gather(1, tokens).log_()[:, 0]
    return Drawn(tokens[:, 0], logprobs, truncated > -torch.inf if params.truncates else None)


def truncate(z: Tensor, top_k: int, top_p: float, min_p: float = 0.0) -> Tensor:
    """−∞ outside the top_k largest, then outside the fewest tokens whose mass reaches top_p, then below min_p times the
    largest probability; ties at k and at min_p are kept."""
    if 0 < top_k < z.shape[1]:
        z = z.masked_fill(z < z.topk(top_k, 1).values[:, -1:], -torch.inf)
    if top_p < 1:
        ordered, index = z.sort(1, descending=True)
        p = ordered.softmax(1)
        outside = p.cumsum(1) - p >= top_p
        outside[:, 0] = False
        z = z.masked_fill(torch.zeros_like(outside).scatter_(1, index, outside), -torch.inf)
    if min_p > 0:
        # p < min_p·max p is a difference of logits, whatever was cut before.
        z = z.masked_fill(z < z.amax(1, keepdim=True) + math.log(min_p), -torch.inf)
    return z

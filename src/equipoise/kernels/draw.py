"""One token from each row of logits by inverse CDF: the first token, in vocabulary order, whose
cumulative probability exceeds the row's uniform number. One uniform a token, so a response's draws
do not depend on its neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplingParams:
    """`temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 keep the whole vocabulary;
    `seed` is the seed of the run. They truncate in this order: the `top_k` most likely tokens, of
    those the fewest whose mass reaches `top_p`, of those the ones at least `min_p` times as likely
    as the likeliest.

    A response ends with an end-of-sequence token, after the token that completes one of the `stop`
    strings, after `max_tokens` tokens, or where the model's context ends.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(
                f"temperature = {self.temperature} must be 0 (greedy) or positive and finite"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(
                f"top_p = {self.top_p} must lie in (0, 1]; 1 keeps the whole vocabulary"
            )
        if self.top_k < 0:
            raise ValueError(
                f"top_k = {self.top_k} must not be negative; 0 keeps the whole vocabulary"
            )
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(
                f"min_p = {self.min_p} must lie in [0, 1]; 0 keeps the whole vocabulary"
            )
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens = {self.max_tokens} must be at least 1")
        if isinstance(self.stop, str) or "" in self.stop:
            raise ValueError(f"stop = {self.stop!r} must be a tuple of non-empty strings")

    @property
    def truncates(self) -> bool:
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)


class Drawn(NamedTuple):
    """tokens [R] int64; logprobs [R] under the distribution drawn from; kept [R, V] bool:
    its support, None where nothing is truncated.
    """

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
    # u < 1 in steps of 2⁻²⁴ keeps u·total below total in float32,
    # so the index is always inside the vocabulary.
    tokens = torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True)
    # Logits that are NaN have no place; whoever gets the tokens sees it by their log-probabilities.
    tokens.clamp_(max=z.shape[1] - 1)
    logprobs = p.gather(1, tokens).log_()[:, 0]
    kept = truncated > -torch.inf if params.truncates else None
    return Drawn(tokens[:, 0], logprobs, kept)


def truncate(z: Tensor, top_k: int, top_p: float, min_p: float = 0.0) -> Tensor:
    """−∞ outside the top_k largest, then outside the fewest tokens whose mass reaches top_p, then
    below min_p times the largest probability; ties at k and at min_p are kept.
    """
    if 0 < top_k < z.shape[1]:
        least = z.topk(top_k, 1).values[:, -1:]
        z = z.masked_fill(z < least, -torch.inf)
    if top_p < 1:
        ordered, index = z.sort(1, descending=True)
        p = ordered.softmax(1)
        outside = p.cumsum(1) - p >= top_p
        outside[:, 0] = False
        outside = torch.zeros_like(outside).scatter_(1, index, outside)  # in vocabulary order again
        z = z.masked_fill(outside, -torch.inf)
    if min_p > 0:
        # p < min_p·max p is a difference of logits, whatever was cut before.
        least = z.amax(1, keepdim=True) + math.log(min_p)
        z = z.masked_fill(z < least, -torch.inf)
    return z

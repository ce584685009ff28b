"""What sampling takes and what it gives: parameters in, flat unpadded responses out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from equipoise.policy import support as supports
from equipoise.policy.support import Support

Finish = Literal["stop", "length"]
Key = int | str
Finished = Callable[[list[int], Tensor, Tensor], None]  # rows of k responses, their flat tokens [n], lengths [k]


@dataclass(frozen=True)
class SamplingParams:
    """`temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 keep the whole vocabulary; `seed` is the seed of
    the run. They truncate in this order: the `top_k` most likely tokens, of those the fewest whose mass reaches
    `top_p`, of those the ones at least `min_p` times as likely as the likeliest.

    A response ends with an end-of-sequence token, after the token that completes one of the `stop` strings, after
    `max_tokens` tokens, or where the model's context ends.
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
            raise ValueError(f"temperature = {self.temperature} must be 0 (greedy) or positive and finite")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p = {self.top_p} must lie in (0, 1]; 1 keeps the whole vocabulary")
        if self.top_k < 0:
            raise ValueError(f"top_k = {self.top_k} must not be negative; 0 keeps the whole vocabulary")
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p = {self.min_p} must lie in [0, 1]; 0 keeps the whole vocabulary")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens = {self.max_tokens} must be at least 1")
        if isinstance(self.stop, str) or "" in self.stop:
            raise ValueError(f"stop = {self.stop!r} must be a tuple of non-empty strings")

    @property
    def truncates(self) -> bool:
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)


@dataclass(frozen=True, eq=False)
class Rollouts:
    """B responses with N tokens in all, flat, in the order of the prompts and then of the samples.

    tokens [N] int64, the end-of-sequence token included (it was sampled too).
    logprobs [N] float32: under the distribution that was sampled from (temperature, truncated by top-k, top-p and
    min-p and renormalised), which a trainer takes as old log-probabilities; greedy: at temperature 1.
    lengths [B] int64; prompt [B] int64: row of the prompt in `prompts`; finish: "stop" or "length" for each response.
    support: which tokens each of the N was drawn from; None where nothing was truncated.
    """

    prompts: list[list[int]]
    tokens: Tensor
    logprobs: Tensor
    lengths: Tensor
    prompt: Tensor
    finish: list[Finish]
    support: Support | None = None

    def select(self, rows: Tensor) -> Rollouts:
        """The responses `rows` [b], in that order; `prompts` stays whole, so `prompt` keeps its meaning."""
        rows = rows.to(self.lengths.device)
        starts = (self.lengths.cumsum(0) - self.lengths)[rows]
        lengths = self.lengths[rows]
        shift = starts - (lengths.cumsum(0) - lengths)
        at = torch.arange(int(lengths.sum()), device=rows.device) + shift.repeat_interleave(lengths)
        return Rollouts(
            self.prompts,
            self.tokens[at],
            self.logprobs[at],
            lengths,
            self.prompt[rows],
            [self.finish[i] for i in rows.tolist()],
            None if self.support is None else self.support.select(at),
        )


def concatenate(parts: Sequence[Rollouts]) -> Rollouts:
    """One after the other; the prompts of later parts are numbered on."""
    shifts, prompts = [], []
    for part in parts:
        shifts.append(len(prompts))
        prompts.extend(part.prompts)
    known = [p.support for p in parts if p.support is not None]
    if known and len(known) < len(parts):
        raise ValueError("some of these rollouts are truncated draws and others are not; keep the two apart")
    return Rollouts(
        prompts,
        torch.cat([p.tokens for p in parts]),
        torch.cat([p.logprobs for p in parts]),
        torch.cat([p.lengths for p in parts]),
        torch.cat([p.prompt + shift for p, shift in zip(parts, shifts, strict=True)]),
        [f for p in parts for f in p.finish],
        supports.concatenate(known) if known else None,
    )


class Sampler(Protocol):
    """Samples `n` responses to each prompt (token ids). `keys` name the prompts for seeding: row numbers if not given.

    The draws of a response depend on (params.seed, step, its prompt's key, its number among the n) and the position,
    and on nothing else: not on the other prompts, their order, the batch size or the number of ranks. `finished` hears
    of every response once, soon after its last token and together with others, so that something can be done with it
    meanwhile.
    """

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        *,
        keys: Sequence[Key] | None = None,
        step: int = 0,
        finished: Finished | None = None,
    ) -> Rollouts: ...

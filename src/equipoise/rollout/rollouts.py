"""What sampling gives: flat unpadded responses.
What it takes is `SamplingParams`, beside the draw of one token.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from equipoise.kernels.draw import SamplingParams
from equipoise.kernels.uniform import Key
from equipoise.policy import support as supports
from equipoise.policy.support import Support

Finish = Literal["stop", "length"]
# rows of k responses, their flat tokens [n], lengths [k]
Finished = Callable[[list[int], Tensor, Tensor], None]


class DraftCounts(NamedTuple):
    """What steps with drafts gave, over whole calls: a pass is one row in one step."""

    tokens: int = 0
    passes: int = 0
    tried: int = 0  # drafts
    accepted: int = 0  # of those

    def plus(self, other: DraftCounts) -> DraftCounts:
        return DraftCounts(*(a + b for a, b in zip(self, other, strict=True)))

    def metrics(self) -> dict[str, float]:
        return {
            "rollout/tokens_per_pass": self.tokens / max(self.passes, 1),
            "rollout/drafts_accepted": self.accepted / max(self.tried, 1),
        }


@dataclass(frozen=True, eq=False)
class Rollouts:
    """B responses with N tokens in all, flat, in the order of the prompts and then of the samples.

    tokens [N] int64, the end-of-sequence token included (it was sampled too).
    logprobs [N] float32: under the distribution that was sampled from (temperature, truncated by
    top-k, top-p and min-p and renormalised), which a trainer takes as old log-probabilities;
    greedy: at temperature 1.
    lengths [B] int64; prompt [B] int64: row of the prompt in `prompts`; finish: "stop" or "length"
    for each response. support: which tokens each of the N was drawn from; None where nothing was
    truncated. drafts: of the calls that drew them, responses that were left out later included;
    None where nothing was drafted.
    """

    prompts: list[list[int]]
    tokens: Tensor
    logprobs: Tensor
    lengths: Tensor
    prompt: Tensor
    finish: list[Finish]
    support: Support | None = None
    drafts: DraftCounts | None = None

    def select(self, rows: Tensor) -> Rollouts:
        """The responses `rows` [b], in that order; `prompts` stays whole,
        so `prompt` keeps its meaning.
        """
        finish = [self.finish[i] for i in rows.tolist()]
        size = int(self.lengths.cpu()[rows.cpu()].sum())
        rows = rows.to(self.lengths.device)
        starts = (self.lengths.cumsum(0) - self.lengths)[rows]
        lengths = self.lengths[rows]
        shift = starts - (lengths.cumsum(0) - lengths)
        # With the size known, the host does not wait for the device here.
        at = torch.arange(size, device=rows.device)
        at = at + shift.repeat_interleave(lengths, output_size=size)
        return Rollouts(
            self.prompts,
            self.tokens[at],
            self.logprobs[at],
            lengths,
            self.prompt[rows],
            finish,
            None if self.support is None else self.support.select(at),
            self.drafts,
        )


def concatenate(parts: Sequence[Rollouts]) -> Rollouts:
    """One after the other; the prompts of later parts are numbered on."""
    shifts: list[int] = []
    prompts: list[list[int]] = []
    for part in parts:
        shifts.append(len(prompts))
        prompts.extend(part.prompts)
    known = [p.support for p in parts if p.support is not None]
    if known and len(known) < len(parts):
        raise ValueError(
            "some of these rollouts are truncated draws and others are not; keep the two apart"
        )
    drafts = [p.drafts for p in parts if p.drafts is not None]
    return Rollouts(
        prompts,
        torch.cat([p.tokens for p in parts]),
        torch.cat([p.logprobs for p in parts]),
        torch.cat([p.lengths for p in parts]),
        torch.cat([p.prompt + shift for p, shift in zip(parts, shifts, strict=True)]),
        [f for p in parts for f in p.finish],
        supports.concatenate(known) if known else None,
        functools.reduce(DraftCounts.plus, drafts) if drafts else None,
    )


class Stopped(Exception):
    """Raised by a sampler that was told to stop while it sampled."""


class Sampler(Protocol):
    """Samples `n` responses to each prompt (token ids). `keys` name the prompts for seeding:
    row numbers if not given.

    The draws of a response depend on (params.seed, step, its prompt's key, its number among the n)
    and the position, and on nothing else: not on the other prompts, their order, the batch size or
    the number of ranks. `finished` hears of every response once, soon after its last token and
    together with others, so that something can be done with it meanwhile.
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

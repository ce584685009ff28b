"""A step's training data in micro-batches: so many responses, or tokens, a pass.

`assign` ran on the whole batch, so where the cuts fall changes no number but by rounding. A pass
computes a prompt once for all its responses in there; cuts therefore fall between groups where they
can, and inside a group only where it is too large for one pass, if the objective lets groups be
split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from equipoise import policy as models
from equipoise.objective import response_ids
from equipoise.rollout import Rollouts


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Responses `rows`, tokens `tokens` of the `RankShare` it is cut from; lengths, group [rows]."""

    rollouts: Rollouts
    lengths: Tensor
    group: Tensor
    rows: slice
    tokens: slice

    @cached_property
    def packed(self) -> models.Pack:
        """Made when it is first asked for: a GPU is then at work on the micro-batch before."""
        return models.pack(
            self.rollouts.prompts, self.rollouts.tokens[self.tokens], self.lengths, self.group
        )

    @property
    def support(self) -> models.Support | None:
        """Of truncated draws: what each token was drawn from, and its log-probabilities are over."""
        return None if self.rollouts.support is None else self.rollouts.support.part(self.tokens)


@dataclass(eq=False)
class RankShare:
    """The responses of this rank that are trained on: b of them with n tokens, group by group.

    rows [b]: their rows in the batch; lengths, group [b], prompt_lengths [b] on the CPU; response,
    position, place [n]: each token's row in the batch, its place in the response and its place
    among all tokens of the batch. old, ref [n]: what the loss compares with; says_itself: instead
    of `old`, with what the pass itself says. cut_at: the limit on tokens that `parts` were made for.
    """

    rows: Tensor
    rollouts: Rollouts
    lengths: Tensor
    group: Tensor
    prompt_lengths: Tensor
    response: Tensor
    position: Tensor
    place: Tensor
    old: Tensor
    ref: Tensor | None = None
    says_itself: bool = False
    parts: list[MicroBatch] = field(default_factory=list)
    cut_at: int = -1

    @classmethod
    def of(cls, rollouts: Rollouts, rows: Tensor) -> RankShare:
        chosen = rollouts.select(rows)
        lengths, group = chosen.lengths.cpu(), chosen.prompt.cpu()
        sizes = torch.tensor([len(p) for p in chosen.prompts])
        within = response_ids(chosen.lengths, len(chosen.tokens))
        starts = chosen.lengths.cumsum(0) - chosen.lengths
        position = torch.arange(len(within), device=within.device) - starts[within]
        response = rows.to(within.device)[within]
        place = (rollouts.lengths.cumsum(0) - rollouts.lengths)[response] + position
        return cls(
            rows, chosen, lengths, group, sizes[group], response, position, place, chosen.logprobs
        )

    @property
    def largest_pass(self) -> int:
        """Row entries of the largest micro-batch."""
        return max(len(part.packed.inputs) for part in self.parts)

    def pack_first(self) -> list[models.Pack]:
        """The first micro-batch, packed while a GPU is at work on what comes before it."""
        return [part.packed for part in self.parts[:1]]

    def each(self, logprobs: Callable[[MicroBatch], Tensor]) -> Tensor:
        """[n] of all micro-batches."""
        return torch.cat([self.old[:0], *(logprobs(part) for part in self.parts)])

    def cut(self, responses: int, tokens: int, whole_groups: bool) -> None:
        """Into `parts` of at most `responses` and `tokens` (0: no limit), or of `whole_groups`."""
        self.parts = []
        self.cut_at = tokens
        begin = 0
        first = 0
        if len(self.rows) == 0:
            return
        ends = [
            *cuts(self.group, self.prompt_lengths, self.lengths, responses, tokens, whole_groups),
            len(self.rows),
        ]
        for end in ends:
            rows = slice(begin, end)
            size = int(self.lengths[rows].sum())
            at = slice(first, first + size)
            self.parts.append(
                MicroBatch(self.rollouts, self.lengths[rows], self.group[rows], rows, at)
            )
            begin, first = end, first + size


def cuts(
    group: Tensor,
    prompt_lengths: Tensor,
    lengths: Tensor,
    responses: int,
    tokens: int,
    whole_groups: bool,
) -> list[int]:
    """Where micro-batches begin, but for the first; [b] of responses, group by group.

    By responses alone they are cut after so many, as the responses come. With a limit on tokens
    they are as few as the limits allow, cut between groups where a group fits, and as even as can
    be. What must not be cut and is larger than the limits is a micro-batch of its own.
    """
    if not tokens and not whole_groups:
        return list(range(responses, len(group), responses)) if responses else []
    _, sizes = torch.unique_consecutive(group, return_counts=True)
    groups, at = [], 0
    for size in sizes.tolist():
        prompt, own = int(prompt_lengths[at]), lengths[at : at + size].tolist()
        whole = whole_groups or not (_over(size, responses) or _over(prompt + sum(own), tokens))
        groups.append((prompt, [(size, sum(own))] if whole else [(1, n) for n in own]))
        at += size
    found = _filled(groups, responses, tokens, whole_groups)
    low, high = 1, tokens
    while low < high:
        middle = (low + high) // 2
        tried = _filled(groups, responses, middle, whole_groups)
        if len(tried) <= len(found):
            high, found = middle, tried
        else:
            low = middle + 1
    return found


def _filled(
    groups: list[tuple[int, list[tuple[int, int]]]], responses: int, tokens: int, whole_groups: bool
) -> list[int]:
    """The cuts of filling one micro-batch after the other with what comes: of each group its
    prompt's length and its pieces, which are not cut, as (responses, tokens).
    """
    out: list[int] = []
    # the response that comes next; responses and tokens of the micro-batch being filled
    at = held = filled = 0
    for prompt, pieces in groups:
        to_pay = prompt  # once in a micro-batch
        for count, n in pieces:
            enough = held >= responses > 0 if whole_groups else _over(held + count, responses)
            if held and (enough or _over(filled + to_pay + n, tokens)):
                out.append(at)
                held, filled, to_pay = 0, 0, prompt
            at = at + count
            held = held + count
            filled = filled + to_pay + n
            to_pay = 0
    return out


def _over(amount: int, limit: int) -> bool:
    return 0 < limit < amount

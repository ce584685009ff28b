"""A step's training data cut into micro-batches: so many responses, or so many tokens, per forward and backward pass.

`assign` ran on the whole batch, so where the cuts fall changes no number but by rounding. A pass computes a prompt once
for all its responses in there; cuts therefore fall between groups where they can, and inside a group only where it is
too large for one pass, if the objective lets groups be split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise import policy as models
from equipoise.objective import response_ids
from equipoise.rollout import Rollouts


class MicroBatch(NamedTuple):
    """Responses `rows`, tokens `tokens` of the `Share` it is cut from."""

    packed: models.Pack
    rows: slice
    tokens: slice


@dataclass(eq=False)
class Share:
    """The responses of this rank that are trained on: b of them with n tokens, group by group.

    rows [b]: their rows in the batch; lengths, group [b], prompt_lengths [b] on the CPU; response, position [n]: each
    token's row in the batch and its place in the response. old, ref [n]: what the loss compares with.
    """

    rows: Tensor
    rollouts: Rollouts
    lengths: Tensor
    group: Tensor
    prompt_lengths: Tensor
    response: Tensor
    position: Tensor
    old: Tensor
    ref: Tensor | None = None
    parts: list[MicroBatch] = field(default_factory=list)

    @classmethod
    def of(cls, rollouts: Rollouts, rows: Tensor) -> Share:
        chosen = rollouts.select(rows)
        lengths, group = chosen.lengths.cpu(), chosen.prompt.cpu()
        sizes = torch.tensor([len(p) for p in chosen.prompts])
        within = response_ids(chosen.lengths)
        starts = chosen.lengths.cumsum(0) - chosen.lengths
        position = torch.arange(len(within), device=within.device) - starts[within]
        response = rows.to(within.device)[within]
        return cls(rows, chosen, lengths, group, sizes[group], response, position, chosen.policy_logprobs)

    @property
    def largest_pass(self) -> int:
        """Row entries of the largest micro-batch."""
        return max(len(part.packed.inputs) for part in self.parts)

    def each(self, logprobs: Callable[[models.Pack], Tensor]) -> Tensor:
        """[n] of all micro-batches."""
        return torch.cat([self.old[:0], *(logprobs(part.packed) for part in self.parts)])

    def cut(self, responses: int, tokens: int, whole_groups: bool) -> None:
        """Into `parts` of at most `responses` and `tokens` (0: no limit), but of whole responses, or `whole_groups`."""
        self.parts, begin, first = [], 0, 0
        if len(self.rows) == 0:
            return
        ends = [*cuts(self.group, self.prompt_lengths, self.lengths, responses, tokens, whole_groups), len(self.rows)]
        for end in ends:
            rows = slice(begin, end)
            size = int(self.lengths[rows].sum())
            at = slice(first, first + size)
            packed = models.pack(self.rollouts.prompts, self.rollouts.tokens[at], self.lengths[rows], self.group[rows])
            self.parts.append(MicroBatch(packed, rows, at))
            begin, first = end, first + size


def cuts(
    group: Tensor, prompt_lengths: Tensor, lengths: Tensor, responses: int, tokens: int, whole_groups: bool
) -> list[int]:
    """Where micro-batches begin, but for the first: group, prompt_lengths, lengths [b] of responses, group by group.

    By responses alone they are cut after so many, as the responses come; with a limit on tokens, between groups where a
    group fits. What is larger than the limits and must not be cut is a micro-batch of its own.
    """
    _, sizes = torch.unique_consecutive(group, return_counts=True)
    if not tokens and not whole_groups:
        return list(range(responses, len(group), responses)) if responses else []
    out: list[int] = []
    filled = held = at = 0  # tokens and responses of the micro-batch being filled; the response that comes next
    for size in sizes.tolist():
        prompt, own = int(prompt_lengths[at]), lengths[at : at + size].tolist()
        if not whole_groups and (_over(size, responses) or _over(prompt + sum(own), tokens)):
            pieces = [(1, n) for n in own]
        else:
            pieces = [(size, sum(own))]
        here = False  # whether the prompt is in the micro-batch
        for count, n in pieces:
            more = n if here else n + prompt
            if held and _full(whole_groups, filled, more, held, count, responses, tokens):
                out.append(at)
                filled = held = 0
                more = n + prompt
            filled, held, at, here = filled + more, held + count, at + count, True
    return out


def _over(amount: int, limit: int) -> bool:
    return limit > 0 and amount > limit


def _full(whole_groups: bool, filled: int, more: int, held: int, count: int, responses: int, tokens: int) -> bool:
    """Whether what comes next belongs to the next micro-batch; whole groups are cut once `responses` are reached."""
    if whole_groups and responses > 0 and held >= responses:
        return True
    return _over(filled + more, tokens) or (not whole_groups and _over(held + count, responses))

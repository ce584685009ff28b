"""Drafts by look-up in plain torch: the Triton kernels' reference, and the CPU's.

A group has a table of what followed the contexts it has written, of SHORTEST to LONGEST tokens, in
the prompt and in all its responses. A row's draft is what followed its last tokens when the group
wrote them last, by the longest context there is; the next draft goes on from there. An entry is one
number, the time first, so that the larger of two is the later: rows of a group write at once, in
any order, and the same one stays. Contexts that share a slot push each other out, and those that
share its tag as well give a wrong draft, which is merely not drawn.

A draft is right exactly if it is the token drawn at its place, so drafts change no response.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.kernels.plain_decode import DecodeRows
from equipoise.kernels.uniform import GAMMA

SHORTEST, LONGEST = 2, 4  # tokens of a context
# an entry: time, then TAG_BITS of the context's hash, then the token that followed
TOKEN_BITS, TAG_BITS = 20, 21
TOKEN, TAG = (1 << TOKEN_BITS) - 1, (1 << TAG_BITS) - 1
TIME_AT = TOKEN_BITS + TAG_BITS
TAG_AT, SLOT_AT = 24, 45  # bits of the hash: the tag's lie below the slot's
MOST_SLOTS = 1 << 16


class Memory(NamedTuple):
    """What P groups have written. A prompt that takes another's place clears the entries there."""

    entries: Tensor  # [P, slots] int64, slots a power of two; 0: nothing
    clock: Tensor  # [1] int64 steps so far


class StepRecord(NamedTuple):
    """What the steps of a window leave of their rows; width = drafts + 1 tokens a step at most."""

    at: Tensor  # [1] int64 steps since the window began
    recent: Tensor  # [rows, reach] int64 a row's last tokens, the newest last
    advanced: Tensor  # [rows] int32 tokens since the window began
    tokens: Tensor  # [steps·width, rows] int64
    logprobs: Tensor  # [steps·width, rows]
    passes: Tensor  # [2, steps, rows] int32 tokens that each step gave, and drafts that it tried


def draft(memory: Memory, prompt: Tensor, recent: Tensor, count: int) -> Tensor:
    """See `decode`."""
    context = recent
    tokens = [recent[:, -1]]
    for _ in range(count):
        hashed = _hashes(context)
        found = memory.entries[prompt.long()[:, None], _slot(hashed, memory)]
        known = (found != 0) & (_tag(found, TOKEN_BITS) == _tag(hashed, TAG_AT))
        token = torch.full_like(tokens[0], -1)
        for one, is_known in zip(found.unbind(1), known.unbind(1), strict=True):
            token = torch.where(is_known, one & TOKEN, token)  # the longest context comes last
        token = torch.where(tokens[-1] < 0, -1, token)
        tokens.append(token)
        context = torch.cat((context[:, 1:], token[:, None]), 1)
    return torch.stack(tokens, 1)


def accept(
    drawn: Tensor,
    logprobs: Tensor,
    tokens: Tensor,
    rows: DecodeRows,
    block: int,
    record: StepRecord,
    memory: Memory | None,
) -> None:
    """See `decode`."""
    R, width = tokens.shape
    ahead = torch.arange(width, device=tokens.device)
    drawn, logprobs = drawn.view(R, width), logprobs.view(R, width)
    position = rows.length.long()[:, None] + ahead
    right = rows.table.gather(1, position // block) != 0
    right[:, 1:] &= tokens[:, 1:] == drawn[:, :-1]
    right = right.cumprod(1).bool()
    row, j = right.nonzero().unbind(1)
    place = record.advanced[row].long() + j
    record.tokens[place, row] = drawn[row, j]
    record.logprobs[place, row] = logprobs[row, j]
    given = right.sum(1)
    tried = (tokens[:, 1:] >= 0).sum(1)
    record.passes[:, record.at, :R] = torch.stack((given, tried))[:, None].int()
    reach = record.recent.shape[1]
    text = torch.cat((record.recent[:R], drawn), 1)
    if memory is not None:
        contexts = text.unfold(1, reach, 1)[row, j]
        _remember(memory, rows.prompt[row].long(), contexts, drawn[row, j])
    newest = given[:, None] + torch.arange(reach, device=tokens.device)
    record.recent[:R] = text.gather(1, newest)
    record.advanced[:R] += given.int()
    rows.length.add_(given.int())


def remember_prompts(memory: Memory, tokens: Tensor, positions: Tensor, places: Tensor) -> None:
    """Prompts that follow each other: tokens, their positions in their prompts, and whose they are,
    [U] int64 each. Plain torch on any device, outside of the step.
    """
    back = torch.arange(LONGEST, 0, -1, device=tokens.device)
    before = torch.arange(len(tokens), device=tokens.device)[:, None] - back
    contexts = tokens[before.clamp_min(0)].masked_fill(positions[:, None] < back, -1)
    later = positions > 0  # a first token follows nothing
    _remember(memory, places[later], contexts[later], tokens[later])


def slots_for(tokens: int) -> int:
    """Of a group that writes so many tokens at most."""
    contexts = tokens * (LONGEST - SHORTEST + 1)
    return min(MOST_SLOTS, 1 << (contexts - 1).bit_length())


def _remember(memory: Memory, place: Tensor, contexts: Tensor, tokens: Tensor) -> None:
    """place [N], contexts [N, LONGEST], tokens [N] that followed them."""
    hashed = _hashes(contexts)
    entry = (memory.clock << TIME_AT) | (_tag(hashed, TAG_AT) << TOKEN_BITS) | tokens[:, None]
    at = place[:, None] * memory.entries.shape[1] + _slot(hashed, memory)
    memory.entries.view(-1).scatter_reduce_(0, at.flatten(), entry.flatten(), "amax")


def _hashes(context: Tensor) -> Tensor:
    """[N, LONGEST] → [N, lengths] of the last SHORTEST … LONGEST tokens; the high bits are good."""
    hashed = torch.zeros_like(context[:, 0])
    found = []
    for n in range(1, LONGEST + 1):
        hashed = (hashed + context[:, -n] + 1) * GAMMA
        if n >= SHORTEST:
            found.append(hashed)
    return torch.stack(found, 1)


def _slot(hashed: Tensor, memory: Memory) -> Tensor:
    return (hashed >> SLOT_AT) & (memory.entries.shape[1] - 1)


def _tag(number: Tensor, at: int) -> Tensor:
    return (number >> at) & TAG

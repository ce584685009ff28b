"""Drafts by look-up, in Triton: `draft` and `accept` of `plain_drafts`, a program for each row.

A row's last four tokens are scalars a, b, c, d, the newest last. Rows of a group write to its table
with atomic maxima, so what stays does not depend on their order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from equipoise.kernels import plain_drafts, uniform
from equipoise.kernels.plain_decode import DecodeRows
from equipoise.kernels.plain_drafts import Memory, StepRecord
from equipoise.kernels.triton_draw import check_contiguous

# the contexts below are of 2, 3 and 4 tokens
assert (plain_drafts.SHORTEST, plain_drafts.LONGEST) == (2, 4)
GAMMA = tl.constexpr(uniform.GAMMA)
TOKEN, TOKEN_BITS = tl.constexpr(plain_drafts.TOKEN), tl.constexpr(plain_drafts.TOKEN_BITS)
TAG, TAG_AT = tl.constexpr(plain_drafts.TAG), tl.constexpr(plain_drafts.TAG_AT)
SLOT_AT, TIME_AT = tl.constexpr(plain_drafts.SLOT_AT), tl.constexpr(plain_drafts.TIME_AT)


def draft(memory: Memory, prompt: Tensor, recent: Tensor, count: int) -> Tensor:
    """See `decode`."""
    check_contiguous(memory.entries, prompt, recent)
    tokens = recent.new_empty(len(recent), count + 1)
    _draft[(len(recent),)](
        memory.entries, prompt, recent, tokens, memory.entries.shape[1], COUNT=count, num_warps=1
    )
    return tokens


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
    check_contiguous(drawn, logprobs, tokens, rows.table, rows.length, rows.prompt, *record)
    steps, wide = record.passes.shape[1:]
    _accept[(len(tokens),)](
        drawn,
        logprobs,
        tokens,
        rows.table,
        rows.length,
        rows.prompt,
        *record,
        None if memory is None else memory.entries,
        None if memory is None else memory.clock,
        rows.table.shape[1],
        steps,
        wide,
        1 if memory is None else memory.entries.shape[1],
        WIDTH=tokens.shape[1],
        BLOCK=block,
        num_warps=1,
    )


@triton.jit(do_not_specialize=["slots"])
def _draft(
    entries: tl.tensor,
    prompt: tl.tensor,
    recent: tl.tensor,
    tokens: tl.tensor,
    slots: tl.tensor,
    COUNT: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    a, b, c, d = _context(recent + row * 4)
    table = entries + tl.load(prompt + row).to(tl.int64) * slots
    tl.store(tokens + row * (COUNT + 1), d)
    for j in tl.static_range(COUNT):
        two, three, four = _hashes(a, b, c, d)
        token = d * 0 - 1
        token = _followed(table, two, slots, token)
        token = _followed(table, three, slots, token)
        token = _followed(table, four, slots, token)
        token = tl.where(d < 0, d, token)
        tl.store(tokens + row * (COUNT + 1) + j + 1, token)
        a, b, c, d = b, c, d, token


@triton.jit(do_not_specialize=["most", "steps", "wide", "slots"])
def _accept(
    drawn: tl.tensor,
    logprobs: tl.tensor,
    tokens: tl.tensor,
    table: tl.tensor,
    length: tl.tensor,
    prompt: tl.tensor,
    at: tl.tensor,
    recent: tl.tensor,
    advanced: tl.tensor,
    kept_tokens: tl.tensor,
    kept_logprobs: tl.tensor,
    passes: tl.tensor,
    entries: tl.tensor,
    clock: tl.tensor,
    most: tl.tensor,
    steps: tl.tensor,
    wide: tl.tensor,
    slots: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    n = tl.load(length + row)
    before = tl.load(advanced + row)
    given = n * 0
    tried = n * 0
    right = n == n
    # without a table there are no drafts, and `recent` is the newest token alone
    if entries is not None:
        a, b, c, d = _context(recent + row * 4)
        entries += tl.load(prompt + row).to(tl.int64) * slots
        time = tl.load(clock) << TIME_AT
    last = tl.load(tokens + row * WIDTH)
    for j in tl.static_range(WIDTH):
        if j > 0:
            draft = tl.load(tokens + row * WIDTH + j)
            tried += (draft >= 0).to(tl.int32)
            right = right & (draft == last)
        right = right & (tl.load(table + row * most + (n + j) // BLOCK) != 0)
        token = tl.load(drawn + row * WIDTH + j)
        to = (before + j).to(tl.int64) * wide + row
        tl.store(kept_tokens + to, token, mask=right)
        tl.store(kept_logprobs + to, tl.load(logprobs + row * WIDTH + j), mask=right)
        if entries is not None:
            two, three, four = _hashes(a, b, c, d)
            _remember(entries, two, slots, time, token, right)
            _remember(entries, three, slots, time, token, right)
            _remember(entries, four, slots, time, token, right)
            a, b = tl.where(right, b, a), tl.where(right, c, b)
            c, d = tl.where(right, d, c), tl.where(right, token, d)
        else:
            tl.store(recent + row, token, mask=right)
        given += right.to(tl.int32)
        last = token
    if entries is not None:
        tl.store(recent + row * 4, a)
        tl.store(recent + row * 4 + 1, b)
        tl.store(recent + row * 4 + 2, c)
        tl.store(recent + row * 4 + 3, d)
    tl.store(advanced + row, before + given)
    tl.store(length + row, n + given)
    of_step = tl.load(at) * wide + row
    tl.store(passes + of_step, given)
    tl.store(passes + steps * wide + of_step, tried)


@triton.jit
def _context(recent: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    return tl.load(recent), tl.load(recent + 1), tl.load(recent + 2), tl.load(recent + 3)


@triton.jit
def _hashes(
    a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Of the last two, three and four tokens."""
    two = ((d + 1) * GAMMA + c + 1) * GAMMA
    three = (two + b + 1) * GAMMA
    return two, three, (three + a + 1) * GAMMA


@triton.jit
def _followed(
    table: tl.tensor, hashed: tl.tensor, slots: tl.tensor, otherwise: tl.tensor
) -> tl.tensor:
    entry = tl.load(table + ((hashed >> SLOT_AT) & (slots - 1)))
    known = (entry != 0) & (((entry >> TOKEN_BITS) & TAG) == ((hashed >> TAG_AT) & TAG))
    return tl.where(known, entry & TOKEN, otherwise)


@triton.jit
def _remember(
    table: tl.tensor,
    hashed: tl.tensor,
    slots: tl.tensor,
    time: tl.tensor,
    token: tl.tensor,
    mask: tl.tensor,
) -> None:
    entry = time | (((hashed >> TAG_AT) & TAG) << TOKEN_BITS) | token
    tl.atomic_max(table + ((hashed >> SLOT_AT) & (slots - 1)), entry, mask=mask, sem="relaxed")

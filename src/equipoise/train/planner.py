"""How many tokens a pass may hold: measured on the model, against what memory is free.

The memory of a pass is a part that is always there (gradients, a chunk of logits) and so much per
token, but the peak is that of the worst moment, and which one that is (the head, the layers'
backward) changes with the size: on CUDA, passes of twice the size each are measured until one is as
large as the last two allow. More tokens than `fast` says gain little there, so no more are taken.
Gradient checkpointing is a third more arithmetic: it is switched on only where not even the longest
response (or group, where the objective needs groups whole) would fit without. What a sampler or a
reference holds counts as not free. All ranks go by the worst figures among them, so that they plan
alike. On the CPU, where nobody counts, a pass takes what autograd keeps of a small one and half as
much again, and what fits is trained in one go. Not covered: memory that others take later;
`Updater` then halves the tokens and goes on.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from equipoise import policy as models
from equipoise.policy import Policy, memory, parameter_count
from equipoise.rollout import native
from equipoise.train import ranks

# Tokens times parameters from which on a pass's own costs (gradients added up, the host's work) are
# small beside its arithmetic on an H200, and the tokens it takes at least and at most.
WORK, FEWEST, MOST = 1.3e13, 8192, 65_536
# tokens of the first two passes measured on CUDA, halved where even these do not fit
SMALL = (4096, 8192)
LEAST = 64  # but not below
FEW = (32, 64)  # on the CPU
MARGIN = 0.9  # of what is free: allocators lose some to gaps


@dataclass(frozen=True)
class Plan:
    """tokens: at most so many a pass, 0 for all; said: a line for the user, or nothing.

    peak: bytes that the largest pass is expected to reach, all that is held by then included;
    0 where nobody counted.
    """

    tokens: int
    checkpointing: bool
    said: str
    peak: float = 0.0


def fast(policy: Policy) -> int:
    """Tokens of a pass that more would hardly make faster."""
    return int(min(max(WORK / parameter_count(policy.model), FEWEST), MOST))


@dataclass(frozen=True)
class Cost:
    """Bytes of a forward and backward pass: `always`, and `per_token` of prompts and responses."""

    always: float
    per_token: float

    def tokens(self, room: float) -> int:
        return int(max(0.0, (room - self.always) / self.per_token))

    def __str__(self) -> str:
        besides = max(self.always, 0) / 2**30
        return f"{self.per_token / 1e3:,.0f} kB each and {besides:.1f} GiB besides"


def plan(
    policy: Policy,
    *,
    total: int,
    largest: int,
    cap: int | None,
    to_come: int,
    clear: Callable[[], None],
) -> Plan:
    """Steps of at most `total` tokens, `largest` in one piece; `cap`: bytes for this process.

    `to_come`: bytes the optimizer is still to take; `clear` throws the measured passes' gradients
    away. May switch the policy's gradient checkpointing on.
    """
    cuda, begun_with = policy.device.type == "cuda", policy.gradient_checkpointing
    taken = memory.taken(policy.device)
    # the rank with the least room decides, so that all cut alike
    free, said = min(ranks.gather(free_room(policy.device, cap, to_come)))
    if math.isinf(free) or (begun_with and not cuda):
        return Plan(0, begun_with, "")
    room = MARGIN * free
    if cuda:
        most = max(fast(policy), largest)
        cost, fitting = _measured(policy, room, most, clear)
        if fitting < largest and not begun_with:
            policy.checkpoint_gradients()
            cost, fitting = _measured(policy, room, most, clear)
        tokens = max(1, min(fitting, fast(policy)))
    else:
        cost = _cpu_cost(policy)
        tokens = fitting = max(1, cost.tokens(room))
        if tokens >= total:
            return Plan(0, begun_with, "")
    why = f"{cost}, {said}"
    if policy.gradient_checkpointing and not begun_with:
        why += f"; with gradient checkpointing, without which {largest:,} tokens in one piece would not fit"
    if fitting < largest:
        why += f"; a piece of {largest:,} tokens, which is not cut, will take more"
    most_tokens = max(min(tokens, total), largest)
    peak = taken + to_come + cost.always + cost.per_token * most_tokens if cuda else 0.0
    return Plan(
        tokens, policy.gradient_checkpointing, f"memory: {tokens:,} tokens a pass ({why})", peak
    )


def free_room(device: torch.device, cap: int | None, to_come: int) -> tuple[float, str]:
    """Bytes a pass may take beyond what is taken (∞ if unknown), and what sets the limit."""
    if device.type == "cuda":
        taken = memory.taken(device)
        free: float = memory.free(device)
    else:
        taken, free = _resident(), _available()
    left = math.inf if cap is None else cap - taken
    room = max(min(free, left) - to_come, 0)
    return room, f"{room / 2**30:.1f} GiB {'left of train.memory' if left < free else 'free'}"


def share_of_sampler(policy: Policy, cap: int | None, to_come: int) -> int:
    """Bytes for a sampler that works while passes run: half of what is free beside the weights and
    what the optimizer is to take. Passes are planned with the other half.
    """
    free, _ = free_room(policy.device, cap, to_come)
    # Where nobody knows what is free, nothing is planned.
    half = 0 if math.isinf(free) else int(free / 2)
    if policy.device.type == "cuda":
        return half
    return min(half, native.MEMORY + models.weight_bytes(policy.model))


def _available() -> float:
    """Bytes the system could still give on the CPU; infinitely many where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return math.inf
    return next(
        (1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")),
        math.inf,
    )


def _resident() -> int:
    """Bytes this process holds, as far as the system says."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _measured(
    policy: Policy, room: float, most: int, clear: Callable[[], None]
) -> tuple[Cost, int]:
    """What a pass costs, and the tokens (about `most` at most) that fit into `room`, as tried.

    A peak that is the largest of several lines lies, between two sizes,
    below the line through the peaks there.
    """
    first, second = SMALL
    _peak(policy, first, clear)  # warms up
    low, high = _peak(policy, first, clear), _peak(policy, second, clear)
    while first > LEAST and (low[1] > room or math.isinf(high[1])):
        first, second = first // 2, second // 2
        low, high = _peak(policy, first, clear), _peak(policy, second, clear)
    if math.isinf(high[1]):
        return Cost(math.inf, 1.0), 0
    cost, tokens = line(low, high), most
    while (tokens := min(cost.tokens(room), tokens)) > high[0]:
        tried = _peak(policy, min(tokens, 2 * high[0]), clear)
        if math.isinf(tried[1]):
            break
        if tried[0] > 1.5 * high[0]:  # between sizes closer than that, rounding would make the line
            low = high
        high = tried
        cost = line(low, high)
    return cost, min(high[0], cost.tokens(room))


def line(a: tuple[int, float], b: tuple[int, float]) -> Cost:
    """Through two points (tokens, bytes); rounding of the allocator must not make it fall."""
    per_token = max((b[1] - a[1]) / (b[0] - a[0]), 1.0)
    return Cost(a[1] - per_token * a[0], per_token)


def _peak(policy: Policy, tokens: int, clear: Callable[[], None]) -> tuple[int, float]:
    """So many tokens, or a few more, and the bytes that a pass over them adds to what is taken: of
    the rank where they are most, infinitely many where memory runs out. Gradients are there from a
    pass before, as in every pass of a step but its first.
    """
    packed = _text(policy, tokens)
    before = torch.cuda.memory_allocated(policy.device)
    try:
        _pass(policy, _text(policy, LEAST))
        torch.cuda.reset_peak_memory_stats(policy.device)
        _pass(policy, packed)
        peak = float(torch.cuda.max_memory_allocated(policy.device) - before)
    except torch.OutOfMemoryError:
        peak = math.inf
    clear()
    if math.isinf(peak):
        torch.cuda.empty_cache()
    return len(packed.inputs), max(ranks.gather(peak))


def _pass(policy: Policy, packed: models.Pack) -> None:
    with models.adapter_dropout(policy, seed=0):  # its masks take memory too
        models.token_logprobs(policy, packed).logprobs.sum().backward()


def _cpu_cost(policy: Policy) -> Cost:
    points = []
    for n in FEW:
        packed = _text(policy, n)
        seen: dict[int, int] = {
            p.untyped_storage().data_ptr(): 0 for p in policy.model.parameters()
        }

        def keep(x: torch.Tensor, seen: dict[int, int] = seen) -> torch.Tensor:
            storage = x.untyped_storage()
            seen.setdefault(storage.data_ptr(), storage.nbytes())
            return x

        saving = torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x)
        with saving, models.adapter_dropout(policy, seed=0):
            models.token_logprobs(policy, packed)
        points.append((len(packed.inputs), 1.5 * sum(seen.values())))
    cost = line(*points)
    gradients = sum(p.numel() * p.element_size() for p in policy.parameters())
    return Cost(cost.always + gradients, cost.per_token)


def _text(policy: Policy, tokens: int) -> models.Pack:
    """Some prompts with four responses each that fill a row of about so many tokens."""
    length = min(256, tokens // 4, policy.context - 2)
    responses = -(-tokens // (length - 1))  # a last token is no input
    text = torch.arange(responses * length, device=policy.device) % policy.core.config.vocab_size
    prompts = [[0]] * -(-responses // 4)
    return models.pack(
        prompts, text, torch.full((responses,), length), torch.arange(responses) // 4
    )

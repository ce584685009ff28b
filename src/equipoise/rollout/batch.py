"""The book-keeping every sampler shares: which responses are asked for, what was drawn,
who is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.kernels.draw import SamplingParams, draw
from equipoise.kernels.uniform import Key, response_keys, uniforms
from equipoise.policy import ModelError, Policy, PromptTooLong
from equipoise.policy.support import Support
from equipoise.rollout.rollouts import Finished, Rollouts, Stopped
from equipoise.rollout.stop import StopStrings, stop_strings

BLOCK = 64  # positions whose uniform numbers are made at once


@dataclass(eq=False)
class Request:
    """R = len(prompts)·n responses; response r is number r % n of prompt r // n. limit [R]:
    most tokens of each; model: its name, for errors.
    """

    model: str
    prompts: list[list[int]]
    n: int
    params: SamplingParams
    keys: Tensor
    limit: Tensor
    eos: Tensor
    stop: StopStrings | None
    finished: Finished | None
    stopped: Event | None = None  # set by whoever no longer wants the responses

    def check(self) -> None:
        """Between two steps of decoding."""
        if self.stopped is not None and self.stopped.is_set():
            raise Stopped

    @property
    def rows(self) -> int:
        return len(self.prompts) * self.n


def request(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    n: int,
    params: SamplingParams,
    keys: Sequence[Key] | None,
    step: int,
    finished: Finished | None,
) -> Request:
    """Check what was asked for and derive the seeds of the responses."""
    if n < 1 or len(prompts) == 0:
        raise ValueError(
            f"asked for {n} responses to {len(prompts)} prompts; both must be at least 1"
        )
    names = range(len(prompts)) if keys is None else keys
    if len(names) != len(prompts):
        raise ValueError(f"{len(names)} keys for {len(prompts)} prompts; give one for each")
    for prompt in prompts:
        if not 1 <= len(prompt) < policy.context:
            raise PromptTooLong(
                len(prompt),
                f"a prompt of {len(prompt)} tokens does not fit {policy.name}'s context of {policy.context} tokens "
                "with room for a response",
            )
    device = policy.device
    length = torch.tensor([len(p) for p in prompts], device=device)
    samples = torch.arange(n, device=device).repeat(len(prompts))
    stop = (
        stop_strings(policy.tokenizer, params.stop, policy.core.config.vocab_size, device)
        if params.stop
        else None
    )
    return Request(
        policy.name,
        [list(p) for p in prompts],
        n,
        params,
        response_keys(params.seed, step, [k for k in names for _ in range(n)], samples),
        (policy.context - length).clamp_max(params.max_tokens).repeat_interleave(n),
        torch.tensor(policy.eos, device=device),
        stop,
        finished,
    )


class DecodeBatch:
    """Responses `rows` of a request, drawn together one position at a time.

    Results lie in [T, size] tables. `slots` [r] are the columns still computed, in the order of the
    rows of the logits; `finished` [r] says which of them have ended: such a row is carried along
    until `keep` drops it, and what it draws meanwhile lies behind its end and is never read. Draws
    go to the tables in bundles, because one write per position and table is a good part of a small
    model's time.
    """

    def __init__(self, asked: Request, rows: range) -> None:
        self.asked = asked
        self.slots = torch.arange(rows.start, rows.stop, device=asked.keys.device)
        self.first = rows.start
        self.limit = asked.limit[rows.start : rows.stop]
        self.longest = int(self.limit.max())
        self.even = bool((self.limit == self.longest).all())
        self.length = 0
        shape, device = (self.longest, len(rows)), self.limit.device
        self.tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(shape, device=device)
        self.stops = torch.zeros(shape, dtype=torch.bool, device=device)
        self._tables = [self.tokens, self.logprobs, self.stops]
        # of all supports, as they were drawn; where each lies in them, and its size
        self.ids: list[Tensor] = []
        self.listed = 0
        if asked.params.truncates:
            self.support_at, self.support_size = torch.zeros(
                2, *shape, dtype=torch.int64, device=device
            )
            self._tables += [self.support_at, self.support_size]
        self.finished = torch.zeros(len(rows), dtype=torch.bool, device=device)
        self._reported = torch.zeros(len(rows), dtype=torch.bool, device=device)
        self._bundle: list[tuple[Tensor, ...]] = []
        self._written = 0

    def draw(self, logits: Tensor) -> Tensor:
        """Draw the next token of every row from its logits [r, V]; returns the tokens [r]."""
        self.asked.check()
        t = self.length
        # Random numbers of a block of positions at once: a call for each token is many small
        # kernels.
        if t % BLOCK == 0:
            positions = torch.arange(t, t + BLOCK, device=logits.device)
            self.u = uniforms(self.asked.keys[self.slots], positions).t().contiguous()
        drawn = draw(logits, self.u[t % BLOCK], self.asked.params)
        eos = self.asked.eos
        stops = drawn.tokens == eos if len(eos) == 1 else torch.isin(drawn.tokens, eos)
        self.length = t + 1
        self._bundle.append((drawn.tokens, drawn.logprobs, stops, *self._list_support(drawn.kept)))
        # A stop string may span tokens, so the last few of each row are looked at together.
        if self.asked.stop is not None:
            self._write()
            columns = self.slots - self.first
            tails = self.tokens[max(0, t + 1 - self.asked.stop.span) : t + 1, columns].t()
            stops |= self.asked.stop.completed(tails)
            self.stops[t, columns] = stops
        self.finished |= stops
        if not self.even:
            self.finished |= self.limit[self.slots - self.first] <= self.length
        return drawn.tokens

    def _list_support(self, kept: Tensor | None) -> tuple[Tensor, ...]:
        """Where the ids of each row of kept [r, V] will lie among all listed,
        and how many there are, [r] each.
        """
        if kept is None:
            return ()
        size = kept.sum(1)
        at = self.listed + size.cumsum(0) - size
        self.ids.append(kept.nonzero()[:, 1].to(torch.int32))
        self.listed += len(self.ids[-1])
        return at, size

    def keep(self, rows: Tensor) -> None:
        """Go on with `rows` [k] of the r only."""
        self._write()
        if self.asked.finished is not None:
            self._report((self.slots - self.first)[self.finished])
        self.slots, self.finished, self.u = self.slots[rows], self.finished[rows], self.u[:, rows]

    def left(self) -> int:
        """How many rows are unfinished; waits for the device."""
        return 0 if self.length == self.longest else len(self.slots) - int(self.finished.sum())

    def lengths(self) -> tuple[Tensor, Tensor]:
        """Length [size] of each response and whether it was stopped (by a token or a string) rather
        than cut.

        Called when all are finished: those that `asked.finished` has not been called for are
        reported now.
        """
        self._write()
        if self.asked.finished is not None:
            self._report((~self._reported).nonzero()[:, 0])
        return self._ends(slice(None))

    def _ends(self, columns: Tensor | slice) -> tuple[Tensor, Tensor]:
        stops, limit = self.stops[:, columns], self.limit[columns]
        stopped = stops.any(0)
        end = torch.where(stopped, stops.int().argmax(0) + 1, limit)
        return end.clamp_max(limit), stopped & (end <= limit)

    def _report(self, columns: Tensor) -> None:
        assert self.asked.finished is not None
        if len(columns) == 0:
            return
        self._reported[columns] = True
        ends, tokens = self._ends(columns)[0], self.tokens[:, columns].t()
        inside = torch.arange(tokens.shape[1], device=ends.device) < ends[:, None]
        self.asked.finished((self.first + columns).tolist(), tokens[inside], ends)

    def _write(self) -> None:
        if self._bundle:
            columns = self.slots - self.first
            for table, values in zip(self._tables, zip(*self._bundle, strict=True), strict=True):
                table[self._written : self.length].index_copy_(1, columns, torch.stack(values))
            self._bundle.clear()
            self._written = self.length


def collect(asked: Request, batches: Sequence[DecodeBatch]) -> Rollouts:
    """The finished batches of a request, flat; ModelError where the model gave no numbers."""
    lengths, stopped = (
        torch.cat(parts) for parts in zip(*(b.lengths() for b in batches), strict=True)
    )

    def flat(field: str) -> Tensor:
        padded = torch.cat(
            [F.pad(getattr(b, field), (0, 0, 0, longest - b.longest)) for b in batches], 1
        ).t()
        return padded[inside]

    longest = max(b.longest for b in batches)
    inside = torch.arange(longest, device=lengths.device) < lengths[:, None]
    logprobs = flat("logprobs")
    if bool(logprobs.isnan().any()):
        raise without_numbers(asked.model)
    return Rollouts(
        asked.prompts,
        flat("tokens"),
        logprobs,
        lengths,
        torch.arange(len(asked.prompts), device=lengths.device).repeat_interleave(asked.n),
        ["stop" if s else "length" for s in stopped.tolist()],
        _support(batches, flat) if asked.params.truncates else None,
    )


def without_numbers(model: str) -> ModelError:
    return ModelError(
        f"{model}: its log-probabilities are NaN: a weight is not finite, or too large; if training made it "
        "so, begin again with a lower optim.lr"
    )


def _support(batches: Sequence[DecodeBatch], flat: Callable[[str], Tensor]) -> Support:
    listed = 0
    for batch in batches:
        batch.support_at += listed
        listed += batch.listed
    pool = torch.cat([ids for batch in batches for ids in batch.ids])
    return Support.gathered(pool, flat("support_at"), flat("support_size"))

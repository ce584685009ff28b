"""The sampler for CUDA: a decode loop over the trainer's own weights,
with a paged cache and the step as a CUDA graph.

A prompt's keys and values lie once in the cache for all its responses; a finished response's row
goes to the next one in the queue; a response gets blocks as it grows, so memory follows real
lengths. The step (layers, head, draw) is captured once for each of a few batch sizes and replayed;
every WINDOW steps the host looks at what was drawn, reports who is finished, fills up and goes on.
Results are those of the other samplers: same seeds, same draws.
With `speculation` a step also takes each row's next tokens as drafts, looked up in what its group
has written, and keeps as many as are what is drawn there: the same responses in fewer steps.
The cache is reserved at every call and given back after it; the graphs stay, with the step's
buffers, for the next one. Keys and values, and the weights of a step's projections, may be kept in
8 bits (`kernels.fp8`): prompts are computed with the model's own weights all the same.
Works for the models of `policy.architectures`, on the CPU too (by the kernels' reference, slowly:
for tests).
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from threading import Event
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.kernels import decode, fp8
from equipoise.kernels.cards import shared_memory
from equipoise.kernels.decode import BLOCK
from equipoise.kernels.draw import SamplingParams
from equipoise.kernels.fp8 import Precision
from equipoise.kernels.plain_drafts import remember_prompts
from equipoise.kernels.segments import Segments
from equipoise.kernels.uniform import Key
from equipoise.policy import Policy, decoder
from equipoise.policy.layer import Layer, describe
from equipoise.policy.memory import room
from equipoise.policy.support import Support
from equipoise.policy.weights import Fp8Linear, Merged, Weights, in_eight_bits, weights_of
from equipoise.rollout.batch import Request, request, without_numbers
from equipoise.rollout.blocks import WINDOW, Blocks, Scheduler, Size, blocks_for
from equipoise.rollout.paged_cache import Cache, cache_bytes, reserve
from equipoise.rollout.paged_step import LOGITS, attend_prompts, decode_step, draw_rows
from equipoise.rollout.rollouts import DraftCounts, Finished, Rollouts
from equipoise.rollout.step_buffers import StepBuffers, Supports, Window

BUCKETS = (
    1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 1024, 1280, 1536, 2048,
)  # fmt: skip
CPU_MEMORY = 4 << 30  # bytes of the cache
KEPT = 3  # sets of buffers and graphs that are kept: training's, and those of an evaluation or two
SHARE = 0.8  # of the GPU's free memory that the cache may take
PREFILL = 1 << 15  # tokens of prompts computed together
# Of a row and step. A step's tokens must fit into a block: the tables of a row of padding name its
# first block alone, and what it writes behind that would be another row's.
MOST_DRAFTS = 8
# responses reported together: a millisecond or two, in which the device may already wait
REPORTED = 32


class PagedSampler:
    """`rows`: the most responses decoded together; `memory`: the most bytes of the cache (default:
    what is free); `speculation`: tokens drafted of each row in a step, but for calls that truncate
    (top-k, top-p, min-p); `cache_dtype`, `weights_dtype`: "fp8" keeps keys and values, or a copy of
    the projections' weights that is made at every call, in 8 bits; `stopped`: set, it ends a call
    with `Stopped`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        rows: int = BUCKETS[-1],
        memory: int | None = None,
        speculation: int = 0,
        cache_dtype: Precision = "auto",
        weights_dtype: Precision = "auto",
        stopped: Event | None = None,
    ) -> None:
        if not 1 <= rows <= BUCKETS[-1]:
            raise ValueError(
                f"rows = {rows} must lie between 1 and {BUCKETS[-1]}, the largest batch a step is made for"
            )
        if not 0 <= speculation <= MOST_DRAFTS:
            raise ValueError(f"speculation = {speculation} must lie between 0 and {MOST_DRAFTS}")
        self.policy = policy
        self.rows = rows
        self.memory = memory
        self.speculation = speculation
        self.cache_dtype, self.weights_dtype = cache_dtype, weights_dtype
        self.stopped = stopped
        # bytes of all it takes where something else takes the rest meanwhile, else what is free
        self.most: int | None = None
        self._merged: Merged = {}
        self._in_eight_bits: dict[tuple[int, str], Fp8Linear] = {}
        self._buffers: dict[Size, StepBuffers] = {}
        self._count = 0

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        *,
        keys: Sequence[Key] | None = None,
        step: int = 0,
        finished: Finished | None = None,
    ) -> Rollouts:
        asked = request(self.policy, prompts, n, params, keys, step, finished)
        asked.stopped = self.stopped
        device = self.policy.device
        # kernels go to the current one
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return self._sample(asked)

    def _sample(self, asked: Request) -> Rollouts:
        buffers = self._set_up(asked)
        weights = weights_of(self.policy.core, self._merged)
        if self.weights_dtype == "fp8":
            weights = in_eight_bits(weights, self._in_eight_bits)
        self._count = self._blocks(asked, buffers.size)
        arena, cache = reserve(self.policy, self._count, self.cache_dtype)
        # Graphs replay addresses: they are thrown away where the cache or a weight has moved.
        buffers.anchor((*cache.addresses, self._count, *weights.addresses()))
        try:
            return _Call(self.policy, asked, buffers, weights, cache).run(self._count)
        finally:
            del cache, arena

    def _set_up(self, asked: Request) -> StepBuffers:
        """The step's buffers: those of an earlier call of this size, if there was one lately."""
        rows = min(self.rows, next(b for b in BUCKETS if b >= min(self.rows, asked.rows)))
        drafts = 0 if asked.params.truncates else self.speculation
        size = Size(
            rows,
            int(blocks_for(int(asked.limit.max()) + WINDOW * (drafts + 1))),
            _power_of_two(min(len(asked.prompts), max(4 * rows // asked.n, 1))),
            _power_of_two(int(blocks_for(max(map(len, asked.prompts))))),
            asked.n,
            drafts,
        )
        buffers = self._buffers.pop(size, None) or StepBuffers(self.policy, size)
        if asked.params.truncates and buffers.supports is None:
            buffers.supports = Supports(size.rows, self.policy.device)
        self._buffers[size] = buffers
        # Each set holds CUDA graphs; a run asks for the same two or three sizes again and again.
        if len(self._buffers) > KEPT:
            del self._buffers[next(iter(self._buffers))]
        return buffers

    def _blocks(self, asked: Request, size: Size) -> int:
        """How many blocks to reserve: what all rows can need, or what fits, if that is less."""
        own = blocks_for(asked.limit.cpu().numpy() - 1).clip(1)
        before = blocks_for(np.array([len(p) for p in asked.prompts]))
        needed = 1 + int(np.sort(own)[-size.rows :].sum() + np.sort(before)[-size.prompts :].sum())
        least = 1 + int((own + before.repeat(asked.n)).max())
        one = cache_bytes(self.policy, 1, self.cache_dtype)
        fits = self._memory(size) // one
        if fits < least:
            raise ValueError(
                f"a cache of {fits * one / 2**30:.2f} GiB holds {fits} blocks of {BLOCK} tokens; the longest prompt "
                f"with its response needs {least}; give it more memory, or shorten max_tokens"
            )
        # The same number as in the last call where that will do, because graphs hold the addresses
        # that come of it; what is free changes a little from call to call, so not all of it is
        # taken.
        enough = max(least, min(needed, int(0.9 * fits)))
        return self._count if enough <= self._count <= fits else enough

    def _memory(self, size: Size) -> int:
        device = self.policy.device
        if self.memory is not None or device.type != "cuda":
            return CPU_MEMORY if self.memory is None else self.memory
        logits = 2 * 4 * size.rows * size.width * self.policy.core.config.vocab_size
        if self.most is None:
            return int(SHARE * (room(device) - logits))
        copies = sum(own.nbytes for own in self._in_eight_bits.values())
        return int(SHARE * (self.most - copies - logits))


class _Call:
    """One call of `sample`: rows come and go until every response is finished."""

    def __init__(
        self, policy: Policy, asked: Request, buffers: StepBuffers, weights: Weights, cache: Cache
    ) -> None:
        self.policy = policy
        self.asked = asked
        self.buffers = buffers
        self.weights = weights
        self.cache = cache
        self.keys, self.limit = asked.keys.cpu().numpy(), asked.limit.cpu().numpy()
        self.is_end = np.zeros(weights.vocabulary, dtype=bool)
        self.is_end[[token for token in policy.eos if token < weights.vocabulary]] = True
        self.may_stop = None if asked.stop is None else asked.stop.candidate.cpu().numpy()
        # draws behind a response's end have their place too
        shape = asked.rows, int(self.limit.max()) + WINDOW * buffers.size.width
        self.tokens = np.zeros(shape, dtype=np.int32)
        self.logprobs = np.zeros(shape, dtype=np.float32)
        # Of each token's support: where it begins among all ids listed, and its size.
        self.places = np.zeros((2, *shape), dtype=np.int64) if asked.params.truncates else None
        self.ids: list[Tensor] = []
        self.listed = 0
        self.drafts = DraftCounts() if buffers.size.drafts else None
        self.lengths = np.zeros(asked.rows, dtype=np.int64)
        self.stopped = np.zeros(asked.rows, dtype=bool)
        # what `_record` saw and `_store` has not written yet
        self.unstored: list[tuple[Any, ...]] = []
        self.unreported: deque[int] = deque()

    def run(self, blocks: int) -> Rollouts:
        lengths = np.array([len(p) for p in self.asked.prompts])
        scheduler = self.scheduler = Scheduler(
            self.buffers.tables, Blocks(blocks), lengths, self.limit
        )
        if self.buffers.memory is not None:
            self.buffers.memory.clock.zero_()
        while scheduler.count or scheduler.queue:
            self.asked.check()
            old = scheduler.count
            self._compute_prompts(scheduler.admit())
            self._first_tokens(old)
            if scheduler.count:
                # Some steps go by before the host looks at the draws: rows that end meanwhile draw
                # on for nothing, which costs less than waiting for the device after every token.
                steps = min(WINDOW, scheduler.most_left())
                scheduler.grow(steps * self.buffers.size.width)
                self._steps(steps)
        self._store()
        self._report(lambda: False)
        return self._rollouts()

    def _compute_prompts(self, prompts: list[int]) -> None:
        """Put the keys and values of these prompts into their blocks,
        and their last hidden states into `buffers`.
        """
        lengths = self.scheduler.prompt_length[prompts]
        start = 0
        for stop in range(1, len(prompts) + 1):
            if stop == len(prompts) or lengths[start : stop + 1].sum() > PREFILL:
                self._compute_chunk(prompts[start:stop], lengths[start:stop])
                start = stop

    def _compute_chunk(self, prompts: list[int], lengths: NDArray[np.int64]) -> None:
        device = self.policy.device
        places = self.scheduler.place[prompts]
        position = np.concatenate([np.arange(l) for l in lengths])
        whose = np.arange(len(prompts)).repeat(lengths)
        block = self.buffers.tables.prompt_table[places[whose], position // BLOCK]
        token = np.concatenate([self.asked.prompts[p] for p in prompts])
        heads = np.arange(self.cache.keys.shape[2])
        offset = position[:, None] % BLOCK
        entry = (block[:, None].astype(np.int64) * len(heads) + heads) * BLOCK + offset
        tokens, positions = torch.from_numpy(np.stack((token, position))).to(device)
        at = torch.from_numpy(entry.reshape(-1)).to(device)
        ends = lengths.cumsum()
        segments = Segments(np.concatenate(([0], ends)), None, None, device)

        def attend(layer: Layer, qkv: Tensor) -> Tensor:
            k, v = qkv[:, -2 * layer.kv_heads :].chunk(2, 1)
            self.cache.of_layer(layer.index).write(at, k, v)
            return attend_prompts(qkv, segments, layer)

        memory = self.buffers.memory
        if memory is not None:
            place = torch.from_numpy(places).to(device)
            memory.entries[place] = 0
            remember_prompts(memory, tokens, positions, place[torch.from_numpy(whose).to(device)])
        core = self.policy.core
        last = torch.from_numpy(ends - 1).to(device)
        x = decoder.hidden_states(core, tokens, positions, attend)[last]
        self.buffers.last[torch.from_numpy(places).to(device)] = decoder.normed(core, x)

    def _first_tokens(self, old: int) -> None:
        """Draw the first token of the rows from `old` on, from their prompts' last hidden states."""
        scheduler, tables, device = self.scheduler, self.buffers.tables, self.policy.device
        new = scheduler.count - old
        if new == 0:
            return
        rows = slice(old, scheduler.count)
        response = scheduler.response[rows]
        tables.keys[rows] = self.keys[response]
        keys = torch.from_numpy(tables.keys[rows].copy()).to(device)
        place = torch.from_numpy(tables.prompt[rows].astype(np.int64)).to(device)
        u = decode.uniform(keys, torch.zeros(new, dtype=torch.int32, device=device))
        size = max(1, LOGITS // self.weights.vocabulary)
        parts: list[tuple[Tensor, Tensor]] = []
        sizes: list[Tensor] = []
        ids: list[Tensor] = []

        def heard(kept: Tensor, rows: slice) -> None:
            sizes.append(kept.sum(1))
            ids.append(kept.nonzero()[:, 1].to(torch.int32))

        for at in range(0, new, size):
            logits = self.weights.logits(self.buffers.last[place[at : at + size]])
            parts.append(draw_rows(logits, u[at : at + size], self.asked.params, heard))
        tokens, logprobs = (torch.cat(part).cpu().numpy() for part in zip(*parts, strict=True))
        places = None
        if sizes:
            count = torch.cat(sizes).cpu().numpy()
            places = self._list(np.stack((count.cumsum() - count, count))[:, None], torch.cat(ids))
        recent = self._prompt_ends(response // scheduler.n)
        recent = np.concatenate((recent, tokens[:, None]), 1)
        once = np.ones((1, new), dtype=np.int64)
        self._record(old, Window(tokens[None], logprobs[None], once, None, recent), places)

    def _prompt_ends(self, prompts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The last tokens of these prompts that a row's first drafts are looked up by; −1 before
        their first.
        """
        reach = self.buffers.size.reach - 1
        ends = np.full((len(prompts), reach), -1, dtype=np.int64)
        for row, prompt in enumerate(prompts.tolist()):
            end = self.asked.prompts[prompt][-reach:] if reach else []
            ends[row, reach - len(end) :] = end
        return ends

    def _list(self, places: NDArray[np.int64], ids: Tensor) -> NDArray[np.int64]:
        """Keep the ids of supports; `places` [2, k, r] in them becomes that among all ids listed."""
        places = places.copy()
        places[0] += self.listed
        self.ids.append(ids)
        self.listed += len(ids)
        return places

    def _steps(self, steps: int) -> None:
        scheduler, buffers, params = self.scheduler, self.buffers, self.asked.params
        size = min(next(b for b in BUCKETS if b >= scheduler.count), buffers.size.rows)
        # A graph has a fixed number of rows: those beyond the real ones are padding.
        scheduler.fill_in(size)
        if buffers.keys.is_cuda:
            step = self._graph(size)
        else:
            step = functools.partial(decode_step, self.weights, buffers, self.cache, size, params)
        places = None
        while True:
            buffers.upload()
            for _ in range(steps):
                step()
            # While the device works: what it brings back will overwrite what is stored here.
            self._store()
            buffers.download()
            self._report(buffers.ready)
            window = buffers.results(steps, scheduler.count)
            if buffers.supports is None or not params.truncates:
                break
            places, ids = buffers.supports.results(steps, scheduler.count)
            if ids is not None:
                places = self._list(places, ids)
                break
            steps = self._fewer(steps)
        self._record(0, window, places)

    def _fewer(self, steps: int) -> int:
        """Steps to do over, from the same tables, because their supports did not fit;
        the draws are the same.
        """
        if steps == 1:
            assert self.buffers.supports is not None
            each = int(self.buffers.supports.listed) // self.scheduler.count
            raise ValueError(
                f"top_p = {self.asked.params.top_p} and min_p = {self.asked.params.min_p} keep {each} tokens a draw on "
                f"average, of {self.scheduler.count} responses decoded together: too many to record; set top_k"
            )
        return steps // 2

    def _graph(self, size: int) -> Any:
        params = self.asked.params
        key = size, SamplingParams(params.temperature, params.top_p, params.top_k, params.min_p)
        arguments = self.weights, self.buffers, self.cache, size, params
        return self.buffers.graph(key, lambda: decode_step(*arguments)).replay

    def _record(self, first: int, window: Window, places: NDArray[np.int64] | None) -> None:
        """Rows from `first` on drew what `window` says, from supports at `places` [2, m, r]:
        keep it, and let the finished go.
        """
        scheduler = self.scheduler
        rows = slice(first, scheduler.count)
        response, drawn = scheduler.response[rows].copy(), scheduler.drawn[rows].copy()
        tokens = window.tokens
        # A row's tokens are the first of its column; what is behind them is overwritten later.
        at = drawn + np.arange(len(tokens))[:, None]
        self.unstored.append((response, at, tokens, window.logprobs, places))
        limit = self.limit[response]
        end = np.minimum(drawn + window.given.sum(0), limit)
        stops = self.is_end[tokens] & (at < end)
        if self.asked.stop is not None and self.may_stop is not None:
            self._store()
            # A stop string may span tokens: the last few are looked at together.
            may = np.argwhere(self.may_stop[tokens] & (at < end))
            tails = [self._tail(response[row], at[step, row]) for step, row in may]
            if tails:
                stops[tuple(may.T)] |= self.asked.stop.in_tails(tails)
        stopped = np.asarray(stops.any(0))
        length = np.where(stopped, drawn + stops.argmax(0) + 1, end)
        # Up to the end alone: what is drawn behind it is waste, and may be anything.
        if np.isnan(window.logprobs[at < length]).any():
            raise without_numbers(self.asked.model)
        if self.drafts is not None and window.tried is not None:
            counts = _counted(window.given, window.tried, drawn, length)
            self.drafts = self.drafts.plus(counts)
        done = stopped | (length == limit)
        ended = response[done]
        self.lengths[ended], self.stopped[ended] = length[done], stopped[done]
        self.unreported.extend(ended.tolist())
        scheduler.drawn[rows] += window.given.sum(0)
        self.buffers.tables.recent[rows] = window.recent
        if done.any():
            gone = np.zeros(scheduler.count, dtype=bool)
            gone[rows] = done
            scheduler.drop(gone)

    def _tail(self, response: int, last: int) -> list[int]:
        """The tokens up to the one at `last` that a stop string there can span."""
        assert self.asked.stop is not None
        tail: list[int] = self.tokens[response, : last + 1][-self.asked.stop.span :].tolist()
        return tail

    def _store(self) -> None:
        for response, at, tokens, logprobs, places in self.unstored:
            self.tokens[response, at] = tokens
            self.logprobs[response, at] = logprobs
            if self.places is not None and places is not None:
                for table, values in zip(self.places, places, strict=True):
                    table[response, at] = values
        self.unstored.clear()

    def _report(self, enough: Callable[[], bool]) -> None:
        """Hand finished responses to `finished`, some at a time, in their order, until `enough`."""
        while self.unreported and not enough():
            count = min(REPORTED, len(self.unreported))
            responses = [self.unreported.popleft() for _ in range(count)]
            if self.asked.finished is not None:
                lengths = self.lengths[responses]
                tokens = np.concatenate(
                    [self.tokens[i, :length] for i, length in zip(responses, lengths, strict=True)]
                )
                self.asked.finished(responses, torch.from_numpy(tokens), torch.from_numpy(lengths))

    def _rollouts(self) -> Rollouts:
        asked, device = self.asked, self.policy.device

        def flat(table: NDArray[Any]) -> Tensor:
            rows = [row[:length] for row, length in zip(table, self.lengths.tolist(), strict=True)]
            return torch.from_numpy(np.concatenate(rows)).to(device)

        support = None
        if self.places is not None:
            support = Support.gathered(torch.cat(self.ids), *(flat(table) for table in self.places))
        return Rollouts(
            asked.prompts,
            flat(self.tokens).long(),
            flat(self.logprobs),
            torch.from_numpy(self.lengths).to(device),
            torch.arange(len(asked.prompts), device=device).repeat_interleave(asked.n),
            ["stop" if s else "length" for s in self.stopped.tolist()],
            support,
            self.drafts,
        )


def _counted(
    given: NDArray[np.int64],
    tried: NDArray[np.int64],
    drawn: NDArray[np.int64],
    length: NDArray[np.int64],
) -> DraftCounts:
    """What steps gave and drafts they tried, [steps, r] both, of rows that had `drawn` [r] tokens
    before and have or end with `length` [r]; steps after a row's end do not count.
    """
    after = drawn + given.cumsum(0)
    before = after - given
    live = (before < length) & (given > 0)
    return DraftCounts(
        tokens=int((np.minimum(after, length) - before)[live].sum()),
        passes=int(live.sum()),
        tried=int(tried[live].sum()),
        accepted=int((given - 1)[live].sum()),
    )


def serves(policy: Policy) -> bool:
    """Whether the kernels take heads of this size and numbers of this precision."""
    head_dim = policy.core.model.layers[0].self_attn.head_dim
    if policy.dtype == torch.float32 and head_dim == 256:
        return shared_memory(policy.device) >= 148 << 10
    return head_dim in (16, 32, 64, 128, 256) and policy.dtype in (torch.bfloat16, torch.float32)


def check_fp8(policy: Policy, cache_dtype: Precision, weights_dtype: Precision) -> None:
    """Refuse 8 bits where this policy cannot be sampled in them."""
    if "fp8" not in (cache_dtype, weights_dtype):
        return
    option = f'rollout.{"cache" if cache_dtype == "fp8" else "weights"}_dtype = "fp8"'
    problem = fp8.problem(policy.device)
    if problem is not None:
        raise ValueError(
            f"{option}: needs a CUDA device of capability 8.9 or later, and {problem}; use auto"
        )
    if not (policy.is_llama_like and serves(policy)):
        raise ValueError(
            f"{option}: only the paged sampler has it, which does not know {policy.name}; use auto"
        )
    if weights_dtype == "fp8":
        _check_products(policy)


def _check_products(policy: Policy) -> None:
    if policy.dtype != torch.bfloat16:
        raise ValueError(
            f'rollout.weights_dtype = "fp8": needs model.dtype = "bfloat16", and {policy.name} is in '
            f"{str(policy.dtype).removeprefix('torch.')}; use auto"
        )
    layer = describe(policy.core).layers[0]
    sizes = {n for group in layer.projections for m in group.modules for n in m.weight.shape}
    odd = sorted(n for n in sizes if n % fp8.ALIGNED)
    if odd:
        raise ValueError(
            f'rollout.weights_dtype = "fp8": needs projections whose sizes are multiples of {fp8.ALIGNED}, '
            f"and {policy.name} has one of {odd[0]}; use auto"
        )


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()

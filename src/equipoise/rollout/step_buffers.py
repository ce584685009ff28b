"""What the step of the paged sampler reads and writes, at addresses that stay,
so that its CUDA graphs stay too.

Before a window of steps the host fills in tables and uploads them; after it, it brings back what
was drawn. On the CPU there are no graphs, and nothing to wait for. Not covered: the cache, which
comes and goes with every call.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.kernels import decode
from equipoise.kernels.decode import BLOCK, DecodeRows, Memory, StepRecord
from equipoise.kernels.draw import SamplingParams
from equipoise.kernels.plain_drafts import TOKEN, slots_for
from equipoise.policy import Policy
from equipoise.policy.layer import describe
from equipoise.rollout.blocks import WINDOW, Size, Tables

LISTED = 1 << 24  # ids of all supports of a window: 64 MiB, 512 a draw with 2,048 rows
GraphKey = tuple[int, SamplingParams]


class Window(NamedTuple):
    """What came back of a window of steps, for its rows [r]."""

    tokens: NDArray[np.int64]  # [m, r] of which each row has its own number
    logprobs: NDArray[np.float32]  # [m, r]
    given: NDArray[np.int64]  # [steps, r] tokens of each step
    tried: NDArray[np.int64] | None  # [steps, r] drafts of each step; first tokens have none
    recent: NDArray[np.int64]  # [r, reach] last tokens


class StepBuffers:
    """Buffers that keep their addresses: the tables of `DecodeRows` on the host and on the device,
    and what a step writes; and the graphs that know these addresses.
    """

    def __init__(self, policy: Policy, size: Size) -> None:
        device, core = policy.device, policy.core
        self.size = size
        pinned = device.type == "cuda"
        entries = sum(int(np.prod(s)) for s in size.shapes)
        self._host = (
            torch.zeros(entries, dtype=torch.int32, pin_memory=pinned),
            torch.zeros((1 + size.reach) * size.rows, dtype=torch.int64, pin_memory=pinned),
        )
        self._device = tuple(torch.zeros_like(h, device=device) for h in self._host)
        self.tables = Tables(size, *(h.numpy() for h in self._host))
        split = self._device[0].split([int(np.prod(s)) for s in size.shapes])
        self.rows = DecodeRows(*(part.view(s) for part, s in zip(split, size.shapes, strict=True)))
        self.keys, recent = self._device[1].split((size.rows, size.reach * size.rows))
        most = WINDOW * size.width, size.rows
        self.record = StepRecord(
            at=torch.zeros(1, dtype=torch.int64, device=device),
            recent=recent.view(size.rows, size.reach),
            advanced=torch.zeros(size.rows, dtype=torch.int32, device=device),
            tokens=torch.zeros(most, dtype=torch.int64, device=device),
            logprobs=torch.zeros(most, device=device),
            passes=torch.zeros(2, WINDOW, size.rows, dtype=torch.int32, device=device),
        )
        # positions of a step's draws, from the row's length on
        self.ahead = torch.arange(1, size.width + 1, dtype=torch.int32, device=device)
        self.memory = _memory(size, core.config.vocab_size, device) if size.drafts else None
        self.supports: Supports | None = None  # made where a call truncates
        self._back = tuple(
            torch.empty_like(t, device="cpu", pin_memory=pinned) for t in self._results()
        )
        self.last = torch.zeros(
            size.prompts, core.config.hidden_size, dtype=policy.dtype, device=device
        )
        positions = torch.arange((size.most + size.most_prompt) * BLOCK, device=device)
        parts = describe(core)
        rope = parts.rope(self.last, positions)
        self.rope = torch.cat(tuple(rope), -1).float()  # [positions, D]: cos and sin
        rotates = all(layer.rotates for layer in parts.layers)
        self.no_rotation = (
            self.rope if rotates else torch.cat(tuple(rope.without_rotation()), -1).float()
        )
        self._event = torch.cuda.Event() if pinned else None
        self.graphs: dict[GraphKey, torch.cuda.CUDAGraph] = {}
        self._warm: set[GraphKey] = set()
        self._stale: list[torch.cuda.CUDAGraph] = []
        self._side = torch.cuda.Stream(device) if pinned else None
        self._anchor: tuple[int, ...] = ()

    def anchor(self, addresses: tuple[int, ...]) -> None:
        """Where the cache and the weights are now; if they have moved, the graphs are worthless."""
        if addresses != self._anchor:
            if self.graphs:
                logging.getLogger(__name__).debug(
                    "cache or weights have moved: %d graphs go", len(self.graphs)
                )
            self._stale += self.graphs.values()  # until the next one has taken over their memory
            self.graphs.clear()
            self._anchor = addresses

    def graph(self, key: GraphKey, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """The graph of this step, captured if there is none. By hand: torch's own way of doing it
        would first give all unused memory back to the device, which training then has to ask for
        again at every step.
        """
        if key not in self.graphs:
            assert self._side is not None
            self.empty()
            graph = torch.cuda.CUDAGraph()
            memory = next((g.pool() for g in (*self.graphs.values(), *self._stale)), None)
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                # kernels are compiled and libraries warmed up outside the capture
                if key not in self._warm:
                    step()
                    self._warm.add(key)
                with _no_collection():
                    # Other threads (a listener's) may use the device meanwhile.
                    graph.capture_begin(memory, capture_error_mode="thread_local")
                    try:
                        step()
                    finally:
                        graph.capture_end()
            torch.cuda.current_stream().wait_stream(self._side)
            self._stale.clear()
            self.graphs[key] = graph
        return self.graphs[key]

    def upload(self) -> None:
        for there, here in zip(self._device, self._host, strict=True):
            there.copy_(here, non_blocking=True)
        self._begin()

    def empty(self) -> None:
        """As if all rows were padding: what a step does then harms nobody."""
        for there in self._device:
            there.zero_()
        self.rows.members.fill_(-1)
        self._begin()

    def _begin(self) -> None:
        self.record.at.zero_()
        self.record.advanced.zero_()
        if self.supports is not None:
            self.supports.listed.zero_()

    def _results(self) -> tuple[Tensor, ...]:
        record = self.record
        return record.tokens, record.logprobs, record.passes, record.recent

    def download(self) -> None:
        """Start bringing back what the steps have drawn; `ready` says when it is there."""
        for here, there in zip(self._back, self._results(), strict=True):
            here.copy_(there, non_blocking=True)
        if self.supports is not None:
            self.supports.download()
        if self._event is not None:
            self._event.record()

    def ready(self) -> bool:
        return self._event is not None and self._event.query()

    def results(self, steps: int, rows: int) -> Window:
        """Of the last steps, and views: the next download overwrites them. Waits for the device."""
        if self._event is not None:
            self._event.synchronize()
        tokens, logprobs, passes, recent = (t.numpy() for t in self._back)
        most = steps * self.size.width
        given, tried = passes[:, :steps, :rows].astype(np.int64)
        return Window(tokens[:most, :rows], logprobs[:most, :rows], given, tried, recent[:rows])


def _memory(size: Size, vocabulary: int, device: torch.device) -> Memory:
    if vocabulary > TOKEN:
        raise ValueError(
            f"drafts are looked up among at most {TOKEN:,} tokens, and this vocabulary has {vocabulary:,}; "
            "set speculation = 0"
        )
    slots = slots_for((size.n * size.most + size.most_prompt) * BLOCK)
    return Memory(
        torch.zeros(size.prompts, slots, dtype=torch.int64, device=device),
        torch.zeros(1, dtype=torch.int64, device=device),
    )


class Supports:
    """The supports of a window's draws, listed one behind the other as steps draw them,
    at addresses that stay.

    What no longer fits into the list is counted all the same,
    so the host sees that it must take fewer steps.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self.ids = torch.zeros(LISTED, dtype=torch.int32, device=device)
        self.listed = torch.zeros(1, dtype=torch.int64, device=device)
        # where each begins, and its size
        self.places = torch.zeros(2, WINDOW, rows, dtype=torch.int64, device=device)
        self._here = torch.empty_like(self.places, device="cpu", pin_memory=device.type == "cuda")

    def add(self, kept: Tensor, at: Tensor, rows: slice) -> None:
        """Those of `rows`, kept [r, V], in step `at` [1] of the window."""
        size = kept.sum(1)
        begin = self.listed + size.cumsum(0) - size
        decode.list_kept(kept, begin, self.ids)
        self.places[:, :, rows].index_copy_(1, at, torch.stack((begin, size))[:, None])
        self.listed += size.sum()

    def download(self) -> None:
        self._here.copy_(self.places, non_blocking=True)

    def results(self, steps: int, rows: int) -> tuple[NDArray[np.int64], Tensor | None]:
        """Where each begins and its size, [2, steps, rows], and a copy of all ids; None if they did
        not fit. To be called when the step's own results have come.
        """
        listed = int(self.listed)
        fits = listed <= len(self.ids)
        return self._here.numpy()[:, :steps, :rows], self.ids[:listed].clone() if fits else None


@contextmanager
def _no_collection() -> Iterator[None]:
    """An old cache that the garbage collector finds during a capture would end the process:
    its memory cannot be given back then.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

"""Where a step's batch comes from: sampled when it is asked for, or (`rollout.ahead = 1`) while the
batch before it trains.

Ahead, a thread samples and scores batch k+1 with a copy of the weights from before update k: the
weights that batch k+1 trains are one step newer than those that drew it, and its log π_old is of
those that drew it. What is drawn follows from the seed, the step and the prompt, never from how the
two threads meet. Whole batches, not whichever responses end first: those would be the short ones,
and a batch of them is a biased one.

On CUDA the thread has a stream of its own. The copy is refreshed by the trainer's stream while
nobody samples, and the thread's stream waits for that; the thread waits for its stream before it
hands a batch over. A checkpoint has the copy's weights, so a resumed run samples the batch again.
Not covered: vLLM, weights that ranks share, more than one batch ahead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Any

import torch
from torch import Tensor

from equipoise import policy as models
from equipoise.rollout import PagedSampler
from equipoise.rollout import sampler as native_sampler
from equipoise.train import ranks
from equipoise.train.batch import Collector, StepBatch
from equipoise.train.folder import RunError
from equipoise.train.history import PromptHistory
from equipoise.train.planner import share_of_sampler
from equipoise.train.update import Updater

LOOK = 1.0  # seconds between two looks at whether the thread still lives
GOODBYE = 60.0  # seconds that a thread has to stop in; it waits for verdicts asked for

Seconds = dict[str, float]


def open_batches(collector: Collector) -> OnPolicy | Ahead:
    """What the collector samples with the weights as they are or, ahead, with a snapshot of them."""
    config = collector.config
    if not config.rollout.ahead:
        return OnPolicy(collector)
    snapshot = models.Snapshot(collector.policy)
    stopped = threading.Event()
    collector.policy = snapshot.policy
    options = config.rollout.sampler_options()
    collector.sampler = native_sampler(snapshot.policy, stopped, **options)
    collector.group = ranks.another_group()
    return Ahead(collector, snapshot, stopped, last=config.train.steps)


class OnPolicy:
    """Each batch is sampled with the weights that it trains first."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.metrics: dict[str, float] = {}

    @property
    def seconds(self) -> Seconds:
        return self.collector.seconds

    @property
    def history(self) -> PromptHistory:
        return self.collector.history

    def take(self, step: int, updater: Updater) -> StepBatch:
        # the sampler reads whole weights, also where ranks share them
        with updater.whole():
            return self.collector.collect(step)

    def wait(self) -> None:
        """Nothing is ever under way."""

    def close(self) -> None:
        """Nothing is held."""

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.collector.position, "history": self.history.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _rewind(self.collector, state)


class Ahead:
    """`stopped`: set, it stops the collector's sampler; `last`: the run's last step, after which
    nothing is sampled.

    position, history: as of the batches taken; the collector's own are the thread's, and further.
    updates: optimizer steps that the copy's weights have seen; None before there are any.
    """

    def __init__(
        self,
        collector: Collector,
        snapshot: models.Snapshot,
        stopped: threading.Event,
        last: int,
    ) -> None:
        self.collector = collector
        self.snapshot = snapshot
        self.stopped = stopped
        self.last = last
        self.metrics: dict[str, float] = {}
        self.seconds: Seconds = {}
        self.position, self.history = 0, collector.history.copy()
        self.updates: int | None = None
        self._pending: Future[tuple[StepBatch, Seconds]] | None = None
        self._thread: threading.Thread | None = None
        cuda = snapshot.policy.device.type == "cuda"
        self._stream = torch.cuda.Stream(snapshot.policy.device) if cuda else None

    def take(self, step: int, updater: Updater) -> StepBatch:
        """The batch of this step; that of the next is begun, with the weights as they are now."""
        asked = time.perf_counter()
        if self._pending is None:  # the first of a process
            self._divide_memory(updater)
            if self.updates is None:
                self._refresh(updater)
            self._begin(step)
        batch, seconds = self._result()
        self.seconds = {**seconds, "wait": time.perf_counter() - asked}
        self.metrics = {"rollout/lag": float(updater.updates - (self.updates or 0))}
        # Passes are measured while nobody samples: their peak would be the sampler's too.
        if batch.texts:
            updater.make_plan(batch)
        self._refresh(updater)
        if step < self.last:
            self._begin(step + 1)
        return batch

    def wait(self) -> None:
        """Until nobody samples. What the thread raised is raised by `take`."""
        if self._pending is not None:
            self._settled(self._pending)

    def close(self) -> None:
        """Stop the sampler and wait a while for its thread. It is a daemon: one that hangs in
        somebody's reward function ends with the process.
        """
        self.stopped.set()
        if self._thread is not None:
            self._thread.join(GOODBYE)

    def state_dict(self) -> dict[str, Any]:
        """With the weights that sample the next batch: they are in no other file."""
        weights = [weight.cpu() for weight in self.snapshot.weights]
        return {
            "position": self.position,
            "history": self.history.state_dict(),
            "ahead": {"weights": weights, "updates": self.updates},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _rewind(self.collector, state)
        self.position, self.history = self.collector.position, self.collector.history.copy()
        self.snapshot.load(state["ahead"]["weights"])
        self.updates = state["ahead"]["updates"]

    def _divide_memory(self, updater: Updater) -> None:
        config, to_come = updater.config, updater.optimizer.bytes_to_come()
        updater.beside = share_of_sampler(self.snapshot.policy, config.train.memory_cap, to_come)
        sampler = self.collector.sampler
        if isinstance(sampler, PagedSampler):
            sampler.most = updater.beside

    def _refresh(self, updater: Updater) -> None:
        """Between optimizer steps and while nobody samples, so the weights are of one moment."""
        self.position, self.history = self.collector.position, self.collector.history.copy()
        self.snapshot.refresh()
        self.updates = updater.updates

    def _begin(self, step: int) -> None:
        if self._stream is not None:
            # All that the trainer's stream was given so far, the refresh among it.
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        self._pending = Future()
        self._thread = threading.Thread(
            target=self._collect, args=(step, self._pending), name=f"sampler {step}", daemon=True
        )
        self._thread.start()

    def _collect(self, step: int, done: Future[tuple[StepBatch, Seconds]]) -> None:
        """In the thread."""
        try:
            with self._own_stream():
                batch = self.collector.collect(step)
            done.set_result((batch, self.collector.seconds))
        except BaseException as error:  # raised again by `take`, in the trainer's thread
            done.set_exception(error)

    @contextlib.contextmanager
    def _own_stream(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        # A new thread begins with the first card and its default stream.
        with torch.cuda.device(self._stream.device), torch.cuda.stream(self._stream):
            try:
                yield
            finally:
                self._stream.synchronize()

    def _result(self) -> tuple[StepBatch, Seconds]:
        assert self._pending is not None
        self._settled(self._pending)
        batch, seconds = self._pending.result()
        if self._stream is not None:
            _keep_for(torch.cuda.current_stream(self._stream.device), batch)
        return batch, seconds

    def _settled(self, pending: Future[Any]) -> None:
        """Wait for the thread, in turns: a signal is heard, and a thread that died is noticed."""
        while not wait([pending], LOOK).done:
            if self._thread is None or not self._thread.is_alive():
                raise RunError("the sampling thread ended without a batch; resume the run")


def _rewind(collector: Collector, state: dict[str, Any]) -> None:
    collector.position = state["position"]
    # absent in the first runs
    collector.history.load_state_dict(state.get("history", {"seen": {}}))


def _keep_for(stream: torch.cuda.Stream, part: Any) -> None:
    """Have the allocator know that `stream` uses a batch's tensors: freed, their memory would go
    back to the thread's stream at once, while kernels of this one still read it.
    """
    if isinstance(part, Tensor) and part.is_cuda:
        part.record_stream(stream)
    elif dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            _keep_for(stream, getattr(part, field.name))

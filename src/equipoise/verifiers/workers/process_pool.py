"""A pool of worker processes that call one function with a hard deadline each.

A job is a list of JSON values; its outcome is a Verdict, or a float from a function that gives
numbers. Jobs run beside whatever the caller does: a thread of the pool hands them out and takes the
replies, and futures keep them apart. A worker that passes the deadline is killed with everything in
its session, one that dies, answers nonsense or answers without the job's ticket (its number and
nonce) is replaced, and either costs its own job only. Nothing is unpickled.

The deadline counts the time a worker could have run: waiting for a core that others hold is not its
fault. So the verdicts are the same with two workers and with sixty-four. (Linux says how long a
process ran and waited; elsewhere it is plain time.) `Pool.submit` blocks while `DEPTH` jobs are unfinished,
so a fast producer cannot fill the memory.

Not covered: a pool does not isolate what its workers do.
The caller chooses what rights they keep (`confine`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from equipoise.verifiers.verdict import Reply, Verdict, decode
from equipoise.verifiers.workers.deadline import PATIENCE, SHORTEST, is_runnable
from equipoise.verifiers.workers.worker import (
    FORK,
    HEAD,
    KILL,
    LONGEST_JOB,
    LONGEST_REPLY,
    PID,
    TICKET,
    frame,
)

DEPTH = 4096
RECYCLE = 5000  # jobs after which a worker makes room for a fresh one: libraries leak, caches grow
START_SECONDS = 120.0
RUNS_AT_ONCE = "EQUIPOISE_RUNS_AT_ONCE"  # in the environment: runs that share the cores
OVER_BUDGET = "the total budget was used up before its turn"
BOOT = (
    "import sys, json, socket; s = json.loads(sys.argv[1]); sys.path[:] = s['path']; "
    "from equipoise.verifiers.workers.worker import main; main(socket.socket(fileno=s['fd']), s)"
)

Given = TypeVar("Given", bound=Reply)  # what a pool's function gives


class PoolError(RuntimeError):
    """Workers cannot be started at all; the message is one sentence for the user."""


@dataclass(eq=False)
class _Job:
    ticket: bytes
    data: bytes
    seconds: float
    expires: float  # on the clock of time.monotonic
    future: Future[Any] = field(default_factory=Future)  # of what the pool's function gives


@dataclass(eq=False)
class _Worker:
    pid: int
    channel: socket.socket
    jobs: int = 0
    job: _Job | None = None
    started: float = 0.0
    ran: float = 0.0  # on a core, up to the start of the job
    waited: float = 0.0  # for a core, likewise
    check: float = 0.0  # when to look whether the deadline has passed
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    reply: bytearray = field(default_factory=bytearray)


class Pool(Generic[Given]):
    """`target`: a `module:function`; `confine`: one that a fresh worker calls to give up rights.

    `preload` names modules the fork server imports once, for what is slow to import and safe to
    fork; `quiet` discards what workers print; `environment` replaces the caller's. Workers start
    when there is work.
    """

    def __init__(
        self,
        target: str,
        *,
        workers: int | None = None,
        confine: str | None = None,
        preload: Sequence[str] = (),
        quiet: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.target = target
        self.size = workers or cores()
        if self.size < 1:
            raise ValueError(f"workers = {workers}: must be at least 1")
        self._setup = {
            "target": target,
            "confine": confine,
            "preload": list(preload),
            "quiet": quiet,
        }
        self._environment = dict(os.environ if environment is None else environment)
        self._jobs: deque[_Job] = deque()
        self._numbers = itertools.count()
        self._room = threading.Semaphore(DEPTH)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._failure: BaseException | None = None
        self._bell, self._ear = socket.socketpair()
        for end in (self._bell, self._ear):
            end.setblocking(False)
        self._fork_server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._idle: list[_Worker] = []
        self._busy: dict[socket.socket, _Worker] = {}

    def submit(
        self, *arguments: Any, seconds: float, expires: float = float("inf")
    ) -> Future[Given]:
        """Queue one call: `seconds` once it runs, not begun after `expires` (time.monotonic)."""
        data = json.dumps(arguments).encode()
        if len(data) > LONGEST_JOB - TICKET:
            done: Future[Any] = Future()
            done.set_result(
                Verdict("limit", f"{len(data)} bytes to verify: must be at most {LONGEST_JOB}")
            )
            return done
        self._room.acquire()
        ticket = next(self._numbers).to_bytes(8, "big") + secrets.token_bytes(TICKET - 8)
        job = _Job(ticket, frame(ticket + data), seconds, expires)
        with self._lock:
            if self._closed:
                self._room.release()
                raise self._failure or ValueError("the pool is closed")
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"pool {self.target}", daemon=True
                )
                self._thread.start()
        self._ring()
        return job.future

    def close(self) -> None:
        """End all workers; jobs that were not done are cancelled."""
        with self._lock:
            self._closed = True
        self._ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        else:
            self._release()

    def __enter__(self) -> Pool[Given]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # a full bell is a bell that was rung
            self._bell.send(b"!")

    def _run(self) -> None:
        """The pool's thread: it alone touches workers."""
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._ear, selectors.EVENT_READ)
                while not self._closed:
                    self._hand_out(selector)
                    now = time.monotonic()
                    nearest = min((w.check for w in self._busy.values()), default=now + 3600)
                    for key, events in selector.select(max(nearest - now, 0)):
                        if key.fileobj is self._ear:
                            with contextlib.suppress(BlockingIOError):
                                self._ear.recv(1 << 16)
                        else:
                            self._exchange(selector, self._busy[key.fileobj], events)  # type: ignore[index]
                    self._enforce(selector)
        except BaseException as error:
            self._failure = error
        finally:
            self._release()

    def _release(self) -> None:
        with self._lock:
            self._closed = True
            left = [*self._jobs, *(w.job for w in self._busy.values() if w.job is not None)]
            self._jobs.clear()
        for worker in [*self._idle, *self._busy.values()]:
            worker.channel.close()
        self._idle.clear()
        self._busy.clear()
        self._end_fork_server()
        self._bell.close()
        self._ear.close()
        for job in left:
            if self._failure is None:
                job.future.cancel()
            else:
                job.future.set_exception(self._failure)
            self._room.release()

    def _hand_out(self, selector: selectors.BaseSelector) -> None:
        while self._jobs and (self._idle or len(self._busy) < self.size):
            if self._jobs[0].future.cancelled() or time.monotonic() >= self._jobs[0].expires:
                self._finish(self._jobs.popleft(), Verdict("timeout", OVER_BUDGET))
                continue
            worker = self._ready() or self._fork()
            job = self._jobs.popleft()
            worker.job, worker.jobs = job, worker.jobs + 1
            worker.started = time.monotonic()
            worker.ran, worker.waited = _ran_and_waited(worker.pid)
            worker.check = worker.started + job.seconds
            worker.unsent = memoryview(job.data)
            worker.reply.clear()
            self._busy[worker.channel] = worker
            selector.register(worker.channel, selectors.EVENT_READ | selectors.EVENT_WRITE)
            # now: its time runs while others are forked
            self._exchange(selector, worker, selectors.EVENT_WRITE)

    def _exchange(self, selector: selectors.BaseSelector, worker: _Worker, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE and worker.unsent:
                worker.unsent = worker.unsent[worker.channel.send(worker.unsent) :]
                if not worker.unsent:
                    selector.modify(worker.channel, selectors.EVENT_READ)
            if not events & selectors.EVENT_READ:
                return
            part = worker.channel.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:  # it died with the job unread
            part = b""
        worker.reply += part
        assert worker.job is not None
        outcome = _complete(worker.reply, worker.job.ticket)
        if part and outcome is None:
            return
        if outcome is None or isinstance(outcome, Exception):
            self._replace(selector, worker, outcome)
            return
        job = self._dismiss(selector, worker)
        if worker.jobs >= RECYCLE:
            self._end(worker)
        else:
            self._idle.append(worker)
        self._finish(job, _timed(outcome, time.monotonic() - worker.started))

    def _replace(
        self, selector: selectors.BaseSelector, worker: _Worker, error: Exception | None
    ) -> None:
        job = self._dismiss(selector, worker)
        status = self._end(worker)
        if error is not None:
            reason = f"the worker's reply was not a verdict: {error}"
        elif os.WIFSIGNALED(status):
            reason = f"the worker was killed by {signal.Signals(os.WTERMSIG(status)).name}"
        else:
            reason = f"the worker ended with status {os.waitstatus_to_exitcode(status)}"
        self._finish(job, Verdict("crashed", reason, time.monotonic() - worker.started))

    def _enforce(self, selector: selectors.BaseSelector) -> None:
        now = time.monotonic()
        for worker in [w for w in self._busy.values() if now >= w.check]:
            job = worker.job
            assert job is not None
            used = _used(worker, now)
            most = min(worker.started + PATIENCE * job.seconds, job.expires + job.seconds)
            if used < job.seconds and now < most:
                worker.check = min(now + max(job.seconds - used, SHORTEST), most)
                continue
            self._dismiss(selector, worker)
            self._end(worker)
            self._finish(
                job, Verdict("timeout", f"killed after {job.seconds:g} s", now - worker.started)
            )

    def _dismiss(self, selector: selectors.BaseSelector, worker: _Worker) -> _Job:
        selector.unregister(worker.channel)
        del self._busy[worker.channel]
        job, worker.job = worker.job, None
        assert job is not None
        return job

    def _finish(self, job: _Job, outcome: Reply) -> None:
        if job.future.set_running_or_notify_cancel():
            job.future.set_result(outcome)
        self._room.release()

    def _ready(self) -> _Worker | None:
        """An idle worker that is still there: one that the system killed is no job's fault."""
        while self._idle:
            worker = self._idle.pop()
            try:
                worker.channel.recv(1)
            except BlockingIOError:
                return worker
            except OSError:
                pass
            self._end(worker)
        return None

    def _fork(self) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            for attempt in (1, 2):
                control = self._control or self._start_fork_server()
                try:
                    socket.send_fds(control, [FORK + PID.pack(0)], [theirs.fileno()])
                    pid = _number(control)
                    break
                except OSError as error:
                    # killed, perhaps for memory: its workers are gone with it
                    self._end_fork_server()
                    if attempt == 2:
                        raise PoolError(
                            f"{self.target}: worker processes cannot be started: {error}"
                        ) from error
        ours.setblocking(False)
        return _Worker(pid, ours)

    def _end(self, worker: _Worker) -> int:
        """Kill, reap and forget; returns the wait status."""
        worker.channel.close()
        if self._control is None:
            return signal.SIGKILL
        try:
            self._control.sendall(KILL + PID.pack(worker.pid))
            return _number(self._control)
        except OSError:
            self._end_fork_server()
            return signal.SIGKILL

    def _start_fork_server(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            setup = {
                **self._setup,
                "path": [os.path.abspath(p) for p in sys.path],
                "fd": theirs.fileno(),
            }
            self._fork_server = subprocess.Popen(
                [sys.executable, "-c", BOOT, json.dumps(setup)],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=2,
                env=self._environment,
            )
        ours.settimeout(START_SECONDS)
        try:
            _number(ours)
        except OSError as error:
            ours.close()
            self._end_fork_server()
            raise PoolError(
                f"{self.target}: worker processes cannot be started: {error}"
            ) from error
        self._control = ours
        for worker in self._idle:  # of a fork server that is gone
            worker.channel.close()
        self._idle.clear()
        return ours

    def _end_fork_server(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._fork_server is not None:
            try:
                self._fork_server.wait(5)
            except subprocess.TimeoutExpired:
                self._fork_server.kill()
                self._fork_server.wait()
            self._fork_server = None


def in_order(futures: Iterable[Future[Given]]) -> list[Given]:
    """The outcomes in the order of the jobs, when all are there."""
    return [future.result() for future in futures]


def cores() -> int:
    """Cores for this process: under torchrun, or as one of several runs of a study, its share of the
    machine's.
    """
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    sharing = (int(os.environ.get(name, 1)) for name in ("LOCAL_WORLD_SIZE", RUNS_AT_ONCE))
    return max(1, here // math.prod(sharing))


def _number(control: socket.socket) -> int:
    data = b""
    while len(data) < PID.size:
        part = control.recv(PID.size - len(data))
        if not part:
            raise ConnectionError("the process that starts them ended")
        data += part
    return int(PID.unpack(data)[0])


def _complete(reply: bytearray, ticket: bytes) -> Reply | Exception | None:
    """The outcome in a whole reply with the job's ticket, an error, or None while it lacks some."""
    if len(reply) < HEAD.size:
        return None
    (length,) = HEAD.unpack_from(reply)
    if length > LONGEST_REPLY or len(reply) > HEAD.size + length:
        return ValueError("too long")
    if len(reply) < HEAD.size + length:
        return None
    body = bytes(reply[HEAD.size :])
    if not secrets.compare_digest(body[:TICKET], ticket):
        return ValueError("it is not the reply to this job")
    try:
        return decode(body[TICKET:])
    except ValueError as error:
        return error


def _timed(outcome: Reply, seconds: float) -> Reply:
    if not isinstance(outcome, Verdict):
        return outcome
    return Verdict(outcome.kind, outcome.reason, seconds, outcome.value, outcome.answer)


def _used(worker: _Worker, now: float) -> float:
    """Seconds of the deadline its job has used.

    Linux adds a wait to its count when the wait ends. So of a worker that is runnable, and may be
    waiting now, only the time on a core is certain.
    """
    ran, waited = _ran_and_waited(worker.pid)
    if ran and is_runnable(worker.pid):
        return ran - worker.ran
    return now - worker.started - (waited - worker.waited)


def _ran_and_waited(pid: int) -> tuple[float, float]:
    """Seconds the process was on a core, and ready without one; 0 where the system is silent."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            ran, waited, _ = file.read().split()
            return int(ran) / 1e9, int(waited) / 1e9
    except (OSError, ValueError):
        return 0.0, 0.0

"""Under `make coverage`: lines that run in the verifiers' worker processes count as well.

A worker is forked by a fork server, gives up writing files, and ends by SIGKILL, so coverage.py alone
sees nothing of it. The fork server imports this module (conftest.py) and asks a worker for its counts
before it kills it; they come back over a pipe, for a file beside EQUIPOISE_COUNTS. Not counted: a
worker that was killed from elsewhere or does not answer (one that hangs, as in tests of deadlines),
and the fork server's own loop.
"""

import contextlib
import os
import select
import signal
from pathlib import Path

import coverage

from equipoise.verifiers.workers import worker

ROOT = Path(__file__).parents[1]
PATIENCE = float(os.environ.get("EQUIPOISE_COUNTS_PATIENCE", "1"))  # seconds for the counts of a worker, which may hang
sources: dict[int, int] = {}  # of each worker, the end of the pipe that its counts come out of
_fork, _exit, _end = os.fork, os._exit, worker._end


def fork():
    source, sink = os.pipe()
    pid = _fork()
    if pid == 0:
        os.fork = _fork  # what a worker forks is no worker
        os.close(source)
        _count(sink)
        return 0
    os.close(sink)
    sources[pid] = source
    return pid


def _count(sink):
    """In a fresh worker: count from here; SIGTERM, or its own end, sends what was counted so far."""
    counts = coverage.Coverage(data_file=None, config_file=str(ROOT / "pyproject.toml"))
    counts.start()
    left = [sink]

    def send(*_):
        if left:  # a SIGTERM may come while it ends
            with open(left.pop(), "wb") as out:
                counts.stop()
                out.write(counts.get_data().dumps())

    def leave(status):
        send()
        _exit(status)

    signal.signal(signal.SIGTERM, send)
    os._exit = leave


def end(pid):
    data = _counts(pid, sources.pop(pid))
    if data:
        # A name of its own: `coverage combine` takes files that it finds named alike for one.
        suffix = f"{os.getpid()}.{pid}"
        found = coverage.CoverageData(os.environ["EQUIPOISE_COUNTS"], suffix=suffix)
        found.loads(data)
        found.write()
    return _end(pid)


def _counts(pid, source):
    """What the worker has counted; nothing where it does not answer."""
    data = b""
    with open(source, "rb", buffering=0) as pipe, contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        while select.select([pipe], [], [], PATIENCE)[0]:
            part = pipe.read(1 << 16)
            if not part:
                return data
            data += part
    return b""


os.fork = fork
worker._end = end

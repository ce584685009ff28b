"""How benchmarks on CUDA take times, and how they bound what a peer may take before it is called a failure."""

from __future__ import annotations

import contextlib
import signal
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch


def seconds(call: Callable[[], Any], least: int = 2, budget: float = 0.6) -> float:
    """Median over as many calls as fit the budget, after one that warms up."""
    call()
    times: list[float] = []
    while len(times) < least or (sum(times) < budget and len(times) < 50):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


@contextlib.contextmanager
def bounded(limit: float) -> Iterator[None]:
    """TimeoutError once `limit` seconds have passed. Python code is stopped, a call that never returns to it is not."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"took longer than {limit:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def attempt(measure: Callable[[], dict[str, Any]], limit: float) -> dict[str, Any]:
    """What was measured, or {"failed": why} in one line: one peer's failure is a result, not the end of the others."""
    if limit <= 0:
        return {"failed": "no time left"}
    try:
        with bounded(limit):
            return measure()
    except ImportError as error:
        return {"failed": f"not installed ({error.name or error})"}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error) else ''}"}

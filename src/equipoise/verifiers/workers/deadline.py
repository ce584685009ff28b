"""Deadlines of CPU time and time asleep, whatever else the machine does: waiting is free.

A deadline of 6 s passes when the processes have used 6 s of CPU together, by their own count or a
cgroup's, if that is more, or when 6 s have gone by that they did not spend waiting for a core. (A
wait is counted when it ends, so the second is asked only while none of them may be waiting.)
However busy the machine is, it passes after `PATIENCE` times as long on the wall clock. Linux says
how long a process waited (/proc/PID/schedstat); where it does not, time asleep is plain time.
"""

from __future__ import annotations

import functools
import os
import time

PATIENCE = 10
_TICKS = os.sysconf("SC_CLK_TCK")
SHORTEST = 0.02  # seconds between two looks


class Deadline:
    """`seconds` from now, of `roots` and their descendants; of the wall clock without any.

    counters: files that count the CPU time of all of them, if there are such.
    """

    def __init__(
        self,
        seconds: float,
        roots: tuple[int, ...] = (),
        counters: tuple[str, ...] = (),
        *,
        within: Deadline | None = None,
    ) -> None:
        self.seconds, self.roots, self.counters, self.within = seconds, roots, counters, within
        self.began, self.over = time.monotonic(), False
        self.cpu, self.waited, _ = _used(roots, counters)

    def left(self) -> float:
        """Seconds after which to look again; 0 or less when it has passed."""
        outer = self.within.left() if self.within else float("inf")
        if not self.over:
            left = self._own_left()
            self.over = left <= 0  # for good, though a wait that ends later may be subtracted
        return min(outer, 0.0 if self.over else left)

    def _own_left(self) -> float:
        wall = time.monotonic() - self.began
        if not self.roots or wall * _cores() < self.seconds:
            return self.seconds - wall
        cpu, waited, runnable = _used(self.roots, self.counters)
        used = cpu - self.cpu
        if not runnable:
            used = max(used, wall - (waited - self.waited))
        left = min(self.seconds - used, PATIENCE * self.seconds - wall)
        return left if left <= 0 else max(left / _cores(), SHORTEST)

    def passed(self) -> bool:
        return self.left() <= 0

    def overspent(self) -> bool:
        """Of what has ended in time: whether its processes together used more CPU than it had."""
        if (time.monotonic() - self.began) * _cores() < self.seconds:
            return False
        return _used(self.roots, self.counters)[0] - self.cpu > self.seconds


@functools.cache
def _cores() -> int:
    return os.cpu_count() or 1


def is_runnable(pid: int) -> bool:
    """Whether the process is on a core or waiting for one."""
    try:
        return _stat(pid)[0] == "R"
    except (OSError, IndexError):
        return False


def _used(roots: tuple[int, ...], counters: tuple[str, ...] = ()) -> tuple[float, float, bool]:
    """CPU seconds and seconds of waiting for a core, of the processes and what descends from them,
    and whether any of them is runnable.
    """
    cpu, waited, runnable = 0.0, 0.0, False
    pids = list(roots)
    while pids:
        pid = pids.pop()
        try:
            # its own and that of children it has waited for
            stat = _stat(pid)
            cpu += sum(map(int, stat[11:15])) / _TICKS
            runnable |= stat[0] == "R"
            for thread in os.listdir(f"/proc/{pid}/task"):
                waited += int(_read(f"/proc/{pid}/task/{thread}/schedstat").split()[1]) / 1e9
                pids += _children(pid, thread)
        except (OSError, IndexError, ValueError):  # it ended meanwhile
            continue
    return max(cpu, sum(map(_counted, counters))), waited, runnable


def _counted(counter: str) -> float:
    """CPU seconds of a cgroup: `cpu.stat` of version 2, `cpuacct.usage` of version 1."""
    try:
        first, *others = _read(counter).split()
        return int(others[0]) / 1e6 if first == "usage_usec" else int(first) / 1e9
    except (OSError, ValueError):
        return 0.0


def _children(pid: int, thread: str) -> list[int]:
    try:
        return [int(child) for child in _read(f"/proc/{pid}/task/{thread}/children").split()]
    except FileNotFoundError:  # a kernel built without it
        return [
            child
            for child in map(int, filter(str.isdigit, os.listdir("/proc")))
            if _parent(child) == pid
        ]


def _parent(pid: int) -> int:
    try:
        return int(_stat(pid)[1])
    except (OSError, IndexError):
        return 0


def _stat(pid: int) -> list[str]:
    """The fields behind the command's name."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _read(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return file.read().decode("utf-8", "replace")

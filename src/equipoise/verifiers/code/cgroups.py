"""Cgroups that bound a sandbox as a whole, where they can be made: version 1, or 2 in the root.

Version 2 lets no other cgroup have both processes and children with bounds of their own, and to
move ourselves aside is not ours to do; a child that only counts CPU time may be made in any that is
ours to write. Where nothing can be made, nothing is bounded here; the resource limits of each
process remain.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

_serial = itertools.count()


@contextlib.contextmanager
def where_possible() -> Iterator[None]:
    """Go without a cgroup that cannot be had; but not for want of a descriptor, which passes."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise


@functools.cache
def folders() -> list[tuple[Path, dict[str, str]]]:
    """Where a child cgroup can be made, with the file that bounds each thing; or nothing."""
    files = {"memory": "memory.limit_in_bytes", "pids": "pids.max"}
    found = []
    with where_possible():
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            folder = Path("/sys/fs/cgroup") / controllers / path.lstrip("/")
            bounds = {name: file for name, file in files.items() if name in controllers.split(",")}
            counts = not controllers or "cpuacct" in controllers.split(",")
            with where_possible():
                if not controllers:
                    enabled = (folder / "cgroup.subtree_control").read_text().split()
                    both = {"memory": "memory.max", "pids": "pids.max"}
                    bounds = {name: file for name, file in both.items() if name in enabled}
                if (bounds or counts) and os.access(folder, os.W_OK):
                    found.append((folder, bounds))
    for folder, _ in found:
        _sweep(folder)
    return found


def _sweep(folder: Path) -> None:
    """Remove a killed process's cgroups: they are empty, for its sandboxes died with it."""
    for child in folder.glob("equipoise-*-*"):
        if not Path("/proc", child.name.split("-")[1]).exists():
            with contextlib.suppress(OSError):
                child.rmdir()


@contextlib.contextmanager
def bounded(bounds: dict[str, int]) -> Iterator[list[Path]]:
    """Cgroups that bound a sandbox's memory and processes as a whole, where possible."""
    made: list[Path] = []
    try:
        for folder, files in folders():
            with where_possible():
                child = folder / f"equipoise-{os.getpid()}-{next(_serial)}"
                child.mkdir()
                made.append(child)
                for name, file in files.items():
                    (child / file).write_text(str(bounds[name]))
        yield made
    finally:
        for child in made:
            _remove(child)


def join(made: list[Path], pid: int) -> None:
    for cgroup in made:
        with where_possible():
            (cgroup / "cgroup.procs").write_text(str(pid))


def counters(made: list[Path]) -> tuple[str, ...]:
    """The files, one or none, that count the CPU time of all that ran there, the dead too."""
    either = [str(cgroup / name) for cgroup in made for name in ("cpuacct.usage", "cpu.stat")]
    return tuple(filter(os.path.exists, either))[:1]


def _remove(cgroup: Path) -> None:
    """The kernel takes a moment to let go of the dead."""
    for wait in (0.0, 0.001, 0.01, 0.1, 1.0):
        time.sleep(wait)
        with contextlib.suppress(OSError):
            cgroup.rmdir()
            return

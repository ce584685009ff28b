"""The pools of this process: one for each kind of work, from first use to its end.

`math` workers hold SymPy and no rights; `code` workers start sandboxes; `remote` ones ask a runner
elsewhere; `user` workers run the reward functions of a configuration with the rights and the
environment of the caller.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any, Literal, overload

from equipoise.verifiers.verdict import Reply, Verdict
from equipoise.verifiers.workers.process_pool import Pool, cores

# What math and code workers keep of the environment. Hashes fixed:
# SymPy's answers may depend on the order of sets.
KEPT = ("PATH", "TMPDIR")
SET = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}

REMOTE = 16  # workers that wait for a runner elsewhere

_lock = threading.Lock()
_pools: dict[tuple[str, int], tuple[int, Pool[Any]]] = {}


@overload
def pool(kind: Literal["user"], workers: int = 0) -> Pool[Reply]: ...


@overload
def pool(kind: Literal["math", "code", "remote"], workers: int = 0) -> Pool[Verdict]: ...


def pool(kind: str, workers: int = 0) -> Pool[Any]:
    """`workers` 0: one for each core, two for code. A forked process gets pools of its own."""
    with _lock:
        owner, there = _pools.get((kind, workers), (0, None))
        if there is None or owner != os.getpid():
            there = _open(kind, workers)
            _pools[kind, workers] = os.getpid(), there
        return there


def _open(kind: str, workers: int) -> Pool[Any]:
    if kind == "user":
        return Pool("equipoise.verifiers.workers.functions:call", workers=workers)
    if kind == "remote":
        return Pool("equipoise.verifiers.code.remote:ask", workers=workers or REMOTE, quiet=True)
    # Starting a sandbox is a third waiting (the kernel makes and ends namespaces):
    # two workers fill a core.
    options: dict[str, Any] = {
        "workers": workers or (2 * cores() if kind == "code" else 0),
        "quiet": True,
    }
    options["environment"] = {name: os.environ[name] for name in KEPT if name in os.environ} | SET
    if kind == "math":
        options["preload"] = ("equipoise.verifiers.math.preload",)
        options["confine"] = "equipoise.verifiers.workers.confine:give_up_rights"
    return Pool(f"equipoise.verifiers.grade:{kind}_job", **options)


@atexit.register
def close() -> None:
    """End the worker processes; the next verdict starts new ones."""
    with _lock:
        mine = [there for owner, there in _pools.values() if owner == os.getpid()]
        _pools.clear()
    for there in mine:
        there.close()

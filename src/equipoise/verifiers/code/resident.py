"""A sandbox that stays: a warm process answers many requests, for work with slow imports.

`Resident(work, path).ask(request, seconds)` starts the sandbox of `verifiers.code.sandbox` on first
use, with the folders of `path` mounted read-only and on the import path, runs the module `work`
there (its `warm()` once, then `answer(request: bytes) -> str` for each request, in a process forked
from the warm one), and starts another sandbox after a crash. There is no unsafe variant: without a
sandbox `ask` raises `Unavailable`.

Not covered: a request whose evaluation takes over the answering process can answer for itself. Work
that evaluates what it is sent must refuse what is not plain data first, and is asked with `alone`:
the process then ends with its request.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
from pathlib import Path

from equipoise.verifiers.code import resident_guest, sandbox
from equipoise.verifiers.code.fork_server import compiled
from equipoise.verifiers.code.resident_guest import LONGEST_REPLY
from equipoise.verifiers.code.sandbox import Flood, Gone, Guest, Late, Limits, Unavailable
from equipoise.verifiers.workers.deadline import PATIENCE, Deadline

WARM_SECONDS = 180.0  # for the imports, on a machine that is busy
SLACK = 30.0  # beyond a request's own wall clock, which is kept inside
LIMITS = Limits(
    total_seconds=1e9, memory_bytes=4 << 30, processes=4, disk_bytes=64 << 20, output_bytes=1 << 20
)


class Ended(Exception):
    """The answering process ended, or wrote something that is no reply; the message says how."""


class Resident:
    """`work`: the file of a module of the standard library and of what `path` has."""

    def __init__(self, work: str, path: tuple[str, ...]) -> None:
        self._work, self._path = work, path
        self._stack = contextlib.ExitStack()
        self._guest: Guest | None = None
        self._cold: str | None = None  # why the work cannot be imported there: it will not change

    def ask(self, request: bytes, seconds: float, *, alone: bool = False) -> str:
        """The text of the answer. Raises Unavailable, Late (past `seconds` of CPU time) or Ended."""
        guest = self._guest or self._start()
        nonce = secrets.token_hex(16)
        deadline = Deadline(PATIENCE * seconds + SLACK)
        try:
            guest.send(f"{nonce} {seconds} {alone:d} {len(request)}\n".encode() + request, deadline)
            line = guest.line(deadline, LONGEST_REPLY + 100)
        except (Gone, Late, Flood) as error:
            self.close()
            raise Ended(f"the sandbox gave no answer ({type(error).__name__})") from None
        said, _, reply = line.decode("ascii", "replace").partition(" ")
        if not secrets.compare_digest(said.encode(), nonce.encode()):
            self.close()
            raise Ended("the reply was not the one to this request")
        kind, _, text = reply.partition(" ")
        if kind == "late":
            raise Late
        if kind != "done":
            raise Ended(f"the scorer ended without an answer ({text})")
        return text

    def close(self) -> None:
        self._guest = None
        self._stack.close()

    def _start(self) -> Guest:
        if (why := self._cold or sandbox.available()) is not None:
            raise Unavailable(why)
        mode = {
            "mode": "resident",
            "serve": compiled(resident_guest.__file__),
            "work": compiled(self._work),
        }
        stack = contextlib.ExitStack()
        try:
            guest = stack.enter_context(
                sandbox.run(LIMITS, {**mode, "path": list(self._path)}, packages=self._path)
            )
            said = guest.line(Deadline(WARM_SECONDS), 10_000)
        except (Gone, Late, Flood) as error:
            stack.close()
            raise Unavailable(f"the sandbox did not get warm ({type(error).__name__})") from None
        if said != b"warm":
            stack.close()
            self._cold = (
                f"the work cannot be imported in the sandbox: {said.decode('ascii', 'replace')}"
            )
            raise Unavailable(self._cold)
        self._stack, self._guest = stack, guest
        return guest


def packages() -> tuple[str, ...]:
    """The folders of installed packages on this interpreter's path."""
    folders = [
        str(Path(entry).resolve())
        for entry in sys.path
        if entry.endswith(("site-packages", "dist-packages"))
    ]
    return tuple(dict.fromkeys(folder for folder in folders if Path(folder).is_dir()))

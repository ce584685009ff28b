"""A process that forks a child for each run it is asked for: `python -m equipoise.run_server`.

With --import-first it imports the trainer once, before any fork. A child is an ordinary `equipoise
train`. The server ends when the process that started it does, and asks what still runs to stop
after its step. The side that asks is study/fork_server.py.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import Any, NoReturn

from equipoise import cli
from equipoise.verifiers.workers.process_pool import RUNS_AT_ONCE

# what a run imports sooner or later
IMPORTED_FIRST = (
    "equipoise.train",
    "transformers.models.auto",
    "transformers.models.llama.modeling_llama",
)


def serve() -> None:
    """Answer every line of stdin until its writer is gone; then nothing goes on running."""
    running: set[int] = set()
    for line in sys.stdin:
        number, request = json.loads(line)
        answer = _answer(request, running)
        try:
            print(json.dumps([number, answer]), flush=True)
        except BrokenPipeError:  # it is gone already
            break
    for pid in running:
        os.kill(pid, signal.SIGTERM)
    for pid in running:
        os.waitpid(pid, 0)


def _answer(request: dict[str, Any], running: set[int]) -> int | None:
    """The pid of a run that was started, or the exit status of one, None while it goes on."""
    if "start" in request:
        pid = os.fork()
        if pid == 0:
            os.environ[RUNS_AT_ONCE] = str(request["runs_at_once"])
            _be_the_run(request["start"], request["log"])
        running.add(pid)
        return pid
    ended, status = os.waitpid(request["poll"], os.WNOHANG)
    running.discard(ended)
    return os.waitstatus_to_exitcode(status) if ended else None


def _be_the_run(arguments: list[str], log: str) -> NoReturn:
    to_log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (to_log, 1), (to_log, 2)):
        os.dup2(source, target)
    cli.main(arguments)
    sys.exit(0)


if __name__ == "__main__":
    if "--import-first" in sys.argv:
        for module in IMPORTED_FIRST:
            importlib.import_module(module)
    serve()

"""A process that has imported everything once and forks a child per command, so that a test pays for the run alone.

It is itself forked from the process of the tests (conftest.py), when that has collected them: all is imported, and no
test has started a thread. A request is a line of JSON: {"start": arguments, "environment", "out", …} answers with a
pid, {"wait": pid, "timeout": seconds} with the exit status, or null when time is up. `die_at` = k has the child SIGKILL
itself at its k-th operation on the disk that makes, renames, syncs or removes something. `torchrun` are arguments for
torchrun, which is then given the command to start.
"""

import contextlib
import io
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TextIO

import torch

from equipoise import cli
from equipoise.train import Trainer

from .tiny import make_model, settings


def die_at(k: int) -> None:
    """Every second death comes after the operation, the others instead of it."""
    left = k

    def counted(operation):
        def call(*arguments, **options):
            nonlocal left
            left -= 2
            try:
                return operation(*arguments, **options) if left != -1 else None
            finally:
                if left in (-1, 0):
                    os.kill(os.getpid(), signal.SIGKILL)

        return call

    for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir"):
        setattr(os, name, counted(getattr(os, name)))
    torch.save = counted(torch.save)


def child(request: dict) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(request.get("environment", {}))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{request['out']}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    if request.get("die_at"):
        die_at(request["die_at"])
    code = 0
    try:
        if request.get("torchrun"):
            from torch.distributed.run import main as torchrun

            torchrun([*request["torchrun"], "-m", "equipoise", *request["start"]])
        else:
            cli.main(request["start"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait(pid: int, timeout: float) -> int | None:
    deadline = time.monotonic() + timeout
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.002)


def warm_up() -> None:
    """One step, so that the children inherit what is imported and initialised on first use."""
    quiet = contextlib.redirect_stdout(None), contextlib.redirect_stderr(io.StringIO())  # progress bars
    with tempfile.TemporaryDirectory() as folder, quiet[0], quiet[1]:
        model = make_model(Path(folder) / "model")
        Trainer(settings(model, Path(folder) / "run", train__steps=1, log__terminal=False)).run()


def serve(requests: TextIO, answers: TextIO) -> None:
    """Until no more requests can come."""
    torch.set_num_threads(1)
    alive, warm = set(), False
    for line in requests:
        if not warm:
            warm_up()
            warm = True
        request = json.loads(line)
        if "start" in request:
            answer = os.fork()
            if answer == 0:
                child(request)
            alive.add(answer)
        else:
            answer = wait(request["wait"], request["timeout"])
            if answer is not None:
                alive.discard(request["wait"])
        print(json.dumps(answer), file=answers, flush=True)
    for pid in alive:  # the test that started them has failed
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)

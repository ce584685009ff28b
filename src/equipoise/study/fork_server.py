"""Runs in processes of their own, forked from one that has imported the trainer (run_server.py).

Importing torch and transformers takes eight seconds of CPU, half of a run of the quickstart; several
runs pay for it once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Where one of these exists there is a GPU, and nothing is imported before the fork: what a library
# asks CUDA when it is imported would leave the forked children without one.
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


class ForkServer:
    """The side that asks. The process starts with the first run, or with `open`.

    `runs_at_once`: runs that share the machine's cores among them; each verifies with its share.
    """

    def __init__(self) -> None:
        self.runs_at_once = 1
        self._process: subprocess.Popen[str] | None = None
        self._asked = 0

    def open(self) -> subprocess.Popen[str]:
        """The process, started where it was not: it imports while the caller goes on."""
        if self._process is None:
            early = [] if any(map(os.path.exists, GPU_DEVICES)) else ["--import-first"]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "equipoise.run_server", *early],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                process_group=0,  # a Ctrl-C is for the process that asks, which ends the runs
            )
        return self._process

    def start(self, arguments: Sequence[str], log: Path) -> RunProcess:
        """`equipoise *arguments` in a process of its own, with one thread; its output goes to `log`."""
        request = {"start": list(arguments), "log": str(log), "runs_at_once": self.runs_at_once}
        return RunProcess(self, self.ask(request))

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()

    def ask(self, request: dict[str, Any]) -> Any:
        process = self.open()
        assert process.stdin is not None
        assert process.stdout is not None
        self._asked += 1
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps([self._asked, request]), file=process.stdin, flush=True)
        # A Ctrl-C may have come between an earlier question and its answer.
        for line in process.stdout:
            number, answer = json.loads(line)
            if number == self._asked:
                return answer
        from equipoise.train import RunError  # seconds, for a sentence that is seldom said

        raise RunError(
            "the process that starts the runs was ended; the same command goes on with them"
        )


class RunProcess:
    """A run under way, with the methods of a `Popen`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.server = server
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.server.ask({"poll": self.pid})
        return self.returncode

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.05)
        return code

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

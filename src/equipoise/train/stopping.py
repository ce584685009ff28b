"""Ctrl-C and SIGTERM, heard between steps."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

from equipoise.train.folder import RunError

STDERR = 2
HEARD = "stopping after this step; Ctrl-C again stops at once"


class Interrupted(RunError):
    """Stopped by Ctrl-C or SIGTERM after the step it was in; the checkpoint is written."""


class Stopping:
    wanted = False
    since = 0.0
    at_once = False


@contextlib.contextmanager
def graceful_stop() -> Iterator[Stopping]:
    """Ctrl-C and SIGTERM let the step finish; another Ctrl-C, a second later, stops at once.

    Not sooner, and not for SIGTERM: of one Ctrl-C a run under torchrun or the quickstart hears from
    the terminal and from its parent.
    """
    state = Stopping()

    def ask(signum: int, frame: Any) -> None:
        now = time.monotonic()
        if state.wanted and signum == signal.SIGINT and now - state.since > 1:
            state.at_once = True
            raise KeyboardInterrupt
        if not state.wanted:
            state.wanted, state.since = True, now
            if os.isatty(STDERR):
                os.write(STDERR, f"\n{HEARD}\n".encode())  # a print may be what was interrupted

    before: dict[int, Any] = {}
    try:
        for s in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # only the main thread may set handlers
                before[s] = signal.signal(s, ask)
        yield state
    except Exception as error:
        # torch.save, among others, answers what is raised in a file's `write` with an error of its own.
        if state.at_once:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

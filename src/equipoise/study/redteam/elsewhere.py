"""In a worker: a verifier of another checkout or environment, in a child process of the worker.

Imports little, because every worker does. The child is `serve.py` under the other interpreter.
Starting it may take as long as the worker has; the deadline of a call is counted here, because it
must not hold the start against the call.
"""

from __future__ import annotations

import functools
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from equipoise.verifiers.verdict import Verdict

Outcome = Verdict | float


def ask(prompt: str, response: str, row: dict[str, Any]) -> Outcome:
    """The verifier's outcome."""
    child, _ = _child(*row["target"])
    reply = _exchange(child, [prompt, response, row["row"]], row["seconds"])
    if reply is None:
        return Verdict("timeout", f"killed after {row['seconds']:g} s", row["seconds"])
    if "error" in reply:
        raise RuntimeError(reply["error"])
    if "kind" in reply:
        return Verdict(reply["kind"], reply["reason"], value=reply["value"])
    return float(reply["score"])


def version(prompt: str, response: str, row: dict[str, Any]) -> Verdict:
    return Verdict("correct", _child(*row["target"])[1])


@functools.cache
def _child(name: str, python: str, path: str) -> tuple[subprocess.Popen[str], str]:
    """The interpreter with the verifier, in the worker's session, and the verifier's version."""
    script = Path(__file__).with_name("serve.py")
    first = [os.path.abspath(path)] if path else []
    child = subprocess.Popen(
        [python or sys.executable, str(script), name, json.dumps(first)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    started = _reply(child)
    if "error" in started:
        child.kill()
        raise RuntimeError(started["error"])
    return child, started["version"]


def _exchange(
    child: subprocess.Popen[str], arguments: list[Any], seconds: float
) -> dict[str, Any] | None:
    """The child's reply; None where it took too long and was killed."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps(arguments) + "\n")
    child.stdin.flush()
    if not select.select([child.stdout], [], [], seconds)[0]:
        child.kill()
        child.wait()
        _child.cache_clear()  # the next call starts another
        return None
    return _reply(child)


def _reply(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        _child.cache_clear()
        raise RuntimeError(f"the verifier's process ended with status {child.wait()}")
    return json.loads(line)  # type: ignore[no-any-return]

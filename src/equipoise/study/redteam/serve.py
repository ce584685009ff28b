"""The far side of `--python` and `--path`: a verifier under another interpreter, in JSON lines.

Run as a script by that interpreter. It needs nothing but the standard library and the verifier
itself.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def main(name: str, path: list[str]) -> None:
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the verifier prints must not pass for a reply
    sys.path[:1] = path  # in the place of this script's own folder
    graders = _graders()
    try:
        function, reply = graders.resolve(name), {"version": graders.version(name)}
        # so that it has imported what it needs
        _reply(function, ["", "", {"answer": "0", "solution": "0"}])
    except Exception as error:
        function, reply = None, {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(reply), file=replies)
    for line in sys.stdin:
        print(json.dumps(_reply(function, json.loads(line))), file=replies)


def _graders() -> Any:
    """graders.py beside this file, whatever else is called so on the path."""
    spec = importlib.util.spec_from_file_location(
        "redteam_graders", Path(__file__).with_name("graders.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _reply(function: Any, arguments: list[Any]) -> dict[str, Any]:
    try:
        outcome = function(*arguments)
        if hasattr(outcome, "kind"):  # a Verdict of whatever version
            return {"kind": outcome.kind, "reason": outcome.reason, "value": outcome.value}
        return {"score": float(outcome)}
    except Exception:
        return {"error": traceback.format_exc(limit=-3)[-2000:]}


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))

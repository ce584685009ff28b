"""A list of exploits as regression tests: which of them does a verifier still accept?

>>> from equipoise.study.redteam import replay
>>> alive, count = replay("exploits.jsonl", "my_rewards:correct")
>>> assert not alive
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from equipoise.config import ConfigError
from equipoise.study.redteam.target import Target, accepted, settled

FIELDS = {"prompt", "response", "minimal", "truth", "why"}


def replay(path: str | Path, verifier: str | Target) -> tuple[list[dict[str, Any]], int]:
    """The exploits whose response or minimal form is accepted, and how many the list has."""
    target = Target(verifier) if isinstance(verifier, str) else verifier
    exploits = read(Path(path))
    asked = []
    for e in exploits:
        row = {"answer": str(e["truth"]), "solution": str(e["truth"])}
        texts = (e["response"], e["minimal"])
        asked.append((e, [target.submit(e["prompt"], text, row) for text in texts]))
    alive = [e for e, calls in asked if any(accepted(settled(call)) for call in calls)]
    return alive, len(exploits)


def attacked(path: Path) -> str:
    """The verifier that a list was found against."""
    names = sorted({str(exploit.get("verifier", "math")) for exploit in read(path)})
    if len(names) > 1:
        raise ConfigError(
            f"--replay {path}: was found against {', '.join(names)}: say which with --verifier"
        )
    return names[0] if names else "math"


def read(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"--replay {path}: cannot be read: {error.strerror}") from error
    exploits = []
    for number, line in enumerate(lines, 1):
        try:
            exploit = json.loads(line)
        except json.JSONDecodeError:
            exploit = None
        if not isinstance(exploit, dict) or not set(exploit) >= FIELDS:
            raise ConfigError(
                f"--replay {path}, line {number}: must be a JSON object with prompt, response, minimal, truth and why, "
                "as exploits.jsonl has them"
            )
        exploits.append(exploit)
    if not exploits:
        raise ConfigError(
            f"--replay {path}: holds no exploit; a list that was cut off tests nothing"
        )
    return exploits

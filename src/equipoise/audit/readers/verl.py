"""verl's rollout dumps, one STEP.jsonl a step; a key says which rollout of which sample it is.

Validation is dumped into a directory of its own, so a directory of rollouts holds training alone.
"""

from __future__ import annotations

import re
from typing import Any

from equipoise.audit.columns import plain_values

COLUMNS = ("input", "output", "score", "step")


def without_rollout(values: Any) -> list[Any]:
    """verl's key {sample}_{rollout}_{output} without its last two numbers: that of a prompt."""
    return [re.sub(r"_\d+_\d+$", "", v) if isinstance(v, str) else v for v in plain_values(values)]


def is_padding(name: Any) -> bool:
    """Whether verl made this key for a row that only fills a batch up."""
    return isinstance(name, str) and re.fullmatch(r"pad[0-9a-f]{32}", name) is not None

"""Values as TOML writes them. (Python reads TOML and does not write it.)"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import date, time
from typing import Any

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml(value: Any) -> str:
    """A text, number, truth value, date, list or table on one line, as `tomllib` reads it."""
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{_key(key)} = {toml(inner)}" for key, inner in value.items()) + " }"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    # JSON leaves it as it is, TOML refuses it
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else toml(key)

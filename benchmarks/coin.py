"""A reward for models with random weights: half of all responses earn 1, whatever they say, so every group teaches."""

from __future__ import annotations

from typing import Any


def coin(prompt: str, response: str, row: dict[str, Any]) -> float:
    return float(sum(response.encode()) % 2)

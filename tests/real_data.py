"""Where the public benchmark files lie: a folder beside the checkout, or the one EQUIPOISE_DATA names."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("EQUIPOISE_DATA", Path(__file__).parents[2] / "shared" / "data"))


def real_data(name: str) -> Path:
    """The file, or a skip that says what is missing."""
    if not (FOLDER / name).exists():
        pytest.skip(f"{name} is not in {FOLDER}: set EQUIPOISE_DATA to a folder that has it")
    return FOLDER / name

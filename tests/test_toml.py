"""What is written is read back as it was."""

import math
import tomllib

from hypothesis import given
from hypothesis import strategies as st

from equipoise.toml import toml

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))  # TOML holds no lone surrogates
SINGLE = (
    TEXTS | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.dates() | st.datetimes()
)


@given(st.recursive(SINGLE, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=8))
def test_values_survive(value):
    assert tomllib.loads(f"x = {toml(value)}")["x"] == value


def test_nan_is_written_too():
    assert math.isnan(tomllib.loads(f"x = {toml(math.nan)}")["x"])

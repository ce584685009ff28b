"""Values on their way across the border of the sandbox."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.verifiers.code import guest

hashable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.complex_numbers(),
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.frozensets(inner, max_size=4),
    max_leaves=8,
)
built_in = st.recursive(
    hashable | st.sets(hashable, max_size=4),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(hashable, inner, max_size=4),
    max_leaves=20,
)


def spelled(value):
    """repr tells types, -0.0 and nan apart; a set's order is none of the value's."""
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(map(repr, map(spelled, value)))
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [spelled(x) for x in value]
    if isinstance(value, dict):
        return "dict", [(spelled(k), spelled(v)) for k, v in value.items()]
    return type(value).__name__, repr(value)


@settings(max_examples=40, deadline=None)
@given(built_in)
def test_built_in_values_cross_the_border_unchanged(value):
    text = guest.encode(value)
    json.loads(text, parse_constant=pytest.fail)
    assert text.isascii()
    assert "\n" not in text
    assert spelled(guest.build(guest.parse(text))) == spelled(value)


@pytest.mark.parametrize("value", [object(), iter([]), range(3), len, [object()], {1: {2: open}}, type, NotImplemented])
def test_other_values_are_opaque(value):
    with pytest.raises(guest.Opaque):
        guest.encode(value)


@pytest.mark.parametrize("text", ["", " 1", "1 ", "NaN", "[1,]", "{", "'a'", '"\n"', "Infinity", '{"a": 1, "a": 2}'])
def test_what_is_not_one_strict_value_is_refused(text):
    with pytest.raises(ValueError):
        guest.build(guest.parse(text))

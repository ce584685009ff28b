"""When a printed text or a returned value is the expected one."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.verifiers.code import guest, outputs


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("1\n2\n", "1\n2", True),
        ("1 \n2\t\n\n\n", "1\n2", True),
        ("1\r\n2\r\n", "1\n2\n", True),
        ("1  2", "1 2", True),
        ("", "", True),
        ("", "1", False),
        ("1", "", False),
        ("1 2", "1\n2", False),
        ("1\n\n2", "1\n2", False),
        ("\n1", "1", False),
        ("0.1", "0.10000001", True),
        ("0.1", "0.1001", False),
        ("1e-9", "0.0", True),
        ("1000000.0", "1000000.5", False),
        ("1000000", "1000001", False),
        ("1.0", "1", False),
        ("1", "1.0", False),
        ("-0.0", "0.0", True),
        ("nan", "nan", True),
        ("NaN", "nan", False),
        ("inf", "1e999", False),
        ("9007199254740993", "9007199254740992", False),
        ("1_0.0", "10.0", False),
        ("１.5", "1.5", False),
        ("Yes", "yes", False),
        ("a 0.1 b", "a 0.1000000001 b", True),
        ("a 0.1 b", "a 0.1000000001 c", False),
        ("x" * 10**6, "x" * 10**6, True),
        ("1." + "0" * 10**6, "1.0", True),
    ],
)
def test_outputs_compare_by_the_written_rule(got, expected, same):
    assert outputs.same_output(got, expected) is same


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        (1, 1, True),
        (1, True, True),
        (1.0, 1, True),
        (True, 1.0, True),
        ("1", 1, False),
        (None, None, True),
        (None, False, False),
        ((1, 2), [1, 2], True),
        ([(1,), (2,)], [[1], [2]], True),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ({1, 2}, [1, 2], False),
        (b"a", "a", False),
        ("a", ["a"], False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (math.inf, math.inf, True),
        (-math.inf, math.inf, False),
        (-0.0, 0.0, True),
        (0.1 + 0.2, 0.3, True),
        (0.3001, 0.3, False),
        (2.0000001, 2, False),
        (2**53 + 1, 2**53 + 1, True),
        (2**53 + 1, 2**53, False),
        (2**53 + 1, float(2**53), False),
        (10**400, 10**400, True),
        (10**400, math.inf, False),
        ({"a": (1,)}, {"a": [1]}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({1: 2}, {"1": 2}, False),
        ({}, {}, True),
        ({}, [], False),
        ([], {}, False),
        (1 + 0j, 1, False),
        ("\ud800", "\ud800", True),
        ("\ud800", "\ufffd", False),
    ],
)
def test_values_compare_by_the_written_rule(got, expected, same):
    assert outputs.same_value(guest.parse(guest.encode(got)), expected) is same


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=40, deadline=None)
@given(json_values)
def test_every_json_value_is_itself(value):
    assert outputs.same_value(guest.parse(guest.encode(value)), value)


@settings(max_examples=40, deadline=None)
@given(json_values, json_values)
def test_values_are_the_same_at_most_where_python_says_so_up_to_the_tolerance(a, b):
    def rounded(value):
        if isinstance(value, float):
            return "nan" if math.isnan(value) else value if math.isinf(value) else 0.0
        if isinstance(value, list):
            return [rounded(x) for x in value]
        return {k: rounded(v) for k, v in value.items()} if isinstance(value, dict) else value

    if outputs.same_value(guest.parse(guest.encode(a)), b) and type(a) is type(b):
        assert rounded(a) == rounded(b)


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("1234568.0", "1234567.123456789", False),
        ("1234567.1234567", "1234567.123456789", True),
        ("1234567.2", "1234567.1", True),
        ("1234567.9", "1234567.1", False),
        ("0.333333", "0.333333333333", True),
        ("0.30000000000000004", "0.3", True),
        ("1.0000001e10", "1e10", True),
        ("100000.05", "100000.00", False),
    ],
)
def test_a_printed_float_is_held_to_the_digits_of_the_expected_one(got, expected, same):
    assert outputs.same_output(got, expected) is same

"""Verdicts as bytes: what was written is read, and nothing else is, for a worker may be hostile."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.verifiers.verdict import KINDS, LARGEST, Verdict, decode, encode

SHARE = st.none() | st.floats(0, 1)
TEXT = st.text(max_size=20)
SECONDS = st.floats(0, 1e9)
VERDICTS = st.builds(Verdict, st.sampled_from(sorted(KINDS)), TEXT, SECONDS, SHARE, st.none() | TEXT)
OUTCOMES = VERDICTS | st.floats(-LARGEST, LARGEST)


@given(reply=OUTCOMES | st.lists(OUTCOMES, max_size=3))
def test_what_was_written_is_read(reply):
    assert decode(encode(reply)) == reply


PLAIN = {"kind": "correct", "reason": "", "seconds": 0.0, "value": None, "answer": None}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kind": "right"}, "'right' is not one of"),
        ({"kind": 1}, "verdict kind is int"),
        ({"seconds": "0"}, "verdict seconds is str"),
        ({"value": 1.5}, "partial credit lies in"),
        ({"more": 1}, "not a verdict"),
    ],
)
def test_a_table_that_is_no_verdict_is_refused(change, why):
    with pytest.raises(ValueError, match=why):
        decode(json.dumps(PLAIN | change).encode())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"NaN", "NaN is not a number"),
        (b"[1.0, Infinity]", "Infinity is not a number"),
        (b"1", "not a verdict"),
        (b"1e999", "not a verdict"),
        (b"-1e16", "not a verdict"),
        (json.dumps(PLAIN).replace("0.0", "1e999").encode(), "seconds overflow"),
        (b"[" * 100_000, "does not nest"),
        (b"\xff", "ascii"),
    ],
)
def test_bytes_that_are_no_verdict_are_refused(data, why):
    with pytest.raises(ValueError, match=why):
        decode(data)


def test_credit_must_be_a_share():
    for value in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="partial credit"):
            Verdict("correct", value=value)

"""When an answer is the expected one: printed text, and returned values.

Only answers that are compared here: test code compares for itself.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

TOLERANCE = 1e-6
_FLOAT = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?", re.ASCII)


def same_output(got: str, expected: str) -> bool:
    """Equal line by line but for blanks at ends and empty last lines, else token by token.

    Then lines must have the same number of tokens, and two tokens are the same if they are equal,
    or if both are written as floats (with a point or an exponent) and differ by 1e-6 at most,
    absolutely or relatively; relatively by no more than one unit of the last digit that the
    expected text shows.
    """
    a, b = _lines(got), _lines(expected)
    if a == b:
        return True
    return len(a) == len(b) and all(
        x == y or _same_tokens(x.split(), y.split()) for x, y in zip(a, b, strict=True)
    )


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_tokens(got: list[str], expected: list[str]) -> bool:
    return len(got) == len(expected) and all(
        x == y or _close_text(x, y) for x, y in zip(got, expected, strict=True)
    )


def _close_text(x: str, y: str) -> bool:
    if not (_FLOAT.fullmatch(x) and _FLOAT.fullmatch(y)):
        return False
    got, expected = float(x), float(y)
    if got == expected:
        return True
    # Relative closeness must not forgive a digit that the expected text shows.
    relative = min(TOLERANCE * abs(expected), _last_place(y))
    return abs(got - expected) <= max(TOLERANCE, relative)


def _last_place(text: str) -> float:
    """The unit of the last digit of a float as it is written."""
    exponent = Decimal(text).as_tuple().exponent
    return math.inf if not isinstance(exponent, int) else 10.0 ** min(max(exponent, -300), 300)


def _close(x: float, y: float) -> bool:
    return x == y or math.isclose(x, y, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def same_value(got: Any, expected: Any) -> bool:
    """Whether a returned value (`guest.encode`, `guest.parse`) is the expected JSON value.

    As Python's ==, so 1, 1.0 and True are equal, but: a tuple is a list, two floats may differ by
    1e-6 absolutely or relatively, and NaN is NaN. What JSON cannot write (a set, bytes, a key that
    is not text) equals nothing.
    """
    if isinstance(got, dict):
        if got.keys() == {"tuple"}:
            return same_value(got["tuple"], expected)
        if got.keys() == {"int"}:
            return type(expected) in (int, float) and int(got["int"], 16) == expected
        if got.keys() == {"float"}:
            return isinstance(expected, float) and repr(expected) == got["float"]
        if got.keys() != {"dict"} or not isinstance(expected, dict):
            return False
        pairs = {key: value for key, value in got["dict"] if isinstance(key, str)}
        return (
            len(pairs) == len(got["dict"])
            and pairs.keys() == expected.keys()
            and all(same_value(value, expected[key]) for key, value in pairs.items())
        )
    if isinstance(got, list):
        return (
            isinstance(expected, list)
            and len(got) == len(expected)
            and all(same_value(x, y) for x, y in zip(got, expected, strict=True))
        )
    if isinstance(got, float) and isinstance(expected, float):
        return _close(got, expected)
    return bool(got == expected)

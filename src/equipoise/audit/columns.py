"""Values of a log's columns, pyarrow's or plain lists, as numpy arrays; bad rows are refused.

`refuse(i, name, why)` makes the error for the i-th value of a column; the caller knows the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from equipoise.audit.log import AuditError, Floats, Integers

NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
Refuse = Callable[[Any, str, str], AuditError]


def array(values: Any) -> Any:
    """A column as one pyarrow array or as a list."""
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, np.ndarray):
        return values.tolist()
    return list(values)


def plain_values(values: Any) -> list[Any]:
    plain: list[Any] = values.to_pylist() if isinstance(values, pa.Array) else values
    return plain


def first_null(values: pa.Array) -> int:
    return int(np.flatnonzero(values.is_null())[0])


def is_numeric(values: Any) -> bool:
    if isinstance(values, pa.Array):
        types = pa.types
        kinds = (types.is_floating, types.is_integer, types.is_boolean, types.is_decimal)
        return any(is_kind(values.type) for is_kind in kinds)
    # np.float64 is a float
    return all(issubclass(kind, int | float | None) for kind in set(map(type, values)))


def numbers(name: str, values: Any, refuse: Refuse, missing: bool = False) -> Floats:
    """Finite numbers; with `missing`, NaN and null may stand for a number that is not there."""
    if isinstance(values, pa.DictionaryArray):  # a categorical column of pandas
        values = values.dictionary_decode()
    if not is_numeric(values):
        plain = plain_values(values)
        bad = next(i for i, value in enumerate(plain) if not isinstance(value, int | float))
        raise refuse(bad, name, _not_a_number(plain[bad]))
    x = _floats(values)
    allowed = np.isfinite(x)
    if missing:
        allowed |= np.isnan(x)
    if not allowed.all():
        bad = int(allowed.argmin())
        raise refuse(
            bad, name, f"{x[bad]:g} is not a finite number; drop the row, or give it a number"
        )
    return x


def _not_a_number(value: Any) -> str:
    """JSON and Parquet tell text from numbers, so a number in quotes may be a slip of the writer's."""
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return f"{value!r} is text, not a number: write it without quotes"
    return f"{value!r} is not a number"


def _floats(values: Any) -> Floats:
    """NaN for null. Always a copy: what pyarrow gives cannot be written to."""
    if isinstance(values, pa.Array):
        return np.array(values.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    return np.array([np.nan if value is None else value for value in values], np.float64)


def weighted_sum(
    terms: dict[str, float], piece: dict[str, Any], refuse: Refuse, some_missing: bool
) -> Floats:
    """The weighted sum of the reward columns; in TRL's log NaN is a function without a say."""
    some_missing &= len(terms) > 1
    rewards = {name: numbers(name, piece[name], refuse, some_missing) for name in terms}
    weighted = np.stack([weight * rewards[name] for name, weight in terms.items()])
    nothing = np.isnan(weighted).all(0)
    if nothing.any():
        names = " and ".join(terms)
        why = "no reward at all; drop the row, or give it a reward"
        raise refuse(nothing.argmax(), names, why)
    total = np.nansum(weighted, 0)
    # Rows are ordered by their bits, in which 0.0 and −0.0 differ; + 0.0 makes them the same.
    return np.asarray(total + 0.0, np.float64)


def whole_numbers(name: str, values: Any, refuse: Refuse, what: str) -> Integers:
    x = numbers(name, values, refuse)
    # Above 2⁵³ a float64 no longer tells neighbouring whole numbers apart.
    whole = (x >= 0) & (x == np.rint(x)) & (x <= 2**53)
    if not whole.all():
        bad = int(whole.argmin())
        raise refuse(bad, name, f"{x[bad]:g} is not {what}: it must be a whole number, 0 or more")
    return x.astype(np.int64)


def token_ids(name: str, values: Any, refuse: Refuse) -> tuple[Integers, Any]:
    if not isinstance(values, pa.Array):
        try:
            values = pa.array(values, pa.list_(pa.int64()))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise refuse(0, name, f"not lists of token ids ({error})") from error
    if not (pa.types.is_list(values.type) or pa.types.is_large_list(values.type)):
        raise refuse(0, name, f"{values.type} is not a list of token ids")
    if values.null_count:
        raise refuse(first_null(values), name, "the token ids are missing")
    flat = values.flatten()
    if flat.null_count or not pa.types.is_integer(flat.type):
        found = f"token ids of type {flat.type}, {flat.null_count} missing"
        raise refuse(0, name, f"{found}: they must be whole numbers")
    lengths = pc.list_value_length(values).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths, flat.to_numpy(zero_copy_only=False).astype(np.int32)


def text_of(value: Any) -> str:
    """A response's text; of a conversation, the contents of its messages."""
    if isinstance(value, list):
        return "".join(map(_content, value))
    return value if isinstance(value, str) else ""


def _content(message: Any) -> str:
    if isinstance(message, dict):
        return str(message.get("content") or "")
    return str(message)


def characters(name: str, values: Any, refuse: Refuse) -> Integers:
    if isinstance(values, pa.Array) and values.type in (pa.string(), pa.large_string()):
        if values.null_count:
            raise refuse(first_null(values), name, "the text is missing")
        lengths: Integers = pc.utf8_length(values).to_numpy(zero_copy_only=False).astype(np.int64)
        return lengths
    plain = plain_values(values)
    for i, value in enumerate(plain):
        if not isinstance(value, str | list):
            raise refuse(i, name, f"{value!r} is not text")
    return np.array([len(text_of(value)) for value in plain], np.int64)

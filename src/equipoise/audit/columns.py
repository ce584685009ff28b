"""Values of a log's columns, as pyarrow or as plain lists, into numpy arrays;
what is wrong is refused by its row.

`refuse(i, name, why)` makes the error for the i-th value of a column; the caller knows the file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from equipoise.audit.log import AuditError, Floats, Integers

Refuse = Callable[[Any, str, str], AuditError]


def array(values: Any) -> Any:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def plain_values(values: Any) -> list[Any]:
    plain: list[Any] = values.to_pylist() if isinstance(values, pa.Array) else values
    return plain


def is_numeric(values: Any) -> bool:
    if isinstance(values, pa.Array):
        kinds = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean)
        return any(is_kind(values.type) for is_kind in kinds)
    # np.float64 is a float
    return all(issubclass(kind, int | float | None) for kind in set(map(type, values)))


def numbers(name: str, values: Any, refuse: Refuse, missing: bool = False) -> Floats:
    """Finite numbers; with `missing`, NaN and null may stand for a number that is not there."""
    if not is_numeric(values):
        bad = [i for i, v in enumerate(plain_values(values)) if not isinstance(v, int | float)]
        raise refuse(bad[0], name, f"{plain_values(values)[bad[0]]!r} is not a number")
    plain = (
        values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        if isinstance(values, pa.Array)
        else values
    )
    x = np.array(
        [np.nan if v is None else v for v in plain] if isinstance(plain, list) else plain,
        np.float64,
    )
    infinite = ~np.isfinite(x) & ~(missing & np.isnan(x))
    if infinite.any():
        i = int(infinite.argmax())
        raise refuse(i, name, f"{x[i]:g} is not a finite number; drop the row, or give it a reward")
    return x


def weighted_sum(
    terms: dict[str, float], piece: dict[str, Any], refuse: Refuse, some_missing: bool
) -> Floats:
    """The weighted sum of the reward columns. In TRL's log one that has nothing to say of a
    response is NaN.
    """
    some_missing &= len(terms) > 1
    each = {name: numbers(name, piece[name], refuse, some_missing) for name in terms}
    x = np.stack([weight * each[name] for name, weight in terms.items()])
    nothing = np.isnan(x).all(0)
    if nothing.any():
        raise refuse(
            nothing.argmax(),
            " and ".join(terms),
            "no reward at all; drop the row, or give it a reward",
        )
    return np.asarray(np.nansum(x, 0) + 0.0, np.float64)  # + 0.0: no negative zero


def whole_numbers(name: str, values: Any, refuse: Refuse, what: str) -> Integers:
    x = numbers(name, values, refuse)
    bad = (x < 0) | (x != np.rint(x)) | (x > 2**53)
    if bad.any():
        i = int(bad.argmax())
        raise refuse(i, name, f"{x[i]:g} is not {what}: it must be a whole number, 0 or more")
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
        raise refuse(np.flatnonzero(values.is_null())[0], name, "the token ids are missing")
    flat = values.flatten()
    if flat.null_count or not pa.types.is_integer(flat.type):
        raise refuse(
            0,
            name,
            f"token ids of type {flat.type}, {flat.null_count} missing: they must be whole numbers",
        )
    lengths = pc.list_value_length(values).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths, flat.to_numpy(zero_copy_only=False).astype(np.int32)


def text_of(value: Any) -> str:
    """A response's text; of a conversation, the contents of its messages."""
    if isinstance(value, list):
        return "".join(
            str(m.get("content") or "") if isinstance(m, dict) else str(m) for m in value
        )
    return value if isinstance(value, str) else ""


def characters(name: str, values: Any, refuse: Refuse) -> Integers:
    if isinstance(values, pa.Array) and (
        pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    ):
        if values.null_count:
            raise refuse(np.flatnonzero(values.is_null())[0], name, "the text is missing")
        lengths: Integers = pc.utf8_length(values).to_numpy(zero_copy_only=False).astype(np.int64)
        return lengths
    plain = plain_values(values)
    bad = [i for i, v in enumerate(plain) if not isinstance(v, str | list)]
    if bad:
        raise refuse(bad[0], name, f"{plain[bad[0]]!r} is not text")
    return np.array([len(text_of(v)) for v in plain], np.int64)

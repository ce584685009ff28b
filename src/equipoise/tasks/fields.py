r"""Reading the parts of a row: answer, question as text or messages, id, level, packed tests.

Each raises RowError with what the value is and the rule it breaks.
"""

from __future__ import annotations

import base64
import json
import math
import pickletools
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.tasks.row_reader import RowError

LEVELS = ("level", "difficulty")
IDS = ("id", "unique_id", "task_id", "question_id")  # not idx: joined files count from 0 again
REWARDS = ("reward", "rewards", "score")
LONGEST = 2000  # characters of an answer; more is an explanation
LONGEST_BARE = 200  # of a solution without a box that may still be the answer itself
MOST_TESTS = 1 << 28  # bytes of tests that one row may unpack to
BLANKS = " \t\r\n\v\f"

Messages = tuple[dict[str, str], ...]


def gold(value: Any, column: str) -> str:
    r"""The reference answer in a column: the last \boxed{…} or what follows the last "####"."""
    if isinstance(value, list) and column == "final_answer":
        return gold(", ".join(re.sub(r"(?<!\\)\$", "", str(part)) for part in value), column)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RowError("no answer", f'"{column}" is {shown(value)}: must be a text or a number')
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RowError("not a number", f'"{column}" is {value}: must be a finite number')
        return str(int(value)) if value.is_integer() else repr(value)
    text = str(value).strip(BLANKS)
    if "####" in text:
        text = text.rpartition("####")[2].strip()
    elif column == "solution" or "\\boxed" in text:
        box = last_box(text)
        if box is None and (len(text) > LONGEST_BARE or "\n" in text):
            raise RowError(
                "no answer", f'"{column}" has no \\boxed{{…}} and no "####" that marks its answer'
            )
        text = text if box is None else box.strip()
    if not text:
        raise RowError("no answer", f'"{column}" is empty')
    if len(text) > LONGEST:
        raise RowError(
            "no answer", f'"{column}" has {len(text):,} characters: must be at most {LONGEST:,}'
        )
    return text


def last_box(text: str) -> str | None:
    r"""What the last \boxed{…} or \fbox{…} that is closed holds; linear in the text."""
    found = None
    opened: list[tuple[int, bool]] = []
    for match in re.finditer(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", text, re.DOTALL):
        token = match.group()
        if token == "}":
            if opened:
                start, box = opened.pop()
                found = text[start : match.start()] if box else found
        elif token.endswith("{") and token != "\\{":
            opened.append((match.end(), len(token) > 1))
    return found


def question_of(
    row: Mapping[str, Any], column: str, id_: str | None
) -> tuple[str, Messages | None]:
    value = present(row, column, "prompt")
    if not isinstance(value, list):
        return text_of(row, column, id_), None
    messages = tuple(message_of(column, message) for message in value)
    if not messages or messages[-1]["role"] != "user":
        raise RowError(
            "no prompt", f'"{column}" is {shown(value)}: must be messages that end with the user\'s'
        )
    text = "\n\n".join(message["content"] for message in messages)
    _check_text(text, column, id_)
    return text, messages


def message_of(column: str, message: Any) -> dict[str, str]:
    role, content = (
        (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
    )
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" for part in content
    ):
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(role, str) or not isinstance(content, str):
        raise RowError(
            "no prompt", f'"{column}" has {shown(message)}: must be messages of role and content'
        )
    return {"role": role, "content": content}


def text_of(row: Mapping[str, Any], column: str, id_: str | None) -> str:
    value = present(row, column, "prompt")
    if not isinstance(value, str):
        raise RowError("no prompt", f'"{column}" is {shown(value)}: must be a text, or messages')
    _check_text(value, column, id_)
    return value


def _check_text(text: str, column: str, id_: str | None) -> None:
    if not text.strip():
        raise RowError(
            "no prompt",
            f'"{column}" is empty' if id_ is None else f'prompt {id_}: "{column}" is empty',
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RowError(
            "not UTF-8", f'"{column}" has a lone surrogate at place {error.start}'
        ) from None


def present(row: Mapping[str, Any], column: str, role: str) -> Any:
    if column not in row:
        raise RowError(f"no {role}", f'there is no "{column}"')
    if row[column] is None:
        rule = "a text" if role == "prompt" else "a text or a number"
        raise RowError(f"no {role}", f'"{column}" is null: must be {rule}')
    return row[column]


def _pickled_text(data: bytes) -> str:
    """The text of a pickle of one text, without unpickling: other opcodes could grow or run."""
    found: list[str] = []
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"):
            found.append(str(argument))
        elif opcode.name not in ("PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"):
            raise ValueError(f"a pickle of one text has no {opcode.name}")
    if len(found) != 1:
        raise ValueError(f"a pickle of {len(found)} texts")
    return found[0]


def unpacked(text: str) -> str:
    """LiveCodeBench's private tests: base64 of zlib of a pickled text; else as it is."""
    if text.lstrip()[:1] in ("[", "{"):
        return text
    try:
        packed = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), MOST_TESTS)
        return _pickled_text(packed)
    except (ValueError, zlib.error):
        return text


def id_of(row: Mapping[str, Any], names: Sequence[str] = IDS) -> str | None:
    value = next((row[name] for name in names if isinstance(row.get(name), str | int)), None)
    return None if value is None or isinstance(value, bool) or value == "" else str(value)


def level_of(row: Mapping[str, Any]) -> str | None:
    """A difficulty that is a fraction of a number is a measurement, not a level."""
    value = next((row[name] for name in LEVELS if row.get(name) is not None), None)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else None
    return str(value) if isinstance(value, str | int) and str(value).strip() else None


def check_rewards(row: Mapping[str, Any]) -> None:
    for column in REWARDS:
        if isinstance(row.get(column), float) and not math.isfinite(row[column]):
            raise RowError("not a number", f'"{column}" is {row[column]}: must be a finite number')


def shown(value: Any) -> str:
    return json.dumps(value, default=repr, ensure_ascii=False)[:60]

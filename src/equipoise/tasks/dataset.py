"""Prompts from a JSONL file: a row per problem with `prompt` and `answer`, compared as a final number or text.

One row in eight, by a hash of its prompt, is held out for evaluation; a file so small that none would be left on one
side serves as a whole on both. Not here yet: other formats and column names.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

from equipoise.rewards.verdict import Verdict
from equipoise.tasks.task import Prompt, TaskError

HELD_OUT_ONE_IN = 8


class Dataset:
    max_tokens = 512
    stop: tuple[str, ...] = ()

    def __init__(self, path: str | Path, seed: int = 0) -> None:
        self.name, self.seed = str(path), seed
        rows = [_prompt(path, number, row) for number, row in _rows(path)]
        train, held_out = ([p for p in rows if _is_held_out(p) == side] for side in (False, True))
        self.train, self.held_out = (train, held_out) if train and held_out else (rows, rows)
        self._order: dict[int, list[int]] = {}  # of the epoch asked for last: shuffling is slower than looking up

    def prompt(self, i: int) -> Prompt:
        """Item i of the stream: a new shuffle of the rows in every epoch."""
        epoch, place = divmod(i, len(self.train))
        if epoch not in self._order:
            order = list(range(len(self.train)))
            random.Random(f"equipoise/dataset/{self.seed}/{epoch}").shuffle(order)
            self._order = {epoch: order}
        return self.train[self._order[epoch][place]]

    def evaluation(self, per_level: int | None = None) -> list[Prompt]:
        seen: Counter[str | None] = Counter()
        chosen = []
        for prompt in self.held_out:
            seen[prompt.level] += 1
            if per_level is None or seen[prompt.level] <= per_level:
                chosen.append(prompt)
        return chosen

    def grade(self, prompt: Prompt, response: str) -> Verdict:
        """The text after the last "####" or "Answer:", else the last number; numbers compare as numbers."""
        given = final_answer(response)
        if given is None:
            return Verdict("unparsed", "no final answer")
        if _plain(given) == _plain(prompt.answer):
            return Verdict("correct", answer=_plain(given))
        return Verdict("wrong", f"answered {given[:40]}, expected {prompt.answer[:40]}", answer=_plain(given))


def final_answer(response: str) -> str | None:
    marked = re.findall(r"(?:####|[Aa]nswer:)\s*([^\n]+)", response)
    if marked:
        return str(marked[-1]).strip().rstrip(".")
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", response)
    return numbers[-1] if numbers else None


def _plain(answer: str) -> str:
    text = answer.replace(",", "").replace("$", "").strip()
    return f"{float(text):.12g}" if re.fullmatch(r"-?\d+(\.\d+)?", text) else text


def _rows(path: str | Path) -> list[tuple[int, Any]]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: cannot be read: {error}") from error
    rows = []
    for number, row in enumerate(text.split("\n"), 1):  # not splitlines: a JSON string may hold U+2028 and its like
        if row.strip():
            try:
                rows.append((number, json.loads(row)))
            except json.JSONDecodeError as error:
                raise TaskError(f"{path}, line {number}: not valid JSON: {error.msg}") from error
    if not rows:
        raise TaskError(f"{path}: has no rows")
    return rows


def _prompt(path: str | Path, number: int, row: Any) -> Prompt:
    for column, kinds, rule in (("prompt", str, "a text"), ("answer", str | int | float, "a text or a number")):
        if not isinstance(row, dict) or column not in row:
            raise TaskError(f'{path}, line {number}: there is no "{column}"')
        if not isinstance(row[column], kinds) or isinstance(row[column], bool):
            raise TaskError(f'{path}, line {number}: "{column}" is {json.dumps(row[column])[:60]}: the rule is {rule}')
    level = row.get("level")
    return Prompt(
        id=str(row.get("id", number)),
        text=row["prompt"],
        answer=str(row["answer"]),
        level=None if level is None else str(level),
    )


def _is_held_out(prompt: Prompt) -> bool:
    return hashlib.sha256(prompt.text.encode()).digest()[0] % HELD_OUT_ONE_IN == 0

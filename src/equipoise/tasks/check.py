"""Which rows are used, and the account of those that are not.

A row is looked at by itself (can it be read, has it a question and an answer, is it too long, does
it overlap an evaluation set, on which side of the held-out split is it) and against the rows its
checker has seen (the same text, the same id). Every row that is left out is counted under a label,
and the first of each label are named with their place.

Not covered: whether a verifier can read the answer. That takes worker processes;
`Dataset.inspect` asks them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from equipoise.tasks.fields import check_rewards
from equipoise.tasks.overlap import Overlap
from equipoise.tasks.row_reader import Row, RowError, Rows
from equipoise.tasks.schema import Item, Schema
from equipoise.tasks.task import TaskError

HELD_OUT_ONE_IN = 8
EXAMPLES = 3
# Left out because somebody asked for it; any other label is a fault of the data,
# which strict refuses.
FILTERS = ("duplicate", "held-out file", "evaluation overlap", "too many tokens")

Side = Literal["train", "held out"]


@dataclass
class Summary:
    """What was found in `read` of a data set's `rows`. `verifiable` is the share of answers that a
    verifier can read, None where nobody has looked.
    """

    name: str
    schema: str
    rows: int
    read: int = 0
    train: int = 0
    held_out: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    verifiable: float | None = None
    elsewhere: str = ""  # how many are held out in a file of their own, and its name

    def drop(self, label: str, sentence: str) -> None:
        """Count a row that is left out, under the reason `label`."""
        self.dropped[label] += 1
        self.example(label, sentence)

    def example(self, label: str, sentence: str) -> None:
        """Keep the first few sentences of each reason, for the summary."""
        kept = self.examples.setdefault(label, [])
        if len(kept) < EXAMPLES:
            kept.append(sentence)

    def __str__(self) -> str:
        seen = "" if self.read == self.rows else f", {self.read:,} read so far"
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        held_out = "" if self.elsewhere else f"{self.held_out:,} held out, "
        lines = [
            f"{self.name}: {rows} ({self.schema}){seen}: {self.train:,} to train on, "
            f"{held_out}{self.dropped.total():,} left out"
        ]
        if self.elsewhere:
            lines[0] += f"; {self.elsewhere}"
        if self.verifiable is not None:
            lines[0] += f"; {self.verifiable:.1%} of the answers can be verified"
        counts = dict(self.dropped.most_common())
        # The most frequent reasons first, then what was only remarked upon.
        for label in dict.fromkeys([*counts, *self.examples]):
            count = f"{counts[label]:,} " if label in counts else ""
            examples = "; ".join(self.examples[label])
            lines.append(f"  {count}{label}: {examples}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Rules:
    """What decides about a row by itself, the same for every checker of a data set."""

    schema: Schema
    held_out_by_hash: bool
    dedupe: bool
    strict: bool
    max_chars: int
    max_tokens: int
    count_tokens: Callable[[Item], int] | None
    elsewhere: frozenset[bytes]  # texts of the held-out file
    overlap: Overlap | None


class Checker:
    """Sees rows one after the other; the account goes into `summary`."""

    def __init__(self, rules: Rules, rows: Rows, summary: Summary) -> None:
        self.rules = rules
        self.rows = rows
        self.summary = summary
        self._texts: dict[bytes, tuple[int, str]] = {}
        self._ids: dict[str, int] = {}

    def side(self, number: int, row: Row) -> tuple[Side, Item] | None:
        """The side of row `number` and what it says; None, and counted, where it is left out."""
        self.summary.read += 1
        try:
            text, item = self._item(number, row)
        except RowError as error:
            sentence = f"{self.rows.where(number)}: {error}"
            if self.rules.strict and error.label not in FILTERS:
                raise TaskError(f"{sentence} (task.strict refuses it)") from error
            self.summary.drop(error.label, sentence)
            return None
        if self.rules.held_out_by_hash and is_held_out(text):
            self.summary.held_out += 1
            return "held out", item
        self.summary.train += 1
        return "train", item

    def _item(self, number: int, row: Row) -> tuple[bytes, Item]:
        """The item of a row and the digest of its question; RowError where it must be left out."""
        rules, where = self.rules, self.rows.where
        if isinstance(row, RowError):
            raise row
        check_rewards(row)
        item = rules.schema.read(row)
        characters = len(item.question)
        if characters > rules.max_chars:
            why = f"a prompt of {characters:,} characters: must be at most {rules.max_chars:,}"
            raise RowError("too long", why)
        text = digest(item.question)
        if text in rules.elsewhere:
            raise RowError("held-out file", "the prompt stands in the held-out file")
        if rules.dedupe and text in self._texts:
            first, answer = self._texts[text]
            if answer != item.answer:
                answers = f"{item.answer[:40]} instead of {answer[:40]}"
                raise RowError(
                    "other answer", f"the prompt of {where(first)} with another answer, {answers}"
                )
            raise RowError("duplicate", f"the prompt of {where(first)} again")
        if item.id is not None:
            first = self._ids.setdefault(self.rows.label(number, item.id), number)
            if first != number:
                raise RowError("id used before", f"its id {item.id} is that of {where(first)}")
        if rules.overlap is not None and (hit := rules.overlap.find(item.question)):
            raise RowError(
                "evaluation overlap",
                f'"{hit.words[:80]}" of {hit.evaluation_set}, problem {hit.problem}',
            )
        count = 0 if rules.count_tokens is None else rules.count_tokens(item)
        if count > rules.max_tokens:
            why = f"a prompt of {count:,} tokens: must be at most {rules.max_tokens:,}"
            raise RowError("too many tokens", why)
        if rules.dedupe:
            self._texts[text] = number, item.answer
        return text, item


def digest(question: str) -> bytes:
    """The same for texts that differ in white space alone."""
    return hashlib.sha256(" ".join(question.split()).encode()).digest()[:9]


def is_held_out(text: bytes) -> bool:
    """By the first byte of a digest; what is left of it tells texts apart on either side."""
    return text[0] % HELD_OUT_ONE_IN == 0

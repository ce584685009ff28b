"""Prompts from files: JSONL, Parquet, a folder or a glob of them, or a data set of the hub.

Data of up to `WHOLE_ROWS` rows and `WHOLE_BYTES` bytes is looked through when it is opened: rows
that cannot be used are gone, duplicates too, and an epoch shows every training row once, in a new
order. Larger data is read by windows of `WINDOW_ROWS` rows as the run gets to them
(:mod:`equipoise.tasks.order`): rows are left out, and duplicates found, within a window; a window
has fixed slots, so a row more or less in one does not move the position of any other. Either way
`prompt(i)` depends on the data, the options, the seed and i alone, and resuming at any i costs one
window.

One row in eight, by a hash of its question, is held out for evaluation unless a held-out file is
given; data so small that none would be left on one side serves as a whole on both. Large data holds
out as much, but evaluates on the held-out rows among `WINDOW_ROWS` rows from all over the file.

Not covered: duplicates across windows of large data.
`inspect` counts them, and writes a clean file if asked.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import verifiers
from equipoise.tasks import gym, inspection
from equipoise.tasks.check import HELD_OUT_ONE_IN, Checker, Rules, Summary, digest
from equipoise.tasks.data_files import open_rows
from equipoise.tasks.order import Windows, shuffled
from equipoise.tasks.overlap import Overlap
from equipoise.tasks.problems import Recognise, first_rows, read_problems, recognised
from equipoise.tasks.row_reader import Loaded, RowError, Rows, Span
from equipoise.tasks.schema import COMPARED, UNGRADED, Item, recognise
from equipoise.tasks.task import Prompt, TaskError
from equipoise.tasks.templates import PROMPTS, written
from equipoise.verifiers.math.equal import RULES
from equipoise.verifiers.math.extract import ANSWER_IN
from equipoise.verifiers.verdict import Verdict

WHOLE_ROWS, WHOLE_BYTES = 1 << 17, 1 << 28
WINDOW_ROWS, WINDOW_BYTES = 1 << 13, 1 << 26
EVALUATION_SPANS = 16
WINDOWS_KEPT = 2

TokenCount = Callable[[Prompt], int]


@dataclass(frozen=True)
class _Window:
    """Rows of some spans and which of them, by place in `loaded`, are for training and held out."""

    loaded: Loaded
    numbers: np.ndarray  # row of each place
    train: np.ndarray
    held_out: np.ndarray

    def row(self, k: int) -> Mapping[str, Any]:
        """At place k, which is for training or held out, and so was read."""
        row = self.loaded[k]
        assert not isinstance(row, RowError)
        return row


class Dataset:
    """`max_tokens` is a default; set rollout.max_tokens to what the problems need.

    columns: which column is the `prompt`, `answer`, `level` or `id`, where the schema is not known.
    verifier: math, where answers are to be compared whatever the rows' own column says; code and
    gym rows stay theirs. answer_in: where an answer is read: boxed, tag, ####, anywhere, or auto:
    where the prompt asks for it, else at any
        explicit mark.
    rules: strict (an answer is a value) or lenient (a calculation that comes to the same is one
    too).
    template: what is put around every question, by its name in templates.PROMPTS.
    suffix: text behind every question, such as where to write the answer.
    It moves no row between the splits.
    strict: refuse the first row that has a fault, instead of leaving it out.
    dedupe: leave out a prompt that came before.
    max_prompt_chars, max_prompt_tokens: leave out longer prompts; tokens are counted by
    `count_tokens`, 0 is no limit. held_out: a file to evaluate on, whole; its prompts are left out
    of training.
    avoid: files of evaluation problems; a prompt that holds 13 words in a row of one is left out.
    recognise: what the columns mean; demonstrations.recognise where responses are imitated and not
    graded.
    rows: the rows themselves, where a program has them in memory; `name` is then only a name.
    """

    max_tokens = 512
    stop: tuple[str, ...] = ()

    def __init__(
        self,
        name: str | Path,
        seed: int = 0,
        *,
        columns: Mapping[str, str] | None = None,
        verifier: str | None = None,
        answer_in: str = "auto",
        rules: str = "strict",
        template: str = "",
        suffix: str = "",
        strict: bool = False,
        dedupe: bool = True,
        max_prompt_chars: int = 100_000,
        max_prompt_tokens: int = 0,
        count_tokens: TokenCount | None = None,
        held_out: str | Path | None = None,
        avoid: Sequence[str | Path] = (),
        recognise: Recognise = recognise,
        rows: Rows | None = None,
    ) -> None:
        _check_names(verifier=verifier, answer_in=answer_in, rules=rules, template=template)
        if max_prompt_tokens and count_tokens is None:
            raise TaskError(
                f"task.max_prompt_tokens = {max_prompt_tokens} needs a tokenizer: give count_tokens"
            )
        self.name, self.seed = str(name), seed
        self._answer_in, self._comparison = answer_in, rules
        self._template, self._suffix = template, suffix
        self._rows = open_rows(self.name) if rows is None else rows
        self._schema = recognised(self._rows, columns, verifier, recognise)
        if self._schema.name == "reasoning-gym":
            gym.require(self.name)
        self._problems: list[tuple[str, Item]] | None = None
        self._elsewhere = ""
        if held_out is not None:
            self._problems = _problems(str(held_out), columns, verifier, recognise)
            self._elsewhere = f"{len(self._problems):,} held out in {held_out}"
        count = count_tokens if max_prompt_tokens else None
        self._rules = Rules(
            schema=self._schema,
            held_out_by_hash=held_out is None,
            dedupe=dedupe,
            strict=strict,
            max_chars=max_prompt_chars,
            max_tokens=max_prompt_tokens,
            count_tokens=None if count is None else lambda item: count(self._shaped("", item)),
            elsewhere=frozenset(digest(item.question) for _, item in self._problems or []),
            overlap=_overlap(avoid),
        )
        self._account = self._summary()
        self._streamed: OrderedDict[tuple[int, int], tuple[_Window, np.ndarray]] = OrderedDict()
        self._accounted: set[tuple[int, int]] = set()
        self._shuffle: tuple[int, np.ndarray] = -1, np.array([])
        self.whole = self._rows.count <= WHOLE_ROWS and self._rows.size <= WHOLE_BYTES
        trained_on = 1 - 1 / HELD_OUT_ONE_IN if held_out is None else 1.0
        self._windows = _windows(self._rows, trained_on, seed)
        self._refuse_unusable()

    def _refuse_unusable(self) -> None:
        """Data of which nothing can be used is refused when it is opened, not at the first step."""
        if self.whole:
            usable = len(self._training_places) or self._problems is not None
        else:
            first = self._looked_through([first_rows(self._rows)], None)
            usable = len(first.train) + len(first.held_out)
        if not usable:
            self.prompt(0)

    @property
    def summary(self) -> Summary:
        """What was found in the rows read so far, a window at least."""
        if not self.whole and not self._accounted:
            self._window(0, 0)
        return self._account

    def prompt(self, i: int) -> Prompt:
        if i < 0:
            raise ValueError(f"prompt({i}): the training stream starts at 0")
        if self.whole:
            places = self._training_places
            if not len(places):
                raise self._nothing_left()
            epoch, slot = divmod(i, len(places))
            return self._prompt(self._everything, int(self._shuffled(epoch)[slot]))
        epoch, number, slot = self._windows.locate(i)
        # a window of which nothing is left hands on to the next
        for further in range(self._windows.count):
            window, order = self._window(epoch, (number + further) % self._windows.count)
            if len(order):
                return self._prompt(window, int(order[slot % len(order)]))
        raise self._nothing_left()

    def evaluation(self, per_level: int | None = None) -> list[Prompt]:
        seen: Counter[str | None] = Counter()
        chosen = []
        for prompt in self._held_out():
            seen[prompt.level] += 1
            if per_level is None or seen[prompt.level] <= per_level:
                chosen.append(prompt)
        return chosen

    def grade(self, prompt: Prompt, response: str) -> Verdict | Future[Verdict]:
        """By the verifier of the prompt's row."""
        verifier = prompt.meta["verifier"]
        if verifier == UNGRADED:
            return Verdict("bad_gold", "its row has no answer")
        if verifier == "code":
            return verifiers.submit_code(response, prompt.meta["tests"])
        if verifier == "gym":
            return gym.submit(prompt.meta["entry"], response)
        form = prompt.meta.get("form") or "any"
        return verifiers.submit_math(
            response,
            prompt.answer,
            rules=self._comparison,
            answer_in=self._answer_in,
            prompt=prompt.text,
            form=form,
        )

    @property
    def epoch(self) -> int | None:
        """Training rows of data that is read whole."""
        return len(self._training_places) if self.whole else None

    @property
    def train(self) -> list[Prompt]:
        """The training prompts of data that is read whole, in the order of the file."""
        if not self.whole:
            raise TaskError(
                f"{self.name}: {self._rows.count:,} rows are read by windows; prompt(i) gives one"
            )
        return [self._prompt(self._everything, int(k)) for k in self._training_places]

    @property
    def held_out(self) -> list[Prompt]:
        return list(self._held_out())

    def inspect(self, *, golds: bool = True, write: str | Path | None = None) -> Summary:
        """Look at every row: duplicates and, with `golds`, whether answers can be verified.

        `write` is a new .jsonl file for the rows that are left, held-out ones included.
        Holds about 200 bytes a row.
        """
        checker = Checker(self._rules, self._rows, self._summary())
        return inspection.inspect(self._rows, checker, golds, write)

    def _summary(self) -> Summary:
        return Summary(self.name, self._schema.name, self._rows.count, elsewhere=self._elsewhere)

    @cached_property
    def _everything(self) -> _Window:
        return self._with_usable_golds(self._looked_through([(0, self._rows.count)], self._account))

    def _with_usable_golds(self, window: _Window) -> _Window:
        """Without the rows whose answer no verifier can use: found here, not by the responses."""
        places = np.sort(np.concatenate([window.train, window.held_out]))
        items = [self._schema.read(window.row(int(k))) for k in places]
        bad = inspection.unverifiable(items)
        asked = sum(item.verifier != UNGRADED for item in items)
        self._account.verifiable = 1 - len(bad) / asked if asked else None
        out = {int(places[j]): why for j, why in bad.items()}
        for k, why in out.items():
            sentence = f"{self._rows.where(int(window.numbers[k]))}: {why}"
            if self._rules.strict:
                raise TaskError(f"{sentence} (task.strict refuses it)")
            self._account.drop("not verifiable", sentence)
        train, held_out = (
            [k for k in side if k not in out] for side in (window.train, window.held_out)
        )
        self._account.train, self._account.held_out = len(train), len(held_out)
        if self._problems is None and (train or held_out) and not (train and held_out):
            self._account.example("too few to part", "all rows are trained on and evaluated")
        return _Window(
            window.loaded, window.numbers, np.array(train, np.int64), np.array(held_out, np.int64)
        )

    @cached_property
    def _training_places(self) -> np.ndarray:
        window = self._everything
        both = np.sort(np.concatenate([window.train, window.held_out]))
        return window.train if len(window.train) and len(window.held_out) else both

    def _shuffled(self, epoch: int) -> np.ndarray:
        if self._shuffle[0] != epoch:
            order = shuffled(self._training_places, "equipoise/rows", self.seed, epoch)
            self._shuffle = epoch, order
        return self._shuffle[1]

    def _window(self, epoch: int, number: int) -> tuple[_Window, np.ndarray]:
        """A window of large data and its training places in their order; the last few are kept."""
        key = epoch, number
        if key not in self._streamed:
            first = not self._accounted or (
                key not in self._accounted and next(iter(self._accounted))[0] == epoch
            )
            if first:  # the windows of one epoch are apart: no row is counted twice
                self._accounted.add(key)
            spans = self._windows.spans(epoch, number)
            window = self._looked_through(spans, self._account if first else None)
            order = shuffled(window.train, "equipoise/window", self.seed, epoch, number)
            self._streamed[key] = window, order
            while len(self._streamed) > WINDOWS_KEPT:
                self._streamed.popitem(last=False)
        self._streamed.move_to_end(key)
        return self._streamed[key]

    def _looked_through(self, spans: Sequence[Span], summary: Summary | None) -> _Window:
        loaded = self._rows.load(spans)
        numbers = np.concatenate([np.arange(*span) for span in spans])
        checker = Checker(
            self._rules, self._rows, Summary("", "", 0) if summary is None else summary
        )
        sides: dict[str, list[int]] = {"train": [], "held out": []}
        for k, row in enumerate(loaded):
            if (found := checker.side(int(numbers[k]), row)) is not None:
                sides[found[0]].append(k)
        return _Window(loaded, numbers, *(np.array(places, np.int64) for places in sides.values()))

    def _nothing_left(self) -> TaskError:
        ((label, count),) = self.summary.dropped.most_common(1)
        example = self.summary.examples[label][0]
        return TaskError(
            f"{example}; no row of {self._rows.count:,} is left to train on ({count:,} {label})"
        )

    def _held_out(self) -> Iterator[Prompt]:
        if self._problems is not None:
            yield from (self._shaped(id_, item) for id_, item in self._problems)
            return
        if self.whole:
            window = self._everything
            both = len(window.train) and len(window.held_out)
            yield from (
                self._prompt(window, int(k))
                for k in (window.held_out if both else self._training_places)
            )
            return
        found = False
        for spans in self._evaluation_spans():
            window = self._looked_through(spans, None)
            yield from (self._prompt(window, int(k)) for k in window.held_out)
            found = found or bool(len(window.held_out))
        if not found:
            raise TaskError(
                f"{self.name}: none of its rows is held out: give task.held_out, a file to evaluate on"
            )

    def _evaluation_spans(self) -> list[list[Span]]:
        """`WINDOW_ROWS` rows from all over large data, a window at a time; alike for all seeds."""
        wanted, at_once = min(WINDOW_ROWS, self._rows.count), self._windows.window
        piece = min(at_once, -(-wanted // EVALUATION_SPANS))
        starts = np.linspace(0, self._rows.count - piece, wanted // piece).astype(int)
        spans = [(int(start), int(start) + piece) for start in starts]
        return [spans[k : k + at_once // piece] for k in range(0, len(spans), at_once // piece)]

    def _prompt(self, window: _Window, k: int) -> Prompt:
        item = self._schema.read(window.row(k))
        return self._shaped(self._rows.label(int(window.numbers[k]), item.id), item)

    def _shaped(self, id_: str, item: Item) -> Prompt:
        meta = {**item.meta, "verifier": item.verifier}
        if item.tests is not None:
            meta["tests"] = item.tests
        messages = item.messages
        if messages is not None and (self._suffix or self._template):
            last = {**messages[-1], "content": self._written(messages[-1]["content"])}
            messages = (*messages[:-1], last)
        return Prompt(id_, self._written(item.question), item.answer, item.level, meta, messages)

    def _written(self, question: str) -> str:
        return written(question, self._template, self._suffix)


def _check_names(*, verifier: str | None, answer_in: str, rules: str, template: str) -> None:
    if verifier not in (None, *COMPARED):
        raise TaskError(
            f'task.verifier = "{verifier}" is not a way to compare answers: {", ".join(COMPARED)}'
        )
    for option, value, known in (("answer_in", answer_in, ANSWER_IN), ("rules", rules, RULES)):
        if value not in known:
            raise TaskError(f'task.{option} = "{value}" is not known: {", ".join(known)}')
    if template and template not in PROMPTS:
        raise TaskError(
            f'task.template = "{template}" is not a prompt template: {", ".join(PROMPTS)}'
        )


def _overlap(avoid: Sequence[str | Path]) -> Overlap | None:
    """With the problems of these files."""
    if not avoid:
        return None
    return Overlap(
        {str(path): [item.question for _, item in read_problems(str(path))] for path in avoid}
    )


def _windows(rows: Rows, trained_on: float, seed: int) -> Windows:
    """`trained_on`: the share of the rows that is not held out."""
    row_bytes = max(1, rows.size // rows.count)
    size = min(WINDOW_ROWS, max(1, WINDOW_BYTES // row_bytes))
    return Windows(rows.count, size, trained_on, seed)


def _problems(
    name: str, columns: Mapping[str, str] | None, verifier: str | None, recognise: Recognise
) -> list[tuple[str, Item]]:
    """A held-out file has the columns of the training data, or a layout that is known."""
    try:
        return read_problems(name, columns, verifier, recognise)
    except TaskError:
        if not columns:
            raise
        return read_problems(name, verifier=verifier, recognise=recognise)

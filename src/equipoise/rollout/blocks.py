"""Who holds which block of a paged cache: the host's book-keeping of a paged sampler,
in numpy, without a device.

A response being decoded is a row. Its own tokens lie in blocks of BLOCK positions that it gets as
it grows; those of its prompt lie in blocks that all rows of the group share. Responses wait in a
queue until there is a row and blocks for them; where blocks run out, the youngest rows go back to
the queue and are done again later (their draws come from counters, so they become the same
responses). Nothing here moves keys or values: only tables move.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.kernels.decode import BLOCK, LONGEST

# Steps between two looks at the device; a row's blocks reach that far ahead.
WINDOW = 16
# waiting responses come in when a REFILLth of the rows is empty:
# bringing them in costs a pass over prompts
REFILL = 8

Ints = NDArray[np.int32]


def blocks_for(tokens: NDArray[np.int64] | int) -> NDArray[np.int64]:
    return -(-np.asarray(tokens) // BLOCK)


class Blocks:
    """The free ones among 1 … count − 1; block 0 is nobody's."""

    def __init__(self, count: int) -> None:
        self._stack = np.arange(count - 1, 0, -1, dtype=np.int32)
        self.left = count - 1

    def take(self, number: int) -> Ints:
        assert number <= self.left
        self.left -= number
        return self._stack[self.left : self.left + number].copy()

    def give(self, blocks: Ints) -> None:
        self._stack[self.left : self.left + len(blocks)] = blocks
        self.left += len(blocks)


class Size(NamedTuple):
    """The most rows, blocks of a row, prompts in the cache and blocks of a prompt;
    n responses to a prompt; drafts that a step tries of a row.
    """

    rows: int
    most: int
    prompts: int
    most_prompt: int
    n: int
    drafts: int = 0

    @property
    def width(self) -> int:
        """The most tokens that a row draws in a step."""
        return self.drafts + 1

    @property
    def reach(self) -> int:
        """How many of a row's last tokens a step must know."""
        return LONGEST if self.drafts else 1

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the fields of `kernels.DecodeRows`, in their order."""
        rows, most, prompts, most_prompt, n, _ = self
        return [(rows, most), (rows,), (rows,), (prompts, most_prompt), (prompts,), (prompts, n)]


class Tables:
    """What a decode step reads, as `kernels.DecodeRows` wants it: views of one int32 array, so that
    one copy brings them to the device. `keys` [rows] and `recent` [rows, reach] int64, the last
    tokens of each, are views of a second one.
    """

    def __init__(self, size: Size, small: Ints, large: NDArray[np.int64]) -> None:
        parts = np.split(small, np.cumsum([int(np.prod(s)) for s in size.shapes])[:-1])
        parts = [part.reshape(shape) for part, shape in zip(parts, size.shapes, strict=True)]
        (
            self.table,
            self.length,
            self.prompt,
            self.prompt_table,
            self.prompt_length,
            self.members,
        ) = parts
        self.keys, recent = np.split(large, [size.rows])
        self.recent = recent.reshape(size.rows, size.reach)


class Scheduler:
    """The rows 0 … count − 1 and the prompts that are in the cache, written into `tables`.

    prompt_length [prompts of the request]; limit [responses]: most tokens of each;
    response r answers prompt r // n.
    """

    def __init__(
        self,
        tables: Tables,
        blocks: Blocks,
        prompt_length: NDArray[np.int64],
        limit: NDArray[np.int64],
    ) -> None:
        capacity = len(tables.length)
        places = len(tables.prompt_length)
        n = len(limit) // len(prompt_length)
        self.tables = tables
        self.blocks = blocks
        self.limit = limit
        self.n = n
        self.capacity, self.count, self.born = capacity, 0, 0
        self.response = np.zeros(capacity, dtype=np.int64)
        # tokens so far; all but the last are in the cache
        self.drawn = np.zeros(capacity, dtype=np.int64)
        self.held = np.zeros(capacity, dtype=np.int64)  # blocks of its own
        self.age = np.zeros(capacity, dtype=np.int64)
        self.queue = deque(range(len(prompt_length) * n))
        self.prompt_length = prompt_length
        self.waiting = np.full(len(prompt_length), n)
        # where the prompt is in the tables; −1: not in the cache
        self.place = np.full(len(prompt_length), -1)
        self.owner = np.full(places, -1)  # which prompt is there
        self.active = np.zeros(places, dtype=np.int64)  # rows that answer it

    def admit(self) -> list[int]:
        """Give rows to responses from the queue, as many as there are rows and blocks for. Returns
        the prompts (of the request) that are to be computed into their blocks; the new rows are the
        last ones, with nothing drawn.
        """
        fresh: list[int] = []
        if self.capacity - self.count < min(len(self.queue), max(1, self.capacity // REFILL)):
            return fresh
        while self.queue and self.count < self.capacity:
            prompt = self.queue[0] // self.n
            if self.place[prompt] < 0:
                if not self._bring_in(prompt):
                    break
                fresh.append(prompt)
            elif not self._can_take(1, keep=prompt):
                break
            self._open_row(self.queue.popleft(), prompt)
        return fresh

    def most_left(self) -> int:
        """The most tokens that a row may still draw."""
        rows = slice(0, self.count)
        return int((self.limit[self.response[rows]] - self.drawn[rows]).max())

    def grow(self, tokens: int) -> None:
        """Give every row blocks for its next `tokens`,
        if need be at the expense of the youngest rows.

        A response's last token never enters the cache;
        what a row draws behind its limit goes to block 0.
        """
        while True:
            rows = slice(0, self.count)
            need = blocks_for(
                np.minimum(self.drawn[rows] - 1 + tokens, self.limit[self.response[rows]] - 1)
            )
            need -= self.held[rows]
            lacking = int(need.clip(0).sum()) - self.blocks.left
            if lacking <= 0:
                break
            if not self._release_idle():
                self._send_back(int(self.age[rows].argmax()))
        while len(some := (need > 0).nonzero()[0]):
            self.tables.table[some, self.held[some]] = self.blocks.take(len(some))
            self.held[some] += 1
            need[some] -= 1

    def drop(self, gone: NDArray[np.bool_]) -> None:
        """Rows [count] that are finished leave; the others close up in their order."""
        for row in gone.nonzero()[0].tolist():
            self._free_row(row)
        kept = (~gone).nonzero()[0]
        self.count = len(kept)
        if len(kept) == 0 or kept[-1] == len(kept) - 1:
            return
        tables = self.tables
        for array in (
            self.response,
            self.drawn,
            self.held,
            self.age,
            tables.table,
            tables.prompt,
            tables.keys,
            tables.recent,
        ):
            array[: len(kept)] = array[kept]

    def fill_in(self, size: int) -> None:
        """Finish the tables for a step over `size` rows:
        lengths, who answers which prompt, and rows of padding.
        """
        tables, rows = self.tables, slice(0, self.count)
        tables.length[rows] = self.drawn[rows] - 1
        tables.length[self.count : size] = 0
        tables.prompt[self.count : size] = 0
        tables.table[self.count : size, 0] = 0
        tables.members.fill(-1)
        tables.members[tables.prompt[rows], self.response[rows] % self.n] = np.arange(self.count)

    def _can_take(self, number: int, keep: int) -> bool:
        """Whether `number` blocks can be had and one is left for every row,
        which each will need before long.
        """
        reserve = self.count
        while self.blocks.left < number + reserve and self._release_idle(keep):
            pass
        # The first row of all may take what there is: the pool holds at least one response of any
        # length.
        return self.blocks.left >= number + reserve

    def _bring_in(self, prompt: int) -> bool:
        """Reserve a place and blocks for a prompt, if there are blocks for it and a first row."""
        free = (self.owner < 0).nonzero()[0]
        if len(free) == 0 and self._release_idle(prompt):
            free = (self.owner < 0).nonzero()[0]
        number = int(blocks_for(int(self.prompt_length[prompt])))
        if len(free) == 0 or not self._can_take(number + 1, keep=prompt):
            return False
        place = free[0]
        self.owner[place], self.place[prompt] = prompt, place
        self.tables.prompt_table[place, :number] = self.blocks.take(number)
        self.tables.prompt_length[place] = self.prompt_length[prompt]
        return True

    def _open_row(self, response: int, prompt: int) -> None:
        row, place = self.count, self.place[prompt]
        self.response[row], self.drawn[row], self.held[row], self.age[row] = (
            response,
            0,
            0,
            self.born,
        )
        self.tables.prompt[row] = place
        self.tables.table[row] = 0
        self.active[place] += 1
        self.waiting[prompt] -= 1
        self.born += 1
        self.count += 1

    def _free_row(self, row: int) -> None:
        self.blocks.give(self.tables.table[row, : self.held[row]])
        place = self.tables.prompt[row]
        self.active[place] -= 1
        if self.active[place] == 0 and self.waiting[self.owner[place]] == 0:
            self._free_prompt(place)

    def _send_back(self, row: int) -> None:
        response = int(self.response[row])
        self.queue.appendleft(response)
        self.waiting[response // self.n] += 1
        gone = np.zeros(self.count, dtype=bool)
        gone[row] = True
        self.drop(gone)

    def _release_idle(self, keep: int = -1) -> bool:
        """Drop one prompt that nobody in the cache answers at the moment;
        it will be computed again.
        """
        idle = ((self.owner >= 0) & (self.active == 0) & (self.owner != keep)).nonzero()[0]
        if len(idle):
            self._free_prompt(idle[-1])
        return len(idle) > 0

    def _free_prompt(self, place: int) -> None:
        prompt = self.owner[place]
        self.blocks.give(
            self.tables.prompt_table[place, : int(blocks_for(int(self.prompt_length[prompt])))]
        )
        self.owner[place] = self.place[prompt] = -1
        self.tables.prompt_length[place] = 0

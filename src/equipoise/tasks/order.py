"""The order of a data set's rows: a function of seed and position, without a state to save.

Rows are put in order by a hash of their number with the seed and the epoch. For data read whole
that is a fresh uniform shuffle of all rows in every epoch. Data too large for that goes by windows:
every epoch shuffles chunks of neighbouring rows, takes them some at a time as a window, and
shuffles the rows of a window. So rows that were neighbours in the file may come within one window
of each other, but a batch mixes as many places of the file as a window has chunks.

Which rows of a window can be used is known only when it is read. Where a window begins must not
depend on that, so it has a fixed number of slots; see :class:`Windows`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from equipoise.splitmix import GAMMA, mix

# chunks of a window: most (small data), least (large data, where every chunk costs a row group)
MIXED = 64, 8
CHUNKS = 8192  # of a data set, before its chunks get longer


def shuffled(numbers: np.ndarray, *key: int | str) -> np.ndarray:
    """`numbers` in the order of a hash (SplitMix64, a bijection: no ties) of each with the key."""
    seed = int.from_bytes(
        hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest(), "big"
    )
    return numbers[np.argsort(mix(numbers.astype(np.uint64) * GAMMA + np.uint64(seed)))]


@dataclass(frozen=True)
class Windows:
    """`rows` in windows of about `window` rows.

    n rows give `share` · n slots, the part expected to be usable, whatever the rows turn out to be.
    A window with more usable rows than slots leaves the rest to another epoch; one with fewer
    begins again with its own.
    """

    rows: int
    window: int
    share: float
    seed: int

    @property
    def chunk(self) -> int:
        """Rows of a chunk: as many as still mix `MIXED` chunks into a window."""
        most, least = MIXED
        return max(1, self.window // most, min(self.window // least, self.rows // CHUNKS))

    @property
    def per_window(self) -> int:
        return max(1, self.window // self.chunk)

    def locate(self, i: int) -> tuple[int, int, int]:
        """Epoch, window of the epoch, and slot of the window, of position i."""
        epoch, place = divmod(i, self.slots)
        starts = _starts(self, epoch)
        window = int(np.searchsorted(starts, place, "right")) - 1
        return epoch, window, place - int(starts[window])

    def spans(self, epoch: int, window: int) -> list[tuple[int, int]]:
        """The rows of a window of an epoch, in file order."""
        first = window * self.per_window
        chunks = _chunk_order(self, epoch)[first : first + self.per_window]
        return [
            (int(c) * self.chunk, min((int(c) + 1) * self.chunk, self.rows)) for c in sorted(chunks)
        ]

    @property
    def chunks(self) -> int:
        return -(-self.rows // self.chunk)

    @property
    def count(self) -> int:
        """Windows of an epoch."""
        return -(-self.chunks // self.per_window)

    @property
    def slots(self) -> int:
        """Of an epoch."""
        return max(1, int(self.rows * self.share))


@lru_cache(maxsize=4)
def _chunk_order(windows: Windows, epoch: int) -> np.ndarray:
    return shuffled(np.arange(windows.chunks), "equipoise/chunks", windows.seed, epoch)


@lru_cache(maxsize=4)
def _starts(windows: Windows, epoch: int) -> np.ndarray:
    """First slot of each window: `share` of the rows before it."""
    rows = np.full(windows.chunks, windows.chunk)
    rows[_chunk_order(windows, epoch) == windows.chunks - 1] = (
        windows.rows - (windows.chunks - 1) * windows.chunk
    )
    before = np.cumsum(rows)[windows.per_window - 1 :: windows.per_window]
    return (np.concatenate([[0], before])[: windows.count] * windows.share).astype(np.int64)

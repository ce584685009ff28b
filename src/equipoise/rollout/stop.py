"""Stop strings, found as the tokens arrive. A table made once says which tokens could complete a
stop string; only when one of those was drawn is the end of the response decoded, and only as many
tokens of it as a stop string can span.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


class StopStrings:
    """Holds the table for one tokenizer and one set of stop strings."""

    def __init__(
        self, tokenizer: Any, stop: tuple[str, ...], vocabulary: int, device: torch.device
    ) -> None:
        self.tokenizer = tokenizer
        self.stop = stop
        # A token is at least one byte, except for special ones; two more leave room for those.
        self.span = max(len(s.encode()) for s in stop) + 2
        texts = tokenizer.batch_decode([[i] for i in range(min(vocabulary, len(tokenizer)))])
        may = [any(_may_complete(text, s) for s in stop) for text in texts]
        may += [False] * (vocabulary - len(may))
        self.candidate = torch.tensor(may, device=device)

    def completed(self, tails: Tensor) -> Tensor:
        """Whether the last token of each row completed a stop string;
        `tails` [R, ≤ span] end the responses so far.
        """
        found = self.candidate[tails[:, -1]]
        rows = found.nonzero()[:, 0]
        if len(rows):
            found[rows] = torch.tensor(self.in_tails(tails[rows].tolist()), device=found.device)
        return found

    def in_tails(self, tails: list[list[int]]) -> list[bool]:
        """Whether the text of each of these ends of responses holds a stop string."""
        return [any(s in text for s in self.stop) for text in self.tokenizer.batch_decode(tails)]


@lru_cache(maxsize=4)
def stop_strings(
    tokenizer: Any, stop: tuple[str, ...], vocabulary: int, device: torch.device
) -> StopStrings:
    """The table for a large vocabulary takes a second to make,
    and a run asks for the same one at every step.
    """
    return StopStrings(tokenizer, stop, vocabulary, device)


def _may_complete(text: str, stop: str) -> bool:
    """Whether a match of `stop` can end inside `text`, given any text before it."""
    # part of a character; which one shows only with its neighbours
    if "\ufffd" in text and not stop.isascii():
        return True
    # Some tokenizers drop the space before a word when it is decoded alone.
    return any(
        stop in t or any(t.startswith(stop[i:]) for i in range(1, len(stop)))
        for t in (text, " " + text)
    )

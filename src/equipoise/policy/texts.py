"""Tokens into text, many responses at once.

The tokenizers of most models spell a text by its tokens' bytes in a row: then a table of bytes is
all it takes, several times faster than asking the tokenizer. Where a text is more than that
(sentencepiece's spaces, words cleaned up after), or the tokenizer is not one of the package
tokenizers, it is asked response by response.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from equipoise.policy.model import Policy

# by kind of decoder: what it puts between tokens
BETWEEN = {"ByteLevel": b"", "Fuse": b"", "NoneType": b" "}
TOGETHER = 1 << 16  # tokens spelled at once, or one response
ROW = 100  # tokens of one text in which table and tokenizer are compared


class Table(NamedTuple):
    """Token i is `size[i]` of the `letters` from `start[i]` on; `between` two tokens ends each."""

    letters: NDArray[np.uint8]
    start: NDArray[np.int64]
    size: NDArray[np.int64]
    between: bytes


def decode(policy: Policy, tokens: Tensor, lengths: Tensor) -> list[str]:
    """Texts of the responses in flat `tokens` [N] with `lengths` [B], special tokens left out."""
    flat, sizes = tokens.cpu().numpy(), lengths.tolist()
    ends = [*accumulate(sizes, initial=0)]
    table = _table(policy.tokenizer)
    if table is None:
        return _asked(policy.tokenizer, flat, ends)
    together = max(1, TOGETHER // max([1, *sizes]))
    starts = range(0, len(sizes), together)
    return [
        text
        for start in starts
        for text in _spelled(table, flat, ends[start : start + together + 1])
    ]


def _asked(tokenizer: Any, tokens: NDArray[np.integer], ends: Sequence[int]) -> list[str]:
    # transformers looks at every entry of a list to see that it is a number;
    # an array's it takes as they are.
    return [str(tokenizer.decode(tokens[a:b], skip_special_tokens=True)) for a, b in pairwise(ends)]


def _spelled(table: Table, tokens: NDArray[np.integer], ends: Sequence[int]) -> list[str]:
    """The texts between neighbouring `ends`. A token past the table's end is nothing."""
    tokens = tokens[ends[0] : ends[-1]]
    size = table.size.take(tokens, mode="clip")
    end = np.concatenate(([0], size.cumsum()))
    letter = np.repeat(table.start.take(tokens, mode="clip") - end[:-1], size) + np.arange(end[-1])
    spelled = table.letters[letter].tobytes()
    bounds = end[np.subtract(ends, ends[0])].tolist()
    return [
        spelled[a:b].removesuffix(table.between).decode("utf-8", "replace")
        for a, b in pairwise(bounds)
    ]


@lru_cache(maxsize=4)
def _table(tokenizer: Any) -> Table | None:
    """None where a text is more than its tokens' bytes, by the decoder's kind or by a try."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    kind = type(getattr(backend, "decoder", None)).__name__
    if backend is None or kind not in BETWEEN:
        return None
    vocabulary: dict[str, int] = backend.get_vocab()
    special = {
        token.content for token in backend.get_added_tokens_decoder().values() if token.special
    }
    pieces = [b""] * (max(vocabulary.values()) + 2)
    for token, number in vocabulary.items():
        if token not in special:
            spelled = _bytes(token) if kind == "ByteLevel" else token.encode()
            pieces[number] = spelled + BETWEEN[kind]
    size = np.array([len(piece) for piece in pieces])
    table = Table(
        np.frombuffer(b"".join(pieces), np.uint8), size.cumsum() - size, size, BETWEEN[kind]
    )
    tokens = np.random.default_rng(0).permutation(len(pieces))
    ends = [*range(0, len(pieces), ROW), len(pieces)]
    return table if _spelled(table, tokens, ends) == _asked(tokenizer, tokens, ends) else None


def _bytes(token: str) -> bytes:
    """The bytes a byte-level token spells; a token with any other character spells itself."""
    try:
        return bytes(map(_alphabet().__getitem__, token))
    except KeyError:
        return token.encode()


@lru_cache(maxsize=1)
def _alphabet() -> dict[str, int]:
    """The byte of each character: printable ones are themselves, the others from 256 on."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }

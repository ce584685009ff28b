"""Tokens into text, many responses at once.

The tokenizers of most models spell a text by its tokens' bytes in a row: then a table of bytes is all it takes, several
times faster than asking the tokenizer. Where a text is more than that (sentencepiece's spaces, words cleaned up after),
or the tokenizer is not one of the package tokenizers, it is asked response by response.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from equipoise.policy.model import Policy

BETWEEN = {"ByteLevel": b"", "Fuse": b"", "NoneType": b" "}  # by kind of decoder: what it puts between tokens
ROW = 100  # tokens of one text in which table and tokenizer are compared


def decode(policy: Policy, tokens: Tensor, lengths: Tensor) -> list[str]:
    """Texts of the responses in flat `tokens` [N] with `lengths` [B], special tokens left out."""
    flat, ends = tokens.cpu().numpy(), np.cumsum(lengths.cpu().numpy()).tolist()
    rows = [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    spelled = _pieces(policy.tokenizer)
    return _asked(policy.tokenizer, rows) if spelled is None else _joined(*spelled, rows)


def _asked(tokenizer: Any, rows: list[NDArray[np.integer]]) -> list[str]:
    # transformers looks at every entry of a list to see that it is a number; an array's it takes as they are.
    return [str(tokenizer.decode(row, skip_special_tokens=True)) for row in rows]


def _joined(pieces: NDArray[np.object_], between: bytes, rows: list[NDArray[np.integer]]) -> list[str]:
    """A token past the end of the table is nothing, as its last piece is."""
    texts = (b"".join(pieces.take(row, mode="clip").tolist()).removesuffix(between) for row in rows)
    return [text.decode("utf-8", "replace") for text in texts]


@lru_cache(maxsize=4)
def _pieces(tokenizer: Any) -> tuple[NDArray[np.object_], bytes] | None:
    """The bytes of each token, and those between two; None where a text is more than that."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    kind = type(getattr(backend, "decoder", None)).__name__
    if backend is None or kind not in BETWEEN:
        return None
    vocabulary: dict[str, int] = backend.get_vocab()
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    between = BETWEEN[kind]
    pieces = np.full(max(vocabulary.values()) + 2, b"", dtype=object)
    for token, number in vocabulary.items():
        if token not in special:
            pieces[number] = (_bytes(token) if kind == "ByteLevel" else token.encode()) + between
    rows = np.array_split(np.random.default_rng(0).permutation(len(pieces)), len(pieces) // ROW + 1)
    return (pieces, between) if _joined(pieces, between, rows) == _asked(tokenizer, rows) else None


def _bytes(token: str) -> bytes:
    """The bytes a byte-level token spells by its characters; a token with any other character spells itself."""
    try:
        return bytes(map(_alphabet().__getitem__, token))
    except KeyError:
        return token.encode()


@lru_cache(maxsize=1)
def _alphabet() -> dict[str, int]:
    """The byte of each character: printable ones stand for themselves, the others for characters from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}

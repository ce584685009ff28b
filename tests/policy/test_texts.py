"""Texts are the tokenizer's own, whichever way they were made."""

from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from equipoise import policy as p
from equipoise.policy import texts
from tests.policy import tiny_models


def byte_level(**options):
    """All bytes, some words over several characters, and tokens that were added: special ones, and ones with spaces."""
    alphabet = texts._alphabet()
    words = ["Ġthe", "Ġanswer", "ĠĠ", "Ã©", "æ¼¢", "æ¼", "Ġ.", "Ġ,"]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate([*alphabet, *words])}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    backend.add_tokens([AddedToken("<think>"), AddedToken("two words"), AddedToken("漢字")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", **options)


def words(decoder=None, **options):
    vocabulary = {token: i for i, token in enumerate(["<end>", "▁the", "▁answer", "is", "##s", ".", "é", "<0x0A>", ""])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="is"))
    if decoder is not None:
        backend.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", **options)


TOKENIZERS = {
    "bytes": (byte_level, True),
    "characters": (tiny_models.tokenizer, True),
    "words": (words, True),
    "words, cleaned up": (lambda: words(clean_up_tokenization_spaces=True), False),
    "sentencepiece": (lambda: words(decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])), False),
    "word pieces": (lambda: words(decoders.WordPiece()), False),
}


@pytest.mark.parametrize("together", [texts.TOGETHER, 200, 1])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_texts_are_the_tokenizers(name, together, monkeypatch):
    monkeypatch.setattr(texts, "TOGETHER", together)
    make, by_table = TOKENIZERS[name]
    tokenizer = make()
    assert (texts._table(tokenizer) is not None) == by_table
    rng = np.random.default_rng(0)
    lengths = [0, *rng.integers(0, 60, 300).tolist()]
    rows = [rng.integers(0, len(tokenizer) + 3, length).tolist() for length in lengths]  # some past the vocabulary
    said = p.decode(SimpleNamespace(tokenizer=tokenizer), torch.tensor([*chain(*rows)]), torch.tensor(lengths))
    assert said == [tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    nothing = torch.tensor([], dtype=torch.int64)
    assert p.decode(SimpleNamespace(tokenizer=tokenizer), nothing, nothing) == []


def test_bytes_that_are_no_characters_are_replaced_as_the_tokenizer_does():
    tokenizer = byte_level()
    bad = [bytes([a, b, c, 65]) for a in (0xC3, 0xE0, 0xED, 0xF0, 0xF4, 0x80) for b in range(256) for c in (65, 0x80)]
    number = {byte: i for i, byte in enumerate(texts._alphabet().values())}
    rows = torch.tensor([[number[byte] for byte in text] for text in bad])
    said = p.decode(SimpleNamespace(tokenizer=tokenizer), rows.flatten(), torch.full((len(bad),), 4))
    assert said == [tokenizer.decode(row) for row in rows]


def test_the_alphabet_is_that_of_byte_level_tokenizers():
    backend = Tokenizer(models.BPE())
    backend.decoder = decoders.ByteLevel()
    assert sorted(texts._alphabet().values()) == list(range(256))
    for character, byte in texts._alphabet().items():
        if byte < 128:
            assert backend.decoder.decode([character]) == chr(byte)
        else:
            pair = ["Ã", character] if byte < 192 else [character, "Ģ"]
            wanted = bytes([0xC3, byte] if byte < 192 else [byte, 0x80]).decode("utf-8", "replace")
            assert backend.decoder.decode(pair) == wanted

import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.rollout.stop import StopStrings
from tests.policy import tiny_models

TOKENIZER = tiny_models.tokenizer()


class Bytes:
    """A byte-level tokenizer with some longer tokens: texts of single tokens can be half a character."""

    table = [bytes([i]) for i in range(256)] + [b"ab", b"b;", "é".encode() + b"a", b"\xa9;", b"aab", b";;"]

    def __len__(self):
        return len(self.table)

    def batch_decode(self, rows):
        return [b"".join(self.table[t] for t in row).decode(errors="replace") for row in rows]


def first_match(tokenizer, tokens, stop):
    """How many tokens until the text so far holds a stop string, by decoding everything every time."""
    for n in range(1, len(tokens) + 1):
        if any(s in tokenizer.batch_decode([tokens[:n]])[0] for s in stop):
            return n
    return None


def incremental(tokenizer, tokens, stop):
    found = StopStrings(tokenizer, stop, len(tokenizer) + 5, torch.device("cpu"))
    for n in range(1, len(tokens) + 1):
        if found.completed(torch.tensor([tokens[max(0, n - found.span) : n]]))[0]:
            return n
    return None


ALPHABET = [*b"ab;", *"é".encode(), 256, 257, 258, 259, 260, 261]


@given(
    st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=30),
    st.lists(st.text("ab;é", min_size=1, max_size=4), min_size=1, max_size=2),
)
def test_found_at_the_same_token_as_by_reading_everything(tokens, stop):
    assert incremental(Bytes(), tokens, tuple(stop)) == first_match(Bytes(), tokens, tuple(stop))


def test_character_tokens_and_special_tokens():
    ids = TOKENIZER("1+2=3;\n9").input_ids
    assert incremental(TOKENIZER, ids, ("3;\n",)) == 7
    assert incremental(TOKENIZER, ids, ("3\n",)) is None
    assert incremental(TOKENIZER, [*ids, 2, 5], ("<eos>",)) == 9

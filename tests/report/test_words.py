import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equipoise.report import words
from equipoise.report.over_seeds import words_table
from equipoise.report.runs import read
from tests.report.folders import make_run

PROMPTS = [f"How many apples has {name}?" for name in ("Ann", "Ben", "Cem", "Dan")]


def a_run(path, first, last):
    """A run whose first and last batch answer each of four prompts with these responses."""
    run = make_run(path, steps=2, every=2)
    for step, texts in ((1, first), (2, last)):
        rows = [{"prompt": p, "response": text, "group": i} for i, p in enumerate(PROMPTS) for text in texts]
        pq.write_table(pa.Table.from_pylist(rows), path / f"rollouts/step-{step}.parquet")
    return read(run, path.name)


def shown(*runs):
    panel = words.words(runs)
    return {} if panel is None else {r["head"]: [c["text"] for c in r["cells"]] for r in panel["table"]["rows"]}


def test_a_word_that_spreads_is_shown_with_its_shares(tmp_path):
    run = a_run(tmp_path / "a", ["It is 7.", "It is 8."], ["Qwen says QWEN: 7.", "It is 8."])
    assert shown(run) == {"qwen": ["0 → 50 %"], "says": ["0 → 50 %"], "it": ["100 → 50 %"], "is": ["100 → 50 %"]}


def test_the_largest_change_stands_first_by_how_sure_it_is(tmp_path):
    """From nothing to a quarter is more than from a half to three quarters."""
    run = a_run(tmp_path / "a", ["so", "so", "no", "no"], ["so new", "so", "so", "no"])
    assert list(shown(run)) == ["new", "no", "so"]


def test_what_the_own_prompt_says_does_not_count(tmp_path):
    run = a_run(tmp_path / "a", ["7"], ["apples, many"])
    assert shown(run) == {}


def test_what_the_responses_to_two_prompts_say_is_no_habit(tmp_path):
    run = a_run(tmp_path / "a", ["7"], ["7"])
    rows = pq.read_table(run.rollouts[2]).to_pylist()
    for said_to, expected in ((2, {}), (3, {"acre": ["0 → 75 %"]})):
        said = [{**row, "response": "acre" if i < said_to else "7"} for i, row in enumerate(rows)]
        pq.write_table(pa.Table.from_pylist(said), run.rollouts[2])
        assert shown(run) == expected


def test_words_are_letters_whatever_their_alphabet(tmp_path):
    run = a_run(tmp_path / "a", ["7"], [f"We'll add x to 12_345: größer, ответ, {'z' * 25}."])
    assert set(shown(run)) == {"we'll", "add", "to", "größer", "ответ"}


def test_small_changes_are_not_shown(tmp_path):
    run = a_run(tmp_path / "a", ["so"] * 100, ["so"] * 96 + ["no"] * 4)
    assert shown(run) == {}


def test_every_run_has_a_column_and_one_batch_tells_nothing(tmp_path):
    a = a_run(tmp_path / "a", ["7"], ["so"])
    b = a_run(tmp_path / "b", ["7"], ["7"])
    b.rollouts.pop(2)
    assert shown(b) == {}
    assert shown(a, b) == {"so": ["0 → 100 %", "0 → 0 %"]}


def test_seeds_of_a_variant_are_averaged(tmp_path):
    a, b = (a_run(tmp_path / name, ["7"], [text]) for name, text in (("a", "so"), ("b", "7")))
    panel = words.words([a, b])
    assert words_table(panel, [[a, b]])["rows"] == [{"head": "so", "cells": [{"text": "0 → 50 %"}]}]


def test_a_long_file_is_read_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(words, "CHARACTERS", 8)
    run = a_run(tmp_path / "a", ["7"], ["acre no", "so"])
    assert shown(run) == {}  # of the first prompt alone
    assert words._said(run.rollouts[2], (1,)) == {"acre": (0.5, 1), "no": (0.5, 1)}


@pytest.mark.parametrize("content", [b"", b"no parquet"])
def test_a_file_that_cannot_be_read_says_nothing(tmp_path, content):
    run = a_run(tmp_path / "a", ["7"], ["so"])
    run.rollouts[2].write_bytes(content)
    assert shown(run) == {}

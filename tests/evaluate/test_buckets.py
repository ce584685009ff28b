"""Buckets by another model's success rate: against a plain loop, and from the command line."""

import json

import pytest

from equipoise.cli import main
from equipoise.evaluate.buckets import bucket, by_difficulty
from equipoise.evaluate.run import Evaluation, Graded, Judged


def evaluation(*rows):
    """Right and wrong responses of each prompt, as "1" and "0"."""
    kinds = {"1": "correct", "0": "wrong"}
    sampled = [[Graded("", 1, Judged(kinds[mark])) for mark in row] for row in rows]
    return Evaluation({}, [None] * len(rows), sampled, [])


def test_edges():
    assert [bucket(rate) for rate in (0.0, 0.24, 0.25, 0.74, 0.75, 1.0)] == [
        "hard",
        "hard",
        "mid",
        "mid",
        "easy",
        "easy",
    ]


def test_accuracy_of_each_bucket():
    base = evaluation("0000", "0000", "1100", "1111")
    now = evaluation("1000", "1110", "1111", "0111")
    table = by_difficulty(base, now)
    assert {name: row["prompts"] for name, row in table.items()} == {"hard": 2, "mid": 1, "easy": 1}
    assert [table[name]["acc@4"] for name in ("hard", "mid", "easy")] == pytest.approx([0.5, 1.0, 0.75])
    assert [table[name]["base"] for name in ("hard", "mid", "easy")] == [0.0, 0.5, 1.0]
    assert "mid" not in by_difficulty(evaluation("0000"), evaluation("1111"))


def test_the_command_tells_them_apart_by_draws_of_their_own(capsys):
    """The same model on both sides: with its own draws for the buckets, acc is not what put the prompts there."""
    command = ["eval", "abacus", "--base", "abacus", "--per-level", "4", "--samples", "4", "--device", "cpu"]
    main([*command, "--json"])
    result = json.loads(capsys.readouterr().out)
    rows = result["by_difficulty"]
    assert sum(row["prompts"] for row in rows.values()) == 16
    assert any(row["base"] != row["acc@4"] for row in rows.values())
    total = sum(row["prompts"] * row["acc@4"] for row in rows.values()) / 16
    assert total == pytest.approx(result["acc@4"])
    main(command)
    assert "for abacus:" in capsys.readouterr().out

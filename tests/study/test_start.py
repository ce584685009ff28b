"""Warm starts: what each habit does to a trace, and a start that is made once and is the same again."""

import random

import pytest
import torch

from equipoise import policy as models
from equipoise.study import start
from equipoise.tasks.arithmetic import grade

CHAINS = [[12, 3, 4], [55, 9, 9, 1], [31, 2], [18, 7, 6, 5, 4]]
CLEAN = dict.fromkeys(("slip", "notice", "again", "twice", "skip", "copy"), 0.0)


def texts(**rates):
    draw = random.Random(1)
    return [(chain, start.written(chain, draw, CLEAN | rates)) for chain in CHAINS for _ in range(200)]


def mean_lengths(**rates):
    """Of right and of wrong traces, in units of the flawless one."""
    ratio = {True: [], False: []}
    for chain, text in texts(**rates):
        flawless = len(start.written(chain, random.Random(0), CLEAN))
        ratio[grade(text, str(sum(chain))).kind == "correct"].append(len(text) / flawless)
    return [sum(r) / len(r) if r else None for r in (ratio[True], ratio[False])]


def test_without_habits_a_trace_is_right_and_plain():
    assert mean_lengths() == [1.0, None]
    assert start.written([12, 3, 4], random.Random(0), CLEAN) == "+3=15+4=19#19"


def test_habits_set_the_gap():
    right, wrong = mean_lengths(slip=0.3, notice=0.8, again=0.8)
    assert wrong > 1.2 * right
    right, wrong = mean_lengths(skip=0.3)
    assert right == 1.0 > wrong
    right, wrong = mean_lengths(slip=0.3)
    assert wrong == pytest.approx(right, rel=0.02)


def test_copies_spread_lengths_and_change_no_answer():
    right, wrong = mean_lengths(copy=0.3)
    assert wrong is None
    assert right > 1.2


def test_a_start_is_made_once_and_the_same_again(tmp_path):
    habits = {"slip": 0.2, "steps": 2, "levels": [0.5, 0.5, 0.0, 0.0]}
    start.make(tmp_path / "a", habits)
    start.make(tmp_path / "b", habits)
    first, second, abacus = (
        models.load(str(name), device="cpu") for name in (tmp_path / "a", tmp_path / "b", "abacus")
    )
    pairs = list(zip(first.parameters(), second.parameters(), abacus.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert any(not torch.equal(a, c) for a, _, c in pairs)
    made = (tmp_path / "a" / "model.safetensors").stat().st_mtime_ns
    start.make_all({tmp_path / "a": habits})
    assert (tmp_path / "a" / "model.safetensors").stat().st_mtime_ns == made

"""The printed tables say what the functions say, and the examples in docstrings and docs are real output."""

import doctest
import unicodedata
from pathlib import Path

import pytest

from equipoise.theory import balance, baseline, continuous, reweighting, tables

ROOT = Path(__file__).parents[2]


def test_tables_hold_the_papers_values_and_the_conditioned_ones_beside_them():
    lines = [line.split() for line in tables.render().splitlines()]
    assert ["6", "1.0000", "1.0000", "0.8278", "0.7455", "0.6897", "0.6194"] in lines
    assert ["8", "1.0000", "1.0000", "0.7811", "0.7080", "0.6409", "0.5799"] in lines
    assert ["0.05", "8", "0.125", "empty", "empty", "empty"] in lines


def test_tables_fit_a_terminal_and_line_up():
    for line in tables.render().splitlines():
        assert len(line) <= 100
        assert line == line.rstrip()
    for block in tables.render().split("\n\n")[1::2]:
        widths = {sum(not unicodedata.combining(c) for c in line) for line in block.splitlines()}
        assert len(widths) == 1


@pytest.mark.parametrize("module", [balance, baseline, continuous, reweighting])
def test_docstring_examples(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_page_shows_real_output():
    result = doctest.testfile(str(ROOT / "docs" / "theory.md"), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0

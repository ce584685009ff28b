"""The printed tables say what the functions say, and the examples in docstrings and docs are real output."""

import doctest
import functools
import re
import unicodedata
from pathlib import Path

import pytest

from equipoise.theory import balance, baseline, continuous, reweighted, reweighting, tables

ROOT = Path(__file__).parents[2]
rendered = functools.cache(tables.render)


def test_tables_hold_the_papers_values_and_the_conditioned_ones_beside_them():
    lines = [line.split() for line in rendered().splitlines()]
    assert ["6", "1.0000", "1.0000", "0.8278", "0.7455", "0.6897", "0.6194"] in lines
    assert ["8", "1.0000", "1.0000", "0.7811", "0.7080", "0.6409", "0.5799"] in lines
    assert ["0.05", "8", "0.125", "empty", "empty", "empty", "neither"] in lines
    assert ["0.02", "1.02", "1.24", "1.51"] in lines


def section(title: str) -> str:
    return next(s for s in rendered().split("\n\n") if title in s)


def test_theorem_3_is_the_union_of_lemma_1s_intervals():
    """The theorem takes λ from either interval; a table of their intersection was ours, not its."""
    told = section("Lemma 1 and Theorem 3")
    assert "(c_low, c_high) are Lemma 1's" in told
    assert "union" in told
    assert "λ for both" not in rendered()
    assert "Lemma 1" in reweighting.correction_interval.__doc__
    assert "Lemma 1" in reweighting.confidence_radius.__doc__


def test_theorem_3s_conclusion_is_answered_raw_and_scale_free():
    lines = [line.split() for line in rendered().splitlines()]
    assert ["0.25", "-0.028", "+0.461", "-0.062", "+0.028", "+0.028", "-0.045", "-0.103"] in lines
    assert any(line[:2] == ["8", "0.5"] and line[-2:] == ["0.000–0.209,", "0.791–1.000"] for line in lines)


def test_the_truncated_normal_has_its_table():
    row = next(line for line in rendered().splitlines() if "N(0.25, 0.2²)" in line)
    law = continuous.truncated_normal_rewards(0.25, 0.2)
    assert f"{continuous.spread_baseline_bias(law, 8, 0.5):+.4f}" in row


def test_the_docs_do_not_claim_what_is_false():
    formulas = (ROOT / "docs" / "formulas.md").read_text(encoding="utf-8")
    assert "rules that satisfy both" not in formulas
    assert "both conditions hold where each matters" not in formulas
    assert "Lemma 1 c_low" in formulas
    page = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    assert "eqs. 7 and 16–17 (eq. 21 is its own objective, J_BA)" in page
    assert "eq. 21 as we read it" not in page


def test_the_page_has_the_range_of_the_table_and_where_its_ends_are():
    table = rendered().split("Where |bias| is smaller after Φ than before")[1].split("\n\n")[1]
    shares = {
        tuple(line.split()[:2]): [int(x) for x in re.findall(r"(\d+) %", line)] for line in table.splitlines()[1:]
    }
    assert max(max(row) for row in shares.values()) == shares["4", "0.5"][1] == 68
    assert shares["8", "0.5"] == [40, 0, 0]
    assert shares["16", "0.5"] == [0, 0, 0]
    assert not any(row[2] for row in shares.values())


def test_tables_fit_a_terminal_and_line_up():
    for line in rendered().splitlines():
        assert len(line) <= 100
        assert line == line.rstrip()
    for block in rendered().split("\n\n")[1::2]:
        widths = {sum(not unicodedata.combining(c) for c in line) for line in block.splitlines()}
        assert len(widths) == 1


@pytest.mark.parametrize("module", [balance, baseline, continuous, reweighted, reweighting])
def test_docstring_examples(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_page_shows_real_output():
    result = doctest.testfile(str(ROOT / "docs" / "theory.md"), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0

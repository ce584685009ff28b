"""The picture of docs/study.md: drawn from the results, each point inside the axes."""

import pytest

from scripts.docs import gaps


def test_the_file_is_what_the_script_draws():
    assert gaps.OUT.read_text(encoding="utf-8") == gaps.draw()


@pytest.mark.parametrize("start", gaps.STARTS, ids=lambda start: start.file)
def test_every_interval_lies_inside_the_axes(start):
    gap, mean, low, high = gaps.found(start)
    assert gaps.GAPS[0] < gap < gaps.GAPS[1]
    assert gaps.POINTS[0] < low < mean < high < gaps.POINTS[1]

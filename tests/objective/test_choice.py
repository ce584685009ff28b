"""What is said of a name that is not known: the nearest one, however it is spelt, or which there are."""

import pytest

from equipoise.objective import Objective
from equipoise.objective.choice import did_you_mean


@pytest.mark.parametrize("name", ["GRPO", "grop", "Grpo"])
def test_case_does_not_hide_the_nearest(name):
    with pytest.raises(ValueError, match=rf'objective.preset = "{name}" is not known; did you mean "grpo"\? \(grpo, '):
        Objective.preset(name)


def test_nor_do_hyphens():
    assert did_you_mean("Dr-GRPO", ["grpo", "dr_grpo"]) == ' did you mean "dr_grpo"?'
    assert did_you_mean("min replace", ["min_replace"]) == ' did you mean "min_replace"?'


def test_where_nothing_is_near_the_sentence_is_whole():
    with pytest.raises(ValueError, match=r'objective.preset = "xyz" is not known; use one of \(grpo, '):
        Objective.preset("xyz")

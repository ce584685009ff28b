"""Which answers are one candidate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.evaluate.vote import candidates


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        (["1/2", "0.5", r"\frac{1}{2}", "2"], [0, 0, 0, 3]),
        (["(1, 2)", "(1,2)", "(2,1)"], [0, 0, 2]),
        ([None, "7", None, "7.0"], [None, 1, None, 1]),
        (["2,1", "1, 2"], [0, 0]),
        (["x+y", "y+x", "x-y"], [0, 0, 2]),
        (["no idea", "no  idea", "noidea"], [0, 0, 0]),
        (["\\frac{", "\\frac{"], [0, 0]),
        ([None, None], [None, None]),
        ([], []),
    ],
)
def test_equal_answers_are_one_candidate(answers, found):
    assert candidates(answers) == found


@given(st.lists(st.integers(-3, 3), max_size=8), st.data())
def test_any_spelling_of_a_number_is_a_vote_for_it(values, data):
    spellings = [data.draw(st.sampled_from([f"{v}", f"{v}.0", rf"\frac{{{2 * v}}}{{2}}", f" {v} "])) for v in values]
    assert candidates(spellings) == [values.index(v) for v in values]

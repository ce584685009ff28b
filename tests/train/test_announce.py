"""The sentences of a run that no other test reads as a whole."""

from equipoise.objective.difficulty import RangeError
from equipoise.train.announce import out_of_range


def test_a_colon_in_what_was_found_cuts_nothing():
    said = out_of_range(RangeError("rewards of my:f lie in [0, 2]", "give assign(accuracy=…)"))
    assert said.startswith("rewards of my:f lie in [0, 2]: objective.difficulty weighs prompts by their success rate")
    assert "assign" not in said

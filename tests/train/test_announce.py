"""The sentences of a run that no other test reads as a whole."""

import json
import re

import pytest

from equipoise.objective.difficulty import RangeError
from equipoise.train.announce import out_of_range


def test_a_colon_in_what_was_found_cuts_nothing():
    said = out_of_range(RangeError("rewards of my:f lie in [0, 2]", "give assign(accuracy=…)"))
    assert said.startswith("rewards of my:f lie in [0, 2]: objective.difficulty weighs prompts by their success rate")
    assert "assign" not in said


def test_the_header_says_how_many_of_the_held_out_prompts_are_asked(train, tmp_path):
    rows = [{"prompt": f"{a}+{b}=", "answer": a + b} for a in range(10, 20) for b in range(1, 9)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = train(task__name=str(tmp_path / "rows.jsonl"), eval__per_level=2, train__steps=1, log__terminal=True).stdout
    found = re.search(r"^data .*, 2 of (\d+) held out$", said, re.M)
    assert found
    assert f"to train on, {found[1]} held out" in said
    assert re.search(r"^run .*: 1 step, ", said, re.M)


@pytest.mark.parametrize(("most", "buffer"), [(8, 0), (600, 0), (600, 20)])
def test_the_header_says_where_no_response_can_be_as_long_as_asked(train, most, buffer):
    options = {"rollout__max_tokens": most, "reward__overlong_buffer": buffer}
    said = train(**options, train__steps=1, log__terminal=True).stdout
    assert ("note: a response ends where the model's context of 64 tokens does, prompt included" in said) == (most > 64)
    assert ("reward.overlong_buffer counts back from 600, a length that none reaches" in said) == (buffer > 0)

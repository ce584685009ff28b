"""A user's functions: every form that is taken gives its numbers, every other is refused with a sentence."""

import re
import shutil
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.verifiers import Verdict
from equipoise.verifiers.workers import functions
from equipoise.verifiers.workers.process_pool import DEPTH
from equipoise.verifiers.workers.shared import pool

OWN = "tests.verifiers.workers.own"
ROW = {"id": "1", "answer": "ab", "level": None, "steps": [1]}
GROUP = ["ab", "c", "ab", "dddd"]


def asked_one(name, response="abc"):
    return functions.submit(name, "prompt", response, ROW, seconds=20.0, workers=1).result()


def asked_group(name, completions=GROUP, seconds=20.0):
    columns = {key: [value] * len(completions) for key, value in ROW.items()}
    prompts = ["prompt"] * len(completions)
    return functions.submit_group(name, prompts, completions, columns, seconds=seconds, workers=1).result()


@pytest.mark.parametrize(
    ("name", "group"),
    [("one", False), ("one_async", False), ("method", False), ("group", True), ("group_without_columns", True),
     ("group_async", True), ("keywords", True)],
)  # fmt: skip
def test_the_arguments_say_the_form(name, group):
    assert functions.check(f"{OWN}:{name}", 1, list(ROW)) is group
    assert functions.check(f"{OWN}:{name}", 1) is group


def test_one_response_at_a_time():
    assert asked_one(f"{OWN}:one") == 5.0
    assert [asked_one(f"{OWN}:one_async", "x" * n) for n in (1, 2)] == [1.0, 2.0]
    assert asked_one(f"{OWN}:method") == 3.0


def test_a_group_at_a_time():
    assert asked_group(f"{OWN}:group") == [10.5, 0.25, 10.5, 0.25]
    assert asked_group(f"{OWN}:group_without_columns") == [2.0, 1.0, 2.0, 4.0]
    assert asked_group(f"{OWN}:keywords") == [1.0] * 4
    for _ in range(2):
        assert asked_group(f"{OWN}:group_async") == [2.0, 1.0, 2.0, 4.0]


def test_verdicts_of_a_group_share_the_room_of_one_reply():
    verdicts = asked_group(f"{OWN}:group_verdicts", ["right"] + ["x"] * 199)
    assert [v.kind for v in verdicts] == ["correct"] + ["unparsed"] * 199
    assert all(v.reason == "r" * 20 for v in verdicts)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("too_few", r"it gave \[1.0\]: must be a list of a finite number or a Verdict for each of the 2 completions"),
        ("not_a_list", r"it gave 1.0: must be a list"),
        ("none_for_the_second", "it gave None: "),
        ("text_for_the_second", "it gave the text '1': must be a finite number, or a Verdict; return float"),
    ],
)
def test_a_reply_that_is_no_list_of_rewards_is_a_crash_that_says_so(name, said):
    verdict = asked_group(f"{OWN}:{name}", ["a", "b"])
    assert isinstance(verdict, Verdict)
    assert verdict.kind == "crashed"
    assert re.search(said, verdict.reason)


def test_a_list_is_no_reward_of_one_response():
    assert "it gave [1.0] for one response: must be a finite number" in asked_one(f"{OWN}:a_list_for_one").reason


@pytest.mark.parametrize("text", ["1", "nan", b"1", bytearray(b"1"), np.str_("1"), np.array("1")])
def test_text_is_no_reward_whatever_it_spells(text):
    said = functions.submit_given(lambda prompt, response, row: text, "", "", ROW).result()
    assert isinstance(said, Verdict)
    assert said.kind == "crashed"
    assert re.search(r"it gave the text \S*'(1|nan)'\)?: must be a finite number, or a Verdict", said.reason)


@pytest.mark.parametrize(
    "number", [1, True, np.True_, np.float32(1), np.array(1), torch.tensor(1.0), torch.tensor([1.0]), Fraction(1)]
)
def test_anything_that_is_one_number_is_a_reward(number):
    assert functions.submit_given(lambda prompt, response, row: number, "", "", ROW).result() == 1.0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wrong_signature", r'wrong_signature" takes \(text, reference\): must be f\(prompt, response, row\).* TRL\'s'),
        ("needs_images", r'asks for "images", which is no column of the data \(id, answer, level, steps\)'),
        ("nowhere", "cannot be imported as module:function: AttributeError"),
    ],
)
def test_what_cannot_be_called_is_refused(name, said):
    with pytest.raises(functions.FunctionError, match=said):
        functions.check(f"{OWN}:{name}", 1, list(ROW))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ndef f(prompt, response, row)\n    return 1\n", r"SyntaxError: expected ':' \(line 2\)"),
        ("x = 1\n\ny = z\n", r"NameError: name 'z' is not defined \(line 3\)"),
        ("import nowhere_at_all\n", r"ModuleNotFoundError: .* \(line 1\)"),
    ],
)
def test_a_file_that_does_not_run_is_named_with_the_line(tmp_path, text, said):
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises(functions.FunctionError, match=said):
        functions.check(f"{tmp_path}/broken.py:f", 1)


def test_a_file_brings_what_lies_beside_it(tmp_path):
    shutil.copy(
        Path(__file__).with_name("own.py"), tmp_path / "random.py"
    )  # the name of a module that is there already
    (tmp_path / "beside.py").write_text("from equipoise.verifiers import Verdict\n")
    (tmp_path / "mine.py").write_text(
        "from beside import Verdict\ndef f(prompt, response, row): return Verdict('wrong')"
    )
    assert functions.check(f"{tmp_path}/random.py:group", 1) is True
    assert asked_group(f"{tmp_path}/random.py:group") == [10.5, 0.25, 10.5, 0.25]
    assert asked_one(f"{tmp_path}/mine.py:f").kind == "wrong"


def test_a_group_that_hangs_is_killed_as_one():
    began = time.monotonic()
    assert asked_group(f"{OWN}:group_hangs", seconds=0.2).kind == "timeout"
    assert time.monotonic() - began < 200
    assert asked_one(f"{OWN}:one") == 5.0


def test_a_cancelled_call_is_never_made():
    hanging = functions.submit(f"{OWN}:hangs", "", "", ROW, seconds=0.5, workers=1)
    queued = [functions.submit(f"{OWN}:hangs", "", "", ROW, seconds=30.0, workers=1) for _ in range(20)]
    assert all(future.cancel() for future in queued)
    began = time.monotonic()
    assert hanging.result().kind == "timeout"
    assert asked_one(f"{OWN}:one") == 5.0
    assert time.monotonic() - began < 200
    while pool("user", 1)._room._value < DEPTH:  # a job's room is given back just after its result
        assert time.monotonic() - began < 200

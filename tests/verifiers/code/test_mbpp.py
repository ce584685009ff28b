"""MBPP's own solutions, where the data set lies beside the checkout: each `correct`, or `bad_gold` with the reason."""

import json

import pytest

from equipoise.verifiers import grade
from equipoise.verifiers.code import sandbox
from tests.real_data import FOLDER

COLUMNS = ("test_list", "challenge_test_list", "test_setup_code", "test_imports", "code")


def verdicts(numbers=None):
    path = FOLDER / "train" / "mbpp.jsonl"
    if not path.exists():
        pytest.skip("no MBPP here")
    if (why := sandbox.available()) is not None:
        pytest.skip(why)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    asked = {
        row["task_id"]: grade.submit_code(f"```python\n{row['code']}\n```", {k: row[k] for k in COLUMNS if row.get(k)})
        for row in rows
        if numbers is None or row["task_id"] in numbers
    }
    return {number: future.result() for number, future in asked.items()}


def test_references_that_nobody_can_pass_say_so():
    found = verdicts((601, 602, 927))
    assert {number: verdict.kind for number, verdict in found.items()} == {
        601: "bad_gold",
        602: "correct",
        927: "bad_gold",
    }
    assert "Pair" in found[601].reason
    assert "Node" in found[927].reason


@pytest.mark.slow
def test_every_reference_is_correct_or_its_row_is_bad():
    kinds = [verdict.kind for verdict in verdicts().values()]
    assert set(kinds) == {"correct", "bad_gold"}
    assert kinds.count("bad_gold") == 2

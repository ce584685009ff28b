"""Our verifiers as reward functions of other trainers."""

import json

import pytest

from equipoise import verifiers
from equipoise.verifiers import Verdict, host_functions
from equipoise.verifiers.verdict import KINDS, SCORES


def test_every_kind_is_as_accurate_as_it_says_of_the_response():
    assert {kind: Verdict(kind).accuracy for kind in KINDS} == {
        "correct": 1.0, "wrong": 0.0, "unparsed": 0.0, "timeout": 0.0, "limit": 0.0, "crashed": 0.0,
        "bad_gold": None, "unavailable": None,
    }  # fmt: skip
    assert Verdict("wrong", value=0.25).accuracy == 0.25


def test_the_last_thing_the_assistant_said_is_graded():
    chat = [
        {"role": "assistant", "content": "\\boxed{1}", "tool_calls": []},
        {"role": "tool", "content": "\\boxed{2}"},
        {"role": "assistant", "content": [{"type": "text", "text": "\\boxed{"}, {"type": "text", "text": "3}"}]},
    ]
    assert host_functions.text_of(chat) == "\\boxed{3}"
    assert (
        host_functions.text_of([{"role": "assistant", "content": None}])
        == host_functions.text_of([])
        == host_functions.text_of("")
        == ""
    )


def test_math_as_trl_calls_it():
    """Arguments as GRPOTrainer._calculate_rewards passes them."""
    table, metrics, said = {}, {}, ("\\boxed{1/2}", "\\boxed{3}", "no idea", "\\boxed{1}")
    reward = verifiers.as_trl("math", column="solution")
    found = reward(
        prompts=["?"] * 4,
        completions=[[{"role": "assistant", "content": text}] for text in said],
        completion_ids=[[1]] * 4,
        solution=["0.5", "4", "4", "\\frac{"],
        trainer_state=object(),
        log_extra=table.__setitem__,
        log_metric=metrics.__setitem__,
    )  # fmt: skip
    assert found == [1.0, 0.0, 0.0, None]
    assert table == {"math/verdict": ["correct", "wrong", "unparsed", "bad_gold"]}
    assert metrics == {f"math/{k}": 0.25 * (k in ("unparsed", "bad_gold")) for k in KINDS if k not in SCORES}
    assert reward.__name__ == "math"


# without options, and with the one that turns the verdict round
OPTIONS = [
    ({"rules": "lenient"}, r"\boxed{75 + 80}", "155", (0.0, 1.0)),  # a calculation is no value, but by lenient rules
    ({"answer_in": "boxed"}, "#### 7", "7", (1.0, 0.0)),
]


@pytest.mark.parametrize(("options", "response", "gold", "scores"), OPTIONS, ids=["rules", "answer_in"])
def test_rules_and_the_place_of_an_answer_reach_the_verifier(options, response, gold, scores):
    for given, score in zip(({}, options), scores, strict=True):
        assert verifiers.as_trl("math", **given)(completions=[response], answer=[gold]) == [score]
        assert verifiers.verl_score("", response, gold, **given)["score"] == score


def test_a_batch_that_never_ends_ends_at_its_budget():
    found = verifiers.as_trl("math", budget=0.0)(completions=["\\boxed{\\sin(x)^2}"] * 2, answer=["1-\\cos(x)^2"] * 2)
    assert found == [0.0, 0.0]


def test_any_grader_of_ours():
    def exact(response, reference):
        return Verdict("correct" if response == reference else "wrong")

    reward = verifiers.as_trl(exact)
    assert reward.__name__ == "exact"
    assert reward(completions=["a", "b"], answer=["a", "a"]) == [1.0, 0.0]


def test_a_verifier_or_a_column_that_is_not_there():
    with pytest.raises(ValueError, match='verifier = "maths" is not known; use "math", "code"'):
        verifiers.as_trl("maths")
    with pytest.raises(ValueError, match='no column "answer" for the verifier math; it has solution'):
        verifiers.as_trl("math")(completions=["1"], solution=["1"], trainer_state=None)


@pytest.mark.parametrize("reference", [
    {"test_list": ["assert add(1, 2) == 3"], "entry_point": None},  # a struct column has the keys of all its rows
    json.dumps({"test_list": ["assert add(1, 2) == 3"]}),
])  # fmt: skip
def test_tests_of_code_as_a_struct_or_as_json(reference):
    reward = verifiers.as_trl("code", column="tests")
    right, wrong = "def add(a, b):\n    return a + b", "def add(a, b):\n    return a - b"
    found = reward(completions=[right, wrong, right], tests=[reference, reference, "{"])
    if found[0] is None:
        pytest.skip("no sandbox here")
    assert found == [1.0, 0.0, None]


def test_code_as_verl_calls_it():
    tests = json.dumps({"test_list": ["assert add(1, 2) == 3"]})
    responses = ["def add(a, b):\n    return a + b", "def add(a, b):\n    return a - b"]
    right, wrong = (verifiers.verl_score("", response, tests, kind="code") for response in responses)
    if right["ungraded"]:
        pytest.skip("no sandbox here")
    assert [found["verdict"] for found in (right, wrong)] == ["correct", "wrong"]
    assert [found["score"] for found in (right, wrong)] == [1.0, 0.0]
    nothing_known = verifiers.verl_score("", responses[0], "{", kind="code")
    assert (nothing_known["score"], nothing_known["ungraded"]) == (0.0, 1.0)
    with pytest.raises(ValueError, match='kind = "python" is not known; use "math" or "code"'):
        verifiers.verl_score("", responses[0], tests, kind="python")

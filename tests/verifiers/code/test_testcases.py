"""Which tests a row holds, and what is wrong with a row that holds none."""

import contextlib
import json
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.verifiers.code import judge


def test_rows_of_stdin_and_stdout():
    expected = judge.Programs((("1\n2", "3"), ("4", "5")))
    pairs = {"inputs": ["1\n2", "4"], "outputs": ["3", "5"]}
    assert judge.tests(pairs) == expected
    assert judge.tests(json.dumps(pairs)) == expected
    assert judge.tests({"input_output": json.dumps(pairs), "question": "?"}) == expected
    assert judge.tests({"inputs": [["1", "2"], "4"], "outputs": ["3", ["5"]]}) == expected
    cases = [{"input": "1\n2", "output": "3", "testtype": "stdin"}, {"input": "4", "output": "5", "testtype": "stdin"}]
    assert judge.tests(cases) == expected
    row = {"public_test_cases": json.dumps(cases[:1]), "private_test_cases": cases[1:], "metadata": "{}"}
    assert judge.tests(row) == expected


def test_rows_of_calls():
    expected = judge.Calls("f", (((1, [2]), 3), ((4, []), 5)))
    assert judge.tests({"fn_name": "f", "inputs": [[1, [2]], [4, []]], "outputs": [3, 5]}) == expected
    assert judge.tests({"fn_name": "f", "inputs": ["1\n[2]", "4\n[]\n"], "outputs": ["3", "5"]}) == expected
    cases = [
        {"input": "1\n[2]", "output": "3", "testtype": "functional"},
        {"input": "4\n[]", "output": "5", "testtype": "functional"},
    ]
    row = {"public_test_cases": cases, "private_test_cases": [], "metadata": json.dumps({"func_name": "f"})}
    assert judge.tests(row) == expected
    assert judge.tests({"fn_name": "f", "inputs": [[1], [2]], "outputs": [[3], [4]]}).wrapped
    assert not judge.tests({"fn_name": "f", "inputs": [[1], [2]], "outputs": [[3], [4, 5]]}).wrapped


def test_rows_of_asserts_name_what_they_call():
    def names(*statements, **row):
        return judge.tests({"test_list": list(statements), **row}).names

    assert names("assert f(1) == 2") == ("f",)
    assert names("assert set(f((1, 2))) == set((1,))", "assert g(f(1))") == ("f", "g")
    assert names("assert math.isclose(f(1), 2)", test_imports=["import math"]) == ("f",)
    assert names("x = [y for y in range(3)]\nassert f(x, key=lambda z: z) == x") == ("f",)
    assert names("assert sum(10, 15) == 6") == ("sum",)
    assert names("assert set(max([1])) == len([1])", code="def max(x): return x\n") == ("max",)
    both = judge.tests(
        {"test_list": ["assert f(1)"], "challenge_test_list": ["assert f(2)"], "test_setup_code": "k = 1"}
    )
    assert both.code == "assert f(1)\nassert f(2)"
    assert "k = 1" in both.setup


def test_humaneval_helpers_come_from_the_prompt_and_only_where_they_are_used():
    prompt = "def helper(x):\n    return x + 1\n\ndef f(x):\n    '''Doc.'''\n"
    used = judge.tests({"prompt": prompt, "test": "def check(c):\n    assert c(1) == helper(0)", "entry_point": "f"})
    unused = judge.tests({"prompt": prompt, "test": "def check(c):\n    assert c(1) == 1", "entry_point": "f"})
    assert "helper" in used.setup
    assert unused.setup == ""


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (None, "NoneType"),
        ("{", "not JSON"),
        ({}, "no tests"),
        ([], "at least one"),
        ([{"input": "1"}], "list of"),
        ({"question": "?"}, "question"),
        ({"inputs": ["1"], "outputs": []}, "one length"),
        ({"inputs": [], "outputs": []}, "at least one"),
        ({"inputs": [1], "outputs": ["1"]}, "int"),
        ({"inputs": [{}], "outputs": [1], "fn_name": "f"}, "list of arguments"),
        ({"inputs": ["1 2"], "outputs": ["1"], "fn_name": "f"}, "not JSON"),
        ({"test_list": []}, "at least one"),
        ({"test_list": "assert f(1)"}, "not JSON"),
        ({"test_list": [1]}, "list of lines"),
        ({"test_list": ["assert f(1 =="]}, "not Python"),
        ({"test_list": ["assert 1 == 1"]}, "calls no function"),
        ({"test_list": ["assert h(root)"], "test_setup_code": "root = Node(1)"}, "Node"),
        ({"test": "def chek(c): pass", "entry_point": "f", "prompt": ""}, "check"),
        ({"test": "def check(c) pass", "entry_point": "f", "prompt": ""}, "not Python"),
        ({"test": "def check(c): pass", "entry_point": "f()", "prompt": ""}, "no name"),
        ({"test": "def check(c): pass", "entry_point": "f", "prompt": "def f(:"}, "prompt"),
        ([{"input": "1", "output": "1", "testtype": "functional"}], "func_name"),
        ([{"input": "", "output": "", "testtype": "interactive"}], "interactive"),
        ({"public_test_cases": "[]", "private_test_cases": "eJxrYJmq"}, "pickle"),
    ],
)
def test_bad_rows_say_what_is_wrong(row, reason):
    with pytest.raises(judge.TestsError, match=reason):
        judge.tests(row)


def test_a_reference_that_python_warns_of_is_read_without_a_word():
    code = "import re\ndef words(t):\n    return len(re.split('\\W', t))"
    row = {"test_list": ["assert words('a b') == 2"], "code": code}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert judge.tests(row).names == ("words",)
    # the collector may speak of what another test left open
    assert not [warning for warning in said if "escape" in str(warning.message)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        judge.tests(row)


KEYS = "prompt test entry_point test_list test_setup_code test_imports challenge_test_list code inputs outputs fn_name"
MORE_KEYS = "input_output public_test_cases private_test_cases metadata"
TEXTS = ["", "f", "assert f(1)", "def check(c): c(1)", "[]", "{"]
json_rows = st.dictionaries(
    st.sampled_from([*KEYS.split(), *MORE_KEYS.split()]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.sampled_from(TEXTS),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["input", "output", "testtype", "func_name"]), inner)
        ),
        max_leaves=6,
    ),
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(json_rows)
def test_any_row_gives_tests_or_a_reason(row):
    with contextlib.suppress(judge.TestsError):
        assert isinstance(judge.tests(row), (judge.Programs, judge.Calls, judge.Asserts))

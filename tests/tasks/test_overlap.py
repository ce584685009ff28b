"""Overlap with evaluation problems: planted copies are found, neighbours are not."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.tasks.overlap import LONGEST, Overlap, plain, words

PROBLEM = (
    "A train leaves the old station at noon and travels north at sixty miles per hour until it meets another train."
)
SHORT = "Find the remainder when 2^100 is divided by 7 please."
TINY = "Compute 1+2."
SETS = {"bench": [PROBLEM, SHORT, TINY]}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (PROBLEM, 1),
        (f"Solve this step by step.\n\n{PROBLEM.upper()}\n\nWrite the answer behind Answer:.", 1),
        ("He said: the OLD station, at noon, and (travels) north at sixty miles per hour until dawn.", 1),
        (f"Now {SHORT}", 2),
        ("compute  1+2.", 3),
        ("Compute 1-2.", None),
        ("Please compute 1+2. And then some more.", None),
        ("The old station at noon and travels north at sixty miles per day.", None),
        ("Find the remainder when 2^100 is divided by 9 please.", None),
        ("", None),
    ],
)
def test_what_overlaps(text, problem):
    hit = Overlap(SETS).find(text)
    assert (hit.problem if hit else None) == problem
    if hit:
        assert hit.evaluation_set == "bench"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_rule_is_a_common_run_of_thirteen_words(data):
    """Against the definition, on a language of four words."""
    word = st.sampled_from(["a", "b", "c", "d"])
    problem = data.draw(st.lists(word, min_size=LONGEST, max_size=30))
    text = data.draw(st.lists(word, max_size=10)) + problem[: data.draw(st.integers(0, 30))]
    runs = {tuple(problem[k : k + LONGEST]) for k in range(len(problem) - LONGEST + 1)}
    expected = text == problem or any(tuple(text[k : k + LONGEST]) in runs for k in range(len(text)))
    assert (Overlap({"x": [" ".join(problem)]}).find(" ".join(text)) is not None) == expected


def test_a_template_is_not_an_overlap():
    template = "Solve the following math problem step by step and write the answer on the last line of your response: "
    numbers = random.Random(0)
    problems = [template + " ".join(str(numbers.randrange(10**6)) for _ in range(14)) for _ in range(30)]
    overlap = Overlap({"bench": problems})
    assert overlap.find(template + "what is the sum of the first three primes?") is None
    assert overlap.find(template + problems[6].removeprefix(template)).problem == 7
    assert overlap.find(problems[6].removeprefix(template)).problem == 7


def test_words_of_scripts_without_spaces_are_characters():
    assert words("x+1 小明有三个苹果") == ["x", "1", *"小明有三个苹果"]
    problem = "小明有三个苹果，小红有五个苹果，他们一共有多少个苹果？"
    assert Overlap({"zh": [problem]}).find("请回答：" + problem).problem == 1
    assert plain("A  b\n") == "a b"


def test_a_long_prompt_takes_linear_time():
    overlap = Overlap(SETS)
    assert overlap.find("the old station at noon and travels " * 50_000) is None

"""Rewards for form."""

import itertools

import pytest

from equipoise.verifiers import response_format


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("<think>a</think><answer>b</answer>", True),
        (" <think>\na\n</think>\n\n<answer>b</answer>\n", True),
        ("a</think><answer>b</answer>", True),  # the prompt opened the thought
        ("<answer>b</answer>", False),
        ("<think>a</think>", False),
        ("<think>a</think><answer></answer>", False),
        ("<think> </think><answer>b</answer>", False),
        ("<answer>b</answer><think>a</think>", False),
        ("<think>a</think>so<answer>b</answer>", False),
        ("<think>a</think><answer>b</answer>so", False),
        ("so<think>a</think><answer>b</answer>", False),
        ("<think>a<think>a</think><answer>b</answer>", False),
        ("<think>a</think><answer>b</answer><answer>c</answer>", False),
        ("<think><answer>a</think>b</answer>", False),
        ("", False),
    ],
)
def test_tags(response, right):
    assert response_format.tags(response).kind == ("correct" if right else "wrong")


def test_other_tags():
    assert response_format.tags("<a>1</a><b>2</b><c>3</c>", ("a", "b", "c")).kind == "correct"
    assert response_format.tags("<a>1</a><c>3</c><b>2</b>", ("a", "b", "c")).kind == "wrong"


@pytest.mark.parametrize(
    ("response", "right"),
    [
        (r"\boxed{7}", True),
        (r"\boxed {7}", True),
        (r"\boxed{}", False),
        (r"\boxed{ }", False),
        ("boxed{7}", False),
        (r"\boxed{7", False),  # a box that is not closed is not a box
        (r"\boxed{\boxed{}}", False),
        (r"<think>\boxed{7}", False),
    ],
)
def test_boxed(response, right):
    assert response_format.boxed(response).kind == ("correct" if right else "wrong")


def test_overlong_is_continuous_and_falls_by_one():
    values = [response_format.overlong(length, 100, 20) for length in range(130)]
    assert values[:81] == [0.0] * 81
    assert values[100:] == [-1.0] * 30
    assert all(abs(a - b - 0.05) < 1e-12 for a, b in itertools.pairwise(values[80:101]))

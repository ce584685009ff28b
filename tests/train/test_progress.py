"""The line of a step: what a person watches, by hand."""

import math

import pytest

from equipoise.train.progress import duration, summary

STEP = {
    "reward/mean": 0.5125, "accuracy/mean": 0.5, "completions/mean_length": 23.14, "entropy": 0.414,
    "grad_norm": 0.8312, "groups/drawn": 32.0, "groups/kept": 32.0, "groups/informative": 14 / 32,
    "groups/too_easy": 10 / 32,
    "groups/too_hard": 8 / 32, "tokens_per_s": 5210.4, "policy_loss": 1e-9,
}  # fmt: skip


def test_a_step_in_one_line():
    assert summary(STEP) == (
        "reward 0.512  accuracy 0.500  length 23.1  entropy 0.41  gradient 0.83  "
        "groups 14 informative, 10 too easy, 8 too hard  5,210 tokens/s"
    )


def test_a_step_that_trained_nothing_leaves_out_what_it_has_not():
    empty = {"groups/drawn": 4.0, "groups/kept": 0.0, "groups/too_easy": 0.25, "groups/too_hard": 0.75}
    line = summary({**empty, "reward/mean": math.nan, "completions/mean_length": math.nan, "tokens_per_s": 10.0})
    assert line == "groups 0 informative, 1 too easy, 3 too hard  10 tokens/s"


@pytest.mark.parametrize(("seconds", "said"), [(41.4, "41 s"), (600, "10 min"), (11_100, "3 h 05 min")])
def test_how_long(seconds, said):
    assert duration(seconds) == said

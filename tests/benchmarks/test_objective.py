"""What the benchmark of the objective computes of its times."""

import math

import objective
import pytest
import torch


@pytest.mark.parametrize("n", [8, 40, 161])
def test_the_interval_of_a_median_has_its_probability_and_no_more_than_it_needs(n):
    """It misses the median only where k or fewer of n fair coins fall on one side."""
    low, high = objective.median_interval([float(x) for x in range(n)])
    below = int(low)
    assert high == n - 1 - below
    missed = 2 * sum(math.comb(n, j) for j in range(below + 1)) / 2**n
    one_narrower = 2 * sum(math.comb(n, j) for j in range(below + 2)) / 2**n
    assert missed <= 0.05 < one_narrower


def test_what_is_added_is_seen_whichever_comes_first(monkeypatch):
    now = 0.0

    def takes(seconds):
        def step(_):
            nonlocal now
            now += seconds

        return step

    monkeypatch.setattr(objective.time, "perf_counter", lambda: now)
    clock = objective.Clock({"logp": torch.zeros(1)}, cpu=False)
    found = objective.added(takes(1.0), takes(1.25), clock, rounds=12)
    assert found == {
        "median": pytest.approx(0.25),
        "low": pytest.approx(0.25),
        "high": pytest.approx(0.25),
        "rounds": 12,
    }


def test_every_step_runs_with_and_without_token_ids(monkeypatch):
    monkeypatch.setattr(objective, "ROWS", 32)
    monkeypatch.setattr(objective, "TOKENS", 400)
    b = objective.batch()
    grpo = objective.eq.Objective.preset("grpo", **objective.HADW)
    for step in (objective.bare, objective.eager, objective.ours(grpo), objective.ours(grpo, with_ids=True)):
        b["logp"].grad = None
        step(b)
        assert float(b["logp"].grad.abs().max()) > 0

"""verl's runs beside ours: the committed curves are whole, and the page's table is theirs."""

import json
from pathlib import Path

import pytest

from benchmarks import verl_gpu
from equipoise.config import OptimConfig

PAGE = (Path(__file__).parents[2] / "docs" / "verl.md").read_text(encoding="utf-8")


def test_the_page_has_the_committed_runs():
    record = json.loads(verl_gpu.RESULTS.read_text(encoding="utf-8"))
    assert record["options"] == verl_gpu.OPTIONS
    for row in verl_gpu.lines(record):
        assert row in PAGE
    for run in record["verl"].values():
        assert run["versions"]["verl"]
        assert all(len(run[name]) == verl_gpu.STEPS for name in ("reward", "grad_norm", "anchor", "seconds"))
    assert {len(rewards) for rewards in record["ours"]["rewards"]} == {verl_gpu.STEPS}
    assert len(record["ours"]["rewards"]) == verl_gpu.DRAWS


def test_rates_come_a_step_later():
    optim = OptimConfig(lr=1.0, warmup=4)
    assert [verl_gpu.a_step_later(optim, k, 10) for k in range(1, 7)] == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1])

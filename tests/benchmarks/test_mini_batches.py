"""benchmarks/mini_batches.py: its steps are cut as they say, and the first round does not count."""

from argparse import Namespace

import mini_batches
import pytest
import torch

TOY = {
    "model": "toy", "prompts": 4, "group": 4, "longest": 24, "decoded": 0.5, "counts": [1, 4], "rounds": 2,
    "seconds": 300.0,
}  # fmt: skip


def record(updates, train):
    return {"optimizer_steps": updates, "timing_s/rollout": 1.0, "timing_s/train": train, "timing_s/step": 1 + train}


def test_medians_are_of_the_rounds_after_the_first():
    records = [record(1, 50.0), record(5, 60.0), record(6, 2.0), record(10, 3.0), record(11, 2.0), record(15, 3.0)]
    found = mini_batches.compared(records, [1, 4])
    assert found["4"]["seconds"] == {"rollout": 1.0, "train": 3.0, "step": 4.0}
    assert found["4"]["ratio"] == {"train": pytest.approx(1.5), "step": pytest.approx(4 / 3)}
    with pytest.raises(RuntimeError, match="1 optimizer steps with 2"):
        mini_batches.compared(records, [2, 4])


def test_a_run_ends_with_a_round():
    until = mini_batches.Until(-1.0, 3)
    assert [step for step in range(1, 7) if until.on_step(step, {})] == [6]


@pytest.mark.long
def test_the_toy_runs_on_a_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    records = mini_batches.run(Namespace(**TOY), tmp_path)
    assert len(records) == 6
    assert [r["optimizer_steps"] for r in records] == [1, 5, 6, 10, 11, 15]
    assert records[2]["completions/mean_length"] == records[-1]["completions/mean_length"]
    assert records[-1]["completions/mean_length"] > 3 * records[0]["completions/mean_length"]
    assert mini_batches.compared(records, TOY["counts"])["1"]["ratio"] == {"train": 1.0, "step": 1.0}

"""The history of each prompt: every scored response of earlier steps and none of this one, whatever was dropped."""

import json
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from equipoise.train import RunFolder, Trainer
from equipoise.train.history import PromptHistory

from .tiny import REWARDS, settings

NUMBERS = "0123456789"


@pytest.fixture
def few_prompts(tmp_path):
    """Ten prompts, so that steps of four meet them again."""
    file = tmp_path / "few.jsonl"
    file.write_text("".join(f'{{"id": "p{n}", "prompt": "{n}+{n}=", "answer": "{2 * int(n)}"}}\n' for n in NUMBERS))
    return str(file)


def test_by_hand():
    history = PromptHistory()
    assert history.counts(["a", "b"], 1) == [[0, 0, 0], [0, 0, 0]]
    history.record(["a", "a", "b"], [1.0, 0.0, 0.5], step=3)
    history.record(["a"], [1.0], step=7)
    assert history.counts(["b", "a", "c"], 9) == [[0.5, 1, 6], [2.0, 3, 2], [0, 0, 0]]
    again = PromptHistory()
    again.load_state_dict(history.state_dict())
    history.record(["a"], [0.0], step=8)
    assert again.counts(["a"], 7) == [[2.0, 3, 0]]


def test_every_attempt_is_discounted_by_its_own_age():
    """With the discount since the last attempt, which the objective applies, it is Σ decay^age over all attempts."""
    history = PromptHistory(decay=0.5)
    history.record(["a", "a"], [1.0, 0.0], step=1)
    history.record(["a"], [1.0], step=3)
    ((successes, attempts, age),) = history.counts(["a"], 4)
    assert (attempts * 0.5**age, successes * 0.5**age) == (2 * 0.125 + 0.5, 0.125 + 0.5)
    assert history.copy().counts(["a"], 4) == history.counts(["a"], 4)


def test_what_people_read_is_not_discounted(tmp_path):
    history = PromptHistory(decay=0.5)
    for step in (1, 9):
        history.record(["a"], [step == 9], step)
    history.write(tmp_path / "prompts.parquet")
    (row,) = pq.read_table(tmp_path / "prompts.parquet").to_pylist()
    assert row == {"prompt_id": "a", "attempts": 2, "accuracy": 0.5, "last_step": 9}


def test_a_checkpoint_from_before_discounts_counts_as_it_did():
    history = PromptHistory(decay=0.5)
    history.load_state_dict({"seen": {"a": [3, 2.0, 7]}})
    assert history.counts(["a"], 9) == [[2.0, 3, 2]]


def test_the_run_discounts_as_its_objective_says(model, tmp_path, few_prompts):
    options = {"task__name": few_prompts, "eval__every": 0}
    difficulty = {"name": "hadw_history", "decay": 0.5}
    decayed = Trainer(settings(model, tmp_path / "a", **options, objective__difficulty=difficulty)).collector
    plain = Trainer(settings(model, tmp_path / "b", **options)).collector
    assert (decayed.history.decay, plain.history.decay) == (0.5, 1.0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_step_knows_all_earlier_steps_and_not_itself(model, tmp_path, few_prompts, dynamic):
    options = {"task__name": few_prompts, "rollout__dynamic_sampling": dynamic, "rollout__max_draws": 3}
    collector = Trainer(settings(model, tmp_path / "run", **options, eval__every=0)).collector
    drawn = []
    real = collector._draw
    collector._draw = lambda step, count: drawn.append(real(step, count)) or drawn[-1]
    rewards = defaultdict(list)
    for step in range(1, 6):
        drawn.clear()
        batch = collector.collect(step)
        parts = [batch] if not dynamic else drawn
        for part in parts:
            rows = [part.prompts[g].id for g in part.rollouts.prompt.tolist()]
            assert part.past[:, 0].tolist() == pytest.approx([sum(rewards[i]) for i in rows])
            assert part.past[:, 1].tolist() == [len(rewards[i]) for i in rows]
            for i, reward in zip(rows, part.accuracy.tolist(), strict=True):
                rewards[i].append(reward)
    assert any(len(r) > 4 for r in rewards.values())


def test_the_run_keeps_it_for_people_and_uses_it(model, tmp_path, few_prompts):
    options = {"task__name": few_prompts, "train__steps": 6, "eval__every": 0, "log__rollouts_every": 1}
    for name in ("hadw", "hadw_history"):
        Trainer(settings(model, tmp_path / name, **options, objective__difficulty=name)).run()
    folder = RunFolder(tmp_path / "hadw_history")
    rewards = defaultdict(list)
    for step in range(1, 7):
        table = pq.read_table(folder.rollouts / f"step-{step}.parquet").to_pydict()
        for i, reward in zip(table["prompt_id"], table["reward"], strict=True):
            rewards[i].append(reward)
    kept = {row["prompt_id"]: row for row in pq.read_table(folder.prompts).to_pylist()}
    assert {i: (row["attempts"], row["accuracy"]) for i, row in kept.items()} == {
        i: (len(r), pytest.approx(sum(r) / len(r))) for i, r in rewards.items()
    }
    first = [pq.read_table(RunFolder(tmp_path / n).rollouts / "step-1.parquet")["advantage"] for n in
             ("hadw", "hadw_history")]  # fmt: skip
    later = [pq.read_table(RunFolder(tmp_path / n).rollouts / "step-6.parquet")["advantage"] for n in
             ("hadw", "hadw_history")]  # fmt: skip
    assert first[0] == first[1]
    assert later[0] != later[1]


def test_a_run_logs_what_the_reports_page_says_it_does(model, tmp_path, few_prompts):
    """docs/report.md, which once said that the trainer passes no history and records no versions."""
    options = {"task__name": few_prompts, "train__steps": 2, "eval__every": 0, "log__rollouts_every": 1}
    Trainer(settings(model, tmp_path / "run", **options, objective__difficulty="hadw_history")).run()
    folder = RunFolder(tmp_path / "run")
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    assert "records versions and device in `environment.json`, but no commit" in page
    environment = json.loads(folder.environment.read_text())
    assert environment["torch"] == torch.__version__
    assert {"python", "device"} <= set(environment)
    assert "commit" not in environment
    assert "the history of the prompts, all of which the rollout files have" in page
    table = pq.read_table(folder.rollouts / "step-2.parquet").to_pydict()
    assert {"accuracy", "advantage", "past_successes", "past_attempts", "past_age"} <= set(table)


def test_rewards_on_another_range_become_rates(model, tmp_path, few_prompts):
    options = {"reward__functions": [f"{REWARDS}:minus_ones"], "task__name": few_prompts, "eval__every": 0}
    difficulty = {"name": "hadw_history", "reward_range": [-1.0, 0.0]}
    t = Trainer(settings(model, tmp_path / "run", **options, objective__difficulty=difficulty))
    batches = [t.collector.collect(step) for step in (1, 2, 3, 4)]
    for batch in batches:
        assert batch.accuracy.tolist() == pytest.approx((batch.total + 1).tolist())
    told = t._successes(batches[-1])
    assert told["history"] is batches[-1].past
    assert (batches[-1].past[:, 1] > 0).any()
    assert bool((batches[-1].past[:, 0] <= batches[-1].past[:, 1]).all())

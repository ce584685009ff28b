"""Accuracy is not the reward: what is filtered, remembered and anchored follows verdicts, whatever shaping adds."""

import pyarrow.parquet as pq
import pytest
import torch

from equipoise.train import Trainer
from equipoise.train.score import Scores

from .tiny import REWARDS, metrics, settings

SHAPED = {"reward__overlong_buffer": 8, "rollout__prompts": 3, "eval__every": 0, "log__terminal": False}


def graded(trainer, right):
    """Make the scorer say which responses are right: `right` [P][G], drawn over and over."""
    flat = torch.tensor(right, dtype=torch.float64).flatten()

    def settle(prompts, asked):
        n = len(prompts)
        accuracy = flat[torch.arange(n) % len(flat)]
        kinds = ["correct" if a else "wrong" for a in accuracy.tolist()]
        return Scores(accuracy[:, None].clone(), accuracy, kinds, [], [[k] for k in kinds], [])

    trainer.collector.scorer.settle = settle


@pytest.fixture
def shaped(model, tmp_path):
    made = []

    def make(right, **options):
        made.append(Trainer(settings(model, tmp_path / str(len(made)), **SHAPED | options)))
        graded(made[-1], right)
        return made[-1]

    yield make
    for t in made:
        t.folder.unlock()


MIXED = [[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]]


def test_dynamic_sampling_keeps_what_differs_in_accuracy_not_in_shaping(shaped):
    t = shaped(MIXED, rollout__dynamic_sampling=True, rollout__max_draws=2)
    batch = t.collector.collect(1)
    shaping = batch.total - batch.accuracy
    assert shaping.unique().numel() > 1  # the other groups differ in reward, by shaping alone
    assert len(batch.prompts) == 2
    assert batch.accuracy.view(-1, 4).tolist() == [[1, 0, 0, 0], [1, 0, 0, 0]]
    assert (batch.easy, batch.hard, batch.drawn, len(batch.sampled)) == (2, 2, 6, 24)


def test_the_anchor_sees_all_that_was_sampled(shaped):
    t = shaped(MIXED, rollout__dynamic_sampling=True, rollout__max_draws=2, objective__difficulty="hadw",
               train__steps=1)  # fmt: skip
    t.run()
    record = metrics(t.folder.path)[0]
    assert record["accuracy/mean"] == pytest.approx(5 / 12)  # 1/4 among the groups that were kept
    assert record["reward/mean"] < 0.25
    assert t.objective.state_dict()["difficulty"]["observations"] == [pytest.approx(5 / 12)]
    assert (record["groups/too_easy"], record["groups/too_hard"]) == pytest.approx((1 / 3, 1 / 3))


def test_the_history_counts_successes_of_dropped_groups_too(shaped):
    t = shaped(MIXED, rollout__dynamic_sampling=True, rollout__max_draws=1)
    t.collector.collect(1)
    ids = [t.task.prompt(i).id for i in range(3)]
    assert t.collector.history.counts(ids, 3) == [[4, 4, 2], [0, 4, 2], [1, 4, 2]]


@pytest.mark.parametrize("difficulty", ["hadw", "hadw_history", "debias"])
def test_overlong_shaping_works_with_difficulty(shaped, difficulty):
    """Rewards below 0 were outside of the difficulty's range: a traceback."""
    t = shaped([[1, 0, 0, 1], [1, 1, 0, 0], [1, 0, 0, 0]], objective__difficulty=difficulty, train__steps=2)
    t.run()
    assert [r["step"] for r in metrics(t.folder.path)] == [1, 2]


def test_numbers_without_a_verdict_are_their_own_accuracy(model, tmp_path):
    options = {"reward__functions": [f"{REWARDS}:ones"], "train__steps": 1, "eval__every": 0, "log__terminal": False}
    Trainer(settings(model, tmp_path / "run", **options)).run()
    record = metrics(tmp_path / "run")[0]
    assert record["accuracy/mean"] == pytest.approx(record["reward/mean"])


@pytest.mark.parametrize("shift", [0, 0.5])
def test_rewards_of_minus_one_and_one_give_the_share_that_is_right(shaped, shift):
    """As an evaluation counts them; their mean stood in the place of the share."""
    t = shaped(MIXED, train__steps=1, log__rollouts_every=1)
    signs = 2 * torch.tensor(MIXED, dtype=torch.float64).flatten() - 1 + shift
    kinds = ["scored"] * len(signs)
    t.collector.scorer.settle = lambda prompts, asked: Scores(
        signs[:, None].clone(), signs, kinds, [], [[kind] for kind in kinds], []
    )
    t.run()
    assert metrics(t.folder.path)[0]["accuracy/mean"] == pytest.approx(5 / 12)
    kept = pq.read_table(t.folder.rollouts / "step-1.parquet", columns=["accuracy"])["accuracy"]
    assert sum(kept.to_pylist()) == 5
    ids = [t.task.prompt(i).id for i in range(3)]
    assert t.collector.history.counts(ids, 1) == [[4, 4, 0], [0, 4, 0], [1, 4, 0]]


def test_groups_beyond_the_range_of_a_rate_still_differ(shaped):
    """Dynamic sampling keeps 3 beside 7, which are the same success."""
    t = shaped(MIXED, rollout__dynamic_sampling=True, rollout__max_draws=1)
    sevens = torch.tensor([3.0, 7, 7, 7, 7, 7, 7, 7, 3, 3, 3, 3], dtype=torch.float64)
    t.collector.scorer.settle = lambda prompts, asked: Scores(
        sevens[:, None].clone(), sevens, ["scored"] * 12, [], [["scored"]] * 12, []
    )
    assert len(t.collector.collect(1).prompts) == 1


def test_biases_of_what_pushes_are_told_of_the_first_pass_and_the_last_step(model, tmp_path):
    options = {"train__steps": 1, "train__updates": 4, "optim__lr": 0.05, "optim__warmup": 0, "eval__every": 0}
    Trainer(settings(model, tmp_path / "run", log__terminal=False, **options)).run()
    record = metrics(tmp_path / "run")[0]
    names = ("mass_balance", "exchangeability", "node_exchangeability")
    for name in names:
        assert record[f"pushed/{name}"] == pytest.approx(record[f"bias/{name}"], abs=1e-4)  # ratios are 1
    assert any(abs(record[f"pushed/{n}/last_update"] - record[f"bias/{n}"]) > 1e-3 for n in names)

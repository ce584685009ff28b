"""A reward that can be gamed is warned of, an honest one is not; what is measured is what stands in the responses."""

import dataclasses
import itertools
import json

import pytest
import torch

from equipoise.config import RewardConfig
from equipoise.evaluate import Evaluation
from equipoise.evaluate.run import Graded, Judged
from equipoise.tasks import Prompt
from equipoise.train import ConfigError, RunFolder, Trainer, load, read_lines
from equipoise.train.gaming import Watcher, distinct, sample
from equipoise.verifiers.gaming import MEASURES

from .tiny import REWARDS, settings

ABACUS = {"train.threads": 1, "train.steps": 12, "rollout.prompts": 8, "rollout.group_size": 8, "eval.every": 6,
          "eval.per_level": 4, "eval.samples": 1, "model.device": "cpu"}  # fmt: skip


def abacus(out, **options) -> Trainer:
    given = ABACUS | {key.replace("__", "."): value for key, value in options.items()}
    return Trainer(load(None, [part for key, value in given.items() for part in (f"--{key}", str(value))] + [
        "--train.out", str(out)]))  # fmt: skip


def test_a_gamed_reward_is_warned_of_with_three_responses(tmp_path, capsys):
    abacus(tmp_path / "run", reward__functions=f"{REWARDS}:marked", optim__lr=2e-3).run()
    told = capsys.readouterr().out
    assert told.count("IS THE REWARD BEING GAMED? gaming/divergence = ") == 1
    warning = told[told.index("gaming/divergence = ") :].splitlines()
    assert "above 0.1. Share of the judged responses that the reward takes for correct" in warning[0]
    assert all(" → " in line and "#" in line for line in warning[1:4])
    records = read_lines(RunFolder(tmp_path / "run").metrics)
    assert records[-1]["gaming/divergence"] > 0.3
    assert all(r["gaming/judged"] == 64 for r in records)
    troubles = [json.loads(line) for line in RunFolder(tmp_path / "run").troubles.read_text().splitlines()]
    assert sum(t["function"] == "gaming/divergence" for t in troubles) == 3


def test_an_honest_run_is_not(tmp_path, capsys):
    abacus(tmp_path / "run", train__steps=6).run()
    assert "GAMED" not in capsys.readouterr().out
    records = read_lines(RunFolder(tmp_path / "run").metrics)
    assert all(r["gaming/divergence"] == r["gaming/copied"] == 0 for r in records)
    assert all(0.5 < r["gaming/length_ratio"] < 2 for r in records)


def test_a_judge_of_ones_own(tmp_path, capsys):
    own = {"reward__functions": f"{REWARDS}:marked", "reward__judge": f"{REWARDS}:strict_judge"}
    abacus(tmp_path / "run", **own, optim__lr=2e-3, train__steps=3, eval__every=0).run()
    assert read_lines(RunFolder(tmp_path / "run").metrics)[-1]["gaming/judged"] == 64
    assert "gaming/divergence = " in capsys.readouterr().out


def test_a_judge_that_cannot_be_called_is_refused_before_a_model_is_loaded(model, tmp_path):
    options = {"model__name": str(tmp_path / "no model"), "reward__judge": f"{REWARDS}:takes_two"}
    with pytest.raises(ConfigError, match=r"^reward.judge: .*takes_two. takes \(response, answer\): must be f\("):
        Trainer(settings(model, tmp_path / "run", **options))


@dataclasses.dataclass
class Rollouts:
    prompt: torch.Tensor
    lengths: torch.Tensor


@dataclasses.dataclass
class Batch:
    """As much of a step as the watcher looks at."""

    prompts: list
    texts: list
    total: torch.Tensor
    rollouts: Rollouts


def batch(texts, rewards, length=20.0, per_prompt=8) -> Batch:
    prompts = [Prompt(str(g), f"{g + 1}+100=", str(g + 101)) for g in range(len(texts) // per_prompt)]
    groups = torch.arange(len(prompts)).repeat_interleave(per_prompt)
    lengths = torch.full((len(texts),), length)
    return Batch(prompts, texts, torch.tensor(rewards, dtype=torch.float64), Rollouts(groups, lengths))


def steps(watcher: Watcher, *batches: Batch):
    out = []
    for i, made in enumerate(batches):
        watcher.ask(i, made)
        metrics, crossings = watcher.settle()
        out.append((metrics, [c.measure for c in crossings]))
    return out


RIGHT = [f"#{g + 101}" for g in range(8) for _ in range(8)]


def test_each_measure_crosses_once_and_only_where_it_should():
    honest = batch(RIGHT, [1.0] * 64)
    constant = batch(["#7"] * 64, [0.0] * 64)
    copies = batch([rf"\boxed{{{g + 1}+100}}" for g in range(8) for _ in range(8)], [1.0] * 64)
    short = batch(RIGHT, [1.0] * 64, length=2.0)
    found = steps(Watcher(RewardConfig(), task=None), *[honest] * 5, *[copies] * 5, *[short] * 5, *[constant] * 5)
    assert [crossed for _, crossed in found[:5]] == [[]] * 5
    assert found[0][0]["gaming/distinct_answers"] == pytest.approx(1)
    assert found[5][1] == ["gaming/divergence", "gaming/copied"]
    assert found[5][0]["gaming/divergence"] == found[5][0]["gaming/copied"] == 1
    later = [name for _, crossed in found[6:] for name in crossed]
    assert later == ["gaming/length_ratio", "gaming/distinct_answers"]
    assert found[-1][0]["gaming/distinct_answers"] == pytest.approx(1 / 8)
    assert found[14][0]["gaming/length_ratio"] == pytest.approx(0.1)


def test_what_was_few_from_the_beginning_has_not_collapsed():
    constant = batch(["#7"] * 64, [0.0] * 64)
    assert all(not crossed for _, crossed in steps(Watcher(RewardConfig(), task=None), *[constant] * 8))


def test_shaping_rewards_beside_the_verdict_are_no_claim_of_correctness():
    """Wrong answers that get the whole of another reward of the same weight earn half, and half is not correct."""
    config = RewardConfig(functions=("task", "tags"), weights=(1.0, 1.0))
    wrong = batch(["#7"] * 64, [1.0] * 64)
    assert steps(Watcher(config, task=None), wrong)[0][0]["gaming/divergence"] == 0


def evaluated(watcher: Watcher, right: int, of: int = 200):
    prompts = [Prompt(str(i), "", "5") for i in range(of)]
    greedy = [Graded("#5" if i < right else "#6", 2, Judged("")) for i in range(of)]
    return watcher.evaluated(Evaluation({}, prompts, [], greedy))


def test_greedy_accuracy_that_falls_while_the_reward_rises():
    watcher = Watcher(RewardConfig(), task=None)
    low, high = batch(RIGHT, [0.0] * 64), batch(RIGHT, [1.0] * 64)
    assert evaluated(watcher, 100) == ({"gaming/greedy": 0.5, "gaming/greedy_drop": 0.0}, [])
    steps(watcher, *[low] * 5)
    assert evaluated(watcher, 60)[0]["gaming/greedy_drop"] == 0  # a run that gets worse is not gaming its reward
    steps(watcher, *[high] * 5)
    metrics, (crossing,) = evaluated(watcher, 60)
    assert metrics["gaming/greedy_drop"] == pytest.approx(0.2)
    assert crossing.measure == "gaming/greedy_drop"
    assert "#6" in str(crossing)
    assert evaluated(watcher, 50)[1] == []
    few = Watcher(RewardConfig(), task=None)
    evaluated(few, 8, of=16)
    steps(few, low, high)
    assert evaluated(few, 5, of=16)[1] == []  # within two standard errors


def test_the_state_goes_through_a_checkpoint():
    batches = [batch(RIGHT, [1.0] * 64, length=float(n)) for n in range(9, 0, -1)]
    whole, first, second = (Watcher(RewardConfig(), task=None) for _ in range(3))
    expected = steps(whole, *batches)
    begun = steps(first, *batches[:4])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert begun + steps(second, *batches[4:]) == expected


def test_the_sample_is_spread_and_moves():
    assert sample(10, 3) == list(range(10))
    chosen = sample(1000, 3)
    assert len(set(chosen)) == 64
    assert max(b - a for a, b in itertools.pairwise(chosen)) <= 17
    assert sample(1000, 4) != chosen
    assert all(0 <= i < 65 for step in range(100) for i in sample(65, step))


def test_distinct_answers_within_groups():
    prompts = [Prompt("a", "", "1")] * 2 + [Prompt("b", "", "2")] * 2
    assert distinct(prompts, ["#1", "#1", "#3", "#4"])["distinct_in_groups"] == 0.75


def test_every_measure_has_a_threshold_and_a_sentence():
    assert all(m.sentence.endswith(".") and 0 < m.threshold < 1 for m in MEASURES.values())

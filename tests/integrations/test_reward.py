"""The rewards a launch gives are those of a training run: the same responses, prices, weights and lengths."""

import pyarrow.parquet as pq
import pytest

from equipoise.integrations.launch import open_task
from equipoise.integrations.trl import export as trl
from equipoise.integrations.verl import export as verl
from equipoise.train import RunFolder, Trainer, load
from tests.train.tiny import REWARDS, make_model, settings

OPTIONS = {
    "train__steps": 2, "eval__every": 0, "log__rollouts_every": 1, "log__terminal": False, "reward__unparsed": -0.25,
    "reward__functions": ["task", f"{REWARDS}:ones"], "reward__weights": [1.0, 0.5], "reward__wrong": -1.0,
}  # fmt: skip


def logged(out):
    """Place, text, length and reward of every response of a run."""
    prompts = load(RunFolder(out).config).rollout.prompts
    rows = []
    for step in (1, 2):
        for row in pq.read_table(RunFolder(out).rollouts / f"step-{step}.parquet").to_pylist():
            place = "train", (step - 1) * prompts + row["group"]
            rows.append((place, row["response"], row["length"], row["reward"]))
    return rows


@pytest.mark.parametrize("buffer", [0, 6])
def test_a_launch_rewards_as_a_run_does(buffer, tmp_path):
    model = make_model(tmp_path / "model")
    Trainer(settings(model, tmp_path / "run", reward__overlong_buffer=buffer, **OPTIONS)).run()
    config = load(RunFolder(tmp_path / "run").config)
    task = open_task(config)
    places, texts, lengths, rewards = map(list, zip(*logged(tmp_path / "run"), strict=True))
    assert len(set(rewards)) > 3
    ids = [[0] * n for n in lengths]
    split, index = map(list, zip(*places, strict=True))
    columns = {"completions": texts, "completion_ids": ids, "split": split, "index": index}
    each = [function(**columns) for function in trl.reward_functions(config, task)]
    totals = [sum(w * r for w, r in zip(config.reward.weights, row, strict=True)) for row in zip(*each, strict=True)]
    assert totals == pytest.approx(rewards)
    if not buffer:  # which verl adds itself
        path = str(RunFolder(tmp_path / "run").config)
        for (split_, index_), text, reward in zip(places, texts, rewards, strict=True):
            where = {"split": split_, "index": index_, "num_turns": 1}
            assert verl.compute_score("s", text, "", where, path)["score"] == pytest.approx(reward)


def test_answers_of_a_file_are_graded_by_its_verifier(tmp_path):
    file = tmp_path / "math.jsonl"
    file.write_text('{"problem": "Half?", "answer": "\\\\frac{1}{2}"}\n{"problem": "Two?", "answer": "2"}\n')
    config = load(None, ["--task.name", str(file)])
    task = open_task(config)
    (reward,) = trl.reward_functions(config, task)
    right = {task.prompt(i).answer: i for i in range(2)}
    columns = {"split": ["train"] * 2, "index": [right["\\frac{1}{2}"], right["2"]], "completion_ids": [[0]] * 2}
    assert reward(completions=["It is \\boxed{0.5}.", "So \\boxed{2.0}"], **columns) == [1.0, 1.0]
    assert reward(completions=["It is $0.5$.", "2"], **columns) == [0.0, 0.0]  # no mark
    assert reward(completions=["So \\boxed{2}", "So \\boxed{1/2}"], **columns) == [0.0, 0.0]

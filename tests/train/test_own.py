"""Every reward function of a run is seen: its numbers, its failures, and the end of the run where it always fails."""

import json
import math

import pyarrow.parquet as pq
import pytest

from equipoise.config import RewardConfig
from equipoise.tasks import Prompt
from equipoise.tasks.arithmetic import Arithmetic
from equipoise.train import ConfigError, RunError, RunFolder, Trainer, own, score
from equipoise.train.own import HOPELESS_RESPONSES
from equipoise.train.score import Scorer, check_isolation
from equipoise.train.tally import Failing, Tally, joined, labels
from equipoise.verifiers.code import backend

from .tiny import REWARDS, column, metrics, outcome, settings

OWN = "tests.verifiers.workers.own"


def second(name: str, **more) -> dict:
    """Options of a run with a sound first function and `name` as the second."""
    return {"reward__functions": [f"{REWARDS}:ones", name], "reward__weights": [1.0, 1.0], **more}


@pytest.mark.parametrize(
    ("name", "seconds", "how", "reason", "fix"),
    [
        ("broken", 10.0, "crashed", "ConnectionError: the reward server is gone", "repair it"),
        ("never_in_time", 0.3, "timed out", "killed after 0.3 s", "raise reward.seconds"),
    ],
)
def test_a_second_function_that_always_fails_stops_the_run_and_trains_nothing(
    run, tmp_path, monkeypatch, name, seconds, how, reason, fix
):
    monkeypatch.setattr(own, "HOPELESS_RESPONSES", 4)
    with pytest.raises(RunError) as error:
        run(**second(f"{REWARDS}:{name}", reward__seconds=seconds))
    told = str(error.value)
    assert f"the reward function {REWARDS}:{name} {how} on 100% of the responses, the third step in a row" in told
    assert reason in told
    assert fix in told
    assert "troubles.jsonl has the reasons" in told
    out = tmp_path / "run"
    assert [r["step"] for r in metrics(out)] == [1, 2, 3]
    kind = "crashed" if name == "broken" else "timeout"
    assert column(out, f"rewards/{name}/{kind}") == [1.0] * 3
    assert column(out, "rewards/ones/crashed") == [0.0] * 3
    assert column(out, "policy_loss") == [0.0] * 3
    assert reason in RunFolder(out).troubles.read_text()


def test_most_is_enough(run):
    with pytest.raises(RunError, match=r"crashes_in_three_of_four crashed on \d\d% of the responses, the third step"):
        run(**second(f"{REWARDS}:crashes_in_three_of_four", rollout__prompts=16, rollout__group_size=2))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"{REWARDS}:takes_two", r"takes_two\" takes \(response, answer\): must be f\(prompt, response, row\)"),
        (f"{OWN}:needs_images", r'asks for "images", which is no column of the data \(id, answer, level\)'),
        (f"{REWARDS}:nowhere", "cannot be imported"),
    ],
)
def test_a_second_function_that_cannot_be_called_is_refused_before_a_model_is_loaded(model, tmp_path, name, said):
    options = second(name) | {"model__name": str(tmp_path / "there is no model here")}
    with pytest.raises(ConfigError, match=said):
        Trainer(settings(model, tmp_path / "run", **options))


def test_the_functions_of_a_run_in_metrics_and_rollouts(run, tmp_path):
    """One async, one that takes groups, beside a plain one: each has its own numbers."""
    names = [f"{REWARDS}:twos_async", f"{REWARDS}:ones_of_a_group", f"{REWARDS}:fails_on_fours"]
    run(reward__functions=names, reward__weights=[1.0, 2.0, 0.0], train__steps=1, eval__every=0)
    (record,) = metrics(tmp_path / "run")
    rows = pq.read_table(RunFolder(tmp_path / "run").rollouts / "step-1.parquet").to_pylist()
    texts = [row["response"] for row in rows]
    twos, ones = ([text.count(digit) / max(len(text), 1) for text in texts] for digit in "21")
    fours = [len(text) % 4 == 0 for text in texts]
    assert 0 < sum(fours) <= 8
    assert [row["rewards/twos_async"] for row in rows] == pytest.approx(twos)
    assert [row["rewards/ones_of_a_group"] for row in rows] == pytest.approx(ones)
    assert [row["rewards/fails_on_fours/verdict"] == "crashed" for row in rows] == fours
    assert {row["rewards/twos_async/verdict"] for row in rows} == {"scored"}
    assert [row["reward"] for row in rows] == pytest.approx([a + 2 * b for a, b in zip(twos, ones, strict=True)])
    assert record["rewards/twos_async/mean"] == pytest.approx(sum(twos) / 16)
    assert record["rewards/ones_of_a_group/mean"] == pytest.approx(sum(ones) / 16)
    assert record["rewards/fails_on_fours/crashed"] == sum(fours) / 16
    assert record["rewards/fails_on_fours/timeout"] == record["rewards/twos_async/unparsed"] == 0.0


def test_a_function_of_trls_form_trains_as_the_plain_one_does(run, tmp_path):
    run("one", train__steps=3)
    run("group", train__steps=3, reward__functions=[f"{REWARDS}:ones_of_a_group"])
    one, group = outcome(tmp_path / "one"), outcome(tmp_path / "group")
    assert one["weights"] == group["weights"]


def scorer(name: str, **more) -> Scorer:
    return Scorer(RewardConfig(functions=(name,), **more), task=None)


def test_a_group_is_a_prompts_responses():
    made = scorer(f"{OWN}:group")
    prompts = [Prompt("1", "a", "x", meta={"steps": 1})] * 3 + [Prompt("2", "b", "y", meta={"steps": 2})] * 2
    texts = ["x", "x", "z", "z", "y"]
    scores = made.settle(prompts, [made.ask(p, t) for p, t in zip(prompts, texts, strict=True)])
    assert scores.rewards[:, 0].tolist() == pytest.approx([10 + 2 / 3, 10 + 2 / 3, 1 / 3, 0.5, 10.5])


def test_conversations_are_given_as_trl_gives_them():
    made = Scorer(RewardConfig(functions=(f"{OWN}:conversational",)), task=None, chat=True)
    plain = Prompt("1", "say", "")
    talk = Prompt("2", "say", "", messages=({"role": "system", "content": "s"}, {"role": "user", "content": "say"}))
    scores = made.settle([plain, plain, talk], [made.ask(p, "x" * n) for n, p in enumerate((plain, plain, talk), 1)])
    assert scores.rewards[:, 0].tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("name", ["hangs", pytest.param("group_hangs", marks=pytest.mark.long)])
def test_a_function_that_hangs_costs_a_few_deadlines_and_is_asked_again_in_the_next_draw(name, monkeypatch):
    """Of 400 responses 16 are waited for, and some that were under way."""
    made, waited, begin = scorer(f"{OWN}:{name}", seconds=0.02, workers=1), [], own.OwnFunction.begin
    monkeypatch.setattr(own.OwnFunction, "begin", lambda self: (waited.append(self._responses), begin(self)))
    prompts = [Prompt(str(i // 4), "", "") for i in range(400)]
    for _ in range(2):
        scores = made.settle(prompts, [made.ask(prompt, "x") for prompt in prompts])
        assert 16 <= waited[-1] <= 24
        (tally,) = scores.tallies
        assert (tally.kinds["timeout"], tally.failed) == (400, 400)
        asked = [t for t in scores.troubles if not t["reason"].startswith("not asked, because the first")]
        assert HOPELESS_RESPONSES <= len(asked) < 300  # more, where this process waits for a core before it cancels


def test_tallies_of_parts_are_that_of_the_whole():
    a, b = Tally("m:f", "f"), Tally("m:f", "f")
    for tally, kinds, total in ((a, ["scored", "crashed"], 1.0), (b, ["unparsed", "scored", "scored"], 2.0)):
        tally.kinds.update(kinds)
        tally.scored, tally.total = kinds.count("scored"), total
    a.failed, a.reason = 1, "why"
    (both,) = joined([[a], [b]])
    assert both.metrics() == {
        "rewards/f/mean": 1.0, "rewards/f/crashed": 0.2, "rewards/f/timeout": 0.0, "rewards/f/unparsed": 0.2,
    }  # fmt: skip
    assert (a.fails, both.fails, both.reason) == (False, False, "why")
    assert math.isnan(Tally("m:f", "f").metrics()["rewards/f/mean"])


def test_only_steps_in_a_row_count():
    def step(*failed: int) -> list[Tally]:
        tallies = []
        for name, n in zip("ab", failed, strict=True):
            tallies.append(Tally(name, name, failed=n))
            tallies[-1].kinds["crashed"] = 10
        return tallies

    failing = Failing()
    assert [failing.see(step(*n)) for n in ((6, 0), (6, 6), (5, 6))] == [True, True, True]
    assert not failing.sentence
    assert failing.see(step(0, 6))
    assert "reward function b crashed on 60%" in failing.sentence
    assert not Failing().see(step(5, 5))


def test_labels_tell_functions_apart():
    assert labels(["task", "a.b:f", "/x/reward.py:g"]) == ["task", "f", "g"]
    assert labels(["a:f", "b:f", "task"]) == ["f_0", "f_1", "task"]


def test_nothing_of_a_response_obeys_in_the_terminal():
    assert score.last_line("first\n\x1b[2Jlast") == "\ufffd[2Jlast"


def test_no_isolation_is_said_before_a_model_is_loaded(model, tmp_path, monkeypatch):
    file = tmp_path / "rows.jsonl"
    rows = [
        {"prompt": f"def f{i}():\n", "test": f"def check(f):\n    assert f() == {i}", "entry_point": f"f{i}"}
        for i in range(9)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(backend, "problem", lambda: "bubblewrap is not installed")
    options = {"task__name": str(file), "model__name": str(tmp_path / "no model"), "reward__functions": ["task"]}
    with pytest.raises(ConfigError, match="judged in isolation, and there is none here: bubblewrap is not installed"):
        Trainer(settings(model, tmp_path / "run", **options))
    check_isolation(Arithmetic())


def test_a_difficulty_is_told_the_bounds_of_numbers_that_are_no_success_rates(run):
    doubled = {"reward__functions": [f"{REWARDS}:spread"], "reward__weights": [2.0]}
    with pytest.raises(RunError, match=r"rewards lie in \[.*\] but difficulty.reward_range is \[0, 1\]: obj") as error:
        run(**doubled, objective__difficulty="hadw")
    assert 'objective.difficulty = {name = "…", reward_range = [LOW, HIGH]}' in str(error.value)
    assert "assign(" not in str(error.value)
    run("told", **doubled, objective__difficulty={"name": "hadw", "reward_range": [0, 2]})

"""What the loop does in a step, each part against a plain computation of its own."""

import json
import math
import re
import threading
import types
from concurrent.futures import Future

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from equipoise import policy as models
from equipoise.config import RewardConfig
from equipoise.tasks import Prompt
from equipoise.train import RunError, RunFolder, checkpoint
from equipoise.train.score import Scorer
from equipoise.verifiers import Verdict
from equipoise.verifiers.response_format import overlong

from .tiny import REWARDS, column, evaluations, last_checkpoint, metrics, overrides


def test_it_learns(run, tmp_path):
    run(train__steps=25, eval__every=0)
    rewards = column(tmp_path / "run", "reward/mean")
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.4


def test_dynamic_sampling_keeps_the_first_informative_groups_of_the_stream(trainer):
    options = {"reward__functions": [f"{REWARDS}:only_one_prompt"], "rollout__group_size": 6}
    t = trainer(rollout__dynamic_sampling=True, rollout__max_draws=6, **options)
    kept = t.collector.collect(1)
    plain = trainer(**options, rollout__prompts=24)
    stream = plain.collector.collect(1)
    groups = stream.total.view(24, 6)
    informative = [i for i in range(t.collector.position) if groups[i].max() > groups[i].min()]
    assert len(kept.prompts) == min(4, len(informative)) > 0
    assert [p.id for p in kept.prompts] == [stream.prompts[i].id for i in informative[:4]]
    assert kept.texts == [stream.texts[6 * i + k] for i in informative[:4] for k in range(6)]
    assert kept.rollouts.prompt.tolist() == [g for g in range(len(kept.prompts)) for _ in range(6)]
    assert [kept.rollouts.prompts[g] for g in range(len(kept.prompts))] == [
        models.encode(t.policy, p.text) for p in kept.prompts
    ]
    assert kept.drawn == t.collector.position
    assert kept.drawn % 4 == 0
    assert kept.drawn <= 24


def test_dynamic_sampling_respects_its_bound(run, trainer, tmp_path):
    t = trainer(reward__functions=[f"{REWARDS}:same"], rollout__dynamic_sampling=True, rollout__max_draws=3)
    batch = t.collector.collect(1)
    assert (batch.drawn, t.collector.position, len(batch.texts)) == (12, 12, 0)
    with pytest.raises(RunError, match="differed in reward for 2 steps"):
        run(reward__functions=[f"{REWARDS}:same"], rollout__dynamic_sampling=True, train__max_uninformative=2)
    records = metrics(tmp_path / "run")
    assert [r["groups/kept"] for r in records] == [0, 0]
    assert [r["reward/mean"] for r in records] == [None, None]


def test_dynamic_sampling_in_a_whole_run(run, tmp_path):
    t = run(rollout__dynamic_sampling=True, rollout__max_draws=3)
    records = metrics(tmp_path / "run")
    assert all(r["groups/informative"] == 1.0 for r in records)
    assert all(1 <= r["groups/kept"] <= 4 <= r["groups/drawn"] <= 12 for r in records)
    assert t.collector.position == sum(r["groups/drawn"] for r in records)


def test_the_overlong_penalty_by_hand(trainer):
    lengths = (1, 8, 9, 10, 11, 12)
    assert [overlong(l, 12, 4) for l in lengths] == [0, 0, -0.25, -0.5, -0.75, -1]
    assert [overlong(l, 12, 12) for l in lengths] == pytest.approx([-(l / 12) for l in lengths])
    shaped, plain = trainer(reward__overlong_buffer=4), trainer()
    a, b = shaped.collector.collect(1), plain.collector.collect(1)
    assert a.texts == b.texts
    assert (a.rollouts.lengths > 8).any()
    by_hand = [min(0.0, (8 - l) / 4) for l in a.rollouts.lengths.tolist()]
    assert (a.total - b.total).tolist() == pytest.approx(by_hand)


def test_several_rewards_are_weighed(trainer, run, tmp_path):
    """With weights 2 and −1 the total, its statistics and what is informative follow the weighted sum."""
    two = {"reward__functions": [f"{REWARDS}:ones", f"{REWARDS}:twos"], "reward__weights": [2.0, -1.0]}
    t = trainer(**two)
    batch = t.collector.collect(1)
    by_hand = [(2 * x.count("1") - x.count("2")) / max(len(x), 1) for x in batch.texts]
    assert batch.total.tolist() == pytest.approx(by_hand)
    run(**two, train__steps=1, log__rollouts_every=1)
    assert column(tmp_path / "run", "reward/mean")[0] == pytest.approx(sum(by_hand) / 16)
    table = pq.read_table(RunFolder(tmp_path / "run").rollouts / "step-1.parquet").to_pydict()
    assert table["reward"] == pytest.approx(by_hand)
    groups = torch.tensor(by_hand, dtype=torch.float64).view(4, 4)
    signs = torch.sign(groups - groups.mean(1, keepdim=True)).flatten()
    assert torch.sign(torch.tensor(table["advantage"], dtype=torch.float64)).tolist() == signs.tolist()


def test_rewards_that_cancel_are_informative_only_as_weighed(trainer):
    opposite = {"reward__functions": [f"{REWARDS}:ones", f"{REWARDS}:minus_ones"], "rollout__dynamic_sampling": True}
    assert len(trainer(**opposite, reward__weights=[1.0, 1.0]).collector.collect(1).prompts) == 0
    assert len(trainer(**opposite, reward__weights=[1.0, 0.0]).collector.collect(1).prompts) > 0


VERDICTS = {
    "correct": Verdict("correct"), "wrong": Verdict("wrong"), "unparsed": Verdict("unparsed"),
    "timeout": Verdict("timeout"), "partial": Verdict("wrong", value=0.25), "bad_gold": Verdict("bad_gold"),
    "unavailable": Verdict("unavailable"),
}  # fmt: skip


def test_the_reward_table():
    prompt, texts = Prompt("1", "1+1=", "2"), list(VERDICTS)
    config = RewardConfig(correct=2.0, wrong=-1.0)
    scored = graded(config, VERDICTS.get, [prompt] * len(texts), texts)
    assert scored.rewards[:, 0].tolist()[:5] == [2.0, -1.0, -1.0, -1.0, -0.25]
    assert scored.rewards[5:, 0].isnan().all()
    assert scored.verdicts == ["correct", "wrong", "unparsed", "timeout", "wrong", "bad_gold", "unavailable"]
    assert [t["verdict"] for t in scored.troubles] == ["bad_gold", "unavailable"]
    config = RewardConfig(correct=2.0, wrong=-1.0, unparsed=-2.0, timeout="mask", unavailable="wrong", bad_gold=0.5)
    rewards = graded(config, VERDICTS.get, [prompt] * len(texts), texts).rewards[:, 0].tolist()
    assert rewards[:3] == [2.0, -1.0, -2.0]
    assert math.isnan(rewards[3])
    assert rewards[4:] == [-0.25, 0.5, -1.0]


def graded(config, verdict, prompts, texts):
    """Scores of texts that the task's verifier judges by `verdict`; every second one later, as a worker would."""

    def grade(prompt, text):
        grade.calls += 1
        if grade.calls % 2:
            return verdict(text)
        later = Future()
        threading.Timer(0.01, later.set_result, [verdict(text)]).start()
        return later

    grade.calls = 0
    scorer = Scorer(config, types.SimpleNamespace(grade=grade))
    return scorer.settle(prompts, [scorer.ask(p, t) for p, t in zip(prompts, texts, strict=True)])


def test_a_response_without_a_score_is_left_out_and_counted(trainer, monkeypatch):
    t = trainer(reward__functions=["task"], train__steps=1)
    seen = []

    def grade(prompt, response):
        seen.append(response)
        return Verdict("unavailable") if len(seen) in (2, 3) else Verdict("correct" if len(seen) % 2 else "wrong")

    t.collector.scorer.functions = [grade]
    batch = t.collector.collect(1)
    assert batch.unscored == 2
    assert batch.texts == [x for i, x in enumerate(seen) if i not in (1, 2)]
    assert batch.rollouts.prompt.tolist() == [0, 0, *[1] * 4, *[2] * 4, *[3] * 4]
    assert len(batch.rollouts.tokens) == int(batch.rollouts.lengths.sum())
    credit = t.objective.assign(batch.rewards, batch.rollouts.prompt, batch.lengths)
    assert len(credit.advantage) == 14


def test_a_reward_function_sees_the_prompt_the_response_and_the_row():
    names = (f"{REWARDS}:sees_what_it_should", f"{REWARDS}:judge")
    scorer = Scorer(RewardConfig(functions=names, weights=(1.0, 1.0), correct=3.0), task=None)
    prompt = Prompt("7", "1+1=", "2", level="2", meta={"source": "here", "steps": torch.tensor([1, 2])})
    scored = scorer.settle([prompt], [scorer.ask(prompt, "3")])
    assert scored.rewards.tolist() == [[1.0, 3.0]]
    assert scored.verdicts == ["correct"]
    assert scorer.beside


def test_tags_and_boxes_are_rewards_too(trainer):
    config = RewardConfig(functions=("tags", "boxed"), weights=(1.0, 1.0), tags=("plan", "answer"))
    prompt, texts = Prompt("1", "", ""), ["<plan>a</plan> <answer>\\boxed{b}</answer>", "<plan>a</plan>", "\\boxed{ }"]
    scorer = Scorer(config, task=None)
    scored = scorer.settle([prompt] * 3, [scorer.ask(prompt, text) for text in texts])
    assert scored.rewards.tolist() == [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]


def test_a_function_that_fails_is_a_verdict_in_the_metrics_and_a_traceback_in_the_log(run, tmp_path):
    """Every second response crashes it: the run goes on, and what went wrong can be read."""
    options = {"reward__functions": [f"{REWARDS}:fails_on_odd_lengths"], "train__steps": 2, "reward__crashed": -1.0}
    run(**options, eval__every=0)
    told = [json.loads(line) for line in (tmp_path / "run" / "troubles.jsonl").read_text().splitlines()]
    shares = column(tmp_path / "run", "verdict/crashed")
    assert all(0 < share < 1 for share in shares)
    assert len(told) == 16 * sum(shares)
    assert {t["step"] for t in told} == {1, 2}
    assert all(t["verdict"] == "crashed" and "ConnectionError: the reward server is gone" in t["reason"] for t in told)
    assert all("in fails_on_odd_lengths" in t["reason"] and "equipoise" not in t["reason"] for t in told)


def test_too_many_responses_without_a_score_stop_the_run(run, tmp_path):
    options = {"reward__functions": [f"{REWARDS}:unavailable_on_odd_lengths"], "train__checkpoint_every": 100}
    with pytest.raises(RunError, match=r"% of the responses have no score \(unavailable \d+; the first: no sandbox"):
        run(**options)
    assert len(metrics(tmp_path / "run")) == 1
    assert checkpoint.steps(RunFolder(tmp_path / "run").checkpoints) == [1]


def test_grading_while_sampling_gives_what_grading_afterwards_gives(trainer):
    early, late = (trainer(reward__functions=[f"{REWARDS}:ones"]) for _ in range(2))
    early.collector.scorer.beside, late.collector.scorer.beside = True, False
    a, b = early.collector.collect(1), late.collector.collect(1)
    assert a.texts == b.texts
    assert a.total.tolist() == b.total.tolist() == pytest.approx([x.count("1") / max(len(x), 1) for x in a.texts])


def test_plain_transformers_opens_what_a_run_leaves(run, tmp_path):
    t = run()
    last = last_checkpoint(tmp_path / "run")
    opened, tokenizer = AutoModelForCausalLM.from_pretrained(last), AutoTokenizer.from_pretrained(last)
    assert all(torch.equal(v, t.policy.model.state_dict()[k]) for k, v in opened.state_dict().items())
    prompt = tokenizer("12+3=", return_tensors="pt")
    text = tokenizer.decode(opened.generate(**prompt, max_new_tokens=5, do_sample=False)[0], skip_special_tokens=True)
    assert text.startswith("12+3=")


def test_a_rollout_file_has_a_row_per_response(run, tmp_path):
    t = run(log__rollouts_every=3, objective__difficulty="hadw")
    folder = RunFolder(tmp_path / "run").rollouts
    assert sorted(p.name for p in folder.iterdir()) == ["step-1.parquet", "step-3.parquet", "step-6.parquet"]
    table = pq.read_table(folder / "step-1.parquet")
    assert table.column_names == [
        "prompt_id", "prompt", "model_input", "response", "tokens", "length", "finish", "reward", "verdict", "group",
        "level", "advantage", "weight", "coefficient", "logprob_sum", "accuracy", "past_successes", "past_attempts",
        "past_age", "rewards/ones", "rewards/ones/verdict",
    ]  # fmt: skip
    rows = table.to_pylist()
    assert len(rows) == 16
    assert [r["group"] for r in rows] == [g for g in range(4) for _ in range(4)]
    for i, row in enumerate(rows):
        prompt = t.task.prompt(i // 4)
        assert (row["prompt_id"], row["prompt"], row["level"]) == (prompt.id, prompt.text, prompt.level)
        assert row["length"] == len(row["tokens"]) <= 12
        assert row["response"] == t.policy.tokenizer.decode(row["tokens"], skip_special_tokens=True)
        assert row["reward"] == pytest.approx(row["response"].count("1") / max(len(row["response"]), 1))
        assert row["finish"] == ("stop" if row["tokens"][-1] == 2 else "length")
        assert row["logprob_sum"] < 0
        assert row["weight"] == pytest.approx(1 / (4 * 4 * row["length"]))  # sequence: w = 1/(P·G·T)
        assert row["coefficient"] == pytest.approx(row["weight"] * row["advantage"])
    assert sum(r["reward"] for r in rows) / 16 == pytest.approx(column(tmp_path / "run", "reward/mean")[0])


def test_a_rollout_file_gives_the_mean_of_weights_that_differ_within_a_response(run, tmp_path):
    t = run(objective__cancellation="prefix", train__steps=1)
    rows = pq.read_table(RunFolder(tmp_path / "run").rollouts / "step-1.parquet").to_pylist()
    tokens = torch.tensor([token for r in rows for token in r["tokens"]])
    lengths = [r["length"] for r in rows]
    credit = t.objective.assign([r["reward"] for r in rows], [r["group"] for r in rows], lengths, tokens=tokens)
    of_token = credit.weight.split(lengths)
    assert any(len(w.unique()) > 1 for w in of_token)
    assert [r["weight"] for r in rows] == pytest.approx([float(w.mean()) for w in of_token])
    pushes = [float(c.mean()) for c in credit.coefficient.split(lengths)]
    assert [r["coefficient"] for r in rows] == pytest.approx(pushes)


def test_the_logs_have_a_line_per_step_and_per_evaluation(run, tmp_path):
    run(train__steps=5, eval__every=2)
    records = metrics(tmp_path / "run")
    assert [r["step"] for r in records] == [1, 2, 3, 4, 5]
    assert [e["step"] for e in evaluations(tmp_path / "run")] == [0, 2, 4, 5]
    for name in (
        "reward/mean", "reward/std", "completions/mean_length", "completions/clipped_ratio", "entropy", "kl",
        "clip_ratio/region", "policy_loss", "grad_norm", "lr", "bias/mass_balance", "bias/length_gap", "skipped",
    ):  # fmt: skip
        assert all(isinstance(r[name], float) and math.isfinite(r[name]) for r in records), name
    first = evaluations(tmp_path / "run")[0]
    assert {"acc@2", "best@2", "greedy", "reward", "judge", "length", "interval", "by_level"} <= first.keys()
    run("silent", train__steps=1, eval__every=0)
    assert evaluations(tmp_path / "silent") == []


def test_tensorboard_gets_every_metric(run, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(log__tensorboard=True, train__steps=3, eval__every=3)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    written = [(e.step, e.value) for e in events.Scalars("reward/mean")]
    assert written == [(r["step"], pytest.approx(r["reward/mean"], rel=1e-6)) for r in metrics(tmp_path / "run")]
    assert [e.step for e in events.Scalars("eval/acc@2")] == [0, 3]
    run("plain", train__steps=1)
    assert not (tmp_path / "plain" / "tensorboard").exists()


def test_temperature_and_truncation_reach_the_sampler(trainer):
    t = trainer(
        rollout__temperature=0.5,
        rollout__top_k=3,
        rollout__top_p=0.9,
        rollout__min_p=0.1,
        rollout__stop=["1"],
        rollout__max_tokens=7,
    )
    p = t.collector.params
    assert (p.temperature, p.top_k, p.top_p, p.min_p, p.stop, p.max_tokens) == (0.5, 3, 0.9, 0.1, ("1",), 7)
    batch = t.collector.collect(1)
    assert int(batch.rollouts.lengths.max()) <= 7
    assert all("1" not in text[:-1] for text in batch.texts)
    assert trainer(rollout__max_tokens=0).collector.params.max_tokens == t.task.max_tokens


def test_other_ways_to_run_the_same_model(run, tmp_path, model):
    run("plain", train__steps=2)
    run("checkpointed", train__steps=2, model__gradient_checkpointing=True)
    plain, other = metrics(tmp_path / "plain"), metrics(tmp_path / "checkpointed")
    for a, b in zip(plain, other, strict=True):
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-5)
    run("half", train__steps=2, model__dtype="bfloat16")
    assert metrics(tmp_path / "half")[0]["grad_norm"] == pytest.approx(plain[0]["grad_norm"], rel=0.5)
    assert models.load(last_checkpoint(tmp_path / "half"), dtype=torch.bfloat16).dtype == torch.bfloat16


def test_the_seed_decides_the_run(run, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(name, train__seed=seed, train__steps=2)
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b") != metrics(tmp_path / "c")


def test_a_run_leaves_only_what_it_says(run, tmp_path):
    run(train__steps=3, train__checkpoint_every=1, train__keep=1, eval__every=3)
    names = {p.name for p in (tmp_path / "run").iterdir()}
    logs = {"config.toml", "run.json", "environment.json", "metrics.jsonl", "eval.jsonl", "prompts.parquet"}
    assert names == {".lock", *logs, "rollouts", "evaluations", "checkpoints"}
    assert checkpoint.steps(RunFolder(tmp_path / "run").checkpoints) == [2, 3]


def test_the_terminal_says_what_is_trained_how_each_step_went_and_what_to_do_next(server, model, tmp_path):
    file = tmp_path / "empty.toml"
    file.touch()
    said = server.run(["train", str(file), *overrides(model, tmp_path / "run", train__steps=2)]).stdout
    line = next(line for line in said.splitlines() if line.startswith("step    1/2"))
    for word in (
        "reward",
        "accuracy",
        "length",
        "entropy",
        "gradient",
        "informative",
        "too easy",
        "tokens/s",
        "s left",
    ):
        assert word in line
    assert "loss" not in said
    assert "held out: acc@2" in said
    begin, end = said.split("step    1/2")[0], said.split("step    2/2")[1]
    assert re.search(r"^model +.*/tiny: 11,488 parameters, float32 on cpu$", begin, re.M)
    assert re.search(r"^objective +grpo → none → none → sequence → ppo_clip$", begin, re.M)
    assert re.search(
        r"^data +arithmetic: 4 prompts × 4 responses a step, 12 tokens each at most, \d+ held out$", begin, re.M
    )
    judged = f"evaluated every 3 by {REWARDS}:ones, checkpoint every 20, learning"
    assert re.search(rf"^run +{tmp_path}/run: 2 steps, {judged}", begin, re.M)
    assert re.search(r"^memory +weights .* MiB, gradients .* MiB, optimizer .* MiB; .* GiB free$", begin, re.M)
    assert "done: step 2 of 2" in end
    assert re.search(r"^held out +acc@2 0\.\d+ → 0\.\d+ \[", end, re.M)
    assert f"equipoise report {tmp_path}/run   writes {tmp_path}/run/report.html" in end
    assert f"equipoise audit {tmp_path}/run" in end

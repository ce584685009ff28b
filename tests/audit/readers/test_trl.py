"""TRL's completions: rewards that explain the advantages, batches written twice, evaluations in training's place."""

import json
import re

import numpy as np
import pytest

from equipoise.audit import AuditError, from_table, measure, read
from tests.audit.test_read import parquet


def trl(path, rewards, advantage, step=1, prompts=None, group_size=4):
    n = len(advantage)
    prompts = [f"q{i}" for i in range(n // group_size)] if prompts is None else prompts
    return parquet(path, {
        "step": [step] * n, "prompt": np.repeat(prompts, group_size),
        "completion": ["y" * (3 + i) for i in range(n)], **rewards, "advantage": advantage,
    })  # fmt: skip


def centred(x):
    groups = np.asarray(x, float).reshape(-1, 4)
    return (groups - groups.mean(1, keepdims=True)).reshape(-1)


def test_rewards_are_summed_if_they_explain_the_advantages(tmp_path):
    rng = np.random.default_rng(0)
    right, tidy, note = rng.integers(0, 2, 32) * 1.0, rng.random(32), ["seen"] * 32
    rewards = {"right": right, "tidy": tidy, "note": note}
    log = read(trl(tmp_path / "sum.parquet", rewards, centred(right + tidy)))
    assert sorted(log.reward.tolist()) == pytest.approx(sorted(right + tidy))
    weighed = trl(tmp_path / "weighed.parquet", rewards, centred(right + 0.1 * tidy))
    with pytest.raises(AuditError, match="does not explain the column advantage"):
        read(weighed)
    assert len(read(weighed, {"reward": "right+0.1*tidy"})) == 32
    with pytest.raises(AuditError, match="does not explain"):
        read(weighed, {"reward": "right+tidy"})
    silent = np.where(np.arange(32) % 2 == 0, np.nan, tidy)  # a function that had nothing to say of half of them
    total = right + np.nan_to_num(silent)
    assert len(read(trl(tmp_path / "nan.parquet", {"right": right, "tidy": silent}, centred(total)))) == 32
    with pytest.raises(AuditError, match=r"nan.parquet, row 1, column tidy: nan is not a finite number"):
        read(trl(tmp_path / "nan.parquet", {"tidy": silent}, centred(total)))


def test_a_batch_that_was_written_twice_counts_once(tmp_path):
    right = np.tile([1.0, 0.0, 0.0, 1.0], 4)
    for step in (1, 2):
        trl(tmp_path / f"completions_{step:05d}.parquet", {"right": right}, centred(right), step)
    other = 1 - right
    trl(tmp_path / "completions_00003.parquet", {"right": other}, centred(other), 3)
    log = read(tmp_path)
    assert sorted(set(log.step.tolist())) == [1, 3]
    assert "left out step 2" in log.notes[0]


# Evaluations: each file holds four groups of four responses unless a test says otherwise.


def write_run(folder, prompts_by_step, group_sizes=None):
    """A file for each step; its prompts, and the size of their groups where it is not 4."""
    (folder / "completions").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for step, prompts in prompts_by_step.items():
        size = (group_sizes or {}).get(step, 4)
        right = rng.integers(0, 2, len(prompts) * size) * 1.0
        path = folder / "completions" / f"completions_{step:05d}.parquet"
        trl(path, {"right": right}, right - right.mean(), step, prompts, size)
    return folder


def write_state(path, evaluated, global_step):
    path.parent.mkdir(parents=True, exist_ok=True)
    history = [{"loss": 0.1, "step": s} for s in range(1, global_step + 1)]
    history += [{"eval_loss": 0.1, "eval_reward": 0.5, "step": s} for s in evaluated]
    path.write_text(json.dumps({"global_step": global_step, "log_history": history}))


def fresh(step):
    return [f"{step}-{i}" for i in range(4)]


EVALUATED = ["e0", "e1", "e2", "e3"]


def steps_read(*paths):
    return sorted(set(read(list(paths)).step.tolist()))


@pytest.mark.parametrize("state", ["trainer_state.json", "checkpoint-6/trainer_state.json"])
def test_evaluations_that_the_trainers_state_lists_are_left_out(tmp_path, monkeypatch, state):
    steps = {s: EVALUATED if s in (2, 4) else fresh(s) for s in range(1, 7)}
    write_run(tmp_path, steps)
    write_state(tmp_path / state, (2, 4), 6)
    log = read(tmp_path)
    assert steps_read(tmp_path) == [1, 3, 5, 6]
    assert log.notes == (
        "left out 32 responses of 2 steps (2, 4): an evaluation's, which TRL writes in place of training's",
    )
    folder = tmp_path / "completions"
    monkeypatch.chdir(folder)
    assert steps_read(".") == steps_read(*(f.name for f in folder.iterdir())) == [1, 3, 5, 6]
    assert steps_read(folder) == steps_read(*sorted(folder.iterdir())) == [1, 3, 5, 6]
    with pytest.raises(AuditError, match=r"2 steps \(2, 4\): all are evaluations"):
        read([folder / "completions_00002.parquet", folder / "completions_00004.parquet"])


def test_a_state_that_is_no_state_is_refused(tmp_path):
    write_run(tmp_path, {1: fresh(1)})
    for content in ("{", "[]", '{"global_step": 3, "log_history": [7]}', '{"log_history": []}'):
        (tmp_path / "trainer_state.json").write_text(content)
        with pytest.raises(AuditError, match=r"trainer_state\.json does not tell which steps are evaluations"):
            read(tmp_path)
    table = {"prompt": [1, 1], "reward": [0.0, 1.0], "length": [3, 4]}
    assert len(read(parquet(tmp_path / "ours.parquet", table))) == 2  # not TRL's, and so not about this log


def test_a_step_that_no_training_can_write_is_left_out(tmp_path):
    """Step 0, and groups of one, which TRL does not train on; without anything that lists evaluations."""
    write_run(tmp_path, {0: EVALUATED, 1: fresh(1), 2: [f"e{i}" for i in range(16)], 3: fresh(3)}, group_sizes={2: 1})
    assert steps_read(tmp_path) == [1, 3]
    assert "left out 32 responses of 2 steps (0, 2)" in read(tmp_path).notes[0]


def test_signs_of_an_evaluation_are_told_where_nothing_proves_it(tmp_path):
    same = {s: EVALUATED if s in (2, 4) else fresh(s) for s in range(1, 7)}
    log = read(write_run(tmp_path / "same", same))
    assert len(log) == 6 * 16
    assert len(log.notes) == 1
    assert log.notes[0].startswith("the same prompts, which no other step has, in 2 steps (2, 4): if some of these are")
    few = {s: [*fresh(s)[:2], *EVALUATED[:2]] if s in (2, 4) else fresh(s) for s in range(1, 7)}
    assert "no other step has, in 2 steps (2, 4)" in read(write_run(tmp_path / "few", few)).notes[0]
    epochs = {**same, 7: [*fresh(1)[:2], *fresh(3)[2:]], 8: [*fresh(3)[:2], *fresh(1)[2:]]}
    assert "no other step has, in 2 steps (2, 4)" in read(write_run(tmp_path / "epochs", epochs)).notes[0]
    smaller = {1: fresh(1), 2: [f"e{i}" for i in range(8)], 3: fresh(3)}
    (note,) = read(write_run(tmp_path / "smaller", smaller, group_sizes={2: 2})).notes
    assert note.startswith("groups of 4 in 2 steps (1, 3), of 2 in step 2: if some of these are evaluations")
    write_state(tmp_path / "same" / "trainer_state.json", (), 6)  # the trainer says that it never evaluated
    assert read(tmp_path / "same").notes == ()
    write_state(tmp_path / "same" / "trainer_state.json", (2,), 3)  # and here it says nothing of step 4
    left_out, sign = read(tmp_path / "same").notes
    assert left_out.startswith("left out 16 responses of step 2")
    assert sign.startswith("the same prompts, which no other step has, in step 4")


def test_training_alone_shows_no_signs(tmp_path):
    once = {s: fresh(s) for s in range(1, 7)}
    in_one_order = {s: fresh(s % 3) for s in range(1, 7)}
    everything = dict.fromkeys(range(1, 7), fresh(0))
    alone = {1: fresh(1)}
    rng = np.random.default_rng(0)
    pool = np.array([f"p{i}" for i in range(12)])
    shuffled = {
        3 * e + k + 1: part.tolist() for e in range(8) for k, part in enumerate(np.split(rng.permutation(pool), 3))
    }
    for i, steps in enumerate((once, in_one_order, everything, alone, shuffled)):
        log = read(write_run(tmp_path / str(i), steps))
        assert log.notes == ()
        assert sorted(set(log.step.tolist())) == sorted(steps)


def test_a_table_without_steps_is_training():
    columns = {"prompt": ["a", "a"], "completion": ["x", "xy"], "right": [1.0, 0.0], "advantage": [1.0, -1.0]}
    assert len(from_table(columns)) == 2


@pytest.fixture
def train_with_trl(tmp_path, monkeypatch):
    """TRL itself on the embedded model with two reward functions; gives the responses of training and of evaluation."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    trl_package = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    from equipoise.policy import load
    from equipoise.tasks import Arithmetic

    def train(evaluation_prompts=0, **options):
        policy, task = load("abacus"), Arithmetic()
        prompts = {p.text: p for p in map(task.prompt, range(40))}
        seen = {"train": [], "eval": []}

        def right(prompts, completions, **columns):
            scores = [
                float(task.grade(by_text[p], c).kind == "correct") for p, c in zip(prompts, completions, strict=True)
            ]
            mode = "train" if trainer.model.training else "eval"
            step = trainer.state.global_step
            seen[mode].extend(zip([step] * len(prompts), prompts, completions, scores, strict=True))
            return scores

        def short(prompts, completions, **columns):
            return [None if len(c) > 30 else -len(c) / 100 for c in completions]

        by_text, rows = prompts, [{"prompt": p} for p in prompts]
        train_rows, eval_rows = rows[: len(rows) - evaluation_prompts], rows[len(rows) - evaluation_prompts :]
        config = trl_package.GRPOConfig(**{
            "output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "per_device_train_batch_size": 16,
            "num_generations": 8, "max_completion_length": task.max_tokens, "max_steps": 3, "logging_steps": 1,
            "save_strategy": "no", "report_to": "none", "gradient_checkpointing": False, "disable_tqdm": True,
            "log_completions": True, "num_completions_to_print": 0, **options,
        })  # fmt: skip
        trainer = trl_package.GRPOTrainer(
            model=policy.model, reward_funcs=[right, short], args=config, processing_class=policy.tokenizer,
            train_dataset=datasets.Dataset.from_list(train_rows),
            eval_dataset=datasets.Dataset.from_list(eval_rows) if eval_rows else None,
        )  # fmt: skip
        policy.model.config._attn_implementation = "sdpa"
        trainer.train()
        return trainer, seen

    return train


def test_a_log_that_trl_wrote_is_audited_as_it_is(tmp_path, train_with_trl):
    _, found = train_with_trl()
    seen = found["train"]
    audit = measure(tmp_path)
    assert (audit.source, audit.unit, len(audit.steps)) == ("TRL", "characters", 3)
    assert audit.overall.responses == len(seen) == 48
    assert audit.overall.prompts == len({p for _, p, _, _ in seen})
    assert audit.notes == []
    lengths = [len(c) for _, _, c, _ in seen]
    assert audit.overall.log["length_mean"].value == pytest.approx(np.mean(lengths))
    alone = measure(tmp_path, columns={"reward": "right"})
    assert alone.overall.log["reward_mean"].value == pytest.approx(np.mean([r for _, _, _, r in seen]))
    assert alone.rewards == (0.0, 1.0)


# Evaluations whose rows are as many as a batch's, fewer, more; in groups of another size, or of one; before the first
# step; and where a batch serves several updates. With each, how its files tell without the trainer's state.
BY_PROMPTS = r"the same prompts, which no other step has, in 3 steps \(2, 4, 5\): if some"
WAYS = {
    "as many": ({"evaluation_prompts": 2}, BY_PROMPTS),
    "more": ({"evaluation_prompts": 3}, BY_PROMPTS),
    "fewer": ({"evaluation_prompts": 2, "per_device_train_batch_size": 32}, BY_PROMPTS),
    "smaller groups": (
        {"evaluation_prompts": 3, "num_generations_eval": 4},
        r"groups of 8 in 2 steps \(1, 3\), of 4 in 3 steps \(2, 4, 5\): if some",
    ),
    "groups of one": (
        {"evaluation_prompts": 16, "num_generations_eval": 1},
        r"left out 48 responses of 3 steps \(2, 4, 5\): an evaluation's",
    ),
    "fewer, of one": (
        {"evaluation_prompts": 8, "num_generations_eval": 1},
        r"completions_00002.parquet, row 9: .*an evaluation with num_generations_eval=1",
    ),
    "at the start": (
        {"evaluation_prompts": 2, "eval_on_start": True},
        r"left out 16 responses of step 0: .*no other step has, in 3 steps \(2, 4, 5\)",
    ),
    "after the updates": ({"evaluation_prompts": 2, "num_iterations": 2}, r"no other step has, in 3 steps \(2, 4, 5\)"),
    "between updates": (
        {"evaluation_prompts": 2, "num_iterations": 3},
        r"left out step 3: TRL wrote the step before once more .*no other step has, in 3 steps \(2, 4, 5\)",
    ),
}
DEFAULT = "fewer"


@pytest.mark.parametrize("way", [w if w == DEFAULT else pytest.param(w, marks=pytest.mark.slow) for w in WAYS])
def test_evaluations_are_left_out_of_a_log_that_trl_wrote(way, tmp_path, train_with_trl):
    """Evaluation after steps 2 and 4 of five and, as transformers has it, after the last."""
    options, told = WAYS[way]
    evaluate = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8}
    trainer, seen = train_with_trl(max_steps=5, **evaluate, **options)
    try:
        without_state = " ".join(read(tmp_path).notes)
    except AuditError as error:
        without_state = str(error)
    assert re.search(told, without_state)
    trainer.save_state()
    log = read(tmp_path, {"reward": "right"})
    left = (1,) if way == "between updates" else (1, 3)
    sampled = [(step + 1, len(c), r) for step, _, c, r in seen["train"] if step + 1 in left]
    assert sorted(zip(log.step.tolist(), log.length.tolist(), log.reward.tolist(), strict=True)) == sorted(sampled)
    assert log.notes[0].endswith("an evaluation's, which TRL writes in place of training's")
    assert len(log.notes) == (2 if way == "between updates" else 1)


def test_a_run_that_kept_no_completions_is_told_how_to_keep_them(tmp_path):
    (tmp_path / "checkpoint-3").mkdir()
    with pytest.raises(AuditError, match=r"holds no .* file: TRL keeps .* GRPOConfig\(log_completions=True\)"):
        read(tmp_path)

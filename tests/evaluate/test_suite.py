"""An evaluation ends the same however often it was stopped, keeps every response, and refuses to mix with another."""

import dataclasses
import json
import multiprocessing
import re
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from equipoise import policy as models
from equipoise import rollout
from equipoise.evaluate import BenchmarkPlan, EvaluationError, evaluate_benchmarks, over_checkpoints
from equipoise.evaluate.benchmarks import Benchmark, open_benchmark
from equipoise.evaluate.folder import COLUMNS, Folder
from equipoise.evaluate.regrade import regrade
from equipoise.evaluate.suite import weights_digest
from equipoise.evaluate.table import show
from equipoise.verifiers import Verdict
from equipoise.verifiers.grade import _done
from equipoise.verifiers.verdict import KINDS

from .fakes import Writer, fake_policy


def digit(benchmark, problem, i):
    """Problem k is right in its first k samples; the last sample says nothing."""
    k = int(problem.removeprefix("m/")) if benchmark == "math500" else int(problem) - 1
    return "I do not know." if i == 3 else rf"It is \boxed{{{k if i < k else k + 100 + i}}}."


def plans(data, names=("gsm8k", "math500"), samples=4, chunk=2, **options):
    return [BenchmarkPlan.of(open_benchmark(name, data, **options), samples, 50, chunk) for name in names]


def run(data, out, sampler=None, policy=None, **options):
    how = {key: options.pop(key) for key in ("temperature", "seed", "say") if key in options}
    return evaluate_benchmarks(policy or fake_policy(), sampler or Writer(digit), plans(data, **options), out, **how)


def contents(out):
    """All bytes of the folder, but for the empty lock file."""
    return {
        str(p.relative_to(out)): p.read_bytes()
        for p in sorted(Path(out).rglob("*"))
        if p.is_file() and p.name != ".lock"
    }


def rows_of(out, benchmark):
    files = sorted((Path(out) / "samples" / benchmark).glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def test_every_response_is_kept_with_its_verdict(data, tmp_path):
    run(data, tmp_path / "out")
    rows = rows_of(tmp_path / "out", "gsm8k")
    assert list(rows[0]) == list(COLUMNS)
    assert [(r["prompt_id"], r["sample"]) for r in rows] == [(str(k + 1), i) for k in range(6) for i in range(4)]
    right = {(k, i) for k in range(6) for i in range(3) if i < k}
    for r in rows:
        k, i = int(r["prompt_id"]) - 1, r["sample"]
        assert r["response"] == digit("gsm8k", r["prompt_id"], i)
        assert r["verdict"] == ("correct" if (k, i) in right else "unparsed" if i == 3 else "wrong")
        assert (r["answer"] is None) == (i == 3)
        assert (r["length"], r["finish"], r["benchmark"]) == (len(r["response"]), "stop", "gsm8k")
    assert {r["level"] for r in rows_of(tmp_path / "out", "math500")} == {"1", "2"}


def test_scores_by_both_rule_sets_are_kept_and_told_where_they_differ(data, tmp_path, capsys):
    """The second of four samples is a calculation, right by the lenient rules alone."""

    def calculation(benchmark, problem, sample):
        said = digit(benchmark, problem, sample)
        return said.replace(r"\boxed{", r"\boxed{0+") if sample == 1 else said

    result = run(data, tmp_path / "out", Writer(calculation))
    rows = rows_of(tmp_path / "out", "gsm8k")
    assert {(r["verdict"], r["lenient"]) for r in rows if r["sample"] != 1} <= {(k, k) for k in KINDS}
    assert {(r["verdict"], r["lenient"]) for r in rows if r["sample"] == 1} == {
        ("wrong", "correct"),
        ("wrong", "wrong"),
    }
    summary = result["benchmarks"]["gsm8k"]
    lenient = sum(r["lenient"] == "correct" for r in rows) / len(rows)
    assert summary["by_lenient_rules"]["acc@4"]["value"] == pytest.approx(lenient)
    assert lenient > summary["acc@4"]["value"]
    show(result)
    assert "gsm8k: acc@4 is" in capsys.readouterr().out
    assert "by the lenient ones" in (tmp_path / "out" / "result.md").read_text()
    assert "by_lenient_rules" not in run(data, tmp_path / "same")["benchmarks"]["gsm8k"]


def test_verdicts_that_differ_with_the_same_score_are_no_note(data, tmp_path, capsys):
    """A number without a box: unparsed by the strict rules, wrong by the lenient ones."""
    result = run(data, tmp_path / "out", Writer(lambda benchmark, problem, sample: "It is 99999."), names=("gsm8k",))
    assert {(r["verdict"], r["lenient"]) for r in rows_of(tmp_path / "out", "gsm8k")} == {("unparsed", "wrong")}
    show(result)
    assert "lenient" not in capsys.readouterr().out


def test_the_metrics_by_hand(data, tmp_path):
    result = run(data, tmp_path / "out")
    right = [min(k, 3) for k in range(6)]
    gsm8k = result["benchmarks"]["gsm8k"]
    assert gsm8k["acc@4"]["value"] == pytest.approx(sum(right) / 24)
    assert gsm8k["best@4"]["value"] == pytest.approx(5 / 6)
    # k right answers are the same, wrong ones all differ; of single votes the first wins, which is right from k = 1 on
    assert gsm8k["maj@4"]["value"] == pytest.approx(5 / 6)
    math = result["benchmarks"]["math500"]
    assert math["by_level"]["2"]["acc@4"]["value"] == pytest.approx((1 + 3) / 8)
    assert math["by_subject"]["a"]["problems"] == 2
    assert gsm8k["verdicts"] == {"correct": 12, "unparsed": 6, "wrong": 6}
    mean = (gsm8k["acc@4"]["value"] + math["acc@4"]["value"]) / 2
    assert result["average"]["acc@4"]["value"] == pytest.approx(mean)
    assert result["average"]["acc@4"]["low"] < mean < result["average"]["acc@4"]["high"]
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == result


@pytest.mark.parametrize("fail_at", range(5))
def test_stopped_anywhere_and_resumed_it_ends_the_same(data, tmp_path, fail_at):
    run(data, tmp_path / "whole")
    dying = Writer(digit, fail_at=fail_at)
    with pytest.raises(KeyboardInterrupt):
        run(data, tmp_path / "out", dying)
    half_written = tmp_path / "out" / "samples" / "gsm8k" / f".chunk-{fail_at:05d}.parquet.writing"
    half_written.parent.mkdir(parents=True, exist_ok=True)
    half_written.write_bytes(b"PAR1 torn")
    rest = Writer(digit)
    run(data, tmp_path / "out", rest)
    assert dying.asked + rest.asked == 5  # nothing is sampled twice
    half_written.unlink(missing_ok=True)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_finished_evaluation_samples_nothing_and_says_the_same(data, tmp_path):
    first, again = run(data, tmp_path / "out"), Writer(digit)
    assert run(data, tmp_path / "out", again) == first
    assert again.asked == 0


def test_what_is_sampled_is_said_before_it_begins(data, tmp_path):
    lines = []
    run(data, tmp_path / "out", names=("gsm8k",), say=lines.append)
    first, *rest = lines
    assert re.fullmatch(r"gsm8k: \d+ problems × 4 samples of at most 50 tokens, 2 problems at a time", first)
    assert all(re.fullmatch(r"gsm8k: \d+ of \d+ problems, \d+ tokens/s", line) for line in rest)
    lines.clear()
    run(data, tmp_path / "out", names=("gsm8k",), say=lines.append)
    assert lines == []


def test_a_real_model_killed_and_resumed_writes_the_same_bytes(data, tiny_model, tmp_path):
    def evaluate(out):
        policy = models.load(tiny_model)
        return evaluate_benchmarks(policy, rollout.sampler(policy), plans(data, chunk=1, chat=False), out)

    third = tmp_path / "out" / "samples" / "gsm8k" / "chunk-00002.parquet"

    def evaluate_three():
        write = Folder.write_chunk

        def wait_after_the_third(self, *rest):
            write(self, *rest)
            time.sleep(900 if third.exists() else 0)

        Folder.write_chunk = wait_after_the_third
        evaluate(tmp_path / "out")

    # forked, because a new process would import torch and transformers again
    process = multiprocessing.get_context("fork").Process(target=evaluate_three)
    process.start()
    deadline = time.monotonic() + 900
    while not third.exists() and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    evaluate(tmp_path / "whole")
    assert third.exists()
    assert not (tmp_path / "out" / "result.json").exists()
    evaluate(tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_draws_depend_on_the_problem_and_not_on_the_others(data, tiny_model, tmp_path):
    policy = models.load(tiny_model)
    for name, options in {"all": {}, "some": {"limit": 4}}.items():
        evaluate_benchmarks(policy, rollout.sampler(policy), plans(data, chat=False, **options), tmp_path / name)
    assert rows_of(tmp_path / "some", "gsm8k") == rows_of(tmp_path / "all", "gsm8k")[:16]
    responses = [r["response"] for r in rows_of(tmp_path / "all", "gsm8k")]
    assert len(set(responses)) > 20


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"temperature": 0.6}, "temperature was 1.0, now 0.6"),
        ({"seed": 5}, "seed was 20240517, now 5"),
        ({"samples": 2}, "gsm8k.samples was 4, now 2; math500.samples was 4, now 2"),
        ({"chunk": 3}, "gsm8k.chunk was 2, now 3"),
        ({"limit": 3}, "gsm8k.problems was 6, now 3"),
        ({"chat": False}, "chat was True, now False"),
        ({"policy": fake_policy(weight=2.0)}, "weights was '"),
    ],
)
def test_a_folder_of_another_evaluation_is_refused_with_what_differs(data, tmp_path, change, said):
    run(data, tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(EvaluationError, match="holds an evaluation with other settings") as error:
        run(data, tmp_path / "out", **change)
    assert said in str(error.value)
    assert "choose another --out" in str(error.value)
    assert contents(tmp_path / "out") == before


def test_a_limit_may_grow_and_nothing_is_sampled_twice(data, tmp_path):
    first, second, third = Writer(digit), Writer(digit), Writer(digit)
    run(data, tmp_path / "out", first, names=("gsm8k",), limit=1)
    kept = {name: content for name, content in contents(tmp_path / "out").items() if name.startswith("samples")}
    run(data, tmp_path / "out", second, names=("gsm8k",), limit=4)
    result = run(data, tmp_path / "out", third, names=("gsm8k",))
    assert [writer.asked for writer in (first, second, third)] == [1, 2, 1]  # chunks: of 1; of 2 and 1; of 2
    assert kept.items() <= contents(tmp_path / "out").items()
    rows = rows_of(tmp_path / "out", "gsm8k")
    assert [(row["prompt_id"], row["sample"]) for row in rows] == [(str(k + 1), i) for k in range(6) for i in range(4)]
    whole = run(data, tmp_path / "whole", names=("gsm8k",))
    assert result["benchmarks"] == whole["benchmarks"]
    again = Writer(digit)
    assert run(data, tmp_path / "out", again, names=("gsm8k",)) == result
    assert again.asked == 0
    report = regrade(tmp_path / "out")
    assert (report["gsm8k"]["responses"], report["gsm8k"]["changed"]) == (24, 0)


def test_a_limit_that_shrinks_is_refused_with_what_it_must_be(data, tmp_path):
    run(data, tmp_path / "out", limit=4)
    with pytest.raises(EvaluationError, match="--limit may grow, and must be at least 4") as error:
        run(data, tmp_path / "out", limit=3)
    assert "prompts was" not in str(error.value)


def test_a_limit_does_not_grow_over_other_problems(data, tmp_path):
    run(data, tmp_path / "out", limit=4)
    file = data / "gsm8k.jsonl"
    file.write_text(file.read_text().replace("#### 3", "#### 33"))
    with pytest.raises(EvaluationError, match=r"gsm8k\.problems was 4, now 6.*gsm8k\.references was"):
        run(data, tmp_path / "out")


def test_other_golds_are_another_evaluation(data, tmp_path):
    run(data, tmp_path / "out")
    file = data / "gsm8k.jsonl"
    file.write_text(file.read_text().replace("#### 3", "#### 33"))
    with pytest.raises(EvaluationError, match=r"gsm8k\.references was"):
        run(data, tmp_path / "out")


def test_the_same_model_under_another_name_goes_on(data, tmp_path):
    first = run(data, tmp_path / "out")
    again = run(data, tmp_path / "out", policy=fake_policy(name="elsewhere"))
    assert again == first


def test_benchmarks_can_be_added_to_a_folder(data, tmp_path):
    run(data, tmp_path / "out", names=("gsm8k",))
    more = Writer(digit)
    both = run(data, tmp_path / "out", more)
    assert more.asked == 2
    assert both == run(data, tmp_path / "at_once")


def test_two_processes_do_not_write_to_one_folder(data, tmp_path):
    with Folder(tmp_path / "out").lock(), pytest.raises(EvaluationError, match="another process writes to it"):
        run(data, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("settings.json", "{", r"settings\.json: cannot be read: .*; restore or delete it"),
        ("settings.json", "[]", r"settings\.json: is not the settings of an evaluation"),
        ("samples/gsm8k/chunk-00001.parquet", "PAR1", r"chunk-00001\.parquet: cannot be read: .*; delete it"),
    ],
)
def test_a_broken_file_is_named_with_what_to_do(data, tmp_path, name, text, said):
    run(data, tmp_path / "out")
    (tmp_path / "out" / name).write_text(text)
    with pytest.raises(EvaluationError, match=said):
        run(data, tmp_path / "out")


def test_samples_without_settings_are_not_overwritten(data, tmp_path):
    run(data, tmp_path / "out")
    (tmp_path / "out" / "settings.json").unlink()
    with pytest.raises(EvaluationError, match=r"has samples but no settings\.json"):
        run(data, tmp_path / "out")


def test_a_folder_that_cannot_be_made_is_one_sentence(data, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EvaluationError, match="cannot be written: "):
        run(data, tmp_path / "file" / "out")


def test_a_prompt_that_does_not_fit_stops_it_before_anything_is_sampled(data, tmp_path):
    small = fake_policy()
    small.context = 10
    sampler = Writer(digit)
    with pytest.raises(EvaluationError, match="gsm8k, problem 1: fake cannot be asked it: a prompt of"):
        run(data, tmp_path / "out", sampler, small)
    assert sampler.asked == 0
    assert not (tmp_path / "out").exists()


def test_nothing_to_evaluate_is_refused(tmp_path):
    with pytest.raises(EvaluationError, match="no benchmarks"):
        evaluate_benchmarks(fake_policy(), Writer(digit), [], tmp_path)


def test_hostile_responses_are_kept(data, tmp_path):
    odd = "\ud800 \x00 </script> \u202e | \\boxed{1}"
    run(data, tmp_path / "out", Writer(lambda *key: odd))
    rows = rows_of(tmp_path / "out", "gsm8k")
    assert {r["response"] for r in rows} == {odd.replace("\ud800", "?")}
    assert {r["verdict"] for r in rows if r["prompt_id"] == "2"} == {"correct"}


def test_problems_that_say_nothing_about_a_response_are_left_out_and_counted(data, tmp_path, monkeypatch):
    grade = Benchmark.grade

    def grader(self, prompt, response, rules="strict"):
        bad = prompt.id == "6"
        return _done(Verdict("bad_gold", "cannot be read")) if bad else grade(self, prompt, response, rules)

    monkeypatch.setattr(Benchmark, "grade", grader)
    found = run(data, tmp_path / "out")["benchmarks"]["gsm8k"]
    assert (found["problems"], found["left_out"]) == (5, {"bad_gold": 1})
    assert found["acc@4"]["value"] == pytest.approx((0 + 1 + 2 + 3 + 3) / 20)
    assert "problems left out: 1 bad_gold (the first: cannot be read)" in (tmp_path / "out" / "result.md").read_text()


def test_a_benchmark_that_cannot_be_graded_has_no_score_and_spoils_the_average(data, tmp_path, monkeypatch):
    grade = Benchmark.grade

    def grader(self, prompt, response, rules="strict"):
        nowhere = self.name == "gsm8k"
        return _done(Verdict("unavailable", "no sandbox")) if nowhere else grade(self, prompt, response, rules)

    monkeypatch.setattr(Benchmark, "grade", grader)
    result = run(data, tmp_path / "out")
    assert result["benchmarks"]["gsm8k"]["problems"] == 0
    assert "acc@4" not in result["benchmarks"]["gsm8k"]
    assert "acc@4" in result["benchmarks"]["math500"]
    assert result["average"] == {}


def test_averages_over_different_numbers_of_samples_are_of_acc_alone(data, tmp_path):
    few, many = plans(data, names=("gsm8k",), samples=1) + plans(data, names=("math500",), samples=4)
    result = evaluate_benchmarks(fake_policy(), Writer(digit), [few, many], tmp_path / "out")
    found = result["benchmarks"]
    assert {"acc@1"} == {k for k in found["gsm8k"] if "@" in k}
    assert list(result["average"]) == ["acc"]
    assert result["average"]["acc"]["value"] == pytest.approx(
        (found["gsm8k"]["acc@1"]["value"] + found["math500"]["acc@4"]["value"]) / 2
    )


def test_the_digest_of_weights_sees_every_tensor(tiny_model):
    policy = models.load(tiny_model)
    before = weights_digest(policy)
    assert weights_digest(models.load(tiny_model)) == before
    for parameter in policy.parameters():
        flat = parameter.data.view(-1)
        kept = flat.clone()
        flat += 1e-3
        assert weights_digest(policy) != before
        flat.copy_(kept)
    assert weights_digest(policy) == before


def test_peak_and_last_over_checkpoints(data, tmp_path):
    def writer(bonus):
        return Writer(lambda b, problem, i: digit(b, problem, i - bonus if i < 3 else i))

    results = {step: run(data, tmp_path / str(step), writer(bonus)) for step, bonus in ((0, 0), (20, 2), (100, 1))}
    over = over_checkpoints(results)
    assert over["steps"] == [0, 20, 100]
    values = [results[step]["benchmarks"]["gsm8k"]["acc@4"]["value"] for step in (0, 20, 100)]
    assert values[0] < values[2] < values[1]
    found = over["benchmarks"]["gsm8k"]["acc@4"]
    assert found == {
        "peak": values[1],
        "peak_step": 20,
        "last": values[2],
        "drop": pytest.approx(values[1] - values[2]),
    }
    assert over["average"]["acc@4"]["peak"] == results[20]["average"]["acc@4"]["value"]


def test_a_plan_takes_the_benchmarks_own_length_and_about_512_responses(data):
    benchmark = open_benchmark("gsm8k", data)
    plan = BenchmarkPlan.of(benchmark, 8)
    assert (plan.max_tokens, plan.chunk) == (benchmark.max_tokens, 64)
    assert BenchmarkPlan.of(benchmark, 1000).chunk == 1
    assert [len(c) for c in dataclasses.replace(plan, chunk=4).chunks] == [4, 2]

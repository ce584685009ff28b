"""Comparisons: the statistics against other ways to compute them, the grid, the words, and a whole small one."""

import csv
import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from equipoise import cli
from equipoise.config.config import accuracies
from equipoise.evaluate.paired import interval
from equipoise.report.metrics import meaning
from equipoise.report.runs import ReportError, read
from equipoise.study import compare as study
from equipoise.study.compare import Variant, differences, variants, verdict
from equipoise.study.fork_server import ForkServer
from equipoise.train import Config, ConfigError, RunError, RunFolder
from tests.train.tiny import make_model

ROOT = Path(__file__).parents[2]


def drawn(seed: int, n: int, *means: float, noise: float = 0.02, shared: float = 0.05) -> list[Variant]:
    """Variants whose runs share the luck of their seed."""
    draw = np.random.default_rng(seed)
    luck = shared * draw.standard_normal(n)
    runs = [(m + luck + noise * draw.standard_normal(n)).tolist() for m in means]
    return [Variant(chr(97 + i), scores, scores) for i, scores in enumerate(runs)]


def test_the_paired_test_is_scipys():
    found = drawn(0, 6, 0.5, 0.52, 0.6)
    pairs = differences(found)
    assert [(d.a, d.b) for d in pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    for d, (a, b) in zip(pairs, itertools.combinations(found, 2), strict=True):
        reference = stats.ttest_rel(b.scores, a.scores)
        low, high = reference.confidence_interval()
        assert (d.p, d.low, d.high) == pytest.approx((reference.pvalue, low, high))


def test_false_alarms_are_as_rare_as_promised():
    """Three equal variants: after Holm, at most one comparison in twenty claims something."""
    alarms = sum(any(d.holm < 0.05 for d in differences(drawn(seed, 5, 0.5, 0.5, 0.5))) for seed in range(200))
    assert alarms / 200 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    held = 0
    for seed in range(400):
        (d,) = differences(drawn(seed, 4, 0.5, 0.53))
        held += d.low <= 0.03 <= d.high
    assert abs(held / 400 - 0.95) < 0.03


def test_pairing_sees_what_the_means_hide():
    found = drawn(3, 5, 0.5, 0.53, noise=0.004, shared=0.1)
    (d,) = differences(found)
    assert d.p < 0.01
    assert stats.ttest_ind(found[0].scores, found[1].scores).pvalue > 0.3


def test_one_seed_claims_nothing():
    found = drawn(0, 1, 0.1, 0.9)
    assert differences(found) == []
    assert interval([0.5]) == (-math.inf, math.inf)
    assert "One seed" in verdict(found, [], "acc@8")
    assert "one seed" in study.markdown(found, [], "acc@8", "")


def test_identical_runs_are_no_difference():
    same = [Variant("a", [0.5, 0.6], [0.5, 0.6]), Variant("b", [0.5, 0.6], [0.5, 0.6])]
    (d,) = differences(same)
    assert (d.mean, d.p) == (0.0, 1.0)
    assert "No difference detectable" in verdict(same, [d], "acc@8")
    assert "every seed gave the same, which does not tell how many would be needed" in verdict(same, [d], "acc@8")


def test_the_words_name_winner_size_and_certainty():
    found = drawn(5, 6, 0.5, 0.6, 0.602, noise=0.005)
    words = verdict(found, differences(found), "acc@8")
    assert re.search(r"b beats a by (9|10)\.\d points of acc@8 \(95 % interval \d+\.\d to \d+\.\d, p = ", words)
    assert re.search(r"Between the other pair no difference detectable at this size \(6 seeds\); \d+ seeds", words)


def test_the_grid():
    assert variants(["objective.aggregation=token,balanced"]) == {
        "token": {"objective.aggregation": "token"}, "balanced": {"objective.aggregation": "balanced"},
    }  # fmt: skip
    assert list(variants(["a.b=1,2", "c.d=x,y"])) == ["1, x", "1, y", "2, x", "2, y"]
    (name,) = variants(['a.b={name = "power", p = [1, 2]}'])
    assert name == "power(p=[1, 2])"
    assert list(variants(['a.b=balanced,{ name = "balanced", over = "batch" },{ low = 1 }'])) == [
        "balanced", "balanced(over=batch)", "{ low = 1 }",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="a value stands twice"):
        variants(['a.b=balanced,{ name = "balanced" }'])


@pytest.mark.parametrize("text", ["objective", "objective.kl", "objective.kl=", "objective.kl=1,,2", "kl=1,2"])
def test_a_grid_that_cannot_be_read(text):
    with pytest.raises(ConfigError, match=r"must be section\.key=value,value"):
        variants([text])


@pytest.mark.parametrize("key", ["train.seed", "train.out"])
def test_what_a_comparison_sets_itself_cannot_vary(key):
    with pytest.raises(ConfigError, match=rf"{key} is compare's own; --(seeds|out) says"):
        variants([f"{key}=1,2"])


def test_the_latex_is_escaped_and_marks_the_best():
    found = [Variant("a_b & c", [0.5, 0.5], [0.5, 0.5]), Variant("d", [0.6, 0.6], [0.6, 0.6])]
    text = study.latex(found, "acc@8")
    assert r"a\_b \& c & 50.0" in text
    assert r"d & \textbf{60.0}" in text


class InThisProcess:
    """Stands in for the process of a run, which would spend most of its time on importing torch."""

    returncode = 0

    def __init__(self, arguments: list[str]) -> None:
        assert arguments[0] == "train"
        cli.main(arguments)

    def poll(self) -> int:
        return self.returncode


@pytest.fixture(params=[0, pytest.param(1, marks=pytest.mark.long)])
def started(monkeypatch, request):
    """Commands of the runs that were started; the first `param` of them have processes of their own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    fork, started = ForkServer.start, []

    def start(server, arguments, log):
        started.append(arguments)
        return fork(server, arguments, log) if len(started) <= request.param else InThisProcess(arguments)

    monkeypatch.setattr(ForkServer, "start", start)
    return started


@pytest.mark.parametrize(
    ("vary", "seeds", "said"),
    [
        ("token", 1, "1 variant × 1 seed, 60 steps each; nothing to compare it with: --vary takes several values\n"),
        ("token,balanced", 2, "2 variants × 2 seeds, 60 steps each\n"),
    ],
)
def test_what_is_about_to_be_trained_is_said_first(tmp_path, monkeypatch, capsys, vary, seeds, said):
    monkeypatch.setattr(study, "train_all", lambda configs, console, jobs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        study.compare(None, [f"objective.aggregation={vary}"], seeds, tmp_path, "acc@8", 0, ["--train.steps", "60"])
    assert capsys.readouterr().out.startswith(said)


def test_a_whole_comparison_and_again(tmp_path, started, monkeypatch, capsys):
    small = {
        "model.name": make_model(tmp_path / "model"), "model.device": "cpu", "train.steps": 2, "train.threads": 1,
        "rollout.prompts": 4, "rollout.group_size": 4, "rollout.max_tokens": 12, "log.terminal": "false",
        "optim.lr": "auto", "task.chat": "auto",  # what the run settles, and writes into its own config.toml
        "eval.every": 2, "eval.per_level": 1, "eval.samples": 2,
    }  # fmt: skip
    overrides = [part for key, value in small.items() for part in (f"--{key}", str(value))]
    out = tmp_path / "c"

    def compare(metric: str) -> None:
        study.compare(None, ["objective.aggregation=token,balanced"], 2, out, metric, 0, overrides)

    compare("acc@2")
    assert len(started) == 4
    rows = list(csv.DictReader((out / "table.csv").open()))
    assert [(r["variant"], r["seed"]) for r in rows] == [(v, s) for v in ("token", "balanced") for s in "01"]
    results = json.loads((out / "results.json").read_text())
    last = {v: [float(r["last"]) for r in rows if r["variant"] == v] for v in ("token", "balanced")}
    assert {v["name"]: v["last"] for v in results["variants"]} == last
    assert "detectable" in capsys.readouterr().out
    assert (out / "report.html").stat().st_size > 10_000
    before = {p: p.stat().st_mtime_ns for p in out.glob("*/*/metrics.jsonl")}
    assert len(before) == 4
    compare("acc@2")
    assert len(started) == 4
    assert {p: p.stat().st_mtime_ns for p in out.glob("*/*/metrics.jsonl")} == before
    with pytest.raises(ConfigError, match="acc@9: no evaluation has such a number"):
        compare("acc@9")
    (out / "report.html").unlink()
    (out / "report.html").mkdir()  # what cannot be written is an error still
    with pytest.raises(ReportError, match="is a folder"):
        compare("acc@2")
    monkeypatch.setattr("equipoise.report.page.MOST_APART", 1)  # more variants than a page can tell apart
    (out / "table.md").unlink()
    compare("acc@2")
    assert "no report: 2 variants: a page can tell at most 1 apart" in capsys.readouterr().out
    assert (out / "table.md").exists()


def test_a_folder_in_use_is_refused_with_the_commands_own_flag(tmp_path, started):
    """Before the log of the run that has it is written over."""
    taken = RunFolder(tmp_path / "c" / "token" / "seed-0")
    taken.lock()
    log = tmp_path / "c" / "token" / "seed-0.log"
    log.write_text("step 1\n")
    with pytest.raises(RunError, match=r"in use by another run \(process \d+\); choose another directory with --out,"):
        study.compare(None, ["objective.aggregation=balanced,token"], 1, tmp_path / "c", "acc@8", 1, [])
    taken.unlock()
    assert started == []
    assert log.read_text() == "step 1\n"


@pytest.mark.parametrize(
    ("metric", "options", "said"),
    [
        ("acc@9", [], 'did you mean "acc@8"? (acc@8, best@8, pass@2, pass@4, maj@8, greedy, reward, length,'),
        ("accuracy/mean", [], "use one of (acc@8,"),
        ("greedy", ["--eval.greedy", "false"], "use one of (acc@8,"),
        ("gaming/greedy", ["--eval.greedy", "false"], "use one of (acc@8,"),
        ("probe/entropy", [], "no evaluation has such a number (with eval.probe = true); use one of"),
        ("probe/entropi", ["--eval.probe", "true"], "use one of"),
        ("acc@8", ["--eval.samples", "4"], 'did you mean "acc@4"?'),
    ],
)
def test_a_metric_that_no_run_will_have_is_refused_before_any_is_trained(tmp_path, started, metric, options, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as refused:
        study.compare(None, ["objective.aggregation=token,balanced"], 2, tmp_path / "c", metric, 1, options)
    assert str(refused.value).startswith(f"--metric {metric}: no evaluation has such a number")
    assert started == []
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("metric", [*accuracies(8, greedy=True), *study.MEASURED, *study.JUDGED])
def test_metrics_of_an_evaluation_are_let_through(metric):
    study.check_metric(metric, Config())
    assert meaning("eval.jsonl", metric)


@pytest.mark.parametrize("metric", ["probe/shared/entropy", "probe/answers/drift", "start/to-25"])
def test_metrics_of_the_probe_are_let_through_with_it(metric):
    probed = Config()
    probed.eval.probe = True
    study.check_metric(metric, probed)


def test_the_default_metric_is_the_configurations():
    assert study.default_metric(None, ["--eval.samples", "4"]) == "acc@4"


def run_with(folder, scores, **probe):
    folder.mkdir()
    lines = [{"step": 10 * k, "acc@8": score, **probe} for k, score in enumerate(scores)]
    (folder / "eval.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "metrics.jsonl").write_text('{"step": 1, "entropy": 0.5, "drift/shared_contexts/last_update": 0.002}\n')
    return read(folder, folder.name)


def test_a_number_that_a_run_might_have_had_and_has_not_is_an_error(tmp_path):
    """No vote where rewards are numbers: known only when the run has answered."""
    run_with(tmp_path / "a", [0.2, 0.4], reward=0.5)
    with pytest.raises(ConfigError, match=r"--metric maj@8: .*eval.jsonl has no such number \(acc@8, reward\)"):
        study._variant("a", [RunFolder(tmp_path / "a")], "maj@8")


def test_the_measures_of_each_variant_are_told_over_its_seeds(tmp_path):
    runs = [
        run_with(tmp_path / "a0", [0.2, 0.4, 0.6], **{"probe/answers/drift": 1.0}),
        run_with(tmp_path / "a1", [0.2, 0.6, 0.6], **{"probe/answers/drift": 2.0}),
        run_with(tmp_path / "b0", [0.2, 0.5, 0.4]),
    ]
    found = [
        Variant("a", [0.6, 0.6], [0.6, 0.6], "acc@8", runs[:2]),
        Variant("b", [0.4], [0.5], "acc@8", runs[2:]),
    ]
    record = json.loads(study.as_json(found, [], "acc@8", "words"))
    assert record["score"] == 0.5
    a, b = record["variants"]
    assert a["steps_to_score"] == pytest.approx([15, 7.5])
    assert b["steps_to_score"] == [10]
    assert a["jitter"] == pytest.approx([0, 0.4 / 6**0.5], abs=1e-12)
    assert (a["log_odds_drift"], b["log_odds_drift"]) == ([1.0, 2.0], [None])
    assert (b["context_drift"], b["entropy"], b["answer_entropy"]) == ([0.002], [0.5], [None])
    heads, rows = study.stability_rows(found)
    assert heads == ["variant", "steps to 50.0", "jitter (points)", "shared drift ×10³", "log-odds drift", "entropy"]
    assert rows[0][:2] == ["a", "11"]  # the median of 15 and 7.5
    assert [row[4] for row in rows] == ["1.50", "–"]
    assert f"| {' | '.join(heads)} |" in study.markdown(found, [], "acc@8", "words")

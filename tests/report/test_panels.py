import json
import statistics

import numpy as np
import pytest

from equipoise.report.meanings import BIAS
from equipoise.report.over_seeds import sentences
from equipoise.report.panels import panels, points
from equipoise.report.runs import read
from equipoise.report.summary import peak, signed, summary
from tests.report.folders import make_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    kinds = {"token": ("token", None), "balanced": ("balanced", None), "hadw": ("balanced", "hadw")}
    return [
        read(make_run(folder / name, steps=30, aggregation=rule, difficulty=difficulty, groups=6, size=8), name)
        for name, (rule, difficulty) in kinds.items()
    ]


@pytest.fixture(scope="module")
def page(runs):
    return {p["id"]: p for p in panels(runs)}


def figure(page, panel, id):
    return next(f for f in page[panel]["figures"] if f["id"] == id)


def cell(page, run, column):
    table = page["summary"]["table"]
    return table["rows"][run]["cells"][table["columns"].index(column) - 1]["text"]


def test_every_panel_is_there_and_is_plain_json(page):
    wanted = [
        "summary", "held-out", "training", "drift", "stability", "lengths", "bias", "difficulty", "entropy", "others",
    ]  # fmt: skip
    assert list(page) == wanted
    json.dumps(page, allow_nan=False)


def test_the_summary_says_what_the_logs_say(page, runs):
    losses = runs[0].metrics["policy_loss"]
    error = statistics.stdev(losses) / len(losses) ** 0.5
    assert cell(page, 0, "loss ×10³") == f"{signed(1e3 * statistics.fmean(losses), 1)} ±{2e3 * error:.1f}"
    assert cell(page, 1, "loss ×10³").startswith("0.0 ±0.0")
    assert cell(page, 0, "acc@8 start") == "30.0"
    assert cell(page, 0, "peak") == "80.0 at 30"
    assert cell(page, 0, "last") == "80.0 ±5.0"
    assert cell(page, 0, "greedy") == "30.0→80.0"
    assert cell(page, 0, "time") == "1 min 00 s"
    assert page["summary"]["table"]["rows"][2]["below"] == "dapo · hadw · balanced"


def test_an_unfinished_run_says_how_far_it_is(tmp_path):
    path = make_run(tmp_path / "run", steps=10)
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:4]))
    page = {p["id"]: p for p in panels([read(path, "run")])}
    assert cell(page, 0, "steps") == "4 of 10"


def test_peak_is_the_best_evaluation_and_the_drop_what_was_lost(tmp_path):
    (tmp_path / "config.toml").write_text("")
    values = [0.2, 0.5, 0.7, 0.7, 0.4]
    lines = [{"step": 10 * i, "acc@8": v, "interval": {"acc@8": [v - 0.1, v + 0.1]}} for i, v in enumerate(values)]
    (tmp_path / "eval.jsonl").write_text("".join(json.dumps(e) + "\n" for e in lines))
    found = peak(read(tmp_path, "run"), "acc@8")
    assert (found["start"], found["peak"], found["peak_step"], found["last"]) == (0.2, 0.7, 20, 0.4)
    assert found["drop"] == pytest.approx(0.3)
    assert (found["low"], found["high"]) == pytest.approx((0.3, 0.5))


def test_loss_drift_is_summed_and_only_where_signs_and_lengths_are_coupled(page, runs):
    total = figure(page, "drift", "policy_loss/sum")["lines"]
    for line, run in zip(total, runs, strict=True):
        assert line["y"] == pytest.approx(np.cumsum(run.metrics["policy_loss"]).tolist(), rel=1e-5, abs=1e-6)
    assert abs(total[0]["y"][-1]) > 0.1
    assert max(map(abs, total[1]["y"])) < 1e-9


def test_held_out_lines_carry_their_intervals(page, runs):
    lines = figure(page, "held-out", "eval/acc@8")["lines"]
    assert lines[0]["x"] == [0, 5, 10, 15, 20, 25, 30]
    assert lines[0]["y"] == pytest.approx([e["acc@8"] for e in runs[0].evaluations], rel=1e-5)
    low, high = (np.array(lines[0][k]) for k in ("low", "high"))
    assert high - low == pytest.approx(0.1, abs=1e-4)


def test_a_single_evaluation_is_not_drawn_on_a_scale_of_hundredths_of_a_point(page):
    assert figure(page, "held-out", "eval/acc@8")["span"] == 0.05


def test_peak_and_last_has_every_metric_and_level(page):
    rows = figure(page, "held-out", "peaks")["rows"]
    labels = ["acc@8", "best@8", "greedy", "acc@8, level 1", "acc@8, level 2"]
    assert [r["label"] for r in rows] == labels
    assert rows[4]["marks"][0] == {"run": 0, "peak": 0.4, "last": 0.4, "drop": 0.0, "peak_step": 30}


def test_every_bias_metric_has_its_row_its_figure_and_its_sentences(page, runs):
    logged = {m for run in runs for m in run.metrics if m.startswith("bias/")}
    assert {f["id"] for f in page["bias"]["figures"]} == logged <= set(BIAS)
    assert all(f["sentence"] and f["means"].startswith("0 means: ") for f in page["bias"]["figures"])
    table = page["bias"]["table"]
    assert [f"bias/{r['head']}" for r in table["rows"]] == [m for m in BIAS if m in logged]
    balance = table["rows"][0]["cells"]
    mean = statistics.fmean(runs[0].metrics["bias/mass_balance"])
    assert balance[0]["text"] == f"{mean:.3f}".replace("-", "−")
    assert balance[1] == {"text": "0.000", "bar": pytest.approx(0.0, abs=1e-6)}
    for row in table["rows"]:
        assert max(abs(c["bar"]) for c in row["cells"]) in (0.0, 1.0)


def test_a_measure_of_another_version_is_still_shown(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "bias/new": 0.5, "novel": 2}\n')
    page = {p["id"]: p for p in panels([read(tmp_path, "run")])}
    assert page["bias"]["table"]["rows"][0]["cells"][0]["text"] == "0.500"
    assert page["others"]["figures"][0]["lines"][0]["y"] == [2.0]


def test_every_logged_metric_is_somewhere(page, runs):
    everywhere = {f.get("id") for p in page.values() for f in p.get("figures", [])}
    titles = {t for p in page.values() for t in p.get("still", [])}
    for metric in runs[2].metrics:
        assert metric in everywhere or metric == "clip_ratio/high"
    assert "Clipped upwards" in titles


def test_only_runs_with_difficulty_have_weights(page):
    figures = page["difficulty"]["figures"]
    assert [f["id"] for f in figures] == ["difficulty/anchor", "difficulty/positive", "difficulty/negative"]
    assert all([line["run"] for line in f["lines"]] == [2] for f in figures)


def test_a_long_run_is_thinned_and_says_so(tmp_path):
    with open(tmp_path / "metrics.jsonl", "w") as f:
        for step in range(1, 3001):
            f.write(json.dumps({"step": step, "reward/mean": step / 3000}) + "\n")
    run = read(tmp_path, "run")
    page = {p["id"]: p for p in panels([run])}
    line = figure(page, "training", "reward/mean")["lines"][0]
    assert len(line["y"]) == points([run]) == 500
    assert line["faint"] == pytest.approx(np.arange(1, 3001).reshape(-1, 6).mean(1) / 3000, rel=1e-5)
    assert "the mean of 6 steps" in page["training"]["sentence"]
    assert "running mean of 60 steps" in page["training"]["sentence"]  # ten points of the curve
    assert line["y"][-1] == pytest.approx(np.arange(2941, 3001).mean() / 3000, rel=1e-5)


def test_steps_without_a_finite_number_are_counted(tmp_path):
    values = ["0.5", "NaN", "null", "Infinity", "0.25"]
    lines = [f'{{"step": {i}, "reward/mean": {v}, "entropy": 1.0}}\n' for i, v in enumerate(values, 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    page = {p["id"]: p for p in panels([read(tmp_path, "run")])}
    assert figure(page, "training", "reward/mean")["holes"] == "No finite number at 3 of 5 steps."
    assert figure(page, "entropy", "entropy")["holes"] == ""


def test_a_loss_that_is_not_finite_is_named_above_the_summary(tmp_path, runs):
    """Its mean is of the other steps, and looks as calm as theirs."""
    losses = ["0.5", "NaN", "null", "0.25"]
    lines = [f'{{"step": {i}, "policy_loss": {v}}}\n' for i, v in enumerate(losses, 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    broken = read(tmp_path, "broken")
    said = "Steps without a finite loss: broken (2 of 4). "
    assert summary([runs[0], broken])["sentence"].startswith(said)
    assert sentences([runs[0], broken], 2)["summary"].startswith(said)
    assert "finite" not in summary(runs)["sentence"]


def test_runs_of_different_length_say_the_range_of_their_windows(tmp_path):
    runs = []
    for name, steps in (("short", 30), ("long", 3000)):
        (tmp_path / name).mkdir()
        lines = [json.dumps({"step": i, "reward/mean": 0.5}) + "\n" for i in range(1, steps + 1)]
        (tmp_path / name / "metrics.jsonl").write_text("".join(lines))
        runs.append(read(tmp_path / name, name))
    page = {p["id"]: p for p in panels(runs)}
    assert "running mean of 10 to 60 steps" in page["training"]["sentence"]


def test_a_run_that_has_only_begun_has_a_page(tmp_path):
    (tmp_path / "config.toml").write_text("[train]\nsteps = 5\n")
    assert [p["id"] for p in panels([read(tmp_path, "run")])] == ["summary"]


def test_what_looks_like_gaming_is_named_with_the_step_and_the_threshold(tmp_path):
    with open(tmp_path / "metrics.jsonl", "w") as f:
        for step in range(1, 21):
            said = {"gaming/divergence": 0.0 if step < 11 else 0.5, "gaming/copied": 0.0, "rewards/f/mean": 0.25}
            f.write(json.dumps({"step": step, **said, "rewards/f/crashed": 0.5, "rewards/f/timeout": 0.0}) + "\n")
    (tmp_path / "eval.jsonl").write_text('{"step": 0, "gaming/greedy": 0.75}\n{"step": 20, "gaming/greedy": 0.5}\n')
    page = {p["id"]: p for p in panels([read(tmp_path, "run")])}
    rows = {row["head"]: row["cells"][0]["text"] for row in page["gaming"]["table"]["rows"]}
    assert rows == {"divergence": "from step 13", "copied": "never"}  # the mean of ten steps passes 0.1 with the third
    assert figure(page, "gaming", "gaming/divergence")["means"] == "Warned of above 0.1."
    assert figure(page, "gaming", "gaming/greedy")["lines"][0]["y"] == [0.75, 0.5]
    rows = {row["head"]: row["cells"][0]["text"] for row in page["functions"]["table"]["rows"]}
    assert rows == {
        "f: mean reward": "0.250",
        "f: crashed": "0.500",
        "f: timed out": "0.000",
        "f: no answer found": "–",
    }
    assert "f: timed out" in page["functions"]["still"]


def test_figure_3_is_of_lengths_within_groups(page, runs):
    """Not of the batch's, in which lengths also differ because prompts do."""
    for name in ("group_length_cv", "group_length_gap"):
        shown = figure(page, "lengths", f"lengths/bias/{name}")["lines"]
        within, batch = runs[0].metrics[f"bias/{name}"], runs[0].metrics[f"bias/{name.removeprefix('group_')}"]
        assert within != batch
        assert shown[0]["faint"] == pytest.approx(within, abs=1e-3)

"""Variants over seeds: which runs belong together, and every mean and interval against scipy, computed another way."""

import json
import re

import numpy as np
import pytest
from scipy import stats

from equipoise.report.page import data
from equipoise.report.runs import find, names, read
from equipoise.report.variants import aligned, variants
from tests.report.folders import make_run

SEEDS = 3
RULES = ("token", "balanced")


def make_seeds(folder, rule, seed, steps=12):
    """A run whose evaluations shake, as those of real seeds do."""
    run = make_run(folder / rule / f"seed-{seed}", steps=steps, seed=seed, aggregation=rule)
    draw = np.random.default_rng([seed, len(rule)])
    lines = [json.loads(line) for line in (run / "eval.jsonl").read_text().splitlines()]
    for line in lines:
        shift = float(draw.normal(0, 0.03))
        line.update({k: line[k] + shift for k in ("acc@8", "best@8", "greedy")})
    (run / "eval.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    for rule in RULES:
        for seed in range(SEEDS):
            make_seeds(folder, rule, seed)
    return folder


@pytest.fixture(scope="module")
def runs(folder):
    paths = find([folder])
    return [read(path, name) for path, name in zip(paths, names(paths), strict=True)]


@pytest.fixture(scope="module")
def page(folder):
    return data(find([folder]))


def panel(page, id):
    return next(p for p in page["variants"]["panels"] if p["id"] == id)


def student(values):
    """Mean and interval as scipy's one-sample t-test has them."""
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    return np.mean(values), low, high


def test_a_folder_of_variants_of_seeds_is_found_and_named_by_its_folders(folder, runs):
    found = variants(runs)
    assert [run.name for run in runs][:2] == ["balanced/seed-0", "balanced/seed-1"]
    assert [(v.name, v.runs) for v in found] == [("balanced", [0, 1, 2]), ("token", [3, 4, 5])]


def test_runs_side_by_side_are_named_by_what_differs(tmp_path):
    for k, (rule, seed) in enumerate([("token", 3), ("balanced", 1), ("token", 0)]):
        make_run(tmp_path / f"run-{k}", steps=2, seed=seed, aggregation=rule)
    found = variants([read(p, p.name) for p in find([tmp_path])])
    assert [(v.name, v.runs) for v in found] == [("aggregation=token", [2, 0]), ("aggregation=balanced", [1])]


def test_seeds_in_folders_of_their_own_are_still_one_variant(tmp_path):
    paths = [make_run(tmp_path / f"{k}" / "run", steps=2, seed=k) for k in range(2)]
    (found,) = variants([read(p, str(p)) for p in paths])
    assert (found.name, found.runs) == ("all runs", [0, 1])


def test_what_is_no_second_seed_is_no_variant(tmp_path):
    same = [make_run(tmp_path / name, steps=2, seed=5) for name in ("a", "b")]
    assert variants([read(p, p.name) for p in same]) == []  # a repetition draws nothing anew
    other = make_run(tmp_path / "c", steps=2, seed=6)
    found = variants([read(p, p.name) for p in (*same, other)])
    assert [v.runs for v in found] == [[0, 2], [1]]
    assert len({v.name for v in found}) == 2
    for path in (*same, other):
        (path / "config.toml").unlink()
    assert variants([read(p, p.name) for p in (*same, other)]) == []
    assert "variants" not in data(same)


def test_an_option_besides_the_seed_makes_another_variant(tmp_path):
    paths = [make_run(tmp_path / str(k), steps=2, seed=k) for k in range(2)]
    text = (paths[1] / "config.toml").read_text()
    (paths[1] / "config.toml").write_text(text.replace("kl = 0.0", "kl = 0.1"))
    assert variants([read(p, p.name) for p in paths]) == []
    (paths[1] / "config.toml").write_text(text.replace('"elsewhere"', '"another"') + '\n[log]\nname = "mine"\n')
    assert len(variants([read(p, p.name) for p in paths])) == 1


def test_a_curve_is_the_mean_over_seeds_and_its_band_students_interval(page, runs):
    figures = {f["id"]: f for p in page["variants"]["panels"] for f in p.get("figures", [])}
    single = {f["id"]: f for p in page["panels"] for f in p.get("figures", [])}
    assert set(figures) == set(single)
    for id in ("eval/acc@8", "reward/mean", "policy_loss/sum", "bias/mass_balance"):
        for i, line in enumerate(figures[id]["lines"]):
            seeds = np.array([each["y"] for each in single[id]["lines"] if each["run"] // SEEDS == i])
            assert len(seeds) == SEEDS
            assert figures[id]["band"]
            for k, values in enumerate(seeds.T):
                expected = student(values) if np.ptp(values) else (values[0],) * 3
                got = (line["y"][k], line["low"][k], line["high"][k])
                assert got == pytest.approx(expected, rel=1e-4, abs=1e-6)
    accuracy = figures["eval/acc@8"]["lines"][0]
    logged = [[e["acc@8"] for e in run.evaluations] for run in runs[:SEEDS]]
    assert accuracy["x"] == [0, 5, 10]
    assert accuracy["y"] == pytest.approx(np.mean(logged, axis=0), rel=1e-5)


def test_the_summary_has_a_row_per_variant_with_its_interval(page, runs):
    table = panel(page, "summary")["table"]
    assert table["columns"][:3] == ["variant", "seeds", "steps"]
    for i, row in enumerate(table["rows"]):
        cells = dict(zip(table["columns"][1:], (c["text"] for c in row["cells"]), strict=True))
        group = runs[SEEDS * i : SEEDS * (i + 1)]
        mean, low, _ = student([run.evaluations[-1]["acc@8"] for run in group])
        assert cells["seeds"] == "3"
        assert cells["last"] == f"{100 * mean:.1f} ±{100 * (mean - low):.1f}"
        greedy = [np.mean([run.evaluations[k]["greedy"] for run in group]) for k in (0, -1)]
        assert cells["greedy"].startswith(f"{100 * greedy[0]:.1f}→{100 * greedy[1]:.1f} ±")
        tops = [max(e["acc@8"] for e in run.evaluations) for run in group]
        assert cells["peak"].startswith(f"{100 * np.mean(tops):.1f} ±")


def test_differences_are_scipys_paired_test(page, runs):
    balanced, token = ([run.evaluations[-1]["acc@8"] for run in runs[k : k + 3]] for k in (0, 3))
    reference = stats.ttest_rel(token, balanced)
    low, high = (100 * x for x in reference.confidence_interval())
    (row,) = panel(page, "differences")["table"]["rows"]
    texts = [c["text"].replace("−", "-") for c in row["cells"]]
    assert row["head"] == "token − balanced"
    assert texts[0] == f"{100 * np.mean(np.subtract(token, balanced)):+.1f}"
    assert texts[1] == f"{low:+.1f} to {high:+.1f}"
    assert texts[2:5] == [f"{reference.pvalue:.2g}", f"{reference.pvalue:.2g}", "3"]
    assert re.search(r"\d+ seeds would be needed to see 1 point", panel(page, "differences")["sentence"])


def test_biases_are_means_over_steps_and_seeds(page, runs):
    table = panel(page, "bias")["table"]
    assert table["columns"] == ["mean over all steps", "balanced", "token"]
    row = next(r for r in table["rows"] if r["metric"] == "bias/mass_balance")
    mean, low, _ = student([np.mean(run.metrics["bias/mass_balance"]) for run in runs[SEEDS:]])
    text = row["cells"][1]["text"].replace("−", "-")
    assert text == f"{mean:.3f} ±{mean - low:.3f}"
    assert abs(row["cells"][1]["bar"]) == 1.0


def test_the_hack_watch_counts_the_seeds_that_crossed(tmp_path):
    for seed, crossed in enumerate((3, 20, None)):
        run = make_run(tmp_path / "gamed" / f"seed-{seed}", steps=24, seed=seed)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            line["gaming/divergence"] = 1.0 if crossed and line["step"] >= crossed else 0.0
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = data(find([tmp_path]))
    (row,) = panel(page, "gaming")["table"]["rows"]
    assert row["cells"] == [{"text": "2 of 3 seeds, from step 3"}]  # the mean of the first three steps is a third


def test_a_seed_that_is_behind_does_not_bend_the_mean(tmp_path):
    """Only steps that all begun seeds have: else the mean would jump where one ends."""
    for seed, steps in enumerate((12, 7)):
        make_seeds(tmp_path, "token", seed, steps)
    (tmp_path / "token" / "seed-2").mkdir()
    text = (tmp_path / "token" / "seed-0" / "config.toml").read_text().replace("seed = 0", "seed = 2")
    for seed in range(3):
        (tmp_path / "token" / f"seed-{seed}" / "config.toml").write_text(text.replace("seed = 2", f"seed = {seed}"))
    paths = find([tmp_path])
    read_runs = [read(p, p.name) for p in paths]
    assert [len(run.steps) for run in aligned(read_runs, variants(read_runs))] == [7, 7, 0]
    page = data(paths)
    assert page["variants"]["runs"][0]["steps"] == list(range(1, 8))
    reward = next(f for f in panel(page, "training")["figures"] if f["id"] == "reward/mean")["lines"][0]
    assert len(reward["y"]) == 7
    assert page["runs"][0]["steps"] == list(range(1, 13))  # the single runs are whole
    steps = panel(page, "summary")["table"]["rows"][0]["cells"][1]["text"]
    assert steps == "7 of 12 / 0 of 12"


def test_single_runs_keep_their_variants_colour_and_a_dash_of_their_own(page):
    looks = [run["look"] for run in page["runs"]]
    assert [look % 8 for look in looks] == [0, 0, 0, 1, 1, 1]
    dashes = [(look % 8, (look + look // 8) % 8) for look in looks]
    assert len(set(dashes)) == len(dashes)
    assert page["title"] == "2 variants, 6 runs"


def test_it_is_plain_json(page):
    assert json.loads(json.dumps(page, allow_nan=False)) == page

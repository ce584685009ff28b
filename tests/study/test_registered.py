"""Studies written down beforehand: what is refused, what is trained, shown and verified."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from equipoise import cli
from equipoise.study import dose_figure, effects, plan, registered, results
from equipoise.study.dose_figure import figure
from equipoise.train import ConfigError, Interrupted, RunFolder
from equipoise.train.folder import append

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "studies").glob("*.toml"))

SMALL = """
question = "Does it matter?"
seeds = [5, 8]
[config.train]
steps = 4
[variants.token]
"objective.aggregation" = { name = "token", over = "group" }
[variants.balanced]
"objective.aggregation" = "balanced"
[[primary]]
claim = "the hardest level"
metric = "level/5/acc@8"
plus = "balanced"
minus = "token"
[[primary]]
claim = "all levels"
metric = "acc@8"
plus = "balanced"
minus = "token"
"""


@pytest.fixture
def study(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    return plan.read(file)


def leave_runs(study, out, values, steps=4):
    """What `equipoise train` would leave: an evaluation at the start and one at the end; values[name][seed]."""
    configs = {}
    for name in study.variants:
        for seed, value in values[name].items():
            config = study.one(name, seed, out / name / f"seed-{seed}")
            folder = RunFolder(config.train.out)
            folder.path.mkdir(parents=True)
            for step in (0, steps):
                numbers = {"acc@8": value * step / steps, "by_level": {"5": {"acc@8": value / 2}}}
                append(folder.eval, {"step": step, **numbers})
            configs[f"{name}/seed-{seed}"] = config
    return configs


def drawn(study, seeds, draw):
    return {name: dict(zip(seeds, draw.uniform(0.4, 0.6, len(seeds)).tolist(), strict=True)) for name in study.variants}


def test_the_tests_are_scipys_and_holms(study, tmp_path):
    values = drawn(study, range(5, 9), np.random.default_rng(0))
    found = results.collect(study, leave_runs(study, tmp_path, values), {})
    hardest, overall = effects.effects(found)
    pairs = [[values[name][seed] for seed in range(5, 9)] for name in ("balanced", "token")]
    reference = stats.ttest_rel(*pairs)
    assert overall.p == pytest.approx(reference.pvalue, abs=1e-5)
    assert overall.mean == pytest.approx(np.mean(pairs[0]) - np.mean(pairs[1]), abs=1e-6)
    assert hardest.mean == pytest.approx(overall.mean / 2, abs=1e-6)
    assert overall.holm == pytest.approx(min(1, 2 * overall.p), abs=1e-5)


def test_results_are_read_as_they_were_written(study, tmp_path):
    found = results.collect(study, leave_runs(study, tmp_path, drawn(study, [5, 6], np.random.default_rng(1))), {})
    results.write_results(found, tmp_path / "results.json")
    assert results.read_results(tmp_path / "results.json") == found
    assert plan.parse({k: v for k, v in found.items() if k != "runs"}, "") == study


def test_only_seeds_that_both_have_finished_count(study, tmp_path):
    values = {name: dict.fromkeys(range(5, 9), 0.5) for name in study.variants}
    configs = leave_runs(study, tmp_path, values)
    (tmp_path / "token" / "seed-6" / "eval.jsonl").write_text('{"step": 0, "acc@8": 0.1}\n')  # stopped half way
    found = results.collect(study, configs, {"balanced/seed-8": "it diverged"})
    assert [effect.seeds for effect in effects.effects(found)] == [2, 2]
    assert found["runs"]["balanced/seed-8"] == {"failed": "it diverged"}
    assert sorted(results.finished(found, "token")) == [5, 7, 8]


DOSED = """
question = "Does more do more?"
seeds = [5, 9]
rates = [1e-4, 1e-3]
[config.train]
steps = 4
[config.optim]
lr = 1e-3
[dose]
option = "objective.aggregation"
key = "strength"
with = { name = "balanced" }
values = [-2, 0, 1]
[[primary]]
claim = "the dose helps"
metric = "acc@8"
expect = "up"
margin = 0.1
"""


@pytest.fixture
def dosed(tmp_path):
    file = tmp_path / "dosed.toml"
    file.write_text(DOSED)
    return plan.read(file)


def test_a_dose_is_a_variant_for_each_value(dosed, tmp_path):
    configs = dosed.configs(tmp_path)
    assert list(configs)[:4] == [
        "strength=-2/seed-5", "strength=0/seed-5", "strength=1/seed-5", "strength=-2@0.0001/seed-5",
    ]  # fmt: skip
    assert configs["strength=-2/seed-5"].objective.aggregation == {"name": "balanced", "strength": -2.0}
    assert configs["strength=0@0.0001/seed-7"].optim.lr == 1e-4
    assert configs["strength=0/seed-7"].optim.lr == 1e-3


def test_the_effect_of_a_dose_is_the_mean_of_the_seeds_slopes(dosed, tmp_path):
    draw = np.random.default_rng(2)
    values = {
        dosed.dose.variant(d): {seed: 0.5 + 0.02 * d + draw.normal(0, 0.003) for seed in range(5, 10)}
        for d in dosed.dose.values
    }
    del values["strength=0"][9]  # that seed is not whole
    found = results.collect(dosed, leave_runs(dosed, tmp_path, values), {})
    (effect,) = effects.effects(found)
    slopes = [
        3 * stats.linregress([-2, 0, 1], [values[dosed.dose.variant(d)][seed] for d in (-2, 0, 1)]).slope
        for seed in range(5, 9)
    ]
    reference = stats.ttest_1samp(slopes, 0)
    assert effect.seeds == 4
    assert effect.mean == pytest.approx(np.mean(slopes), abs=1e-5)
    assert effect.p == pytest.approx(reference.pvalue, rel=1e-2)
    interval = reference.confidence_interval(0.95)
    assert (effect.low, effect.high) == pytest.approx((interval.low, interval.high), abs=1e-5)
    assert effect.verdict == "confirmed, smaller than 10 points"
    drawing = figure(found)
    assert drawing.count('class="mean"') == 3
    assert drawing.count('class="bar"') == 3
    assert "mean of 4 seeds" in drawing
    assert drawing.index('<rect class="paper"') < drawing.index("<g ")  # legible on a page of the other theme
    assert ">−2</text>" in drawing
    assert ">-" not in drawing


@pytest.mark.parametrize(("low", "high"), [(54.4, 64.3), (-0.62, -0.51), (0.09, 0.137), (3.0, 3.0), (92.0, 100.0)])
def test_ticks_are_round_and_enclose_what_is_drawn(low, high):
    ticks = dose_figure._ticks(low, high)
    assert ticks[0] <= low + 1e-9
    assert ticks[-1] >= high - 1e-9
    assert 2 <= len(ticks) <= 7
    digits = dose_figure._digits(ticks[1] - ticks[0])
    assert all(float(f"{tick:.{digits}f}") == pytest.approx(tick) for tick in ticks)  # nothing is rounded away


def test_the_top_of_a_bend_is_where_no_test_can_tell_the_slope_from_0():
    """Fieller's interval against t-tests of the seeds' derivatives, dose by dose."""
    doses, draw = [-0.6, -0.3, 0.0, 0.3, 0.6], np.random.default_rng(4)
    outcomes = np.array([[2 * d - 3 * d**2 + draw.normal(0, 0.3) for d in doses] for _ in range(7)])
    top = effects.top_of(outcomes, doses)
    fits = np.polyfit(doses, outcomes.T, 2)
    assert top.at == pytest.approx(-fits[1].mean() / (2 * fits[0].mean()))
    for dose in np.linspace(top.low - 0.1, top.high + 0.1, 40):
        inside = top.low < dose < top.high
        assert (stats.ttest_1samp(2 * fits[0] * dose + fits[1], 0).pvalue > 0.05) == inside
    assert not top.is_middle
    assert effects.top_of(-outcomes, doses) is None
    assert effects.top_of(draw.normal(0, 1, (4, 5)), doses) is None  # not sure of any curvature


def test_a_rise_that_flattens_is_not_called_a_middle_that_is_best(dosed, tmp_path, capsys):
    dosed.primary[0] = plan.Primary("a middle is best", "acc@8", shape="bend", expect="up")
    draw = np.random.default_rng(3)
    values = {
        dosed.dose.variant(d): {seed: 0.5 + 0.05 * d - 0.01 * d**2 + draw.normal(0, 0.0005) for seed in (5, 6, 7)}
        for d in dosed.dose.values
    }
    found = results.collect(dosed, leave_runs(dosed, tmp_path, values), {})
    (effect,) = effects.effects(found)
    assert effect.holm < 0.05
    assert effect.mean > 0
    assert effect.verdict == "bent, but the top is not in the middle"
    registered.show(found)
    assert "its top lies at 2." in capsys.readouterr().out
    results.write_results(found, tmp_path / "results.json")
    cli.main(["study", "show", str(tmp_path / "results.json"), "--figure", str(tmp_path / "dose.svg")])
    assert (tmp_path / "dose.svg").read_text() == figure(found)


def test_a_study_without_a_dose_has_nothing_to_draw(study, tmp_path):
    with pytest.raises(ConfigError, match="nothing to draw without a dose"):
        registered.draw(results.collect(study, {}, {}), tmp_path / "dose.svg")
    assert not (tmp_path / "dose.svg").exists()


@pytest.mark.parametrize("file", sorted((ROOT / "studies" / "results").glob("*.json")), ids=lambda file: file.stem)
def test_published_results_can_be_shown(file, capsys):
    registered.show(results.read_results(file))
    said = capsys.readouterr().out
    late = file.stem in ("coupling_again", "coupling_off_policy_again")
    assert ("Effects named before the runs" in said) is not late
    assert "failed" not in said


def test_a_bend_is_how_far_the_middle_lies_above_the_ends(dosed, tmp_path):
    dosed.primary[0] = plan.Primary("a middle is best", "acc@8", shape="bend", expect="up")
    parabola = {d: 0.7 + 0.01 * d - 0.02 * (d + 0.5) ** 2 for d in dosed.dose.values}
    values = {dosed.dose.variant(d): dict.fromkeys((5, 6, 7), value) for d, value in parabola.items()}
    (effect,) = effects.effects(results.collect(dosed, leave_runs(dosed, tmp_path, values), {}))
    middle = 0.7 - 0.005
    assert effect.mean == pytest.approx(middle - (parabola[-2] + parabola[1]) / 2, abs=1e-5)


@pytest.mark.parametrize(
    ("mean", "half", "holm", "expect", "margin", "said"),
    [
        (0.02, 0.01, 0.01, "up", None, "confirmed"),
        (0.02, 0.01, 0.01, "down", None, "refuted: the other way"),
        (0.02, 0.01, 0.01, "", None, "an effect"),
        (0.02, 0.03, 0.30, "up", 0.01, "undecided"),
        (0.001, 0.003, 0.30, "up", 0.005, "no effect as large as 0.5 points"),
    ],
)
def test_verdicts(mean, half, holm, expect, margin, said):
    row = plan.Primary("", "acc@8", expect=expect, margin=margin)
    assert effects.Effect(row, 9, mean, mean - half, mean + half, holm, holm, 5).verdict == said


def test_a_variants_own_rate_is_chosen_on_other_seeds():
    """At the low rate all seeds but one are better; that one must not keep itself from being taken there."""
    runs = {}
    for seed in range(4):
        high = 0.9 if seed == 0 else 0.3
        runs[f"a/seed-{seed}"] = {"steps": [0, 4], "curves": {"acc@8": [0.1, high]}}
        runs[f"a@0.0001/seed-{seed}"] = {"steps": [0, 4], "curves": {"acc@8": [0.1, 0.5]}}
    found = {"config": {"optim": {"lr": 1e-3}}, "rates": [1e-4, 1e-3], "runs": runs}
    own = results.values(found, "a", plan.Primary("", "acc@8", "a", "a", rate="own"))
    # Over the other seeds: for seed 0 the low rate (.5 > .3); for the others .5 against (.9 + .3 + .3)/3 = .5, a tie
    # that goes to the first rate.
    assert own == {0: 0.5, 1: 0.5, 2: 0.5, 3: 0.5}
    assert results.values(found, "a", plan.Primary("", "acc@8", "a", "a"))[0] == 0.9


def test_numbers_of_a_run_by_when_they_are_taken():
    record = {"steps": [0, 1, 2, 3], "curves": {"acc@8": [0.1, 0.2, 0.6, 0.4]}, "run": {"entropy": 0.25}}
    assert results.value_of(record, "acc@8", "last") == 0.4
    assert results.value_of(record, "acc@8", "mean") == pytest.approx(0.4)
    assert results.value_of(record, "run/entropy", "last") == 0.25
    bends = [0.1 - 0.4 + 0.6, 0.2 - 1.2 + 0.4]
    assert results.value_of(record, "acc@8", "jitter") == pytest.approx(math.sqrt(np.mean(np.square(bends)) / 6))
    for metric in ("run/entropi", "acc@9"):
        with pytest.raises(ConfigError, match="is not in the"):
            results.value_of(record, metric, "last")


def test_what_an_earlier_sitting_finished_is_kept_and_not_trained_again(study, tmp_path, monkeypatch):
    there, here = tmp_path / "there", tmp_path / "here"
    configs = leave_runs(study, there, drawn(study, [5, 6], np.random.default_rng(0)))
    found = results.collect(study, configs, {"token/seed-6": "no memory"})
    here.mkdir()
    results.write_results(found, here / "results.json")
    asked = []
    monkeypatch.setattr(registered, "train_all", lambda configs, *_, **__: asked.extend(configs) or {})
    registered.run([tmp_path / "small.toml"], here)
    finished = {"token/seed-5", "balanced/seed-5", "balanced/seed-6"}
    assert "token/seed-6" in asked
    assert finished.isdisjoint(asked)
    runs = results.read_results(here / "results.json")["runs"]
    assert {name: runs[name] for name in finished} == {name: found["runs"][name] for name in finished}


def test_what_is_finished_when_it_is_stopped_is_written_and_not_shown(study, tmp_path, monkeypatch, capsys):
    leave_runs(study, tmp_path / "out", {"token": {5: 0.5}, "balanced": {5: 0.6}})

    def stopped(*_, **__):
        raise Interrupted("stopped")

    monkeypatch.setattr(registered, "train_all", stopped)
    with pytest.raises(Interrupted):
        registered.run([tmp_path / "small.toml"], tmp_path / "out")
    written = results.read_results(tmp_path / "out" / "results.json")["runs"]
    assert written.keys() == {"token/seed-5", "balanced/seed-5"}
    assert "acc@8" not in capsys.readouterr().out


def test_without_two_whole_seeds_nothing_is_tested(study, tmp_path, capsys):
    configs = leave_runs(study, tmp_path, {"token": {5: 0.5}, "balanced": {}})
    registered.show(results.collect(study, configs, {}))
    said = capsys.readouterr().out
    assert said.count("not tested") == 2
    assert "nan" not in said
    assert "inf" not in said


def test_what_a_failed_run_said_is_shown_as_it_was_said(study, tmp_path, capsys):
    configs = leave_runs(study, tmp_path, {"token": {5: 0.5}, "balanced": {}})
    found = results.collect(study, configs, {})
    found["runs"]["balanced/seed-5"] = {"failed": "pip install 'x[gym]' [/a/folder]"}
    registered.show(found)
    assert "pip install 'x[gym]' [/a/folder]" in capsys.readouterr().out


def test_two_studies_of_one_name_have_no_folder_each(study, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "small.toml").write_text(SMALL)
    with pytest.raises(ConfigError, match="small, small: each study has a folder by its name"):
        registered.run([tmp_path / "small.toml", tmp_path / "more" / "small.toml"], tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_results_of_another_study_are_not_gone_on_with(study, tmp_path):
    (tmp_path / "other.toml").write_text(SMALL.replace("steps = 4", "steps = 5"))
    configs = leave_runs(study, tmp_path, drawn(study, [5], np.random.default_rng(0)))
    results.write_results(results.collect(study, configs, {}), tmp_path / "results.json")
    with pytest.raises(ConfigError, match="another study"):
        registered.run([tmp_path / "other.toml"], tmp_path)


def test_several_studies_take_turns_seed_by_seed(study, dosed, tmp_path):
    order = list(plan.in_turn([("small", study, tmp_path / "small"), ("dosed", dosed, tmp_path / "dosed")]))
    assert order[:2] == ["small/token/seed-5", "small/balanced/seed-5"]
    assert order[2:8] == [f"dosed/{name}" for name in list(dosed.configs(tmp_path))[:6]]
    share = [int(name.rpartition("-")[2]) - 5 for name in order]
    assert share.index(1) == 8  # no second seed before every study's first


def test_variants_differ_in_what_they_say_alone(study, tmp_path):
    configs = study.configs(tmp_path)
    assert list(configs)[:2] == ["token/seed-5", "balanced/seed-5"]  # whole pairs first
    token, balanced = configs["token/seed-7"], configs["balanced/seed-7"]
    assert token.objective.aggregation == {"name": "token", "over": "group"}
    assert balanced.objective.aggregation == "balanced"
    assert token.train.seed == balanced.train.seed == 7
    token.objective.aggregation = balanced.objective.aggregation
    token.train.out = balanced.train.out
    assert token == balanced


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('plus = "balanced"', 'plus = "balancd"', '"balancd" is not one of the variants token, balanced'),
        ("seeds = [5, 8]", "seeds = [5, 5]", "the first and the last of two or more"),
        ('question = "Does it matter?"', "", "look at question"),
        ("seeds = [5, 8]", "seeds = [5, 8", "not valid TOML"),
        ('plus = "balanced"', "", "has no plus: then it needs a dose"),
        ('metric = "acc@8"', 'metric = "acc@8"\nat = "best"', 'at = "best" of a primary must be one of last, mean'),
        ("[config.train]", "[start]\nslips = 0.1\n[config.train]", "start.slips is not known"),
        ("[config.train]", "[start]\nslip = 1.5\n[config.train]", "start.slip = 1.5 must be a probability"),
        ("[config.train]", "[dose]\noption = 'optim.lr'\nvalues = [1, 2]\n[config.train]", "three numbers or more"),
        ("seeds = [5, 8]", "seeds = [5, 8]\nrates = [1e-3]", "must have config.optim.lr"),
    ],
)
def test_a_study_that_cannot_be_read(tmp_path, old, new, words):
    file = tmp_path / "study.toml"
    file.write_text(SMALL.replace(old, new, 1))
    with pytest.raises(ConfigError, match=words.replace("[", r"\[")):
        plan.read(file)


def test_results_that_cannot_be_read(tmp_path):
    file = tmp_path / "results.json"
    with pytest.raises(ConfigError, match="there is no such file"):
        results.read_results(file)
    for text in ("{", "[]", "{}"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="not a results file"):
            results.read_results(file)
    plan_file = tmp_path / "study.toml"
    plan_file.write_text(SMALL)
    with pytest.raises(
        ConfigError, match="a study's plan, not its results; `equipoise study run` trains it and writes"
    ):
        results.read_results(plan_file)


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_the_studies_we_ship_can_be_run(file, tmp_path):
    study = plan.read(file)
    # The cells of the other seeds differ in their number alone.
    for variant, rate in study.cells():
        study.one(variant, study.seeds[0], tmp_path / "run", rate, tmp_path / "start").check()


def test_a_difference_that_is_0_but_for_rounding_is_said_to_be_0(capsys):
    registered.show(results.read_results(ROOT / "studies/results/gsm8k_long.json"))
    assert "best@8 last, batch_balanced − batch_token: +0 points" in " ".join(capsys.readouterr().out.split())


def test_the_first_studys_results_are_still_read(capsys):
    registered.show(results.read_results(ROOT / "studies/results/off_policy.json"))
    shown = " ".join(capsys.readouterr().out.split())
    assert "best@8 last, balanced − token: +0.765 points" in shown


def test_a_difference_looked_at_afterwards_has_an_interval_and_no_test(study, tmp_path, capsys):
    values = {"token": {5: 0.50, 6: 0.52, 7: 0.51}, "balanced": {5: 0.53, 6: 0.53, 7: 0.53}}
    file = tmp_path / "results.json"
    results.write_results(results.collect(study, leave_runs(study, tmp_path / "runs", values), {}), file)
    cli.main(["study", "show", str(file), "--difference", "token", "balanced", "acc@8", "--at", "last"])
    shown = capsys.readouterr().out
    low, high = stats.t.interval(0.95, 2, loc=-2, scale=1 / math.sqrt(3))
    assert "exploratory" in shown
    assert f"acc@8 last, token − balanced: -2 points (95 % {low:+.4g} to {high:+.4g}), 3 seeds" in shown
    assert "p " not in shown.replace("exp ", "")
    assert "Effects named" not in shown


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["token", "balancd", "acc@8"], '--difference: "balancd" is not one of balanced, token'),
        (["token", "balanced", "acc@9"], "acc@9 is not in the evaluations"),
    ],
)
def test_a_difference_that_cannot_be_made(asked, words, study, tmp_path, capsys):
    found = results.collect(study, leave_runs(study, tmp_path, drawn(study, [5, 6], np.random.default_rng(1))), {})
    with pytest.raises(ConfigError, match=words):
        registered.show_difference(found, *asked, at="mean")


def test_a_difference_may_name_a_rate(capsys):
    found = results.read_results(ROOT / "studies/results/cancellation.json")
    registered.show_difference(found, "min_replace@0.0001", "grpo", "acc@8", at="mean")
    assert "min_replace@0.0001 − grpo: -1.7" in capsys.readouterr().out


def test_a_file_written_after_its_runs_says_so(capsys):
    registered.show(results.read_results(ROOT / "studies/results/coupling_again.json"))
    again = capsys.readouterr().out
    registered.show(results.read_results(ROOT / "studies/results/coupling.json"))
    first = capsys.readouterr().out
    assert "Effects written down after the runs" in again
    assert "before the runs" not in again
    assert "Effects named before the runs" in first


def test_no_minutes_start_no_run(study, tmp_path, capsys):
    cli.main(["study", "run", str(tmp_path / "small.toml"), "--out", str(tmp_path / "runs"), "--minutes", "0"])
    assert f"0 of {len(study.configs(tmp_path))} runs are done" in capsys.readouterr().out
    assert not (tmp_path / "runs" / "token").exists()


@pytest.mark.parametrize("unfinished", [0, 1])
def test_nothing_is_compared_before_all_runs_are_done(unfinished, study, tmp_path, capsys):
    """Whoever stops and goes on must not have looked in between."""
    values = drawn(study, list(study.seeds), np.random.default_rng(0))
    for seed in study.seeds[len(study.seeds) - unfinished :]:
        del values["token"][seed]
    out = tmp_path / "runs"
    leave_runs(study, out, values)
    cli.main(["study", "run", str(tmp_path / "small.toml"), "--out", str(out), "--minutes", "0"])
    said = capsys.readouterr().out
    assert ("Effects named" in said) is not bool(unfinished)
    assert ("nothing is compared yet" in said) is bool(unfinished)
    assert (out / "results.json").exists()

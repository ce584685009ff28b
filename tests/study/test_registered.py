"""Studies written down beforehand: what is refused, what is trained, and the tests against scipy's."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from equipoise.study import registered
from equipoise.train import ConfigError, RunFolder
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
    return registered.read(file)


def leave_runs(study, out, seeds, values):
    """What `equipoise train` would leave: an evaluation at the start and one at the end."""
    folders = {}
    for name in study.variants:
        for seed in seeds:
            folder = RunFolder(out / name / f"seed-{seed}")
            folder.path.mkdir(parents=True)
            for step in (0, 4):
                numbers = {"acc@8": values[name][seed] * step / 4, "by_level": {"5": {"acc@8": values[name][seed] / 2}}}
                append(folder.eval, {"step": step, **numbers})
            folders[f"{name}/seed-{seed}"] = folder
    return folders


def test_the_tests_are_scipys_and_holms(study, tmp_path):
    draw = np.random.default_rng(0)
    values = {name: dict(zip(range(5, 9), draw.uniform(0.4, 0.6, 4).tolist(), strict=True)) for name in study.variants}
    results = registered.collect(study, leave_runs(study, tmp_path, range(5, 9), values), {})
    assert json.loads(json.dumps(results)) == results
    hardest, overall = registered.primary_tests(results)
    pairs = [[values[name][seed] for seed in range(5, 9)] for name in ("balanced", "token")]
    reference = stats.ttest_rel(*pairs)
    assert overall.p == pytest.approx(reference.pvalue, abs=1e-5)
    assert overall.mean == pytest.approx(np.mean(pairs[0]) - np.mean(pairs[1]), abs=1e-6)
    assert hardest.mean == pytest.approx(overall.mean / 2, abs=1e-6)
    assert overall.holm == pytest.approx(min(1, 2 * overall.p), abs=1e-5)


def test_only_seeds_that_both_have_finished_count(study, tmp_path):
    values = {name: dict.fromkeys(range(5, 9), 0.5) for name in study.variants}
    folders = leave_runs(study, tmp_path, range(5, 9), values)
    (tmp_path / "token" / "seed-6" / "eval.jsonl").write_text('{"step": 0, "acc@8": 0.1}\n')  # stopped half way
    results = registered.collect(study, folders, {"balanced/seed-8": "it diverged"})
    assert [tested.seeds for tested in registered.primary_tests(results)] == [2, 2]
    assert results["runs"]["balanced/seed-8"] == {"failed": "it diverged"}
    assert sorted(registered.last_of(results, "token", "acc@8")) == [5, 7, 8]


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
    ],
)
def test_a_study_that_cannot_be_read(tmp_path, old, new, words):
    file = tmp_path / "study.toml"
    file.write_text(SMALL.replace(old, new, 1))
    with pytest.raises(ConfigError, match=words.replace("[", r"\[")):
        registered.read(file)


def test_results_that_cannot_be_read(tmp_path):
    file = tmp_path / "results.json"
    with pytest.raises(ConfigError, match="there is no such file"):
        registered.read_results(file)
    for text in ("{", "[]", "{}"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="not a results file"):
            registered.read_results(file)


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_the_studies_we_ship_can_be_run(file, tmp_path):
    study = registered.read(file)
    for config in study.configs(tmp_path).values():
        config.check()


def test_verify_says_whether_a_cell_lies_among_the_published(study, tmp_path, monkeypatch):
    values = {name: {5: 0.50, 6: 0.52, 7: 0.51, 8: 0.49} for name in study.variants}
    results = registered.collect(study, leave_runs(study, tmp_path / "runs", range(5, 9), values), {})
    published = tmp_path / "results.json"
    published.write_text(json.dumps(results))

    def pretend(value):
        def train_all(configs, console, jobs):
            (config,) = configs.values()
            folder = RunFolder(config.train.out)
            folder.path.mkdir(parents=True)
            append(folder.eval, {"step": 4, "acc@8": value, "by_level": {"5": {"acc@8": value / 2}}})
            return {}

        monkeypatch.setattr(registered, "train_all", train_all)

    pretend(0.505)
    assert registered.verify(published, "token", 6, tmp_path / "inside")
    pretend(0.9)
    assert not registered.verify(published, "token", 6, tmp_path / "outside")

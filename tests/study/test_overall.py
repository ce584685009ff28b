"""The tests of all published studies, taken as one family."""

from pathlib import Path

import numpy as np
from scipy import stats

from equipoise import cli
from equipoise.study import overall

RESULTS = sorted((Path(__file__).parents[2] / "studies" / "results").glob("*.json"))


def test_findings_are_benjamini_and_hochbergs():
    draw = np.random.default_rng(0)
    for size in (1, 5, 40):
        p = draw.beta(0.3, 1, size)
        assert overall.findings(p.tolist()) == (stats.false_discovery_control(p) <= 0.05).sum()
    assert overall.findings([]) == 0


def test_one_family_is_never_kinder_than_a_study_alone():
    tests = overall.all_tests(RESULTS)
    assert len(tests) > 80
    assert all(test.holm >= test.effect.holm for test in tests)
    alone = overall.all_tests(RESULTS[:1])
    assert all(test.holm == test.effect.holm for test in alone)


def test_several_results_are_shown_as_one_family(capsys):
    cli.main(["study", "show", *map(str, RESULTS)])
    shown = capsys.readouterr().out
    assert "passes over all: min_replace, TGC: Min-Replace learns more than GSPO" in shown
    assert "in its study alone: grpo_fix" in shown
    assert "Closed forms: " in shown

import json

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.report.runs import read
from equipoise.report.samples import MOST_STEPS, sample, shortened
from tests.report.folders import make_run


def expected(values):
    return [v if isinstance(v, str) else pytest.approx(v, rel=1e-5) for v in values]


def test_everything_is_shown_where_everything_fits(tmp_path):
    run = read(make_run(tmp_path / "run", steps=20, every=5, groups=3, size=4), "run")
    groups, said = sample(run, 10**6)
    assert [(g["step"], g["order"]) for g in groups] == [(s, k) for s in (1, 5, 10, 15, 20) for k in range(3)]
    assert said == "60 of 60 logged responses, 15 whole groups from 5 of 5 files."
    rows = pq.read_table(run.rollouts[10]).to_pylist()
    shown = [r for g in groups if g["step"] == 10 for r in g["responses"]]
    for key in ("verdict", "finish", "length", "reward", "advantage", "weight", "coefficient"):
        assert [r[key] for r in shown] == expected(r[key] for r in rows)


@pytest.mark.parametrize("budget", [5_000, 10_000, 40_000])
def test_a_small_budget_keeps_whole_groups_of_the_first_and_the_last_step(tmp_path, budget):
    run = read(make_run(tmp_path / "run", steps=40, every=1, groups=6, size=8, texts=["y" * 900]), "run")
    groups, said = sample(run, budget)
    assert len(json.dumps(groups)) < 1.2 * budget
    assert {g["step"] for g in groups} >= {1, 40}
    assert all(len(g["responses"]) == 8 for g in groups)
    assert f"{8 * len(groups)} of {40 * 48:,} logged responses" in said
    assert len({g["step"] for g in groups}) <= MOST_STEPS


def test_a_huge_response_keeps_its_beginning_and_its_end(tmp_path):
    long = "begin" + "x" * 10**6 + "the answer is 7"
    run = read(make_run(tmp_path / "run", steps=1, texts=[long]), "run")
    groups, said = sample(run, 200_000)
    assert groups
    head, tail = groups[0]["responses"][0]["text"]
    cut = groups[0]["responses"][0]["cut"]
    assert head.startswith("begin")
    assert tail.endswith("the answer is 7")
    assert len(head) + len(tail) + cut == len(long)
    assert "long texts without their middle" in said
    assert len(json.dumps(groups)) <= 200_000


@given(st.text(st.characters(), max_size=300), st.integers(0, 400))
def test_shortened_fits_and_loses_only_the_middle(text, most):
    short, cut = shortened(text, most)
    if cut == 0:
        assert short == text
    else:
        head, tail = short
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) + len(tail) + cut == len(text)
        assert len(json.dumps(short)) <= max(most, 8)


def test_a_file_that_cannot_be_read_or_lacks_columns_is_passed_over(tmp_path):
    path = make_run(tmp_path / "run", steps=10, every=5)
    (path / "rollouts" / "step-5.parquet").write_bytes(b"PAR1 torn")
    table = pq.read_table(path / "rollouts" / "step-10.parquet").drop_columns(["weight", "coefficient", "level"])
    pq.write_table(table, path / "rollouts" / "step-10.parquet")
    groups, said = sample(read(path, "run"), 10**6)
    assert {g["step"] for g in groups} == {1, 10}
    assert said.startswith("24 of 24 logged responses")
    old = next(g for g in groups if g["step"] == 10)
    assert old["responses"][0]["weight"] is None
    assert old["mass_balance"] is None


def test_a_groups_balance_is_that_of_the_bias_measures(tmp_path):
    run = read(make_run(tmp_path / "run", steps=1, groups=1, size=16, aggregation="token"), "run")
    (group,), _ = sample(run, 10**6)
    assert group["mass_balance"] == pytest.approx(run.metrics["bias/mass_balance"][0], abs=1e-4)
    assert group["exchangeability"] == pytest.approx(run.metrics["bias/exchangeability"][0], abs=1e-4)

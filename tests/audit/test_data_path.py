"""What the data path did to a log: counted where it can be counted, refused where a log cannot tell, else recovered."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import data_path as injected
from equipoise.audit import AuditError, data_path, from_table, main_text
from equipoise.audit.data_path import _lost_of_seen
from tests.audit.synthetic import Law

COLUMNS = Law().draw(40, seed=5)


def test_a_plain_log_is_asked_for_no_more_than_it_holds():
    found = data_path(from_table(COLUMNS))
    assert found.estimates == {}
    assert "column finish" in found.refused["truncated"]
    assert "column kept" in found.refused["discarded"]
    assert "epochs" in found.refused["lost"]
    assert "trainer_logprob" in found.refused["sampler_distance"]


def test_cut_responses_bound_what_the_limit_cost():
    cut = (np.arange(320) % 4 == 0) & (COLUMNS["reward"] == 0)
    found = data_path(from_table(COLUMNS | {"finish": cut})).estimates
    assert found["truncated"].value == pytest.approx(cut.mean())
    bound = found["reward_beyond_limit"]
    assert bound.value is None
    assert bound.low == 0.0
    assert cut.mean() < bound.high < 2 * cut.mean()
    wrong = COLUMNS["reward"] < np.repeat(COLUMNS["reward"].reshape(-1, 8).mean(1), 8)
    assert found["truncated_wrong"].value == pytest.approx(cut[wrong].mean())


def test_selection_is_a_count_over_groups():
    kept = np.repeat(np.arange(40) % 5 != 0, 8)
    found = data_path(from_table(COLUMNS | {"kept": kept})).estimates
    r, T = COLUMNS["reward"], COLUMNS["length"]
    mixed = np.ptp(r.reshape(-1, 8), axis=1) > 0
    group_kept = kept[::8]
    expected = {
        "discarded": (~group_kept).mean(),
        "filtered": (~group_kept[~mixed]).mean(),
        "discarded_informative": (~group_kept[mixed]).mean(),
        "kept_reward": r[kept].mean() - r.mean(),
        "kept_length": T[kept].mean() / T.mean() - 1,
    }
    for name, value in expected.items():
        assert found[name].value == pytest.approx(value), name
        assert found[name].low <= value <= found[name].high


def test_all_or_none_of_a_few_is_no_certainty():
    """Five groups of forty have equal rewards, and all of them were dropped: that says little of the next."""
    reward, equal = np.arange(160) % 2, np.arange(160) < 20
    columns = {
        "prompt_id": np.repeat(np.arange(40), 4),
        "reward": np.where(equal, 1, reward),
        "length": np.full(160, 9),
    }
    found = data_path(from_table({**columns, "kept": ~equal, "finish": np.zeros(160, bool)})).estimates
    reach = {
        name: 1 - 0.025 ** (1 / n) for name, n in (("filtered", 5), ("discarded_informative", 35), ("truncated", 40))
    }
    assert found["filtered"].low == pytest.approx(1 - reach["filtered"])
    for name in ("discarded_informative", "truncated"):
        assert found[name].high == pytest.approx(reach[name])


def test_a_number_of_sampled_groups_gives_the_share_and_nothing_about_what_was_dropped():
    log = from_table(COLUMNS)
    found = data_path(log, sampled=50)
    assert found.estimates["discarded"].value == pytest.approx(0.2)
    assert found.estimates["discarded"].low == pytest.approx(0.1124, abs=1e-3)  # Wilson's, by his formula
    assert "does not say what the dropped ones were like" in found.refused["kept_reward"]
    with pytest.raises(AuditError, match="sampled = 39, and the log has 40 groups"):
        data_path(log, sampled=39)


def visits(counts):
    """A log in which prompt i has counts[i] groups."""
    prompt = np.repeat(np.arange(len(counts)), counts)
    rows = np.repeat(prompt, 2)
    group = np.repeat(np.arange(len(prompt)), 2)
    return from_table({"prompt_id": rows, "group": group, "reward": np.arange(len(rows)) % 2.0, "length": rows * 0 + 5})


def test_lost_and_repeated_visits():
    log = visits([2] * 30 + [1] * 10 + [3] * 2)
    found = data_path(log, epochs=2, prompts=50).estimates
    assert found["lost"].value == pytest.approx(1 - (2 * 32 + 10) / 100)
    assert found["repeated"].value == pytest.approx(2 / 76)
    assert "two epochs" in data_path(log, epochs=1).refused["lost"]
    with pytest.raises(AuditError, match="prompts = 41, and the log has 42"):
        data_path(log, epochs=2, prompts=41)


@pytest.mark.parametrize("q", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("epochs", [2, 5])
def test_prompts_never_seen_are_accounted_for(q, epochs):
    k = np.arange(epochs + 1)
    from scipy import stats

    law = stats.binom.pmf(k, epochs, q)
    seen = np.array([1 - law[0], (k * law).sum()])
    assert _lost_of_seen(seen, epochs) == pytest.approx(1 - q, abs=1e-9)
    assert _lost_of_seen(np.array([10.0, 10.0 * epochs]), epochs) == pytest.approx(0, abs=1e-9)


def test_steps_without_rows():
    columns = COLUMNS | {"step": np.repeat(np.array([0, 2, 4, 10])[np.arange(40) % 4], 8)}
    assert data_path(from_table(columns)).estimates["missing_steps"].value == pytest.approx(1 - 4 / 6)
    ours = COLUMNS | {"step": np.repeat(np.array([1, 10, 20, 30])[np.arange(40) % 4], 8)}
    assert data_path(from_table(ours)).estimates["missing_steps"].value == 0


def test_a_support_of_mass_s_shows_as_minus_its_logarithm():
    T = COLUMNS["length"].astype(float)
    log = from_table(COLUMNS | {"sampler_logprob": -T - T * np.log(0.9), "trainer_logprob": -T})
    found = data_path(log).estimates["sampler_distance"]
    assert found.value == pytest.approx(-np.log(0.9))
    assert found.low == pytest.approx(found.high)


def test_the_page_and_the_json_show_it(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    kept = np.repeat(np.arange(40) % 5 != 0, 8)
    pq.write_table(pa.table(COLUMNS | {"kept": kept}), tmp_path / "log.parquet")
    text = main_text([str(tmp_path / "log.parquet")])
    assert "sampled groups not trained on" in text
    record = json.loads(main_text([str(tmp_path / "log.parquet")], as_json=True, counts={"epochs": 1, "prompts": 40}))
    assert record["data_path"]["estimates"]["lost"]["value"] == 0.0
    assert record["overall"]["groups"] == 32


def test_injected_biases_are_recovered():
    """Three logs of the law in benchmarks/data_path.py: each mean estimate near the truth, the bound above it."""
    found = injected.coverage(3)
    for name, row in found.items():
        if row["estimate"] is None:
            assert row["low"] <= row["truth"] <= row["high"]
        else:
            assert abs(row["estimate"] - row["truth"]) < 3 * (row["high"] - row["low"]), name


def test_the_page_has_the_committed_recoveries():
    record = json.loads(injected.RESULTS.read_text(encoding="utf-8"))["results"]
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    assert record.keys() == injected.truths().keys()
    for name, row in record.items():
        assert row["logs"] == 200
        assert row["coverage"] >= 0.88
        assert injected.line(name, row) in page


@pytest.mark.slow
def test_intervals_hold_the_truth():
    for name, row in injected.coverage(100).items():
        assert row["coverage"] >= 0.88, (name, row)

"""The intervals: how often they hold the truth, and what they do at the edges."""

import sys

import numpy as np
import pytest
from scipy import stats

from equipoise.audit import bootstrap, measure
from equipoise.audit.bootstrap import Estimate, intervals, resampled

from .synthetic import Law

LAW = Law(a=1.5, b=2.0)


def read_off(audit) -> dict[str, Estimate]:
    o = audit.overall
    return {
        "reward_mean": o.log["reward_mean"],
        "length_mean": o.log["length_mean"],
        "length_cv": o.log["length_cv"],
        "length_gap": o.log["length_gap"],
        "within_gap": o.log["within_gap"],
        "degenerate": o.log["degenerate"],
        "token_minus_sequence": o.log["token_minus_sequence"],
        "coupling": o.objectives["dapo"]["coupling"],
        "mass_balance": o.objectives["dapo"]["mass_balance"],
        "exchangeability": o.objectives["balanced"]["exchangeability"],
        "equal_weighting": o.objectives["sequence"]["equal_weighting"],
        "longest": o.token_weight["sequence"][-1],
        "hard_share": o.baseline_share["hard"],
        "hard_bias": o.baseline_bias["hard"],
    }


def truth() -> dict[str, float]:
    """Closed forms; where there is none, a log so large that its own error is nothing beside the intervals'."""
    big = {
        k: v.value for k, v in read_off(measure(LAW.draw(20_000, seed=12345), "dapo", ["sequence", "balanced"])).items()
    }
    bias, share = LAW.baseline("hard")
    known = {
        "reward_mean": LAW.p, "length_mean": LAW.mean_length, "length_cv": LAW.cv, "degenerate": LAW.degenerate,
        "coupling": LAW.coupling, "hard_bias": bias, "hard_share": share,
    }  # fmt: skip
    for name, value in known.items():
        assert big[name] == pytest.approx(value, rel=0.03), name
    return {**big, **known}


def coverage(simulations: int, prompts: int) -> dict[str, float]:
    true = truth()
    held = dict.fromkeys(true, 0)
    for seed in range(simulations):
        for name, e in read_off(measure(LAW.draw(prompts, seed), "dapo", ["sequence", "balanced"])).items():
            held[name] += e.low is not None and e.low <= true[name] <= e.high
    return {name: n / simulations for name, n in held.items()}


@pytest.mark.parametrize(
    ("logs", "least", "low", "high"),
    [(12, 0.66, 0.89, 1.0), pytest.param(50, 0.82, 0.925, 0.98, marks=pytest.mark.long)],
)
def test_intervals_hold_the_truth_about_as_often_as_they_say(logs, least, low, high):
    """Logs of 100 prompts: a true 95 % gives `least` or less about once in a thousand such measures."""
    found = coverage(logs, 100)
    assert min(found.values()) > least, found
    assert low < np.mean(list(found.values())) < high, found


@pytest.mark.slow
@pytest.mark.parametrize(("prompts", "least"), [(50, 0.87), (200, 0.9)])
def test_intervals_hold_the_truth_in_95_percent_give_or_take_two_points(prompts, least):
    """Over the measures; the skewed ones (CV, the longest tenth) fall below at 50."""
    found = coverage(400, prompts)
    assert 0.93 < np.mean(list(found.values())) < 0.97, found
    assert min(found.values()) > least, found


def test_prompts_are_resampled_whole():
    """The same responses, once as their own prompts and once in blocks of copies: only the prompts count."""
    rng = np.random.default_rng(0)
    once = rng.random((200, 1))
    copies = 5 * once  # a prompt with five identical groups
    spread = [float(resampled(x, 2000, 0).std() / x.sum()) for x in (once, copies)]
    assert spread[0] == pytest.approx(spread[1])
    five_times = np.repeat(once, 5, axis=0)
    assert float(resampled(five_times, 2000, 0).std() / five_times.sum()) < 0.6 * spread[0]


def test_a_prompt_seen_in_several_steps_is_one_prompt():
    columns = LAW.draw(40, seed=0)
    repeated = {k: np.concatenate([v] * 4) for k, v in columns.items()}
    repeated["step"] = np.repeat(np.arange(4), len(columns["step"]))
    once, again = (measure(c, "dapo", []).overall for c in (columns, repeated))
    assert again.prompts == once.prompts == 40
    assert again.groups == 160
    widths = [o.log["length_cv"].high - o.log["length_cv"].low for o in (once, again)]
    assert widths[1] == pytest.approx(widths[0], rel=0.15)  # copies tell nothing new


def test_blocks_of_prompts_give_the_intervals_of_prompts(monkeypatch):
    columns = LAW.draw(1500, seed=0)
    fine = measure(columns, "dapo", []).overall
    monkeypatch.setattr(sys.modules["equipoise.audit.measure"], "BLOCKS", 500)
    coarse = measure(columns, "dapo", []).overall
    assert coarse.prompts == fine.prompts == 1500
    for a, b in ((fine.log["length_cv"], coarse.log["length_cv"]), (fine.log["degenerate"], coarse.log["degenerate"])):
        assert a.value == pytest.approx(b.value, abs=1e-12)
        assert b.high - b.low == pytest.approx(a.high - a.low, rel=0.15)


def test_percentiles_are_numpys():
    x = np.random.default_rng(0).standard_normal(2000)
    n = 20
    t = stats.t.ppf(0.975, n - 1) * np.sqrt(n / (n - 1))
    found = intervals({"x": np.float64(0)}, {"x": x}, {"x": n})["x"]
    assert [found.low, found.high] == pytest.approx(np.quantile(x, [stats.norm.cdf(-t), stats.norm.cdf(t)]).tolist())


def test_none_of_a_few_is_not_never():
    found = intervals({"s": np.float64(0)}, {"s": np.zeros(100)}, {"s": 10}, shares=("s",))["s"]
    assert found.low == 0
    assert found.high == pytest.approx(1 - 0.025**0.1)  # scipy: binomtest(0, 10).proportion_ci().high
    assert intervals({"s": np.float64(1)}, {"s": np.ones(100)}, {"s": 10}, shares=("s",))["s"].low < 0.7
    assert intervals({"s": np.float64("nan")}, {"s": np.ones(100)}, {"s": 10})["s"] == bootstrap.NOTHING


@pytest.mark.parametrize("visits", [1, 3])
def test_no_degenerate_group_is_no_certainty_where_prompts_come_again(visits):
    G, P = 4, 10
    columns = {
        "step": np.arange(visits).repeat(P * G),
        "prompt_id": np.tile(np.arange(P).repeat(G), visits),
        "group": np.arange(visits * P).repeat(G),
        "reward": np.tile([1.0, 0.0], visits * P * G // 2),
        "length": np.tile([5, 9, 7, 6], visits * P),
        "truncated": np.zeros(visits * P * G, dtype=bool),
    }
    found = measure(columns, "dapo").overall.log
    for share in (found["degenerate"], found["truncated"]):
        assert (share.value, share.low, share.high) == (0, 0, pytest.approx(1 - 0.025**0.1))

"""The advice: it flips where the theory says, names the change, and says when there is no evidence."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import equipoise as eq
from equipoise import Objective
from equipoise.audit import advise, main_text, measure
from equipoise.audit.advice import beyond
from equipoise.audit.bootstrap import Estimate
from equipoise.audit.objectives import gathered
from equipoise.audit.render import spark

from .synthetic import Law

BALANCED = 'objective.aggregation = { name = "balanced", over = "batch" }'
TOKEN = 'objective.aggregation = { name = "token", over = "batch" }'
OVER_GROUP = Objective.preset("dapo", aggregation={"name": "token", "over": "group"})


def advice(columns, objective="dapo", against=None):
    return {a.topic: a for a in advise(measure(columns, objective, against))}


def test_coupling_is_found_under_token_and_gone_under_balanced():
    columns = Law(right=600, wrong=900).draw(200, seed=0)
    token, balanced, batch, constant = (
        advice(columns, o)["sign-length coupling"] for o in (OVER_GROUP, "dapo+balanced", "dapo", "dr_grpo")
    )
    assert token.evidence is True
    assert token.change == BALANCED
    assert "longer" in token.finding
    assert "wrong responses that pull harder cost accuracy" in token.finding
    assert balanced.evidence is False
    assert balanced.change is None
    shorter = advice(Law(right=900, wrong=600).draw(200, seed=0))["sign-length coupling"]
    assert shorter.evidence is True
    assert "shorter" in shorter.finding
    assert "right responses that pull harder cost no accuracy" in shorter.finding
    assert shorter.finding.endswith("so nothing need change.")
    assert shorter.change is None  # what the study found to gain is not to be taken away
    assert "balanced learnt 1.1 to 1.8 points more" in token.finding
    for over_batch in (batch, constant):
        assert over_batch.evidence is True
        assert "balanced over the batch learnt 0.7 to 1.7 points more than token over the batch" in over_batch.finding
        assert over_batch.change == BALANCED
    both = advice(columns, "dapo+hadw")["sign-length coupling"]
    assert both.change == f'{BALANCED}; objective.difficulty = {{ name = "hadw", recentre = true }}'


def test_a_log_of_few_batches_is_told_to_look_again():
    """Studies 43 and 46: the gap of the first batches goes, or turns."""
    columns = Law(right=600, wrong=900).draw(64, seed=0)
    groups = len(columns["reward"]) // 64
    for last, early in ((16, False), (15, True)):
        steps = np.repeat(np.r_[np.ones(32), np.full(32, last)], groups).astype(int)
        found = advice({**columns, "step": steps})["sign-length coupling"]
        assert found.change == BALANCED
        assert ("audit a longer log" in found.finding) == early


def test_a_gap_smaller_than_where_a_study_found_a_gain_is_no_reason_to_change():
    columns = Law(right=600, wrong=670).draw(200, seed=0)
    for rule in ("dapo", "dr_grpo", OVER_GROUP):
        found = advice(columns, rule)["sign-length coupling"]
        assert found.evidence is True
        assert found.finding.endswith("this is no reason to change the aggregation.")
        assert found.change is None
    wide = Objective.preset("dapo", aggregation={"name": "balanced", "over": "batch"})
    assert advice(columns, wide)["sign-length coupling"].evidence is False


def test_coupling_without_a_gap_is_measured_as_none_or_not_at_all():
    many = Law(right=700, wrong=700, sigma=0.3).draw(3000, seed=0)
    assert advice(many)["sign-length coupling"].evidence is False
    few = advice(Law(right=700, wrong=700, sigma=0.8).draw(8, seed=1))["sign-length coupling"]
    assert few.evidence is None
    assert few.finding.startswith("no evidence")
    assert few.change is None


@pytest.mark.parametrize(
    ("wrong", "sigma", "best"),
    [
        (1200, 0.05, "sequence"),
        (1000, 0.02, "sequence"),
        (700, 0.6, "token"),
        (620, 0.3, "token"),
        (600, 0.05, "token"),
    ],
)
def test_the_regime_flips_with_gap_and_cv(wrong, sigma, best):
    """Large CV and small gap favour token, small CV and large gap favour sequence (BA §4.3.3)."""
    law = Law(right=600, wrong=wrong, sigma=sigma)
    found = advice(law.draw(300, seed=0), OVER_GROUP)["regime"]
    assert f"{best} is nearer to balanced" in found.finding
    # Whichever is better in theory: half the gap for token, the CV within a sign for sequence.
    gap = abs(wrong - 600) / ((wrong + 600) / 2)
    assert (gap / 2 > np.sqrt(np.exp(sigma**2) - 1)) == (best == "sequence")
    assert found.evidence is (best == "sequence")  # it is token already
    assert ('"sequence"' in (found.change or "")) == (best == "sequence")


def test_the_regime_proposes_only_what_the_study_found_to_gain():
    """docs/study.md: sequence gained on token over the group and on no rule over the batch; token on nothing."""
    gap = Law(right=600, wrong=1200, sigma=0.05).draw(300, seed=0)
    group = advice(gap, OVER_GROUP)["regime"]
    assert group.change == 'if not balanced, objective.aggregation = "sequence"'
    assert "sequence learnt 0.5 to 0.9 points more than token over the group" in group.finding
    for over_batch in ("dapo", "dr_grpo"):
        found = advice(gap, over_batch)["regime"]
        assert found.evidence is False
        assert found.change is None
        assert "sequence is nearer to balanced" in found.finding
        assert found.finding.endswith(
            "sequence learnt no more than averaging over the batch: this is no reason to change the aggregation."
        )
    spread = advice(Law(right=600, wrong=620, sigma=0.3).draw(300, seed=0), "grpo")["regime"]
    assert "token is nearer to balanced" in spread.finding
    short_wrong = advice(Law(right=1200, wrong=600, sigma=0.05).draw(300, seed=0), OVER_GROUP)["regime"]
    assert "sequence is nearer to balanced" in short_wrong.finding
    for found in (spread, short_wrong):
        assert found.evidence is False
        assert found.change is None
        assert found.finding.endswith("Our study did not decide between the two there, so nothing need change.")


@pytest.mark.parametrize("law", [Law(right=600, wrong=600, sigma=0.1), Law(right=600, wrong=500, sigma=0.2)])
def test_where_wrong_responses_are_no_longer_than_right_ones_balanced_is_told_to_go_back_to_token(law):
    """Studies 36, 38 and 41."""
    columns = law.draw(300, seed=0)
    for rule in ("dapo+balanced", Objective.preset("dapo", aggregation={"name": "balanced", "over": "batch"})):
        found = advice(columns, rule)["regime"]
        assert found.evidence is True
        assert found.change == TOKEN
        assert "learnt 0.5 to 1.4 points less than token over the batch" in found.finding
    assert advice(columns, "dapo")["regime"].change is None


@pytest.mark.parametrize(
    "law",
    [
        Law(right=600, wrong=660, sigma=0.2),
        Law(right=600, wrong=660, sigma=0.6),
        Law(right=600, wrong=900, sigma=0.6),
    ],
)
def test_elsewhere_balanced_is_left_alone(law):
    assert advice(law.draw(300, seed=0), "dapo+balanced")["regime"].change is None


def test_the_regime_is_open_where_the_two_are_alike():
    """Near the flip, a small log cannot tell."""
    found = [advice(Law(right=600, wrong=860, sigma=0.17).draw(12, seed=s))["regime"].evidence for s in range(6)]
    assert None in found


def test_sequence_starves_long_responses():
    columns = Law(right=600, wrong=620, sigma=0.7).draw(200, seed=0)
    found = advice(columns, "grpo")
    starved = found["length starvation"]
    assert starved.evidence is True
    assert "balanced learnt 0 to 0.6 points more than sequence" in starved.finding
    assert starved.change is None
    power = eq.Objective.preset("dapo", aggregation={"name": "power", "alpha": 1.5})
    level = Law(right=600, wrong=600, sigma=0.2).draw(200, seed=0)
    assert advice(level, power)["length starvation"].change == TOKEN
    long = Law(right=600, wrong=900, sigma=0.2).draw(200, seed=0)
    assert advice(long, power)["length starvation"].change == BALANCED
    assert found["sign-length coupling"].evidence is False
    assert "length starvation" not in advice(columns, "dapo")
    even = advice(Law(right=600, wrong=620, sigma=0.0).draw(200, seed=0), "grpo")
    assert even["length starvation"].evidence is False


def test_hadw_off_zero_is_told_to_recentre():
    hard = Law(a=1, b=4, right=600, wrong=600, sigma=0.1).draw(200, seed=0)
    hadw = {"name": "hadw", "anchor": "fixed", "threshold": 0.0}
    found = advice(hard, eq.Objective.preset("grpo", difficulty=hadw))["sign-length coupling"]
    assert found.evidence is True
    assert "hadw leaves advantages that do not sum to 0" in found.finding
    assert found.change == 'objective.difficulty = { name = "hadw", recentre = true }'
    right = advice(hard, eq.Objective.preset("grpo", difficulty={**hadw, "threshold": 1.0}))["sign-length coupling"]
    assert right.evidence is True
    assert right.change is None  # here the right ones pull harder
    recentred = advice(hard, eq.Objective.preset("grpo", difficulty={**hadw, "recentre": True}))
    assert recentred["sign-length coupling"].evidence is False


def test_baseline_bias_is_found_on_hard_prompts_and_not_on_even_ones():
    hard = advice(Law(a=1, b=4).draw(400, seed=0))["baseline bias"]
    assert hard.evidence is True
    assert hard.change is None  # study 28
    assert hard.finding.endswith("taking it out (debias) changed no half point of accuracy: nothing need change.")
    assert advice(Law(a=1, b=4).draw(400, seed=0), "dapo+hadw")["baseline bias"].evidence is False
    large = advice(Law(a=1, b=1, G=64).draw(400, seed=0))["baseline bias"]
    assert large.evidence is False  # the bias falls with G
    graded = Law().draw(50, seed=0)
    graded["reward"] = graded["reward"] + np.linspace(0, 0.1, len(graded["reward"]))
    assert advice(graded)["baseline bias"].evidence is None
    assert advice(Law().draw(50, seed=0), "reinforce")["baseline bias"].evidence is False


def test_shared_prefixes_need_tokens_and_cost_where_the_rule_breaks_exchangeability():
    rng = np.random.default_rng(0)
    columns = Law(right=12, wrong=24, sigma=0.1).draw(100, seed=0)
    assert advice(columns)["shared prefixes"].evidence is None
    columns["tokens"] = [[7] * 6 + rng.integers(0, 1000, n - 6).tolist() for n in columns["length"]]
    assert advice(columns, "dapo")["shared prefixes"].evidence is False
    for objective in ("grpo", "dapo+balanced"):
        found = advice(columns, objective)["shared prefixes"]
        assert found.evidence is True
        assert found.change is None
        assert "prefix, which takes that out, learnt no more on sequence" in found.finding
    assert advice(columns, "dapo+balanced+prefix")["shared prefixes"].evidence is False


def test_degenerate_and_truncated_shares():
    columns = Law(a=0.1, b=0.1).draw(200, seed=0)
    found = advice(columns)
    assert found["degenerate groups"].evidence is True
    assert found["degenerate groups"].change == "rollout.dynamic_sampling = true"
    assert found["truncation"].evidence is None
    cut = {**columns, "finish": np.where(columns["length"] > 700, "length", "stop")}
    assert advice(cut)["truncation"].evidence is True
    assert advice({**columns, "finish": ["stop"] * len(columns["length"])})["truncation"].evidence is False
    assert advice(Law(a=20, b=20).draw(200, seed=0))["degenerate groups"].evidence is False


def test_one_group_is_called_too_few_and_not_none():
    said = advice({"reward": [1, 0, 1, 1, 0, 0], "prompt": list("aabbcc"), "length": [7, 3, 5, 1, 1, 3]})
    assert said["regime"].finding == "no evidence: too few groups have both right and wrong responses."
    coupling = said["sign-length coupling"].finding
    assert coupling.endswith("times as hard as wrong ones, by too few groups for an interval.")
    none = advice({"reward": [1, 1, 0, 0], "prompt": list("bbcc"), "length": [5, 1, 1, 3]})
    assert none["regime"].finding == "no evidence: no group has both right and wrong responses."


def test_nothing_is_found_where_nothing_can_be():
    same = {"prompt": [0, 0, 1, 1], "reward": [1, 1, 0, 0], "length": [3, 4, 5, 6]}
    assert not any(a.evidence for a in advise(measure(same, "dapo")))


def test_beyond():
    assert beyond(Estimate(2, 1, 3), 0.5) is True
    assert beyond(Estimate(2, 1, 3), 1.5) is None
    assert beyond(Estimate(2, 1, 3), 3) is False
    assert beyond(Estimate(2), 0) is None
    assert beyond(Estimate(None), 0) is None


# The page


def test_the_page_fits_and_says_what_was_measured(tmp_path, monkeypatch):
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table(Law().draw(60, seed=0, steps=3)), path)
    text = main_text([str(path)], "dapo", ["sequence", "balanced", "balanced+hadw", "grpo", "dr_grpo"])
    assert max(map(len, text.splitlines())) <= 100
    for word in ("60 prompts", "length CV", "E[p̂|S] − p", "balanced+hadw", "dr_grpo", "Advice", "±"):
        assert word in text
    assert "\x1b" not in text
    assert "\x1b" in main_text([str(path)], "dapo", color=True)
    monkeypatch.setenv("COLUMNS", "60")
    narrow = main_text([str(path)], "dapo", ["sequence", "balanced", "balanced+hadw", "grpo", "dr_grpo"])
    table, advice = text.partition("\nAdvice\n")[0], narrow.partition("\nAdvice\n")[2]
    assert narrow.startswith(table)  # no cell is cut
    assert max(map(len, advice.splitlines())) <= 60
    told = json.loads(main_text([str(path)], "dapo", as_json=True))
    assert {a["topic"] for a in told["advice"]} == {a.topic for a in advise(measure(path, "dapo"))}


def test_sparks():
    assert spark([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert spark([1.0, 1.0 + 1e-15]) == "▁▁"
    assert spark([None, 1, 3]) == " ▁█"
    assert spark([None]) == ""
    assert len(spark(list(range(1000)))) == 32


def test_a_log_without_differences_leaves_no_gaps_in_the_sentences():
    """No token weighs anything where all rewards are alike; nothing is "unknown %"."""
    columns = {"prompt": [0, 0, 1, 1], "reward": [0.0] * 4, "length": [2] * 4, "tokens": [[1, 2]] * 4}
    found = advice(columns, "grpo")
    assert "unknown" not in " ".join(a.finding for a in found.values())
    assert found["shared prefixes"].finding == "no evidence: under grpo no token weighs anything here."
    assert found["length starvation"].finding == "no evidence: under grpo no token weighs anything here."


@pytest.mark.parametrize(
    ("objective", "against", "names"),
    [
        ("dapo+hadw", ["balanced"], ["dapo+hadw", "balanced+hadw"]),
        ("dapo+balanced+prefix", ["hadw"], ["dapo+balanced+prefix", "hadw+prefix"]),
        ("dapo+hadw", ["balanced+debias", "grpo"], ["dapo+hadw", "balanced+debias", "grpo"]),
        ("dapo", ["balanced"], ["dapo", "balanced"]),
    ],
)
def test_what_a_change_keeps_of_the_audited_objective_is_in_its_name(objective, against, names):
    assert list(gathered(objective, against, True)) == names


def _distilled(folder, objective='preset = "distillation"'):
    """A run directory whose teacher gives every token its advantage; rewards are only measured."""
    (folder / "rollouts").mkdir()
    (folder / "config.toml").write_text(f'[objective]\n{objective}\n[train]\nteacher = "model"\n')
    columns = Law(right=600, wrong=900).draw(80, seed=0)
    prompts = np.unique(columns.pop("prompt_id"), return_inverse=True)[1]
    n = len(prompts)
    table = columns | {"prompt_id": prompts, "finish": ["stop"] * n, "logprob_sum": np.zeros(n)}
    pq.write_table(pa.table(table), folder / "rollouts" / "step-1.parquet")
    return folder


def test_a_run_without_advantages_of_rewards_is_told_what_does_not_apply(tmp_path):
    """It was told that no group had right and wrong responses, and that groups with equal rewards teach nothing."""
    run = _distilled(tmp_path)
    said = {a.topic: a for a in advise(measure(run))}
    assert set(said) == {"right against wrong", "truncation"}
    first = said["right against wrong"]
    assert (first.evidence, first.change) == (None, None)
    assert "does not apply: distillation takes no advantage of rewards" in first.finding
    assert "--objective dapo" in first.finding
    page = " ".join(main_text([str(run)]).split())
    assert "does not apply" in page
    for empty in ("What an objective makes of it", "The group baseline", "pull of right : wrong, distillation"):
        assert empty not in page
    assert "mean reward" in page
    both = main_text([str(run)], against=["grpo"])
    assert "What an objective makes of it" in both  # grpo's column has something to say
    assert "The group baseline" not in both


def test_a_teacher_beside_rewards_is_noted(tmp_path):
    audit = measure(_distilled(tmp_path, 'preset = "dapo"\ntop_entropy_quantile = 0.2'))
    notes = " ".join(audit.notes)
    assert "train.teacher: what it adds to each token's advantage is not in a log" in notes
    assert "objective.top_entropy_quantile: which tokens it left out is not in a log" in notes
    assert len(advise(audit)) > 2


def test_groups_with_equal_rewards_teach_where_there_is_no_baseline():
    columns = Law(a=0.05, b=0.05).draw(200, seed=0)
    kept = advice(columns, "reinforce")["degenerate groups"]
    assert (kept.evidence, kept.change) == (False, None)
    assert "reinforce takes no baseline, so they teach where that reward is not 0" in kept.finding
    dropped = advice(columns, "grpo")["degenerate groups"]
    assert (dropped.evidence, dropped.change) == (True, "rollout.dynamic_sampling = true")
    regime = advice(columns, "reinforce")["regime"]
    assert regime.finding == "no evidence: too few groups have both A > 0 and A < 0."

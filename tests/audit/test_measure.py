"""The audit's numbers: the same as `assign` reports, and the closed forms where the truth is known."""

import dataclasses
import json
import sys

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise import theory
from equipoise.audit import AuditError, from_table, measure
from equipoise.audit.bootstrap import Estimate

from .synthetic import Law

STACKS = {
    **{name: {"preset": name} for name in ("grpo", "dapo", "dr_grpo", "rloo", "maxrl", "reinforce", "dfpo")},
    "balanced": {"preset": "dapo", "aggregation": "balanced"},
    "hadw": {"preset": "dapo", "difficulty": "hadw"},
    "debias": {"preset": "grpo", "difficulty": "debias"},
    "power": {"preset": "grpo", "aggregation": "power"},
    "informative": {"preset": "dapo", "averaged_groups": "informative"},
    "orthogonal": {"preset": "grpo", "cancellation": "orthogonal"},
    "recentre": {"preset": "dapo", "aggregation": "balanced", "cancellation": "recentre"},
    "prefix": {"preset": "dapo", "aggregation": "balanced", "cancellation": "prefix"},
}


def table(seed: int, groups: int = 12, with_tokens: bool = True) -> dict:
    """One step of groups of 2 to 9 responses over a tiny alphabet: prefixes are shared, some groups are degenerate."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 10, groups)
    group = np.repeat(np.arange(groups), sizes)
    lengths = rng.integers(0, 12, len(group))
    columns = {"prompt": group, "reward": (rng.random(len(group)) < 0.5) * 1.0, "length": lengths}
    if with_tokens:
        columns["tokens"] = [rng.integers(0, 2, n).tolist() for n in lengths]
    return columns


def assigned(columns: dict, objective: eq.Objective) -> dict[str, float]:
    tokens = torch.tensor([t for response in columns["tokens"] for t in response])
    credit = objective.assign(columns["reward"], columns["prompt"], columns["length"], tokens=tokens)
    return {k.removeprefix("bias/"): float(v) for k, v in credit.metrics.items()}


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_step_has_the_measures_that_assign_reports(name, seed):
    columns, stack = table(seed), dict(STACKS[name])
    objective = eq.Objective.preset(stack.pop("preset"), **stack)
    audit = measure(columns, objective, [])
    expected = assigned(columns, eq.Objective(**objective.choices()))
    (found,) = (m for m in audit.overall.objectives.values())
    seen = 0
    for key, value in expected.items():
        if key in found and found[key].value is not None:
            assert found[key].value == pytest.approx(value, abs=1e-12), key
            assert audit.steps[0].objectives[audit.objective][key].value == pytest.approx(value, abs=1e-12)
            seen += 1
    assert seen == (6 if name == "prefix" else 8)  # prefix has no push per response, only per node
    assert audit.overall.log["length_cv"].value == pytest.approx(expected["length_cv"], abs=1e-12)
    if name not in ("reinforce", "recentre"):  # A > 0 there is not r above the group's mean
        for mine, theirs in (
            ("length_gap", "length_gap"),
            ("within_gap", "group_length_gap"),
            ("within_cv", "group_length_cv"),
        ):
            assert audit.overall.log[mine].value == pytest.approx(expected[theirs], abs=1e-12), mine


@pytest.mark.parametrize("tokens_at_a_time", [1, 25])
def test_shared_prefixes_are_the_same_found_a_few_groups_at_a_time(tokens_at_a_time, monkeypatch):
    columns = table(2)
    columns["length"][columns["prompt"] == 3] = 0  # a group without a token
    columns["tokens"] = [t[:n] for t, n in zip(columns["tokens"], columns["length"], strict=True)]
    expected = measure(columns, "grpo", ["balanced", "balanced+prefix"])
    monkeypatch.setattr(sys.modules["equipoise.audit.sums"], "NODE_TOKENS", tokens_at_a_time)
    found = measure(columns, "grpo", ["balanced", "balanced+prefix"])
    for name, measures in expected.overall.objectives.items():
        for key, e in measures.items():
            other = found.overall.objectives[name][key]
            if e.value is None:
                assert other == e, (name, key)
            else:
                ends = (other.value, other.low, other.high)
                assert ends == pytest.approx((e.value, e.low, e.high), rel=1e-12, abs=1e-15), (name, key)
    value = assigned(columns, eq.Objective.preset("grpo"))["node_learning_tax"]
    assert expected.overall.objectives["grpo"]["node_learning_tax"].value == pytest.approx(value)


def test_coupling_and_shares_by_a_loop_over_responses():
    columns = table(5)
    for stack in (eq.Objective.preset("dapo"), eq.Objective.preset("grpo", difficulty="hadw")):
        c = stack.assign(columns["reward"], columns["prompt"], columns["length"]).coefficient.tolist()
        plus = sum(x * T for x, T in zip(c, columns["length"], strict=True) if x > 0)
        minus = -sum(x * T for x, T in zip(c, columns["length"], strict=True) if x < 0)
        found = measure(columns, stack, []).overall.objectives
        (found,) = found.values()
        assert found["coupling"].value == pytest.approx(plus / minus)
        assert found["positive_share"].value == pytest.approx(plus / (plus + minus))


def test_fixed_lengths_give_the_closed_forms_exactly():
    """Right responses 100 tokens, wrong 150: nothing is left to chance but the rewards."""
    columns = Law(right=100, wrong=150, sigma=0).draw(200, seed=0)
    audit = measure(columns, "dapo", ["sequence", "balanced", "grpo"])
    o, log = audit.overall.objectives, audit.overall.log
    residual = theory.exchangeability_residual(100, 150)
    assert o["dapo"]["coupling"].value == pytest.approx(100 / 150)
    assert o["dapo"]["mass_balance"].value == pytest.approx(-residual)
    assert o["dapo"]["exchangeability"].value == pytest.approx(0, abs=1e-12)
    for rule in ("sequence", "balanced", "grpo"):
        assert o[rule]["coupling"].value == pytest.approx(1)
        assert o[rule]["exchangeability"].value == pytest.approx(residual)
        assert o[rule]["net_push"].value == pytest.approx(
            residual
        )  # right ones are shorter: what all share is pushed up
    assert log["sequence_distance"].value == pytest.approx(0, abs=1e-9)  # no spread within a sign: sequence is balanced
    assert log["token_distance"].value > 0.1
    weights = [w.value for w in audit.overall.token_weight["sequence"] if w.value is not None]
    assert weights[0] / weights[-1] == pytest.approx(
        theory.sequence_token_weight(100, 8) / theory.sequence_token_weight(150, 8)
    )


def contains(estimate: Estimate, truth: float) -> bool:
    return estimate.low <= truth <= estimate.high


LAWS = [pytest.param(Law(), marks=pytest.mark.long), Law(a=1, b=3, right=700, wrong=500)]
LAWS.append(pytest.param(Law(G=16, sigma=0.7), marks=pytest.mark.long))


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_large_log_has_the_truth_in_its_intervals(law):
    audit = measure(law.draw(3000, seed=1, steps=3), "dapo", ["sequence", "balanced"])
    log, o = audit.overall.log, audit.overall.objectives
    tolerated = 4 / 1.96  # five intervals a law: four standard errors, not two
    for found, truth in (
        (log["reward_mean"], law.p),
        (log["length_mean"], law.mean_length),
        (log["length_cv"], law.cv),
        (log["degenerate"], law.degenerate),
        (o["dapo"]["coupling"], law.coupling),
    ):
        half = (found.high - found.low) / 2
        assert abs(found.value - truth) < tolerated * half
        assert half < 0.1 * abs(truth) + 0.01  # and the intervals say something
    overall = audit.overall
    for stratum in ("hard", "moderate", "easy"):
        bias, share = law.baseline(stratum)
        assert overall.baseline_bias[stratum].value == pytest.approx(bias, rel=0.12, abs=0.002)
        for found, truth in ((overall.baseline_bias[stratum], bias), (overall.baseline_share[stratum], share)):
            assert contains(found, truth)
            assert (found.high - found.low) / 2 < 0.4 * abs(truth) + 0.01
    assert o["balanced"]["coupling"].value == pytest.approx(1)
    assert o["sequence"]["coupling"].value == pytest.approx(1)


def test_the_bias_of_the_baseline_is_nearer_to_the_truth_than_at_the_groups_own_mean():
    """Plugging p̂ into the closed form would say half of it for the hardest prompts."""
    law = Law(a=0.3, b=6)
    columns = law.draw(4000, seed=0)
    audit = measure(columns, "grpo", [])
    p = columns["reward"].reshape(-1, law.G).mean(1)
    hard = (p > 0) & (p < 0.25)
    plugged, truth = theory.baseline_bias(p[hard], law.G).mean(), law.baseline("hard")[0]
    found = audit.overall.baseline_bias["hard"].value
    assert abs(found - truth) < 0.1 * truth < abs(plugged - truth)


def test_steps_are_batches_of_their_own_and_the_anchor_moves_from_one_to_the_next():
    columns = Law().draw(60, seed=3, steps=3)
    objective = eq.Objective.preset("dapo", difficulty="hadw")
    audit = measure(columns, objective, [])
    again = eq.Objective.preset("dapo", difficulty="hadw")
    for s, m in enumerate(audit.steps):
        rows = columns["step"] == s
        credit = again.assign(columns["reward"][rows], columns["prompt_id"][rows], columns["length"][rows])
        assert m.step == s
        assert m.objectives[audit.objective]["zero_sum"].value == pytest.approx(float(credit.metrics["bias/zero_sum"]))
    assert (
        objective.state_dict() == eq.Objective.preset("dapo", difficulty="hadw").state_dict()
    )  # the caller's is alone


def test_the_seed_is_that_of_the_resamples():
    first, again, other = (measure(table(0), "dapo", [], seed=seed) for seed in (1, 1, 2))
    assert first == again
    a, b = (audit.overall.objectives["dapo"]["coupling"] for audit in (first, other))
    assert a.value == b.value
    assert (a.low, a.high) != (b.low, b.high)


def test_an_audit_is_json_all_the_way():
    audit = measure(table(0), "dapo")
    back = json.loads(json.dumps(audit.to_json(), allow_nan=False))
    assert (
        back["overall"]["objectives"]["dapo"]["coupling"]["value"] == audit.overall.objectives["dapo"]["coupling"].value
    )
    assert set(back) == {f.name for f in dataclasses.fields(audit)}


def test_what_cannot_be_measured_is_none():
    columns = table(0, with_tokens=False)
    columns["reward"] = np.linspace(0, 1, len(columns["reward"]))
    audit = measure(columns, "dapo")
    assert audit.overall.log["truncated"] == Estimate(None)
    assert audit.overall.objectives["dapo"]["node_learning_tax"] == Estimate(None)
    assert audit.overall.baseline_bias["hard"] == Estimate(None)
    same = {**columns, "reward": np.ones(len(columns["reward"]))}
    assert measure(same, "dapo").overall.objectives["dapo"]["coupling"] == Estimate(None)


def test_one_informative_prompt_gives_a_value_without_an_interval():
    columns = {"prompt": [0, 0, 1, 1, 2, 2], "reward": [1, 0, 1, 1, 0, 0], "length": [5, 9, 5, 6, 7, 8]}
    found = measure(columns, "dapo", []).overall.objectives["dapo"]["coupling"]
    assert found.value == pytest.approx(5 / 9)
    assert found.low is None
    assert found.high is None


def test_objectives_go_by_what_people_call_them():
    columns = table(0)
    audit = measure(columns, "dapo", ["balanced", "balanced+hadw", "grpo", eq.Objective.preset("dr_grpo")])
    assert list(audit.stacks) == ["dapo", "balanced", "balanced+hadw", "grpo", "dr_grpo"]
    assert audit.choices["balanced"]["surrogate"] == eq.Objective.preset("dapo").choices()["surrogate"]
    assert audit.choices["balanced+hadw"]["difficulty"]["name"] == "hadw"
    assert list(measure(columns, "grpo").stacks) == ["grpo", "token", "balanced", "balanced+prefix"]
    with pytest.raises(AuditError, match='did you mean "balanced"'):
        measure(columns, "dapo", ["balancd"])
    with pytest.raises(AuditError, match='did you mean "dapo"'):
        measure(columns, "dapoo")
    with pytest.raises(AuditError, match="twice"):
        measure(columns, "dapo", ["grpo", "grpo"])
    own = eq.Objective.preset("dapo+balanced+hadw")
    with pytest.raises(
        AuditError, match=r"^balanced keeps .* is then balanced\+hadw, which is there .*: grpo\+balanced$"
    ):
        measure(columns, own, ["balanced"])
    assert list(measure(columns, own, ["grpo+balanced"]).stacks) == ["balanced+hadw", "grpo+balanced"]
    with pytest.raises(AuditError, match="exchangeable on every token already"):
        measure(columns, "dapo", ["prefix"])
    with pytest.raises(AuditError, match="needs token ids"):
        measure(table(0, with_tokens=False), "grpo", ["prefix"])


def test_the_audited_objective_may_be_named_among_the_others():
    columns = table(0)
    own = eq.Objective.preset("dapo", aggregation="balanced")
    assert list(measure(columns, own, ["token", "sequence", "balanced"]).stacks) == ["balanced", "token", "sequence"]
    assert list(measure(columns, "dapo", ["dapo", "balanced"]).stacks) == ["dapo", "balanced"]
    with pytest.raises(AuditError, match="dapo is there twice"):
        measure(columns, "dapo", {"dapo": eq.Objective.preset("grpo")})


def test_an_objective_that_refuses_the_log_says_so():
    columns = {**table(0), "reward": np.linspace(-1, 1, len(table(0)["reward"]))}
    with pytest.raises(AuditError, match=r"hadw cannot be applied to step 0: rewards lie in \[-1, 1\]"):
        measure(columns, "dapo", ["hadw"])


def test_a_log_read_before_gives_the_same_audit():
    columns = table(0)
    assert measure(from_table(columns), "dapo") == measure(columns, "dapo")


def test_a_list_of_rules_may_name_the_audited_one_where_a_difficulty_is_kept():
    columns = Law(right=600, wrong=900).draw(20, seed=0)
    objective = eq.Objective.preset("dapo+hadw")
    audit = measure(columns, objective, ["token", "sequence", "balanced"])
    assert list(audit.overall.objectives) == ["token+hadw", "sequence+hadw", "balanced+hadw"]
    with pytest.raises(AuditError, match=r"token keeps what it does not name, .* grpo\+token"):
        measure(columns, objective, ["token"])

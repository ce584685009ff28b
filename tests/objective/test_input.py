"""What is refused, with which sentence, and what is left unchanged by it; and the shapes real batches come in."""

import copy
import math

import numpy as np
import pytest
import torch

import equipoise as eq

from .cases import draw

GOOD = {"rewards": [1.0, 0.0, 1.0, 0.0], "group": [0, 0, 1, 1], "lengths": [3, 5, 2, 4]}
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rewards": [1.0, NAN, 0.0, 0.0]}, r"rewards\[1\] = nan: a reward is a finite number"),
        ({"rewards": [1.0, 0.0, -INF, 0.0]}, r"rewards\[2\] = -inf"),
        ({"rewards": [1.0, 0.0, 0.0]}, r"lengths has shape \(4,\), rewards has 3 rows"),
        ({"rewards": [[1.0, 0.0], [0.0, 1.0]]}, r"rewards has shape \(2, 2\)"),
        ({"rewards": []}, "rewards is empty"),
        ({"rewards": ["1", "0", "1", "0"]}, "rewards must be numbers, one per response: too many dimensions 'str'"),
        ({"rewards": [1.0, None, 1.0, 0.0]}, "rewards must be numbers, one per response: .*NoneType"),
        ({"lengths": ["a", "bc", "d", "ef"]}, "lengths must be numbers, one per response: .*'str'"),
        ({"lengths": [3, -1, 2, 4]}, r"lengths\[1\] = -1.0: a length is a whole number of tokens, 0 or more"),
        ({"lengths": [3, 5, 2.5, 4]}, r"lengths\[2\] = 2.5"),
        ({"lengths": [3, 5, 2]}, r"lengths has shape \(3,\)"),
        ({"lengths": [[3, 5, 2, 4]]}, r"lengths has shape \(1, 4\)"),
        ({"group": [0, 0, 1]}, r"group has shape \(3,\)"),
        ({"group": torch.tensor([0.0, NAN, 1.0, 1.0])}, r"group\[1\] = nan: a group id is a finite number"),
        ({"group": torch.tensor([0.0, 0.0, INF, 1.0])}, r"group\[2\] = inf"),
        ({"group": ["a", None, "b", "b"]}, r"group\[1\] = None"),
        ({"group": torch.tensor([0, 0, 1, 1], dtype=torch.complex64)}, "real numbers"),
        ({"history": torch.tensor([0.5, 0.5, 1.5, NAN])}, r"history\[2\] = 1.5"),
        ({"tokens": torch.arange(13)}, r"tokens has shape \(13,\): it must be \[14\]"),
        ({"rewards": [1.0, 0.0, 2.0, 0.0]}, r"rewards lie in \[0, 2\] but difficulty.reward_range is \[0, 1\]"),
    ],
)
def test_assign_refuses_and_leaves_the_anchor_alone(change, sentence):
    objective = eq.Objective(difficulty="hadw")
    objective.assign(**GOOD)
    before = copy.deepcopy(objective.state_dict())
    with pytest.raises(ValueError, match=sentence):
        objective.assign(**{**GOOD, **change})
    assert objective.state_dict() == before


@pytest.mark.parametrize(
    ("advantage", "rewards", "sentence"),
    [
        ("maxrl", [1.0, -1.0, 0.0, 0.0], "rewards go down to -1"),
        ({"name": "pass_at_k", "k": 2}, [0.5, 0.0, 1.0, 0.0], "pass_at_k must be 0 or 1"),
        (
            {"name": "pass_at_k", "k": 3},
            [1.0, 0.0, 1.0, 0.0],
            "a group has 2 responses: pass_at_k needs at least k = 3",
        ),
    ],
)
def test_advantages_refuse_rewards_they_are_not_defined_for(advantage, rewards, sentence):
    with pytest.raises(ValueError, match=sentence):
        eq.Objective(advantage=advantage).assign(rewards, [0, 0, 1, 1], [1, 1, 1, 1])


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"aggregation": "balancd"}, 'objective.aggregation = "balancd" is not known; did you mean "balanced"?'),
        (
            {"aggregation": {"name": "power", "alfa": 1}},
            'objective.aggregation.power = "alfa" is not known; did you mean "alpha"?',
        ),
        ({"surrogate": {"name": "ppo_clip", "low": "x"}}, "should be like its default"),
        ({"surrogate": 3}, "objective.surrogate"),
        ({"cancellation": "min"}, "objective.cancellation"),
        ({"averaged_groups": "some"}, "objective.averaged_groups"),
        ({"kl_estimator": "k9"}, "objective.kl_estimator"),
        ({"advantage": "reward", "difficulty": "hadw"}, "no baseline"),
        ({"advantage": "opo", "cancellation": "min_replace"}, "ΣA = 0"),
        ({"difficulty": "hadw", "cancellation": "min_replace"}, "which difficulty = hadw breaks"),
        ({"surrogate": "dfpo", "cancellation": "orthogonal", "mismatch": "mis"}, "use mismatch = tis"),
        ({"advantage": "pass_at_k", "difficulty": "debias"}, "not proportional"),
        ({"aggregation": "token", "cancellation": "prefix"}, "would change nothing"),
        ({"aggregation": {"name": "constant", "length": 0.0}}, "must be positive"),
        ({"difficulty": {"name": "hadw", "anchor": "kalmann"}}, "is not an anchor"),
        ({"difficulty": {"name": "hadw", "lam": -1.0}}, "must be positive"),
        ({"difficulty": {"name": "hadw", "reward_range": (1, 0)}}, "low < high"),
        ({"kl": -0.1}, "must not be negative"),
        ({"kl": float("nan")}, "must not be negative"),
        ({"advantage": {"name": "grpo", "std": "sampel"}}, 'did you mean "sample"?'),
        ({"advantage": {"name": "pass_at_k", "k": 0}}, "must be positive"),
        ({"advantage": {"name": "grpo", "eps": -1.0}}, "must be positive"),
        ({"surrogate": {"name": "sapo", "tau_positive": 0.0}}, "must be positive"),
    ],
)
def test_a_stack_that_makes_no_sense_is_refused_when_built(choices, sentence):
    with pytest.raises(ValueError, match="(?s).*" + sentence.replace("?", r"\?")):
        eq.Objective(**choices)


ALL_CHOICES = (
    r"\(advantage, difficulty, cancellation, aggregation, surrogate, averaged_groups, reward_weights, combine, kl, "
    r"kl_estimator, entropy_bonus, mismatch, length_penalty, off_policy_mask\)"
)


@pytest.mark.parametrize("build", [eq.Objective, lambda **knobs: eq.Objective.preset("grpo", **knobs)])
def test_an_unknown_choice_names_the_nearest_and_all_of_them(build):
    for knob in ("balanced", {"name": "balanced"}, {"over": "batch"}):
        with pytest.raises(
            ValueError, match=rf'^objective.agregation is not known; did you mean "aggregation"\? {ALL_CHOICES}$'
        ):
            build(agregation=knob)
    with pytest.raises(ValueError, match=rf"^objective.xyz is not known; use one of {ALL_CHOICES}$"):
        build(aggregation="balanced", xyz=1)


@pytest.mark.parametrize(
    ("knob", "value", "sentence"),
    [
        *((name, value, "must be a number") for name in ("kl", "entropy_bonus", "length_penalty", "off_policy_mask")
          for value in ("0.1", True, [0.1])),
        ("kl", None, "must be a number"),
        *(("reward_weights", value, "must be numbers, one per reward") for value in (1.0, "ab", None, [None], [[1.0]])),
        *(("difficulty", {"name": "hadw", "reward_range": value}, r"must be \(low, high\) with low < high")
          for value in (1.0, "ab", (0.0,), ("a", "b"), (0, 1, 2), None)),
    ],
)  # fmt: skip
def test_an_option_that_is_no_number_is_refused_by_its_name(knob, value, sentence):
    with pytest.raises(ValueError, match=f"^(objective\\.{knob}|difficulty.reward_range) = .* {sentence}"):
        eq.Objective.preset("grpo", **{knob: value})


@pytest.mark.parametrize("name", [3, None, ["grpo"]])
def test_a_preset_that_is_no_name_is_refused(name):
    with pytest.raises(ValueError, match=r"^objective\.preset = .* is not known"):
        eq.Objective.preset(name)


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(ValueError, match='did you mean "grpo"'):
        eq.Objective.preset("grppo")


@pytest.mark.parametrize(
    "group",
    [
        torch.tensor([5, -3, 5, -3]), torch.tensor([0.5, 0.25, 0.5, 0.25]), torch.tensor([True, False, True, False]),
        torch.tensor([1, 0, 1, 0], dtype=torch.uint8), list(torch.tensor([3, 4, 3, 4])), np.array(["a", "b", "a", "b"]),
        np.array([2, 1, 2, 1], dtype=np.uint64),
        ["x", "y", "x", "y"], [("q", 1), ("q", 2), ("q", 1), ("q", 2)], (1, 2, 1, 2),
    ],
)  # fmt: skip
def test_group_ids_of_any_kind(group):
    credit = eq.Objective(advantage="dr_grpo").assign([1.0, 0.0, 0.0, 0.5], group, [1, 2, 3, 4])
    assert credit.advantage.tolist() == [0.5, -0.25, -0.5, 0.25]


def test_degenerate_groups_get_exactly_nothing():
    """A group of one, equal rewards that do not sum exactly, and a middle reward that is its group's mean."""
    rewards = [0.7, *[0.1] * 7, 0.0, 0.1, 0.2]
    group = [0, *[1] * 7, 2, 2, 2]
    lengths = [3] * 11
    for name in ("grpo", "dr_grpo", "rloo", "batch_std", "maxrl", "opo"):
        A = eq.Objective(advantage=name).assign(rewards, group, lengths).advantage
        assert A[:8].tolist() == [0.0] * 8, name
    A = eq.Objective().assign(rewards, group, lengths).advantage
    assert A[9] == 0.0
    A = eq.Objective().assign(torch.tensor(rewards, dtype=torch.float32), group, lengths).advantage
    assert A[9] == 0.0
    assert A[8] < 0 < A[10]


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant", "balanced", "power"])
def test_odd_batches_have_finite_coefficients_and_gradients(aggregation):
    """Empty responses, a whole group of them, single-sign groups, negative rewards, huge and tiny rewards."""
    rewards = torch.tensor([-3.0, 2.5, 0.0, 1.0, 1.0, 1e6, -1e6, 1e-9, 0.0])
    group = torch.tensor([0, 0, 1, 2, 2, 3, 3, 4, 4])
    lengths = torch.tensor([0, 4, 2, 0, 0, 1, 3, 2, 0])
    for cancellation in ("none", "min_replace", "orthogonal", "recentre", "both"):
        objective = eq.Objective(aggregation=aggregation, cancellation=cancellation)
        credit = objective.assign(rewards, group, lengths)
        assert credit.coefficient.isfinite().all()
        assert (credit.weight >= 0).all()
        logp = torch.full((12,), -1.0, requires_grad=True)
        out = objective.loss(logp, torch.full((12,), -1.1), credit, eq.response_ids(lengths))
        out.loss.backward()
        assert logp.grad.isfinite().all()
        assert all(v.isfinite() for v in out.metrics.values())


@pytest.mark.parametrize(("steps", "differ"), [(3, False), (5, True)])
def test_rewards_a_few_roundings_apart(steps, differ):
    """Half the difference is 1.5 or 2.5 roundings of float32: up to two, a sign would be made of noise."""
    eps = torch.finfo(torch.float32).eps
    rewards = torch.tensor([1.0, 1.0 + steps * eps])
    for given in (rewards, rewards.numpy()):
        credit = eq.Objective("dr_grpo").assign(given, [0, 0], [1, 1])
        assert bool((credit.advantage != 0).all()) == differ


@pytest.mark.parametrize(("missing", "said"), [
    ("old_logprobs", "the ratio needs"), ("response", "the coefficient needs"),
])  # fmt: skip
def test_what_loss_needs_is_named_where_it_is_missing(missing, said):
    objective = eq.Objective()
    credit = objective.assign([1.0, 0.0], [0, 0], [1, 1])
    given = {"old_logprobs": torch.zeros(2), "response": torch.tensor([0, 1])} | {missing: None}
    with pytest.raises(ValueError, match=said):
        objective.loss(torch.zeros(2), credit=credit, **given)


def test_a_batch_without_any_token():
    objective = eq.Objective.preset("dapo", aggregation="balanced")
    credit = objective.assign([1.0, 0.0], [0, 0], [0, 0])
    empty = torch.zeros(0, requires_grad=True)
    out = objective.loss(empty, torch.zeros(0), credit, torch.zeros(0, dtype=torch.int64))
    out.loss.backward()
    assert out.loss.item() == 0.0
    assert bool(out.ok)
    assert all(v.isfinite() for v in out.metrics.values())
    assert float(out.metrics["ratio/min"]) == float(out.metrics["ratio/max"]) == float(out.metrics["ratio/mean"]) == 1


def test_averaged_groups_is_a_named_option():
    rewards, group, lengths = [1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1], [2, 4, 10, 20]
    for rule, ratio in (("sequence", 2.0), ("balanced", 2.0), ("constant", 2.0), ("token", 36 / 6)):
        everyone = eq.Objective(aggregation=rule).assign(rewards, group, lengths).coefficient
        informative = eq.Objective(aggregation=rule, averaged_groups="informative").assign(rewards, group, lengths)
        torch.testing.assert_close(informative.coefficient[:2], everyone[:2] * ratio)


def test_several_rewards_are_summed_then_normalised_or_the_other_way_round():
    r = torch.tensor([[1.0, 5.0], [0.0, 9.0], [1.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    group, lengths = [0, 0, 0, 0], [1, 2, 3, 4]
    first = eq.Objective(reward_weights=(1.0, 0.5)).assign(r, group, lengths)
    want = eq.Objective().assign(r[:, 0] + 0.5 * r[:, 1], group, lengths)
    torch.testing.assert_close(first.advantage, want.advantage)
    gdpo = eq.Objective(reward_weights=(1.0, 0.5), combine="advantages").assign(r, group, lengths)
    parts = [eq.Objective().assign(r[:, k], group, lengths).advantage for k in (0, 1)]
    torch.testing.assert_close(gdpo.advantage, parts[0] + 0.5 * parts[1])
    with pytest.raises(ValueError, match="a column per reward weight"):
        eq.Objective(reward_weights=(1.0, 0.5)).assign(r[:, 0], group, lengths)


def test_each_column_is_checked_where_advantages_are_taken_of_each():
    separate = {"reward_weights": (1.0, 1.0), "combine": "advantages"}
    with pytest.raises(ValueError, match="rewards go down to -1"):
        eq.Objective("maxrl", **separate).assign([[1.0, -1.0], [0.0, 1.0]], [0, 0], [1, 1])
    columns = [[1.0, 0.0], [0.0, 1.0]]
    eq.Objective({"name": "pass_at_k", "k": 1}, **separate).assign(columns, [0, 0], [1, 1])
    with pytest.raises(ValueError, match="neither 0 nor 1"):
        eq.Objective({"name": "pass_at_k", "k": 1}, **separate).assign([[0.3, 0.7], [0.6, -0.6]], [0, 0], [1, 1])


def test_half_precision_rewards_keep_both_signs():
    rewards = torch.tensor([1.0] * 7 + [0.98], dtype=torch.bfloat16)
    A = eq.Objective(advantage="dr_grpo").assign(rewards, [0] * 8, [1] * 8).advantage
    assert (A[:7] > 0).all()
    assert A[7] < 0


def test_a_preset_takes_options_for_its_own_choice():
    objective = eq.Objective.preset("dapo", surrogate={"high": 0.3})
    assert str(objective.surrogate) == "ppo_clip(low=0.2, high=0.3)"


def test_a_position_past_the_end_is_refused():
    objective = eq.Objective(aggregation="balanced", cancellation="prefix")
    credit = objective.assign([1.0, 0.0], [0, 0], [2, 2], tokens=torch.tensor([1, 2, 1, 3]))
    flat = torch.full((2,), -1.0)
    with pytest.raises(ValueError, match=r"position\[1\] = 2: it must be a place in response 0"):
        objective.loss(flat, flat, credit, torch.zeros(2, dtype=torch.int64), position=torch.tensor([1, 2]))


def test_token_ids_of_any_integer_dtype():
    objective = eq.Objective(aggregation="balanced", cancellation="prefix")
    tokens = torch.tensor([1, 2, 1, 3])
    credits = [objective.assign([1.0, 0.0], [0, 0], [2, 2], tokens=tokens.to(t)) for t in (torch.int64, torch.int32)]
    assert torch.equal(credits[0].coefficient, credits[1].coefficient)


# loss


@pytest.mark.parametrize("preset", list(eq.PRESETS))
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("place", ["logprobs", "old"])
def test_non_finite_log_probabilities_are_counted_flagged_and_harmless(preset, bad, place):
    case = draw(4, empty=False)
    objective = eq.Objective.preset(preset)
    credit = case.assign(objective)
    logp, old = case.logprobs(case.logits).clone(), case.old.clone()
    (logp if place == "logprobs" else old)[[1, 3]] = bad
    logp.requires_grad_()
    out = objective.loss(logp, old, credit, case.response)
    out.loss.backward()
    assert not bool(out.ok)
    assert float(out.metrics["nonfinite_tokens"]) == 2
    assert out.loss.isfinite()
    assert logp.grad.isfinite().all()
    assert logp.grad[[1, 3]].tolist() == [0.0, 0.0]


def test_non_finite_reference_entropy_and_rollout_are_harmless_too():
    case = draw(4, empty=False)
    objective = eq.Objective(kl=0.1, kl_estimator="k3_ratio", entropy_bonus=0.1, mismatch="tis")
    credit = case.assign(objective)
    for name in ("ref_logprobs", "entropy", "rollout_logprobs"):
        logp = case.logprobs(case.logits).clone().requires_grad_()
        extra = {k: case.old.clone() for k in ("ref_logprobs", "entropy", "rollout_logprobs")}
        extra[name][2] = NAN
        out = objective.loss(logp, case.old, credit, case.response, **extra)
        out.loss.backward()
        assert not bool(out.ok)
        assert out.loss.isfinite()
        assert logp.grad.isfinite().all()
        assert float(logp.grad[2]) == 0.0


def test_loss_refuses_shapes_rows_and_missing_arguments():
    case = draw(4, empty=False)
    objective = eq.Objective()
    credit = case.assign(objective)
    logp, old, response = case.logprobs(case.logits), case.old, case.response
    with pytest.raises(ValueError, match="one per token"):
        objective.loss(logp, old[1:], credit, response)
    with pytest.raises(ValueError, match="flat"):
        objective.loss(logp[None], old[None], credit, response[None])
    with pytest.raises(ValueError, match=r"response\[2\] = 99: it must be a row, 0 to"):
        objective.loss(logp, old, credit, torch.cat([response[:2], torch.tensor([99]), response[3:]]))
    with pytest.raises(ValueError, match=r"response\[0\] = -1"):
        objective.loss(logp, old, credit, torch.cat([torch.tensor([-1]), response[1:]]))
    with pytest.raises(ValueError, match="int64"):
        objective.loss(logp, old, credit, response.double())
    for choices, name in (
        ({"kl": 0.1}, "ref_logprobs"),
        ({"entropy_bonus": 0.1}, "entropy"),
        ({"mismatch": "tis"}, "rollout_logprobs"),
    ):
        with pytest.raises(ValueError, match=rf"needs loss\(..., {name}=…\)"):
            eq.Objective(**choices).loss(logp, old, credit, response)
    prefix = eq.Objective(aggregation="balanced", cancellation="prefix")
    with pytest.raises(ValueError, match="position"):
        prefix.loss(logp, old, case.assign(prefix), response)
    with pytest.raises(ValueError, match="tokens"):
        prefix.assign(case.rewards, case.group, case.lengths)


@pytest.mark.parametrize("part", [slice(None), slice(0, 3), slice(3, None), slice(1, 2), slice(0, 0)])
@pytest.mark.parametrize("preset", ["grpo", "gspo", "dapo"])
def test_more_tokens_than_a_response_was_assigned_are_refused(preset, part):
    """A part of the batch is a micro-batch; a token more than a response has would be weighed as one of its own."""
    objective = eq.Objective.preset(preset)
    credit = objective.assign([1.0, 0.0, 0.0], [0, 0, 1], [3, 2, 9])
    x, response = torch.full((5,), -1.0), torch.tensor([0, 0, 0, 1, 1])
    if preset != "gspo" or part != slice(1, 2):
        objective.loss(x[part], x[part], credit, response[part])
    more = torch.cat([response[part], torch.tensor([1, 1, 1])])
    had = 3 + int((response[part] == 1).sum())
    x = torch.full(more.shape, -1.0)
    said = f"response 1 has {had} tokens in this call of loss, and assign was given 2 for it"
    for tokens in (more, more.flip(0)):
        with pytest.raises(ValueError, match=said):
            objective.loss(x, x, credit, tokens)


def test_more_tokens_than_the_batch_are_refused_by_their_number_alone():
    """Which the host knows also on CUDA, where asking for the tokens of each response would wait."""
    objective = eq.Objective()
    credit = objective.assign([1.0, 0.0], [0, 0], [3, 2])
    x, response = torch.full((6,), -1.0), torch.tensor([0, 0, 0, 1, 1, 1])
    said = "logprobs has 6 tokens, and assign was given 5 for the whole batch"
    for given in (credit, credit.to(torch.device("cpu")), credit.part(torch.tensor([True, True]))):
        with pytest.raises(ValueError, match=said):
            objective.check_tokens(
                given, x, old_logprobs=x, response=response, position=None, entropy=None, ref_logprobs=None,
                rollout_logprobs=None,
            )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_every_precision_gives_a_gradient_of_its_own_precision(dtype):
    case = draw(6, empty=False)
    objective = eq.Objective.preset("dapo")
    credit = case.assign(objective)
    logp = case.logprobs(case.logits).to(dtype).requires_grad_()
    objective.loss(logp, case.old.to(dtype), credit, case.response).loss.backward()
    assert logp.grad.dtype == dtype
    assert logp.grad.abs().sum() > 0


# state, flatten, metrics


def test_state_survives_a_round_trip_through_json():
    import json

    a = eq.Objective(difficulty="hadw")
    b = eq.Objective(difficulty="hadw")
    for k in range(15):
        a.assign([1.0, 0.0, float(k % 2), 0.0], [0, 0, 1, 1], [1, 2, 3, 4])
    b.load_state_dict(json.loads(json.dumps(a.state_dict())))
    for _ in range(5):
        x, y = (o.assign([1.0, 0.0, 1.0, 0.0], [0, 0, 1, 1], [1, 2, 3, 4]) for o in (a, b))
        assert torch.equal(x.advantage, y.advantage)
    assert eq.Objective().state_dict() == {}
    with pytest.raises(ValueError, match="lacks a difficulty anchor"):
        a.load_state_dict({})
    with pytest.raises(ValueError, match="has a difficulty anchor"):
        eq.Objective().load_state_dict(a.state_dict())


@pytest.mark.parametrize("preset", list(eq.PRESETS))
def test_choices_build_the_same_objective_again(preset):
    objective = eq.Objective.preset(preset)
    assert repr(eq.Objective(**objective.choices())) == repr(objective)


def test_flatten_and_unflatten_are_inverse_and_differentiable():
    padded = torch.arange(12.0).view(3, 4).requires_grad_()
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1]])
    flat = eq.flatten(padded, mask)
    assert flat.tolist() == [0.0, 1.0, 9.0, 10.0, 11.0]
    assert eq.response_ids(mask.sum(1)).tolist() == [0, 0, 2, 2, 2]
    assert eq.positions(mask.sum(1)).tolist() == [0, 1, 0, 1, 2]
    back = eq.unflatten(flat, mask, fill=-1.0)
    assert back.tolist()[1] == [-1.0] * 4
    (back * 2).sum().backward()
    assert torch.equal(padded.grad, 2.0 * mask)
    with pytest.raises(ValueError, match="mask"):
        eq.flatten(padded, mask[:, :3])


def test_metrics_by_hand():
    """Two tokens up-clipped in a positive response, one down-clipped in a negative one, of six."""
    objective = eq.Objective.preset("grpo")
    credit = objective.assign([1.0, 0.0], [0, 0], [3, 3])
    ratio = torch.tensor([1.5, 1.3, 0.5, 0.5, 1.5, 1.0], dtype=torch.float64)
    old = torch.full((6,), -1.0, dtype=torch.float64)
    out = objective.loss(old + ratio.log(), old, credit, torch.tensor([0, 0, 0, 1, 1, 1]))
    m = {k: float(v) for k, v in out.metrics.items()}
    assert m["clip_ratio/high"] == pytest.approx(2 / 6)
    assert m["clip_ratio/low"] == pytest.approx(1 / 6)
    assert m["clip_ratio/region"] == pytest.approx(3 / 6)
    assert m["ratio/mean"] == pytest.approx(float(ratio.mean()))
    assert m["ratio/std"] == pytest.approx(float(ratio.std(correction=0)))
    assert (m["ratio/min"], m["ratio/max"]) == pytest.approx((0.5, 1.5))
    assert m["approx_kl"] == pytest.approx(float((ratio - 1 - ratio.log()).mean()))
    assert m["tokens"] == 6
    assert m["loss"] == m["policy_loss"] == pytest.approx(float(out.loss))


def test_bias_metrics_by_hand():
    """T = 2, 6 | r = 1, 0 under token over the group: c = ±1/(2·4); mass Σ cT = (2 − 6)/8, of Σ|c|T = 1."""
    objective = eq.Objective(advantage="dr_grpo", aggregation={"name": "token", "over": "group"})
    m = {k: float(v) for k, v in objective.assign([1.0, 0.0], [0, 0], [2, 6]).metrics.items()}
    assert m["bias/mass_balance"] == pytest.approx(-0.5)
    assert m["bias/exchangeability"] == m["bias/zero_sum"] == m["bias/learning_tax"] == m["bias/equal_weighting"] == 0.0
    assert m["bias/length_cv"] == pytest.approx(0.5)
    assert m["bias/length_gap"] == pytest.approx(1.0)
    m = {k: float(v) for k, v in eq.Objective(advantage="dr_grpo").assign([1.0, 0.0], [0, 0], [2, 6]).metrics.items()}
    assert m["bias/mass_balance"] == 0.0
    assert m["bias/exchangeability"] == pytest.approx((1 / 2 - 1 / 6) / (1 / 2 + 1 / 6))
    assert m["bias/learning_tax"] == pytest.approx((1 / 2 - 1 / 6) / 2)
    assert m["bias/equal_weighting"] == pytest.approx(
        math.sqrt((2 * (1 / 4 - 1 / 8) ** 2 + 6 * (1 / 12 - 1 / 8) ** 2) / 8) * 8
    )
    hard = eq.Objective().assign([1.0, *[0.0] * 7], [0] * 8, [1] * 8).metrics["bias/baseline_bias"]
    p = 1 / 8
    assert float(hard) == pytest.approx((p - p**8) / (1 - (1 - p) ** 8 - p**8) - p)
    assert "bias/baseline_bias" not in eq.Objective().assign([0.3, 0.0], [0, 0], [1, 1]).metrics

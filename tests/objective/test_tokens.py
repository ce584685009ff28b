"""Weights and advantages of each token, and what is built on them, against plain loops, autograd and enumeration."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq

from . import reference
from .cases import draw, relative, split

TOKEN_LEVEL = {
    "dapo": "ppo_clip", "cispo": "cispo", "sapo": "sapo", "reinforce": "reinforce", "grpo_fix": "symmetric_clip",
}  # fmt: skip


def per_token(case, seed):
    rng = np.random.default_rng(seed)
    N = len(case.token)
    return torch.as_tensor(rng.uniform(0, 2, N) * rng.integers(0, 2, N)), torch.as_tensor(rng.normal(size=N))


def gradient(case, objective, credit, parts):
    logits = case.logits.clone().requires_grad_()
    total = 0.0
    for i in parts:
        logp = case.logprobs(logits)[i]
        out = objective.loss(logp, case.old[i], credit, case.response[i], position=case.position[i])
        assert bool(out.ok)
        out.loss.backward()
        total += float(out.loss.detach())
    return total, logits.grad


@pytest.mark.parametrize("preset", TOKEN_LEVEL)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(["weight", "advantage", "both"]))
def test_each_token_has_its_own_coefficient(preset, seed, kind):
    """J = Σ_i w_i Σ_t v_t φ(A_i + a_t), one token at a time through the reference's φ of a single token."""
    case = draw(seed, binary=False, drift=0.3)
    v, a = per_token(case, seed)
    objective = eq.Objective.preset(preset)
    credit = objective.assign(
        case.rewards, case.group, case.lengths,
        token_weight=None if kind == "advantage" else v, token_advantage=None if kind == "weight" else a,
    )  # fmt: skip
    plain = objective.assign(case.rewards, case.group, case.lengths)
    loss, got = gradient(case, objective, credit, case.all())
    logits = case.logits.clone().requires_grad_()
    logp = case.logprobs(logits)
    J = torch.zeros((), dtype=torch.float64)
    for t, i in enumerate(case.response.tolist()):
        A = float(plain.advantage[i]) + (0.0 if kind == "weight" else float(a[t]))
        w = float(plain.weight[i]) * (1.0 if kind == "advantage" else float(v[t]))
        options = objective.surrogate.options
        J = J + w * reference.response_value(TOKEN_LEVEL[preset], A, [logp[t]], [float(case.old[t])], **options)
    (-J).backward()
    assert loss == pytest.approx(-J.item(), rel=1e-10, abs=1e-12)
    assert relative(got, logits.grad) <= 1e-10 or float((got - logits.grad).abs().max()) <= 1e-13


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    preset=st.sampled_from(["grpo", "dapo", "gspo", "cispo", "sapo", "vespo", "aspo", "dppo", "reinforce_pp"]),
    kind=st.sampled_from(["weight", "advantage", "both"]),
)
def test_any_split_gives_the_same_gradient(seed, preset, kind):
    case = draw(seed)
    v, a = per_token(case, seed)
    objective = eq.Objective.preset(preset)
    credit = objective.assign(
        case.rewards, case.group, case.lengths,
        token_weight=None if kind == "advantage" else v, token_advantage=None if kind == "weight" else a,
    )  # fmt: skip
    loss, whole = gradient(case, objective, credit, case.all())
    parts_loss, parts = gradient(case, objective, credit, split(case, objective, seed))
    assert relative(whole, parts) <= 1e-12
    assert loss == pytest.approx(parts_loss, rel=1e-12, abs=1e-13)


def test_as_many_tokens_as_responses_are_no_cause_for_confusion():
    """B = N = 2 with lengths 0 and 2: both tokens are the second response's."""
    credit = eq.Objective("reward", aggregation="constant").assign([5.0, 3.0], [0, 1], [0, 2], token_weight=[1.0, 2.0])
    assert credit.coefficient.tolist() == [1.5, 3.0]


def test_biases_of_token_advantages_are_those_of_the_coefficients():
    case = draw(5, empty=False)
    _, a = per_token(case, 5)
    m = eq.Objective("none", aggregation="token").assign(case.rewards, case.group, case.lengths, token_advantage=a)
    c = m.coefficient
    found = []
    for g in set(case.group.tolist()):
        mine = c[case.group[case.response] == g]
        found.append(abs(float(mine.sum())) / float(mine.abs().sum()))
    assert float(m.metrics["bias/mass_imbalance"]) == pytest.approx(sum(found) / len(found))


def test_the_coefficient_is_the_weight_times_what_a_token_and_its_response_have():
    rewards, lengths, own = [1.0, 0.0, 0.0, 1.0], [1, 2, 3, 2], [0.5, -1.0, 2.0, 0.0, 1.5, -0.5, 3.0, 1.0]
    credit = eq.Objective("dr_grpo", aggregation="token").assign(rewards, ["a"] * 4, lengths, token_advantage=own)
    wanted = [
        (rewards[row] - 0.5 + own[at]) / sum(lengths)
        for at, row in enumerate(itertools.chain.from_iterable([i] * n for i, n in enumerate(lengths)))
    ]
    assert credit.coefficient.tolist() == pytest.approx(wanted)


def test_a_coefficient_of_each_token_is_asked_for_by_row_and_position():
    o = eq.Objective("reward", aggregation="constant")
    response, position = torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1])
    plain = o.assign([5.0, 3.0], [0, 1], [1, 2])
    found = o.token_coefficient(plain, response, None, torch.float64)
    assert torch.equal(found, plain.coefficient[response])
    weighed = o.assign([5.0, 3.0], [0, 1], [1, 2], token_weight=[1.0, 2.0, 0.5])
    found = o.token_coefficient(weighed, response, position, torch.float64)
    assert torch.equal(found, weighed.coefficient)
    with pytest.raises(ValueError, match=r"position\[2\] = 2: it must be a place in response 1"):
        o.token_coefficient(weighed, response, torch.tensor([0, 0, 2]), torch.float64)


@pytest.mark.parametrize(
    ("choices", "given", "sentence"),
    [
        ({}, {"token_weight": [1.0] * 3}, r"token_weight has shape \(3,\): it must be \[4\]"),
        ({}, {"token_weight": [[1.0, -1.0]] * 2}, r"token_weight has shape \(2, 2\): it must be flat"),
        ({}, {"token_advantage": []}, r"token_advantage has shape \(0,\): it must be \[4\]"),
        ({}, {"token_weight": [1.0, -1.0, 0.0, 0.0]}, r"token_weight\[1\] = -1.0"),
        ({}, {"token_weight": [1.0, math.nan, 0.0, 0.0]}, r"token_weight\[1\] = nan"),
        ({}, {"token_advantage": [1.0, 0.0, math.inf, 0.0]}, r"token_advantage\[2\] = inf"),
        ({"cancellation": "min_replace"}, {"token_weight": [1.0] * 4}, "use none or prefix"),
        ({"aggregation": "balanced"}, {"token_advantage": [1.0] * 4}, "a sign of its own"),
        ({"surrogate": "gmpo"}, {"token_weight": [1.0] * 4}, "geometric mean"),
    ],
)
def test_refused(choices, given, sentence):
    with pytest.raises(ValueError, match=sentence):
        eq.Objective(**choices).assign([1.0, 0.0], [0, 0], [2, 2], **given)


def test_loss_asks_for_positions():
    objective = eq.Objective()
    credit = objective.assign([1.0, 0.0], [0, 0], [2, 2], token_weight=[1.0] * 4)
    flat = torch.full((4,), -1.0)
    with pytest.raises(ValueError, match="position"):
        objective.loss(flat, flat, credit, torch.tensor([0, 0, 1, 1]))


# advantages over the batch


@pytest.mark.parametrize("whiten", ["tokens", "responses"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_reinforce_pp_baseline(whiten, seed):
    """r − μ of the group, then whitened over the batch with the sample variance (statistics over a list of numbers)."""
    case = draw(seed, binary=False, empty=False)
    r, group, T = case.rewards.tolist(), case.group.tolist(), case.lengths.tolist()
    d = reference.advantage("dr_grpo", r, T, group)
    spread = [x for x, n in zip(d, T, strict=True) for _ in range(n if whiten == "tokens" else 1)]
    mean = sum(spread) / len(spread)
    variance = sum((x - mean) ** 2 for x in spread) / max(len(spread) - 1, 1)
    want = [(x - mean) / math.sqrt(variance + 1e-8) for x in d]
    got = eq.Objective({"name": "reinforce_pp", "whiten": whiten}).assign(case.rewards, case.group, case.lengths)
    torch.testing.assert_close(got.advantage, torch.tensor(want, dtype=torch.float64), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("whiten", ["tokens", "responses"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_reinforce_pp_over_equal_lengths_gives_a_group_of_equal_rewards_exactly_no_advantage(whiten, dtype, seed):
    """mean d is 0 there, and what a sum leaves of it is rounding."""
    g = torch.Generator().manual_seed(seed)
    r = torch.tensor([0.0, 0.3, 0.6, 1.0], dtype=dtype)[torch.randint(0, 4, (16,), generator=g)]
    r[0], r[1], r[12:] = 0.0, 1.0, 0.3
    objective = eq.Objective({"name": "reinforce_pp", "whiten": whiten})
    A = objective.assign(r, torch.arange(16) // 4, [3] * 16).advantage
    assert A[12:].tolist() == [0.0] * 4
    assert A[0] < 0 < A[1]


def test_gdpo_divides_the_sum_by_its_deviation_over_the_batch():
    g = torch.Generator().manual_seed(0)
    r = torch.rand(12, 2, generator=g).double()
    group, lengths = torch.arange(12) % 3, [1] * 12
    weights = (1.0, 0.5)
    got = eq.Objective(reward_weights=weights, combine="gdpo").assign(r, group, lengths).advantage.tolist()
    parts = [reference.advantage("grpo", r[:, k].tolist(), lengths, group.tolist()) for k in (0, 1)]
    total = [weights[0] * x + weights[1] * y for x, y in zip(*parts, strict=True)]
    mean = sum(total) / 12
    std = math.sqrt(sum((x - mean) ** 2 for x in total) / 11)
    assert got == pytest.approx([(x - mean) / (std + 1e-6) for x in total], rel=1e-10)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    advantage=st.sampled_from(["grpo", "dr_grpo", "rloo", "maxrl", "batch_std", "pass_at_k", "opo"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_gdpo_gives_a_group_of_equal_rewards_exactly_no_advantage(seed, advantage, dtype):
    """The batch's mean of zero-sum advantages is 0; what a sum leaves of it is rounding, which must not train.

    opo is zero-sum where lengths are equal, as they are here. The first group has a difference, the last has none.
    """
    g = torch.Generator().manual_seed(seed)
    values = torch.tensor([0.0, 1.0] if advantage == "pass_at_k" else [0.0, 0.3, 0.6, 1.0], dtype=dtype)
    r = values[torch.randint(0, len(values), (16, 2), generator=g)]
    r[0], r[1] = values[0], values[-1]
    r[12:] = r[12]
    group = torch.arange(16) // 4
    objective = eq.Objective(advantage, reward_weights=(1.0, 0.5), combine="gdpo", averaged_groups="informative")
    credit = objective.assign(r, group, [3] * 16)
    assert credit.advantage[12:].tolist() == [0.0] * 4
    assert credit.advantage[0] < 0 or advantage == "pass_at_k"  # where fewer than k are wrong, it is 0
    assert not credit.counted[12:].any()


def test_gdpo_subtracts_the_mean_where_advantages_are_not_zero_sum():
    """opo, lengths 1 and 3: A = ¾, −¼ and 0, 0, whose mean is ⅛: by definition the second group has an advantage."""
    objective = eq.Objective("opo", reward_weights=(1.0,), combine="gdpo")
    got = objective.assign([1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1], [1, 3, 2, 2]).advantage
    d = torch.tensor([0.75, -0.25, 0.0, 0.0], dtype=torch.float64) - 0.125
    torch.testing.assert_close(got, d / (d.std() + 1e-6), rtol=1e-12, atol=0)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_length_penalty_is_gated_by_success(seed):
    """r = 1[right](1 − α·sigmoid(z)), z among the right responses to the prompt; wrong ones keep their reward.

    A masked response, whose length `assign` does not know, counts as of mean length, and for no other's mean.
    """
    case = draw(seed)
    r, group, T = case.rewards.tolist(), case.group.tolist(), case.lengths.tolist()
    want = []
    for i in range(len(r)):
        right = [T[j] for j in reference.members(group, i) if r[j] == 1 and T[j]]
        if r[i] == 0 or T[i] == 0:
            want.append(0.85 * r[i])
            continue
        mean = sum(right) / len(right)
        std = math.sqrt(sum((t - mean) ** 2 for t in right) / len(right))
        z = (T[i] - mean) / std if std else 0.0
        want.append(1 - 0.3 / (1 + math.exp(-z)))
    plain = eq.Objective("dr_grpo").assign(want, case.group, case.lengths).advantage
    got = eq.Objective("dr_grpo", length_penalty=0.3).assign(case.rewards, case.group, case.lengths).advantage
    torch.testing.assert_close(got, plain, rtol=1e-10, atol=1e-12)
    for wrong in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="length_penalty"):
            eq.Objective(length_penalty=wrong)


# masks and weights of the sampler


def test_icepop_keeps_the_weight_between_two_bounds_and_drops_the_rest():
    case = draw(13, binary=False)
    rollout = case.old + torch.randn(len(case.old), generator=torch.Generator().manual_seed(0)).double()
    objective = eq.Objective(surrogate="reinforce", mismatch={"name": "icepop", "alpha": 0.6, "beta": 1.8})
    credit = case.assign(objective)
    logp = case.logprobs(case.logits).requires_grad_()
    objective.loss(logp, case.old, credit, case.response, rollout_logprobs=rollout).loss.backward()
    kept = 0
    for t, i in enumerate(case.response.tolist()):
        k = math.exp(float(case.old[t] - rollout[t]))
        weight = k if 0.6 <= k <= 1.8 else 0.0
        kept += weight > 0
        assert float(logp.grad[t]) == pytest.approx(-weight * float(credit.coefficient[i]), rel=1e-10, abs=1e-15)
    assert 0 < kept < len(case.old)


@pytest.mark.parametrize("with_rollout", [False, True])
def test_off_policy_sequence_masking(with_rollout):
    """A response leaves the loss where A < 0 and the mean of log(π_old/π) over its tokens is above δ."""
    dropped = kept = 0
    for seed in range(12):
        case = draw(seed, empty=False, drift=0.5)
        objective = eq.Objective(surrogate="reinforce", off_policy_mask=0.1)
        assert objective.needs_whole_responses
        credit = case.assign(objective)
        logp = case.logprobs(case.logits).requires_grad_()
        sampled = case.old + 0.1 if with_rollout else case.old
        rollout = sampled if with_rollout else None
        objective.loss(logp, case.old, credit, case.response, rollout_logprobs=rollout).loss.backward()
        for i in range(len(case.rewards)):
            row = case.response == i
            far = float((sampled[row] - logp.detach()[row]).mean()) > 0.1
            out = far and float(credit.advantage[i]) < 0
            dropped, kept = dropped + out, kept + (not out)
            want = 0.0 if out else -float(credit.coefficient[i])
            assert logp.grad[row].tolist() == pytest.approx([want] * int(row.sum()), rel=1e-10, abs=1e-15)
    assert dropped
    assert kept


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("option", [{"mismatch": "tis"}, {"mismatch": "mis"}, {"off_policy_mask": 0.1}])
def test_a_token_without_the_samplers_probability_says_nothing_of_the_others(option, bad):
    """Its own gradient is 0; the rest of its response is weighed as if the sampler had agreed on it."""
    objective = eq.Objective(surrogate="reinforce", **option)
    case = draw(2, empty=False, drift=0.5)
    credit = case.assign(objective)
    drawn = case.old + 0.3 * torch.sin(torch.arange(len(case.old)))
    agreeing = case.old if "mismatch" in option else case.logprobs(case.logits)
    for t in range(len(drawn)):
        gradients = []
        for value in (torch.tensor(bad), agreeing[t]):
            rollout = drawn.index_fill(0, torch.tensor(t), float(value))
            logp = case.logprobs(case.logits).requires_grad_()
            out = objective.loss(logp, case.old, credit, case.response, rollout_logprobs=rollout)
            out.loss.backward()
            gradients.append(logp.grad)
        want = gradients[1].index_fill(0, torch.tensor(t), 0.0)
        torch.testing.assert_close(gradients[0], want, rtol=1e-10, atol=1e-15)


def test_a_token_on_its_support():
    """π = ½, ¼, ¼ and the first two kept: S = ¾, so the draw had ⅔ and ⅓."""
    logits = torch.tensor([[0.5, 0.25, 0.25]] * 2, dtype=torch.float64).log()
    log_s = eq.log_kept(logits, torch.tensor([[True, True, False]] * 2))
    own = eq.on_support(logits[[0, 1], [0, 1]], log_s)
    assert own.exp().tolist() == pytest.approx([2 / 3, 1 / 3])


@pytest.mark.parametrize("aggregation", ["sequence", "balanced", "token"])
def test_weights_of_one_change_no_measure(aggregation):
    """One number per token, all 1, is one per response; also for responses of one token, and of none."""
    batch = ([1.0, 0.0, 0.0, 1.0, 0.0], [0, 0, 0, 1, 1], [1, 3, 0, 5, 1])
    objective = eq.Objective(aggregation=aggregation)
    plain, weighed = objective.assign(*batch), objective.assign(*batch, token_weight=torch.ones(10))
    assert float(plain.metrics["bias/equal_weighting"]) > 0 or aggregation == "token"
    for name, value in plain.metrics.items():
        assert float(weighed.metrics[name]) == pytest.approx(float(value), rel=1e-12, abs=1e-15), name


def test_the_entropy_mask_keeps_the_highest_share():
    entropy = torch.tensor([0.1, 2.0, 0.3, 1.0, 0.2, 0.5, 0.4, 0.9, 0.0, 0.7])
    assert eq.entropy_mask(entropy, 0.2).tolist() == [0, 1, 0, 1, 0, 0, 0, 0, 0, 0]
    assert float(eq.entropy_mask(entropy, 1.0).sum()) == 10
    near = torch.tensor([1.0, 1.0 - 1e-5, 1.0 - 1.1e-5], dtype=torch.float64)
    assert eq.entropy_mask(near, 0.3).tolist() == [1, 1, 0]
    case = draw(9)
    keep = eq.entropy_mask(case.old.neg(), 0.3)
    objective = eq.Objective.preset("dapo")
    credit = objective.assign(case.rewards, case.group, case.lengths, token_weight=keep)
    plain = objective.assign(case.rewards, case.group, case.lengths)
    assert torch.equal(credit.coefficient, plain.coefficient[case.response] * keep)
    for wrong in (0.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="keep"):
            eq.entropy_mask(entropy, wrong)
    with pytest.raises(ValueError, match="not a number"):
        eq.entropy_mask(torch.tensor([math.nan, 1.0]))


def test_distillation_follows_the_reverse_kl_exactly():
    """One token, enumerated: Σ_x π(x)·A(x)·∇log π(x) at π = π_old is −∇KL(π ‖ π_T) by autograd."""
    logits = torch.tensor([0.3, -1.0, 0.7, 0.1], dtype=torch.float64, requires_grad=True)
    teacher = torch.log_softmax(torch.tensor([1.0, 0.0, -0.5, 0.2], dtype=torch.float64), -1)
    table = torch.log_softmax(logits, -1)
    (want,) = torch.autograd.grad(-(table.exp() * (table - teacher)).sum(), logits)
    objective = eq.Objective.preset("distillation")
    total = torch.zeros(4, dtype=torch.float64)
    for x in range(4):
        old = table.detach()[x : x + 1]
        credit = objective.assign([0.0], [0], [1], token_advantage=eq.distillation(teacher[x : x + 1], old))
        logp = torch.log_softmax(logits, -1)[x : x + 1]
        out = objective.loss(logp, old, credit, torch.zeros(1, dtype=torch.int64), position=torch.zeros(1).long())
        (part,) = torch.autograd.grad(-out.loss, logits)
        total += float(old.exp()) * part
    torch.testing.assert_close(total, want, rtol=1e-10, atol=1e-12)
    plain, quarter = (eq.distillation(teacher, table, scale) for scale in (1.0, 0.25))
    assert torch.equal(quarter, 0.25 * plain)


# truncated support


def truncated(logits, top_k):
    return logits >= logits.topk(top_k).values[-1]


def test_the_ratio_on_the_sampled_support_is_unbiased_and_the_whole_vocabularys_is_not():
    """Enumerated: responses of two tokens from a top-2 policy; the truth is ∇E[r] of π/S on that support."""
    old_logits = torch.tensor([[0.2, 1.0, -0.5, 0.6], [0.1, -1.0, 0.9, 0.4]], dtype=torch.float64)
    new = (old_logits + torch.tensor([[0.3, -0.2, 0.9, 0.1], [-0.4, 0.8, 0.1, 0.3]])).double().requires_grad_()
    support = torch.stack([truncated(x, 2) for x in old_logits])
    reward = {(a, b): float((3 * a + b) % 4) for a, b in itertools.product(range(4), repeat=2)}

    def tables(logits):
        whole = torch.log_softmax(logits, -1)
        return whole, whole - eq.log_kept(logits, support)[:, None]

    kept = [support[t].nonzero()[:, 0].tolist() for t in (0, 1)]
    _, own = tables(new)
    truth = sum(reward[a, b] * torch.exp(own[0, a] + own[1, b]) for a, b in itertools.product(*kept))
    (want,) = torch.autograd.grad(truth, new)

    objective = eq.Objective("reward", aggregation="constant", surrogate={"name": "gspo", "low": 1.0, "high": 1e9})
    found = {}
    for name in ("support", "vocabulary"):
        total = torch.zeros_like(new)
        for a, b in itertools.product(*kept):
            old_whole, old_own = (x.detach() for x in tables(old_logits))
            at = (torch.tensor([0, 1]), torch.tensor([a, b]))
            p = float(torch.exp(old_own[at].sum()))
            logp, old = (tables(new)[1][at], old_own[at]) if name == "support" else (tables(new)[0][at], old_whole[at])
            # exp(Σ log ρ) r: gspo's s is the mean's exponential, so one "token" carries the response's log-ratio
            credit = objective.assign([reward[a, b]], [0], [1])
            out = objective.loss(logp.sum()[None], old.sum()[None], credit, torch.zeros(1, dtype=torch.int64))
            total += p * torch.autograd.grad(-out.loss, new)[0]
        found[name] = total
    torch.testing.assert_close(found["support"], want, rtol=1e-10, atol=1e-12)
    assert relative(found["vocabulary"], want) > 0.05


def test_the_kept_mass():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0]])
    assert float(eq.log_kept(logits, torch.tensor([[True, False, True, True]]))) == pytest.approx(math.log(0.75))
    with pytest.raises(ValueError, match=r"support\[0\] holds no token"):
        eq.log_kept(logits, torch.zeros(1, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="bool"):
        eq.log_kept(logits, torch.ones(1, 4))


def test_a_response_is_pulled_by_an_advantage_of_its_own_or_of_a_token():
    batch = ([1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1], [1, 2, 2, 1])
    assert eq.Objective().assign(*batch).pulled.tolist() == [True, True, False, False]
    token = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.5, 0.0])
    assert eq.Objective().assign(*batch, token_advantage=token).pulled.tolist() == [True, True, True, False]


def test_no_tokens_have_an_empty_mask():
    assert eq.entropy_mask(torch.zeros(0)).shape == (0,)


@pytest.mark.parametrize("kind", ["none", "weight", "advantage"])
def test_a_token_s_coefficient_by_its_place(kind):
    """Asked for out of order, and without positions where all tokens of a response have one coefficient."""
    lengths = torch.tensor([2, 3])
    given = {} if kind == "none" else {f"token_{kind}": torch.tensor([0.5, 1.0, 2.0, 0.0, 3.0], dtype=torch.float64)}
    credit = eq.Objective.preset("dr_grpo").assign([1.0, 0.0], [0, 0], lengths, **given)
    response, position = torch.tensor([1, 0, 1]), torch.tensor([2, 1, 0])
    found = credit.at(response, None if kind == "none" else position, torch.float64)
    for k, (i, t) in enumerate(zip(response.tolist(), position.tolist(), strict=True)):
        at = 2 * i + t
        weight = float(credit.weight[at]) if kind != "none" else float(credit.weight[i])
        own = float(given["token_advantage"][at]) if kind == "advantage" else 0.0
        assert float(found[k]) == pytest.approx(weight * (float(credit.advantage[i]) + own), abs=1e-15)

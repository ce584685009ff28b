"""Each advantage, aggregation and surrogate against the plain double loops of reference.py, values and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.objective.advantage import over_batch

from . import reference
from .cases import AGGREGATIONS, draw, relative

ADVANTAGES = [
    ("grpo", {}), ("grpo", {"std": "sample", "eps": 1e-6}), ("grpo", {"std": "sample", "eps": 1e-4}), ("dr_grpo", {}),
    ("rloo", {}), ("batch_std", {}), ("maxrl", {}), ("opo", {}), ("reward", {}),
]  # fmt: skip
SURROGATES = {
    "ppo_clip": {"low": 0.2, "high": 0.28}, "dual_clip": {"low": 0.2, "high": 0.2, "cap": 1.2},
    "gspo": {"low": 0.05, "high": 0.08}, "gmpo": {"low": 0.2, "high": 0.2}, "cispo": {"cap": 1.1},
    "sapo": {"tau_positive": 1.0, "tau_negative": 1.05},
    "vespo": {"k_positive": 2.0, "lam_positive": 3.0, "k_negative": 3.0, "lam_negative": 2.0},
    "aspo": {"low": 0.2, "high": 0.28, "cap": 1.3}, "dppo": {"divergence": "tv", "low": 0.05, "high": 0.06, "cap": 1.2},
    "reinforce": {}, "symmetric_clip": {"low": 0.2, "high": 0.28},
    "dfpo": {"ratio": "product", "low": 0.2, "high": 0.3}, "dfpo mean": {"ratio": "mean", "low": 0.2, "high": 0.3},
}  # fmt: skip


@pytest.mark.parametrize(("name", "options"), ADVANTAGES)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), binary=st.booleans())
def test_advantage(name, options, seed, binary):
    case = draw(seed, binary=binary)
    rewards = case.rewards.abs() if name == "maxrl" else case.rewards
    objective = eq.Objective(advantage={"name": name, **options})
    got = objective.assign(rewards, case.group, case.lengths).advantage
    want = reference.advantage(name, rewards.tolist(), case.lengths.tolist(), case.group.tolist(), **options)
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 4))
def test_pass_at_k_advantage(seed, k):
    g = torch.Generator().manual_seed(seed)
    rewards = (torch.rand(24, generator=g) < 0.3).double()
    group, lengths = torch.arange(24) % 3, torch.full((24,), 3)
    got = eq.Objective(advantage={"name": "pass_at_k", "k": k}).assign(rewards, group, lengths).advantage
    want = reference.advantage("pass_at_k", rewards.tolist(), lengths.tolist(), group.tolist(), k=k)
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    sums = torch.zeros(3, dtype=torch.float64).index_add_(0, group, got)
    assert sums.abs().max() < 1e-12


@pytest.mark.parametrize("ends", [(-1.0, 1.0), (1.0, 2.0), (-2.0, -1.0)])
def test_the_right_responses_of_pass_at_k_have_the_higher_reward(ends):
    """HA-DW's `reward_range` may say that the two values are others than 0 and 1."""
    wrong, right = ends
    difficulty = {"name": "hadw", "lam": 1.0, "sharpness": 0.0, "reward_range": ends}
    objective = eq.Objective({"name": "pass_at_k", "k": 2}, difficulty=difficulty)
    A = objective.assign([wrong, right, wrong, wrong], [0] * 4, [1] * 4).advantage
    torch.testing.assert_close(A, torch.tensor([-1 / 3, 1.0, -1 / 3, -1 / 3], dtype=torch.float64))


@pytest.mark.parametrize("reward", [0.0, 1.0])
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "batch_std", "maxrl", "opo", "pass_at_k"])
def test_a_group_of_one_teaches_nothing(name, reward):
    advantage = {"name": name, "k": 1} if name == "pass_at_k" else name
    credit = eq.Objective(advantage).assign([reward, 1.0, 0.0], [0, 1, 1], [3, 3, 3])
    assert float(credit.advantage[0]) == 0
    assert float(credit.advantage[1]) > 0


@pytest.mark.parametrize("rule", AGGREGATIONS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), binary=st.booleans())
def test_aggregation(rule, seed, binary):
    case = draw(seed, binary=binary)
    spec = AGGREGATIONS[rule]
    options = {} if isinstance(spec, str) else {k: v for k, v in spec.items() if k != "name"}
    credit = eq.Objective(aggregation=spec).assign(case.rewards, case.group, case.lengths)
    name = spec if isinstance(spec, str) else spec["name"]
    want = reference.weights(name, credit.advantage.tolist(), case.lengths.tolist(), case.group.tolist(), **options)
    torch.testing.assert_close(credit.weight, torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", SURROGATES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rule=st.sampled_from(["token batch", "sequence", "balanced"]))
def test_surrogate_values_and_gradients(name, seed, rule):
    """Autograd on the logits of a toy softmax policy, through the reference loops and through the closed forms."""
    case = draw(seed, binary=False, drift=0.4)
    options = SURROGATES[name]
    name = name.partition(" ")[0]
    objective = eq.Objective(surrogate={"name": name, **options}, aggregation=AGGREGATIONS[rule])
    credit = case.assign(objective)
    loss, gradient = case.gradient(objective, case.all(), credit)

    logits = case.logits.clone().requires_grad_()
    logp = case.logprobs(logits)
    J = torch.zeros((), dtype=torch.float64)
    for i in range(len(case.rewards)):
        rows = torch.where(case.response == i)[0].tolist()
        if rows and credit.weight[i] > 0:
            value = reference.response_value(
                name, float(credit.advantage[i]), [logp[t] for t in rows], [float(case.old[t]) for t in rows], **options
            )
            J = J + float(credit.weight[i]) * value
    if J.requires_grad:
        (-J).backward()
    wanted = torch.zeros_like(logits) if logits.grad is None else logits.grad
    assert float(loss) == pytest.approx(-J.item(), rel=1e-10, abs=1e-12)
    assert relative(gradient, wanted) <= 1e-10 or float((gradient - wanted).abs().max()) <= 1e-13


def test_dppo_in_kl_divergence():
    for seed in range(20):
        case = draw(seed, binary=False, drift=0.6)
        options = {"divergence": "kl", "low": 0.02, "high": 0.03, "cap": 20.0}
        objective = eq.Objective(surrogate={"name": "dppo", **options})
        credit = case.assign(objective)
        _, gradient = case.gradient(objective, case.all(), credit)
        logits = case.logits.clone().requires_grad_()
        logp = case.logprobs(logits)
        for i in range(len(case.rewards)):
            rows = torch.where(case.response == i)[0].tolist()
            if rows:
                value = reference.response_value(
                    "dppo", float(credit.advantage[i]), [logp[t] for t in rows], case.old[rows].tolist(), **options
                )
                (-float(credit.weight[i]) * value).backward(retain_graph=True)
        assert relative(gradient, logits.grad) <= 1e-10 or float(gradient.abs().max()) < 1e-13


def test_log_ratios_are_clamped_before_exp_and_have_no_gradient_beyond():
    logp = torch.tensor([-1.0, -30.0, -1.0], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-31.0, -1.0, -1.5], dtype=torch.float64)
    objective = eq.Objective(advantage="reward", aggregation="constant")
    credit = objective.assign([-1.0], [0], [3])
    out = objective.loss(logp, old, credit, torch.zeros(3, dtype=torch.int64))
    out.loss.backward()
    e20 = float(torch.exp(torch.tensor(20.0, dtype=torch.float64)))
    assert float(out.loss.detach()) == pytest.approx(e20 + 0.8 + float(torch.tensor(0.5).exp()), rel=1e-7)
    assert logp.grad.tolist() == [0.0, 0.0, pytest.approx(float(torch.tensor(0.5).exp()), rel=1e-6)]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_ba_gen_is_ba_on_binary_rewards(seed):
    """BA: (1/G)·Σ over signs of |S±|·(mean over the tokens of S±), i.e. ℓ = N±/|S±|; BA-gen weighs by |A|."""
    case = draw(seed)
    credit = eq.Objective(aggregation="balanced").assign(case.rewards, case.group, case.lengths)
    P = len(set(case.group.tolist()))
    for i, A in enumerate(credit.advantage.tolist()):
        same = [
            j
            for j in reference.members(case.group.tolist(), i)
            if reference.sign(float(credit.advantage[j])) == reference.sign(A) and case.lengths[j] > 0
        ]
        N = sum(int(case.lengths[j]) for j in same)
        G = len(reference.members(case.group.tolist(), i))
        want = len(same) / N / G / P if A != 0 and N and case.lengths[i] > 0 else 0.0
        assert float(credit.weight[i]) == pytest.approx(want, rel=1e-12)


# KL and mismatch


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3_ratio"])
def test_kl_estimators(estimator):
    case = draw(11, binary=False)
    objective = eq.Objective(kl=0.3, kl_estimator=estimator, aggregation="sequence")
    plain = eq.Objective(aggregation="sequence")
    credit = case.assign(objective)
    logp = case.logprobs(case.logits).requires_grad_()
    ref = case.old + 0.1
    out = objective.loss(logp, case.old, credit, case.response, ref_logprobs=ref)
    base = plain.loss(logp, case.old, credit, case.response)
    (out.loss - base.loss).backward()
    want = logp.detach().clone().requires_grad_()
    G = [len(reference.members(case.group.tolist(), i)) for i in range(len(case.rewards))]
    P, total = len(set(case.group.tolist())), 0.0
    for t, i in enumerate(case.response.tolist()):
        d = want[t] - ref[t]
        kl = {"k1": d, "k2": d**2 / 2, "k3": torch.exp(-d) - 1 + d}.get(estimator)
        if kl is None:
            kl = torch.exp(want[t] - case.old[t]) * (torch.exp(-d) - 1 + d)
        total = total + 0.3 * kl / (P * G[i] * int(case.lengths[i]))
    total.backward()
    torch.testing.assert_close(out.loss - base.loss, total, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(logp.grad, want.grad, rtol=1e-10, atol=1e-12)


def test_mismatch_weights_are_detached_and_capped():
    case = draw(13, binary=False)
    rollout = case.old + 0.5 * torch.randn(len(case.old), generator=torch.Generator().manual_seed(0)).double()
    for mismatch in ("tis", "mis"):
        objective = eq.Objective(surrogate="reinforce", mismatch={"name": mismatch, "cap": 1.1})
        credit = case.assign(objective)
        logp = case.logprobs(case.logits).requires_grad_()
        objective.loss(logp, case.old, credit, case.response, rollout_logprobs=rollout).loss.backward()
        for t, i in enumerate(case.response.tolist()):
            if mismatch == "tis":
                weight = min(float(torch.exp(case.old[t] - rollout[t])), 1.1)
            else:
                row = case.response == i
                weight = float(torch.exp((case.old[row] - rollout[row]).sum()))
                weight = weight if weight <= 1.1 else 0.0
            assert float(logp.grad[t]) == pytest.approx(-weight * float(credit.coefficient[i]), rel=1e-10, abs=1e-15)


@pytest.mark.parametrize(
    ("surrogate", "mismatch"),
    [
        (surrogate, mismatch)
        for surrogate in ("ppo_clip", "dual_clip", "gmpo", "sapo", "symmetric_clip", "reinforce")
        for mismatch in ("none", "tis", "mis", "icepop")
        if (surrogate, mismatch) != ("gmpo", "icepop")  # which is refused
    ],
)
def test_the_gradient_is_that_of_the_loss_under_every_mismatch(surrogate, mismatch):
    """By central differences. Not of gspo, whose token form sg[s]·π/sg[π] holds s fixed."""
    case = draw(3, empty=False)
    objective = eq.Objective(surrogate=surrogate, mismatch=mismatch)
    credit = case.assign(objective)
    logp = case.logprobs(case.logits).detach()
    rollout = None if mismatch == "none" else case.old + 0.3 * torch.cos(50 * case.old)

    def loss(x):
        return objective.loss(x, case.old, credit, case.response, rollout_logprobs=rollout).loss

    (gradient,) = torch.autograd.grad(loss(logp.requires_grad_()), logp)
    with torch.no_grad():
        steps = 1e-6 * torch.eye(len(logp), dtype=torch.float64)
        numbers = torch.stack([(loss(logp + h) - loss(logp - h)) / 2e-6 for h in steps])
    torch.testing.assert_close(gradient, numbers, rtol=0, atol=1e-7 * float(gradient.abs().max()))


def test_gspo_with_tis_is_its_token_form_weighed_by_tis():
    """sg[s]·π/sg[π] at each token, times min(π_old/π_rollout, cap)."""
    case = draw(3, empty=False)
    objective = eq.Objective(surrogate={"name": "gspo", "low": 0.9, "high": 9.0}, mismatch="tis")
    credit = case.assign(objective)
    rollout = case.old + 0.3 * torch.cos(50 * case.old)
    logp = case.logprobs(case.logits).detach().requires_grad_()
    objective.loss(logp, case.old, credit, case.response, rollout_logprobs=rollout).loss.backward()
    log_ratio = (logp - case.old).detach()
    for i, c in enumerate(credit.coefficient.tolist()):
        row = case.response == i
        tis = torch.exp(case.old[row] - rollout[row]).clamp(max=2.0)
        torch.testing.assert_close(logp.grad[row], -c * tis * log_ratio[row].mean().exp(), rtol=1e-12, atol=0)


def test_mismatch_reaches_the_cancelled_weights():
    case = draw(13, empty=False)
    rollout = case.old + 0.3
    gradients = []
    for mismatch in ("none", "tis"):
        objective = eq.Objective.preset("dfpo", mismatch=mismatch)
        credit = case.assign(objective)
        logp = case.logprobs(case.logits).requires_grad_()
        objective.loss(logp, case.old, credit, case.response, rollout_logprobs=rollout).loss.backward()
        gradients.append(logp.grad)
    torch.testing.assert_close(gradients[1], gradients[0] * torch.exp(torch.tensor(-0.3, dtype=torch.float64)))


def test_gdpos_last_step_centres_and_scales_whatever_it_is_given():
    """Also advantages that do not sum to 0: mean 2, sample variance 7."""
    assert over_batch(torch.tensor([0.0, 1.0, 5.0]), zero_sum=False, eps=0.0).tolist() == pytest.approx(
        [(x - 2) / 7**0.5 for x in (0, 1, 5)]
    )

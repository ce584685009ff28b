"""Whose gradient a KL estimator and a correction of the mismatch have: by enumeration, no sampling."""

import itertools

import pytest
import torch

import equipoise as eq

ONE = {"name": "constant", "length": 1.0}
WORDS = 5


def kl_gradient(estimator, policy, sampler, ref):
    """∇ of the loss's KL term, in expectation over one token drawn from the sampler; logits [WORDS]."""
    objective = eq.Objective("reward", aggregation=ONE, surrogate="reinforce", kl=1.0, kl_estimator=estimator)
    credit = objective.assign([0.0], [0], [1])
    logits = policy.clone().requires_grad_()
    logp, old, ref = logits.log_softmax(0), sampler.log_softmax(0), ref.log_softmax(0)
    row = torch.zeros(1, dtype=torch.int64)
    words = zip(*(x.split(1) for x in (logp, old, ref)), strict=True)
    losses = [objective.loss(x, q, credit, row, ref_logprobs=r).loss for x, q, r in words]
    (old.exp() @ torch.stack(losses)).backward()
    return logits.grad


def divergence_gradient(policy, ref, *, backward):
    """∇ of KL(π ‖ π_ref), or backward of KL(π_ref ‖ π)."""
    logits = policy.clone().requires_grad_()
    p, q = logits.log_softmax(0), ref.log_softmax(0)
    divergence = q.exp() @ (q - p) if backward else p.exp() @ (p - q)
    divergence.backward()
    return logits.grad


@pytest.mark.parametrize("seed", range(3))
def test_whose_gradient_each_kl_estimator_has(seed):
    draw = torch.Generator().manual_seed(seed)
    policy, sampler, ref = torch.randn(3, WORDS, dtype=torch.float64, generator=draw)
    forward = divergence_gradient(policy, ref, backward=False)
    backward = divergence_gradient(policy, ref, backward=True)

    def far(a, b):
        return float((a - b).abs().max())

    assert far(forward, backward) > 0.05
    on = {name: kl_gradient(name, policy, policy, ref) for name in ("k1", "k2", "k3", "k3_ratio")}
    assert far(on["k1"], torch.zeros(WORDS)) < 1e-14
    assert far(on["k2"], forward) < 1e-14
    assert far(on["k3"], backward) < 1e-14
    assert far(on["k3_ratio"], forward) < 1e-14
    off = {name: kl_gradient(name, policy, sampler, ref) for name in on}
    assert far(off["k3_ratio"], forward) < 1e-14
    for name in ("k1", "k2", "k3"):
        assert min(far(off[name], forward), far(off[name], backward)) > 0.01
    away = -divergence_gradient(policy, sampler, backward=True)
    assert far(off["k1"], away) < 1e-14


def policy_gradient(mismatch, policy, sampler, rewards):
    """∇ of the loss in expectation over responses of T binary tokens drawn from the sampler, logits of each prefix."""
    objective = eq.Objective("reward", aggregation=ONE, mismatch=mismatch)
    logits = {prefix: x.clone().requires_grad_() for prefix, x in policy.items()}
    total = torch.zeros((), dtype=torch.float64)
    for response, reward in rewards.items():
        T = len(response)

        def logprobs(model, response=response):
            turned = [model[response[:t]] * (1 if word else -1) for t, word in enumerate(response)]
            return torch.nn.functional.logsigmoid(torch.stack(turned))

        logp, drawn = logprobs(logits), logprobs(sampler)
        credit = objective.assign([reward], [0], [T])
        row = torch.zeros(T, dtype=torch.int64)
        loss = objective.loss(logp, logp.detach(), credit, row, rollout_logprobs=drawn).loss
        total = total + drawn.sum().exp() * loss
    total.backward()
    return torch.stack([x.grad for x in logits.values()])


@pytest.mark.parametrize(("T", "left"), [(1, False), (3, True), (6, True)])
def test_tis_removes_the_tokens_own_part_of_the_first_order_bias_and_mis_all_of_it(T, left):
    """The error of the expected gradient under a sampler that is ε away, over ε, as ε → 0."""
    draw = torch.Generator().manual_seed(1)
    responses = list(itertools.product((0, 1), repeat=T))
    prefixes = [prefix for t in range(T) for prefix in itertools.product((0, 1), repeat=t)]
    numbers, moves = torch.randn(2, len(prefixes), dtype=torch.float64, generator=draw)
    policy = dict(zip(prefixes, numbers, strict=True))
    rewards = dict(zip(responses, torch.rand(len(responses), generator=draw).tolist(), strict=True))
    truth = policy_gradient("none", policy, policy, rewards)

    def slope(mismatch, eps=1e-4):
        sampler = dict(zip(prefixes, numbers + eps * moves, strict=True))
        error = policy_gradient(mismatch, policy, sampler, rewards) - truth
        return float(error.norm() / truth.norm()) / eps

    none, tis, mis = slope("none"), slope("tis"), slope("mis")
    assert mis < 1e-9
    assert none > 0.05
    assert (0.1 < tis < 0.5 * none) if left else tis < 1e-9

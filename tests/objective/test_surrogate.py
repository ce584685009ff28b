"""What is one number a response is summed and spread as if every token had its own."""

import dataclasses

import pytest
import torch

import equipoise as eq
from equipoise.objective.cancellation import recentre
from equipoise.objective.chunks import Runs
from equipoise.objective.groups import Groups
from equipoise.objective.surrogate import SURROGATES, Tokens, at_each_token, clip_counts, summed

LENGTHS = torch.tensor([5, 1, 9, 0, 4])


def tokens_of(spread: float) -> Tokens:
    """Responses with one coefficient each, of both signs and 0; log ratios of that deviation."""
    g = torch.Generator().manual_seed(3)
    n = int(LENGTHS.sum())
    old = -torch.rand(n, generator=g, dtype=torch.float64)
    logp = old + spread * torch.randn(n, generator=g, dtype=torch.float64)
    response = eq.response_ids(LENGTHS)
    c = torch.tensor([0.5, -0.3, -0.2, 0.9, 0.0], dtype=torch.float64)
    bounds = torch.aminmax(logp - old)
    runs = Runs.of(response)
    assert runs is not None
    return Tokens(logp, old, logp - old, None, response, LENGTHS, tuple(bounds), runs, c)


@pytest.mark.parametrize("spread", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("name", SURROGATES)
def test_one_number_a_response_is_as_good_as_one_a_token(name, spread):
    tokens = tokens_of(spread)
    own = dataclasses.replace(tokens, token_c=tokens.c, response_c=None, runs=None)
    short, long = SURROGATES[name](tokens), SURROGATES[name](own)
    for mine, other in zip(at_each_token(tokens, short), at_each_token(own, long), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-13, atol=1e-15)
    value, slope = at_each_token(own, long)
    found, expected = summed(tokens, short), summed(own, long)
    torch.testing.assert_close(found.value, value.sum(), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(expected.value, value.sum(), rtol=1e-12, atol=1e-14)
    by_run = torch.from_numpy(tokens.runs.row)
    torch.testing.assert_close(found.slope, own.response_sum(slope)[by_run], rtol=1e-12, atol=1e-14)
    assert clip_counts(tokens, short) == clip_counts(own, long)
    if long.clipped is not None:
        clipped = own.spread_out(long.clipped) > 0
        assert found.low == (clipped & (own.c < 0)).sum()
        assert found.high == (clipped & (own.c > 0)).sum()


@pytest.mark.parametrize("name", ["ppo_clip", "gspo", "gmpo", "dual_clip"])
def test_values_do_not_depend_on_whether_the_host_has_seen_the_ratios(name):
    tokens = tokens_of(1.0)
    unseen = dataclasses.replace(tokens, bounds=None)  # as on CUDA
    seen, other = SURROGATES[name](tokens), SURROGATES[name](unseen)
    for mine, theirs in zip(at_each_token(tokens, seen), at_each_token(unseen, other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(summed(tokens, seen).value, summed(unseen, other).value, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("preset", ["grpo", "gspo", "dfpo", "reinforce"])
def test_going_backward_twice_gives_the_gradient_twice(preset, monkeypatch):
    monkeypatch.setattr("equipoise.objective.chunks.CHUNK", 64)
    lengths = torch.full((16,), 20)
    old = -torch.rand(320, generator=torch.Generator().manual_seed(0))
    logp = (old + 0.05).requires_grad_()
    objective = eq.Objective.preset(preset)
    credit = objective.assign([0.0, 1.0] * 8, torch.arange(16) // 4, lengths)
    loss = objective.loss(logp, old, credit, eq.response_ids(lengths)).loss
    loss.backward(retain_graph=True)
    once = logp.grad.clone()
    assert once.abs().max() > 0
    (3 * loss).backward()
    torch.testing.assert_close(logp.grad, 4 * once)


@pytest.mark.parametrize(("p", "q", "certain"), [(1.0, 0.5, 0), (0.5, 1.0, 1)])
def test_dppo_measures_a_divergence_from_certainty(p, q, certain):
    """log(1 − π) has no value there; the divergence is past any bound all the same, so the token is masked."""
    objective = eq.Objective(surrogate={"name": "dppo", "divergence": "kl"})
    credit = objective.assign(torch.tensor([1.0, 0.0]), torch.zeros(2), torch.tensor([1, 1]))
    logp, old = torch.full((2,), 0.5).log(), torch.full((2,), 0.5).log()
    logp[certain], old[certain] = torch.tensor([p, q]).log()
    logp.requires_grad_()
    objective.loss(logp, old, credit, torch.tensor([0, 1])).loss.backward()
    assert logp.grad[certain] == 0
    assert logp.grad[1 - certain] != 0


def test_recentring_leaves_nothing_of_the_only_response_with_tokens():
    c, real = torch.tensor([3.0, 5.0, 2.0, 4.0]), torch.tensor([True, False, True, True])
    assert recentre(c, real, Groups.of(torch.tensor([0, 0, 1, 1]))).tolist() == [0.0, 0.0, -1.0, 1.0]


def test_recentring_under_balanced_reaches_a_response_without_an_advantage():
    """It has no weight there; its coefficient is minus the mean of the group's, like everyone's change."""
    rewards, lengths = torch.tensor([0.0, 0.5, 1.0]), torch.tensor([2, 3, 7])
    plain, recentred = (
        eq.Objective(aggregation="balanced", advantage="dr_grpo", cancellation=name).assign(
            rewards, torch.zeros(3), lengths
        )
        for name in ("none", "recentre")
    )
    c = plain.coefficient
    assert c[1] == 0
    assert c.sum().abs() > 1e-3
    torch.testing.assert_close(recentred.coefficient, c - c.mean())

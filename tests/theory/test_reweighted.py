"""HA-DW's factor by enumeration, against plain loops over every outcome of a group and autograd on a two-way policy."""

from itertools import product

import numpy as np
import pytest
import torch

from equipoise import theory
from equipoise.objective import Objective

CASES = [(p, G, C, lam) for p in (0.05, 0.25, 0.7) for G in (2, 4, 6) for C in (0.0, 0.3, 0.8) for lam in (0.8, 1.3)]


def factor(r, p_hat, C, lam):
    sign = 1 if r > p_hat else -1
    return lam * np.exp(-sign * (p_hat - C))


def outcomes(p, G):
    """Every outcome of a group that is neither all right nor all wrong, with its probability."""
    for rewards in product((0, 1), repeat=G):
        if 0 < sum(rewards) < G:
            yield np.array(rewards), p ** sum(rewards) * (1 - p) ** (G - sum(rewards))


@pytest.mark.parametrize(("p", "G", "C", "lam"), CASES)
def test_bias_is_the_sum_over_all_outcomes(p, G, C, lam):
    total, mean = 0.0, {0: 0.0, 1: 0.0}
    for rewards, chance in outcomes(p, G):
        total += chance
        for r in (0, 1):
            mean[r] += chance * factor(r, rewards.mean(), C, lam) * (r - rewards.mean())
    for r in (0, 1):
        assert theory.reweighted_bias(r, p, G, C, lam) == pytest.approx(mean[r] / total - (r - p), abs=1e-12)
    implied = -mean[0] / (mean[1] - mean[0])
    assert theory.reweighted_baseline_bias(p, G, C) == pytest.approx(implied - p, abs=1e-12)


# By default one λ for each p, G and C in turn: an objective is built and differentiated for every outcome.
SOME_CASES = [pytest.param(*case, marks=pytest.mark.long if (k // 2 + k) % 2 else ()) for k, case in enumerate(CASES)]


@pytest.mark.parametrize(("p", "G", "C", "lam"), SOME_CASES)
def test_gain_is_the_expected_gradient_of_our_own_objective(p, G, C, lam):
    """A policy with one logit: the expected gradient by it over all outcomes, divided by dp/dlogit."""
    difficulty = {"name": "hadw", "anchor": "fixed", "threshold": C, "lam": lam}
    knobs = {"aggregation": {"name": "constant", "length": 1.0}, "difficulty": difficulty}
    objective = Objective.preset("reinforce", advantage="dr_grpo", **knobs)
    logit = torch.tensor(np.log(p / (1 - p)), dtype=torch.float64, requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for rewards, chance in outcomes(p, G):
        r = torch.tensor(rewards, dtype=torch.float64)
        logp = torch.where(r > 0, torch.nn.functional.logsigmoid(logit), torch.nn.functional.logsigmoid(-logit))
        credit = objective.assign(r, [0] * G, [1] * G)
        total = total - chance * objective.loss(logp, logp.detach(), credit, torch.arange(G)).loss
    total.backward()
    assert theory.reweighted_gain(p, G, C, lam) == pytest.approx(float(logit.grad) / (p * (1 - p)), rel=1e-10)


def test_without_a_difference_to_the_anchor_only_the_scale_is_left():
    """Φ → λ as p̂ − C is the only thing that moves it: at G = 2, p̂ = ½ always."""
    p = np.linspace(0, 1, 11)
    assert theory.reweighted_baseline_bias(p, 2, 0.5) == pytest.approx(theory.baseline_bias(p, 2))
    assert theory.reweighted_gain(p, 2, 0.5, 1.3) == pytest.approx(1.3 * 0.5)


def test_check_values():
    assert theory.baseline_bias(0.25, 8) == pytest.approx(0.028, abs=5e-4)
    assert theory.reweighted_bias(1, 0.25, 8, 0.5, 1.3) == pytest.approx(0.461, abs=5e-4)
    assert np.round(theory.reweighted_gain([0.02, 0.98], 8, 0.5, 1.0), 2).tolist() == [1.24, 1.24]
    assert np.round(theory.reweighted_gain([0.02, 0.98], 8, 0.3, 1.0), 2).tolist() == [1.02, 1.51]


def test_mirror_and_limits():
    p, C = np.linspace(0, 1, 21), 0.3
    assert theory.reweighted_gain(p, 8, C, 1) == pytest.approx(theory.reweighted_gain(1 - p, 8, 1 - C, 1))
    assert theory.reweighted_bias(1, p, 8, C, 1) == pytest.approx(-theory.reweighted_bias(0, 1 - p, 8, 1 - C, 1))
    assert theory.reweighted_gain(0, 8, C, 1) == pytest.approx(7 / 8 * np.exp(C - 1 / 8))
    near = theory.reweighted_bias([0, 1], [[1e-9], [1 - 1e-9]], 8, C, 1)
    assert theory.reweighted_bias([0, 1], [[0.0], [1.0]], 8, C, 1) == pytest.approx(near, abs=1e-7)


def test_groups_of_several_sizes_at_once():
    together = theory.reweighted_bias(1, 0.2, [2, 4, 16], 0.5, 1.3)
    assert together == pytest.approx([theory.reweighted_bias(1, 0.2, G, 0.5, 1.3) for G in (2, 4, 16)])
    gains = theory.reweighted_gain(0.2, [2, 4, 16], 0.5, 1.3)
    assert gains == pytest.approx([theory.reweighted_gain(0.2, G, 0.5, 1.3) for G in (2, 4, 16)])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.reweighted_bias(0.5, 0.5, 8, 0.5, 1.0), "r = 0.5 is not a binary reward"),
        (lambda: theory.reweighted_gain(0.5, 8, 0.5, 0.0), "lam = 0 must be"),
        (lambda: theory.reweighted_gain(0.5, 8, 2.0, 1.0), "anchor = 2 is not a probability"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("sharpness", [0.0, 0.5, 2.0])
@pytest.mark.parametrize(("p", "G", "C"), [(0.1, 4, 0.3), (0.6, 5, 0.8)])
def test_the_gain_follows_the_sharpness(p, G, C, sharpness):
    """E[(1/G) Σ Φ Â ∇log π] on a policy with one logit, over every outcome: ∇log π is 1 − p or −p, ∇p is p(1 − p)."""
    total = 0.0
    for rewards, chance in outcomes(p, G):
        phi = np.exp(-np.where(rewards > 0, 1, -1) * sharpness * (rewards.mean() - C))
        total += chance * np.mean(phi * (rewards - rewards.mean()) * (rewards - p))
    found = theory.reweighted_gain(p, G, C, 1.0, sharpness)
    assert found == pytest.approx(total / (p * (1 - p)), rel=1e-10)
    if sharpness == 0:
        assert found == pytest.approx(theory.gradient_gain(p, G))

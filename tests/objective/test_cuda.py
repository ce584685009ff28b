"""On CUDA: the same numbers as on the CPU, one host synchronisation in `assign`, none in `loss`."""

import warnings

import pytest
import torch

import equipoise as eq

from .cases import draw

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

STACKS = [
    *[(preset, {}) for preset in eq.PRESETS],
    ("dapo", {"aggregation": "balanced", "difficulty": "hadw"}),
    ("grpo", {"aggregation": "balanced", "cancellation": "prefix"}),
    ("gspo", {"cancellation": "orthogonal"}),
    ("grpo", {"cancellation": "recentre", "difficulty": "debias"}),
    ("grpo", {"cancellation": "both"}),
    ("dapo", {"cancellation": "both", "aggregation": "balanced", "difficulty": "hadw"}),
    (
        "grpo",
        {"reward_weights": (1.0,), "kl": 0.1, "kl_estimator": "k3_ratio", "entropy_bonus": 0.1, "mismatch": "tis"},
    ),
]


def synchronisations(call):
    """The result of `call` and the number of times it made the host wait for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            result = call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return result, sum("synchroniz" in str(w.message) for w in seen)


@pytest.mark.parametrize(("preset", "knobs"), STACKS)
def test_same_numbers_and_no_waiting(preset, knobs):
    case = draw(7, torch.float64)
    tokens = case.token if knobs.get("cancellation") == "prefix" else None
    extra = {"entropy": case.old, "ref_logprobs": case.old, "rollout_logprobs": case.old} if "kl" in knobs else {}

    def run(device):
        move = lambda x: None if x is None else x.to(device)  # noqa: E731
        objective = eq.Objective.preset(preset, **knobs)
        inputs = [move(x) for x in (case.rewards, case.group, case.lengths)]
        on_device, logp = move(tokens), move(case.logprobs(case.logits)).requires_grad_()
        old, response, position = (move(x) for x in (case.old, case.response, case.position))
        more = {k: move(v) for k, v in extra.items()}
        if device == "cuda":
            credit, waits = synchronisations(lambda: objective.assign(*inputs, tokens=on_device))
            assert waits <= 1
            out, waits = synchronisations(
                lambda: objective.loss(logp, old, credit, response, position=position, **more)
            )
            assert waits == 0
            _, waits = synchronisations(lambda: out.metrics)
            assert waits == 0
        else:
            credit = objective.assign(*inputs, tokens=on_device)
            out = objective.loss(logp, old, credit, response, position=position, **more)
        out.loss.backward()
        return out.loss.detach().cpu(), logp.grad.cpu(), {k: float(v) for k, v in out.metrics.items()}

    loss, gradient, metrics = run("cpu")
    cuda_loss, cuda_gradient, cuda_metrics = run("cuda")
    torch.testing.assert_close(cuda_loss, loss, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(cuda_gradient, gradient, rtol=1e-10, atol=1e-12)
    assert cuda_metrics == pytest.approx(metrics, rel=1e-8, abs=1e-9)


def test_a_broken_group_is_flagged_without_waiting():
    case = draw(5, empty=False)
    objective = eq.Objective.preset("dfpo")
    credit = objective.assign(case.rewards.cuda(), case.group.cuda(), case.lengths.cuda())
    i = torch.where(case.response == 0)[0]
    logp = case.logprobs(case.logits)[i].cuda().requires_grad_()
    old, response = case.old[i].cuda(), case.response[i].cuda()
    out, waits = synchronisations(lambda: objective.loss(logp, old, credit, response))
    out.loss.backward()
    assert waits == 0
    assert not bool(out.ok)
    assert float(logp.grad.abs().max()) == 0.0


@pytest.mark.parametrize("aggregation", ["sequence", "token", "balanced"])
def test_both_balances_hold_on_cuda_and_the_cpu_agrees(aggregation):
    """1,000 groups of 8 in one call: on CUDA Newton's method runs its full number of steps without asking."""
    generator = torch.Generator().manual_seed(0)
    B, group = 8000, torch.arange(8000) // 8
    lengths = torch.randint(1, 60, (B,), generator=generator)
    rewards = (torch.rand(B, generator=generator) < 0.5).double()
    objective = eq.Objective(cancellation="both", aggregation=aggregation)
    here = objective.assign(rewards, group, lengths)
    # Moved before counting: each copy from the host makes it wait.
    on_device = [x.cuda() for x in (rewards, group, lengths)]
    there, waits = synchronisations(lambda: objective.assign(*on_device))
    assert waits <= 1
    c, T = there.coefficient, there.lengths.double()
    torch.testing.assert_close(c.cpu(), here.coefficient, rtol=1e-8, atol=1e-14)
    for name in ("cancellation/infeasible", "cancellation/clamped"):
        assert float(there.metrics[name]) == pytest.approx(float(here.metrics[name]), abs=1e-9)
    assert float(there.metrics["cancellation/infeasible"]) < 0.2  # most groups have both balances
    plain = eq.Objective(aggregation=aggregation).assign(rewards, group, lengths).coefficient.cuda()
    changed = there.groups.max((c != plain).double()) > 0
    net, mass = there.groups.sum(c).abs(), there.groups.sum(c.abs())
    pull, gradient = there.groups.sum(c * T).abs(), there.groups.sum(c.abs() * T)
    assert bool((net <= 1e-9 * mass)[changed].all())
    assert bool((pull <= 1e-9 * gradient)[changed].all())
    assert bool((c * there.advantage >= 0).all())

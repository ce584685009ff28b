"""`pushed/*`: the biases of what really pushes, off-policy: slopes read off autograd and added up in plain loops."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq

from . import reference
from .cases import draw, relative, split

PRESETS = ["grpo", "dapo", "gspo", "cispo", "dppo", "dfpo", "grpo_fix", "vespo"]


def by_hand(case, gradient):
    """The balance measures of −∂loss/∂log π [N], group by group."""
    c, T, group = (-gradient).tolist(), case.lengths.tolist(), case.group.tolist()
    push, pull = [0.0] * len(T), [0.0] * len(T)
    for t, i in enumerate(case.response.tolist()):
        push[i] += c[t]
        pull[i] += abs(c[t])
    found = {"mass_balance": [], "mass_imbalance": [], "exchangeability": [], "learning_tax": []}
    for g in sorted(set(group)):
        rows = [i for i in range(len(T)) if group[i] == g]
        mass = sum(pull[i] for i in rows)
        if mass == 0:
            continue
        mean = [push[i] / max(T[i], 1) for i in rows]
        found["mass_balance"].append(sum(push[i] for i in rows) / mass)
        found["mass_imbalance"].append(abs(found["mass_balance"][-1]))
        found["exchangeability"].append(abs(sum(mean)) / sum(map(abs, mean)))
        found["learning_tax"].append(abs(sum(mean)) / mass)
    return {name: sum(x) / max(len(x), 1) for name, x in found.items()}


@pytest.mark.parametrize("preset", PRESETS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_pushed_is_the_balance_of_the_gradient_itself_under_any_split(preset, seed):
    case = draw(seed, binary=False, drift=0.3)
    objective = eq.Objective.preset(preset)
    credit = case.assign(objective)
    logp = case.logprobs(case.logits).clone().requires_grad_()
    parts = split(case, objective, seed)
    outputs = [objective.loss(logp[i], case.old[i], credit, case.response[i], position=case.position[i]) for i in parts]
    torch.stack([out.loss for out in outputs]).sum().backward()
    merged = eq.merge_metrics(outputs)
    for name, value in by_hand(case, logp.grad).items():
        assert float(merged[f"pushed/{name}"]) == pytest.approx(value, rel=1e-10, abs=1e-10), name


def shared(case, t):
    """The tokens of the group with the same prefix up to and with token t, and those drawn after the same prefix."""
    starts = case.lengths.cumsum(0) - case.lengths

    def prefix(i, n):
        return case.token[starts[i] : starts[i] + n].tolist()

    i, n = int(case.response[t]), int(case.position[t])
    mates = [j for j in reference.members(case.group.tolist(), i) if int(case.lengths[j]) > n]
    drawn = [j for j in mates if prefix(j, n) == prefix(i, n)]
    return frozenset((j, n) for j in drawn if prefix(j, n + 1) == prefix(i, n + 1)), frozenset((j, n) for j in drawn)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), preset=st.sampled_from(["grpo", "dapo", "grpo_fix", "dfpo"]))
def test_on_the_tokens_that_responses_share(seed, preset):
    """Node by node and context by context from dictionaries; two token ids, so that prefixes are shared."""
    case = draw(seed, drift=0.3)
    case.token = case.token % 2
    case.old = case.logprobs(case.logits) + 0.2 * (case.token - 0.5)
    objective = eq.Objective.preset(preset)
    credit = case.assign(objective)
    logp = case.logprobs(case.logits).clone().requires_grad_()
    parts = split(case, objective, seed)
    outputs = [objective.loss(logp[i], case.old[i], credit, case.response[i], position=case.position[i]) for i in parts]
    torch.stack([out.loss for out in outputs]).sum().backward()
    push, mass, drift = {}, {}, {}
    sizes = {}
    for t, slope in enumerate((-logp.grad).tolist()):
        node, context = shared(case, t)
        push[node] = push.get(node, 0.0) + slope
        mass[node] = mass.get(node, 0.0) + abs(slope)
        sizes[node] = len(reference.members(case.group.tolist(), int(case.response[t])))
        d = float(logp[t].detach() - case.old[t])
        drift.setdefault(context, []).append(float(torch.tensor(d).double().exp()) - 1 - d)
    residuals = [abs(push[n]) / mass[n] for n in push if len(n) >= 2 and mass[n] > 0]
    whole = [abs(push[n]) for n in push if len(n) >= 2 and len(n) == sizes[n]]
    contexts = [sum(x) / len(x) for x in drift.values() if len(x) >= 2]
    got = {k: float(v) for k, v in eq.merge_metrics(outputs).items()}
    total = sum(mass.values())
    assert got["pushed/node_exchangeability"] == pytest.approx(sum(residuals) / max(len(residuals), 1), abs=1e-10)
    assert got["pushed/node_learning_tax"] == pytest.approx(sum(whole) / total if total else 0.0, abs=1e-10)
    assert got["drift/shared_contexts"] == pytest.approx(sum(contexts) / max(len(contexts), 1), abs=1e-10)


def test_on_policy_it_says_what_bias_says():
    case = draw(7, empty=False)
    for preset in ("grpo", "dapo", "dr_grpo"):
        objective = eq.Objective.preset(preset)
        credit = case.assign(objective)
        m = objective.loss(case.old, case.old, credit, case.response, position=case.position).metrics
        for name in ("mass_balance", "mass_imbalance", "exchangeability", "learning_tax", "node_exchangeability"):
            assert float(m[f"pushed/{name}"]) == pytest.approx(float(m[f"bias/{name}"]), abs=1e-12), (preset, name)


def test_sign_dependent_clipping_pushes_a_shared_token_and_symmetric_clipping_does_not():
    """Two responses begin with the same token, whose ρ = 1.5: PPO cuts it for the right one alone."""
    tokens, lengths = torch.tensor([1, 2, 1, 3]), [2, 2]
    ratio = torch.tensor([1.5, 1.0, 1.5, 1.0], dtype=torch.float64)
    old = torch.full((4,), -2.0, dtype=torch.float64)
    left = {}
    for preset in ("dapo", "grpo_fix", "dfpo"):
        objective = eq.Objective.preset(preset)
        credit = objective.assign([1.0, 0.0], [0, 0], lengths, tokens=tokens)
        assert float(credit.metrics["bias/node_exchangeability"]) < 1e-12
        response = eq.response_ids(torch.tensor(lengths))
        out = objective.loss(old + ratio.log(), old, credit, response, position=torch.tensor([0, 1, 0, 1]))
        left[preset] = float(out.metrics["pushed/node_exchangeability"])
    assert left == {"dapo": pytest.approx(1.0), "grpo_fix": 0.0, "dfpo": 0.0}


def test_credit_moves_as_a_whole():
    case = draw(3)
    credit = case.assign(eq.Objective(aggregation="balanced", cancellation="prefix"))
    moved = credit.to(torch.device("cpu"))
    assert torch.equal(moved.coefficient, credit.coefficient)
    assert torch.equal(moved.nodes.node, credit.nodes.node)
    assert relative(moved.groups.size, credit.groups.size) == 0


def test_parts_of_a_credit_move_with_what_they_share_moved_once():
    case = draw(3)
    credit = case.assign(eq.Objective(aggregation="balanced", cancellation="prefix", kl=0.1))
    first = credit.groups.index == 0
    parts = [credit.part(first), credit.part(~first), credit]
    for device in ("cpu", "meta"):  # on which every move makes another tensor
        moved = credit.parts_to(torch.device(device), parts)
        assert len({id(part.nodes) for part in moved}) == len({id(part.lengths) for part in moved}) == 1
        for before, after in zip(parts, moved, strict=True):
            assert after.weight.device.type == after.tokens.device.type == after.kl_weight.device.type == device
            if device == "cpu":
                assert torch.equal(after.coefficient, before.coefficient)
                assert torch.equal(after.kl_weight, before.kl_weight)
                assert after.tokens == before.tokens

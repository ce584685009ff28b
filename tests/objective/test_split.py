"""The gradient does not depend on how a batch is cut up, in what order it comes, or what its groups are called."""

import zlib
from itertools import count, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq

from .cases import AGGREGATIONS, DIFFICULTIES, draw, relative, split


def difficulties(preset: str) -> list[str]:
    """Those that the preset takes; test_input has those it refuses."""
    refused = {"reinforce": set(DIFFICULTIES) - {"none"}, "distillation": set(DIFFICULTIES) - {"none"}}
    refused["reinforce_pp"] = {"debias"}
    return [name for name in DIFFICULTIES if name not in refused.get(preset, ())]


def stacks() -> list:
    """All of them; by default a fifth is tried, in which any two choices still meet."""
    found = []
    for (i, preset), (j, aggregation) in product(enumerate(eq.PRESETS), enumerate(AGGREGATIONS)):
        for k, difficulty in enumerate(names := difficulties(preset)):
            marks = () if k == (i + j) % len(names) else pytest.mark.slow
            choice = (preset, aggregation, difficulty)
            found.append(pytest.param(*choice, id="-".join(choice), marks=marks))
    return found


STACKS = stacks()


def test_any_two_choices_meet_in_a_stack_that_is_tried_by_default():
    default = [stack for stack in STACKS if not stack.marks]
    assert len(default) < len(STACKS) / 4
    for two in ((0, 1), (0, 2), (1, 2)):
        pairs = [{tuple(stack.values[i] for i in two) for stack in some} for some in (default, STACKS)]
        assert pairs[0] == pairs[1]


def build(preset: str, aggregation: str, difficulty: str) -> eq.Objective:
    knobs = {"aggregation": AGGREGATIONS[aggregation], "difficulty": DIFFICULTIES[difficulty]}
    if preset == "dfpo" and difficulty != "none":  # min_replace needs ΣA = 0: test_input
        knobs["cancellation"] = "orthogonal"
    return eq.Objective.preset(preset, **knobs)


@pytest.mark.parametrize(("preset", "aggregation", "difficulty"), STACKS)
def test_splits_order_and_names_do_not_matter(preset, aggregation, difficulty):
    """Each stack has two batches of its own: one that teaches something, and one in single precision."""
    first = zlib.crc32(f"{preset} {aggregation} {difficulty}".encode())
    mixed = next(seed for seed in count(first) if has_a_mixed_group(draw(seed)))
    for seed, dtype, tolerance in ((mixed, torch.float64, 1e-12), (first + 1, torch.float32, 1e-6)):
        case, objective = draw(seed, dtype), build(preset, aggregation, difficulty)
        credit = case.assign(objective)
        loss, gradient = case.gradient(objective, case.all(), credit)
        parts_loss, parts = case.gradient(objective, split(case, objective, seed), credit)
        assert relative(gradient, parts) <= tolerance
        assert abs(loss - parts_loss) <= tolerance * max(1.0, abs(float(loss)))
        if dtype is torch.float64:
            assert_order_and_names_do_not_matter(case, seed, build(preset, aggregation, difficulty), loss, gradient)


def has_a_mixed_group(case) -> bool:
    return any(len(case.rewards[case.group == k].unique()) > 1 for k in case.group.unique())


def assert_order_and_names_do_not_matter(case, seed, objective, loss, gradient):
    rng = np.random.default_rng(seed)
    names = rng.choice(1000, size=int(case.group.max()) + 1, replace=False) - 500
    other = case.permuted(rng.permutation(len(case.rewards)), names)
    other_loss, other_gradient = other.gradient(objective, other.all())
    is_zero = max(float(gradient.abs().max()), float(other_gradient.abs().max())) < 1e-12  # but for rounding
    assert is_zero or relative(gradient, other_gradient) <= 1e-10
    assert abs(loss - other_loss) <= 1e-10 * max(1.0, abs(float(loss)))


CANCELLED = [
    ("grpo", "min_replace"), ("grpo", "orthogonal"), ("grpo", "recentre"), ("grpo", "prefix"), ("gspo", "min_replace"),
    ("gspo", "orthogonal"), ("gspo", "recentre"), ("gspo", "prefix"), ("gmpo", "min_replace"), ("vespo", "orthogonal"),
    ("dfpo", "orthogonal"), ("cispo", "recentre"), ("sapo", "orthogonal"),
]  # fmt: skip


@pytest.mark.parametrize(("preset", "cancellation"), CANCELLED)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), aggregation=st.sampled_from(["sequence", "balanced", "power"]))
def test_cancellation_survives_splits_and_permutations(preset, cancellation, seed, aggregation):
    case = draw(seed)
    objective = eq.Objective.preset(preset, aggregation=aggregation, cancellation=cancellation)
    credit = case.assign(objective)
    loss, whole = case.gradient(objective, case.all(), credit)
    parts_loss, parts = case.gradient(objective, split(case, objective, seed), credit)
    assert relative(whole, parts) <= 1e-12
    rng = np.random.default_rng(seed)
    other = case.permuted(rng.permutation(len(case.rewards)), rng.permutation(int(case.group.max()) + 1))
    other_loss, other_gradient = other.gradient(objective, other.all())
    assert relative(whole, other_gradient) <= 1e-10
    assert float(loss) == pytest.approx(float(parts_loss), rel=1e-12, abs=1e-13)
    assert float(loss) == pytest.approx(float(other_loss), rel=1e-10, abs=1e-11)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_kl_and_entropy_add_up_over_splits(seed):
    case = draw(seed)
    objective = eq.Objective.preset("dapo", aggregation="balanced", kl=0.1, kl_estimator="k3_ratio", entropy_bonus=0.05)
    credit = case.assign(objective)
    reference = case.old - 0.2

    def gradient(parts):
        logits = case.logits.clone().requires_grad_()
        for i in parts:
            table = torch.log_softmax(logits, -1)
            entropy = -(table.exp() * table).sum(-1)[case.context]
            out = objective.loss(
                case.logprobs(logits)[i],
                case.old[i],
                credit,
                case.response[i],
                entropy=entropy[i],
                ref_logprobs=reference[i],
            )
            out.loss.backward()
        return logits.grad

    assert relative(gradient(case.all()), gradient(split(case, objective, seed))) <= 1e-12


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), preset=st.sampled_from(["grpo", "dapo", "cispo", "sapo", "aspo", "dppo"]))
def test_metrics_of_micro_batches_merge_into_those_of_the_batch(seed, preset):
    case = draw(seed)
    objective = eq.Objective.preset(preset)
    credit = case.assign(objective)
    logp = case.logprobs(case.logits)
    whole = objective.loss(logp, case.old, credit, case.response).metrics
    parts = [objective.loss(logp[i], case.old[i], credit, case.response[i]) for i in split(case, objective, seed)]
    merged = eq.merge_metrics(parts)
    assert merged.keys() == whole.keys()
    for name, value in whole.items():
        assert float(merged[name]) == pytest.approx(float(value), rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize("preset", ["gspo", "gmpo", "vespo", "luspo"])
def test_a_split_response_is_refused_where_its_ratio_is_needed(preset):
    case = draw(3, empty=False)
    objective = eq.Objective.preset(preset)
    credit = case.assign(objective)
    half = torch.where(case.position > 0)[0]
    with pytest.raises(ValueError, match="no response may be split over calls of loss"):
        objective.loss(case.logprobs(case.logits)[half], case.old[half], credit, case.response[half])


@pytest.mark.parametrize("preset", ["dfpo", "gspo"])
@pytest.mark.parametrize("cancellation", ["min_replace", "orthogonal"])
def test_a_split_group_is_refused_where_its_ratios_are_needed(preset, cancellation):
    case = draw(5, empty=False)
    objective = eq.Objective.preset(preset, cancellation=cancellation)
    credit = case.assign(objective)
    large = int(torch.bincount(case.group).argmax())
    i = torch.where(case.response == int(torch.where(case.group == large)[0][0]))[0]  # one whole response of a group
    with pytest.raises(ValueError, match="no group may be split over calls of loss"):
        objective.loss(case.logprobs(case.logits)[i], case.old[i], credit, case.response[i])

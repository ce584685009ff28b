"""`both`: the nearest coefficients with Σc = 0 and ΣcT = 0 and no sign turned, against scipy's least squares."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, lsq_linear, nnls

import equipoise as eq
from equipoise.objective import projection
from equipoise.objective.groups import Groups
from equipoise.objective.projection import both, can_pull, project

from .cases import draw, relative, split


def group(rng, G):
    """Sizes, signs and lengths of one group; half of them with few different lengths, where ranges touch."""
    k = int(rng.integers(1, G))
    s = np.where(rng.permutation(G) < k, 1.0, -1.0)
    few = [rng.integers(1, 4, G), rng.choice([30, 4000], G)]
    many = np.maximum(1, np.round(np.exp(rng.normal(5, 0.6, G))))
    T = many if rng.random() < 0.5 else few[rng.integers(2)]
    return np.exp(rng.normal(0, 1, G)), s, np.asarray(T, dtype=float)


def tensors(*arrays):
    return [torch.tensor(x, dtype=torch.float64) for x in arrays]


def one_group(G):
    return Groups.of(torch.zeros(G))


def polished(u, s, T):
    """The exact projection: scipy's bounded least squares says which are 0, and the rest is linear algebra.

    The two sums enter the least squares with a large weight, so its answer is near the projection and its zeros are the
    projection's; on the others v = u − Bᵀ(BBᵀ)⁺Bu.
    """
    B = np.stack([s, s * (T - T.mean()) / max(T.std(), 1e-9)])
    v, _ = nnls(np.vstack([1e4 * B, np.eye(len(u))]), np.concatenate([[0, 0], u]), maxiter=10_000)
    free = v > 1e-6 * u.max()
    exact = np.zeros_like(u)
    exact[free] = u[free] - np.linalg.pinv(B[:, free]) @ (B[:, free] @ u[free])
    return exact


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), G=st.sampled_from([2, 3, 4, 8, 16]))
def test_it_is_the_projection_and_scipy_agrees(seed, G):
    u, s, T = group(np.random.default_rng(seed), G)
    found = both(*tensors(u, s, T), one_group(G))
    if not found.solved[0]:
        assert found.weight.tolist() == u.tolist()
        return
    v = found.weight.numpy()
    assert abs(s @ v) <= 1e-10 * v.sum()
    assert abs(s @ (v * T)) <= 1e-10 * (v @ T)
    assert (v >= 0).all()
    np.testing.assert_allclose(v, polished(u, s, T), atol=1e-8 * u.max())


@pytest.mark.parametrize("seed", range(40))
def test_bounded_least_squares_on_the_dual_agrees(seed):
    """v = u − Bᵀx + y with y ≥ 0 the part cut off: |u − Bᵀx + y| is least at the projection's x and y (Moreau)."""
    u, s, T = group(np.random.default_rng(seed), 8)
    able = can_pull(*tensors(T, s), one_group(8)).numpy()
    v = project(*tensors(u * able, s * able, T), one_group(8)).numpy()
    B = np.stack([s, s * (T - T.mean()) / T.std()])
    dual = np.hstack([B.T, -np.eye(8)])[able]
    bounds = np.concatenate([[-np.inf, -np.inf], np.zeros(8)]), np.inf
    x = lsq_linear(dual, u[able], bounds, method="bvls", tol=1e-14).x if able.any() else np.zeros(10)
    np.testing.assert_allclose(v[able], u[able] - dual @ x, atol=1e-8 * u.max())


def test_a_balanced_group_takes_no_step_and_others_a_few(monkeypatch):
    """On the CPU it stops where both sums are 0, long before the number of steps that a GPU always takes."""
    steps = []
    newton = projection._newton
    monkeypatch.setattr(projection, "_newton", lambda *given: steps.append(1) or newton(*given))
    one = one_group(4)
    u, s, T = tensors([1, 2, 1, 2], [1, 1, -1, -1], [5, 7, 5, 7])
    assert project(u, s, T, one).tolist() == u.tolist()
    assert not steps
    u, s, T = tensors([1, 2, 3, 2], [1, 1, -1, -1], [5, 9, 4, 8])
    assert project(0 * u, s, T, one).tolist() == [0.0] * 4
    assert not steps
    project(u, s, T, one)
    assert 1 <= len(steps) <= 3


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), G=st.sampled_from([2, 3, 5, 8]))
def test_exactly_the_responses_it_names_can_have_a_coefficient(seed, G):
    """Linear programming: the largest c_i of a response over all c that keep both balances and all signs."""
    _, s, T = group(np.random.default_rng(seed), G)
    able = can_pull(*tensors(T, s), one_group(G))
    for i in range(G):
        largest = linprog(-np.eye(G)[i], A_eq=np.stack([s, s * T]), b_eq=[0, 0], bounds=(0, 1)).fun
        assert bool(able[i]) == (-largest > 1e-9)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_length_between_the_two_of_the_other_sign_lets_all_of_them_pull(sign):
    """c = ½, ½, −1 at T = 10, 30, 20, whichever sign the one in the middle has."""
    s = [sign, sign, -sign]
    assert can_pull(*tensors([10.0, 30.0, 20.0], s), one_group(3)).all()
    assert not can_pull(*tensors([10.0, 15.0, 20.0], s), one_group(3)).any()


def test_a_right_answer_longer_than_every_wrong_one_makes_it_impossible():
    """The counter-example: c1 = c2 + c3 and 30·c1 = 10·c2 + 20·c3 leave 20·c2 + 10·c3 = 0, so all are 0."""
    objective = eq.Objective.preset("dapo", aggregation="balanced", cancellation="both")
    credit = objective.assign([1.0, 0.0, 0.0], [0, 0, 0], [30, 10, 20])
    alone = eq.Objective.preset("dapo", aggregation="balanced").assign([1.0, 0.0, 0.0], [0, 0, 0], [30, 10, 20])
    assert credit.metrics["cancellation/infeasible"] == 1
    beside = objective.assign(
        [1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0], [0] * 3 + [1] * 2 + [2] * 2, [30, 10, 20, 5, 5, 7, 7]
    )
    assert credit.metrics["cancellation/clamped"] == 0
    assert beside.metrics["cancellation/infeasible"] == 0.5  # of the groups with both signs
    assert torch.equal(credit.coefficient, alone.coefficient)


def test_two_lengths_have_a_closed_form():
    """Both sums are 0 over a group of two lengths where Σc = 0 at each: c± = k∓(x + y)/(k+ + k−) at each length."""
    lengths = torch.tensor([10, 10, 10, 50, 50, 50, 50])
    rewards = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    base = eq.Objective.preset("dapo", aggregation="balanced").assign(rewards, [0] * 7, lengths)
    credit = eq.Objective.preset("dapo", aggregation="balanced", cancellation="both").assign(rewards, [0] * 7, lengths)
    x, y = float(base.coefficient[0]), -float(base.coefficient[2])
    short = [(x + y) / 3, (x + y) / 3, -2 * (x + y) / 3]
    long = [3 * (x + y) / 4, -(x + y) / 4, -(x + y) / 4, -(x + y) / 4]
    np.testing.assert_allclose(credit.coefficient, short + long, rtol=1e-12)


@pytest.mark.parametrize("aggregation", ["balanced", "token", "sequence", "power"])
@pytest.mark.parametrize("difficulty", ["none", "hadw"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_both_balances_hold_and_no_sign_turns(aggregation, difficulty, seed):
    rng = np.random.default_rng(seed)
    ids = torch.arange(12).repeat_interleave(8)
    rewards = torch.tensor(rng.random(96) < 0.5, dtype=torch.float64)
    lengths = torch.tensor(np.exp(rng.normal(5, 0.5, 96))).long() + 1
    knobs = {"aggregation": aggregation, "difficulty": difficulty}
    plain = eq.Objective.preset("dapo", **knobs).assign(rewards, ids, lengths)
    credit = eq.Objective.preset("dapo", cancellation="both", **knobs).assign(rewards, ids, lengths)
    c, before = credit.coefficient, plain.coefficient
    assert (c * before >= 0).all()
    left_none = (plain.weight > 0) & (credit.weight == 0)
    share = left_none.sum() / (plain.weight > 0).sum()
    assert float(credit.metrics["cancellation/clamped"]) == pytest.approx(float(share))
    changed = credit.groups.max(((c - before).abs() > 0).double()) > 0
    push, mass = credit.groups.sum(c).abs(), credit.groups.sum(c.abs())
    pull, gradient = credit.groups.sum(c * lengths).abs(), credit.groups.sum(c.abs() * lengths)
    assert (push <= 1e-10 * mass)[changed].all()
    assert (pull <= 1e-10 * gradient)[changed].all()
    mixed = credit.groups.max(credit.advantage) * credit.groups.min(credit.advantage) < 0
    unsolved = credit.groups.average((push > 1e-10 * mass).double(), mixed)
    assert float(credit.metrics["cancellation/infeasible"]) >= float(unsolved)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), aggregation=st.sampled_from(["sequence", "balanced", "token"]))
def test_any_split_and_any_order_give_the_same_gradient(seed, aggregation):
    case = draw(seed)
    objective = eq.Objective.preset("dapo", aggregation=aggregation, cancellation="both")
    credit = case.assign(objective)
    _, whole = case.gradient(objective, case.all(), credit)
    _, parts = case.gradient(objective, split(case, objective, seed), credit)
    assert relative(whole, parts) <= 1e-12
    rng = np.random.default_rng(seed)
    other = case.permuted(rng.permutation(len(case.rewards)), rng.permutation(int(case.group.max()) + 1))
    _, reordered = other.gradient(objective, other.all())
    assert relative(whole, reordered) <= 1e-10


@pytest.mark.parametrize(("A", "T"), [(0.0, 25.0), (1.0, 0.0), (-1.0, 0.0)])
def test_a_response_without_a_sign_or_tokens_changes_nothing_and_keeps_its_weight(A, T):
    w, signs, lengths = [1.0, 2.0, 1.5, 0.5], [1.0, -1.0, 1.0, -1.0], [10.0, 20.0, 30.0, 15.0]
    alone = both(*tensors(w, signs, lengths), one_group(4))
    assert alone.solved.all()
    found = both(*tensors([*w, 0.7], [*signs, A], [*lengths, T]), one_group(5))
    torch.testing.assert_close(found.weight[:4], alone.weight, rtol=1e-12, atol=0)
    assert float(found.weight[4]) == 0.7


def test_an_advantage_near_0_can_pull_hardest():
    """docs/theory.md: the projection does not look at how large A is."""
    objective = eq.Objective("dr_grpo", aggregation="balanced", cancellation="both")
    c = objective.assign([1.0, 0.5 + 1e-9, 0.0, 0.5 - 1e-9], [0] * 4, [10, 30, 40, 15]).coefficient
    assert float(c[2]) == 0
    assert int(c.argmin()) == int(c.abs().argmax()) == 3


def test_a_group_that_cannot_be_solved_takes_no_step():
    """Without responses that can pull, the system of a group is 0 = 0: a step that is no number would never settle."""
    groups = Groups.of(torch.tensor([0, 0, 1, 1]))
    v, s, t = tensors([0.0, 0.0, 1.0, 2.0], [0.0, 0.0, 1.0, -1.0], [0.0, 0.0, 1.0, -1.0])
    for step in projection._newton(v, s, t, groups):
        assert step[:2].tolist() == [0.0, 0.0]
        assert step.isfinite().all()


def test_a_thousand_groups_are_solved_at_once():
    rng = np.random.default_rng(0)
    parts = [group(rng, 8) for _ in range(1000)]
    u, s, T = tensors(*(np.concatenate(x) for x in zip(*parts, strict=True)))
    found = both(u, s, T, Groups.of(torch.arange(1000).repeat_interleave(8)))
    for i in (0, 17, 400, 999):
        alone = both(*tensors(*parts[i]), one_group(8))
        assert torch.allclose(found.weight[8 * i : 8 * i + 8], alone.weight, rtol=0, atol=1e-10 * float(u.max()))


def test_all_iterations_as_on_cuda_change_nothing(monkeypatch):
    """On CUDA nobody asks whether it has settled: the same coefficients come of the full number of steps."""
    rng = np.random.default_rng(1)
    parts = [group(rng, 8) for _ in range(200)]
    u, s, T = tensors(*(np.concatenate(x) for x in zip(*parts, strict=True)))
    groups = Groups.of(torch.arange(200).repeat_interleave(8))
    early = both(u, s, T, groups)
    monkeypatch.setattr(projection, "_settled", lambda *_: torch.tensor(False))
    late = both(u, s, T, groups)
    assert torch.equal(early.solved, late.solved)
    assert torch.equal(early.clamped, late.clamped)
    torch.testing.assert_close(early.weight, late.weight, rtol=1e-10, atol=1e-12)

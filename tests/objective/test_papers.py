"""What the three papers claim, as tests (formulas.md §1, §3, §4)."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq

from . import reference
from .cases import draw


def group_sums(case, x):
    return torch.zeros(int(case.group.max()) + 1, dtype=torch.float64).index_add_(0, case.group, x)


def sides(case, credit, g):
    """m = Σ_{S+}A, and (|A|-weighted) arithmetic and harmonic mean lengths of both sides of group g."""
    rows = [i for i in range(len(case.rewards)) if int(case.group[i]) == g]
    A, T = credit.advantage, case.lengths
    out = {}
    for s in (1, -1):
        side = [i for i in rows if reference.sign(float(A[i])) == s]
        if not side:
            return None
        M = sum(abs(float(A[i])) for i in side)
        out[s] = (
            M,
            sum(abs(float(A[i])) * int(T[i]) for i in side) / M,
            M / sum(abs(float(A[i])) / int(T[i]) for i in side),
        )
    return len(rows), out[1], out[-1]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), binary=st.booleans(), rule=st.sampled_from(["sequence", "balanced"]))
def test_mass_balance_holds_for_sequence_and_balanced(seed, binary, rule):
    case = draw(seed, binary=binary, empty=False)
    credit = eq.Objective(aggregation=rule).assign(case.rewards, case.group, case.lengths)
    mass = group_sums(case, credit.coefficient * case.lengths)
    assert mass.abs().max() < 1e-14
    assert abs(float(credit.metrics["bias/mass_balance"])) < 1e-12


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), binary=st.booleans(), over=st.sampled_from(["group", "batch"]))
def test_token_couples_sign_and_length(seed, binary, over):
    """Σ cT = (m/(P·G·ℓ))(T̄+ − T̄−), ℓ the common length: not 0 where the signs differ in length."""
    case = draw(seed, binary=binary, empty=False)
    credit = eq.Objective(aggregation={"name": "token", "over": over}).assign(case.rewards, case.group, case.lengths)
    mass = group_sums(case, credit.coefficient * case.lengths)
    P = len(set(case.group.tolist()))
    for g in range(P):
        if found := sides(case, credit, g):
            G, (m, plus, _), (_, minus, _) = found
            T = case.lengths[case.group == g].double()
            length = float(T.mean()) if over == "group" else float(case.lengths.sum()) / (P * G)
            assert float(mass[g]) == pytest.approx(m * (plus - minus) / (P * G * length), rel=1e-9, abs=1e-14)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    binary=st.booleans(),
    rule=st.sampled_from([{"name": "token", "over": "group"}, {"name": "token", "over": "batch"}, "constant"]),
)
def test_token_and_constant_are_exchangeable(seed, binary, rule):
    case = draw(seed, binary=binary, empty=False)
    credit = eq.Objective(aggregation=rule).assign(case.rewards, case.group, case.lengths)
    assert group_sums(case, credit.coefficient).abs().max() < 1e-14
    assert float(credit.metrics["bias/exchangeability"]) < 1e-12


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), binary=st.booleans(), rule=st.sampled_from(["sequence", "balanced"]))
def test_sequence_and_balanced_push_shared_tokens(seed, binary, rule):
    """sequence: (m/G)(1/H+ − 1/H−), balanced: (m/G)(1/T̄+ − 1/T̄−); for real rewards the means weigh by |A|."""
    case = draw(seed, binary=binary, empty=False)
    credit = eq.Objective(aggregation=rule).assign(case.rewards, case.group, case.lengths)
    push = group_sums(case, credit.coefficient)
    P = len(set(case.group.tolist()))
    for g in range(P):
        if found := sides(case, credit, g):
            G, (m, T_plus, H_plus), (_, T_minus, H_minus) = found
            plus, minus = (H_plus, H_minus) if rule == "sequence" else (T_plus, T_minus)
            assert float(push[g]) == pytest.approx(m / (P * G) * (1 / plus - 1 / minus), rel=1e-9, abs=1e-14)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), C=st.floats(0.05, 0.95), lam=st.floats(0.5, 2.0))
def test_hadw_breaks_zero_sum_by_the_closed_form(seed, C, lam):
    """ΣΦA = sgn(C − p̂)·2λ·sinh|diff|·m"""
    case = draw(seed)
    objective = eq.Objective(difficulty={"name": "hadw", "anchor": "fixed", "threshold": C, "lam": lam})
    plain = eq.Objective().assign(case.rewards, case.group, case.lengths).advantage
    credit = objective.assign(case.rewards, case.group, case.lengths)
    sums = group_sums(case, credit.advantage)
    m = group_sums(case, plain.clamp(min=0))
    p_hat = group_sums(case, case.rewards) / torch.bincount(case.group)
    diff = p_hat - C
    want = -torch.sign(diff) * 2 * lam * torch.sinh(diff.abs()) * m
    torch.testing.assert_close(sums, want, rtol=1e-10, atol=1e-12)
    assert torch.equal(torch.sign(credit.advantage), torch.sign(plain))


def test_min_replace_takes_the_least_of_weight_times_ratio():
    """Two responses of one token whose ratios are 1.08 and 1.05: both get 1.05 of the weight they share."""
    objective = eq.Objective(surrogate="dfpo", aggregation="constant", cancellation="min_replace", advantage="dr_grpo")
    credit = objective.assign([1.0, 0.0], ["q", "q"], [1, 1])
    old = torch.full((2,), -1.0, dtype=torch.float64)
    logp = (old + torch.tensor([1.08, 1.05], dtype=torch.float64).log()).requires_grad_()
    objective.loss(logp, old, credit, torch.tensor([0, 1])).loss.backward()
    least = float(credit.full_weight[0]) * 1.05
    assert logp.grad.tolist() == pytest.approx([-least * 0.5, least * 0.5])


def test_recentring_moves_a_response_at_the_mean_too():
    """Its advantage is 0, and no coefficient of it changes sides."""
    credit = eq.Objective("dr_grpo", aggregation="sequence", cancellation="recentre").assign(
        [1.0, 0.5, 0.0], ["a"] * 3, [2, 4, 8]
    )
    c = [0.5 / 6, 0.0, -0.5 / 24]
    assert credit.coefficient.tolist() == pytest.approx([x - sum(c) / 3 for x in c])


def test_hadw_recentre_restores_zero_sum():
    case = draw(21)
    options = {"name": "hadw", "anchor": "fixed", "threshold": 0.2, "recentre": True}
    credit = eq.Objective(difficulty=options).assign(case.rewards, case.group, case.lengths)
    assert group_sums(case, credit.advantage).abs().max() < 1e-12
    assert float(credit.metrics["bias/zero_sum"]) < 1e-12


def test_hadw_recentre_moves_a_response_at_the_mean_too():
    """A = 0 has no sign to keep: it takes its share of the mean, or the sum would not be 0."""
    options = {"name": "hadw", "anchor": "fixed", "threshold": 0.0, "lam": 1.0, "recentre": True}
    credit = eq.Objective("dr_grpo", options).assign([0.0, 0.5, 1.0], ["q"] * 3, [1, 1, 1])
    wrong, right = -0.5 * math.exp(0.5), 0.5 * math.exp(-0.5)  # ΦA with p̂ = ½ above C = 0
    mean = (wrong + right) / 3
    assert credit.advantage.tolist() == pytest.approx([wrong - mean, -mean, right - mean])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), binary=st.booleans(), rule=st.sampled_from(["sequence", "balanced", "power"]),
    cancellation=st.sampled_from(["min_replace", "orthogonal", "recentre"]),
)  # fmt: skip
def test_cancellation_restores_exchangeability(seed, binary, rule, cancellation):
    case = draw(seed, binary=binary, empty=False)
    objective = eq.Objective(aggregation=rule, cancellation=cancellation)
    credit = objective.assign(case.rewards, case.group, case.lengths)
    push = group_sums(case, credit.coefficient)
    assert (credit.weight >= 0).all()
    left = {"min_replace": 0.0, "orthogonal": "cancellation/clamped", "recentre": "cancellation/turned"}[cancellation]
    if left == 0.0 or float(credit.metrics[left]) == 0:
        assert push.abs().max() < 1e-13
        assert float(credit.metrics["bias/exchangeability"]) < 1e-11


def test_min_replace_takes_the_least_over_the_responses_with_tokens():
    """One without tokens has no weight, and takes none from the others."""
    objective = eq.Objective("dr_grpo", aggregation="sequence", cancellation="min_replace")
    credit = objective.assign([1.0, 0.0, 0.0, 1.0], ["q"] * 4, [4, 2, 0, 6])
    assert credit.weight.tolist() == pytest.approx([1 / 24, 1 / 24, 0, 1 / 24])  # 1/(G·T) of the longest


def test_orthogonal_projects_over_the_responses_with_tokens():
    """One without tokens has an advantage and no weight: with its A in ‖A‖² the others keep some of their push."""
    objective = eq.Objective("dr_grpo", aggregation="sequence", cancellation="orthogonal")
    credit = objective.assign([1.0, 0.0, 0.0, 1.0], ["q"] * 4, [4, 2, 0, 6])
    assert float(credit.metrics["cancellation/clamped"]) == 0
    assert abs(float(credit.coefficient.sum())) < 1e-15
    assert credit.weight.tolist()[2] == 0


@pytest.mark.parametrize("cancellation", ["min_replace", "orthogonal"])
@pytest.mark.parametrize("surrogate", ["gspo", {"name": "dfpo", "low": 0.9, "high": 9.0}, "gmpo", "vespo"], ids=str)
def test_cancellation_acts_on_the_full_weight_with_sequence_ratios(surrogate, cancellation):
    """Off-policy, with s_i in the weights: a token that every response shares gets no net push."""
    for seed in range(10):
        case = draw(seed, empty=False, drift=0.05)
        objective = eq.Objective(surrogate=surrogate, cancellation=cancellation)
        credit = case.assign(objective)
        logp = case.logprobs(case.logits).requires_grad_()
        objective.loss(logp, case.old, credit, case.response).loss.backward()
        first = case.position == 0  # read the coefficient of each response off its first token
        push = group_sums(case, -logp.grad[first])
        mass = group_sums(case, logp.grad[first].abs())
        assert (push.abs() <= 1e-12 * mass.clamp(min=1e-12)).all() or float(
            credit.metrics.get("cancellation/clamped", 0)
        ) > 0


def test_on_the_ratio_alone_the_condition_stays_broken():
    """formulas.md §4: transforming s_i but not 1/ℓ_i leaves a residual; ours transforms both."""
    lengths, rewards = torch.tensor([2, 8, 3, 9]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    credit = eq.Objective().assign(rewards, torch.zeros(4), lengths)
    assert abs(float(credit.coefficient.sum())) > 1e-2
    fixed = eq.Objective(cancellation="min_replace").assign(rewards, torch.zeros(4), lengths)
    assert abs(float(fixed.coefficient.sum())) < 1e-15


def test_prefix_balances_both_where_each_matters():
    """Shared tokens get the group's common ℓ (no net push); the rest is balanced on what is left of each response."""
    shared = [7, 7, 7]
    responses = [[*shared, 1, 2], [*shared, 3, 4, 5, 6, 8, 9, 1, 1], [*shared, 5], [*shared, 9, 9, 9, 9]]
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0])
    lengths = torch.tensor([len(x) for x in responses])
    tokens = torch.tensor([x for row in responses for x in row])
    objective = eq.Objective(aggregation="balanced", cancellation="prefix")
    credit = objective.assign(rewards, [0, 0, 0, 0], lengths, tokens=tokens)
    response, position = eq.response_ids(lengths), eq.positions(lengths)
    c = credit.coefficient
    for t in range(3):
        assert abs(float(c[position == t].sum())) < 1e-15
    assert abs(float(c[position >= 3].sum())) < 1e-15
    assert float(credit.metrics["bias/node_exchangeability"]) < 1e-12
    plain = eq.Objective(aggregation="balanced").assign(rewards, [0] * 4, lengths, tokens=tokens)
    assert float(plain.metrics["bias/node_exchangeability"]) > 0.1
    assert float(plain.metrics["bias/node_learning_tax"]) > float(credit.metrics["bias/node_learning_tax"]) + 0.01
    assert c.shape == tokens.shape
    assert torch.equal(torch.sign(c), torch.sign(credit.advantage[response]))


def test_prefix_leaves_a_push_where_only_some_share_and_misses_what_is_shared_whole():
    """Two identical right responses and two wrong ones: docs/formulas.md §4."""
    responses = [[7, 1, 2, 3], [7, 1, 2, 3], [7, 4, 5, 6, 8], [7, 9, 9]]
    lengths = torch.tensor([len(x) for x in responses])
    tokens = torch.tensor([x for row in responses for x in row])
    objective = eq.Objective(aggregation="balanced", cancellation="prefix")
    credit = objective.assign([1.0, 1.0, 0.0, 0.0], [0] * 4, lengths, tokens=tokens)
    c, response, position = credit.coefficient, eq.response_ids(lengths), eq.positions(lengths)
    assert abs(float(c[position == 0].sum())) < 1e-15  # all four share it
    assert (c[(position > 0) & (response < 2)] > 0).all()  # the right ones alone do
    assert (c[(position > 0) & (response >= 2)] < 0).all()  # what is left is all of wrong responses
    assert float(credit.metrics["bias/node_exchangeability"]) == pytest.approx(0.75)


def test_nodes_tell_prefixes_apart():
    """Same token at the same place after another prefix, and the same prefix in another group, are other nodes."""
    from equipoise.objective.cancellation import Nodes
    from equipoise.objective.groups import Groups

    responses = [[1, 2, 3], [1, 9, 3], [1, 2, 3, 4], [1, 2]]
    groups = Groups.of(torch.tensor([0, 0, 0, 1]))
    lengths = torch.tensor([3, 3, 4, 2])
    tokens = torch.tensor([x for row in responses for x in row])
    nodes = Nodes(tokens, lengths, eq.response_ids(lengths), eq.positions(lengths), groups)
    assert nodes.count.tolist() == [3, 2, 2, 3, 1, 1, 3, 2, 2, 1, 1, 1]
    assert nodes.shared_length(eq.response_ids(lengths), 4).tolist() == [3, 1, 3, 0]


def test_nodes_tell_long_prefixes_apart():
    """The hash multiplies by a power of its factor: an even one would be 0 from the 64th token on."""
    from equipoise.objective.cancellation import Nodes
    from equipoise.objective.groups import Groups

    lengths, T, other = torch.tensor([100, 100]), 100, 80
    tokens = torch.arange(T).repeat(2)
    tokens[T + other] = 0
    nodes = Nodes(tokens, lengths, eq.response_ids(lengths), eq.positions(lengths), Groups.of(torch.zeros(2)))
    assert nodes.shared_length(eq.response_ids(lengths), 2).tolist() == [other, other]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_nodes_against_a_dictionary_of_prefixes(seed):
    g = torch.Generator().manual_seed(seed)
    from equipoise.objective.cancellation import Nodes
    from equipoise.objective.groups import Groups

    lengths = torch.randint(0, 6, (8,), generator=g)
    tokens = torch.randint(0, 2, (int(lengths.sum()),), generator=g)
    group = torch.randint(0, 2, (8,), generator=g)
    nodes = Nodes(tokens, lengths, eq.response_ids(lengths), eq.positions(lengths), Groups.of(group))
    rows = [x.tolist() for x in tokens.split(lengths.tolist())]
    seen: dict = {}
    for row, k in zip(rows, group.tolist(), strict=True):
        for t in range(len(row)):
            seen[k, tuple(row[: t + 1])] = seen.get((k, tuple(row[: t + 1])), 0) + 1
    want = [seen[k, tuple(row[: t + 1])] for row, k in zip(rows, group.tolist(), strict=True) for t in range(len(row))]
    assert nodes.count.tolist() == want


# HA-DW: the anchor by hand


def test_kalman_anchor_follows_the_hand_computed_trajectory():
    """memory = 3, η = 2: means seed the first three anchors, then C⁺ = (1−η_t)C⁻ + η_t y with η_t = min(2σ_t, 1)."""
    objective = eq.Objective(difficulty={"name": "hadw", "memory": 3, "eta": 2.0, "lam": 1.3})
    ys = [0.25, 0.5, 0.75, 1.0, 0.0]
    anchors = [0.25, (0.25 + 0.5) / 2, (0.25 + 0.5 + 0.75) / 3]
    priors = [0.25, *anchors]  # the first batch has no history: its own mean stands in
    sigma = math.sqrt(sum((c - sum(anchors) / 3) ** 2 for c in anchors) / 3)
    c4 = (1 - 2 * sigma) * anchors[-1] + 2 * sigma * 1.0
    priors.append(c4)
    for y, prior in zip(ys, priors, strict=True):
        rewards = torch.zeros(8, dtype=torch.float64)
        rewards[: int(8 * y)] = 1
        rewards = rewards[torch.tensor([0, 4, 2, 6, 1, 5, 3, 7])]
        group = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
        credit = objective.assign(rewards, group, torch.ones(8, dtype=torch.int64))
        assert float(credit.metrics["difficulty/anchor"]) == pytest.approx(prior, abs=1e-15)
        A = reference.advantage("grpo", rewards.tolist(), [1] * 8, group.tolist())
        want = reference.hadw(A, rewards.tolist(), group.tolist(), prior, 1.3)
        torch.testing.assert_close(credit.advantage, torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=1e-14)


def test_a_constant_history_does_not_freeze_the_anchor():
    objective = eq.Objective(difficulty={"name": "hadw", "memory": 3})
    for _ in range(6):
        objective.assign([0.0, 0.0], [0, 0], [1, 1])
    for _ in range(30):
        credit = objective.assign([1.0, 0.0], [0, 0], [1, 1])
    assert float(credit.metrics["difficulty/anchor"]) > 0.3


def test_window_and_fixed_anchors():
    rewards = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    window = eq.Objective(difficulty={"name": "hadw", "anchor": "window", "memory": 2})
    released = eq.Objective(difficulty={"name": "hadw", "anchor": "window", "memory": 2, "include_current": True})
    fixed = eq.Objective(difficulty={"name": "hadw", "anchor": "fixed", "threshold": 0.7})
    got = [
        [float(o.assign(r, [0, 0], [1, 1]).metrics["difficulty/anchor"]) for r in rewards]
        for o in (window, released, fixed)
    ]
    assert got == [[0.5, 0.5, 0.75, 0.5], [0.5, 0.75, 0.5, 0.25], [0.7] * 4]


def test_hadw_rescales_rewards_on_a_named_range_and_refuses_others():
    rewards, group = torch.tensor([-1.0, 1.0, -1.0, -1.0]), [0, 0, 1, 1]
    ranged = eq.Objective(difficulty={"name": "hadw", "anchor": "fixed", "threshold": 0.4, "reward_range": (-1, 1)})
    unit = eq.Objective(difficulty={"name": "hadw", "anchor": "fixed", "threshold": 0.4})
    a = ranged.assign(rewards, group, [1] * 4).advantage
    b = unit.assign((rewards + 1) / 2, group, [1] * 4).advantage
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)  # the ε inside the root is not scale free
    with pytest.raises(ValueError, match=r"reward_range"):
        unit.assign(rewards, group, [1] * 4)


def test_debias_makes_the_baseline_unbiased_given_a_mixed_group():
    """E[ΦÂ | S] = r − p for a fixed response's reward r, by enumeration of the binomial at a known p."""
    G = 4
    for p in (0.1, 0.35, 0.5, 0.8):
        objective = eq.Objective(
            advantage="dr_grpo",
            difficulty={"name": "debias", "anchor": "fixed", "threshold": p},
            aggregation="constant",
        )
        mass, value = 0.0, 0.0
        for bits in range(1, 2**G - 1):
            r = torch.tensor([(bits >> j) & 1 for j in range(G)], dtype=torch.float64)
            probability = p ** int(r.sum()) * (1 - p) ** (G - int(r.sum()))
            A = objective.assign(r, [0] * G, [1] * G).advantage
            baseline = r - A  # c*p̂, the same for every response
            assert float(baseline.max() - baseline.min()) < 1e-12
            mass += probability
            value += probability * float(baseline[0])
        assert value / mass == pytest.approx(p, abs=1e-12)


@pytest.mark.parametrize("advantage", ["grpo", {"name": "grpo", "std": "sample", "eps": 1e-4}, "rloo", "batch_std"])
@pytest.mark.parametrize("G", [2, 5, 8, pytest.param(64, marks=pytest.mark.long)])
def test_debias_knows_what_the_advantage_divides_by(advantage, G):
    """A = w(r − p̂) with a w that differs from group to group: the baseline is E[wcp̂|S]/E[w|S], and must be p."""
    for p in (0.02, 0.1, 0.35, 0.5, 0.8, 0.97):
        plain = eq.Objective(advantage=advantage)
        difficulty = {"name": "debias", "anchor": "fixed", "threshold": p}
        objective = eq.Objective(advantage=advantage, difficulty=difficulty)
        weighed, weights = 0.0, 0.0
        for right in range(1, G):
            # A group of another kind beside it: σ of the batch is then no function of this one alone.
            r = torch.tensor([1.0] * right + [0.0] * (G - right) + [1.0, 0.0], dtype=torch.float64)
            group, lengths = [0] * G + [1, 1], [1] * (G + 2)
            A, before = (o.assign(r, group, lengths).advantage[:G] for o in (objective, plain))
            w = float(before[0]) / (1 - right / G)
            if advantage == "batch_std":
                A, w = A / w, 1.0
            chance = math.comb(G, right) * p**right * (1 - p) ** (G - right)
            assert float(A[0]) >= 0 >= float(A[-1])
            weighed += chance * (w - float(A[0]))
            weights += chance * w
        assert weighed / weights == pytest.approx(p, abs=1e-9)


def test_debias_turns_no_sign_where_the_history_was_wrong():
    difficulty = {"name": "debias", "anchor": "fixed", "threshold": 0.05}
    r = torch.tensor([1.0] * 63 + [0.0])
    A = eq.Objective(difficulty=difficulty).assign(r, [0] * 64, [1] * 64).advantage
    assert A[:63].tolist() == [0.0] * 63
    assert A[63] < 0


def test_debias_reads_groups_of_different_sizes_each_by_its_own():
    difficulty = {"name": "debias", "anchor": "fixed", "threshold": 0.2}
    r, group = torch.tensor([1.0, 0, 0, 1, 0, 0, 0, 0]), [0, 0, 0, 1, 1, 1, 1, 1]
    together = eq.Objective(difficulty=difficulty).assign(r, group, [1] * 8).advantage
    apart = [eq.Objective(difficulty=difficulty).assign(r[s], group[s], [1] * len(r[s])).advantage
             for s in (slice(0, 3), slice(3, 8))]  # fmt: skip
    torch.testing.assert_close(together, torch.cat(apart), rtol=1e-12, atol=0)


def test_hadw_recentred_is_one_number_a_group():
    """With rewards of two values nothing of Φ is left within a group: (r − p̂)·λ((1−p̂)e^(C−p̂) + p̂e^(p̂−C))."""
    G, C, lam = 8, 0.3, 1.3
    difficulty = {"name": "hadw", "anchor": "fixed", "threshold": C, "lam": lam, "recentre": True}
    objective = eq.Objective(advantage="dr_grpo", difficulty=difficulty)
    for right in range(1, G):
        r = torch.tensor([1.0] * right + [0.0] * (G - right), dtype=torch.float64)
        p = right / G
        factor = lam * ((1 - p) * math.exp(C - p) + p * math.exp(p - C))
        torch.testing.assert_close(objective.assign(r, [0] * G, [1] * G).advantage, factor * (r - p))


def test_debias_takes_each_prompts_own_history_where_there_is_one():
    rewards, group = torch.tensor([1.0, 0.0, 1.0, 0.0]), [0, 0, 1, 1]
    objective = eq.Objective(advantage="dr_grpo", difficulty={"name": "debias", "anchor": "fixed", "threshold": 0.5})
    history = torch.tensor([0.1, 0.1, float("nan"), float("nan")])
    with_history = objective.assign(rewards, group, [1] * 4, history=history).advantage
    c = (1 - 0.9**2 - 0.1**2) / (1 - 0.1)
    assert with_history[:2].tolist() == pytest.approx([1 - c * 0.5, -c * 0.5])
    assert with_history[2:].tolist() == pytest.approx([0.5, -0.5])


# DPPO


def test_dppo_is_its_papers_and_the_bound_follows_the_divergence():
    """arXiv 2602.04879, Eq. 23 and App. E: A = r − μ, a sum over tokens, δ = .2 in TV and .05 in KL, C = 5."""
    tv = eq.Objective.preset("dppo")
    kl = eq.Objective.preset("dppo", surrogate={"divergence": "kl"})
    assert tv.advantage.name == "dr_grpo"
    assert tv.aggregation.spec() == {"name": "constant", "length": 1.0}
    assert tv.surrogate.options == {"divergence": "tv", "low": 0.2, "high": 0.2, "cap": 5.0}
    assert kl.surrogate.options == {"divergence": "kl", "low": 0.05, "high": 0.05, "cap": 5.0}
    own = eq.Objective.preset("dppo", surrogate={"divergence": "kl", "low": 0.1})
    assert (own.surrogate.options["low"], own.surrogate.options["high"]) == (0.1, 0.05)
    assert eq.Objective(**own.choices()).surrogate == own.surrogate


@pytest.mark.parametrize(("divergence", "delta"), [("tv", 0.2), ("kl", 0.05)])
def test_dppo_masks_where_the_paper_does(divergence, delta):
    """M = 0 where (A > 0 and ρ > 1) or (A < 0 and ρ < 1), and D > δ; else the slope is min(ρ, 5)·A (its Eq. 12, 23)."""
    objective = eq.Objective.preset("dppo", surrogate={"divergence": divergence})
    q = torch.tensor([0.5, 0.3, 0.9, 0.01, 0.6, 0.5, 0.05], dtype=torch.float64)
    p = torch.tensor([0.75, 0.45, 0.55, 0.15, 0.2, 0.62, 0.35], dtype=torch.float64)
    masked = []
    for A in (1.0, -1.0):
        credit = objective.assign([A, 0.0], [0, 0], [len(p), 0])
        logp = p.log().requires_grad_()
        objective.loss(logp, q.log(), credit, torch.zeros(len(p), dtype=torch.int64)).loss.backward()
        for t in range(len(p)):
            a, b = float(p[t]), float(q[t])
            tv, kl = abs(a - b), b * math.log(b / a) + (1 - b) * math.log((1 - b) / (1 - a))
            out = (a > b) == (A > 0) and (tv if divergence == "tv" else kl) > delta
            c = float(credit.coefficient[0])
            assert float(logp.grad[t]) == pytest.approx(0.0 if out else -min(a / b, 5.0) * c, rel=1e-6)
            masked.append(out)
    assert 2 <= sum(masked) < len(masked)

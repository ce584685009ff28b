"""`loss` takes its tokens in chunks on the CPU: no number depends on where they are cut."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.objective import chunks
from equipoise.objective.chunks import Runs, response_sum

from .cases import Case, draw, relative

STACKS = [
    *[(preset, {}) for preset in eq.PRESETS],
    ("dapo", {"aggregation": "balanced", "difficulty": "hadw"}),
    ("gspo", {"cancellation": "orthogonal"}),
    ("grpo", {"cancellation": "prefix"}),
    ("grpo", {"surrogate": {"name": "dual_clip", "cap": 1.1}}),
    ("grpo", {"mismatch": "mis", "off_policy_mask": 0.01}),
    ("grpo", {"mismatch": "icepop", "kl": 0.1, "kl_estimator": "k3_ratio", "entropy_bonus": 0.1}),
]


def joined(seeds: list[int]) -> Case:
    """Several small batches as one, long enough for several chunks."""
    cases = [draw(seed) for seed in seeds]
    rows = np.cumsum([0, *(len(c.rewards) for c in cases)])
    groups = np.cumsum([0, *(int(c.group.max()) + 1 for c in cases)])
    together = {
        name: torch.cat([getattr(c, name) for c in cases])
        for name in ("rewards", "lengths", "context", "token", "position", "old")
    }
    group = torch.cat([c.group + int(k) for c, k in zip(cases, groups, strict=False)])
    response = torch.cat([c.response + int(k) for c, k in zip(cases, rows, strict=False)])
    return Case(group=group, response=response, logits=cases[0].logits, **together)


def everything(objective: eq.Objective, case: Case, credit: eq.Credit, drift: torch.Tensor):
    logp = case.logprobs(case.logits).requires_grad_()
    out = objective.loss(
        logp,
        case.old,
        credit,
        case.response,
        position=case.position,
        entropy=-logp,
        ref_logprobs=case.old + drift,
        rollout_logprobs=case.old - drift,
    )
    out.loss.backward()
    return out, logp.grad


@pytest.mark.parametrize(("preset", "knobs"), STACKS)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**31), size=st.sampled_from([2, 7, 20]), broken=st.booleans())
def test_chunks_change_no_number(preset, knobs, seed, size, broken):
    case = joined([seed, seed + 1, seed + 2])
    if broken:
        case.old[len(case.old) // 2] = torch.nan
        case.old[0] = case.old[0] - 50  # beyond LIMIT
    objective = eq.Objective.preset(preset, **knobs)
    credit = case.assign(objective)
    drift = torch.linspace(-0.5, 0.5, len(case.old), dtype=torch.float64)
    whole, gradient = everything(objective, case, credit, drift)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK", size)
        cut, cut_gradient = everything(objective, case, credit, drift)
    assert relative(gradient, cut_gradient) <= 1e-12
    assert bool(cut.ok) == bool(whole.ok) == (not broken)
    for name, want in whole.stats._asdict().items():
        torch.testing.assert_close(getattr(cut.stats, name), want, rtol=1e-11, atol=1e-13, msg=name)
    assert cut.metrics.keys() == whole.metrics.keys()


def test_every_chunk_may_hold_tokens_that_are_not_finite(monkeypatch):
    case = joined([0, 1, 2])
    case.old[::2] = torch.nan
    objective = eq.Objective(kl=0.1)
    credit, drift = case.assign(objective), torch.full_like(case.old, 0.2)
    whole, gradient = everything(objective, case, credit, drift)
    monkeypatch.setattr(chunks, "CHUNK", 7)
    cut, cut_gradient = everything(objective, case, credit, drift)
    assert gradient[1::2].count_nonzero()
    assert relative(gradient, cut_gradient) <= 1e-12
    torch.testing.assert_close(cut.stats.kl, whole.stats.kl)


def test_two_chunks_count_both_and_only_the_second_may_be_broken(monkeypatch):
    """One response a chunk: sums over chunks, and a mask that the first chunk does not have."""
    objective = eq.Objective(kl=0.1)
    credit = objective.assign([1.0, 0.0], ["q", "q"], [4, 4])
    old = torch.tensor([-1.0, -2.0, -0.5, -1.5, -1.0, torch.nan, -0.5, -3.0], dtype=torch.float64)
    logp = old.nan_to_num(-1.0) + torch.linspace(-0.4, 0.5, 8, dtype=torch.float64)
    response = eq.response_ids(torch.tensor([4, 4]))
    whole = objective.loss(logp, old, credit, response, ref_logprobs=old + 0.2)
    monkeypatch.setattr(chunks, "CHUNK", 4)
    cut = objective.loss(logp, old, credit, response, ref_logprobs=old + 0.2)
    torch.testing.assert_close(cut.loss, whole.loss)
    for name, want in whole.stats._asdict().items():
        torch.testing.assert_close(getattr(cut.stats, name), want, msg=name)


def test_a_long_call_is_really_cut(monkeypatch):
    """And a surrogate that weighs whole responses, or groups, has whole ones."""
    case = joined(list(range(8)))
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(chunks, "CHUNK", 12)
    for preset, unit in (("grpo", None), ("gspo", case.response), ("dfpo", case.group[case.response])):
        objective = eq.Objective.preset(preset)
        surrogate = objective.surrogate.function
        object.__setattr__(
            objective.surrogate,
            "function",
            lambda tokens, f=surrogate, **o: seen.append(tokens.response) or f(tokens, **o),
        )
        seen.clear()
        everything(objective, case, case.assign(objective), torch.zeros(len(case.old), dtype=torch.float64))
        assert len(seen) > 3
        assert torch.equal(torch.cat(seen), case.response)
        if unit is not None:
            ids = unit.split([len(x) for x in seen])
            for i, a in enumerate(ids):
                assert not any(set(a.tolist()) & set(b.tolist()) for b in ids[i + 1 :])


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_runs_sum_and_spread_like_an_index(seed):
    """Rows in any order, in several runs each, some of them absent."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 6, size=rng.integers(1, 12))
    response = torch.as_tensor(np.repeat(rows, rng.integers(2, 9, size=len(rows))))
    runs = Runs.of(response)
    assert runs is not None
    x, y = torch.randn(len(response), dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    torch.testing.assert_close(runs.sum(x, 6), response_sum(x, response, 6, None), rtol=1e-12, atol=1e-13)
    assert torch.equal(runs.spread(y), y[response])


def test_tokens_of_mixed_responses_have_no_runs():
    assert Runs.of(torch.tensor([0, 1, 0, 1, 1])) is None
    assert Runs.of(torch.tensor([], dtype=torch.int64)) is None
    assert Runs.of(torch.tensor([1, 1, 0, 0])) is not None


@pytest.mark.parametrize("row", [-1, 2, 7])
@pytest.mark.parametrize("order", ["runs", "mixed"])
def test_a_row_that_is_not_there_is_named(row, order):
    objective = eq.Objective()
    credit = objective.assign([0.0, 1.0], [0, 0], [4, 4])
    response = torch.tensor([0, 0, 0, 1, 1, row, row] if order == "runs" else [0, 1, 0, 1, 0, row, 1])
    x = torch.zeros(7)
    with pytest.raises(ValueError, match=rf"response\[5\] = {row}: it must be a row, 0 to 1"):
        objective.loss(x, x, credit, response)


def test_a_sequence_ratio_sees_its_response_whole_in_one_chunk(monkeypatch):
    objective = eq.Objective.preset("gspo")
    credit = objective.assign([1.0, 0.0], ["q", "q"], [4, 4])
    old = torch.linspace(-2, -1, 8, dtype=torch.float64)
    logp = old + torch.linspace(-3e-4, 3e-4, 8, dtype=torch.float64)
    response = eq.response_ids(torch.tensor([4, 4]))
    whole = objective.loss(logp, old, credit, response)
    monkeypatch.setattr(chunks, "CHUNK", 3)
    cut = objective.loss(logp, old, credit, response)
    torch.testing.assert_close(cut.loss, whole.loss, rtol=1e-12, atol=1e-15)
    assert bool(cut.ok)


def test_a_response_of_which_one_token_came_is_not_whole():
    objective = eq.Objective.preset("gspo")
    credit = objective.assign([0.0, 1.0], ["q", "q"], [4, 4])
    x = torch.zeros(5)
    with pytest.raises(ValueError, match="holds 1 of the 4 tokens of response 1"):
        objective.loss(x, x, credit, torch.tensor([0, 0, 0, 0, 1]))

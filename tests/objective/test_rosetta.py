"""Which of our settings is which name elsewhere: formulas of verl 0.9.1, TRL 1.16 and others against `Objective`.

The hosts' formulas are written here from their definition, on padded [B, T] tensors with a mask, in float64, and pinned
by value and by gradient with respect to the log-probabilities. Nothing of a host is imported. docs/rosetta.md is the
table these tests stand behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise import Objective

P, G, WIDTH = 3, 4, 9  # prompts, responses per prompt, padded length
LOW, HIGH = 0.2, 0.28
SEEDS = [0, 1, 2]

VERL_GRPO = {"name": "grpo", "std": "sample", "eps": 1e-6}
TRL_GRPO = {"name": "grpo", "std": "sample", "eps": 1e-4}


@dataclass
class Padded:
    """A batch as the hosts hold it. Groups are consecutive rows, as TRL needs them."""

    r: Tensor  # [B]
    group: Tensor  # [B]
    mask: Tensor  # [B, T]
    logp: Tensor  # [B, T]
    old: Tensor
    ref: Tensor
    rollout: Tensor

    @property
    def T(self) -> Tensor:
        return self.mask.sum(1)

    def rows(self, index: Tensor) -> Padded:
        return Padded(*(x[index] for x in vars(self).values()))


def draw(seed: int, *, sizes: tuple[int, ...] = (G,) * P, drift: float = 0.4, empty: bool = False) -> Padded:
    g = torch.Generator().manual_seed(seed)
    B = sum(sizes)
    lengths = torch.randint(1, WIDTH + 1, (B,), generator=g)
    lengths[0] = WIDTH
    if empty:
        lengths[1] = 0
    group = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    r = torch.rand(B, generator=g, dtype=torch.float64).round(decimals=2)
    mask = (torch.arange(WIDTH) < lengths[:, None]).double()

    def near(x: Tensor, scale: float) -> Tensor:
        return (x + scale * torch.randn(B, WIDTH, generator=g, dtype=torch.float64)).clamp(max=-1e-3)

    logp = -0.05 - 3 * torch.rand(B, WIDTH, generator=g, dtype=torch.float64)
    return Padded(r, group, mask, logp, near(logp, drift), near(logp, drift), near(logp, drift))


def theirs(case: Padded, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """A host's loss as a function of the log-probabilities: its value and gradient [B, T]."""
    logp = case.logp.clone().requires_grad_()
    value = loss(logp)
    (gradient,) = torch.autograd.grad(value, logp)
    return value.detach(), gradient


def ours(case: Padded, objective: Objective, parts: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Our loss over micro-batches of rows (all rows at once unless given), from the same padded tensors."""
    logp = case.logp.clone().requires_grad_()
    credit = objective.assign(case.r, case.group, case.T)
    response = torch.arange(len(case.r))[:, None].expand_as(case.mask)
    total = torch.zeros((), dtype=torch.float64)
    for rows in [torch.arange(len(case.r))] if parts is None else parts:
        mask = case.mask[rows]

        def flat(x: Tensor, rows: Tensor = rows, mask: Tensor = mask) -> Tensor:
            return eq.flatten(x[rows], mask)

        out = objective.loss(
            flat(logp), flat(case.old), credit, flat(response), ref_logprobs=flat(case.ref) if objective.kl else None,
            rollout_logprobs=flat(case.rollout) if objective.mismatch.name != "none" else None,
        )  # fmt: skip
        assert bool(out.ok)
        total = total + out.loss
    (gradient,) = torch.autograd.grad(total, logp)
    return total.detach(), gradient


def distance(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> float:
    """The larger relative difference, of the values or of the gradients."""
    return max(
        float((x - y).abs().max() / torch.maximum(x.abs().max(), y.abs().max())) for x, y in zip(a, b, strict=True)
    )


def assert_same(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> None:
    assert distance(a, b) < 1e-12


def assert_differ(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], by: float = 1e-3) -> None:
    assert distance(a, b) > by


def advantages(case: Padded, objective: Objective) -> Tensor:
    return objective.assign(case.r, case.group, case.T).advantage


def per_group(case: Padded, f: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """f(rewards, lengths) of one group -> its advantages, for every group."""
    A = torch.empty_like(case.r)
    for g in case.group.unique():
        A[case.group == g] = f(case.r[case.group == g], case.T[case.group == g])
    return A


def by_sign(A: Tensor, positive: float, negative: float) -> Tensor:
    return torch.full_like(A, negative).masked_fill(A > 0, positive)


# --- verl ------------------------------------------------------------------------------------------------------------


def verl_grpo(case: Padded) -> Tensor:
    return per_group(case, lambda r, T: (r - r.mean()) / (r.std() + 1e-6) if len(r) > 1 else r / (1 + 1e-6))


def verl_rloo(case: Padded) -> Tensor:
    return per_group(case, lambda r, T: (r - r.mean()) * len(r) / (len(r) - 1) if len(r) > 1 else r)


def verl_opo(case: Padded) -> Tensor:
    return per_group(case, lambda r, T: r - (T * r).sum() / T.sum() if len(r) > 1 else r)


def verl_passk(r: Tensor, T: Tensor) -> Tensor:
    """verl's grpo_passk: the best response gets (best − second best)/σ, the others 0."""
    (first, second), where = torch.topk(r, 2)
    A = torch.zeros_like(r)
    A[where[0]] = (first - second) / (r.std() + 1e-6)
    return A


def verl_aggregate(x: Tensor, mask: Tensor, mode: str, *, scale: int = WIDTH, guard: float = 0.0,
                   sequences: int | None = None) -> Tensor:  # fmt: skip
    """agg_loss on one data-parallel rank. `scale` is loss_scale_factor, `sequences` global_batch_size."""
    n = (mask.sum(1) > 0).sum() if sequences is None else sequences
    if mode == "token-mean":
        return (x * mask).sum() / mask.sum()
    if mode == "seq-mean-token-mean":
        return ((x * mask).sum(1) / (mask.sum(1) + guard)).where(mask.sum(1) > 0, 0.0).sum() / n
    total = (x * mask).sum() / n
    return total / scale if mode == "seq-mean-token-sum-norm" else total


OUR_AGGREGATION = {
    "token-mean": "token",
    "seq-mean-token-mean": "sequence",
    "seq-mean-token-sum": {"name": "constant", "length": 1.0},
    "seq-mean-token-sum-norm": {"name": "constant", "length": float(WIDTH)},
}


def verl_vanilla(case: Padded, logp: Tensor, A: Tensor, c: float = 3.0) -> Tensor:
    ratio = (logp - case.old).clamp(-20, 20).exp()
    clipped = torch.maximum(-A * ratio, -A * ratio.clamp(1 - LOW, 1 + HIGH))
    return torch.where(A < 0, torch.minimum(clipped, -A * c), clipped)


def verl_gspo(case: Padded, logp: Tensor, A: Tensor) -> Tensor:
    mean = ((logp - case.old) * case.mask).sum(1, keepdim=True) / case.T[:, None].clamp(min=1)
    ratio = (logp - logp.detach() + mean.detach()).clamp(max=10).exp()
    return torch.maximum(-A * ratio, -A * ratio.clamp(1 - LOW, 1 + HIGH))


def verl_cispo(case: Padded, logp: Tensor, A: Tensor, low: float, high: float = HIGH) -> Tensor:
    ratio = (logp - case.old).clamp(-20, 20).exp()
    return -ratio.clamp(1 - low, 1 + high).detach() * A * logp


def verl_sapo(case: Padded, logp: Tensor, A: Tensor) -> Tensor:
    tau = by_sign(A, 1.0, 1.05)
    ratio = (logp - case.old).clamp(-20, 20).exp()
    return -torch.sigmoid(tau * (ratio - 1)) * (4 / tau) * A


def verl_dppo(case: Padded, logp: Tensor, A: Tensor, divergence: str, bound: float, c: float) -> Tensor:
    p, q = logp.exp(), case.old.exp()
    if divergence == "tv":
        up, down = p - q <= bound, p - q >= -bound
    else:
        kl = q * (case.old - logp) + (1 - q) * torch.log((1 - q + 1e-8) / (1 - p + 1e-8))
        up, down = (kl <= bound) | (p <= q), (kl <= bound) | (p >= q)
    inside = torch.where(A > 0, up, down).double()
    return -A * (logp - case.old).clamp(-20, 20).exp().clamp(max=c).detach() * logp * inside


def verl_geo_mean(case: Padded, logp: Tensor, A: Tensor) -> Tensor:
    """The scalar loss: verl ignores loss_agg_mode here and averages over the rows of the micro-batch."""
    sign, log_ratio = A.sign(), logp - case.old
    one_sided = sign * torch.minimum(sign * log_ratio, sign * log_ratio.clamp(-LOW, HIGH))
    return (-A[:, 0] * ((one_sided * case.mask).sum(1) / case.T).exp()).mean()


VERL_SURROGATES: dict[str, tuple[Callable[[Padded, Tensor, Tensor], Tensor], dict]] = {
    "vanilla": (verl_vanilla, {"name": "dual_clip", "low": LOW, "high": HIGH, "cap": 3.0}),
    "gspo": (verl_gspo, {"name": "gspo", "low": LOW, "high": HIGH}),
    "cispo": (lambda *x: verl_cispo(*x, low=1.0), {"name": "cispo", "cap": 1 + HIGH}),
    "dppo_tv": (
        lambda *x: verl_dppo(*x, "tv", 0.1, 1.2),
        {"name": "dppo", "divergence": "tv", "low": 0.1, "high": 0.1, "cap": 1.2},
    ),
    "dppo_kl": (
        lambda *x: verl_dppo(*x, "kl", 0.02, 1.2),
        {"name": "dppo", "divergence": "kl", "low": 0.02, "high": 0.02, "cap": 1.2},
    ),
    "gpg": (lambda case, logp, A: -logp * A, {"name": "reinforce"}),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", OUR_AGGREGATION)
@pytest.mark.parametrize("name", VERL_SURROGATES)
def test_verl_policy_losses_under_its_aggregations(name: str, mode: str, seed: int) -> None:
    case = draw(seed, drift=0.8)
    surrogate, setting = VERL_SURROGATES[name]
    A = verl_grpo(case)[:, None]
    host = theirs(case, lambda logp: verl_aggregate(surrogate(case, logp, A), case.mask, mode))
    assert_same(ours(case, Objective(VERL_GRPO, aggregation=OUR_AGGREGATION[mode], surrogate=setting)), host)


def test_the_cases_clip_on_both_sides_and_reach_the_dual_clip() -> None:
    case = draw(0, drift=0.8)
    ratio, A = (case.logp - case.old).exp(), verl_grpo(case)[:, None]
    on = case.mask > 0
    for cut in (
        (A > 0) & (ratio > 1 + HIGH),
        (A < 0) & (ratio < 1 - LOW),
        (A < 0) & (ratio > 3),
        (A > 0) & (ratio < 1),
    ):
        assert (cut & on).any()


@pytest.mark.parametrize("seed", SEEDS)
def test_verl_sapo_is_always_aggregated_by_sequence(seed: int) -> None:
    """verl ignores loss_agg_mode here."""
    case = draw(seed, drift=0.8)
    A = verl_grpo(case)[:, None]
    host = theirs(case, lambda logp: verl_aggregate(verl_sapo(case, logp, A), case.mask, "seq-mean-token-mean"))
    assert_same(ours(case, Objective(VERL_GRPO, aggregation="sequence", surrogate="sapo")), host)


@pytest.mark.parametrize("seed", SEEDS)
def test_verl_geo_mean_is_gmpo_under_sequence(seed: int) -> None:
    case = draw(seed)
    A = verl_grpo(case)[:, None]
    host = theirs(case, lambda logp: verl_geo_mean(case, logp, A))
    setting = {"name": "gmpo", "low": LOW, "high": HIGH}
    assert_same(ours(case, Objective(VERL_GRPO, aggregation="sequence", surrogate=setting)), host)
    assert_differ(ours(case, Objective(VERL_GRPO, aggregation="token", surrogate=setting)), host)


@pytest.mark.parametrize("seed", SEEDS)
def test_verl_weighs_geo_mean_by_the_geometric_mean_of_its_rollout_weights(seed: int) -> None:
    """One weight a response, as there is one advantage: then the gradient is that of the loss."""
    case = draw(seed)
    A = verl_grpo(case)[:, None]
    weight = (case.old - case.rollout).exp().clamp(max=1.1)
    mean = ((weight.log() * case.mask).sum(1) / case.T).exp()[:, None]
    host = theirs(case, lambda logp: verl_geo_mean(case, logp, A * mean))
    setting = {"name": "gmpo", "low": LOW, "high": HIGH}
    objective = Objective(VERL_GRPO, aggregation="sequence", surrogate=setting, mismatch={"name": "tis", "cap": 1.1})
    assert_same(ours(case, objective), host)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "formula"), [(VERL_GRPO, verl_grpo), ("rloo", verl_rloo), ("opo", verl_opo)])
def test_verl_advantages(name: str | dict, formula: Callable[[Padded], Tensor], seed: int) -> None:
    case = draw(seed)
    torch.testing.assert_close(advantages(case, Objective(name)), formula(case), rtol=1e-12, atol=1e-12)


def test_verl_guard_moves_seq_mean_token_mean_by_less_than_1e_8() -> None:
    case = draw(0)
    A = verl_grpo(case)[:, None]
    objective = Objective(VERL_GRPO, aggregation="sequence", surrogate=VERL_SURROGATES["vanilla"][1])
    host = theirs(
        case, lambda x: verl_aggregate(verl_vanilla(case, x, A), case.mask, "seq-mean-token-mean", guard=1e-8)
    )
    assert 0 < distance(ours(case, objective), host) < 1e-7


def test_verl_vanilla_is_not_ppo_clip() -> None:
    """verl always applies the dual clip (clip_ratio_c = 3)."""
    case = draw(0, drift=0.8)
    A = verl_grpo(case)[:, None]
    host = theirs(case, lambda logp: verl_aggregate(verl_vanilla(case, logp, A), case.mask, "token-mean"))
    plain = {"name": "ppo_clip", "low": LOW, "high": HIGH}
    assert_differ(ours(case, Objective(VERL_GRPO, aggregation="token", surrogate=plain)), host)
    far = theirs(case, lambda logp: verl_aggregate(verl_vanilla(case, logp, A, c=1e9), case.mask, "token-mean"))
    assert_same(ours(case, Objective(VERL_GRPO, aggregation="token", surrogate=plain)), far)


def test_verl_cispo_has_a_floor_that_ours_has_not() -> None:
    """cap = 1 + clip_ratio_high is right only with clip_ratio_low = 1: verl's default floor 1 − clip_ratio_low acts."""
    case = draw(0)
    A = verl_grpo(case)[:, None]

    def host(low: float) -> tuple[Tensor, Tensor]:
        return theirs(case, lambda logp: verl_aggregate(verl_cispo(case, logp, A, low), case.mask, "token-mean"))

    capped = ours(case, Objective(VERL_GRPO, aggregation="token", surrogate={"name": "cispo", "cap": 1 + HIGH}))
    assert_same(capped, host(low=1.0))
    assert_differ(capped, host(low=LOW))
    with pytest.raises(ValueError, match="must be at least 1"):  # clip_ratio_high taken for the cap itself
        Objective(VERL_GRPO, aggregation="token", surrogate={"name": "cispo", "cap": HIGH})


def test_verl_grpo_passk_is_another_method_than_our_pass_at_k() -> None:
    case = draw(0)
    case.r = torch.tensor([1.0, 0, 0, 0] * P, dtype=torch.float64)
    verl, mine = per_group(case, verl_passk), advantages(case, Objective({"name": "pass_at_k", "k": 2}))
    assert (verl[case.r == 0] == 0).all()
    assert (mine[case.r == 0] < 0).all()


def test_verl_gives_a_group_of_one_its_raw_reward_and_we_give_it_0() -> None:
    case = draw(0, sizes=(3, 1, 4))
    alone = case.group == 1
    for name, formula in ((VERL_GRPO, verl_grpo), ("rloo", verl_rloo), ("opo", verl_opo)):
        mine, host = advantages(case, Objective(name)), formula(case)
        torch.testing.assert_close(mine[~alone], host[~alone], rtol=1e-12, atol=1e-12)
        assert mine[alone] == 0
        assert host[alone] > 0


def test_verl_turns_rounding_noise_into_an_advantage_and_we_do_not() -> None:
    """Seven rewards of 0.7 in float32: their mean is one ulp off, which verl divides by 1e-6 and TRL by 1e-4."""
    r = torch.full((7,), 0.7)
    noise = (r - r.mean()) / (r.std() + 1e-6)
    assert (noise > 0.05).all()
    credit = Objective(VERL_GRPO).assign(r, torch.zeros(7), torch.ones(7, dtype=torch.int64))
    assert (credit.advantage == 0).all()


def test_verl_leaves_empty_responses_out_of_the_count_unless_it_is_told_the_batch_size() -> None:
    case = draw(0, empty=True)
    A = verl_grpo(case)[:, None]

    def host(n: int | None, mode: str) -> tuple[Tensor, Tensor]:
        return theirs(case, lambda x: verl_aggregate(verl_vanilla(case, x, A), case.mask, mode, sequences=n))

    for mode, rule in OUR_AGGREGATION.items():
        mine = ours(case, Objective(VERL_GRPO, aggregation=rule, surrogate=VERL_SURROGATES["vanilla"][1]))
        assert_same(mine, host(len(case.r), mode))
        if mode != "token-mean":
            assert_differ(mine, host(None, mode))
            value, gradient = host(None, mode)
            kept = int((case.T > 0).sum()) / len(case.r)
            assert_same(mine, (value * kept, gradient * kept))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", OUR_AGGREGATION)
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_verl_kl_loss(estimator: str, mode: str, seed: int) -> None:
    """use_kl_loss: a token's KL is aggregated as the loss is."""
    case = draw(seed)
    A = verl_grpo(case)[:, None]

    def loss(logp: Tensor) -> Tensor:
        d = case.ref - logp
        kl = {"k1": -d, "k2": d**2 / 2, "k3": (d.exp() - d - 1).clamp(-10, 10)}[estimator]
        return verl_aggregate(verl_vanilla(case, logp, A) + 0.1 * kl, case.mask, mode)

    objective = Objective(
        VERL_GRPO, aggregation=OUR_AGGREGATION[mode], surrogate=VERL_SURROGATES["vanilla"][1], kl=0.1,
        kl_estimator=estimator,
    )  # fmt: skip
    assert_same(ours(case, objective), theirs(case, loss))


def test_verl_cuts_k3_at_10_and_we_do_not() -> None:
    case = draw(0)
    case.r = torch.zeros_like(case.r)
    case.ref = case.logp + 4  # k3 = e⁴ − 5 ≈ 49.6
    value, gradient = ours(case, Objective(aggregation="token", kl=1.0))
    d = torch.tensor(4.0, dtype=torch.float64)
    torch.testing.assert_close(value, d.exp() - d - 1, rtol=1e-12, atol=0)
    assert value > 10
    assert (gradient[case.mask > 0] < 0).all()  # verl's clamp leaves exactly the value 10 and no gradient


def test_verl_k3_plus_has_the_gradient_of_k2() -> None:
    """The straight-through "k3+": value of k3, gradient of k2."""
    case = draw(0)

    def loss(logp: Tensor) -> Tensor:
        d = case.ref - logp
        k2, k3 = d**2 / 2, d.exp() - d - 1
        return verl_aggregate(k2 - k2.detach() + k3.detach(), case.mask, "token-mean")

    case.r = torch.zeros_like(case.r)
    (v2, g2), (v3, g3), (v, g) = (
        ours(case, Objective(aggregation="token", kl=1.0, kl_estimator="k2")),
        ours(case, Objective(aggregation="token", kl=1.0, kl_estimator="k3")),
        theirs(case, loss),
    )
    assert_same((v3, g2), (v, g))
    assert distance((v2, g3), (v, g)) > 1e-3


# --- TRL -------------------------------------------------------------------------------------------------------------


def trl_advantage(case: Padded, scale: str = "group") -> Tensor:
    mean = per_group(case, lambda r, T: r.mean().expand_as(r))
    if scale == "none":
        return case.r - mean
    std = per_group(case, lambda r, T: r.std().expand_as(r)) if scale == "group" else case.r.std()
    return (case.r - mean) / (std + 1e-4)


def trl_token_loss(case: Padded, logp: Tensor, A: Tensor, loss_type: str, *, level: str = "token", beta: float = 0.0,
                   bias_correction: bool = False, delta: float | None = None, cap: float = 5.0) -> Tensor:  # fmt: skip
    log_ratio = logp - case.old
    if level == "sequence":
        log_ratio = ((log_ratio * case.mask).sum(1) / case.T.clamp(min=1))[:, None]
    ratio = log_ratio.exp()
    if loss_type == "cispo":
        x = -ratio.clamp(max=cap).detach() * A * logp
    elif loss_type == "sapo":
        tau = by_sign(A, 1.0, 1.05)
        x = -torch.sigmoid(tau * (ratio - 1)) * 4 / tau * A
    elif loss_type == "vespo":
        log_w = ((logp - case.old).detach().clamp(-20, 20) * case.mask).sum(1, keepdim=True)
        log_w = log_w.clamp(torch.tensor(1e-8, dtype=torch.float64).log(), 20)
        k, lam = by_sign(A, 2.0, 3.0), by_sign(A, 3.0, 2.0)
        x = -(lam + k * log_w - lam * log_w.exp()).exp() * A * logp
    else:
        free = ratio if delta is None else ratio.clamp(max=delta)
        x = -torch.minimum(free * A, ratio.clamp(1 - LOW, 1 + HIGH) * A)
    if beta:
        d = case.ref - logp
        x = x + beta * (d.exp() - d - 1) * (ratio if bias_correction else 1)
    return x.expand_as(case.mask)


def trl_micro_loss(case: Padded, x: Tensor, loss_type: str, items: Tensor, steps: int = 1) -> Tensor:
    """One micro-batch out of `steps`; `items` is the number of tokens of the whole batch."""
    total = (x * case.mask).sum(1)
    if loss_type in ("grpo", "sapo"):
        return (total / case.T.clamp(min=1)).mean() / steps
    if loss_type == "bnpo":
        return total.sum() / case.T.sum().clamp(min=1) / steps
    if loss_type == "dr_grpo":
        return total.sum() / (len(case.r) * WIDTH) / steps
    if loss_type == "luspo":
        return total.mean() / steps
    return total.sum() / items  # dapo, cispo, vespo


def trl(
    case: Padded, loss_type: str, *, A: Tensor | None = None, parts: list[Tensor] | None = None, **options
) -> tuple[Tensor, Tensor]:
    """TRL's loss of a batch, accumulated over micro-batches of rows."""
    full = trl_advantage(case) if A is None else A

    def loss(logp: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        chunks = [torch.arange(len(case.r))] if parts is None else parts
        for rows in chunks:
            part = case.rows(rows)
            x = trl_token_loss(part, logp[rows], full[rows, None], loss_type, **options)
            total = total + trl_micro_loss(part, x, loss_type, case.T.sum(), len(chunks))
        return total

    return theirs(case, loss)


CLIP = {"name": "ppo_clip", "low": LOW, "high": HIGH}
GSPO = {"name": "gspo", "low": LOW, "high": HIGH}
DR_GRPO_LENGTH = {"name": "constant", "length": float(WIDTH)}
TRL_LOSSES = {
    "grpo": ({}, "sequence", CLIP),
    "dapo": ({}, "token", CLIP),
    "bnpo": ({}, "token", CLIP),
    "dr_grpo": ({}, DR_GRPO_LENGTH, CLIP),
    "cispo": ({"cap": 1.5}, "token", {"name": "cispo", "cap": 1.5}),
    "sapo": ({}, "sequence", "sapo"),
    "luspo": ({"level": "sequence"}, {"name": "constant", "length": 1.0}, GSPO),
    "vespo": ({}, "token", "vespo"),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss_type", TRL_LOSSES)
def test_trl_loss_types(loss_type: str, seed: int) -> None:
    case = draw(seed, drift=0.8 if loss_type != "vespo" else 0.2)
    options, aggregation, surrogate = TRL_LOSSES[loss_type]
    assert_same(
        ours(case, Objective(TRL_GRPO, aggregation=aggregation, surrogate=surrogate)), trl(case, loss_type, **options)
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo"])
def test_trl_sequence_level_is_gspo(loss_type: str, seed: int) -> None:
    case = draw(seed)
    _, aggregation, _ = TRL_LOSSES[loss_type]
    assert_same(
        ours(case, Objective(TRL_GRPO, aggregation=aggregation, surrogate=GSPO)), trl(case, loss_type, level="sequence")
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_trl_advantages(seed: int) -> None:
    case = draw(seed)
    torch.testing.assert_close(advantages(case, Objective(TRL_GRPO)), trl_advantage(case), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        advantages(case, Objective("dr_grpo")), trl_advantage(case, "none"), rtol=1e-12, atol=1e-12
    )


def test_trl_batch_scaling_is_our_batch_std_up_to_one_known_factor() -> None:
    """scale_rewards="batch" is the sample σ + 1e-4; ours is sqrt(population variance + eps)."""
    case = draw(0)
    factor = (case.r.std() + 1e-4) / torch.sqrt(case.r.var(correction=0) + 1e-6)
    mine, host = advantages(case, Objective("batch_std")), trl_advantage(case, "batch")
    torch.testing.assert_close(mine, host * factor, rtol=1e-12, atol=1e-12)
    assert abs(float(factor) - 1) > 1e-3


def test_trl_normalize_then_sum_normalises_the_sum_once_more() -> None:
    """multi_objective_aggregation="normalize_then_sum" is combine="advantages" divided by the batch's σ + 1e-4."""
    case = draw(0)
    columns = torch.stack([case.r, draw(7).r], 1)
    weights = [1.0, 0.5]
    summed = sum(
        w * trl_advantage(Padded(r, *list(vars(case).values())[1:])) for w, r in zip(weights, columns.T, strict=True)
    )
    objective = Objective(TRL_GRPO, combine="advantages", reward_weights=weights)
    mine = objective.assign(columns, case.group, case.T).advantage
    torch.testing.assert_close(mine, summed, rtol=1e-12, atol=1e-12)
    trl_final = (summed - summed.mean()) / (summed.std() + 1e-4)
    assert ((mine - trl_final).abs() > 1e-3).any()


def test_the_three_deviations_differ() -> None:
    case = draw(0)
    A = [advantages(case, Objective(a)) for a in ("grpo", VERL_GRPO, TRL_GRPO)]
    paper, verl, trl_ = (x[A[0] != 0] for x in A)
    torch.testing.assert_close(paper / verl, torch.full_like(paper, (G / (G - 1)) ** 0.5), rtol=1e-3, atol=0)
    assert float((verl / trl_ - 1).min()) > 1e-5


@pytest.mark.parametrize("seed", SEEDS)
def test_trl_dr_grpo_keeps_the_deviation_unless_scale_rewards_is_none(seed: int) -> None:
    """TRL's loss_type="dr_grpo" changes the length alone; the paper's Dr.GRPO, our preset, changes both."""
    case = draw(seed)
    preset = ours(case, Objective.preset("dr_grpo", aggregation=DR_GRPO_LENGTH, surrogate=CLIP))
    assert_differ(preset, trl(case, "dr_grpo"), by=0.1)
    assert_same(preset, trl(case, "dr_grpo", A=trl_advantage(case, "none")))


@pytest.mark.parametrize("seed", SEEDS)
def test_trl_cispo_cap_is_epsilon_high_itself(seed: int) -> None:
    case = draw(seed)
    host = trl(case, "cispo", cap=1.1)
    assert_same(ours(case, Objective(TRL_GRPO, aggregation="token", surrogate={"name": "cispo", "cap": 1.1})), host)
    assert_differ(
        ours(case, Objective(TRL_GRPO, aggregation="token", surrogate={"name": "cispo", "cap": 1 + 1.1})), host
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_trl_delta_is_the_dual_clip_only_above_the_clip_range(seed: int) -> None:
    case = draw(seed, drift=0.8)

    def dual(cap: float) -> tuple[Tensor, Tensor]:
        surrogate = {"name": "dual_clip", "low": LOW, "high": HIGH, "cap": cap}
        return ours(case, Objective(TRL_GRPO, aggregation="sequence", surrogate=surrogate))

    assert_same(dual(2.0), trl(case, "grpo", delta=2.0))
    assert_differ(dual(1.1), trl(case, "grpo", delta=1.1))


def test_trl_off_policy_mask() -> None:
    """A response stays if A ≥ 0, or if the mean of log π_sampling − log π over its tokens is at most δ."""
    delta, dropped, kept = 0.05, 0, 0
    objective = Objective(TRL_GRPO, aggregation="sequence", surrogate=CLIP, off_policy_mask=delta)
    for seed in SEEDS:
        case = draw(seed, drift=0.8)
        A = trl_advantage(case)
        drift = ((case.old - case.logp) * case.mask).sum(1) / case.T.clamp(min=1)
        keep = (A >= 0) | (drift <= delta)
        dropped, kept = dropped + int((~keep).sum()), kept + int((keep & (A < 0)).sum())
        assert_same(ours(case, objective), trl(case, "grpo", A=A * keep))
    assert dropped
    assert kept


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "cispo", "sapo", "vespo"])
@pytest.mark.parametrize("bias_correction", [False, True])
def test_trl_kl(loss_type: str, bias_correction: bool, seed: int) -> None:
    """beta·k3, and ρ·k3 with use_bias_correction_kl, averaged as the loss type averages."""
    case = draw(seed)
    options, aggregation, surrogate = TRL_LOSSES[loss_type]
    estimator = "k3_ratio" if bias_correction else "k3"
    objective = Objective(TRL_GRPO, aggregation=aggregation, surrogate=surrogate, kl=0.1, kl_estimator=estimator)
    assert_same(ours(case, objective), trl(case, loss_type, beta=0.1, bias_correction=bias_correction, **options))


def test_trl_bias_correction_at_sequence_level_uses_the_sequence_ratio_and_ours_the_token_ratio() -> None:
    case = draw(0)
    objective = Objective(TRL_GRPO, aggregation="sequence", surrogate=GSPO, kl=0.1, kl_estimator="k3_ratio")
    assert_differ(ours(case, objective), trl(case, "grpo", level="sequence", beta=0.1, bias_correction=True))
    plain = Objective(TRL_GRPO, aggregation="sequence", surrogate=GSPO, kl=0.1)
    assert_same(ours(case, plain), trl(case, "grpo", level="sequence", beta=0.1))


@pytest.mark.parametrize("seed", SEEDS)
def test_trl_counts_empty_responses_as_we_do(seed: int) -> None:
    """mask_truncated_completions: the row has no token, but counts in μ, σ and the number of responses."""
    case = draw(seed, empty=True)
    for loss_type in ("grpo", "dapo", "dr_grpo"):
        _, aggregation, surrogate = TRL_LOSSES[loss_type]
        assert_same(ours(case, Objective(TRL_GRPO, aggregation=aggregation, surrogate=surrogate)), trl(case, loss_type))


def uneven() -> tuple[Padded, list[Tensor]]:
    """Two micro-batches of equally many responses and very different token counts."""
    case = draw(0)
    order = torch.argsort(case.T)
    return case, [order[: len(order) // 2], order[len(order) // 2 :]]


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"])
def test_trl_loss_types_that_survive_a_split_are_ours_under_the_same_split(loss_type: str) -> None:
    case, parts = uneven()
    options, aggregation, surrogate = TRL_LOSSES[loss_type]
    objective = Objective(TRL_GRPO, aggregation=aggregation, surrogate=surrogate)
    assert_same(ours(case, objective, parts), trl(case, loss_type, parts=parts, **options))
    assert_same(ours(case, objective, parts), ours(case, objective))


def test_trl_bnpo_changes_with_the_split_and_ours_does_not() -> None:
    case, parts = uneven()
    objective = Objective(TRL_GRPO, aggregation="token", surrogate=CLIP)
    assert_same(ours(case, objective), trl(case, "bnpo"))
    assert_differ(trl(case, "bnpo", parts=parts), trl(case, "bnpo"), by=0.05)
    assert_same(ours(case, objective, parts), ours(case, objective))


@pytest.mark.parametrize("seed", SEEDS)
def test_trl_importance_sampling_correction(seed: int) -> None:
    """token_truncate is tis; sequence_mask is mis. The weight multiplies the token's loss."""
    case = draw(seed)
    A = trl_advantage(case)[:, None]
    gap = (case.old - case.rollout) * case.mask
    whole = gap.sum(1, keepdim=True).exp()
    cap = max(1.0, float(whole.median()))
    for name, weight in (("tis", gap.exp().clamp(max=cap)), ("mis", torch.where(whole <= cap, whole, 0.0))):

        def loss(logp: Tensor, weight: Tensor = weight) -> Tensor:
            return trl_micro_loss(case, trl_token_loss(case, logp, A, "grpo") * weight, "grpo", case.T.sum())

        objective = Objective(TRL_GRPO, aggregation="sequence", surrogate=CLIP, mismatch={"name": name, "cap": cap})
        assert_same(ours(case, objective), theirs(case, loss))


# --- what the hosts share, and the others ----------------------------------------------------------------------------


def test_hosts_average_over_responses_and_we_over_groups() -> None:
    """With ragged groups 1/B is not 1/(P·G). Under `token` over the batch there is nothing to disagree about."""
    case = draw(0, sizes=(2, 3, 6))
    A = verl_grpo(case)[:, None]

    def both(mode: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        mine = Objective(VERL_GRPO, aggregation=OUR_AGGREGATION[mode], surrogate=VERL_SURROGATES["vanilla"][1])
        return ours(case, mine), theirs(case, lambda x: verl_aggregate(verl_vanilla(case, x, A), case.mask, mode))

    assert_same(*both("token-mean"))
    assert_differ(*both("seq-mean-token-mean"))
    assert_differ(*both("seq-mean-token-sum-norm"))


def test_entropy_bonus_is_a_token_mean_over_the_batch() -> None:
    """TRL and verl token-mean on one micro-batch; verl aggregates it by loss_agg_mode, so its sequence modes differ."""
    case = draw(0)
    entropy = -case.logp * case.logp.exp()
    objective = Objective(VERL_GRPO, aggregation="sequence", entropy_bonus=0.3)
    credit = objective.assign(case.r, case.group, case.T)
    response = torch.arange(len(case.r))[:, None].expand_as(case.mask)
    out = objective.loss(*(eq.flatten(x, case.mask) for x in (case.logp, case.old)), credit,
                         eq.flatten(response, case.mask), entropy=eq.flatten(entropy, case.mask))  # fmt: skip
    bonus = out.stats.policy_loss - out.loss
    torch.testing.assert_close(bonus, 0.3 * verl_aggregate(entropy, case.mask, "token-mean"), rtol=1e-12, atol=0)
    assert (bonus - 0.3 * verl_aggregate(entropy, case.mask, "seq-mean-token-mean")).abs() > 1e-4


def test_openrlhf_dr_grpo_is_the_advantage_alone() -> None:
    """There the name leaves the length alone: r − μ under a token mean, on one micro-batch."""
    case = draw(0)
    A = trl_advantage(case, "none")
    host = trl(case, "bnpo", A=A)
    assert_same(ours(case, Objective("dr_grpo", aggregation="token", surrogate=CLIP)), host)
    assert_differ(ours(case, Objective.preset("dr_grpo", aggregation=DR_GRPO_LENGTH, surrogate=CLIP)), host, by=0.1)


def test_oat_drgrpo_is_our_preset() -> None:
    """r − μ, the sum over each response's tokens divided by generate_max_length, the mean over responses."""
    case = draw(0)
    A = trl_advantage(case, "none")[:, None]
    host = theirs(case, lambda x: ((trl_token_loss(case, x, A, "grpo") * case.mask).sum(1) / WIDTH).mean())
    assert_same(ours(case, Objective.preset("dr_grpo", aggregation=DR_GRPO_LENGTH, surrogate=CLIP)), host)


def test_nanochat_is_token_over_the_group_as_long_as_a_group_is_one_pass() -> None:
    """(r − μ)·log π, divided by the tokens of the pass, the passes per prompt and the prompts."""
    case = draw(0)
    A = trl_advantage(case, "none")[:, None]

    def host(passes: int) -> tuple[Tensor, Tensor]:
        def loss(logp: Tensor) -> Tensor:
            x = -logp * A * case.mask
            chunks = torch.arange(len(case.r)).split(G // passes)
            return sum((x[c].sum() / (case.T[c].sum() * passes * P) for c in chunks), torch.zeros(()).double())

        return theirs(case, loss)

    mine = ours(case, Objective("dr_grpo", aggregation={"name": "token", "over": "group"}, surrogate="reinforce"))
    assert_same(mine, host(1))
    assert_differ(mine, host(2))
    assert_differ(ours(case, Objective("dr_grpo", aggregation="token", surrogate="reinforce")), host(1))

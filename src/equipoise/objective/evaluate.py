"""From log-probabilities to the loss: what `Objective.loss` does once it has checked its arguments.

On the CPU the tokens are taken in the chunks of chunks.py, each as if it were a micro-batch: the
slopes ∂φ/∂log π of the chunks lie side by side, and everything else is a sum. The KL and the
entropy bonus have their gradients from autograd, over all tokens at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.objective import chunks
from equipoise.objective.cancellation import WEIGHT_TRANSFORMS
from equipoise.objective.chunks import Runs, token_count
from equipoise.objective.credit import Credit
from equipoise.objective.loss import (
    CleanRatios,
    KnownGradient,
    Losses,
    LossOutput,
    LossSums,
    Slope,
    Slopes,
    clean_ratios,
)
from equipoise.objective.regularizer import KL_ESTIMATORS, off_policy_mask, one_weight
from equipoise.objective.stack import Stack
from equipoise.objective.surrogate import LIMIT, PerResponse, Tokens, ones_where


class Given(NamedTuple):
    """What `loss` was given of each token, [n]; without gradient."""

    logp: Tensor
    old: Tensor
    response: Tensor
    position: Tensor | None
    rollout: Tensor | None  # None also where nothing looks at it
    others: tuple[Tensor, ...]  # what else goes into the loss, and must be finite
    runs: Runs | None = None  # of `response`; None also on CUDA

    def chunks(self, unit: Tensor | None) -> Iterator[tuple[slice, Given]]:
        """These tokens in parts, in order; unit [rows] numbers what must stay whole.
        Without runs all at once.
        """
        n = len(self.logp)
        if self.runs is None or n <= chunks.CHUNK:
            yield slice(0, n), self
            return
        for part, runs in self.runs.chunks(None if unit is None else unit.numpy()):
            position, rollout = (
                None if x is None else x[part] for x in (self.position, self.rollout)
            )
            others = tuple(x[part] for x in self.others)
            yield (
                part,
                Given(
                    self.logp[part],
                    self.old[part],
                    self.response[part],
                    position,
                    rollout,
                    others,
                    runs,
                ),
            )


def evaluate(
    o: Stack,
    credit: Credit,
    given: Given,
    *,
    logprobs: Tensor,
    entropy: Tensor | None,
    ref: Tensor | None,
) -> LossOutput:
    """The loss, whether all its numbers are finite, and its stats;
    logprobs and entropy [n] with gradient.
    """
    if not given.response.is_cuda:
        given = given._replace(runs=Runs.of(given.response))
        refuse_rows(given.response, credit.lengths, given.runs)
        if credit.per_token and given.position is not None:
            refuse_positions(credit, given.response, given.position)
    whole = _whole(o, credit, given) if o.needs_whole_responses else None
    c = None if credit.per_token else response_coefficient(o, credit).to(given.logp.dtype)
    tally = LossSums(credit, given.logp, with_nodes=given.position is not None)
    parts = list(given.chunks(_unit(o, credit)))
    found: list[Slope] = []
    finite: list[Tensor | None] = []
    for _, chunk in parts:
        tokens, clean = _tokens(credit, c, chunk, whole)
        tokens, trust = _corrected(o, tokens, chunk.rollout)
        if o.needs_whole_groups:
            tokens = replace(tokens, cancelled=partial(_cancelled, o, credit, trust))
        terms = o.surrogate(tokens)
        tally.add(tokens, terms, clean.nonfinite, chunk.position)
        finite.append(clean.finite)
        found.append(Slope.of(tokens, terms))
    slopes = Slopes.of(found, given.runs)
    value = tally.total("value")
    policy_loss = KnownGradient.apply(logprobs, value, slopes.runs, *slopes.values)  # type: ignore[no-untyped-call]
    mask = _joined(finite, [part for part, _ in parts])
    losses = _losses(
        o, credit, given, policy_loss, mask=mask, logprobs=logprobs, entropy=entropy, ref=ref
    )
    stats = tally.stats(losses, slopes, given.response, given.runs)
    ok = (stats.nonfinite == 0) & losses.loss.detach().isfinite()
    return LossOutput(losses.loss, ok if whole is None else ok & whole, stats, credit, given.logp)


def refuse_rows(response: Tensor, lengths: Tensor, runs: Runs | None = None) -> None:
    """A ValueError that names the first token whose row is not in the batch, or the first response
    with more tokens than its length; CPU only.
    """
    if response.numel() == 0:
        return
    found = response if runs is None else torch.from_numpy(runs.row)
    least, most = found.aminmax()
    rows = len(lengths)
    if int(least) < 0 or int(most) >= rows:
        i = int(((response < 0) | (response >= rows)).nonzero()[0])
        raise ValueError(f"response[{i}] = {int(response[i])}: it must be a row, 0 to {rows - 1}")
    count = token_count(response, rows, runs)
    if bool((count > lengths).any()):
        i = int((count > lengths).nonzero()[0])
        raise ValueError(
            f"response {i} has {int(count[i])} tokens in this call of loss, and assign was given {int(lengths[i])} "
            "for it: it must be at most that; give assign the lengths of what loss is given"
        )


def refuse_positions(credit: Credit, response: Tensor, position: Tensor) -> None:
    """A ValueError that names the first token whose position is not in its response; CPU only."""
    past_end = (position < 0) | (position >= credit.lengths.index_select(0, response))
    if bool(past_end.any()):
        i = int(past_end.nonzero()[0])
        raise ValueError(
            f"position[{i}] = {int(position[i])}: it must be a place in response {int(response[i])}"
        )


def response_coefficient(o: Stack, credit: Credit) -> Tensor:
    """[B] what every token of a response has for c, where tokens have none of their own."""
    return (credit.full_weight if o.needs_whole_groups else credit.weight) * credit.advantage


def _unit(o: Stack, credit: Credit) -> Tensor | None:
    """[B] numbers of what must come to the surrogate whole; None where that is a token."""
    if o.needs_whole_groups:
        return credit.groups.index
    return torch.arange(len(credit.lengths)) if o.needs_whole_responses else None


def _tokens(
    credit: Credit, c: Tensor | None, given: Given, whole: Tensor | None
) -> tuple[Tokens, CleanRatios]:
    """The tokens with their coefficients, 0 where a log-probability is not finite or the split
    broke a response.
    """
    dtype = given.logp.dtype
    old = given.old.to(dtype)
    clean = clean_ratios(given.logp - old, given.others)
    tokens = Tokens(
        raw_logp=given.logp,
        raw_old=old,
        free_log_ratio=clean.log_ratio,
        token_c=credit.at(given.response, given.position, dtype) if c is None else None,
        response=given.response,
        lengths=credit.lengths,
        bounds=clean.bounds,
        runs=given.runs,
        response_c=c,
    )
    if clean.finite is None:
        return tokens, clean
    if whole is not None:
        return tokens.weighed(clean.finite & whole), clean
    return tokens.weighed(clean.finite), clean


def _corrected(o: Stack, tokens: Tokens, rollout: Tensor | None) -> tuple[Tokens, Tensor | None]:
    """The tokens with what corrects for the sampler in their coefficients,
    and the mismatch's factor [n].
    """
    factor: Tensor | None = None
    behaviour = tokens.raw_old if rollout is None else rollout.to(tokens.raw_logp.dtype)
    if rollout is not None and o.mismatch.function is not None:
        factor = o.mismatch(tokens, behaviour)
        if o.weighs_whole_responses:
            factor = one_weight(tokens, factor)
        tokens = tokens.weighed(factor)
    if o.off_policy_mask is not None:
        tokens = tokens.weighed(off_policy_mask(tokens, behaviour, o.off_policy_mask))
    return tokens, factor


def _cancelled(
    o: Stack, credit: Credit, trust: Tensor | None, tokens: Tokens, s: Tensor
) -> Tensor | PerResponse:
    """w̃_i·A_i with w̃ the transform of the full weight:
    1/ℓ_i times the surrogate's sequence weight s_i.
    """
    w = credit.full_weight * s
    transformed = WEIGHT_TRANSFORMS[o.cancellation](w, credit.advantage, credit.groups)
    weighed = tokens.like_coefficient((transformed * credit.advantage).to(tokens.raw_logp.dtype))
    slope = tokens.alike(weighed * ones_where(torch.ne, tokens.coefficient, 0.0))
    return slope if trust is None else tokens.spread_out(slope) * trust


def _whole(o: Stack, credit: Credit, given: Given) -> Tensor:
    """Whether every response (or group) begun here is whole;
    on the CPU, where asking is free, refuse if not.
    """
    want = credit.lengths
    got = token_count(given.response, len(want), given.runs)
    unit, begun = "response", got > 0
    if o.needs_whole_groups:
        unit, begun = "group", credit.groups.max((got > 0).to(torch.float64)) > 0
    broken = begun & (got != want)
    if not got.is_cuda and bool(broken.any()):
        i = int(broken.nonzero()[0])
        raise ValueError(
            f"this micro-batch holds {int(got[i])} of the {int(want[i])} tokens of response {i}: "
            f"{o.surrogate.name} with cancellation = {o.cancellation} weighs a {unit} by the ratios of all "
            f"its tokens, so no {unit} may be split over calls of loss"
        )
    return ~broken.any()


def _joined(finite: list[Tensor | None], parts: list[slice]) -> Tensor | None:
    """[n] bool, of the chunks' masks; None where all tokens are finite."""
    if len(finite) == 1 or all(mask is None for mask in finite):
        return finite[0]
    joined = torch.ones(parts[-1].stop, dtype=torch.bool)
    for part, mask in zip(parts, finite, strict=True):
        if mask is not None:
            joined[part] = mask
    return joined


def _losses(
    o: Stack,
    credit: Credit,
    given: Given,
    policy_loss: Tensor,
    *,
    mask: Tensor | None,
    logprobs: Tensor,
    entropy: Tensor | None,
    ref: Tensor | None,
) -> Losses:
    """The loss with β times the weighed KL and minus the bonus of the entropy,
    and their sums over the tokens.
    """
    loss, nothing = policy_loss, given.logp.new_zeros(())
    kl_sum = entropy_sum = nothing
    if ref is not None:
        kl = _token_kl(
            o, _masked(logprobs, mask), _masked(given.old, mask), _masked(ref.detach(), mask)
        )
        kl_sum = kl.detach().sum()
        if o.kl:
            assert credit.kl_weight is not None
            weight = credit.kl_weight.to(kl.dtype).index_select(0, given.response)
            loss = loss + o.kl * (kl * weight).sum()
    if entropy is not None:
        total = _masked(entropy, mask).sum()
        entropy_sum = total.detach()
        if o.entropy_bonus:
            loss = loss - o.entropy_bonus * total / credit.tokens.clamp(min=1)
    return Losses(loss, policy_loss, kl_sum, entropy_sum)


def _masked(x: Tensor, finite: Tensor | None) -> Tensor:
    """x [n] with 0 at the tokens that are not finite; differentiable."""
    return x if finite is None else torch.where(finite, x, 0.0)


def _token_kl(o: Stack, logp: Tensor, old: Tensor, ref: Tensor) -> Tensor:
    """[n] the KL estimate of each token; with gradient."""
    kl = KL_ESTIMATORS[o.kl_estimator](logp, ref.to(logp.dtype))
    if o.kl_estimator == "k3_ratio":
        kl = kl * torch.exp((logp - old.to(logp.dtype)).clamp(-LIMIT, LIMIT))
    return kl

"""What `loss` returns, and the sums that make micro-batches and ranks add up exactly."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from equipoise.objective import bias
from equipoise.objective.chunks import Runs, response_sum
from equipoise.objective.credit import Credit
from equipoise.objective.groups import response_ids
from equipoise.objective.surrogate import LIMIT, PerResponse, Terms, Tokens, summed


class CleanRatios(NamedTuple):
    """log ρ of a micro-batch without what is no number."""

    log_ratio: Tensor  # [n] 0 where it is not finite
    finite: Tensor | None  # [n] bool; None where the host has seen that all tokens are
    nonfinite: Tensor | None  # 0-dim: how many are not; None likewise
    bounds: tuple[Tensor, Tensor] | None  # see `Tokens`


def clean_ratios(log_ratio: Tensor, others: Sequence[Tensor]) -> CleanRatios:
    """log π − log π_old [n], changed in place where it, or one of `others` [n], is not finite.

    On the CPU, where asking is free, two numbers say whether there is anything to do.
    """
    if not log_ratio.is_cuda and log_ratio.numel():
        least, most = log_ratio.aminmax()  # NaN if any is
        near = float(least) >= -LIMIT and float(most) <= LIMIT
        if near and all(_all_finite(x) for x in others):
            return CleanRatios(log_ratio, None, None, (least, most))
    finite = log_ratio.abs() <= torch.finfo(log_ratio.dtype).max  # isfinite, in half its time
    for other in others:
        finite &= other.isfinite()
    nonfinite = finite.numel() - finite.count_nonzero()
    return CleanRatios(log_ratio.nan_to_num_(0.0, 0.0, 0.0), finite, nonfinite, None)


def _all_finite(x: Tensor) -> bool:
    least, most = x.aminmax()
    return math.isfinite(float(least)) and math.isfinite(float(most))


class Losses(NamedTuple):
    """Of a micro-batch, 0-dim; the first two with gradient."""

    loss: Tensor  # what to call backward on
    policy_loss: Tensor  # without KL and entropy
    kl: Tensor  # Σ over tokens
    entropy: Tensor  # Σ over tokens


class Stats(NamedTuple):
    """Sums over the tokens of a micro-batch, and two extremes. 0-dim but where said, on the device."""

    loss: Tensor
    policy_loss: Tensor
    tokens: Tensor
    nonfinite: Tensor
    log_ratio: Tensor
    ratio_excess: Tensor  # Σ(ρ − 1)
    ratio_square: Tensor  # Σ(ρ − 1)²
    low: Tensor  # clipped tokens with a negative coefficient
    high: Tensor  # clipped tokens with a positive coefficient
    kl: Tensor
    entropy: Tensor
    # [B] Σ_t slope of each response, the slope being what pushes log π: clipped and reweighted
    push: Tensor
    pull: Tensor  # [B] Σ_t |slope|
    # [N] Σ slope of each token node by its number, [0] where `assign` was given no tokens
    node_push: Tensor
    node_pull: Tensor  # [N] Σ |slope|
    context_drift: Tensor  # Σ over contexts that responses share of the mean of ρ − 1 − log ρ
    contexts: Tensor  # how many
    min_log_ratio: Tensor
    max_log_ratio: Tensor

    def merge(self, other: Stats) -> Stats:
        added = [a + b for a, b in zip(self[:-2], other[:-2], strict=True)]
        least = torch.minimum(self.min_log_ratio, other.min_log_ratio)
        most = torch.maximum(self.max_log_ratio, other.max_log_ratio)
        return Stats._make([*added, least, most])

    def metrics(self) -> dict[str, Tensor]:
        sums = [self.ratio_excess, self.ratio_square, self.log_ratio]
        sums += [self.low, self.high, self.kl, self.entropy]
        means = torch.stack(sums) / self.tokens.clamp(min=1)
        excess, square, drift, low, high, kl, entropy = means.unbind()
        extremes = torch.stack([self.min_log_ratio, self.max_log_ratio])
        least, most = torch.where(self.tokens > 0, extremes, 0.0).exp().unbind()
        return {
            "loss": self.loss,
            "policy_loss": self.policy_loss,
            "tokens": self.tokens,
            "nonfinite_tokens": self.nonfinite,
            "ratio/mean": 1 + excess,
            "ratio/std": (square - excess.square()).clamp(min=0).sqrt(),
            "ratio/min": least,
            "ratio/max": most,
            "approx_kl": (excess - drift).clamp(min=0),
            "clip_ratio/low": low,
            "clip_ratio/high": high,
            "clip_ratio/region": low + high,
            "kl": kl,
            "entropy": entropy,
        }


@dataclass(frozen=True)
class LossOutput:
    """`loss` to call backward on, and what it saw.

    `ok` is a 0-dim bool tensor: false when a log-probability or the loss itself was not finite (a
    coefficient that is not a number, or too large) or, on CUDA, when the split broke a group.
    Such tokens have no gradient, but the rest of the micro-batch does:
    when `ok` is false, skip the step.
    `logprobs` [n] are the log-probabilities the loss was made of, without their graph.
    """

    loss: Tensor
    ok: Tensor
    stats: Stats
    credit: Credit = field(repr=False)
    logprobs: Tensor = field(repr=False)

    @cached_property
    def metrics(self) -> dict[str, Tensor]:
        """0-dim tensors: nothing has been copied to the host."""
        return merge_metrics([self])


def merge_metrics(outputs: Sequence[LossOutput]) -> dict[str, Tensor]:
    """The metrics of a batch from its micro-batches:
    sums add, means weigh by tokens, extremes stay extremes.
    """
    total = outputs[0].stats
    for output in outputs[1:]:
        total = total.merge(output.stats)
    credit = outputs[0].credit
    return {**total.metrics(), **credit.metrics, **_pushed(total, credit)}


def _pushed(total: Stats, credit: Credit) -> dict[str, Tensor]:
    found = bias.pushed(total.push, total.pull, credit.lengths, credit.groups)
    if credit.nodes is None or not len(total.node_push):
        return found
    nodes = credit.nodes
    push, pull = (
        x.to(torch.float64).index_select(0, nodes.node) for x in (total.node_push, total.node_pull)
    )
    G = credit.groups.size[response_ids(credit.lengths, len(nodes.node))]
    for name, value in bias.node_balance(push, pull, nodes, G).items():
        found[f"pushed/{name}"] = value
    found["drift/shared_contexts"] = (total.context_drift / total.contexts.clamp(min=1)).clamp(
        min=0
    )
    return found


class LossSums:
    """The sums over a micro-batch while its chunks of tokens come in."""

    def __init__(self, credit: Credit, like: Tensor, *, with_nodes: bool) -> None:
        """like [n]: the log-probabilities; with_nodes:
        whether positions, which find a token's node, come along.
        """
        self.credit = credit
        self.nodes = credit.nodes if with_nodes else None
        self.zero = like.new_zeros(())
        self.node_push, self.node_pull = like.new_zeros(
            2, len(self.nodes.node) if self.nodes else 0
        ).unbind()
        self.sums: dict[str, list[Tensor]] = defaultdict(list)  # 0-dim, of each chunk
        self.extremes: list[tuple[Tensor, Tensor]] = []
        self.run_push: list[Tensor] = []  # of each chunk with runs: Σ slope of each
        self.run_pull: list[Tensor] = []

    def add(
        self, tokens: Tokens, terms: Terms, nonfinite: Tensor | None, position: Tensor | None
    ) -> None:
        """Count a chunk."""
        excess, log_ratio = tokens.excess, tokens.log_ratio
        sums = summed(tokens, terms)
        found = {
            "value": sums.value,
            "low": sums.low,
            "high": sums.high,
            "log_ratio": log_ratio.sum(),
            "excess": excess.sum(),
            "square": excess.dot(excess),
        }
        if nonfinite is not None:
            found["nonfinite"] = nonfinite
        if self.nodes is not None and position is not None:
            at = tokens.spread(self.credit.first_token) + position
            slope = tokens.spread_out(terms.slope)
            self._push_nodes(self.nodes.node.index_select(0, at), slope)
            share = self.nodes.context_share.index_select(0, at).to(excess.dtype)
            found["drift"], found["contexts"] = (excess - log_ratio).dot(share), share.sum()
        for name, x in found.items():
            self.sums[name].append(x)
        self.extremes.append(tokens.extremes)
        if tokens.runs is not None:
            by_run = tokens.response_c is not None  # then they are summed already
            self.run_push.append(sums.slope if by_run else tokens.runs.each_sum(sums.slope))
            if self.own_signs:
                self.run_pull.append(tokens.runs.each_sum(sums.slope.abs()))

    @property
    def own_signs(self) -> bool:
        """Whether tokens have advantages of their own.

        A slope has the sign of its coefficient, which is otherwise the response's.
        """
        return self.credit.token_advantage is not None

    def _push_nodes(self, node: Tensor, slope: Tensor) -> None:
        self.node_push.index_add_(0, node, slope)
        self.node_pull.index_add_(0, node, slope.abs())

    def total(self, name: str) -> Tensor:
        """One sum over all chunks, 0-dim."""
        found = self.sums[name]
        if not found:
            return self.zero
        return found[0] if len(found) == 1 else torch.stack(found).sum()

    def _response_sums(
        self, slopes: Slopes, response: Tensor, runs: Runs | None
    ) -> tuple[Tensor, Tensor]:
        """[rows] Σ slope and Σ|slope| of each response."""
        rows = len(self.credit.lengths)
        if runs is not None:  # cut nowhere, so those of the chunks follow each other
            push = runs.of_responses(torch.cat(self.run_push), rows)
            return push, runs.of_responses(
                torch.cat(self.run_pull), rows
            ) if self.own_signs else push.abs()
        (slope,) = slopes.values  # without runs there is one chunk
        push = response_sum(slope, response, rows, None)
        return push, response_sum(
            slope.abs(), response, rows, None
        ) if self.own_signs else push.abs()

    def stats(self, losses: Losses, slopes: Slopes, response: Tensor, runs: Runs | None) -> Stats:
        """slopes, response [n]: of all tokens that were counted."""
        least, most = (torch.stack(ends) for ends in zip(*self.extremes, strict=True))
        push, pull = self._response_sums(slopes, response, runs)
        return Stats(
            loss=losses.loss.detach(),
            policy_loss=losses.policy_loss.detach(),
            tokens=self.zero + len(response),
            nonfinite=self.total("nonfinite").to(torch.int64),
            log_ratio=self.total("log_ratio"),
            ratio_excess=self.total("excess"),
            ratio_square=self.total("square"),
            low=self.total("low"),
            high=self.total("high"),
            kl=losses.kl,
            entropy=losses.entropy,
            push=push,
            pull=pull,
            node_push=self.node_push,
            node_pull=self.node_pull,
            context_drift=self.total("drift"),
            contexts=self.total("contexts"),
            min_log_ratio=least.min(),
            max_log_ratio=most.max(),
        )


class Slope(NamedTuple):
    """∂Σφ/∂log π of a chunk. No more than this is kept of it, so that the next one finds its memory
    in the cache.
    """

    value: Tensor  # [n], or [R] with `runs`
    runs: Runs | None  # whose tokens have one slope each

    @classmethod
    def of(cls, tokens: Tokens, terms: Terms) -> Slope:
        if isinstance(terms.slope, PerResponse):
            return cls(tokens.at_sums(terms.slope.each), tokens.runs)
        return cls(terms.slope, None)

    def at_tokens(self) -> Tensor:
        return self.value if self.runs is None else self.runs.repeat(self.value.numpy())


class Slopes(NamedTuple):
    """∂Σφ/∂log π of the tokens of a call."""

    values: list[Tensor]  # [n] of each chunk; or one [R] of all, with `runs`
    runs: Runs | None

    @classmethod
    def of(cls, chunks: list[Slope], runs: Runs | None) -> Slopes:
        """runs: of the whole call, cut nowhere, so those of the chunks follow each other."""
        if all(chunk.runs is not None for chunk in chunks):
            return cls([torch.cat([chunk.value for chunk in chunks])], runs)
        return cls([chunk.at_tokens() for chunk in chunks], None)


class KnownGradient(torch.autograd.Function):
    """−Σφ, whose derivative with respect to the log-probabilities is known in closed form."""

    @staticmethod
    def forward(
        ctx: Any, logprobs: Tensor, value: Tensor, runs: Runs | None, *slopes: Tensor
    ) -> Tensor:
        ctx.save_for_backward(*slopes)
        ctx.runs = runs
        return -value

    @staticmethod
    @once_differentiable  # the slopes are numbers: a second derivative would be 0, and wrong
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slopes, factor = ctx.saved_tensors, -grads[0]
        if ctx.runs is not None:
            gradient = ctx.runs.repeat((factor * slopes[0]).numpy())
        elif len(slopes) == 1:
            gradient = factor * slopes[0]
        else:  # side by side, without a copy of the slopes
            gradient = slopes[0].new_empty(sum(len(slope) for slope in slopes))
            for slope, part in zip(slopes, gradient.split([len(x) for x in slopes]), strict=True):
                torch.mul(slope, factor, out=part)
        return gradient, None, None, *(None for _ in slopes)

"""Responses in groups, tokens in responses: segment sums without padding and without a host
synchronisation.

Most operations over groups take one number per response and give one number per response: each
response sees its own group's sum, mean or maximum. `totals` and `means` give one number per group
instead. On CUDA, where asking for the number of groups would wait, there is a place for as many
groups as there are responses: tensors of unknown size never appear.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


def group_ids(group: Tensor | np.ndarray | Sequence[Hashable], device: torch.device) -> Tensor:
    """Any ids as a tensor: a tensor stays as it is,
    anything else (strings, tuples) is numbered by first appearance.
    """
    if isinstance(group, Tensor):
        return group.to(device)
    numbers: dict[Hashable, int] = {}
    values = (
        group.tolist()
        if isinstance(group, np.ndarray)
        else [x.item() if isinstance(x, Tensor) else x for x in group]
    )
    for i, value in enumerate(values):
        if value is None or value != value:
            raise ValueError(f"group[{i}] = {value!r}: a group id must equal itself")
    return torch.tensor(
        [numbers.setdefault(value, len(numbers)) for value in values],
        dtype=torch.int64,
        device=device,
    )


@dataclass(frozen=True)
class Groups:
    """The group of each response, as an index below the number of responses."""

    index: Tensor  # [B] int64
    first: Tensor  # [B] bool: true for exactly one response of each group
    number: Tensor  # 0-dim int64: of groups
    places: int  # every index lies below: the number of groups, or on CUDA that of responses

    @classmethod
    def of(cls, ids: Tensor) -> Groups:
        """Number the groups by sorting their ids; the ids may come in any order and of any real
        dtype.
        """
        ordered, order = torch.sort(ids, stable=True)
        new = torch.ones_like(ordered, dtype=torch.bool)
        torch.ne(ordered[1:], ordered[:-1], out=new[1:])
        index = torch.empty_like(order).scatter_(0, order, new.cumsum(0) - 1)
        first = torch.empty_like(new).scatter_(0, order, new)
        number = new.sum()
        return cls(index, first, number, len(ids) if ids.is_cuda else int(number))

    def split(self, side: Tensor) -> Groups:
        """Every group divided by a mask [B] into two, for sums:
        `first` stays that of the whole groups.
        """
        index = torch.add(self.index, side.to(torch.int64), alpha=self.places)
        return Groups(index, self.first, self.number, 2 * self.places)

    def totals(self, x: Tensor) -> Tensor:
        """[B] -> [places]: the sum over each group, 0 at a place without one; of x [K, B] every row
        for itself.
        """
        index = self.index if x.ndim == 1 else self.index.expand_as(x)
        return x.new_zeros((*x.shape[:-1], self.places)).scatter_add_(-1, index, x)

    def means(self, x: Tensor) -> Tensor:
        """[B] -> [places]: the mean over each group, 0 at a place without one."""
        return self.totals(x) / self.counts

    def each(self, x: Tensor) -> Tensor:
        """[places] -> [B]: each response sees its group's number."""
        return x.index_select(0, self.index)

    def sum(self, x: Tensor) -> Tensor:
        return self.each(self.totals(x))

    def mean(self, x: Tensor) -> Tensor:
        return self.each(self.means(x))

    def max(self, x: Tensor) -> Tensor:
        return self._extreme(x, "amax")

    def min(self, x: Tensor) -> Tensor:
        return self._extreme(x, "amin")

    def _extreme(self, x: Tensor, reduce: str) -> Tensor:
        buffer = x.new_zeros(self.places)
        return self.each(buffer.scatter_reduce_(0, self.index, x, reduce, include_self=False))

    @cached_property
    def counts(self) -> Tensor:
        """[places] float64: G, the number of responses in each group, 1 at a place without one."""
        ones = torch.ones(len(self.index), dtype=torch.float64, device=self.index.device)
        return self.totals(ones).clamp_(min=1)

    @cached_property
    def size(self) -> Tensor:
        """[B] float64: G, the number of responses in each response's group."""
        return self.each(self.counts)

    def to(self, device: torch.device) -> Groups:
        index, first, number = (x.to(device) for x in (self.index, self.first, self.number))
        return Groups(index, first, number, self.places)

    def average(self, x: Tensor, counted: Tensor) -> Tensor:
        """Mean over the groups that count of a per-group quantity x [B] (equal for all responses of
        a group), 0 where none counts.
        """
        once = self.first & counted
        return (x * once).sum() / once.sum().clamp(min=1)


@dataclass(frozen=True)
class Batch:
    """What `assign` knows of a batch: rewards, lengths, groups.
    float64, because it is small and signs matter.
    """

    r: Tensor  # [B] float64
    T: Tensor  # [B] float64, tokens in each response
    groups: Groups
    eps: float  # relative precision of the rewards as they came
    some_empty: bool = True  # whether a response may be without tokens

    @cached_property
    def G(self) -> Tensor:
        return self.groups.size

    @cached_property
    def group_rewards(self) -> Tensor:
        """[places] μ, the mean reward of each group."""
        return self.groups.means(self.r)

    @cached_property
    def mean(self) -> Tensor:
        """[B] μ of the response's group."""
        return self.groups.each(self.group_rewards)

    @cached_property
    def group_lengths(self) -> Tensor:
        """[places] T̄, the mean T of each group."""
        return self.groups.means(self.T)

    @cached_property
    def mean_length(self) -> Tensor:
        """[B] T̄ of the response's group."""
        return self.groups.each(self.group_lengths)

    @cached_property
    def centred(self) -> Tensor:
        """r − μ, and exactly 0 where only rounding can have made a difference:
        a sign made of noise would train.
        """
        d = self.r - self.mean
        return d * (d.abs() > self.noise)

    @cached_property
    def noise(self) -> Tensor:
        """[B] by how much rounding alone can move r − μ."""
        return (2 * self.eps + 3e-16 * self.G) * self.groups.max(self.r.abs())


def response_ids(lengths: Tensor, total: int | None = None) -> Tensor:
    """[N]: the row of each token when responses of these lengths lie one after the other;
    N = `total` if known.
    """
    return torch.repeat_interleave(
        torch.arange(len(lengths), device=lengths.device), lengths, output_size=total
    )


def positions(lengths: Tensor, total: int | None = None) -> Tensor:
    """[N]: the position of each token in its response when responses of these lengths lie one after
    the other.
    """
    response = response_ids(lengths, total)
    return (
        torch.arange(len(response), device=lengths.device) - (lengths.cumsum(0) - lengths)[response]
    )


def flatten(padded: Tensor, mask: Tensor) -> Tensor:
    """The masked-in elements of a padded [B, T] tensor as a flat [N] tensor, row by row;
    differentiable.
    """
    if padded.shape[:2] != mask.shape:
        raise ValueError(
            f"padded has shape {tuple(padded.shape)}, mask {tuple(mask.shape)}: both must begin with [B, T]"
        )
    return padded[mask.bool()]


def unflatten(flat: Tensor, mask: Tensor, fill: float = 0.0) -> Tensor:
    """The inverse of :func:`flatten`: a [B, T] tensor with `fill` where the mask is off;
    differentiable.
    """
    return torch.full(mask.shape, fill, dtype=flat.dtype, device=flat.device).masked_scatter(
        mask.bool(), flat
    )

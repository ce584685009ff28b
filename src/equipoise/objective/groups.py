"""Responses in groups, tokens in responses: segment sums without padding and without a host
synchronisation.

Every operation over groups takes one number per response and gives one number per response: each
response sees its own group's sum, mean or maximum. Tensors of unknown size never appear, which is
what keeps CUDA asynchronous.
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

    @classmethod
    def of(cls, ids: Tensor) -> Groups:
        """Number the groups by sorting their ids; the ids may come in any order and of any real
        dtype.
        """
        order = torch.argsort(ids, stable=True)
        ordered = ids[order]
        new = torch.ones_like(ordered, dtype=torch.bool)
        new[1:] = ordered[1:] != ordered[:-1]
        index, first = torch.empty_like(order), torch.empty_like(new)
        index[order] = new.cumsum(0) - 1
        first[order] = new
        return cls(index, first)

    def split(self, side: Tensor) -> Groups:
        """Every group divided by a mask [B] into two, for sums:
        `first` stays that of the whole groups.
        """
        return Groups(2 * self.index + side, self.first)

    def sum(self, x: Tensor) -> Tensor:
        """Sum over the group; of x [K, B] every row for itself."""
        index = self.index if x.ndim == 1 else self.index.expand_as(x)
        # an index of split groups goes that far
        buffer = x.new_zeros((*x.shape[:-1], 2 * x.shape[-1]))
        return buffer.scatter_add_(-1, index, x).gather(-1, index)

    def mean(self, x: Tensor) -> Tensor:
        return self.sum(x) / self.size

    def max(self, x: Tensor) -> Tensor:
        return self._extreme(x, "amax")

    def min(self, x: Tensor) -> Tensor:
        return self._extreme(x, "amin")

    def _extreme(self, x: Tensor, reduce: str) -> Tensor:
        total = torch.zeros_like(x).scatter_reduce_(0, self.index, x, reduce, include_self=False)
        return total.index_select(0, self.index)

    @cached_property
    def size(self) -> Tensor:
        """[B] float64: G, the number of responses in each response's group."""
        return self.sum(torch.ones(len(self.index), dtype=torch.float64, device=self.index.device))

    def to(self, device: torch.device) -> Groups:
        return Groups(self.index.to(device), self.first.to(device))

    def average(self, x: Tensor, counted: Tensor | None = None) -> Tensor:
        """Mean over groups of a per-group quantity (equal for all responses of a group), 0 where no
        group counts.

        Of x [K, B] every row for itself.
        """
        once = self.first if counted is None else self.first & counted
        return (x * once).sum(-1) / once.sum().clamp(min=1)


@dataclass(frozen=True)
class Batch:
    """What `assign` knows of a batch: rewards, lengths, groups.
    float64, because it is small and signs matter.
    """

    r: Tensor  # [B] float64
    T: Tensor  # [B] float64, tokens in each response
    groups: Groups
    eps: float  # relative precision of the rewards as they came

    @cached_property
    def G(self) -> Tensor:
        return self.groups.size

    @cached_property
    def mean(self) -> Tensor:
        """μ, the group's mean reward, seen by each of its responses."""
        return self.groups.mean(self.r)

    @cached_property
    def mean_length(self) -> Tensor:
        """[B] the mean T of the response's group."""
        return self.groups.mean(self.T)

    @cached_property
    def centred(self) -> Tensor:
        """r − μ, and exactly 0 where only rounding can have made a difference:
        a sign made of noise would train.
        """
        d = self.r - self.mean
        noise = (2 * self.eps + 3e-16 * self.G) * self.groups.max(self.r.abs())
        return d * (d.abs() > noise)


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

"""Cancellation: restore exchangeability, so that a token all responses share gets no net push
(formulas.md §4).

`min_replace` and `orthogonal` act on the full weight of a response, 1/ℓ_i and any sequence ratio
included. With token-level surrogates that weight is known in `assign`; with sequence ratios only in
`loss`, which needs whole groups. `both`, which keeps mass balance as well, is in projection.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from equipoise.objective.groups import Groups
from equipoise.splitmix import mix_signed


def min_replace(w: Tensor, A: Tensor, groups: Groups) -> Tensor:
    """w̃_i = min_j w_j over the responses with weight and advantage.
    Then Σ A w̃ = 0 if ΣA = 0 over those with tokens.
    """
    real = (w > 0) & (A != 0)
    return torch.where(real, groups.min(torch.where(real, w, torch.inf)), 0.0)


def orthogonal(w: Tensor, A: Tensor, groups: Groups) -> Tensor:
    """w̃ = w − (Aᵀw/‖A‖²)A, clamped at 0. Then Σ A w̃ = 0 wherever nothing was clamped."""
    return orthogonal_unclamped(w, A, groups).clamp(min=0)


def orthogonal_unclamped(w: Tensor, A: Tensor, groups: Groups) -> Tensor:
    A = torch.where(w > 0, A, 0.0)
    norm = groups.sum(A**2)
    return w - torch.where(norm > 0, groups.sum(A * w) / norm, 0.0) * A


def recentre(c: Tensor, real: Tensor, groups: Groups) -> Tensor:
    """c_i ← c_i − mean c over the responses that have tokens:
    the smallest change (L2) that makes Σc = 0.
    """
    n = groups.sum(real.to(c.dtype)).clamp(min=1)
    return torch.where(real, c - groups.sum(c * real) / n, 0.0)


CANCELLATIONS: tuple[str, ...] = ("none", "min_replace", "orthogonal", "recentre", "prefix", "both")
WEIGHT_TRANSFORMS: dict[str, Callable[[Tensor, Tensor, Groups], Tensor]] = {
    "min_replace": min_replace,
    "orthogonal": orthogonal,
}


class Nodes:
    """The token nodes of a batch: tokens of one group with the same prefix,
    themselves included, are one node.

    Prefixes are told apart by a 64-bit polynomial hash of their tokens.
    Flat tensors [N] in row order.
    """

    def __init__(
        self, tokens: Tensor, lengths: Tensor, response: Tensor, position: Tensor, groups: Groups
    ) -> None:
        tokens = tokens.to(torch.int64)
        powers = torch.full_like(tokens, 6364136223846793005).cumprod(0)[position]
        mixed = mix_signed(tokens) * powers
        total = mixed.cumsum(0)
        before = torch.cat([total.new_zeros(1), total])[lengths.cumsum(0) - lengths]
        # of the group as well: the same prefix elsewhere is another node
        place = mix_signed(groups.index)[response] ^ position
        key = mix_signed((total - before[response]) ^ mix_signed(place))
        order = torch.argsort(key)
        ordered = key[order]
        new = torch.ones_like(ordered, dtype=torch.bool)
        new[1:] = ordered[1:] != ordered[:-1]
        self.node = torch.empty_like(order)
        self.node[order] = new.cumsum(0) - 1
        # responses that share the token's node
        self.count = self.sum(torch.ones_like(self.node, dtype=torch.float64))
        self.first = torch.empty_like(new)
        self.first[order] = new
        count = self._context_count(position, groups.index[response])
        # so that a context shared by two tokens or more counts as one
        self.context_share = (count >= 2) / count

    def _context_count(self, position: Tensor, group: Tensor) -> Tensor:
        """[N] float64: the tokens that were drawn after the same prefix;
        a first token's prefix is the prompt.
        """
        N = len(self.node)
        parent = torch.cat([self.node[:1], self.node[:-1]])
        context = torch.where(position == 0, N + group, parent)
        ones = torch.ones_like(context, dtype=torch.float64)
        return ones.new_zeros(2 * N).index_add_(0, context, ones).index_select(0, context)

    def sum(self, x: Tensor) -> Tensor:
        """[N] -> [N]: each token sees its node's sum."""
        return torch.zeros_like(x).index_add_(0, self.node, x).index_select(0, self.node)

    def to(self, device: torch.device) -> Nodes:
        moved = object.__new__(Nodes)
        moved.__dict__ = {name: x.to(device) for name, x in self.__dict__.items()}
        return moved

    def shared_length(self, response: Tensor, rows: int) -> Tensor:
        """[B]: how many leading tokens of each response lie on nodes shared by two responses or
        more.
        """
        shared = (self.count >= 2).to(torch.int64)
        return torch.zeros(rows, dtype=torch.int64, device=shared.device).index_add_(
            0, response, shared
        )

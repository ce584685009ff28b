"""`both`: coefficients with Σ c = 0 and Σ cT = 0 in every group,
and no sign turned (formulas.md §1, docs/theory.md).

The nearest such coefficients (L2) to those the aggregation gave. They exist, other than 0, where
the range of lengths of the right responses meets that of the wrong ones; a group where it does not
keeps the coefficients it came with. Not covered: the two sums after clipping. They hold for the
coefficients of `assign`, that is, on-policy.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.objective.groups import Groups

ITERATIONS = 60
# lengths a Newton step is tried with, each a quarter of the one before; the best one is taken
STEPS = 16
TIE = 1 + 1e-14  # near the minimum rounding decides between steps: within it, the longest is taken
ROUNDING = 1e-12  # of the group's largest coefficient: what is no more than that is 0
TOLERANCE = 1e-10  # of either sum, as a share of what is added up in it


class Projection(NamedTuple):
    """What `both` made of the weights, one entry per response."""

    weight: Tensor  # [B] ≥ 0
    solved: Tensor  # [B] bool: the response's group has both balances
    clamped: Tensor  # [B] bool: it had a weight, and both balances left it none


def both(w: Tensor, A: Tensor, T: Tensor, groups: Groups) -> Projection:
    """w̃ with Σ w̃A = Σ w̃AT = 0 and w̃ ≥ 0, the nearest in c = wA;
    the group's own w where there is no such w̃ but 0.
    """
    live = (w > 0) & (A != 0) & (T > 0)
    able = can_pull(T, torch.sign(A) * live, groups)
    u, s = torch.where(able, w * A.abs(), 0.0), torch.sign(A) * able
    v = project(u, s, T, groups)
    group_solved = _unbalanced(v, s, T, groups) <= TOLERANCE
    solved = live & group_solved
    weight = torch.where(solved, v / A.abs(), w)  # where A is 0 it is not solved
    return Projection(weight, group_solved, solved & (v <= 0))


def can_pull(T: Tensor, s: Tensor, groups: Groups) -> Tensor:
    """[B] the responses that can have c ≠ 0 of their own sign s with Σ c = Σ cT = 0;
    nowhere in a group without any.

    With u = |c|, both sums are 0 exactly where Σ_{S+}u = Σ_{S−}u and the u-weighted mean lengths of
    S+ and S− agree. A weighted mean takes every value of the range of what it averages, an end of
    the range by the responses at that end alone. So u ≠ 0 exists where the two ranges meet (never
    where every right response is shorter than every wrong one), and u > 0 everywhere where they
    meet inside: where they only touch, u is 0 but for the responses of that length.
    """
    far = torch.full_like(T, torch.inf)
    lowest = [groups.min(torch.where(s == sign, T, far)) for sign in (1, -1)]
    highest = [groups.max(torch.where(s == sign, T, -far)) for sign in (1, -1)]
    first, last = torch.maximum(*lowest), torch.minimum(*highest)  # what the ranges have in common
    low = torch.where(s > 0, lowest[0], lowest[1])
    high = torch.where(s > 0, highest[0], highest[1])
    inside = (first < last) | ((low < first) & (last < high)) | (first == T)
    return (s != 0) & (first <= last) & inside


def project(u: Tensor, s: Tensor, T: Tensor, groups: Groups) -> Tensor:
    """v ≥ 0 with Σ sv = Σ svT = 0 and Σ(v − u)² least, per group:
    the size of each coefficient, s its sign, 0 for none.

    By the conditions of Karush, Kuhn and Tucker v = max(0, u − s(α + βt)) with two numbers per
    group, t the lengths, centred and scaled. They are the minimum of the convex, piecewise
    quadratic ½Σ max(0, u − s(α + βt))², whose gradient is minus the two sums: Newton's method, all
    groups at once, each with the best of a few step lengths.
    """
    live = (s != 0).to(T.dtype)
    n = groups.sum(live).clamp(min=1)
    centred = (T - groups.sum(T * live) / n) * live
    t = centred / torch.sqrt(groups.sum(centred**2) / n).clamp(min=1e-9)
    scale = groups.max(u)
    u = torch.where(scale > 0, u / scale, 0.0)
    alpha, beta = torch.zeros_like(u), torch.zeros_like(u)
    # Made on the device: a copy from the host would make the host wait.
    steps = 4.0 ** -torch.arange(STEPS, dtype=u.dtype, device=u.device)[:, None]
    for _ in range(ITERATIONS):
        v = (u - s * (alpha + beta * t)).clamp(min=0)
        if not v.is_cuda and bool(_settled(v, s, t, groups)):  # on the CPU, where asking is free
            break
        da, db = _newton(v, s, t, groups)
        tried = (u - s * (alpha + steps * da + (beta + steps * db) * t)).clamp(min=0)
        height = _sums(tried**2, groups)
        lowest = height <= TIE * height.amin(0)
        length = (lowest * steps).amax(0)
        alpha, beta = alpha + length * da, beta + length * db
    v = u - s * (alpha + beta * t)
    # A response at the edge of the range is 0 or a rounding above it;
    # which one must not depend on the device.
    return torch.where(v > ROUNDING, v, 0.0) * scale


def _newton(v: Tensor, s: Tensor, t: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """The step of Newton's method in (α, β): a 2×2 system per group,
    over the responses that have v > 0.
    """
    active = (v > 0).to(v.dtype)
    rows = torch.stack([s * v, s * v * t, active, active * t, active * t**2])
    push, pull, h00, h01, h11 = _sums(rows, groups).unbind()
    h11 = h11 + 1e-13 * (h00 + h11)  # one length alone leaves β free
    determinant = h00 * h11 - h01**2
    safe = torch.where(determinant > 0, determinant, 1.0)
    return (h11 * push - h01 * pull) / safe, (h00 * pull - h01 * push) / safe


def _settled(v: Tensor, s: Tensor, t: Tensor, groups: Groups) -> Tensor:
    sums = _sums(torch.stack([s * v, s * v * t]), groups).abs()
    return (sums <= 1e-15 * groups.size).all()


def _sums(x: Tensor, groups: Groups) -> Tensor:
    """[k, B] -> [k, B]: each response sees its group's sum of every row."""
    return torch.zeros_like(x).index_add_(1, groups.index, x).index_select(1, groups.index)


def _unbalanced(v: Tensor, s: Tensor, T: Tensor, groups: Groups) -> Tensor:
    """[B] the larger of |Σ sv|/Σv and |Σ svT|/ΣvT; infinite where v is 0 throughout the group."""
    push, mass = groups.sum(s * v).abs(), groups.sum(v)
    pull, gradient = groups.sum(s * v * T).abs(), groups.sum(v * T)
    return torch.where(mass > 0, torch.maximum(push / mass, pull / gradient), torch.inf)

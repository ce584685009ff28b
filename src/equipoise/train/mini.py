"""Mini-batches: the parts of a batch of rollouts that an optimizer step takes each.

Every pass over the batch cuts its groups anew, in an order that follows from the run's seed, the
step and the pass alone: a resumed run and any number of processes make the same cuts. A part has
whole groups, at most `train.mini_batch` of them, and the parts are as even as can be, because the
last of an uneven cut would take a step of the same size on fewer prompts. Inside a part groups
stand as in the batch. Not covered: what fits into a forward and backward pass, which is `micro`'s.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.objective import Credit
from equipoise.rollout import Rollouts
from equipoise.train import ranks
from equipoise.train.micro import RankShare


@dataclass(eq=False)
class MiniBatch:
    """This rank's responses of an optimizer step, with credit; `weight`: its share of prompts,
    `policy_weight`: of those that the mean of the policy's loss counts.
    """

    share: RankShare
    credit: Credit
    weight: float
    policy_weight: float


def parts_of(prompts: int, size: int) -> int:
    """Into how many parts of at most `size` prompts (0: all of them) a batch falls."""
    return -(-prompts // size) if size else 1


def cut_groups(prompts: int, size: int, seed: int, step: int, turn: int) -> list[Tensor]:
    """The groups of each part, for pass number `turn` over the batch of a step."""
    count = parts_of(prompts, size)
    if count == 1:
        return [torch.arange(prompts)]
    order = random.Random(f"{seed} {step} {turn}").sample(range(prompts), prompts)
    ends = [prompts * k // count for k in range(count + 1)]
    return [torch.tensor(sorted(order[a:b])) for a, b in itertools.pairwise(ends)]


def mini_batches(
    rollouts: Rollouts, credit: Credit, trained: Tensor, groups: list[Tensor]
) -> list[MiniBatch]:
    """Of the groups of each part, the responses that are `trained` on [B]; parts that have none are
    left out, on every rank: momentum is no reason to move the weights.
    """
    group = rollouts.prompt.cpu()
    out = []
    for part in groups:
        inside = torch.isin(group, part)
        if not bool((inside & trained).any()):
            continue
        mine = torch.isin(
            group, part[torch.tensor(ranks.share(range(len(part))), dtype=torch.int64)]
        )
        share = RankShare.of(rollouts, (mine & trained).nonzero()[:, 0])
        own = credit if len(groups) == 1 else credit.part(inside)
        weight = len(part) / len(rollouts.prompts)
        out.append(MiniBatch(share, own, weight, _share_of_counted(credit, inside)))
    return out


def _share_of_counted(credit: Credit, rows: Tensor) -> float:
    """Of the prompts that count in the mean of the policy's loss, the share in `rows` [B]."""
    counted = (credit.groups.first & credit.counted).cpu()
    return int((counted & rows).sum()) / max(int(counted.sum()), 1)

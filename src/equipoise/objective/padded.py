"""`loss` for batches that are padded rectangles, as most training code has them:
one call, no loop over rows.

Not for speed: a padded batch has been computed already,
and choosing its tokens is one host synchronisation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.objective.credit import Credit
from equipoise.objective.groups import flatten, positions
from equipoise.objective.loss import LossOutput
from equipoise.objective.objective import Objective


def padded_loss(
    objective: Objective,
    credit: Credit,
    logprobs: Tensor,
    old_logprobs: Tensor,
    mask: Tensor,
    *,
    rows: Tensor | slice | None = None,
    entropy: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
) -> LossOutput:
    """`objective.loss` of padded tensors [b, T], on whichever side the padding is.

    mask [b, T] is true at the response's tokens; what stands elsewhere is not read. rows: which
    responses of `assign`'s batch these are, as a slice or as indices [b]; None where they are all
    of them. The responses' lengths in `assign` must have been `mask.sum(1)`: a ValueError says
    which is not.

    >>> credit = objective.assign(rewards, prompts, mask.sum(1))
    >>> out = padded_loss(objective, credit, logprobs, old_logprobs, mask)
    """
    every = torch.arange(len(credit.lengths), device=mask.device)
    chosen = every if rows is None else every[rows]
    lengths = mask.sum(1)
    _check(lengths, credit.lengths.to(mask.device)[chosen], chosen)
    total = int(lengths.sum())

    def flat(padded: Tensor | None) -> Tensor | None:
        return None if padded is None else flatten(padded, mask)

    return objective.loss(
        flatten(logprobs, mask),
        flatten(old_logprobs, mask),
        credit,
        torch.repeat_interleave(chosen, lengths, output_size=total),
        position=positions(lengths, total),
        entropy=flat(entropy),
        ref_logprobs=flat(ref_logprobs),
        rollout_logprobs=flat(rollout_logprobs),
    )


def _check(lengths: Tensor, assigned: Tensor, rows: Tensor) -> None:
    if len(lengths) != len(assigned):
        raise ValueError(
            f"mask has {len(lengths)} rows, and `rows` names {len(assigned)} responses of the batch: must be as many; "
            "give rows= where this is a micro-batch"
        )
    differ = (lengths != assigned).nonzero()[:, 0]
    if len(differ):
        i = int(differ[0])
        raise ValueError(
            f"mask[{i}] has {int(lengths[i])} tokens, and assign was given {int(assigned[i])} for response "
            f"{int(rows[i])}: must be the same; give assign mask.sum(1)"
        )

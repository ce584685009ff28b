"""An objective inside a trainer that has its own loop:
coefficients to put in its advantages, and our surrogate's sum.

Every surrogate here is positively homogeneous in the advantage, so the weight w of a response folds
into it exactly (A' = wA, then a plain sum over tokens). `coefficients` makes the A' of a whole
batch; `surrogate_sum` is Σ φ of any tokens for them. `check` refuses what cannot be had where a
trainer's loss sees a micro-batch and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.objective.credit import Credit
from equipoise.objective.groups import response_ids
from equipoise.objective.objective import Objective
from equipoise.objective.surrogate import Tokens


def check(objective: Objective, host: str, whole_batch: bool = False) -> None:
    """ValueError where an objective needs more than coefficients and the tokens of a micro-batch.

    `whole_batch`: our loss sees all responses of the batch at once, and their token ids.
    """
    surrogate, cancellation = objective.surrogate.name, objective.cancellation
    for refused, why in (
        (
            cancellation == "prefix" and not whole_batch,
            f"cancellation = prefix needs token ids beside the loss, which {host} does not give",
        ),
        (
            objective.needs_whole_groups and not whole_batch,
            f"surrogate = {surrogate} with cancellation = {cancellation} needs whole groups in a micro-batch, which "
            f"{host} does not keep together; use cancellation = recentre, or a token-level surrogate",
        ),
        (
            len(objective.reward_weights) > 1,
            f"reward_weights: {host} gives one reward per response",
        ),
        (objective.kl > 0, f"kl is {host}'s own: set it there"),
        (objective.entropy_bonus > 0, f"entropy_bonus is {host}'s own: set it there"),
        (objective.mismatch.name != "none", f"mismatch is {host}'s own: set it there"),
        (
            objective.off_policy_mask is not None,
            "off_policy_mask leaves responses out, which the loss here does not",
        ),
        (
            objective.advantage.name == "none",
            f"advantage = none needs a teacher, which {host} does not give",
        ),
    ):
        if refused:
            raise ValueError(f"objective: {why}")


def coefficients(
    objective: Objective,
    rewards: Any,
    groups: Sequence[Any],
    lengths: Any,
    tokens: Tensor | None = None,
) -> Credit:
    """The credit of a whole batch; its `coefficient` [B] is what one token of each response weighs.

    rewards [B], groups [B] of any names, lengths [B] in tokens of the loss,
    tokens [Σ lengths] for cancellation=prefix.
    """
    number: dict[Any, int] = {}
    ids = [number.setdefault(group, len(number)) for group in groups]
    return objective.assign(
        torch.as_tensor(rewards), torch.tensor(ids), torch.as_tensor(lengths), tokens=tokens
    )


def surrogate_sum(
    objective: Objective,
    logprobs: Tensor,
    old_logprobs: Tensor,
    coefficient: Tensor,
    lengths: Tensor,
) -> tuple[Tensor, Tensor]:
    """−Σ_t φ_t of some whole responses, with gradient, and the share of tokens that were clipped.

    logprobs, old_logprobs and coefficient are flat [n], response after response of these lengths.
    """
    dtype = torch.promote_types(logprobs.dtype, torch.float32)
    logp, old, c = (x.to(dtype) for x in (logprobs, old_logprobs.detach(), coefficient.detach()))
    here = logp.detach()
    terms = objective.surrogate(
        Tokens(here, old, here - old, c, response_ids(lengths, len(c)), lengths)
    )
    value = terms.value + terms.slope * (logp - here)
    clipped = value.new_zeros(()) if terms.clipped is None else terms.clipped.double().mean()
    return -value.sum(), clipped

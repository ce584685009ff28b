"""An objective inside a trainer that has its own loop:
coefficients to put in its advantages, and our surrogate's sum.

Every surrogate here is positively homogeneous in the advantage, so the weight w of a response folds
into it exactly (A' = wA, then a plain sum over tokens). `coefficients` makes the A' of a whole
batch; `surrogate_sum` is Σ φ of any tokens for them. `check` refuses what cannot be had where a
trainer's loss sees a micro-batch and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from equipoise.objective.credit import Credit
from equipoise.objective.groups import response_ids
from equipoise.objective.objective import Objective
from equipoise.objective.surrogate import Tokens, at_each_token, clip_counts


def check(
    objective: Objective,
    host: str,
    whole_batch: bool = False,
    *,
    section: str = "objective",
    set_there: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """ValueError where an objective needs more than coefficients and the tokens of a micro-batch.

    `whole_batch`: our loss sees all responses of the batch at once, and their token ids.
    `section`: where the objective is written. `set_there`: how the host sets its own kl,
    entropy_bonus and mismatch.
    """
    surrogate, cancellation = objective.surrogate.name, objective.cancellation
    refusals = {
        f"cancellation = prefix needs token ids beside the loss, which {host} does not give": (
            cancellation == "prefix" and not whole_batch
        ),
        f"surrogate = {surrogate} with cancellation = {cancellation} needs whole groups in a "
        f"micro-batch, which {host} does not keep together; "
        "use cancellation = recentre, or a token-level surrogate": (
            objective.needs_whole_groups and not whole_batch
        ),
        f"reward_weights: {host} gives one reward per response": len(objective.reward_weights) > 1,
        "off_policy_mask leaves responses out, which the loss here does not": (
            objective.off_policy_mask is not None
        ),
        f"advantage = none needs a teacher, which {host} does not give": (
            objective.advantage.name == "none"
        ),
    }
    asked = {
        "kl": objective.kl > 0,
        "entropy_bonus": objective.entropy_bonus > 0,
        "mismatch": objective.mismatch.name != "none",
    }
    for name, is_asked in asked.items():
        refusals[f"{name} is {host}'s own: {set_there.get(name, 'set it there')}"] = is_asked
    for why, refused in refusals.items():
        if refused:
            raise ValueError(f"{section}: {why}")


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
    return objective.assign(rewards, torch.tensor(ids), lengths, tokens=tokens)


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
    tokens = Tokens(here, old, here - old, c, response_ids(lengths, len(c)), lengths)
    terms = objective.surrogate(tokens)
    value, slope = at_each_token(tokens, terms)
    value = value + slope * (logp - here)
    low, high = clip_counts(tokens, terms)
    return -value.sum(), (low + high) / max(len(c), 1)

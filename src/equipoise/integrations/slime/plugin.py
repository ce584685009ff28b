"""equipoise inside slime 0.3, through the function paths of its command line:

    --custom-reward-post-process-path equipoise.integrations.slime.plugin.rewards
    --custom-pg-loss-reducer-function-path equipoise.integrations.slime.plugin.reducer
    --advantage-estimator grpo (ppo_clip, dual_clip), gspo or cispo, with slime's own clip options

and the objective as JSON in the environment variable EQUIPOISE_OBJECTIVE, the keys those of the
section [objective]: {"preset": "dapo", "aggregation": "balanced"}. `rewards` sees all samples of a
rollout with their groups and turns each reward into its coefficient; slime hands a "reward" to
every token as its advantage. `reducer` then adds up tokens where slime would take means. The
surrogate is slime's: only those it has, with slime's options, are let pass.

A difficulty anchor lives in slime's rollout manager and starts anew when that does. slime's
rewards_normalization and normalize_advantages must stay off. Under context parallelism slime splits
responses; that is refused.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.objective import Objective, fold

__all__ = ["reducer", "rewards"]

VARIABLE = "EQUIPOISE_OBJECTIVE"
SURROGATES = {"grpo": ("ppo_clip", "dual_clip"), "gspo": ("gspo",), "cispo": ("cispo",)}


@functools.cache
def objective_of(text: str) -> Objective:
    """The objective that the variable describes; the same object, and anchor, for the same text."""
    choices = json.loads(text)
    objective = Objective.preset(choices.pop("preset", "grpo"), **choices)
    fold.check(objective, "slime")
    return objective


def check_args(args: Any, objective: Objective) -> None:
    """ValueError where slime's own settings would weigh a second time, or its surrogate is another."""
    surrogate = objective.surrogate.name
    known = SURROGATES.get(args.advantage_estimator, ())
    if surrogate not in known:
        host = " or ".join(known) or "none of ours"
        has = ", ".join(name for names in SURROGATES.values() for name in names)
        raise ValueError(
            f"--advantage-estimator {args.advantage_estimator} is {host}, the objective says surrogate = {surrogate}; "
            f"slime has {has}"
        )
    if getattr(args, "normalize_advantages", False):
        raise ValueError("--normalize-advantages would undo the coefficients; leave it off")
    if getattr(args, "context_parallel_size", 1) > 1:
        raise ValueError("--context-parallel-size must be 1: the reducer adds up whole responses")


def rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """slime's reward post-processing: the rewards as they were, and c_i times the samples.

    slime divides a step's sum by the samples of the step,
    so the mean over a rollout's steps is Σ_i c_i Σ_t φ_it.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        raise ValueError(f"{VARIABLE} is not set: it must hold the objective as JSON")
    objective = objective_of(text)
    check_args(args, objective)
    raw = [float(sample.get_reward_value(args)) for sample in samples]
    lengths = [_length(sample) for sample in samples]
    groups = [sample.group_index for sample in samples]
    credit = fold.coefficients(objective, raw, groups, lengths)
    return raw, (credit.coefficient * len(samples)).tolist()


def _length(sample: Any) -> int:
    mask = sample.loss_mask
    return int(sample.response_length if mask is None else sum(mask))


def reducer(
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    loss_masks: Sequence[Tensor],
    calculate_per_token_loss: bool = False,
) -> Callable[[Tensor], Tensor]:
    """slime's reducer of the policy loss: the sum over the tokens of a micro-batch."""
    if calculate_per_token_loss:
        raise ValueError(
            "--calculate-per-token-loss would divide by tokens once more; leave it off"
        )
    mask = torch.cat(list(loss_masks))

    def total(loss: Tensor) -> Tensor:
        return (loss * mask).sum()

    return total

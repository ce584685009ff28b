"""equipoise inside prime-rl (559b447), as its custom loss:

    [trainer.loss]
    type = "custom"
    import_path = "equipoise.integrations.prime_rl.plugin.loss"
    kwargs = {surrogate = {name = "ppo_clip", low = 0.2, high = 0.28}}

prime-rl calls it with one sequence at a time, after its orchestrator has made the advantages (r − μ
of the group), and divides the sum by the tokens of the batch. So what can be chosen here is the
surrogate, exactly, under the rule `token` over the batch; and, with `length`, the rules that need
one response alone (`sequence`, `constant`, `power`), exactly up to one factor per batch: for the
first two its mean length over `length`. Rules that need the group (balanced, token over the group, difficulty,
cancellation) are refused: prime-rl has no hook where a group's advantages can be set.

The old policy is the sampler: prime-rl gives the loss no other log-probabilities.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import torch

from equipoise.objective import Objective, fold

__all__ = ["loss"]

ALONE = ("sequence", "constant", "power")  # rules whose effective length needs no other response


@functools.cache
def objective_of(text: str) -> Objective:
    """The objective with prime-rl's advantages, as far as its loss can have it."""
    choices = json.loads(text)
    objective = Objective(advantage="dr_grpo", **choices)
    fold.check(objective, "prime-rl")
    if objective.difficulty is not None or objective.cancellation != "none":
        raise ValueError("prime-rl's loss sees no groups: difficulty and cancellation must be none")
    if objective.averaged_groups != "all":
        raise ValueError("prime-rl's loss sees no groups: averaged_groups must be all")
    if objective.length_penalty:
        raise ValueError("prime-rl's loss sees no rewards: length_penalty must be 0")
    return objective


def loss(inputs: Any, *, length: float | None = None, **choices: Any) -> Any:
    """prime-rl's loss of one sequence: our surrogate's sum times `length`/effective length."""
    from prime_rl.trainer.rl.loss import LossOutputs

    objective = objective_of(json.dumps(choices, sort_keys=True))
    mask = inputs.loss_mask
    tokens = mask.sum()
    weight = _weight(objective, int(tokens), length)
    c = inputs.advantages[mask] * weight
    if inputs.loss_weights is not None:
        c = c * inputs.loss_weights[mask]
    total, clipped = fold.surrogate_sum(
        objective,
        inputs.trainer_logprobs[mask],
        inputs.inference_logprobs[mask],
        c,
        tokens.reshape(1),
    )
    return LossOutputs(loss=total, metrics={"clipped": torch.as_tensor(clipped)})


def _weight(objective: Objective, tokens: int, length: float | None) -> float:
    rule = objective.choices()["aggregation"]
    name = rule["name"] if isinstance(rule, dict) else rule
    if name == "token" and (not isinstance(rule, dict) or rule.get("over", "batch") == "batch"):
        return 1.0
    if name not in ALONE:
        raise ValueError(
            f"aggregation = {name} needs whole groups, which prime-rl's loss does not see; use token"
        )
    if length is None:
        raise ValueError(
            f"aggregation = {name} needs length, the mean length of a response to divide it by"
        )
    if name == "constant":
        return length / float(rule["length"])
    alpha = 1.0 if name == "sequence" else float(rule["alpha"])
    return float((length / max(tokens, 1)) ** alpha)

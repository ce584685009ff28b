"""equipoise inside SkyRL 0.3: an advantage estimator and a policy loss in its registries.

    from equipoise.integrations.skyrl import plugin
    plugin.register(Objective.preset("dapo", aggregation="balanced"), max_seq_len=8192)

before SkyRL's main, with trainer.algorithm.advantage_estimator=equipoise,
policy_loss_type=equipoise, loss_reduction=seq_mean_token_sum_norm and max_seq_len as registered.
The estimator sees the whole batch with its uids and folds advantage, difficulty, cancellation and
aggregation into one number per token. SkyRL divides it by the rows of a mini-batch and by
max_seq_len, which is multiplied in before, and then only sums: the loss is ours for every split.

SkyRL pickles registered functions with what they close over and sends them to its workers; a
difficulty anchor lives on the driver and is not in SkyRL's checkpoints. Not here: KL, entropy and
off-policy correction, which are SkyRL's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.objective import Objective, flatten, fold

__all__ = ["estimator", "policy_loss", "register"]

NAME = "equipoise"
REDUCTION = "seq_mean_token_sum_norm"


def register(objective: Objective, *, max_seq_len: int, name: str = NAME) -> None:
    """Put the objective into SkyRL's registries under this name."""
    from skyrl.backends.skyrl_train.utils.ppo_utils import (
        AdvantageEstimatorRegistry,
        PolicyLossRegistry,
    )

    fold.check(objective, "SkyRL")
    if objective.difficulty_choice.name == "hadw_history":
        raise ValueError(
            "objective: difficulty = hadw_history needs to know a prompt again; use hadw"
        )
    AdvantageEstimatorRegistry.register(name, estimator(objective, max_seq_len))
    PolicyLossRegistry.register(name, policy_loss(objective))


def estimator(objective: Objective, max_seq_len: int) -> Any:
    """SkyRL's advantage estimator: c_i · rows · max_seq_len at the tokens of response i."""

    def estimate(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: Sequence[Any],
        config: Any = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        if config is not None:
            _check_config(config, max_seq_len)
        rows = len(index)
        credit = fold.coefficients(
            objective, token_level_rewards.sum(-1), index, response_mask.sum(-1).long()
        )
        scaled = credit.coefficient.to(token_level_rewards.dtype) * rows * max_seq_len
        advantages = scaled[:, None] * response_mask
        return advantages, advantages

    return estimate


def _check_config(config: Any, max_seq_len: int) -> None:
    if config.loss_reduction != REDUCTION:
        raise ValueError(
            f"trainer.algorithm.loss_reduction={config.loss_reduction} would weigh tokens a second time; "
            f"set it to {REDUCTION}"
        )
    if config.max_seq_len != max_seq_len:
        raise ValueError(
            f"trainer.algorithm.max_seq_len={config.max_seq_len}, and the objective was registered with {max_seq_len}: "
            "SkyRL divides by the first, the estimator multiplies by the second; they must be the same"
        )


def policy_loss(objective: Objective) -> Any:
    """SkyRL's policy loss: our surrogate of a micro-batch, summed."""

    def loss(
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        config: Any = None,
        loss_mask: Tensor | None = None,
        rollout_logprobs: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        mask = torch.ones_like(log_probs, dtype=torch.bool) if loss_mask is None else loss_mask > 0
        logp, old, c = (flatten(x, mask) for x in (log_probs, old_log_probs, advantages))
        total, clipped = fold.surrogate_sum(objective, logp, old, c, mask.sum(-1))
        return total, {"clip_ratio": float(clipped)}

    return loss

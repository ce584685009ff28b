"""equipoise inside verl 0.9: an advantage estimator, a policy loss and a callback.

verl loads this module in every process through the entry point group `verl.plugins`. `estimate`
sees the whole batch on the driver and folds advantage, difficulty, cancellation and aggregation
into one number per token; verl's workers then only sum (`loss_agg_mode=seq-mean-token-sum`), so the
loss is `equipoise.objective`'s for every split into micro-batches and ranks. `policy_loss` brings
the surrogates to the workers. `Callback` keeps the difficulty anchor with verl's checkpoints, tells
the outputs of one agent session apart from responses, and logs bias/*.

Not here: what verl does itself and keeps doing (KL loss, entropy, rollout correction, filtering of
groups), and what cannot be had from where verl calls us: `cancellation = prefix` (no token ids),
sequence-level surrogates under `min_replace` or `orthogonal` (no whole groups in a micro-batch),
`hadw_history` (no prompt is known again). Those are refused. verl's deprecated trainer
(`trainer.use_v1=False`) and its experimental ones have no callback.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.core_algos import agg_loss, register_adv_est, register_policy_loss
from verl.workers.config import PolicyLossConfig

from equipoise.files import whole
from equipoise.integrations.verl import cpu  # noqa: F401  (registers a platform and a rollout)
from equipoise.objective import Objective, flatten, fold, response_ids, unflatten
from equipoise.objective.choice import nearest
from equipoise.objective.regularizer import one_weight
from equipoise.objective.surrogate import Tokens, at_each_token, clip_counts

__all__ = ["Callback", "PolicyLoss", "estimate", "policy_loss"]

NAME = "equipoise"  # of the estimator, of the policy loss, and of the options' key
PAD = re.compile("pad[0-9a-f]{32}")  # the uid of the rows that verl adds to make their number even
STATE = "equipoise.json"  # in verl's global_step_N
WIRING = (
    "policy_loss._target_=equipoise.integrations.verl.plugin.PolicyLoss "
    "+policy_loss.equipoise='${algorithm.equipoise}'"
)
# How verl has what an objective of ours may ask for, and its own settings say instead.
SET_THERE = {
    "kl": "actor_rollout_ref.actor.use_kl_loss=True and kl_loss_coef",
    "entropy_bonus": "actor_rollout_ref.actor.entropy_coeff",
    "mismatch": "algorithm.rollout_correction",
}
CALLBACK = "trainer.checkpoint_callback_class=equipoise.integrations.verl.plugin.Callback"

# verl's own policy losses that scale with the advantage and aggregate as they are told, and our
# name for each. The rest do not: sapo and geo_mean ignore loss_agg_mode, clip_cov and kl_cov choose
# tokens by the size of the advantage, dro adds a term without one, bypass_mode drops tokens that
# were weighed already.
HOST_LOSSES = {
    "vanilla": ("ppo_clip", "dual_clip"),
    "gspo": ("gspo",),
    "cispo": ("cispo",),
    "dppo_tv": ("dppo",),
    "dppo_kl": ("dppo",),
    "gpg": ("reinforce",),
}

logger = logging.getLogger(__name__)


@dataclass
class PolicyLoss(PolicyLossConfig):
    """verl's policy-loss section with our options in it, so that they reach the workers."""

    equipoise: dict[str, Any] | None = None


@dataclass
class _Step:
    """What the trainer's step and the estimator it calls tell each other."""

    keys: Sequence[str]  # of the rows: {uid}_{session}_{output}
    metrics: dict[str, float] = field(default_factory=dict)


_step: ContextVar[_Step | None] = ContextVar("equipoise_step", default=None)


def objective_of(options: Mapping[str, Any] | None) -> Objective:
    """The objective that `algorithm.equipoise` describes: one object (and anchor) for one text.

    The keys are those of the section [objective] of a configuration: preset (grpo unless given),
    advantage, difficulty, cancellation, aggregation, surrogate, averaged_groups.
    """
    if isinstance(options, DictConfig):
        plain = OmegaConf.to_container(options, resolve=True)
    else:
        plain = dict(options or {})
    return _objective(json.dumps(plain, sort_keys=True))


@functools.cache
def _objective(options: str) -> Objective:
    choices = json.loads(options)
    known = ["preset", *list(inspect.signature(Objective.__init__).parameters)[1:]]
    for key in choices:
        if key not in known:
            raise ValueError(
                "algorithm.equipoise: " + nearest("", key, known).replace("objective. = ", "")
            )
    objective = Objective.preset(choices.pop("preset", "grpo"), **choices)
    if objective.difficulty_choice.name == "hadw_history":
        raise ValueError(
            "algorithm.equipoise: difficulty = hadw_history needs to know a prompt again, "
            "and verl names prompts anew at every step; use hadw"
        )
    fold.check(objective, "verl", section="algorithm.equipoise", set_there=SET_THERE)
    return objective


def divisor(algorithm: Any, objective: Objective) -> float:
    """What verl divides a sum over tokens by besides the rows; ValueError if it does not sum."""
    host = _host(algorithm)
    if host is None:
        return 1.0
    actor = host.actor
    mode, L = actor.loss_agg_mode, actor.get("loss_scale_factor")
    _check_mode(mode)
    if mode == "seq-mean-token-sum-norm" and not L:
        raise ValueError(
            "actor.loss_scale_factor is not set: verl then divides by the padded width of each micro-batch; "
            "set it to data.max_response_length"
        )
    if mode == "seq-mean-token-sum" and (actor.use_kl_loss or actor.entropy_coeff):
        raise ValueError(
            "actor.loss_agg_mode=seq-mean-token-sum would add the KL or the entropy of whole responses, not of tokens, "
            "to the loss; with use_kl_loss or entropy_coeff set loss_agg_mode=seq-mean-token-sum-norm and "
            "loss_scale_factor to data.max_response_length"
        )
    loss, surrogate = actor.policy_loss.loss_mode, objective.surrogate.name
    if loss == NAME and actor.policy_loss.get(NAME) != algorithm.get(NAME):
        raise ValueError(
            f"actor.policy_loss.loss_mode={NAME} needs the options of algorithm.equipoise: set {WIRING}"
        )
    if loss != NAME and loss not in HOST_LOSSES:
        raise ValueError(
            f"actor.policy_loss.loss_mode={loss} does not keep a weight that is folded into the advantage; "
            f"use {NAME} ({WIRING}) or one of {', '.join(HOST_LOSSES)}"
        )
    if loss != NAME and surrogate not in HOST_LOSSES[loss]:
        raise ValueError(
            f"actor.policy_loss.loss_mode={loss} is {HOST_LOSSES[loss][-1]}, algorithm.equipoise says surrogate = "
            f"{surrogate}: set loss_mode={NAME} ({WIRING}), or the surrogate to verl's"
        )
    return float(L) if mode == "seq-mean-token-sum-norm" else 1.0


def _host(algorithm: Any) -> Any:
    """verl's section actor_rollout_ref beside the algorithm section; None without it."""
    root = algorithm._get_root() if isinstance(algorithm, DictConfig) else None
    return None if root is None else OmegaConf.select(root, "actor_rollout_ref")


def _check_mode(mode: str) -> None:
    if mode not in ("seq-mean-token-sum", "seq-mean-token-sum-norm"):
        raise ValueError(
            f"actor.loss_agg_mode={mode} would weigh tokens a second time; the estimator {NAME} has weighed them: "
            "set actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum"
        )


@register_adv_est(NAME)
def estimate(
    token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray, config: Any = None
) -> tuple[Tensor, Tensor]:
    """verl's advantages [rows, width]: c_i · rows · L at the tokens of response i.

    verl divides by the rows of a mini-batch (and by L under seq-mean-token-sum-norm), so the mean
    of its loss over the mini-batches of a batch is Σ_i c_i Σ_t φ_it. Rows that verl added to make
    the number even have no part in anything but that count. Several outputs of one agent session
    are one response: the reward of the last, the tokens of all.
    """
    objective = objective_of(None if config is None else config.get(NAME))
    L, host, step = divisor(config, objective), _host(config), _step.get()
    if objective.difficulty is not None and step is None and host is not None:
        raise ValueError(
            f"difficulty = {objective.difficulty_choice.name} keeps an anchor over batches: set {CALLBACK}, "
            "with trainer.use_v1=True"
        )
    lengths, rows = response_mask.sum(-1), len(index)
    pad = (
        np.array([PAD.fullmatch(str(uid)) is not None for uid in index])
        & (lengths == 0).cpu().numpy()
    )
    real = torch.as_tensor(np.flatnonzero(~pad), device=lengths.device)
    advantages = torch.zeros_like(token_level_rewards)
    if len(real) == 0:
        return advantages, advantages
    response, last = _responses(
        None if step is None else [step.keys[i] for i in real], index[~pad], host
    )
    response, last = response.to(real.device), last.to(real.device)
    tokens = lengths.new_zeros(len(last)).index_add_(0, response, lengths[real])
    credit = objective.assign(
        token_level_rewards.sum(-1)[real][last], index[~pad][last.cpu()], tokens
    )
    if step is not None:
        step.metrics = {name: float(value) for name, value in credit.metrics.items()}
    scaled = (credit.coefficient * rows * L)[response].to(advantages.dtype)
    advantages[real] = scaled[:, None] * response_mask[real]
    return advantages, advantages


def _responses(keys: Sequence[str] | None, uids: np.ndarray, host: Any) -> tuple[Tensor, Tensor]:
    """For each row the number of its response, and for each response its last row."""
    if keys is None:
        most = int(np.unique(uids.astype(str), return_counts=True)[1].max())
        if host is not None and most > host.rollout.n:
            raise ValueError(
                f"a prompt has {most} rows and rollout.n={host.rollout.n}: to tell the outputs of one agent session "
                f"from responses, set {CALLBACK}"
            )
        everyone = torch.arange(len(uids))
        return everyone, everyone
    number: dict[str, int] = {}
    response: list[int] = []
    last: list[tuple[int, int]] = []
    for row, key in enumerate(keys):
        session, _, output = key.rpartition("_")
        i = number.setdefault(session, len(number))
        response.append(i)
        if i == len(last):
            last.append((int(output), row))
        last[i] = max(last[i], (int(output), row))
    return torch.tensor(response), torch.tensor([row for _, row in last])


@register_policy_loss(NAME)
def policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "seq-mean-token-sum",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """Our surrogate of a micro-batch, [rows, width] each, summed by verl's own `agg_loss`.

    A log-probability that is not finite makes the loss NaN, and verl skips the step.
    """
    _check_mode(loss_agg_mode)
    options = config.policy_loss.get(NAME)
    if options is None:
        raise ValueError(f"actor.policy_loss.loss_mode={NAME} needs its options: set {WIRING}")
    mask = response_mask.bool()
    dtype = torch.promote_types(log_prob.dtype, torch.float32)
    logp, old, c = (
        flatten(x, mask).to(dtype) for x in (log_prob, old_log_prob.detach(), advantages)
    )
    lengths = mask.sum(-1)
    here, log_ratio = logp.detach(), logp.detach() - old
    tokens = Tokens(here, old, log_ratio, c, response_ids(lengths, len(c)), lengths)
    objective = objective_of(options)
    terms = objective.surrogate(tokens)
    value, slope = at_each_token(tokens, terms)
    value = value + slope * (logp - here)
    if rollout_is_weights is not None:
        weight = flatten(rollout_is_weights, mask)
        if objective.surrogate.name == "gmpo":
            weight = one_weight(tokens, weight)
        value = value * weight
    loss = agg_loss(
        loss_mat=-unflatten(value, mask),
        loss_mask=mask,
        loss_agg_mode=loss_agg_mode,
        **config.global_batch_info,
    )
    n = max(len(c), 1)
    low, high = clip_counts(tokens, terms)
    return loss, {
        "actor/pg_clipfrac": (low + high).item() / n,
        "actor/ppo_kl": -log_ratio.sum().item() / n,
    }


class Callback(CheckpointCallback):
    """What the estimator cannot do from where it is called; made on the driver before it resumes.

    The anchor is written to global_step_N/equipoise.json after verl has written the rest of that
    folder, and read back from the folder that verl resumes from. A folder without one (of a run
    with another objective, or of one that was killed in the instant between) starts the anchor
    anew, with a warning.
    """

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        if config.algorithm.adv_estimator != NAME:
            raise ValueError(
                f"algorithm.adv_estimator={config.algorithm.adv_estimator}: {CALLBACK} is for {NAME}"
            )
        _objective.cache_clear()
        self.objective = objective_of(config.algorithm.get(NAME))
        divisor(config.algorithm, self.objective)
        self._resume(_resumed_from(config.trainer))
        _watch()

    def _resume(self, folder: str | None) -> None:
        if folder is None or self.objective.difficulty is None:
            return
        path, state = os.path.join(folder, STATE), None
        if os.path.exists(path):
            with open(path) as file:
                state = json.load(file)["state"]
        if state:
            self.objective.load_state_dict(state)
        else:
            logger.warning("%s has no difficulty anchor: it starts anew", path)

    def on_save(
        self,
        trainer: Any,
        global_step: int,
        checkpoint_dir: str,
        async_save: bool = False,
        **context: Any,
    ) -> None:
        state = {
            "step": global_step,
            "objective": self.objective.choices(),
            "state": self.objective.state_dict(),
        }
        with whole(Path(checkpoint_dir, STATE), durable=True) as temporary:
            temporary.write_text(json.dumps(state), encoding="utf-8")


def _resumed_from(trainer: Any) -> str | None:
    """The folder verl's `_load_checkpoint` is about to read, by its own rules."""
    from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

    if trainer.resume_mode == "auto":
        latest: str | None = find_latest_ckpt_path(os.path.abspath(trainer.default_local_dir))
        return latest
    return (
        os.path.abspath(trainer.resume_from_path) if trainer.resume_mode == "resume_path" else None
    )


def _watch() -> None:
    """Let the estimator know the rows' keys, and put what it measured among the step's metrics.

    verl passes neither to an estimator, so its trainer's method is wrapped;
    once, and nothing of it is copied.
    """
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    original = PPOTrainer._compute_advantage
    if hasattr(original, "tells_equipoise"):
        return

    @functools.wraps(original)
    def compute_advantage(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        step = _Step(list(batch.keys))
        token = _step.set(step)
        try:
            batch = original(self, batch, metrics)
        finally:
            _step.reset(token)
        metrics.update(step.metrics)
        return batch

    compute_advantage.tells_equipoise = True  # type: ignore[attr-defined]
    PPOTrainer._compute_advantage = compute_advantage

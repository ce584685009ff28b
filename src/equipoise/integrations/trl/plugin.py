"""Any objective inside TRL's GRPOTrainer, with the same gradient for every split of a batch.

TRL generates, rewards, shuffles, splits and steps. Where it has a whole generation batch with its
rewards, `assign` gives every response its credit; each row takes its place in that credit along.
Where TRL computes a micro-batch's loss, its own method runs with advantages of 0, which leaves what
is not ours (the forward pass, the entropy bonus, the router loss, their metrics), and `loss` adds
the rest. So no method of TRL is copied here, and what TRL changes there is kept.

Not covered: objectives that need a group's responses in one micro-batch unless the batch is not
split, and TRL's token and sequence filters (`top_entropy_quantile`, `off_policy_mask_threshold`);
both are refused when the trainer is built. Evaluation is TRL's own, loss included.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from equipoise.files import whole
from equipoise.objective import Credit, LossOutput, Objective, flatten, named
from equipoise.objective.surrogate import Tokens

try:
    import trl
    from trl import GRPOConfig, GRPOTrainer
except ImportError as error:
    raise ImportError(
        "equipoise.integrations.trl.plugin needs TRL: pip install 'equipoise[trl]'"
    ) from error

# Earlier versions let transformers divide the loss by the passes of a step, which would scale the objective's twice.
if not getattr(GRPOTrainer, "loss_is_scaled_for_ga", False):
    raise ImportError(
        f"trl {trl.__version__} is too old for equipoise.integrations.trl.plugin: must be 1.15 or newer"
    )

__all__ = ["EquipoiseGRPOTrainer"]

STATE = "equipoise.json"  # in a checkpoint's folder
# in TRL's batches: the place of each response in the credit, -1 for one without a reward
ROW = "equipoise_row"

# What GRPOConfig says about the policy's loss, and the objective says instead.
REPLACED = (
    "loss_type", "epsilon", "epsilon_high", "delta", "scale_rewards", "importance_sampling_level",
    "multi_objective_aggregation", "sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_pos", "vespo_lambda_pos",
    "vespo_k_neg", "vespo_lambda_neg",
)  # fmt: skip
# vllm_importance_sampling_mode, as ours calls it
MISMATCH = {"token_truncate": "tis", "sequence_mask": "mis"}


class EquipoiseGRPOTrainer(GRPOTrainer):
    """TRL's GRPOTrainer with an objective: a name ("dapo+balanced+hadw") or an :class:`Objective`.

    >>> trainer = EquipoiseGRPOTrainer(model=..., reward_funcs=..., train_dataset=..., objective="dapo+balanced+hadw")

    All other arguments are GRPOTrainer's. `reward_weights`, `beta`, `use_bias_correction_kl` and
    the correction of vLLM's log-probabilities are taken from its GRPOConfig; `trainer.objective` is
    the objective with these in it.
    """

    args: GRPOConfig
    model: torch.nn.Module
    beta: float
    loss_type: str
    num_generations: int
    objective: Objective
    _logs: dict[str, Any]  # by column: deques

    def __init__(self, *args: Any, objective: str | Objective, **kwargs: Any) -> None:
        given = named(objective) if isinstance(objective, str) else objective
        super().__init__(*args, **kwargs)  # whatever TRL's version takes
        refuse(given, self.args)
        self.objective = adapted(given, self.args, self.reward_weights.tolist())
        if self.objective.mismatch.function is not None and not (
            self.use_vllm or self.rollout_func
        ):
            raise ValueError(
                f"mismatch = {self.objective.mismatch.name} needs the sampler's log-probabilities, which TRL has from "
                "use_vllm=True or a rollout_func alone"
            )
        self._credit: Credit | None = None
        self._rewards: Tensor | None = None
        self._forward: tuple[Any, ...] | None = None

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        self._rewards = super()._calculate_rewards(*args, **kwargs)
        return self._rewards

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        self._forward = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        return self._forward

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        return self._with_credit(output) if self.model.training else output

    @torch.no_grad()
    def _with_credit(self, output: dict[str, Any]) -> dict[str, Any]:
        """Assign the credit of the whole generation batch, and tell each local row its place in it."""
        rewards, mask = self._rewards, _loss_mask(output)
        assert rewards is not None
        scored = ~rewards.isnan().all(1)
        if self.objective.combine == "rewards":
            # a function without a say adds nothing
            rewards = torch.where(rewards.isnan(), 0.0, rewards)
        row = torch.where(scored, scored.cumsum(0) - 1, -1)
        # Rows lie rank after rank, and a prompt's responses lie together:
        # TRL's own baseline rests on it.
        group = torch.arange(len(row), device=row.device) // self.num_generations
        lengths = self.accelerator.gather(mask.sum(1))
        if self.objective.cancellation == "prefix":
            tokens = self._all_tokens(output, mask, scored)
        else:
            tokens = None
        advantage = torch.zeros(len(row), dtype=torch.float64, device=row.device)
        self._credit = None
        if bool(scored.any()):
            credit = self._credit = self.objective.assign(
                rewards[scored], group[scored], lengths[scored], tokens=tokens
            )
            advantage[scored] = credit.advantage
            self._log(credit.metrics)
        # as long as the table: takes the place of TRL's own
        self._logs["advantages"].extend(advantage.tolist())
        mine = slice(
            self.accelerator.process_index * len(mask),
            (self.accelerator.process_index + 1) * len(mask),
        )
        return {
            **output,
            "advantages": advantage[mine].to(output["advantages"].dtype),
            ROW: row[mine],
        }

    def _all_tokens(self, output: dict[str, Any], mask: Tensor, scored: Tensor) -> Tensor:
        """[N] the tokens of all responses that have a reward, in row order, from all ranks."""
        if "tool_mask" in output:
            raise ValueError(
                "cancellation = prefix asks which tokens share their whole prefix, and what a tool answered is not "
                "among a response's tokens; use another cancellation with tools"
            )
        pad = self.accelerator.pad_across_processes
        ids, kept = pad(output["completion_ids"], dim=1), pad(mask, dim=1)
        ids, kept = self.accelerator.gather(ids), self.accelerator.gather(kept)
        return flatten(ids[scored], kept[scored])

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if not self.model.training:
            evaluated: Tensor = super()._compute_loss(model, inputs)
            return evaluated
        # then every ratio is 1
        others = {k: v for k, v in inputs.items() if k != "old_per_token_logps"}
        others["advantages"] = torch.zeros_like(inputs["advantages"])
        self._forward = None
        with self._without_policy_loss():
            loss: Tensor = super()._compute_loss(model, others)
        assert self._forward is not None, (
            "TRL's _compute_loss no longer calls _get_per_token_logps_and_entropies"
        )
        logprobs, entropy, self._forward = self._forward[0], self._forward[1], None
        if self._credit is None:
            return loss
        out = self._policy_loss(inputs, self._credit, logprobs, entropy)
        # The shares of a generation batch add up. An optimizer step takes
        # current_gradient_accumulation_steps of its steps_per_generation parts, and the gradients
        # of the ranks are averaged.
        parts = self.current_gradient_accumulation_steps
        share = self.accelerator.num_processes * self.args.steps_per_generation / parts * out.loss
        if self._entropy_bonus_enabled:
            self._metrics["train"]["policy_loss"][-1] = (
                self.accelerator.gather(share.detach() * parts).mean().item()
            )
        return loss + share

    @contextlib.contextmanager
    def _without_policy_loss(self) -> Iterator[None]:
        """TRL's loss without its KL, and of the type that logs nothing of its own."""
        kept = self.beta, self.loss_type
        self.beta, self.loss_type = 0.0, "sapo"
        try:
            yield
        finally:
            self.beta, self.loss_type = kept

    def _policy_loss(
        self, inputs: dict[str, Any], credit: Credit, logprobs: Tensor, entropy: Tensor
    ) -> LossOutput:
        objective, row = self.objective, inputs[ROW][:, None]
        keep = _loss_mask(inputs).bool() & (row >= 0)
        where = keep.flatten().nonzero()[:, 0]  # once: on a GPU it waits for the device

        def flat(padded: Tensor) -> Tensor:
            return padded.expand_as(keep).flatten().index_select(0, where)

        new, response = flat(logprobs), flat(row)
        old = (
            flat(inputs["old_per_token_logps"]) if "old_per_token_logps" in inputs else new.detach()
        )
        position = flat(keep.cumsum(1) - 1) if objective.cancellation == "prefix" else None
        ref = flat(inputs["ref_per_token_logps"]) if objective.kl else None
        rollout = None
        if objective.mismatch.function is not None:
            rollout = flat(inputs["sampling_per_token_logps"])
            # vLLM gave none: no correction, as in TRL
            rollout = torch.where(rollout.isnan(), old, rollout)
        bonus = flat(entropy) if objective.entropy_bonus else None
        out = objective.loss(
            new,
            old,
            credit,
            response,
            position=position,
            entropy=bonus,
            ref_logprobs=ref,
            rollout_logprobs=rollout,
        )
        if objective.needs_whole_groups:
            clipped = None
        else:
            clipped = _clipped(objective, credit, new, old, response, position)
        self._log_policy(out, clipped)
        return out

    def _log_policy(self, out: LossOutput, clipped: Tensor | None) -> None:
        """What TRL logs of the policy's loss, under TRL's names: one transfer to the host."""
        s = out.stats
        extremes = torch.zeros_like(out.stats.kl).expand(2) if clipped is None else clipped
        local = torch.stack(
            [x.to(extremes) for x in (s.tokens, s.nonfinite, s.kl, s.low, s.high, *extremes)]
        )
        ranks = list(
            zip(*self.accelerator.gather(local).view(-1, len(local)).tolist(), strict=True)
        )
        tokens, nonfinite, kl_sum, low_sum, high_sum = (sum(column) for column in ranks[:5])
        metrics = self._metrics["train"]
        metrics["nonfinite_tokens"].append(nonfinite)
        if self.objective.kl:
            metrics["kl"].append(kl_sum / max(tokens, 1.0))
        if clipped is not None and tokens:
            metrics["clip_ratio/low_mean"].append(low_sum / tokens)
            metrics["clip_ratio/high_mean"].append(high_sum / tokens)
            metrics["clip_ratio/region_mean"].append((low_sum + high_sum) / tokens)
            metrics["clip_ratio/low_min"].append(min(ranks[5]))
            metrics["clip_ratio/high_max"].append(max(ranks[6]))

    def _log(self, values: dict[str, Tensor]) -> None:
        for name, value in zip(values, torch.stack(list(values.values())).tolist(), strict=True):
            self._metrics["train"][name].append(value)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        folder = Path(
            self._get_output_dir(trial=trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        )
        if self.args.should_save and folder.is_dir():
            text = json.dumps(
                {"objective": self.objective.choices(), "state": self.objective.state_dict()},
                indent=1,
            )
            with whole(folder / STATE) as temporary:
                temporary.write_text(text, encoding="utf-8")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        file = Path(checkpoint, STATE)
        if file.exists():
            self.objective.load_state_dict(json.loads(file.read_text(encoding="utf-8"))["state"])
        elif self.objective.difficulty is not None:
            warnings.warn(
                f"{checkpoint} holds no {STATE}: the difficulty anchor starts anew", stacklevel=2
            )


def refuse(objective: Objective, args: GRPOConfig) -> None:
    """Say what cannot be had exactly, and what of GRPOConfig has no effect."""
    if args.top_entropy_quantile != 1.0:
        raise ValueError(
            f"top_entropy_quantile = {args.top_entropy_quantile} drops tokens by the micro-batch they are in, which no "
            "objective here does; leave it at 1.0"
        )
    if args.off_policy_mask_threshold is not None:
        raise ValueError(
            f"off_policy_mask_threshold = {args.off_policy_mask_threshold} is the objective's to decide: leave it at "
            f"None, and use Objective(off_policy_mask={args.off_policy_mask_threshold})"
        )
    if objective.advantage.name == "none":
        raise ValueError(
            "advantage = none needs the advantages of a teacher, which TRL's GRPOTrainer does not have"
        )
    if objective.difficulty_choice.name == "hadw_history":
        raise ValueError(
            "difficulty = hadw_history needs each prompt's history, which TRL does not keep; use hadw"
        )
    if objective.entropy_bonus and (args.entropy_coef or args.use_adaptive_entropy):
        raise ValueError(
            f"entropy_coef = {args.entropy_coef} and the objective's entropy_bonus = {objective.entropy_bonus} are "
            "both on; the first is TRL's (a mean per micro-batch), the second ours (a mean over the batch): use one"
        )
    assert args.num_generations is not None  # GRPOConfig has refused that
    whole = (
        args.steps_per_generation == 1
        and args.per_device_train_batch_size % args.num_generations == 0
    )
    if objective.needs_whole_groups and not whole:
        raise ValueError(
            f"surrogate = {objective.surrogate.name} with cancellation = {objective.cancellation} weighs a group by "
            "the ratios of all its responses, and TRL shuffles responses into micro-batches: must be "
            f"steps_per_generation = 1 (here {args.steps_per_generation}) and per_device_train_batch_size a multiple "
            f"of num_generations (here {args.per_device_train_batch_size} and {args.num_generations})"
        )
    defaults = {f.name: f.default for f in fields(GRPOConfig)}
    unused = [
        f"{n} = {getattr(args, n)!r}"
        for n in REPLACED
        if n in defaults and getattr(args, n) != defaults[n]
    ]
    if unused:
        warnings.warn(
            f"the objective decides in training; without effect there: {', '.join(unused)}",
            stacklevel=3,
        )


def adapted(objective: Objective, args: GRPOConfig, reward_weights: list[float]) -> Objective:
    """The objective with what GRPOConfig decides: reward weights, KL, vLLM's correction."""
    choices = objective.choices()
    if objective.kl not in (0.0, args.beta):
        raise ValueError(
            f"the objective's kl = {objective.kl}, GRPOConfig's beta = {args.beta}: TRL loads a reference model for "
            f"beta, so it must be GRPOConfig(beta={objective.kl})"
        )
    if objective.reward_weights not in ([1.0], reward_weights):
        raise ValueError(
            f"the objective's reward_weights = {objective.reward_weights}, GRPOConfig's are {reward_weights}: set them "
            "there"
        )
    choices |= {"kl": args.beta, "reward_weights": reward_weights}
    if not objective.kl:  # one that brings its own KL brings its estimator as well
        choices["kl_estimator"] = "k3_ratio" if args.use_bias_correction_kl else "k3"
    if (
        objective.mismatch.name == "none"
        and args.use_vllm
        and args.vllm_importance_sampling_correction
    ):
        choices["mismatch"] = _mismatch(args)
    mine = Objective(**choices)
    mine.load_state_dict(objective.state_dict())
    return mine


def _mismatch(args: GRPOConfig) -> dict[str, Any]:
    mode, low, high = (
        getattr(args, f"vllm_importance_sampling_{x}") for x in ("mode", "clip_min", "clip_max")
    )
    if mode not in MISMATCH or low is not None or high is None:
        raise ValueError(
            f"vllm_importance_sampling_mode = {mode} with clip_min = {low}, clip_max = {high} is not a correction that "
            f"an objective has: use {' or '.join(MISMATCH)}, with clip_max alone"
        )
    return {"name": MISMATCH[mode], "cap": float(high)}


def _loss_mask(inputs: dict[str, Any]) -> Tensor:
    """[B, T] the tokens the model wrote: no padding, no tool's answer, no truncated response."""
    mask: Tensor = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask


@torch.no_grad()
def _clipped(
    objective: Objective,
    credit: Credit,
    new: Tensor,
    old: Tensor,
    response: Tensor,
    position: Tensor | None,
) -> Tensor | None:
    """[2] the least share of tokens clipped with A < 0 and the largest with A > 0, by response."""
    new, old = new.detach().float(), old.float()
    c = objective.token_coefficient(credit, response, position, new.dtype)
    tokens = Tokens(new, old, (new - old).nan_to_num(0.0, 0.0, 0.0), c, response, credit.lengths)
    clipped = objective.surrogate(tokens).clipped
    if clipped is None:
        return None
    cut = tokens.spread_out(clipped)
    n = tokens.response_sum(torch.ones_like(new))
    low, high = (tokens.response_sum(cut * side) / n.clamp(min=1) for side in (c < 0, c > 0))
    return torch.stack([torch.where(n > 0, low, 1.0).min(), high.max()])

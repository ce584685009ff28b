"""An objective is five choices: advantage, difficulty, cancellation,
aggregation (effective length), surrogate.

`assign` sees whole groups before anything is split and gives every response a finished coefficient;
`loss` only sums. The gradient is therefore the same, to rounding, for any micro-batch size,
accumulation or number of ranks.
Not here: models, sampling, optimizers, and the forward pass that makes the log-probabilities.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.objective import bias
from equipoise.objective.advantage import NOT_ZERO_SUM, long_and_right, over_batch
from equipoise.objective.composed import choices_of
from equipoise.objective.credit import Credit, weigh
from equipoise.objective.difficulty import Success
from equipoise.objective.evaluate import (
    Given,
    evaluate,
    refuse_positions,
    refuse_rows,
    response_coefficient,
)
from equipoise.objective.groups import Batch, Groups
from equipoise.objective.inputs import (
    Facts,
    GroupIds,
    Lengths,
    Numbers,
    PerToken,
    Rewards,
    check,
    read,
    read_tokens,
)
from equipoise.objective.loss import LossOutput
from equipoise.objective.stack import Stack, refuse_per_token


class BatchError(ValueError):
    """Rewards or accuracies that are valid, and that the objective at hand cannot be given."""


class Objective(Stack):
    """A GRPO-style objective. Each choice is a name or a mapping of a name and its options.

    >>> Objective(aggregation="balanced", surrogate={"name": "ppo_clip", "high": 0.28})
    >>> Objective.preset("dapo+balanced+hadw")
    >>> Objective.preset("dapo", difficulty={"name": "hadw", "anchor": "window"})

    averaged_groups   which groups the mean over prompts counts: "all", or "informative" (some advantage is not 0)
    reward_weights    for rewards [B, K]: the weight of each; combine="rewards" sums them, then takes the advantage,
                      combine="advantages" takes the advantage of each, then sums;
                      "gdpo" also subtracts the sum's mean over the batch and divides by its
                      standard deviation (GDPO)
    kl, kl_estimator  β and "k1" | "k2" | "k3" | "k3_ratio" (ρ·k3), against `ref_logprobs`; a token's KL is averaged as
                      the aggregation says, under `balanced` (whose weights need a sign) as token
                      with the same `over`
    entropy_bonus     times the mean token entropy of the batch, added to the objective
    mismatch          "none" | "tis" | "mis" | "icepop" on π_old/π_rollout, against `rollout_logprobs`
    length_penalty    α: r ← r − α·accuracy·sigmoid(z), z the length among the right responses to the prompt, in
                      standard deviations: of right answers the shorter,
                      and no reward for a short wrong one
    off_policy_mask   δ: responses with A < 0 leave the loss while mean log(π_old/π) > δ (π_rollout where given)
    """

    @classmethod
    def preset(cls, name: str, **knobs: Any) -> Objective:
        """A published objective, with any of its choices replaced: by words in its name
        ("dapo+balanced+hadw"), or by keywords, of which `surrogate={"high": 0.3}` sets one option
        of the preset's own choice.
        """
        choices = choices_of(name)
        for slot, knob in knobs.items():
            # options of the preset's own choice
            if isinstance(knob, Mapping) and "name" not in knob:
                own = choices.get(slot, "none")
                knob = {**(own if isinstance(own, Mapping) else {"name": own}), **knob}
            choices[slot] = knob
        try:
            return cls(**choices)
        except ValueError as error:
            if "+" not in name:
                raise
            raise ValueError(f"{name}: {error}") from error

    def __repr__(self) -> str:
        first, rest = (self.advantage, self.difficulty_choice), (self.aggregation, self.surrogate)
        stack = [*(c.brief() for c in first), self.cancellation, *(c.brief() for c in rest)]
        return f"Objective({' → '.join(stack)})"

    def __str__(self) -> str:
        return "\n".join([repr(self), *(f"  note: {note}" for note in self.notes)])

    def state_dict(self) -> dict[str, Any]:
        """The difficulty anchor, as plain numbers; {} for an objective without one."""
        return {} if self.difficulty is None else {"difficulty": self.difficulty.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if ("difficulty" in state) != (self.difficulty is not None):
            raise ValueError(
                f"the saved state {'has' if 'difficulty' in state else 'lacks'} a difficulty anchor, "
                f"the objective is difficulty = {self.difficulty_choice.name}"
            )
        if self.difficulty is not None:
            self.difficulty.load_state_dict(state["difficulty"])

    @torch.no_grad()
    def assign(
        self,
        rewards: Rewards,
        group: GroupIds,
        lengths: Lengths,
        *,
        accuracy: Numbers | None = None,
        batch_accuracy: float | None = None,
        history: Numbers | None = None,
        tokens: Tensor | Sequence[int] | None = None,
        token_weight: Numbers | None = None,
        token_advantage: Numbers | None = None,
    ) -> Credit:
        """Give every response of the batch its coefficient.

        rewards [B], or [B, K] with `reward_weights`; group [B] ids of any kind in any order;
        lengths [B] tokens of each response (0 for one without tokens or masked out: it still counts
        in its group's mean reward).
        accuracy [B] success of each response in [0, 1], NaN where it is not known. Advantages come
        of the rewards, which shaping may have changed; p̂ and the anchor come of accuracies.
        Without any, the rewards serve as both. batch_accuracy mean accuracy over all sampled
        responses, those that were filtered out included: what the anchor learns; by default the
        mean of `accuracy`.
        history of each response's prompt in earlier batches (hadw_history, debias): [B, 2]
        successes and attempts, or [B, 3] with the steps since then; or [B] success rates to take at
        their word, NaN where there is none.
        tokens [ΣT] token ids in row order, for cancellation="prefix" and for bias/* on the real
        shared tokens. token_weight [ΣT] ≥ 0 multiplies the weight of each token; token_advantage
        [ΣT] is added to its response's advantage (see `entropy_mask` and `distillation`). `loss`
        then needs the position of each token.

        Bad input is a ValueError that names the index and the rule, raised before the anchor has
        changed. One host synchronisation: the checks.
        """
        inputs = read(
            rewards,
            group,
            lengths,
            accuracy=accuracy,
            history=history,
            columns=len(self.reward_weights),
        )
        groups = Groups.of(inputs.ids)
        columns = [Batch(r, inputs.T, groups, inputs.eps) for r in inputs.r.unbind(1)]
        total = self._total(columns)
        ends = (0.0, 1.0) if self.difficulty is None else self.difficulty.reward_range
        judged = total if self.combine == "rewards" else inputs.r
        per_token = read_tokens(
            inputs.T.device, ids=tokens, weight=token_weight, advantage=token_advantage
        )
        facts = check(inputs, per_token, total, judged, groups, ends)
        refuse_per_token(
            self, weight=per_token.weight is not None, advantage=per_token.advantage is not None
        )
        self._check_batch(facts, per_token)
        y = self._success_rate(facts, batch_accuracy, ends)

        metrics: dict[str, Tensor] = {}
        batch = Batch(total, inputs.T, groups, inputs.eps, some_empty=facts.shortest == 0)
        success = _success(batch, inputs.accuracy, facts, ends)
        batch = self._penalised(batch, success, metrics)
        A = self._reweighted(self._advantage(batch, columns), success, y, inputs.history, metrics)
        if facts.right_or_wrong:
            metrics["bias/baseline_bias"] = bias.baseline_bias(success)
        credit = self._weighed(batch, A, per_token, int(facts.tokens), metrics)
        if self.difficulty is not None:
            self.difficulty.update(y)
        return credit

    def _total(self, columns: list[Batch]) -> Tensor:
        """[B] the weighed sum of the rewards."""
        if self.reward_weights == [1.0]:
            return columns[0].r
        weighed = [w * column.r for w, column in zip(self.reward_weights, columns, strict=True)]
        return torch.stack(weighed).sum(0)

    def _penalised(self, batch: Batch, success: Success, metrics: dict[str, Tensor]) -> Batch:
        """The batch with its rewards less the length penalty."""
        if not self.length_penalty:
            return batch
        penalty = self.length_penalty * long_and_right(batch.T, success.rate, batch.groups)
        metrics["length_penalty"] = penalty.mean()
        return dataclasses.replace(batch, r=batch.r - penalty)

    def _weighed(
        self, batch: Batch, A: Tensor, tokens: PerToken, all_tokens: int, metrics: dict[str, Tensor]
    ) -> Credit:
        """The credit, refused where a coefficient is not a finite number."""
        credit = weigh(
            batch,
            A,
            aggregation=self.aggregation,
            cancellation=self.cancellation,
            averaged_groups=self.averaged_groups,
            with_kl=self.kl > 0,
            tokens=tokens,
            all_tokens=all_tokens,
            metrics=metrics,
        )
        _refuse_not_finite(credit)
        return credit

    def _reweighted(
        self,
        A: Tensor,
        success: Success,
        y: float,
        history: Tensor | None,
        metrics: dict[str, Tensor],
    ) -> Tensor:
        """[B] ΦA; the anchor, and how many signs were kept, into `metrics`."""
        if self.difficulty is None:
            return A
        C = self.difficulty.prior(y)
        A, turned = self.difficulty.reweight(A, success, C, history)
        metrics["difficulty/anchor"] = A.new_full((), C)
        if turned is not None:
            metrics["difficulty/turned"] = turned / len(A)
        return A

    def _success_rate(
        self, facts: Facts, batch_accuracy: float | None, ends: tuple[float, float]
    ) -> float:
        """y, the success rate of the batch: of all that was sampled where that is given,
        else of what is here.
        """
        if batch_accuracy is not None:
            if not 0 <= batch_accuracy <= 1:
                raise ValueError(
                    f"batch_accuracy = {batch_accuracy} must be a mean accuracy, 0 to 1"
                )
            return float(batch_accuracy)
        if facts.known:
            return facts.accuracy
        return (facts.mean - ends[0]) / (ends[1] - ends[0])

    def _advantage(self, batch: Batch, columns: list[Batch]) -> Tensor:
        """[B] of the sum of the rewards, or the sum over the rewards of each one's."""
        if self.combine == "rewards":
            A: Tensor = self.advantage(batch)
            return A
        parts = [
            w * self.advantage(column)
            for w, column in zip(self.reward_weights, columns, strict=True)
        ]
        A = torch.stack(parts).sum(0)
        if self.combine == "gdpo":
            return over_batch(A, zero_sum=self.advantage.name not in NOT_ZERO_SUM)
        return A

    def _check_batch(self, facts: Facts, tokens: PerToken) -> None:
        """What this objective in particular asks of a batch."""
        A = self.advantage
        if self.difficulty is not None and not facts.known:
            self.difficulty.check_range(facts.low, facts.high)
        elif self.length_penalty and not facts.known and not 0 <= facts.low <= facts.high <= 1:
            raise BatchError(
                f"rewards go from {facts.low:g} to {facts.high:g}: length_penalty must know which responses are right; "
                "give assign(accuracy=…), or rewards in [0, 1]"
            )
        if self.difficulty_choice.name == "debias" and not facts.right_or_wrong:
            assert self.difficulty is not None
            ends = (0.0, 1.0) if facts.known else self.difficulty.reward_range
            raise BatchError(
                f"difficulty = debias needs {'accuracies' if facts.known else 'rewards'} that are one of {ends}; "
                "some lie between"
            )
        if A.name == "maxrl" and facts.least < 0:
            raise BatchError(
                f"rewards go down to {facts.least:g}: maxrl divides by their mean, so they must be ≥ 0"
            )
        if A.name == "pass_at_k" and not facts.two_valued:
            raise BatchError("some rewards are neither 0 nor 1: those of pass_at_k must be 0 or 1")
        if A.name == "pass_at_k" and facts.smallest_group < A.options["k"]:
            raise BatchError(
                f"a group has {facts.smallest_group:g} responses: pass_at_k needs at least k = {A.options['k']}"
            )
        if self.cancellation == "prefix" and tokens.ids is None:
            raise ValueError(
                "cancellation = prefix needs assign(..., tokens=…), the token ids in row order"
            )

    def loss(
        self,
        logprobs: Tensor,
        old_logprobs: Tensor,
        credit: Credit,
        response: Tensor,
        *,
        position: Tensor | None = None,
        entropy: Tensor | None = None,
        ref_logprobs: Tensor | None = None,
        rollout_logprobs: Tensor | None = None,
    ) -> LossOutput:
        """The loss of any micro-batch; the losses of the micro-batches of a batch add up to the
        batch's.

        All arguments are flat [n]. logprobs with gradient; response the row (in `assign`'s batch)
        of each token; position of each token in its response (cancellation="prefix"); entropy with
        gradient (entropy_bonus); ref_logprobs (kl); rollout_logprobs (mismatch). No host
        synchronisation on CUDA.
        """
        self.check_tokens(
            credit,
            logprobs,
            old_logprobs=old_logprobs,
            response=response,
            position=position,
            entropy=entropy,
            ref_logprobs=ref_logprobs,
            rollout_logprobs=rollout_logprobs,
        )
        logprobs = logprobs.to(torch.promote_types(logprobs.dtype, torch.float32))
        rollout = (
            rollout_logprobs.detach()
            if rollout_logprobs is not None and self.needs_sampler
            else None
        )
        used = ((entropy, self.entropy_bonus > 0), (ref_logprobs, self.kl > 0), (rollout, True))
        given = Given(
            logp=logprobs.detach(),
            old=old_logprobs.detach(),
            response=response,
            position=position,
            rollout=rollout,
            others=tuple(x.detach() for x, need in used if x is not None and need),
        )
        return evaluate(self, credit, given, logprobs=logprobs, entropy=entropy, ref=ref_logprobs)

    def token_coefficient(
        self, credit: Credit, response: Tensor, position: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """[n] the coefficient of each token, or a ValueError that names the token whose row is not
        in the batch.
        """
        if not response.is_cuda:
            refuse_rows(response, credit.lengths)
        if credit.per_token and position is not None and not position.is_cuda:
            refuse_positions(credit, response, position)
        if self.needs_whole_groups:
            return response_coefficient(self, credit).to(dtype).index_select(0, response)
        return credit.at(response, position, dtype)

    def check_tokens(
        self,
        credit: Credit,
        logprobs: Tensor,
        *,
        old_logprobs: Tensor,
        response: Tensor,
        position: Tensor | None,
        entropy: Tensor | None,
        ref_logprobs: Tensor | None,
        rollout_logprobs: Tensor | None,
    ) -> None:
        """Refuse what `loss` cannot use: tokens that are not flat, shapes that differ,
        something needed but missing.
        """
        if logprobs.ndim != 1:
            raise ValueError(
                f"logprobs has shape {tuple(logprobs.shape)}: tokens are flat, [n]; see equipoise.flatten"
            )
        corrected = self.mismatch.function is not None
        for name, x, need, why in (
            ("old_logprobs", old_logprobs, True, "the ratio"),
            ("response", response, True, "the coefficient"),
            (
                "position",
                position,
                credit.per_token,
                "a weight of each token's own (prefix, token_weight, …)",
            ),
            ("entropy", entropy, self.entropy_bonus > 0, "entropy_bonus > 0"),
            ("ref_logprobs", ref_logprobs, self.kl > 0, "kl > 0"),
            ("rollout_logprobs", rollout_logprobs, corrected, f"mismatch = {self.mismatch.name}"),
        ):
            if x is None and need:
                raise ValueError(f"{why} needs loss(..., {name}=…)")
            if x is not None and x.shape != logprobs.shape:
                raise ValueError(
                    f"{name} has shape {tuple(x.shape)}, logprobs {tuple(logprobs.shape)}: one per token"
                )
        if response.dtype != torch.int64:
            raise ValueError(
                f"response has dtype {response.dtype}: it must be int64, a row of the batch per token"
            )
        if len(logprobs) > credit.all_tokens:
            raise ValueError(
                f"logprobs has {len(logprobs)} tokens, and assign was given {credit.all_tokens} for the whole batch: "
                "it must be at most that; give assign the lengths of what loss is given"
            )


def _success(
    batch: Batch, accuracy: Tensor | None, facts: Facts, ends: tuple[float, float]
) -> Success:
    """Of the accuracies where some are known, else of the rewards."""
    if accuracy is None or not facts.known:
        return Success.of_rewards(batch, *ends, int(facts.largest_group))
    everyone = facts.known == len(accuracy)
    return Success.of_accuracies(
        accuracy, batch.groups, int(facts.largest_group), all_known=everyone
    )


def _refuse_not_finite(credit: Credit) -> None:
    """On the CPU, where asking is free; on CUDA the loss is not finite and `ok` is false."""
    c = credit.coefficient
    if not c.is_cuda and c.numel() and not all(map(math.isfinite, map(float, c.aminmax()))):
        i = int((~c.isfinite()).nonzero()[0])
        what = "token" if credit.per_token else "response"
        raise ValueError(
            f"the coefficient of {what} {i} is {float(c[i])}: rewards, weights or options are too large for it"
        )

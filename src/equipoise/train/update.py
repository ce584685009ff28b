"""The update: from a batch and its credit to mini-batches, passes and optimizer steps.

What one pass may hold is planned when there is first something to train on; where memory runs out
all the same, the update begins again with half. An update whose numbers are not finite is skipped
and counted, never applied. Under `torchrun` every rank trains its share of the groups, and the
gradients are summed. The state is the optimizer's, the objective's and the plan's. Not covered:
where batches come from, and the files of a run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from equipoise import policy as models
from equipoise.config import Config, OptimConfig
from equipoise.objective import Credit, LossOutput, Objective, merge_metrics, response_ids
from equipoise.train import ranks
from equipoise.train.batch import StepBatch
from equipoise.train.folder import RunError
from equipoise.train.micro import MicroBatch, RankShare
from equipoise.train.mini import MiniBatch, cut_groups, mini_batches, parts_of
from equipoise.train.mismatch import Mismatch
from equipoise.train.mismatch import metrics as mismatch_metrics
from equipoise.train.optimizer import AdamW
from equipoise.train.planner import Plan, plan

if TYPE_CHECKING:
    from equipoise.train.shard import Shards

T = TypeVar("T")
# Of the later updates of a batch, what tells how far they went.
LAST_UPDATE = ("policy_loss", "approx_kl", "clip_ratio/region", "pushed/", "drift/")


class Step(NamedTuple):
    """What an optimizer step saw: outputs and mismatch (where it is known) of the ranks that had
    something to do, the norm of the gradient; `weight`: its share of the batch's prompts,
    `policy_weight`: of those that the mean of the policy's loss counts.
    """

    outputs: list[LossOutput]
    apart: list[Mismatch]
    norm: Tensor
    weight: float
    policy_weight: float


class Pending(NamedTuple):
    """A bool on its way from the device. Asking for it waits for the work that was there when it
    was made, and not for what the device was given since.
    """

    value: Tensor
    arrived: torch.cuda.Event | None

    @classmethod
    def of(cls, value: Tensor) -> Pending:
        if not value.is_cuda:
            return cls(value, None)
        here = torch.empty_like(value, device="cpu", pin_memory=True)
        here.copy_(value, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(value.device))
        return cls(here, arrived)

    def __bool__(self) -> bool:
        if self.arrived is not None:
            self.arrived.synchronize()
        return bool(self.value)


class NotFinite(RunError):
    """`train.max_skipped` updates in a row could not be applied."""


class Updater:
    """`longest`: tokens that a response may have; `say` gets what the user should know."""

    def __init__(
        self,
        config: Config,
        objective: Objective,
        policy: models.Policy,
        reference: models.Policy | None,
        longest: int,
    ) -> None:
        self.config = config
        self.objective = objective
        self.policy = policy
        self.reference = reference
        self.longest = longest
        # log π_old is the trainer's, not the sampler's.
        self.exact = config.rollout.recomputes
        sharded = config.train.shard and ranks.count() > 1
        self.shards = _shards(policy) if sharded else None
        self.reference_shards = _shards(reference) if sharded and reference else None
        self.optimizer = AdamW(
            self.shards.parameters if self.shards else policy.parameters(),
            betas=config.optim.betas,
            weight_decay=config.optim.weight_decay,
            state=config.optim.state,
        )
        self.parameters = self.optimizer.masters
        self.plan: Plan | None = None  # made when there is something to train on
        self.beside = 0  # bytes that a sampler may take while passes run
        self.updates = 0  # optimizer steps done, the last perhaps not yet known to be applied
        self.applied: Pending | None = None  # whether that one was
        self.skipped = self.skipped_total = 0  # in a row, and ever
        self.idle_passes = 0  # by which another rank has more to do with the batch at hand
        self.say: Callable[[str], None] = lambda text: None

    def update(self, batch: StepBatch, credit: Credit, step: int) -> dict[str, float]:
        """`train.updates` passes over the batch, an optimizer step on each of its mini-batches.

        The metrics are those of the first pass: with one mini-batch that was not sampled ahead, of
        a step in which every ratio is 1. A mini-batch that nothing pulls on leaves the weights
        alone: momentum is no reason to move them.
        """
        out = {
            "policy_loss": 0.0,
            "grad_norm": 0.0,
            **{name: float(x) for name, x in credit.metrics.items()},
        }
        trained = self._trained(batch, credit)
        first = self._pass(batch, credit, trained, step, 0)
        # No group has a difference in reward, so there is nothing to learn from this batch.
        if not first:
            return out | self._state()
        self.make_plan(batch)
        # log π_old and log π_ref of all mini-batches before the first optimizer step: afterwards
        # the weights are no longer those that the batch was sampled with.
        for number, part in enumerate(first):
            self._cut(part.share)
            part.share.says_itself = self._says_itself(number)
            self._fitting(part.share, self._compare)
        steps = self._optimizer_steps(first, turn=0)
        out |= _merged(steps)
        out |= mismatch_metrics([m for s in steps for m in s.apart], self.objective.mismatch)
        for turn in range(1, self.config.train.updates):
            again = self._pass(batch, credit, trained, step, turn, first)
            for part in again:
                self._cut(part.share)
            steps += self._optimizer_steps(again, turn)
        self._settle()
        if len(steps) > 1:
            out |= _last_update(steps[-1])
        norms = [float(s.norm) for s in steps]
        return out | {"grad_norm": math.fsum(norms) / len(norms)} | self._state()

    @torch.no_grad()
    def each_token(
        self, batch: StepBatch, numbers: Callable[[MicroBatch], Tensor], *, own: bool
    ) -> Tensor:
        """[N] `numbers` of every token in the loss, in row order, before the first update.

        Each rank computes those of its groups. `own`:
        by the policy itself, whose weights the ranks may share.
        """
        self.make_plan(batch)
        group, in_loss = batch.rollouts.prompt.cpu(), batch.lengths.cpu() > 0
        mine = torch.tensor(ranks.share(range(len(batch.prompts))), dtype=torch.int64)
        share = RankShare.of(batch.rollouts, (torch.isin(group, mine) & in_loss).nonzero()[:, 0])
        self._cut(share)
        values = self._fitting(share, lambda share: share.each(numbers))
        self._fill_up(self.shards if own else None)
        of_batch = values.new_zeros(len(batch.rollouts.tokens))
        for place, known in ranks.gather((share.place, values)):
            of_batch[place] = known
        return of_batch[in_loss.to(of_batch.device)[response_ids(batch.rollouts.lengths)]]

    def make_plan(self, batch: StepBatch) -> None:
        """Where there is none yet: how much one pass may hold."""
        if self.plan is None:
            self.plan = self._plan(batch.rollouts.prompts)
            if self.plan.said:
                self.say(self.plan.said)

    def _state(self) -> dict[str, float]:
        return {
            "lr": self._rate(),
            "optimizer_steps": float(self.updates),
            "skipped": float(self.skipped_total),
        }

    def _trained(self, batch: StepBatch, credit: Credit) -> Tensor:
        """[B] whether a response is trained on: one that nothing pulls on (no advantage, no KL, no
        entropy bonus) needs no forward pass, unless its group must be whole.
        """
        config, group = self.config, batch.rollouts.prompt.cpu()
        pulled = credit.pulled.cpu()
        # The KL and the bonus pull on every token, whatever its advantage.
        if config.objective.kl or config.objective.entropy_bonus:
            pulled = torch.ones_like(pulled)
        elif self.objective.needs_whole_groups:
            pulled = torch.isin(group, group[pulled])
        return pulled & (batch.lengths.cpu() > 0)

    def _pass(
        self,
        batch: StepBatch,
        credit: Credit,
        trained: Tensor,
        step: int,
        turn: int,
        first: list[MiniBatch] | None = None,
    ) -> list[MiniBatch]:
        """The mini-batches of a pass; `first`: those of the first one, compared already."""
        train, prompts = self.config.train, len(batch.prompts)
        # With one mini-batch every pass sees the same responses, packed already.
        if first is not None and parts_of(prompts, train.mini_batch) == 1:
            return first
        groups = cut_groups(prompts, train.mini_batch, train.seed, step, turn)
        parts = mini_batches(batch.rollouts, credit, trained, groups)
        there = credit.parts_to(self.policy.device, [part.credit for part in parts])
        for part, moved in zip(parts, there, strict=True):
            part.credit = moved
        if first is not None:
            self._compare_as(first, parts, len(batch.rollouts.tokens))
        return parts

    def _compare_as(self, first: list[MiniBatch], parts: list[MiniBatch], tokens: int) -> None:
        """Hand on what the ranks computed before the first update to `parts` of another cut."""
        for name, computed in (("old", self.exact), ("ref", bool(self.config.objective.kl))):
            if not computed:
                continue
            known = ranks.gather([(part.share.place, getattr(part.share, name)) for part in first])
            of_batch = first[0].share.old.new_zeros(tokens)
            for place, values in itertools.chain.from_iterable(known):
                of_batch[place] = values
            for part in parts:
                setattr(part.share, name, of_batch[part.share.place])

    def _cut(self, share: RankShare) -> None:
        """Into micro-batches, as the plan now is; what was packed for the same plan stays."""
        assert self.plan is not None
        if share.cut_at != self.plan.tokens:
            share.cut(
                self.config.train.micro_batch, self.plan.tokens, self.objective.needs_whole_groups
            )
        self.idle_passes = max(ranks.gather(len(share.parts))) - len(share.parts)

    def _optimizer_steps(self, parts: list[MiniBatch], turn: int) -> list[Step]:
        """One on each mini-batch of a pass, the `turn`-th over the batch."""
        steps = []
        for i, part in enumerate(parts):
            compared = turn == 0 and (self.exact or i == 0)
            steps.append(self._optimizer_step(part, compared, following=parts[i + 1 : i + 2]))
        return steps

    def _optimizer_step(
        self, part: MiniBatch, compared: bool, following: Sequence[MiniBatch]
    ) -> Step:
        """`compared`: whether it is known how far the sampler is from the trainer: the weights are
        those that sampled, or π_old is the trainer's. `following`: the mini-batch after this one.
        """
        self._cut(part.share)
        work = functools.partial(self._gradients, credit=part.credit, compared=compared)
        found = self._fitting(part.share, work)
        # A sum, not a mean over ranks: the loss is divided by the whole batch's sizes, so that
        # shares and micro-batches add up to the gradient of the batch, however it was split.
        norm = self._sum_gradients()
        for coming in following:  # while the device is at work
            coming.share.pack_first()
        everyone = ranks.gather(found)
        outputs = [output for outputs, _ in everyone for output in outputs]
        # One rank with an infinite loss stops the step for all: their weights must stay the same.
        fine = torch.stack([output.ok.to(norm.device) for output in outputs]).all()
        self._apply(norm, fine & norm.isfinite())
        self.optimizer.zero_grad()  # the sampler's cache may take their memory
        apart = [m for _, apart in everyone for m in apart]
        return Step(outputs, apart, norm, part.weight, part.policy_weight)

    def _plan(self, prompts: Sequence[Sequence[int]]) -> Plan:
        """How much one pass may hold: as the configuration says or, if it does not, what fits."""
        config, rollout = self.config, self.config.rollout
        if config.train.micro_batch or config.train.micro_tokens:
            return Plan(config.train.micro_tokens, self.policy.gradient_checkpointing, "")
        prompt = max(map(len, prompts))
        group = prompt + rollout.group_size * self.longest
        return plan(
            self.policy,
            total=(config.train.mini_batch or rollout.prompts) * group,
            cap=config.train.memory_cap,
            largest=group if self.objective.needs_whole_groups else prompt + self.longest,
            to_come=self.optimizer.bytes_to_come() + self.beside,
            clear=self.optimizer.zero_grad,
        )

    def _fitting(self, share: RankShare, work: Callable[[RankShare], T]) -> T:
        """Do it; where memory runs out, again from its beginning, with half as many tokens a pass."""
        while True:
            try:
                return work(share)
            except torch.OutOfMemoryError as error:
                reason = str(error).partition(". ")[0]
            if self.shards:  # the other ranks are in the middle of this pass
                raise RunError(
                    f"{reason}: start another run with lower train.micro_tokens or train.micro_batch"
                )
            # Only here are the failed pass' tensors gone.
            self.optimizer.zero_grad()
            torch.cuda.empty_cache()
            self._shrink(share, reason)

    def _shrink(self, share: RankShare, reason: str) -> None:
        """Smaller micro-batches for the rest of the run or, at one, gradient checkpointing."""
        assert self.plan is not None
        most = share.largest_pass
        share.cut(self.config.train.micro_batch, most // 2, self.objective.needs_whole_groups)
        checkpointing = self.policy.gradient_checkpointing
        if share.largest_pass < most:
            self.plan = dataclasses.replace(self.plan, tokens=most // 2)
            then = f"going on with {most // 2:,}"
        elif not checkpointing:
            self.policy.checkpoint_gradients()
            self.plan = dataclasses.replace(self.plan, checkpointing=True)
            then = "which cannot be cut; going on with gradient checkpointing"
        else:
            raise RunError(
                f"{reason}: {most:,} tokens in one piece do not fit, even with gradient checkpointing; lower "
                "rollout.max_tokens, or optim.state = 8bit or model.lora_rank for smaller optimizer state"
            )
        self.say(f"memory ran out with {most:,} tokens a pass, {then}")

    def _says_itself(self, number: int) -> bool:
        """Whether the pass that trains on mini-batch `number` is of the policy to compare with, and
        so says log π_old itself: before the first step, where no dropout and no later pass is.
        """
        config = self.config
        return (
            self.exact
            and number == 0
            and config.train.updates == 1
            and config.model.lora_dropout == 0
        )

    @torch.no_grad()
    def _compare(self, share: RankShare) -> None:
        """What the loss compares with: log π_ref and log π_old, which is the sampler's or, with
        `rollout.exact`, vLLM or 8 bits, what the trainer says before its first update.
        """
        temperature = self.config.rollout.temperature

        def of_reference(part: MicroBatch) -> Tensor:
            return models.reference_logprobs(
                self.policy,
                self.reference,
                part.packed,
                temperature=temperature,
                support=part.support,
            )

        def of_policy(part: MicroBatch) -> Tensor:
            found = models.token_logprobs(
                self.policy, part.packed, temperature=temperature, support=part.support
            )
            return found.logprobs

        if self.config.objective.kl:
            share.ref = share.each(of_reference)
            self._fill_up(self.reference_shards)
        if self.exact and not share.says_itself:
            share.old = share.each(of_policy)
            self._fill_up(self.shards)

    def _gradients(
        self, share: RankShare, *, credit: Credit, compared: bool
    ) -> tuple[list[LossOutput], list[Mismatch]]:
        """Gradients of all micro-batches, summed, and what the losses saw;
        where `compared`, also the mismatch.
        """
        # Here as well as after the step: work that ran out of memory begins again from this line.
        self.optimizer.zero_grad()
        outputs: list[LossOutput] = []
        apart = []
        for i, part in enumerate(share.parts):
            with models.adapter_dropout(self.policy, self._dropout_seed(i)):
                output = self._loss(share, part, credit)
                output.loss.backward()
            if compared:
                own = share.says_itself or not self.exact
                trainer = output.logprobs if own else share.old[part.tokens]
                sampler = share.rollouts.logprobs[part.tokens]
                lengths = share.rollouts.lengths[part.rows]
                apart.append(Mismatch.of(trainer, sampler, lengths, self.objective.mismatch))
            output = dataclasses.replace(
                output, loss=output.loss.detach(), logprobs=output.logprobs.new_empty(0)
            )
            # sums over the batch's tokens: one set of them, not one a pass
            outputs = [_added(*outputs, output)]
        self._fill_up(self.shards, backward=True)
        return outputs, apart

    def _dropout_seed(self, part: int) -> int:
        """Of a micro-batch's masks, by the run's seed, the step that is tried, rank and part."""
        tried = self.updates + self.skipped_total
        seed = f"{self.config.train.seed} {tried} {ranks.me()} {part}"
        return random.Random(seed).getrandbits(63)

    def _loss(self, share: RankShare, part: MicroBatch, credit: Credit) -> LossOutput:
        at = part.tokens
        return models.token_loss(
            self.policy,
            part.packed,
            self.objective,
            None if share.says_itself else share.old[at],
            credit,
            share.response[at],
            position=share.position[at],
            ref_logprobs=None if share.ref is None else share.ref[at],
            rollout_logprobs=share.rollouts.logprobs[at] if self.objective.needs_sampler else None,
            temperature=self.config.rollout.temperature,
            support=part.support,
            exact=self.exact,
        )

    def _fill_up(self, shards: Shards | None, *, backward: bool = False) -> None:
        """Ranks that share the weights make as many passes as the one that has most to do."""
        if shards is not None:
            for _ in range(self.idle_passes):
                shards.idle_pass(backward=backward)

    def _sum_gradients(self) -> Tensor:
        """Over all ranks; returns the norm of the whole."""
        if self.shards:
            self.shards.take_gradients()  # summed by the backward passes
        else:
            ranks.sum_gradients(self.parameters)
        norm = torch.nn.utils.get_total_norm(
            [p.grad for p in self.parameters if p.grad is not None]
        )
        return ranks.norm_of_all(norm) if self.shards else norm

    def _apply(self, norm: Tensor, fine: Tensor) -> None:
        """The step, which the device leaves out where the numbers are not `fine`; the host does not
        wait to hear of it, but goes on to the next mini-batch.
        """
        self._settle()
        config = self.config
        # The norm is known already, of the sum over all ranks: each clips by the same factor.
        if config.optim.clip_norm:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, config.optim.clip_norm, norm)
        # Counted before the rate is asked for: a warm-up's first step must not have rate 0.
        self.updates += 1
        self.optimizer.step(self._rate(), fine)
        self.applied = Pending.of(fine)

    def _settle(self) -> None:
        """Count the last step as what it was: before the next one, whose rate depends on it."""
        if self.applied is None:
            return
        applied, self.applied = bool(self.applied), None
        if applied:
            self.skipped = 0
            return
        self.updates -= 1
        self.optimizer.t -= 1
        self.skipped += 1
        self.skipped_total += 1
        if self.skipped >= self.config.train.max_skipped:
            raise NotFinite(
                f"{self.skipped} updates in a row had log-probabilities or gradients that are not finite"
            )

    def _rate(self) -> float:
        return learning_rate(self.config.optim, self.updates, self.config.optimizer_steps)

    def whole(self) -> contextlib.AbstractContextManager[None]:
        """Around whatever reads the weights themselves."""
        return self.shards.whole() if self.shards else contextlib.nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """As one process would have it; all ranks take part."""
        assert self.applied is None, "between two steps of an update"
        optimizer = self.optimizer.state_dict()
        return {
            "optimizer": self.shards.state_dict(optimizer) if self.shards else optimizer,
            "objective": self.objective.state_dict(),
            "updates": self.updates,
            "plan": None if self.plan is None else (self.plan.tokens, self.plan.checkpointing),
            "skipped": (self.skipped, self.skipped_total),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        optimizer = state["optimizer"]
        self.optimizer.load_state_dict(
            self.shards.load_state_dict(optimizer) if self.shards else optimizer
        )
        self.objective.load_state_dict(state["objective"])
        self.updates = state["updates"]
        if state.get("plan"):  # absent in the first runs
            self.plan = Plan(state["plan"][0], state["plan"][1], "")
            if self.plan.checkpointing and not self.policy.gradient_checkpointing:
                self.policy.checkpoint_gradients()
        self.skipped, self.skipped_total = state["skipped"]
        self.applied = None


def _added(first: LossOutput, *others: LossOutput) -> LossOutput:
    for other in others:
        first = dataclasses.replace(
            first, ok=first.ok & other.ok, stats=first.stats.merge(other.stats)
        )
    return first


def _merged(steps: Sequence[Step]) -> dict[str, float]:
    """Metrics of several optimizer steps: losses are means over prompts (the policy's over those
    that count), the rest over tokens.
    """
    outputs = []
    for step in steps:
        for output in step.outputs:
            stats = output.stats
            policy_loss = step.policy_weight * stats.policy_loss
            loss = policy_loss + step.weight * (stats.loss - stats.policy_loss)
            stats = stats._replace(loss=loss, policy_loss=policy_loss)
            outputs.append(dataclasses.replace(output, stats=stats))
    return {name: float(x) for name, x in merge_metrics(outputs).items()}


def _last_update(step: Step) -> dict[str, float]:
    """How far the policy moved on a batch. The first update cannot show it: its ratios are 1 or, of a
    batch that was sampled ahead, those of one step.
    """
    last = _merged([step._replace(weight=1.0, policy_weight=1.0)])
    return {f"{name}/last_update": x for name, x in last.items() if name.startswith(LAST_UPDATE)}


def learning_rate(optim: OptimConfig, update: int, total: int) -> float:
    """The rate of optimizer step `update` (from 1): warm-up, then constant, linear or cosine.

    0 is reached one step after the last: a step at 0 would be a batch of rollouts for nothing.
    """
    assert optim.lr != "auto", "settled when the model was loaded"
    if update <= optim.warmup:
        return optim.lr * update / max(optim.warmup, 1)
    left = 1 - (update - optim.warmup) / (total - optim.warmup + 1)
    shape = {"constant": 1.0, "linear": left, "cosine": 0.5 * (1 + math.cos(math.pi * (1 - left)))}
    return optim.lr * shape[optim.schedule]


def _shards(policy: models.Policy) -> Shards:
    from equipoise.train.shard import Shards  # FSDP takes two seconds to import

    return Shards(policy)

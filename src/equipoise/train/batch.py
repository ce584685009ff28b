"""One step's data: prompts of the task's stream, their responses and rewards."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equipoise import policy as models
from equipoise.config import Config
from equipoise.objective import Credit, response_ids
from equipoise.policy.chat import Chat
from equipoise.rollout import Rollouts, Sampler, SamplingParams, concatenate
from equipoise.tasks import Prompt, Task
from equipoise.train import ranks
from equipoise.train.folder import RunError, write_table
from equipoise.train.history import PromptHistory
from equipoise.train.score import Answer, Scorer, Scores
from equipoise.train.tally import Tally, joined
from equipoise.verifiers.response_format import overlong

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass
class StepBatch:
    """Responses of whole groups in the prompts' order; `lengths` is 0 outside the loss."""

    prompts: list[Prompt]
    rollouts: Rollouts
    texts: list[str]
    rewards: Tensor  # [B, K] float64, one column per reward function
    total: Tensor  # [B] float64, the columns weighed and summed
    verdicts: list[str]
    lengths: Tensor  # [B] tokens in the loss
    drawn: int  # prompts taken from the stream to get here
    unscored: int  # responses left out because their verdict is worth no score
    kinds: Counter[str]  # verdicts of all responses drawn, those left out as well
    troubles: list[dict[str, str]]  # verifier errors
    # [B] float64, 1 right, 0 not, partial credit between; where no verdict says, what the reward
    # is as a rate, whose differences count even where it lies outside of 0 and 1
    accuracy: Tensor
    # [R] float64, accuracies of all responses drawn that have a score,
    # those of dropped groups as well
    sampled: Tensor
    easy: int  # groups drawn that were all right
    hard: int  # groups drawn that were all wrong
    # [B, 3] successes and attempts of each response's prompt in earlier steps, and steps since then
    past: Tensor
    function_kinds: list[list[str]]  # [B][K] the kind of each function's verdict
    tallies: list[Tally]  # [K] of all responses drawn

    @property
    def success(self) -> Tensor:
        """[B] as an evaluation counts it: a reward of −1 is no success, not less than none."""
        return self.accuracy.clamp(0, 1)

    def tokens_in_loss(self) -> Tensor:
        keep = (self.lengths > 0)[response_ids(self.rollouts.lengths)]
        return self.rollouts.tokens[keep].cpu()


def encode_prompt(policy: models.Policy, prompt: Prompt, chat: Chat) -> list[int]:
    try:
        return chat.encode(policy, prompt.text, prompt.messages)
    except models.PromptTooLong as error:
        raise RunError(
            f"prompt {prompt.id}: {error} (task.max_prompt_tokens leaves out longer ones)"
        ) from error
    except ValueError as error:
        raise RunError(f"prompt {prompt.id}: {error}") from error


def count_tokens(policy: models.Policy, prompt: Prompt, chat: Chat) -> int:
    """Of a prompt that is too long for the context as well: it is counted to be left out."""
    try:
        return len(encode_prompt(policy, prompt, chat))
    except RunError as error:
        if isinstance(error.__cause__, models.PromptTooLong):
            return error.__cause__.tokens
        raise


class Collector:
    """Draws, samples and scores. Its state: the place in the stream, what it saw of prompts.

    `sampler` reads the weights of `policy` as they are; `decay`: of what is known of a prompt.
    """

    def __init__(
        self,
        config: Config,
        policy: models.Policy,
        sampler: Sampler,
        task: Task,
        scorer: Scorer,
        *,
        chat: Chat,
        decay: float,
    ) -> None:
        self.config = config
        self.policy = policy
        self.sampler = sampler
        self.task = task
        self.scorer = scorer
        self.chat = chat
        self.position = 0
        self.history = PromptHistory(decay)
        self.params = SamplingParams(
            temperature=config.rollout.temperature,
            top_p=config.rollout.top_p,
            top_k=config.rollout.top_k,
            min_p=config.rollout.min_p,
            max_tokens=config.rollout.max_tokens or task.max_tokens,
            stop=(*task.stop, *config.rollout.stop),
            seed=config.train.seed,
        )
        self.seconds = {"rollout": 0.0, "reward": 0.0}
        self.group: ProcessGroup | None = None  # the ranks', where not the default one

    def collect(self, step: int) -> StepBatch:
        """`rollout.prompts` groups; with dynamic sampling none all right or wrong, if it can."""
        rollout = self.config.rollout
        self.seconds = {"rollout": 0.0, "reward": 0.0}
        parts: list[StepBatch] = []
        missing = rollout.prompts
        for _ in range(rollout.max_draws if rollout.dynamic_sampling else 1):
            part = self._draw(step, rollout.prompts)
            if rollout.dynamic_sampling:
                part = _first_groups(part, _mixed(part), missing)
            parts.append(part)
            missing -= len(part.prompts)
            if missing <= 0:
                break
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _draw(self, step: int, count: int) -> StepBatch:
        # Each rank takes its part of the same positions, so that the batch is the same whatever
        # their number; a resumed run goes on from `position`.
        places = ranks.share(range(self.position, self.position + count))
        self.position += count
        # Every rank gets the whole batch: advantages need whole groups, and batch statistics all of
        # it.
        parts = ranks.gather(self._sampled(step, places), self.group)
        batch = _joined([self._finish(*part) for part in parts], count)
        rows = [batch.prompts[i].id for i in batch.rollouts.prompt.tolist()]
        # Counts of earlier steps only: read before this step's outcomes are recorded.
        batch.past = torch.tensor(self.history.counts(rows, step), dtype=torch.float64).view(-1, 3)
        self.history.record(rows, batch.success.tolist(), step)
        return batch

    def _sampled(
        self, step: int, places: Sequence[int]
    ) -> tuple[list[Prompt], Rollouts, list[str], Scores]:
        """The prompts at these places of the stream, responses to them, their texts and scores."""
        start = time.perf_counter()
        prompts = [self.task.prompt(i) for i in places]
        ids = [encode_prompt(self.policy, p, self.chat) for p in prompts]
        group_size = self.config.rollout.group_size
        asked: dict[int, list[Answer]] = {}
        texts: dict[int, str] = {}
        grading = 0.0

        def finished(rows: list[int], tokens: Tensor, lengths: Tensor) -> None:
            """Have responses graded while others are still sampled."""
            nonlocal grading
            said = models.decode(self.policy, tokens, lengths)
            texts.update(zip(rows, said, strict=True))
            begun = time.perf_counter()
            asked.update(
                (row, self.scorer.ask(prompts[row // group_size], text))
                for row, text in zip(rows, said, strict=True)
            )
            grading += time.perf_counter() - begun

        rollouts = self.sampler.sample(
            ids,
            group_size,
            self.params,
            # A draw depends on the seed, the step and these keys, and on nothing else in the batch.
            keys=list(places),
            step=step,
            finished=finished if self.scorer.beside else None,
        )
        # The scorer did not work beside the sampler, so nothing was decoded on the way.
        if not texts:
            texts = dict(enumerate(models.decode(self.policy, rollouts.tokens, rollouts.lengths)))
        sampled = time.perf_counter()
        answered = [prompts[i] for i in rollouts.prompt.tolist()]
        answers = [
            asked[i] if i in asked else self.scorer.ask(p, texts[i]) for i, p in enumerate(answered)
        ]
        scores = self.scorer.settle(answered, answers)
        self.seconds["rollout"] += sampled - start - grading
        self.seconds["reward"] += time.perf_counter() - sampled + grading
        return prompts, rollouts, [texts[i] for i in range(len(answered))], scores

    def _shaped(self, rewards: Tensor, lengths: Tensor) -> Tensor:
        """The rewards [B, K] less what overlong responses lose: off the first function's, as DAPO
        shapes the one it has; the total weighs it from there.
        """
        buffer = self.config.reward.overlong_buffer
        if not buffer:
            return rewards
        shaping = [overlong(length, self.params.max_tokens, buffer) for length in lengths.tolist()]
        rewards = rewards.clone()
        rewards[:, 0] += torch.tensor(shaping, dtype=torch.float64)
        return rewards

    def _finish(
        self, prompts: list[Prompt], rollouts: Rollouts, texts: list[str], scores: Scores
    ) -> StepBatch:
        """Shape the rewards by length, decide what enters the loss, leave out what has no score."""
        rewards = self._shaped(scores.rewards, rollouts.lengths)
        total = rewards @ torch.tensor(self.config.reward.weights, dtype=torch.float64)
        lengths = rollouts.lengths
        if self.config.reward.mask_truncated:
            whole = torch.tensor([f == "stop" for f in rollouts.finish], device=lengths.device)
            # Length 0 keeps a response in its group's mean and takes it out of the loss.
            lengths = lengths * whole
        batch = StepBatch(
            prompts=prompts,
            rollouts=rollouts,
            texts=texts,
            rewards=rewards,
            total=total,
            verdicts=scores.verdicts,
            lengths=lengths,
            drawn=len(prompts),
            unscored=0,
            kinds=Counter(scores.verdicts),
            troubles=scores.troubles,
            accuracy=scores.accuracy,
            sampled=scores.accuracy,
            easy=0,
            hard=0,
            past=torch.zeros(len(total), 3, dtype=torch.float64),
            function_kinds=scores.kinds,
            tallies=scores.tallies,
        )
        # A response the verifier failed on is not a wrong one: it leaves its group.
        scored = ~rewards.isnan().any(1)
        if not bool(scored.all()):
            batch = _rows(batch, scored.nonzero()[:, 0])
            batch.unscored = int((~scored).sum())
        low, high = _extremes(batch, batch.accuracy)
        batch.easy = int(((low == high) & (low > 0.5)).sum())
        batch.hard = int(((low == high) & (low <= 0.5)).sum())
        batch.sampled = batch.accuracy
        return batch


def _extremes(batch: StepBatch, values: Tensor) -> tuple[Tensor, Tensor]:
    """[P] the least and largest of each group's values; ∞ and −∞ of one without responses."""
    P, group = len(batch.prompts), batch.rollouts.prompt.cpu()
    low = torch.full((P,), torch.inf, dtype=torch.float64).scatter_reduce_(0, group, values, "amin")
    high = torch.full((P,), -torch.inf, dtype=torch.float64).scatter_reduce_(
        0, group, values, "amax"
    )
    return low, high


def _mixed(batch: StepBatch) -> Tensor:
    """[P] whether a prompt's responses differ in accuracy: shaping alone does not count (DAPO)."""
    low, high = _extremes(batch, batch.accuracy)
    return high > low


def _first_groups(batch: StepBatch, wanted: Tensor, most: int) -> StepBatch:
    """The first `most` groups that are wanted, renumbered."""
    keep = wanted.nonzero()[:most, 0]
    group = batch.rollouts.prompt.cpu()
    rows = torch.isin(group, keep).nonzero()[:, 0]
    out = _rows(batch, rows)
    number = torch.full((len(batch.prompts),), -1)
    number[keep] = torch.arange(len(keep))
    kept = keep.tolist()
    rollouts = dataclasses.replace(
        out.rollouts,
        prompts=[batch.rollouts.prompts[i] for i in kept],
        prompt=number.to(batch.rollouts.prompt.device)[out.rollouts.prompt],
    )
    return dataclasses.replace(out, prompts=[batch.prompts[i] for i in kept], rollouts=rollouts)


def _rows(batch: StepBatch, rows: Tensor) -> StepBatch:
    index = rows.tolist()
    return dataclasses.replace(
        batch,
        rollouts=batch.rollouts.select(rows),
        texts=[batch.texts[i] for i in index],
        rewards=batch.rewards[rows],
        total=batch.total[rows],
        verdicts=[batch.verdicts[i] for i in index],
        accuracy=batch.accuracy[rows],
        past=batch.past[rows],
        function_kinds=[batch.function_kinds[i] for i in index],
        lengths=batch.lengths[rows.to(batch.lengths.device)],
    )


def _joined(parts: list[StepBatch], drawn: int | None = None) -> StepBatch:
    if len(parts) == 1:
        return parts[0]

    def rows(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts])

    def items(name: str) -> list[Any]:
        return [item for part in parts for item in getattr(part, name)]

    def number(name: str) -> int:
        return sum(getattr(part, name) for part in parts)

    return StepBatch(
        prompts=items("prompts"),
        rollouts=concatenate([part.rollouts for part in parts]),
        texts=items("texts"),
        rewards=rows("rewards"),
        total=rows("total"),
        verdicts=items("verdicts"),
        lengths=rows("lengths"),
        drawn=number("drawn") if drawn is None else drawn,
        unscored=number("unscored"),
        kinds=sum((part.kinds for part in parts), Counter()),
        troubles=items("troubles"),
        accuracy=rows("accuracy"),
        sampled=rows("sampled"),
        easy=number("easy"),
        hard=number("hard"),
        past=rows("past"),
        function_kinds=items("function_kinds"),
        tallies=joined([part.tallies for part in parts]),
    )


def statistics(batch: StepBatch) -> dict[str, float]:
    """What a step's responses look like, in the field's names."""
    total, lengths = batch.total, batch.rollouts.lengths.to(torch.float64)
    verdicts = {
        f"verdict/{kind}": n / batch.kinds.total() for kind, n in sorted(batch.kinds.items())
    }
    verdicts["verdict/unscored"] = float(batch.unscored)
    for tally in batch.tallies:
        verdicts |= tally.metrics()
    drawn = {
        "groups/drawn": float(batch.drawn),
        "groups/kept": float(len(batch.prompts)),
        "groups/too_easy": batch.easy / batch.drawn,
        "groups/too_hard": batch.hard / batch.drawn,
    }
    if len(batch.sampled):
        drawn["accuracy/mean"] = float(batch.sampled.clamp(0, 1).mean())
    if len(total) == 0:
        return drawn | verdicts
    low, high = _extremes(batch, total)
    return {
        "reward/mean": float(total.mean()),
        "reward/std": float(total.std(correction=0)),
        "completions/mean_length": float(lengths.mean()),
        "completions/min_length": float(lengths.min()),
        "completions/max_length": float(lengths.max()),
        "completions/clipped_ratio": sum(f == "length" for f in batch.rollouts.finish) / len(total),
        "groups/informative": float((high > low).double().mean()),
        "groups/seen_before": float((batch.past[:, 1] > 0).double().mean()),
        **_support_sizes(batch.rollouts),
        **({} if batch.rollouts.drafts is None else batch.rollouts.drafts.metrics()),
        **drawn,
        **verdicts,
    }


def _support_sizes(rollouts: Rollouts) -> dict[str, float]:
    """Of truncated draws: how many tokens each could have been, and how often it was the only one."""
    if rollouts.support is None:
        return {}
    sizes = rollouts.support.sizes.double()
    return {
        "support/mean_size": float(sizes.mean()),
        "support/single": float((sizes == 1).double().mean()),
    }


def write_rollouts(
    folder: Path, step: int, batch: StepBatch, credit: Credit, shown: list[str]
) -> None:
    """`step-N.parquet`, a row per response, whole or not at all; `shown`: prompts as read."""
    import pyarrow as pa

    rollouts, lengths = batch.rollouts, batch.rollouts.lengths.tolist()
    sums = torch.stack([x.sum() for x in rollouts.logprobs.cpu().split(lengths)]).tolist()
    starts = pa.array([0, *itertools.accumulate(lengths)], pa.int32())
    group = rollouts.prompt.tolist()
    weight, coefficient = credit.weight, credit.coefficient
    if credit.per_token:  # their mean over the response
        weight, coefficient = (_mean_of_tokens(x, credit.lengths) for x in (weight, coefficient))
    table = pa.table(
        {
            "prompt_id": [batch.prompts[g].id for g in group],
            "prompt": [batch.prompts[g].text for g in group],
            "model_input": [shown[g] for g in group],
            "response": batch.texts,
            "tokens": pa.ListArray.from_arrays(starts, pa.array(rollouts.tokens.cpu().numpy())),
            "length": lengths,
            "finish": list(rollouts.finish),
            "reward": batch.total.tolist(),
            "verdict": batch.verdicts,
            "group": group,
            "level": [batch.prompts[g].level for g in group],
            "advantage": credit.advantage.tolist(),
            "weight": weight.tolist(),
            "coefficient": coefficient.tolist(),
            "logprob_sum": sums,
            "accuracy": batch.success.tolist(),
            "past_successes": batch.past[:, 0].tolist(),
            "past_attempts": batch.past[:, 1].tolist(),
            "past_age": batch.past[:, 2].tolist(),
            **_by_function(batch),
        }
    )
    write_table(folder, step, table)


def _mean_of_tokens(values: Tensor, lengths: Tensor) -> Tensor:
    """[B] of values [N] in row order; 0 for a response without tokens."""
    return torch.stack([row.sum() / max(len(row), 1) for row in values.split(lengths.tolist())])


def _by_function(batch: StepBatch) -> dict[str, list[Any]]:
    """Columns `rewards/NAME` and `rewards/NAME/verdict` of each reward function."""
    columns: dict[str, list[Any]] = {}
    for k, tally in enumerate(batch.tallies):
        columns[f"rewards/{tally.label}"] = batch.rewards[:, k].tolist()
        columns[f"rewards/{tally.label}/verdict"] = [kinds[k] for kinds in batch.function_kinds]
    return columns

"""Evaluate a policy on a task's held-out prompts: n samples each, and one greedy answer.

A judge says of every response how right it is: the task's verifier, or in a run whoever judges its
training (train's `Scorer`). Every response comes back with its verdict, so that a score can be read
as well as believed. Not here: the papers' benchmarks and protocols (`suite`), and how rewards shape
a training step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from equipoise import policy as models
from equipoise.evaluate import metrics
from equipoise.evaluate.vote import candidates
from equipoise.rollout import Sampler, SamplingParams
from equipoise.tasks import Prompt, Task

# evaluations draw with their own seed, the same at every step: differences are the policy's
SEED = 20_240_517


@dataclass(frozen=True, slots=True)
class Judged:
    """What a judge says of one response.

    verdict: the kind of a verdict, or another word where the judge gave a number
    answer: what was read in the response
    accuracy: from 0 to 1 where the judge gave a number; None leaves it to the verdict
    reward: what training would pay for it, before any shaping by length; None where nothing is paid
    trouble: prompt, function, verdict and reason, where judging itself went wrong
    """

    verdict: str
    answer: str | None = None
    accuracy: float | None = None
    reward: float | None = None
    trouble: Mapping[str, str] | None = None

    @property
    def outcome(self) -> float:
        return float(self.verdict == "correct") if self.accuracy is None else self.accuracy


class Judge(Protocol):
    """`name` is what a result says it was judged by."""

    @property
    def name(self) -> str: ...

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Judged]:
        """One of each response; those to one prompt stand together."""
        ...


class TaskVerifier:
    """The task's own verifier: right or wrong, and no rewards."""

    name = "task"

    def __init__(self, task: Task) -> None:
        self.task = task

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Judged]:
        # All are asked before any is waited for: a verifier may run in other processes.
        asked = list(map(self.task.grade, prompts, responses))
        verdicts = [v.result() if isinstance(v, Future) else v for v in asked]
        return [Judged(verdict.kind, verdict.answer) for verdict in verdicts]


@dataclass(frozen=True, slots=True)
class Graded:
    """One response to a held-out prompt, `length` tokens long, and what the judge said of it."""

    response: str
    length: int
    judged: Judged

    @property
    def verdict(self) -> str:
        return self.judged.verdict

    @property
    def answer(self) -> str | None:
        return self.judged.answer

    @property
    def outcome(self) -> float:
        return self.judged.outcome

    @property
    def right(self) -> bool:
        return self.outcome > metrics.RIGHT


@dataclass(frozen=True)
class Evaluation:
    """`metrics` as in eval.jsonl; `sampled[i]`: the n responses to prompt i; `greedy[i]`: one."""

    metrics: dict[str, Any]
    prompts: Sequence[Prompt]
    sampled: list[list[Graded]]
    greedy: list[Graded]

    def rows(self) -> list[dict[str, Any]]:
        """A row per response, for a table; `sample` is -1 for the greedy one."""
        rows = []
        for answered in _by_prompt(self.prompts, self.sampled, self.greedy):
            for sample, graded in enumerate(answered.sampled):
                rows.append(_row(answered.prompt, sample, graded))
            if answered.greedy is not None:
                rows.append(_row(answered.prompt, -1, answered.greedy))
        return rows

    def troubles(self) -> list[Mapping[str, str]]:
        """Of responses that could not be judged."""
        every = [*itertools.chain.from_iterable(self.sampled), *self.greedy]
        return [graded.judged.trouble for graded in every if graded.judged.trouble is not None]


@dataclass(frozen=True, slots=True)
class Answered:
    """One held-out prompt with its n responses, and its greedy one where there is one."""

    prompt: Prompt
    sampled: list[Graded]
    greedy: Graded | None

    @property
    def outcomes(self) -> list[float]:
        return [graded.outcome for graded in self.sampled]

    @property
    def answers(self) -> list[str | None]:
        return [graded.answer for graded in self.sampled]


def _by_prompt(
    prompts: Sequence[Prompt], sampled: Sequence[list[Graded]], greedy: Sequence[Graded]
) -> list[Answered]:
    once: Sequence[Graded | None] = greedy or [None] * len(prompts)
    return [Answered(*parts) for parts in zip(prompts, sampled, once, strict=True)]


def _row(prompt: Prompt, sample: int, graded: Graded) -> dict[str, Any]:
    return {
        "prompt_id": prompt.id,
        "prompt": prompt.text,
        "reference": prompt.answer,
        "level": prompt.level,
        "sample": sample,
        "response": graded.response,
        "length": graded.length,
        "verdict": graded.verdict,
        "answer": graded.answer,
        "accuracy": graded.outcome,
        "reward": graded.judged.reward,
    }


def evaluate(
    policy: models.Policy,
    sampler: Sampler,
    task: Task,
    prompts: Sequence[Prompt],
    ids: Sequence[Sequence[int]],
    *,
    samples: int,
    temperature: float,
    greedy: bool,
    max_tokens: int,
    stop: tuple[str, ...] = (),
    seed: int = SEED,
    judge: Judge | None = None,
    share: Callable[[Sequence[Any]], Sequence[Any]] = lambda items: items,
    gather: Callable[[Any], list[Any]] = lambda value: [value],
) -> Evaluation:
    """acc@n, best@n, pass@k, maj@n, greedy, lengths, with intervals; acc@n and greedy by level.

    `ids` are the encoded prompts. `judge` None is the task's verifier. `share` and `gather` split
    the prompts over processes and put the answers together.
    """
    judge = TaskVerifier(task) if judge is None else judge
    if not prompts:
        raise ValueError(f"task {task.name} has no held-out prompts to evaluate on")
    mine = share(range(len(prompts)))
    my_prompts = [prompts[i] for i in mine]
    my_ids = [ids[i] for i in mine]

    def answer(n: int, temperature: float) -> list[list[Graded]]:
        """The n responses to each prompt, of all ranks."""
        found: list[list[Graded]] = []
        if my_prompts:  # there may be more processes than prompts
            params = SamplingParams(
                temperature=temperature, max_tokens=max_tokens, stop=stop, seed=seed
            )
            rollouts = sampler.sample(my_ids, n, params, keys=[prompt.id for prompt in my_prompts])
            texts = models.decode(policy, rollouts.tokens, rollouts.lengths)
            found = _graded(judge, my_prompts, texts, rollouts.lengths.tolist())
        of_all_ranks = gather(found)
        return list(itertools.chain.from_iterable(of_all_ranks))

    sampled = answer(samples, temperature)
    once = [only for (only,) in answer(1, 0.0)] if greedy else []
    results = _metrics(_by_prompt(prompts, sampled, once), samples) | {"judge": judge.name}
    return Evaluation(results, prompts, sampled, once)


def _graded(
    judge: Judge, prompts: Sequence[Prompt], texts: Sequence[str], lengths: Sequence[int]
) -> list[list[Graded]]:
    """The n responses to each prompt, one prompt after the other, with what the judge says."""
    n = len(texts) // len(prompts)
    judged = judge.judge([prompts[i // n] for i in range(len(texts))], texts)
    graded = [Graded(*parts) for parts in zip(texts, lengths, judged, strict=True)]
    return [graded[n * i : n * (i + 1)] for i in range(len(prompts))]


def _metrics(answered: Sequence[Answered], samples: int) -> dict[str, Any]:
    outcomes = [prompt.outcomes for prompt in answered]
    found = {f"acc@{samples}": metrics.acc(outcomes), f"best@{samples}": metrics.best(outcomes)}
    k = 2
    while k < samples:
        found[f"pass@{k}"] = metrics.mean_pass_at_k(outcomes, k)
        k *= 2
    sampled = [graded for prompt in answered for graded in prompt.sampled]
    # a number has no answer to vote for
    if all(graded.judged.accuracy is None for graded in sampled):
        votes = [candidates(prompt.answers) for prompt in answered]
        found[f"maj@{samples}"] = metrics.majority(votes, outcomes)
    greedy = [[prompt.greedy.outcome] for prompt in answered if prompt.greedy is not None]
    if greedy:
        found["greedy"] = metrics.acc(greedy)

    lengths = [graded.length for graded in sampled]
    result: dict[str, Any] = {name: estimate.value for name, estimate in found.items()}
    result |= _mean_reward(sampled)
    result["length"] = sum(lengths) / len(lengths)
    result["length_gap"] = metrics.length_gap(lengths, [graded.outcome for graded in sampled])
    result["interval"] = {name: [estimate.low, estimate.high] for name, estimate in found.items()}
    result["by_level"] = _by_level(answered, samples)
    return result


def _mean_reward(sampled: Sequence[Graded]) -> dict[str, float]:
    """Of the responses that earn one: a masked verdict has no reward. Nothing where none has."""
    paid = [graded.judged.reward for graded in sampled if graded.judged.reward is not None]
    known = [reward for reward in paid if not math.isnan(reward)]
    return {"reward": sum(known) / len(known)} if known else {}


def _by_level(answered: Sequence[Answered], samples: int) -> dict[str, dict[str, float]]:
    levels: dict[str, list[Answered]] = {}
    for one in answered:
        if one.prompt.level is not None:
            levels.setdefault(one.prompt.level, []).append(one)
    table: dict[str, dict[str, float]] = {}
    for level, members in sorted(levels.items()):
        accuracy = metrics.acc([prompt.outcomes for prompt in members])
        table[level] = {f"acc@{samples}": accuracy.value}
        greedy = [prompt.greedy.outcome for prompt in members if prompt.greedy is not None]
        if greedy:
            table[level]["greedy"] = sum(greedy) / len(greedy)
    return table


def judged_by(name: str) -> str:
    """A judge in words, from its name."""
    return "the task's verifier" if name == TaskVerifier.name else name


def line(result: dict[str, Any]) -> str:
    """An evaluation in one line; with the reward where it may differ from the accuracy."""
    parts = []
    for name in result:
        if name == "greedy" or name.startswith(("acc@", "best@", "maj@")):
            low, high = result["interval"][name]
            parts.append(f"{name} {result[name]:.3f} [{low:.3f}, {high:.3f}]")
    if "reward" in result and result["judge"] != TaskVerifier.name:
        parts.append(f"reward {result['reward']:.3f}")
    return "  ".join(parts)

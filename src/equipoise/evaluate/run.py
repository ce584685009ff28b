"""Evaluate a policy on a task's held-out prompts: n samples each, and one greedy answer.

Every response comes back with its verdict, so that a score can be read as well as believed. Not
here: the papers' benchmarks and protocols (`suite`), and how rewards shape a training step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from equipoise import policy as models
from equipoise.evaluate import metrics
from equipoise.evaluate.vote import candidates
from equipoise.rollout import Sampler, SamplingParams
from equipoise.tasks import Prompt, Task

# evaluations draw with their own seed, the same at every step: differences are the policy's
SEED = 20_240_517


@dataclass(frozen=True, slots=True)
class Graded:
    """One response to a held-out prompt. `answer` is what the verifier read in it."""

    response: str
    length: int
    verdict: str
    answer: str | None

    @property
    def outcome(self) -> float:
        return float(self.verdict == "correct")


@dataclass(frozen=True)
class Evaluation:
    """`metrics` as eval.jsonl has them; `sampled[i]` the n responses to prompt i;
    `greedy[i]` its greedy one.
    """

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

    @property
    def lengths(self) -> list[int]:
        return [graded.length for graded in self.sampled]


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
    }


def _alone(items: Sequence[Any]) -> Sequence[Any]:
    return items


def _only(value: Any) -> list[Any]:
    return [value]


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
    share: Callable[[Sequence[Any]], Sequence[Any]] = _alone,
    gather: Callable[[Any], list[Any]] = _only,
) -> Evaluation:
    """acc@n, best@n, pass@k, maj@n, greedy, lengths;
    overall with intervals and acc@n, greedy by level.

    `ids` are the encoded prompts. `share` and `gather` split the prompts over processes and put the
    answers together.
    """
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
            found = _graded(task, my_prompts, texts, rollouts.lengths.tolist())
        of_all_ranks = gather(found)
        return list(itertools.chain.from_iterable(of_all_ranks))

    sampled = answer(samples, temperature)
    once: list[Graded] = []
    if greedy:
        for (only,) in answer(1, 0.0):
            once.append(only)
    results = _metrics(_by_prompt(prompts, sampled, once), samples)
    return Evaluation(results, prompts, sampled, once)


def _graded(
    task: Task, prompts: Sequence[Prompt], texts: Sequence[str], lengths: Sequence[int]
) -> list[list[Graded]]:
    """The n responses to each prompt, which lie one prompt after the other, with their verdicts."""
    n = len(texts) // len(prompts)
    # All are asked before any is waited for: a verifier may run in other processes.
    asked = [task.grade(prompts[i // n], text) for i, text in enumerate(texts)]
    found: list[list[Graded]] = [[] for _ in prompts]
    for i, verdict in enumerate(asked):
        if isinstance(verdict, Future):
            verdict = verdict.result()
        found[i // n].append(Graded(texts[i], lengths[i], verdict.kind, verdict.answer))
    return found


def _metrics(answered: Sequence[Answered], samples: int) -> dict[str, Any]:
    outcomes = [prompt.outcomes for prompt in answered]
    found = {f"acc@{samples}": metrics.acc(outcomes), f"best@{samples}": metrics.best(outcomes)}
    k = 2
    while k < samples:
        found[f"pass@{k}"] = metrics.mean_pass_at_k(outcomes, k)
        k *= 2
    votes = [candidates(prompt.answers) for prompt in answered]
    found[f"maj@{samples}"] = metrics.majority(votes, outcomes)
    greedy = [prompt.greedy.outcome for prompt in answered if prompt.greedy is not None]
    if greedy:
        found["greedy"] = metrics.wilson(int(sum(greedy)), len(greedy))

    lengths = [length for prompt in answered for length in prompt.lengths]
    flat = [outcome for row in outcomes for outcome in row]
    result: dict[str, Any] = {name: estimate.value for name, estimate in found.items()}
    result["length"] = sum(lengths) / len(lengths)
    result["length_gap"] = metrics.length_gap(lengths, flat)
    result["interval"] = {name: [estimate.low, estimate.high] for name, estimate in found.items()}
    result["by_level"] = _by_level(answered, samples)
    return result


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


def line(result: dict[str, Any]) -> str:
    """An evaluation in one line for the terminal."""
    parts = []
    for name in result:
        if name == "greedy" or name.startswith(("acc@", "best@", "maj@")):
            low, high = result["interval"][name]
            parts.append(f"{name} {result[name]:.3f} [{low:.3f}, {high:.3f}]")
    return "  ".join(parts)

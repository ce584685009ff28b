"""Evaluate a policy on a task's held-out prompts: n samples each, and one greedy answer.

Every response comes back with its verdict, so that a score can be read as well as believed. Not here: the papers'
benchmarks and protocols (`suite`), and how rewards shape a training step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from equipoise import policy as models
from equipoise.evaluate import metrics
from equipoise.evaluate.vote import candidates
from equipoise.rollout import Sampler, SamplingParams
from equipoise.tasks import Prompt, Task

SEED = 20_240_517  # evaluations draw with their own seed, the same at every step: differences are the policy's


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
    """`metrics` as eval.jsonl has them; `sampled[i]` the n responses to prompt i; `greedy[i]` its greedy one."""

    metrics: dict[str, Any]
    prompts: Sequence[Prompt]
    sampled: list[list[Graded]]
    greedy: list[Graded]

    def rows(self) -> list[dict[str, Any]]:
        """A row per response, for a table; `sample` is -1 for the greedy one."""
        rows = []
        for i, prompt in enumerate(self.prompts):
            numbered = list(enumerate(self.sampled[i]))
            if self.greedy:
                numbered.append((-1, self.greedy[i]))
            rows += [_row(prompt, sample, graded) for sample, graded in numbered]
        return rows


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
    """acc@n, best@n, pass@k, maj@n, greedy, lengths; overall with intervals and acc@n, greedy by level.

    `ids` are the encoded prompts. `share` and `gather` split the prompts over processes and put the answers together.
    """
    if not prompts:
        raise ValueError(f"task {task.name} has no held-out prompts to evaluate on")
    mine = share(range(len(prompts)))
    chosen = [prompts[i] for i in mine]

    def answer(n: int, temperature: float) -> list[list[Graded]]:
        """The n responses to each prompt, of all ranks."""
        if not chosen:  # more processes than prompts
            return [row for part in gather([]) for row in part]
        params = SamplingParams(temperature=temperature, max_tokens=max_tokens, stop=stop, seed=seed)
        rollouts = sampler.sample([ids[i] for i in mine], n, params, keys=[p.id for p in chosen])
        texts = models.decode(policy, rollouts.tokens, rollouts.lengths)
        graded = _graded(task, [p for p in chosen for _ in range(n)], texts, rollouts.lengths.tolist())
        parts = gather([graded[k : k + n] for k in range(0, len(graded), n)])
        return [row for part in parts for row in part]

    sampled = answer(samples, temperature)
    once = [row[0] for row in answer(1, 0.0)] if greedy else []
    return Evaluation(_metrics(prompts, sampled, once, samples), prompts, sampled, once)


def _graded(task: Task, prompts: Sequence[Prompt], texts: Sequence[str], lengths: Sequence[int]) -> list[Graded]:
    asked = [task.grade(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
    verdicts = [v.result() if isinstance(v, Future) else v for v in asked]
    return [
        Graded(text, length, verdict.kind, verdict.answer)
        for text, length, verdict in zip(texts, lengths, verdicts, strict=True)
    ]


def _metrics(
    prompts: Sequence[Prompt], sampled: list[list[Graded]], greedy: list[Graded], samples: int
) -> dict[str, Any]:
    outcomes = [[graded.outcome for graded in row] for row in sampled]
    answers = [[graded.answer for graded in row] for row in sampled]
    lengths = [graded.length for row in sampled for graded in row]
    once = [graded.outcome for graded in greedy]
    found = {f"acc@{samples}": metrics.acc(outcomes), f"best@{samples}": metrics.best(outcomes)}
    k = 2
    while k < samples:
        found[f"pass@{k}"] = metrics.mean_pass_at_k(outcomes, k)
        k *= 2
    found[f"maj@{samples}"] = metrics.majority(list(map(candidates, answers)), outcomes)
    if once:
        found["greedy"] = metrics.wilson(int(sum(once)), len(once))
    result: dict[str, Any] = {name: e.value for name, e in found.items()}
    result["length"] = sum(lengths) / len(lengths)
    result["length_gap"] = metrics.length_gap(lengths, [x for row in outcomes for x in row])
    result["interval"] = {name: [e.low, e.high] for name, e in found.items()}
    result["by_level"] = _by_level(prompts, outcomes, once, samples)
    return result


def _by_level(
    prompts: Sequence[Prompt], outcomes: list[list[float]], once: list[float], samples: int
) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = {}
    for level in sorted({p.level for p in prompts if p.level is not None}):
        places = [i for i, p in enumerate(prompts) if p.level == level]
        table[level] = {f"acc@{samples}": metrics.acc([outcomes[i] for i in places]).value}
        if once:
            table[level]["greedy"] = sum(once[i] for i in places) / len(places)
    return table


def line(result: dict[str, Any]) -> str:
    """An evaluation in one line for the terminal."""
    shown = [k for k in result if k.startswith(("acc@", "best@", "maj@")) or k == "greedy"]
    interval = result["interval"]
    return "  ".join(f"{k} {result[k]:.3f} [{interval[k][0]:.3f}, {interval[k][1]:.3f}]" for k in shown)

"""Evaluate a policy on a task's held-out prompts: n samples each, and one greedy answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from equipoise import policy as models
from equipoise.evaluate import metrics
from equipoise.evaluate.vote import candidates
from equipoise.rollout import Sampler, SamplingParams
from equipoise.tasks import Prompt, Task

SEED = 20_240_517  # evaluations draw with their own seed, the same at every step: differences are the policy's


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
    share: Callable[[Sequence[Any]], Sequence[Any]] = _alone,
    gather: Callable[[Any], list[Any]] = _only,
) -> dict[str, Any]:
    """acc@n, best@n, pass@k, maj@n, greedy, lengths; overall with intervals and acc@n, greedy by level.

    `ids` are the encoded prompts. `share` and `gather` split the prompts over processes and put the answers together.
    """
    if not prompts:
        raise ValueError(f"task {task.name} has no held-out prompts to evaluate on")
    mine = share(range(len(prompts)))

    def answer(n: int, temperature: float) -> list[tuple[list[float], list[str | None], list[int]]]:
        """Per prompt of all ranks: outcomes, final answers and lengths of its n responses."""
        params = SamplingParams(temperature=temperature, max_tokens=max_tokens, stop=stop, seed=SEED)
        chosen = [prompts[i] for i in mine]
        if not chosen:  # more processes than prompts
            return [row for part in gather([]) for row in part]
        rollouts = sampler.sample([ids[i] for i in mine], n, params, keys=[p.id for p in chosen])
        texts, lengths = models.decode(policy, rollouts.tokens, rollouts.lengths), rollouts.lengths.tolist()
        asked = [task.grade(chosen[i // n], text) for i, text in enumerate(texts)]
        graded = [v.result() if isinstance(v, Future) else v for v in asked]
        out = []
        for k in range(len(chosen)):
            verdicts = graded[k * n : (k + 1) * n]
            right = [float(v.kind == "correct") for v in verdicts]
            out.append((right, [v.answer for v in verdicts], lengths[k * n : (k + 1) * n]))
        return [row for part in gather(out) for row in part]

    sampled = answer(samples, temperature)
    outcomes, answers = [row[0] for row in sampled], [row[1] for row in sampled]
    lengths = [t for row in sampled for t in row[2]]
    found = {f"acc@{samples}": metrics.acc(outcomes), f"best@{samples}": metrics.best(outcomes)}
    k = 2
    while k < samples:
        found[f"pass@{k}"] = metrics.mean_pass_at_k(outcomes, k)
        k *= 2
    found[f"maj@{samples}"] = metrics.majority(list(map(candidates, answers)), outcomes)
    once = [row[0][0] for row in answer(1, 0.0)] if greedy else []
    if greedy:
        found["greedy"] = metrics.wilson(int(sum(once)), len(once))
    result: dict[str, Any] = {name: e.value for name, e in found.items()}
    result["length"] = sum(lengths) / len(lengths)
    result["length_gap"] = metrics.length_gap(lengths, [x for row in outcomes for x in row])
    result["interval"] = {name: [e.low, e.high] for name, e in found.items()}
    levels = sorted({p.level for p in prompts if p.level is not None})
    result["by_level"] = {
        level: {
            f"acc@{samples}": metrics.acc(
                [o for o, p in zip(outcomes, prompts, strict=True) if p.level == level]
            ).value,
            **(
                {"greedy": _mean([x for x, p in zip(once, prompts, strict=True) if p.level == level])} if greedy else {}
            ),
        }
        for level in levels
    }
    return result


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def line(result: dict[str, Any]) -> str:
    """An evaluation in one line for the terminal."""
    shown = [k for k in result if k.startswith(("acc@", "best@", "maj@")) or k == "greedy"]
    interval = result["interval"]
    return "  ".join(f"{k} {result[k]:.3f} [{interval[k][0]:.3f}, {interval[k][1]:.3f}]" for k in shown)

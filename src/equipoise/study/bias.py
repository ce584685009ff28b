"""How far each advantage is from the truth: every prompt is sampled twice (HA-DW, Appendix E).

Groups of G responses give the estimate, as they would in training; further, independent responses
to the same prompt give its success rate p, and with it the true advantage A = r − p. What is
measured is the advantage alone. What it does to the gradient of a prompt is in `equipoise.theory`
(`gradient_gain`, `reweighted_gain`); aggregation, clipping and the order of updates play no part. A
response is right or not: partial credit counts as not right.

A prompt's difficulty and its truth come from different halves of the further responses, each half
serving as either in turn. With one and the same number for both, a prompt would be put among the
hard ones for a low p by chance, and the same chance would then pass for a bias.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise import policy as models
from equipoise import theory
from equipoise.audit.bootstrap import Estimate, intervals, resampled
from equipoise.objective import Objective
from equipoise.policy.chat import AS_TEXT, Chat
from equipoise.rollout import Sampler, SamplingParams
from equipoise.tasks import Prompt, Task, TaskError
from equipoise.train.batch import encode_prompt
from equipoise.verifiers.verdict import NO_SCORE

Floats = NDArray[np.float64]
OPTIONS: dict[str, dict[str, Any]] = {
    "r − p̂": {"advantage": "dr_grpo"},
    "rloo": {"advantage": "rloo"},
    "grpo": {"advantage": "grpo"},
    "opo": {"advantage": "opo"},
    "maxrl": {"advantage": "maxrl"},
    "r − p̂, hadw": {"advantage": "dr_grpo", "difficulty": "hadw"},
    "grpo, hadw": {"advantage": "grpo", "difficulty": "hadw"},
    "r − p̂, hadw_history": {"advantage": "dr_grpo", "difficulty": "hadw_history"},
    "r − p̂, debias": {"advantage": "dr_grpo", "difficulty": "debias"},
}
PLAIN = "r − p̂"
# of the difficulty bins; a rate on an edge belongs above it
EDGES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
MEASURES = ("right", "wrong", "scale_free")
SEED = 20_260_113  # of the draws, other than that of training and of evaluation
RESAMPLES = 2000
AT_ONCE = 4096  # responses sampled together
SEEN = 100  # items of the training stream looked at per prompt wanted


@dataclass(frozen=True)
class Outcomes:
    """Which responses were right: `groups` [P, K, G] for estimates, `truth` [P, M] for rates."""

    groups: NDArray[np.bool_]
    lengths: NDArray[np.int64]  # [P, K, G] tokens
    truth: NDArray[np.bool_]
    unscored: int  # prompts left out because a verdict said nothing of a response
    # how many responses got each, of all prompts
    verdicts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Bin:
    """The prompts whose success rate lies in [low, high)."""

    low: float
    high: float
    prompts: int  # with an informative group; a prompt whose two halves disagree is in two bins
    groups: float  # informative ones, half of them for each half of the further responses
    success: float | None  # mean p of the prompts, weighed by their informative groups
    measured: Estimate  # E[p̂|S] − p
    closed_form: float | None  # theory.baseline_bias at the measured p, weighed alike


@dataclass(frozen=True)
class BiasedShare:
    """Groups with one success (failure) whose prompt's rate is below (above) the group's."""

    groups: int
    share: Estimate


@dataclass(frozen=True)
class Result:
    """All of it; `options[name][measure]` has one estimate per bin.

    right, wrong   mean of Â − A over informative groups, for right and for wrong responses
    scale_free     b − p, with b the baseline that the mean advantages of right and wrong responses amount to
    """

    prompts: int
    unscored: int
    verdicts: dict[str, int]
    group: int
    groups: int  # per prompt
    samples: int
    success: float
    informative: float
    bins: list[Bin]
    options: dict[str, dict[str, list[Estimate]]]
    one_success: BiasedShare
    one_failure: BiasedShare


def stream(task: Task, count: int) -> list[Prompt]:
    """The first `count` different prompts of the training stream: what the trainer would see."""
    found: dict[str, Prompt] = {}
    for i in range(SEEN * count):
        prompt = task.prompt(i)
        found.setdefault(prompt.id, prompt)
        if len(found) == count:
            return list(found.values())
    raise TaskError(
        f"task {task.name} has only {len(found)} different prompts to train on (held-out ones do not count), "
        f"{count} were asked for; --prompts must be at most {len(found)}"
    )


def sample(
    policy: models.Policy,
    sampler: Sampler,
    task: Task,
    prompts: Sequence[Prompt],
    *,
    group: int,
    groups: int,
    samples: int,
    temperature: float = 1.0,
    max_tokens: int = 0,
    chat: Chat = AS_TEXT,
    progress: Callable[[int], None] = lambda prompts: None,
) -> Outcomes:
    """Sample every prompt group·groups + samples times and grade all of it by the task."""
    n = group * groups + samples
    params = SamplingParams(
        temperature=temperature, max_tokens=max_tokens or task.max_tokens, stop=task.stop, seed=SEED
    )
    right, lengths = [], []
    verdicts: Counter[str] = Counter()
    at_once = max(AT_ONCE // n, 1)
    for start in range(0, len(prompts), at_once):
        some = prompts[start : start + at_once]
        ids = [encode_prompt(policy, prompt, chat) for prompt in some]
        rollouts = sampler.sample(ids, n, params, keys=[prompt.id for prompt in some])
        texts = models.decode(policy, rollouts.tokens, rollouts.lengths)
        asked = [task.grade(some[i // n], text) for i, text in enumerate(texts)]
        kinds = [(v.result() if isinstance(v, Future) else v).kind for v in asked]
        verdicts.update(kinds)
        known = [np.nan if kind in NO_SCORE else float(kind == "correct") for kind in kinds]
        right.append(np.reshape(known, (len(some), n)))
        lengths.append(rollouts.lengths.cpu().numpy().reshape(len(some), n))
        progress(start + len(some))
    outcome, tokens = np.concatenate(right), np.concatenate(lengths)
    scored = ~np.isnan(outcome).any(1)
    if not scored.any():
        raise TaskError(
            f"task {task.name}: every prompt has a response its verifier could say nothing of"
        )
    shape = (int(scored.sum()), groups, group)
    first = group * groups
    return Outcomes(
        outcome[scored, :first].reshape(shape) > 0,
        tokens[scored, :first].reshape(shape),
        outcome[scored, first:] > 0,
        int((~scored).sum()),
        dict(verdicts.most_common()),
    )


def measure(outcomes: Outcomes) -> Result:
    """Every option's distance from the truth in every bin, with 95 % intervals over prompts."""
    P, K, G = outcomes.groups.shape
    rate = outcomes.groups.mean(-1)
    tables = {name: _sums(outcomes, choices) for name, choices in OPTIONS.items()}
    # [P, options, bins, columns]: all are resampled alike
    together = np.stack(list(tables.values()), 1)
    drawn = resampled(together.reshape(P, -1), RESAMPLES, seed=0).reshape(
        RESAMPLES, *together.shape[1:]
    )
    options = {name: _estimates(tables[name], drawn[:, i]) for i, name in enumerate(OPTIONS)}
    plain = tables[PLAIN]
    bins = [_bin(plain, k, options[PLAIN]["scale_free"][k]) for k in range(len(EDGES) - 1)]
    p = outcomes.truth.mean(1)
    return Result(
        prompts=P,
        unscored=outcomes.unscored,
        verdicts=outcomes.verdicts,
        group=G,
        groups=K,
        samples=outcomes.truth.shape[1],
        success=float(rate.mean()),
        informative=float(((rate > 0) & (rate < 1)).mean()),
        bins=bins,
        options=options,
        one_success=_share(rate == 1 / G, p < 1 / G),
        one_failure=_share(rate == 1 - 1 / G, p > 1 - 1 / G),
    )


COLUMNS = ("groups", "right", "wrong", "p", "closed_form")


def _sums(outcomes: Outcomes, choices: dict[str, Any]) -> Floats:
    """[P, bins, columns]: sums over a prompt's informative groups, halved: both halves take a turn.

    right and wrong: the mean advantage of the group's right responses,
    and minus that of its wrong ones.
    """
    P, K, G = outcomes.groups.shape
    rate = outcomes.groups.mean(-1)
    informative = (rate > 0) & (rate < 1)
    table = np.zeros((P, len(EDGES) - 1, len(COLUMNS)))
    for turn in (0, 1):
        known, truth = outcomes.truth[:, turn::2].mean(1), outcomes.truth[:, 1 - turn :: 2].mean(1)
        right, wrong = _advantages(outcomes, choices, known)
        closed = np.asarray(theory.baseline_bias(truth, G))
        ones = np.ones((P, K))
        per_group = np.stack(
            [ones, right, wrong, truth[:, None] * ones, closed[:, None] * ones], -1
        )
        total = (per_group * informative[:, :, None]).sum(1) / 2
        where = np.searchsorted(EDGES[1:-1], known, side="right")
        table[np.arange(P), where] += total
    return table


def _advantages(
    outcomes: Outcomes, choices: dict[str, Any], known: Floats
) -> tuple[Floats, Floats]:
    """[P, K] the mean advantage of right responses, and minus that of wrong ones; else 0.

    All groups are one batch: without earlier ones, HA-DW's anchor is the mean success rate.
    `known` is the history.
    """
    P, K, G = outcomes.groups.shape
    r = torch.tensor(outcomes.groups.reshape(-1), dtype=torch.float64)
    ids = torch.arange(P * K).repeat_interleave(G)
    lengths = torch.tensor(outcomes.lengths.reshape(-1))
    history = torch.tensor(known).repeat_interleave(K * G)
    A = (
        Objective(**choices)
        .assign(r, ids, lengths, history=history)
        .advantage.numpy()
        .reshape(P, K, G)
    )
    number = outcomes.groups.sum(-1)
    right = (A * outcomes.groups).sum(-1) / np.maximum(number, 1)
    wrong = -(A * ~outcomes.groups).sum(-1) / np.maximum(G - number, 1)
    return right, wrong


def _estimates(table: Floats, drawn: Floats) -> dict[str, list[Estimate]]:
    """Every measure in every bin, with the interval that the resamples `drawn` give."""
    bins = table.shape[1]
    values, replicates = _measures(table.sum(0)), _measures(drawn)
    prompts = (table[:, :, 0] > 0).sum(0)
    found: dict[str, list[Estimate]] = {}
    for name in MEASURES:
        numbered = range(bins)
        at = {str(k): values[name][k] for k in numbered}
        spread = {str(k): replicates[name][:, k] for k in numbered}
        named = intervals(at, spread, {str(k): int(prompts[k]) for k in numbered})
        found[name] = [named[str(k)] for k in numbered]
    return found


def _measures(sums: Floats) -> dict[str, Floats]:
    """[..., columns] sums -> the measures; NaN in a bin without informative groups."""
    groups, right, wrong, p, _ = np.moveaxis(sums, -1, 0)
    n = np.where(groups > 0, groups, np.nan)
    scale = np.where(right + wrong > 0, right + wrong, np.nan)
    return {
        "right": (right + p) / n - 1,
        "wrong": (p - wrong) / n,
        "scale_free": wrong / scale - p / n,
    }


def _bin(table: Floats, k: int, measured: Estimate) -> Bin:
    groups, _, _, p, closed = table[:, k].sum(0).tolist()
    mean = (p / groups, closed / groups) if groups else (None, None)
    prompts = int((table[:, k, 0] > 0).sum())
    return Bin(EDGES[k], EDGES[k + 1], prompts, groups, mean[0], measured, mean[1])


def _share(chosen: NDArray[np.bool_], beyond: NDArray[np.bool_]) -> BiasedShare:
    """Of the `chosen` groups [P, K], those of prompts `beyond` [P]."""
    sums = np.stack([chosen.sum(1), chosen.sum(1) * beyond], 1).astype(np.float64)
    drawn = resampled(sums, RESAMPLES, seed=1)
    groups, below = sums.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        value, replicates = np.float64(below) / groups, drawn[:, 1] / drawn[:, 0]
    prompts = int((sums[:, 0] > 0).sum())
    found = intervals(
        {"share": value}, {"share": replicates}, {"share": prompts}, shares=("share",)
    )
    return BiasedShare(int(groups), found["share"])

"""The biases of the data path: what was cut, dropped, lost on resume or never drawn.

truncated               share of responses cut at the limit;
                        truncated_wrong: of those below their group's mean
reward_beyond_limit     by how much the mean reward could differ without the limit. Only bounds: a
                        log does not say how a response would have ended, so the cut ones may all
                        have got the lowest or the highest reward
discarded               share of the sampled groups that were not trained on; filtered: of those
                        with equal rewards; discarded_informative: of the others
kept_reward             mean reward of the trained groups less that of all sampled;
                        kept_length: ratio of mean lengths, less 1
lost                    share of a prompt's visits, one an epoch, that no group was logged for;
                        repeated: visits beyond that, which hide lost ones of the same prompt
missing_steps           share of the steps between the first and the last that have no rows, at the
                        log's own spacing
sampler_distance        mean over tokens of log μ − log π, sampler against policy: −log S where
                        top-p or top-k left a support of mass S, 0 without either

What a log does not hold it cannot tell: each quantity that is missing is refused with a sentence
that says what it needs. Intervals are over prompts (bootstrap.py). Not here: what these biases do
to a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from equipoise.audit.bootstrap import Estimate, intervals, resampled
from equipoise.audit.log import AuditError, Floats, Log
from equipoise.audit.sums import divide

RESAMPLES = 2000
# The shares, each with the column of what it is a share of.
SHARES = {
    "truncated": "responses",
    "truncated_wrong": "wrong",
    "discarded": "groups",
    "filtered": "equal",
    "discarded_informative": "mixed",
}
NEEDS_KEPT = (
    "the log holds only what was trained on: add the other sampled responses and a column kept "
    "(prime-rl's `all` beside `effective` is read so), or say how many groups were sampled (sampled=N)"
)
NEEDS_REWARDS = (
    "a number of sampled groups does not say what the dropped ones were like: "
    "add their rows, and a column kept"
)
NEEDS_FINISH = "the log does not say which responses were cut: it needs a column finish"
NEEDS_EPOCHS = (
    "a log does not say how often a prompt was due: give epochs=N, each a pass over all prompts"
)
NEEDS_PROMPTS = "after one epoch a prompt that was lost looks like one that never was: give prompts=N, or two epochs"
NEEDS_BOTH = (
    "log-probabilities of both the sampler and the trained policy are needed: columns sampler_logprob and "
    "trainer_logprob, summed over a response's tokens"
)


@dataclass(frozen=True)
class DataPath:
    """Estimates by name, and a sentence for each quantity that the log cannot tell."""

    estimates: dict[str, Estimate] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


class Counts(TypedDict, total=False):
    """What a log cannot tell `data_path`, and the user may know."""

    sampled: int | None
    epochs: int | None
    prompts: int | None


def data_path(
    log: Log,
    *,
    sampled: int | None = None,
    epochs: int | None = None,
    prompts: int | None = None,
    seed: int = 0,
) -> DataPath:
    """What happened to the data of a log before the loss.

    sampled   how many groups were sampled, where the log holds the trained ones alone
    epochs    how often each prompt was due; prompts: how many there were
    """
    found: dict[str, Estimate] = {}
    refused: dict[str, str] = {}
    for estimate in (_truncation, _selection, _support):
        estimate(log, seed, found, refused)
    if log.kept is None and sampled is not None:
        found["discarded"] = _discarded_of(sampled, int(log.group.max()) + 1)
        del refused["discarded"]
        refused |= dict.fromkeys(
            ("filtered", "discarded_informative", "kept_reward", "kept_length"), NEEDS_REWARDS
        )
    _losses(log, epochs, prompts, seed, found, refused)
    return DataPath(found, refused)


Found = dict[str, Estimate]
Refused = dict[str, str]
# the sum of each column; [resamples] of them where prompts are resampled
Totals = dict[str, Floats]


def _truncation(log: Log, seed: int, found: Found, refused: Refused) -> None:
    if log.truncated is None:
        refused |= dict.fromkeys(
            ("truncated", "truncated_wrong", "reward_beyond_limit"), NEEDS_FINISH
        )
        return
    cut = log.truncated.astype(np.float64)
    mean = np.bincount(log.group, log.reward) / np.bincount(log.group)
    wrong = (log.reward < mean[log.group]).astype(np.float64)
    least, most = float(log.reward.min()), float(log.reward.max())
    columns = {
        "responses": np.ones(len(log)),
        "cut": cut,
        "wrong": wrong,
        "cut_wrong": wrong * cut,
        "to_lowest": cut * (least - log.reward),
        "to_highest": cut * (most - log.reward),
    }

    def values(total: Totals) -> dict[str, Floats]:
        responses = total["responses"]
        return {
            "truncated": total["cut"] / responses,
            "truncated_wrong": divide(total["cut_wrong"], total["wrong"]),
            "lowest": total["to_lowest"] / responses,
            "highest": total["to_highest"] / responses,
        }

    ends = _intervals(log, columns, values, seed)
    low, high = ends.pop("lowest"), ends.pop("highest")
    found |= ends
    found["reward_beyond_limit"] = Estimate(None, low.low, high.high)


def _selection(log: Log, seed: int, found: Found, refused: Refused) -> None:
    if log.kept is None:
        names = ("discarded", "filtered", "discarded_informative", "kept_reward", "kept_length")
        refused |= dict.fromkeys(names, NEEDS_KEPT)
        return
    n = np.bincount(log.group)
    # A group counts as trained on where any of its responses does.
    group_kept = np.bincount(log.group, log.kept) > 0
    highest = np.full(len(n), -np.inf)
    lowest = np.full(len(n), np.inf)
    np.maximum.at(highest, log.group, log.reward)
    np.minimum.at(lowest, log.group, log.reward)
    mixed = highest > lowest
    # each response carries its part of the group, so that sums over rows count groups
    share = 1 / n[log.group]
    gone = ~group_kept[log.group]
    informative = mixed[log.group]
    kept = log.kept.astype(np.float64)
    columns = {
        "groups": share,
        "gone": share * gone,
        "equal": share * ~informative,
        "gone_equal": share * (gone & ~informative),
        "mixed": share * informative,
        "gone_mixed": share * (gone & informative),
        "responses": np.ones(len(log)),
        "reward": log.reward,
        "length": log.length,
        "kept": kept,
        "kept_reward": kept * log.reward,
        "kept_length": kept * log.length,
    }

    def values(total: Totals) -> dict[str, Floats]:
        mean_reward = total["reward"] / total["responses"]
        mean_length = total["length"] / total["responses"]
        kept_reward = divide(total["kept_reward"], total["kept"])
        kept_length = divide(total["kept_length"], total["kept"])
        return {
            "discarded": total["gone"] / total["groups"],
            "filtered": divide(total["gone_equal"], total["equal"]),
            "discarded_informative": divide(total["gone_mixed"], total["mixed"]),
            "kept_reward": kept_reward - mean_reward,
            "kept_length": divide(kept_length, mean_length) - 1,
        }

    found |= _intervals(log, columns, values, seed)


def _support(log: Log, seed: int, found: Found, refused: Refused) -> None:
    if log.sampler_distance is None:
        refused["sampler_distance"] = NEEDS_BOTH
        return
    columns = {"tokens": log.length.astype(np.float64), "distance": log.sampler_distance}

    def values(total: Totals) -> dict[str, Floats]:
        return {"sampler_distance": total["distance"] / total["tokens"]}

    found |= _intervals(log, columns, values, seed)


def _losses(
    log: Log, epochs: int | None, prompts: int | None, seed: int, found: Found, refused: Refused
) -> None:
    steps = np.unique(log.step)
    if len(steps) > 2:
        # Runs of ours log their first step, then every k-th.
        if steps[0] == 1 and np.gcd.reduce(steps[1:]) > 1:
            steps[0] = 0
        spacing = int(np.diff(steps).min())
        found["missing_steps"] = Estimate(1 - len(steps) / ((steps[-1] - steps[0]) / spacing + 1))
    if epochs is None or (epochs == 1 and prompts is None):
        sentence = NEEDS_EPOCHS if epochs is None else NEEDS_PROMPTS
        refused |= dict.fromkeys(("lost", "repeated"), sentence)
        return
    # A visit is a group: a prompt that came twice in a step has two,
    # where the log tells groups apart.
    _, first = np.unique(log.group, return_index=True)
    visits = np.bincount(log.prompt[first]).astype(np.float64)
    if prompts is not None and prompts < len(visits):
        raise AuditError(
            f"prompts = {prompts}, and the log has {len(visits)} different ones: it must be at least that"
        )
    on_time = np.minimum(visits, epochs)
    if prompts is not None:
        on_time = np.concatenate([on_time, np.zeros(prompts - len(visits))])
    by_prompt = np.stack([np.ones(len(on_time)), on_time], 1)
    estimate = _lost_of_known if prompts is not None else _lost_of_seen
    value = estimate(by_prompt.sum(0), epochs)
    replicates = estimate(resampled(by_prompt, RESAMPLES, seed), epochs)
    found |= intervals({"lost": value}, {"lost": replicates}, {"lost": len(on_time)})
    beyond = visits - np.minimum(visits, epochs)
    found["repeated"] = Estimate(float(beyond.sum() / visits.sum()))


def _lost_of_known(sums: Floats, epochs: int) -> Floats:
    """sums [..., 2]: of prompts and of their visits on time."""
    return np.asarray(1 - sums[..., 1] / (epochs * sums[..., 0]))


def _lost_of_seen(sums: Floats, epochs: int) -> Floats:
    """From the mean visits of the prompts seen at all: a binomial law without its zeros.

    With q a visit's chance to be logged, the mean is E·q/(1 − (1 − q)^E), which grows with q from 1
    to E. Each visit must be lost alike: prompts that are always lost were never seen, and are not
    counted.
    """
    mean = sums[..., 1] / sums[..., 0]
    low = np.zeros_like(mean)
    high = np.ones_like(mean)
    for _ in range(50):  # bisection of all resamples at once
        q = (low + high) / 2
        below = epochs * q < mean * (1 - (1 - q) ** epochs)
        low = np.where(below, q, low)
        high = np.where(below, high, q)
    return np.asarray(1 - (low + high) / 2)


def _discarded_of(sampled: int, groups: int) -> Estimate:
    """The share, with Wilson's interval: the dropped groups are not known, so none is resampled."""
    if sampled < groups:
        raise AuditError(
            f"sampled = {sampled}, and the log has {groups} groups: it must be at least that"
        )
    found = stats.binomtest(sampled - groups, sampled).proportion_ci(method="wilson")
    return Estimate(1 - groups / sampled, float(found.low), float(found.high))


def _intervals(
    log: Log,
    columns: Mapping[str, NDArray[Any]],
    values: Callable[[Totals], dict[str, Floats]],
    seed: int,
) -> dict[str, Estimate]:
    """Estimates from columns [B] of the rows, with intervals over prompts."""
    sums = [np.bincount(log.prompt, column) for column in columns.values()]
    by_prompt = np.stack(sums, 1).astype(np.float64)
    resamples = resampled(by_prompt, RESAMPLES, seed)
    point = values(dict(zip(columns, by_prompt.sum(0), strict=True)))
    replicates = values(dict(zip(columns, resamples.T, strict=True)))
    has = dict(zip(columns, (by_prompt > 0).sum(0).tolist(), strict=True))
    prompts = {name: has[SHARES[name]] if name in SHARES else len(by_prompt) for name in point}
    return intervals(point, replicates, prompts, tuple(SHARES))

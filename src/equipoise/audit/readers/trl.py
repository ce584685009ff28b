"""TRL's log_completions: completions/completions_STEP.parquet with rewards and advantage.

TRL writes the responses it sampled last, at every log and under the step's name. Two things follow.
Where a batch is used for several updates its steps are the same rows again; they count once. And an
evaluation writes over training's rows of its step, as many as it has; no column says so. Such a
step is left out whole where the files prove it:

    trainer_state.json (in the output directory or its checkpoints) lists every evaluation with its
    step;
    TRL trains from step 1 on, and on groups of two responses or more:
    step 0 and steps of groups of one are no training

Where they do not, the signs are reported and nothing is left out: group sizes that differ between
steps, and steps that share prompts with each other and with no other step. A single evaluation with
groups as large as training's leaves no sign.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.audit.columns import is_numeric
from equipoise.audit.log import AuditError, Floats, Integers, Log, selected

COLUMNS = ("prompt", "completion", "advantage")
STATE = "trainer_state.json"
IF_EVALUATED = (
    "if some of these are evaluations, which TRL writes in place of training's completions, "
    f"audit the files of the other steps, or keep {STATE} beside them"
)
IF_ALONE = "; an evaluation with num_generations_eval=1 leaves such rows in TRL's files"


def reward_columns(names: Sequence[str]) -> Sequence[str]:
    return names[names.index("completion") + 1 : names.index("advantage")]


def without_words(rewards: dict[str, float], piece: dict[str, Any]) -> dict[str, float]:
    """TRL puts a user's own columns among the rewards; those that hold no numbers are no rewards."""
    return {c: weight for c, weight in rewards.items() if is_numeric(piece[c])} or rewards


@dataclass(frozen=True)
class Evaluations:
    """The steps at which a run evaluated; of steps from `unknown_from` on it says nothing."""

    steps: frozenset[int] = frozenset()
    unknown_from: int = 0


def evaluations(paths: Iterable[Path]) -> Evaluations:
    """What trainer_state.json tells of the log in these files and directories."""
    steps: set[int] = set()
    unknown_from = 0
    for file in sorted({file for path in paths for file in _states(path)}):
        try:
            state = json.loads(file.read_text(encoding="utf-8"))
            last = int(state["global_step"])
            # "reward" in training
            found = {int(e["step"]) for e in state["log_history"] if "eval_reward" in e}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise AuditError(
                f"{file} does not tell which steps are evaluations ({error}): get it whole, or move it away"
            ) from error
        steps |= found
        unknown_from = max(unknown_from, last)
    return Evaluations(frozenset(steps), unknown_from)


def _states(path: Path) -> list[Path]:
    """The states beside the files or, where they lie in `completions`, in the folder around it."""
    path = path.resolve()
    inner = path / "completions"
    folder = path.parent if path.is_file() else inner if inner.is_dir() else path
    folders = (folder, folder.parent) if folder.name == "completions" else (folder,)
    found: list[Path] = []
    for place in folders:
        found += [place / STATE, *place.glob(f"checkpoint-*/{STATE}")]
    return [file for file in found if file.is_file()]


def training(
    log: Log, text: Integers, known: Evaluations
) -> tuple[NDArray[np.bool_], list[str], list[str]]:
    """Which rows [B] are training's, each batch once; notes on what is left out, and on signs.

    The log is in the order of the files, `text` [B] tells responses apart.
    """
    evaluated = np.isin(log.step, list(known.steps | _never_trained(log)))
    if evaluated.all():
        raise AuditError(
            f"{_listed(log.step)}: all are evaluations, whose completions TRL writes in place of training's: "
            "log_completions needs steps that are logged and not evaluated (logging_steps, eval_steps)"
        )
    repeated = _repeated(log, text) & ~evaluated
    notes = []
    if evaluated.any():
        what = f"left out {evaluated.sum()} responses of {_listed(log.step[evaluated])}"
        notes.append(f"{what}: an evaluation's, which TRL writes in place of training's")
    if repeated.any():
        notes.append(f"left out {_listed(log.step[repeated])}: TRL wrote the step before once more")
    keep = ~evaluated & ~repeated
    unknown = set(log.step[keep & (log.step >= known.unknown_from)].tolist())
    signs = []
    steps_by_size = _steps_by_size(selected(log, keep)) if unknown else {}
    if len(steps_by_size) > 1:
        sizes = [f"{size} in {_listed(steps)}" for size, steps in steps_by_size.items()]
        signs.append("groups of " + ", of ".join(sizes))
    if alike := unknown & _with_prompts_of_their_own(selected(log, ~repeated)):
        signs.append(f"the same prompts, which no other step has, in {_listed(alike)}")
    return keep, notes, [f"{sign}: {IF_EVALUATED}" for sign in signs]


def _never_trained(log: Log) -> set[int]:
    """Steps that no training can have written: step 0, and those with nothing but groups of one.

    A log of nothing else is not TRL's doing, and is refused for what it is.
    """
    steps, _, largest = _group_sizes(log)
    never = (steps == 0) | (largest == 1)
    return set() if never.all() else set(steps[never].tolist())


def _repeated(log: Log, text: Integers) -> NDArray[np.bool_]:
    repeated = np.zeros(len(log), bool)
    before: tuple[Any, ...] | None = None
    order = np.argsort(log.step, kind="stable")
    step_ends = np.flatnonzero(np.diff(log.step[order])) + 1
    for rows in np.split(order, step_ends):
        now = (log.prompt[rows], text[rows], log.reward[rows])
        if before is not None:
            repeated[rows] = all(map(np.array_equal, before, now))
        before = now
    return repeated


def _steps_by_size(log: Log) -> dict[int, list[int]]:
    """The steps by the size of their smallest group: larger ones may be prompts that came twice."""
    steps, smallest, _ = _group_sizes(log)
    return {int(size): steps[smallest == size].tolist() for size in np.unique(smallest)[::-1]}


def _group_sizes(log: Log) -> tuple[Integers, Integers, Integers]:
    """The steps and the sizes of the smallest and of the largest group of each."""
    steps, batch = np.unique(log.step, return_inverse=True)
    size = np.bincount(log.group)[log.group]
    smallest, largest = np.full(len(steps), len(log)), np.zeros(len(steps), np.int64)
    np.minimum.at(smallest, batch, size)
    np.maximum.at(largest, batch, size)
    return steps, smallest, largest


def _with_prompts_of_their_own(log: Log) -> set[int]:
    """The steps, some and not all, that share two prompts or more with each other alone.

    They must share all they have, or have the only prompts that come back: then the rest of a step
    is what an evaluation of few prompts left of training's batch. Several such sets are epochs over
    data in one order.
    """
    all_steps, batch = np.unique(log.step, return_inverse=True)
    prompt, place = np.divmod(np.unique(log.prompt * len(all_steps) + batch), len(all_steps))
    steps_of: dict[int, list[int]] = defaultdict(list)
    for p, step in zip(prompt.tolist(), all_steps[place].tolist(), strict=True):
        steps_of[p].append(step)
    prompts_in = Counter(all_steps[place].tolist())
    shared = Counter(tuple(steps) for steps in steps_of.values() if len(steps) > 1)
    found = [
        steps
        for steps, prompts in shared.items()
        if prompts > 1
        and len(steps) < len(prompts_in)
        and (len(shared) == 1 or all(prompts_in[s] == prompts for s in steps))
    ]
    return set(found[0]) if len(found) == 1 else set()


def check_explained(log: Log, advantage: Floats, summed: tuple[str, ...]) -> None:
    """The sum of several reward columns must be what TRL took its advantages of."""
    if len(summed) < 2:
        return
    n = np.bincount(log.group)

    def over(x: Floats) -> Floats:
        """[B] -> [groups] sums"""
        return np.asarray(np.bincount(log.group, x), np.float64)

    def centred(x: Floats) -> Floats:
        mean = over(x) / np.maximum(n, 1)
        return x - mean[log.group]

    r = centred(log.reward)
    A = centred(advantage)
    size = np.sqrt(over(r * r) * over(A * A))
    informative = size > 1e-9
    fit = over(r * A)[informative] / size[informative]
    if len(fit) and np.median(fit) < 0.999:
        raise AuditError(
            f"the sum of the columns {', '.join(summed)} does not explain the column advantage (median correlation "
            f"within groups {np.median(fit):.2f}): say what the reward is with columns reward=NAME+0.5*NAME"
        )


def _listed(steps: Iterable[int]) -> str:
    each = sorted({int(s) for s in steps})
    shown = ", ".join(map(str, each[:5])) + (", …" if len(each) > 5 else "")
    return f"step {shown}" if len(each) == 1 else f"{len(each)} steps ({shown})"

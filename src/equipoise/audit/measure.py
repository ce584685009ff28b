"""The numbers of an audit: what biases each objective has on a log, per step and overall,
with intervals over prompts.

Every objective runs through `Objective.assign` on each step's batch, in the order of the steps (a
difficulty anchor moves as it would have); on-policy, so clipping and ratios play no part. Not here:
words (advice), layout (render).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from equipoise.audit import difficulty
from equipoise.audit.bootstrap import BLOCKS, NOTHING, Estimate, intervals, resampled
from equipoise.audit.log import AuditError, Floats, Integers, Log, trained
from equipoise.audit.objectives import Named, fresh, gathered
from equipoise.audit.read import Paths, Table, from_table, read, run_objective
from equipoise.audit.sums import (
    LOG_SUMS,
    OBJECTIVE_SUMS,
    decile_edges,
    log_sums,
    log_support,
    log_values,
    objective_sums,
    objective_support,
    objective_values,
    steps,
    token_weights,
)
from equipoise.objective import Credit, Objective

RESAMPLES, STEP_RESAMPLES = 2000, 200
RULES: dict[str, Any] = {
    "token": {"name": "token", "over": "group"},
    "sequence": "sequence",
    "balanced": "balanced",
}


@dataclass(frozen=True)
class Measures:
    """The measures of one step, or of the whole log (step None). Names: see docs/audit.md."""

    step: int | None
    responses: int
    groups: int
    prompts: int
    log: dict[str, Estimate]
    baseline_bias: dict[str, Estimate]  # by difficulty: mean of E[p̂|S] − p over informative groups
    baseline_share: dict[str, Estimate]  # by difficulty: share of the informative groups
    objectives: dict[str, dict[str, Estimate]]
    token_weight: dict[str, list[Estimate]]  # per objective, by tenth of length; overall only


@dataclass(frozen=True)
class Audit:
    """An audit is numbers: `advise` puts them into words, `dataclasses.asdict` into JSON."""

    objective: str  # the audited one; the others are what it is compared with
    stacks: dict[str, str]  # every objective as the choices it is made of
    choices: dict[str, dict[str, Any]]  # and as the arguments that build it
    source: str
    unit: str  # what a length counts
    group_size: tuple[int, int]  # smallest, largest
    rewards: tuple[float, float] | None  # the two values of a binary reward
    decile_edges: list[float]
    has_tokens: bool
    has_truncated: bool
    notes: list[str]
    overall: Measures
    steps: list[Measures]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    rollouts: Log | Paths | Table,
    objective: Named | None = None,
    against: Sequence[Named] | Mapping[str, Named] | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    tokenizer: str | None = None,
    seed: int = 0,
) -> Audit:
    """Audit a log: files, directories, a table, a mapping of columns, or a `Log` already read.

    objective   a preset's name, or an `Objective`; by default a run directory's own, and dapo for any other log
    against     other objectives: presets, changes to the audited one ("balanced", "balanced+hadw"), or `Objective`s;
                by default its own stack under token, sequence and balanced, and,
                with tokens, balanced with prefix
    columns     which column is what, see `audit.read`; tokenizer: a model's name or folder, to count text in tokens
    seed        of the resamples: the same log and seed give the same numbers
    """
    log, own = _log(rollouts, columns, tokenizer)
    log = trained(log)
    objectives = gathered(objective or own or "dapo", against, log.tokens is not None)
    audited = next(iter(objectives.values()))
    stacks, rules = dict(objectives), {}
    for rule, aggregation in RULES.items():
        stack = fresh(audited, aggregation=aggregation, cancellation="none")
        twin = next(
            (name for name, o in objectives.items() if o.choices() == stack.choices()), None
        )
        rules[rule] = twin or f"{rule} rule"
        stacks.setdefault(rules[rule], stack)
    if log.tokens is None and any(o.cancellation == "prefix" for o in objectives.values()):
        name = next(n for n, o in objectives.items() if o.cancellation == "prefix")
        raise AuditError(
            f"{name}: cancellation = prefix needs token ids, which this log does not have; see tokenizer"
        )
    _check_rates(log, objectives)
    edges, binary = decile_edges(log), _binary(log)
    kinds, kind = _kinds(log, binary)
    setting = _Setting(log, objectives, kinds)
    total = setting.zeros(setting.prompts)
    by_step: list[Measures] = []
    for step, tokens in steps(log):
        T = log.length[step.rows].astype(np.float64)
        credits = {
            name: _assign(name, o, log, step, tokens if o.cancellation == "prefix" else None)
            for name, o in stacks.items()
        }
        present, who = np.unique(step.prompt, return_inverse=True)
        here = setting.zeros(len(present))
        # Prompts are numbered by a hash of their content, so every BLOCKS-th makes a random block.
        places = ((total, step.prompt % BLOCKS), (here, who % BLOCKS))
        part = log_sums(step, log, {rule: credits[name] for rule, name in rules.items()})
        for into, block in places:
            np.add.at(into[:, : len(LOG_SUMS)], block, part)
        for i, name in enumerate(objectives):
            part = objective_sums(step, T, credits[name], edges)
            for into, block in places:
                np.add.at(into[:, setting.columns(i)], block, part)
        if kind is not None:
            first = int(log.group[step.rows.start])
            for into, block in places:
                np.add.at(into, (block, setting.width + kind[first : first + len(step.G)]), 1.0)
        at = int(log.step[step.rows.start])
        by_step.append(_measures(setting, at, len(present), here, (seed, len(by_step) + 1)))
    overall = _measures(setting, None, setting.prompts, total, (seed, 0))
    sizes = np.bincount(log.group)
    return Audit(
        objective=next(iter(objectives)),
        stacks={
            name: repr(o).removeprefix("Objective(").removesuffix(")")
            for name, o in objectives.items()
        },
        choices={name: o.choices() for name, o in objectives.items()},
        source=log.source,
        unit=log.unit,
        group_size=(int(sizes.min()), int(sizes.max())),
        rewards=binary,
        decile_edges=edges.tolist(),
        has_tokens=log.tokens is not None,
        has_truncated=log.truncated is not None,
        notes=list(log.notes),
        overall=overall,
        steps=by_step,
    )


def _log(
    rollouts: Log | Paths | Table, columns: Mapping[str, str] | None, tokenizer: str | None
) -> tuple[Log, Objective | None]:
    if isinstance(rollouts, Log):
        return rollouts, None
    if isinstance(rollouts, pa.Table | Mapping):
        return from_table(rollouts, columns, tokenizer), None
    if isinstance(rollouts, str | Path) or all(isinstance(p, str | Path) for p in rollouts):
        return read(rollouts, columns, tokenizer), run_objective(rollouts)
    raise AuditError(
        f"rollouts is {type(rollouts).__name__}: give paths, a pyarrow table or a mapping of columns"
    )


def _binary(log: Log) -> tuple[float, float] | None:
    values = np.unique(log.reward)
    return (float(values[0]), float(values[1])) if len(values) == 2 and log.rates else None


def _check_rates(log: Log, objectives: Mapping[str, Objective]) -> None:
    """A difficulty weight compares success rates, which advantages do not tell."""
    for name, objective in objectives.items():
        if not log.rates and objective.choices()["difficulty"] != {"name": "none"}:
            raise AuditError(
                f"{name}: difficulty weights need success rates, and this log has advantages for rewards"
            )


def _kinds(
    log: Log, binary: tuple[float, float] | None
) -> tuple[difficulty.GroupKinds | None, Integers | None]:
    """The kinds of groups, (R right of G), and the kind of each group;
    nothing where rewards are not binary.
    """
    if binary is None:
        return None, None
    right = np.bincount(log.group, log.reward == binary[1]).astype(np.int64)
    return difficulty.outcomes(right, np.bincount(log.group))


def _assign(
    name: str, objective: Objective, log: Log, step: Any, tokens: torch.Tensor | None
) -> Credit:
    try:
        return objective.assign(
            torch.from_numpy(log.reward[step.rows]),
            torch.from_numpy(step.group),
            torch.from_numpy(log.length[step.rows]),
            tokens=tokens,
        )
    except ValueError as error:
        raise AuditError(
            f"{name} cannot be applied to step {log.step[step.rows.start]}: {error}"
        ) from error


@dataclass(frozen=True)
class _Setting:
    """What all measures have in common. Sums lie in one row per prompt:
    of the log, the objectives, the kinds.
    """

    log: Log
    objectives: dict[str, Objective]
    kinds: difficulty.GroupKinds | None

    @cached_property
    def prompts(self) -> int:
        return int(self.log.prompt.max()) + 1

    @cached_property
    def shares(self) -> tuple[str, ...]:
        """Measures that are shares of prompts: where no prompt comes twice, groups are prompts."""
        return ("degenerate", "truncated") if self.prompts == int(self.log.group.max()) + 1 else ()

    @property
    def width(self) -> int:
        return len(LOG_SUMS) + len(self.objectives) * len(OBJECTIVE_SUMS)

    def columns(self, i: int) -> slice:
        return slice(
            len(LOG_SUMS) + i * len(OBJECTIVE_SUMS), len(LOG_SUMS) + (i + 1) * len(OBJECTIVE_SUMS)
        )

    def zeros(self, prompts: int) -> Floats:
        return np.zeros(
            (min(prompts, BLOCKS), self.width + (0 if self.kinds is None else len(self.kinds.R)))
        )


def _measures(
    setting: _Setting, step: int | None, prompts: int, sums: Floats, seed: tuple[int, int]
) -> Measures:
    """Point values from the sums over all prompts, intervals from the resampled ones."""
    again, whole = resampled(sums, RESAMPLES if step is None else STEP_RESAMPLES, seed), sums.sum(0)
    n = slice(len(LOG_SUMS))
    of_log = intervals(
        log_values(whole[n]), log_values(again[:, n]), log_support(sums[:, n]), setting.shares
    )
    if setting.log.truncated is None:
        of_log["truncated"] = NOTHING
    objectives: dict[str, dict[str, Estimate]] = {}
    weights: dict[str, list[Estimate]] = {}
    for i, (name, objective) in enumerate(setting.objectives.items()):
        here = setting.columns(i)
        support = objective_support(sums[:, here])
        found = intervals(objective_values(whole[here]), objective_values(again[:, here]), support)
        # one weight per token: what a shared token gets, only its node can say
        if objective.cancellation == "prefix":
            found |= dict.fromkeys(("exchangeability", "net_push", "learning_tax"), NOTHING)
        objectives[name] = found
        if step is None:
            tenths = intervals(token_weights(whole[here]), token_weights(again[:, here]), support)
            weights[name] = list(tenths.values())
    bias = share = dict.fromkeys(difficulty.STRATA, NOTHING)
    if setting.kinds is not None:
        values, replicates = (
            difficulty.baseline_bias(x[..., setting.width :], setting.kinds) for x in (whole, again)
        )
        everyone = dict.fromkeys(difficulty.STRATA, len(sums))
        bias, share = (
            intervals(
                dict(zip(difficulty.STRATA, v, strict=True)),
                dict(zip(difficulty.STRATA, r.T, strict=True)),
                everyone,
            )
            for v, r in zip(values, replicates, strict=True)
        )
    return Measures(
        step=step,
        responses=int(whole[LOG_SUMS.index("responses")]),
        groups=int(whole[LOG_SUMS.index("groups")]),
        prompts=prompts,
        log=of_log,
        baseline_bias=bias,
        baseline_share=share,
        objectives=objectives,
        token_weight=weights,
    )

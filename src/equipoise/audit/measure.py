"""The numbers of an audit: the biases of each objective, per step and overall, with intervals.

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
    StepRows,
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

RESAMPLES = 2000
STEP_RESAMPLES = 200  # of each step
OF_LOG = slice(len(LOG_SUMS))  # the first columns of all sums
SHARES = ("degenerate", "truncated")  # of groups and of responses
# Measures that take all tokens of a response to weigh the same.
PER_RESPONSE = ("exchangeability", "net_push", "learning_tax")
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
    columns: dict[str, str]  # what each role was read from, where the log has columns
    overall: Measures
    steps: list[Measures]

    @property
    def advantage(self) -> str:
        """The audited objective's, by name."""
        return str(self.choices[self.objective]["advantage"]["name"])

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
    _check(log, objectives)
    stacks, rules = _with_rules(objectives)
    binary = _binary(log)
    kinds, kind_of_group = _kinds(log, binary)
    setting = _Setting(log, objectives, rules, kinds, kind_of_group, decile_edges(log))
    of_log = setting.zeros(setting.prompts)
    by_step: list[Measures] = []
    for step, tokens in steps(log):
        credits = {
            name: _assign(
                name, stack, log, step, tokens if stack.cancellation == "prefix" else None
            )
            for name, stack in stacks.items()
        }
        of_groups = _group_sums(setting, step, credits)
        # Prompts are numbered by a hash of their content, so every BLOCKS-th makes a random block.
        np.add.at(of_log, step.prompt % BLOCKS, of_groups)
        present, prompt_here = np.unique(step.prompt, return_inverse=True)
        of_step = setting.zeros(len(present))
        np.add.at(of_step, prompt_here % BLOCKS, of_groups)
        number = int(log.step[step.rows.start])
        # The seed (seed, 0) is the whole log's.
        step_seed = (seed, len(by_step) + 1)
        by_step.append(_measures(setting, number, len(present), of_step, step_seed))
    overall = _measures(setting, None, setting.prompts, of_log, (seed, 0))
    return _audit(setting, binary, overall, by_step)


def _audit(
    setting: _Setting,
    binary: tuple[float, float] | None,
    overall: Measures,
    by_step: list[Measures],
) -> Audit:
    log, objectives = setting.log, setting.objectives
    sizes = np.bincount(log.group)
    return Audit(
        objective=next(iter(objectives)),
        stacks={
            name: repr(stack).removeprefix("Objective(").removesuffix(")")
            for name, stack in objectives.items()
        },
        choices={name: stack.choices() for name, stack in objectives.items()},
        source=log.source,
        unit=log.unit,
        group_size=(int(sizes.min()), int(sizes.max())),
        rewards=binary,
        decile_edges=setting.edges.tolist(),
        has_tokens=log.tokens is not None,
        has_truncated=log.truncated is not None,
        notes=list(log.notes),
        columns=log.columns,
        overall=overall,
        steps=by_step,
    )


def _with_rules(
    objectives: Mapping[str, Objective],
) -> tuple[dict[str, Objective], dict[str, str]]:
    """The objectives with the audited one under each of RULES, and which of them each rule is.

    A rule that is one of the objectives already is not measured twice.
    """
    audited = next(iter(objectives.values()))
    stacks = dict(objectives)
    rules: dict[str, str] = {}
    for rule, aggregation in RULES.items():
        stack = fresh(audited, aggregation=aggregation, cancellation="none")
        choices = stack.choices()
        alike = [name for name, other in objectives.items() if other.choices() == choices]
        rules[rule] = alike[0] if alike else f"{rule} rule"
        stacks.setdefault(rules[rule], stack)
    return stacks, rules


def _group_sums(setting: _Setting, step: StepRows, credits: Mapping[str, Credit]) -> Floats:
    """[groups, columns] of one step: the sums of the log, of each objective, and the kind."""
    log = setting.log
    n_groups = len(step.G)
    out = np.zeros((n_groups, setting.width))
    by_rule = {rule: credits[name] for rule, name in setting.rules.items()}
    out[:, OF_LOG] = log_sums(step, log, by_rule)
    T = log.length[step.rows].astype(np.float64)
    for name in setting.objectives:
        out[:, setting.columns(name)] = objective_sums(step, T, credits[name], setting.edges)
    if setting.kind_of_group is not None:
        first = int(log.group[step.rows.start])
        kind = setting.kind_of_group[first : first + n_groups]
        out[np.arange(n_groups), setting.first_kind + kind] = 1.0
    return out


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
    if len(values) != 2 or not log.rates:
        return None
    wrong, right = values
    return float(wrong), float(right)


def _check(log: Log, objectives: Mapping[str, Objective]) -> None:
    """A difficulty weight compares success rates, which advantages do not tell."""
    for name, objective in objectives.items():
        if log.tokens is None and objective.cancellation == "prefix":
            raise AuditError(
                f"{name}: cancellation = prefix needs token ids, which this log does not have; "
                "see tokenizer"
            )
        if not log.rates and objective.choices()["difficulty"] != {"name": "none"}:
            raise AuditError(
                f"{name}: difficulty weights need success rates, "
                "and this log has advantages for rewards"
            )


def _kinds(
    log: Log, binary: tuple[float, float] | None
) -> tuple[difficulty.GroupKinds | None, Integers | None]:
    """The kinds of groups, (R right of G), and each group's kind; none unless rewards are 0/1."""
    if binary is None:
        return None, None
    n_right = np.bincount(log.group, log.reward == binary[1]).astype(np.int64)
    return difficulty.outcomes(n_right, np.bincount(log.group))


def _assign(
    name: str, objective: Objective, log: Log, step: StepRows, tokens: torch.Tensor | None
) -> Credit:
    rewards = torch.from_numpy(log.reward[step.rows])
    groups = torch.from_numpy(step.group)
    lengths = torch.from_numpy(log.length[step.rows])
    try:
        return objective.assign(rewards, groups, lengths, tokens=tokens)
    except ValueError as error:
        number = log.step[step.rows.start]
        raise AuditError(f"{name} cannot be applied to step {number}: {error}") from error


@dataclass(frozen=True)
class _Setting:
    """What all measures have in common.

    Sums lie in one row per prompt, in this order:

        LOG_SUMS | OBJECTIVE_SUMS of the first objective | … of the last | groups of each kind
    """

    log: Log
    objectives: dict[str, Objective]
    rules: dict[str, str]  # the name of the objective under each of RULES
    kinds: difficulty.GroupKinds | None  # None where rewards are not binary
    kind_of_group: Integers | None  # [groups of the log]
    edges: Floats  # [DECILES - 1] lengths

    @cached_property
    def prompts(self) -> int:
        return int(self.log.prompt.max()) + 1

    @cached_property
    def first_kind(self) -> int:
        return len(LOG_SUMS) + len(self.objectives) * len(OBJECTIVE_SUMS)

    @cached_property
    def width(self) -> int:
        kinds = 0 if self.kinds is None else len(self.kinds.R)
        return self.first_kind + kinds

    def columns(self, objective: str) -> slice:
        first = len(LOG_SUMS) + list(self.objectives).index(objective) * len(OBJECTIVE_SUMS)
        return slice(first, first + len(OBJECTIVE_SUMS))

    def zeros(self, prompts: int) -> Floats:
        return np.zeros((min(prompts, BLOCKS), self.width))


def _measures(
    setting: _Setting, step: int | None, prompts: int, sums: Floats, seed: tuple[int, int]
) -> Measures:
    """Point values from the sums over all prompts, intervals from the resampled ones."""
    total = sums.sum(0)
    resamples = resampled(sums, RESAMPLES if step is None else STEP_RESAMPLES, seed)
    of_log = intervals(
        log_values(total[OF_LOG]),
        log_values(resamples[:, OF_LOG]),
        log_support(sums[:, OF_LOG]),
        SHARES,
    )
    if setting.log.truncated is None:
        of_log["truncated"] = NOTHING
    objectives: dict[str, dict[str, Estimate]] = {}
    weights: dict[str, list[Estimate]] = {}
    for name, objective in setting.objectives.items():
        here = setting.columns(name)
        support = objective_support(sums[:, here])
        values = objective_values(total[here])
        objectives[name] = intervals(values, objective_values(resamples[:, here]), support)
        if objective.cancellation == "prefix":
            # It gives one weight per token: only the node of a shared token can say what it gets.
            objectives[name] |= dict.fromkeys(PER_RESPONSE, NOTHING)
        if step is None:
            tenths = token_weights(total[here])
            found = intervals(tenths, token_weights(resamples[:, here]), support)
            weights[name] = list(found.values())
    bias, share = _baseline(setting, sums, prompts)
    return Measures(
        step=step,
        responses=int(total[LOG_SUMS.index("responses")]),
        groups=int(total[LOG_SUMS.index("groups")]),
        prompts=prompts,
        log=of_log,
        baseline_bias=bias,
        baseline_share=share,
        objectives=objectives,
        token_weight=weights,
    )


def _baseline(
    setting: _Setting, sums: Floats, prompts: int
) -> tuple[dict[str, Estimate], dict[str, Estimate]]:
    """The bias of the group baseline, and the share of the informative groups, by difficulty."""
    if setting.kinds is None:
        nothing = dict.fromkeys(difficulty.STRATA, NOTHING)
        return nothing, nothing
    return difficulty.baseline(sums[:, setting.first_kind :], setting.kinds, prompts)

"""Our own run directories: rollouts/step-N.parquet, and the objective in config.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.audit.log import AuditError, Log, ordered
from equipoise.objective import Objective

COLUMNS = ("prompt_id", "reward", "length", "finish", "logprob_sum")
# A log holds one reward a response, their sum, and no entropies; the preset goes by position.
NOT_IN_A_LOG = ("preset", "combine", "top_entropy_quantile")

ONE_REWARD = "objective.combine = advantages: the log holds one reward a response, their sum, and so does the audit"
ENTROPY_MASK = "objective.top_entropy_quantile: which tokens it left out is not in a log; the audit weighs all of them"
TEACHER = "train.teacher: what it adds to each token's advantage is not in a log; the audit is of the rewards' part"


def step_in_name(file: str) -> int | None:
    """The N of step-N.parquet."""
    found = re.fullmatch(r"step-(\d+)", Path(file).stem)
    return None if found is None else int(found[1])


def run_objective(paths: Sequence[Path]) -> Objective | None:
    """The objective a run directory of ours was trained with; None for any other log."""
    section = _config(paths).get("objective")
    if section is None:
        return None
    choices = {key: value for key, value in section.items() if key not in NOT_IN_A_LOG}
    # A run without the mask writes 0, which an objective does not take for "none".
    choices["off_policy_mask"] = choices.get("off_policy_mask") or None
    try:
        return Objective.preset(section.get("preset", "grpo"), **choices)
    except (ValueError, TypeError) as error:
        raise AuditError(f"config.toml of the run: {error}; name the objective to audit") from error


def as_trained(log: Log, paths: Sequence[Path]) -> Log:
    """The log as the run's own configuration, where there is one, made use of it."""
    config = _config(paths)
    objective = config.get("objective", {})
    notes = []
    if objective.get("combine") == "advantages":
        notes.append(ONE_REWARD)
    if objective.get("top_entropy_quantile", 1) < 1:
        notes.append(ENTROPY_MASK)
    if config.get("train", {}).get("teacher"):
        notes.append(TEACHER)
    log = replace(log, notes=(*log.notes, *notes))
    if config.get("reward", {}).get("mask_truncated"):
        log = _masked(log)
    return log


def _masked(log: Log) -> Log:
    """As the run had it: a truncated response counts in its group's mean and not in the loss."""
    if log.truncated is None or not log.truncated.any():
        return log
    length = np.where(log.truncated, 0, log.length)
    tokens = log.tokens
    if tokens is not None:
        in_the_loss = np.repeat(~log.truncated, log.length)
        tokens = tokens[in_the_loss]
    note = "reward.mask_truncated: truncated responses have length 0 here, as in the run"
    return ordered(replace(log, length=length, tokens=tokens, notes=(*log.notes, note)))


def _config(paths: Sequence[Path]) -> dict[str, Any]:
    """config.toml of the first run directory that one of the paths is, or lies in the rollouts of."""
    for path in paths:
        near = (path / "rollouts", path, path.parent)
        rollouts = [folder for folder in near if folder.name == "rollouts" and folder.is_dir()]
        if not rollouts:
            continue
        file = rollouts[0].parent / "config.toml"
        if not file.is_file():
            continue
        try:
            return tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise AuditError(f"{file} is not TOML: {error}") from error
    return {}

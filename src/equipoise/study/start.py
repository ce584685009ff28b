"""Warm starts of the embedded model whose length gap, spread and success its traces set.

A short supervised run on written traces of the arithmetic task: `habits` say how the traces go
wrong. Slips that are noticed and written again, and numbers added twice, make wrong responses long;
numbers left out make them short; steps copied out again for nothing spread lengths without a gap.
What came out is measured on the runs themselves (`bias/group_length_gap`, `bias/group_length_cv` of
their first step), never assumed. Not covered: other models.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from equipoise import policy as models
from equipoise.tasks.arithmetic import Arithmetic, trace
from equipoise.train import ConfigError

RESPONSES = 64  # per step
LEARNING_RATE = 1e-3
STREAM = 1_000_000  # the task's seed: no run of a study trains on this order of prompts
# With probability: a step is wrong; a slip is seen; its second try is wrong; a number is added
# twice; left out; a step is copied out again. `steps` of imitation; `levels`: how often chains of
# 2, 3, 4 and 5 numbers are shown.
DEFAULTS: dict[str, float] = {
    "slip": 0.1, "notice": 0.0, "again": 0.5, "twice": 0.0, "skip": 0.0, "copy": 0.0, "steps": 100,
}  # fmt: skip
LEVELS = (0.45, 0.45, 0.08, 0.02)


def check(habits: Mapping[str, object], where: str) -> None:
    known = [*DEFAULTS, "levels"]
    for name, value in habits.items():
        if name not in known:
            raise ConfigError(f"{where}: start.{name} is not known ({', '.join(known)})")
        if name == "levels":
            if (
                not isinstance(value, Sequence)
                or len(value) != 4
                or not all(0 <= x <= 1 for x in value)
            ):
                raise ConfigError(
                    f"{where}: start.levels = {value} must be four shares, of 2, 3, 4 and 5 numbers"
                )
        elif name == "steps":
            if not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"{where}: start.steps = {value} must be a whole number, 1 or more"
                )
        elif not isinstance(value, int | float) or not 0 <= value < 1:
            raise ConfigError(f"{where}: start.{name} = {value} must be a probability below 1")


def make_all(starts: Mapping[Path, Mapping[str, object]]) -> None:
    """Those that are not there yet, one on each core."""
    missing = {
        folder: dict(habits) for folder, habits in starts.items() if not _made(folder, habits)
    }
    if not missing:
        return
    workers = min(len(missing), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(make, missing, missing.values()))


def make(folder: Path, habits: Mapping[str, object]) -> None:
    """Imitate, then save; the folder is there whole or not at all."""
    torch.set_num_threads(1)
    policy = models.load("abacus", device="cpu")
    imitate(policy, habits)
    temporary = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(temporary, ignore_errors=True)
    models.save(policy, temporary)
    (temporary / "habits.json").write_text(_record(habits), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def _made(folder: Path, habits: Mapping[str, object]) -> bool:
    file = folder / "habits.json"
    return file.exists() and file.read_text(encoding="utf-8") == _record(habits)


def _record(habits: Mapping[str, object]) -> str:
    return json.dumps(dict(sorted(habits.items())))


def imitate(policy: models.Policy, habits: Mapping[str, object]) -> None:
    """AdamW on the mean log-probability of fresh traces; warm-up of ten steps, then decay to 0."""
    rates = {name: float(str(habits.get(name, default))) for name, default in DEFAULTS.items()}
    steps = int(rates.pop("steps"))
    levels = habits.get("levels", LEVELS)
    assert isinstance(levels, Sequence)
    shown = dict(zip("2345", levels, strict=True))
    task, draw, position = Arithmetic(STREAM), random.Random(0), 0
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
    for step in range(steps):
        prompts: list[list[int]] = []
        responses: list[list[int]] = []
        while len(prompts) < RESPONSES:
            prompt = task.prompt(position)
            position += 1
            if draw.random() < shown[str(prompt.level)] / max(levels):
                text = written([int(n) for n in prompt.id.split("+")], draw, rates)
                if len(text) < task.max_tokens:
                    prompts.append(models.encode(policy, prompt.text))
                    responses.append([*models.encode(policy, text), policy.tokenizer.eos_token_id])
        rate = LEARNING_RATE * min(1.0, (step + 1) / 10) * (1 - step / steps)
        imitate_batch(policy, optimizer, prompts, responses, rate)


def imitate_batch(
    policy: models.Policy,
    optimizer: torch.optim.Optimizer,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    rate: float,
) -> float:
    """One optimizer step on the mean log-probability of these responses; the loss before it."""
    loss = models.response_loss(policy, prompts, responses)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.param_groups[0]["lr"] = rate
    optimizer.step()
    return loss.item()


def written(numbers: Sequence[int], draw: random.Random, rates: Mapping[str, float]) -> str:
    """A trace with these habits; a chain keeps at least two of its numbers."""
    kept = [numbers[0], *(number for number in numbers[1:] if draw.random() >= rates["skip"])]
    if len(kept) < 2:
        kept = list(numbers[:2])
    habits = {name: rates[name] for name in ("slip", "notice", "again", "twice")}
    text, _, answer = trace(kept, draw, **habits).partition("#")
    steps = [step for step in text.split("+") if step]
    spread = ""
    for step in steps:
        step = "+" + step
        spread += step
        while not step.endswith("~") and draw.random() < rates["copy"]:
            spread += "~" + step
    return f"{spread}#{answer}"

"""Which rollouts a page carries: whole groups, as many as fit, and a sentence on what was left out.

The steps are the first, the last and evenly spaced ones between; the groups are the first of each
file, which for runs with the same seed answer the same prompts. Nothing is picked for what it
shows. A text longer than its share keeps its beginning and its end, where the answer is.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from equipoise.report import difficulty
from equipoise.report.runs import Run, version
from equipoise.report.series import first_last_between, rounded, spaced

BYTES = 2_400_000  # of the page, for the samples of all its runs together
MOST_STEPS = 12
MOST_GROUPS = 32  # of one step
LONGEST = 60_000  # bytes of one text
NUMBERS_TAKE = 250  # bytes of a response besides its text
NUMBERS = ("length", "reward", "advantage", "weight", "coefficient")
TEXTS = ("group", "prompt_id", "prompt", "model_input", "level", "response", "finish", "verdict")
COLUMNS = (*TEXTS, *difficulty.NEEDED, *NUMBERS)


def sample(run: Run, budget: int) -> tuple[list[dict[str, Any]], str]:
    """The groups to show, by step, within `budget` bytes of JSON; and what there is besides."""
    steps = spaced(list(run.rollouts), MOST_STEPS)
    found = {s: _first_groups(run.rollouts[s], version(run.rollouts[s]), budget) for s in steps}
    chosen: list[dict[str, Any]] = []
    left = budget
    order = [steps[i] for i in first_last_between(len(steps))]
    for k in range(MOST_GROUPS):
        for step in order:
            if k < len(found[step]) and (size := len(json.dumps(found[step][k]))) <= left:
                chosen.append({"step": step, **found[step][k]})
                left -= size
    chosen.sort(key=lambda g: (g["step"], g["order"]))
    _add_phi(run, chosen)
    return chosen, _left_out(run, chosen)


def _add_phi(run: Run, groups: Sequence[dict[str, Any]]) -> None:
    """Each response's difficulty weight, where the run logged what it takes to make it again."""
    C, objective = difficulty.anchors(run), run.config.get("objective", {})
    for g in groups:
        A = [r["advantage"] for r in g["responses"]]
        known = {name: g[name] for name in difficulty.NEEDED}
        if g["step"] not in C or None in A or None in itertools.chain.from_iterable(known.values()):
            continue
        try:
            weights = difficulty.phi(
                objective, C[g["step"]], group=[0] * len(A), advantage=A, **known
            )
        except (ValueError, TypeError):  # an objective of another version
            return
        g["responses"] = [
            {**r, "phi": rounded(w)} for r, w in zip(g["responses"], weights, strict=True)
        ]


def _left_out(run: Run, chosen: Sequence[dict[str, Any]]) -> str:
    if not run.rollouts:
        return "No rollouts were logged (log.rollouts_every)."
    there = sum(_count(file, version(file)) for file in run.rollouts.values())
    shown, steps = sum(len(g["responses"]) for g in chosen), len({g["step"] for g in chosen})
    out = (
        f"{shown:,} of {there:,} logged responses, "
        f"{len(chosen)} whole groups from {steps} of {len(run.rollouts)} files"
    )
    cut = sum(bool(r["cut"]) for g in chosen for r in g["responses"])
    return f"{out}; {cut:,} long texts without their middle." if cut else f"{out}."


@cache
def _count(file: Path, version: tuple[int, ...]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(file).num_rows)
    except (OSError, pa.ArrowException):
        return 0


@lru_cache(maxsize=256)
def _first_groups(file: Path, version: tuple[int, ...], budget: int) -> list[dict[str, Any]]:
    """The first groups of a file that fit into `budget` bytes, texts cut so that two of them do."""
    groups: list[dict[str, Any]] = []
    left = budget
    for rows in _groups(file):
        group = _group(
            len(groups), rows, min(LONGEST, budget // (2 * len(rows) + 2) - NUMBERS_TAKE)
        )
        left -= len(json.dumps(group))
        if left < 0:
            break
        groups.append(group)
        if len(groups) == MOST_GROUPS:
            break
    return groups


def _groups(file: Path) -> Iterator[list[dict[str, Any]]]:
    """The groups of a rollout file one by one; a file that cannot be read has none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def rows() -> Iterator[dict[str, Any]]:
        with pq.ParquetFile(file) as f:
            columns = [c for c in COLUMNS if c in f.schema_arrow.names]
            if {"group", "response"} <= set(columns):
                for batch in f.iter_batches(batch_size=256, columns=columns):
                    yield from batch.to_pylist()

    try:
        for _, group in groupby(rows(), key=lambda row: row["group"]):
            yield list(group)
    except (OSError, pa.ArrowException):
        return


def _group(order: int, rows: Sequence[dict[str, Any]], longest: int) -> dict[str, Any]:
    # As the model read it, special tokens and template included, where the log has that.
    prompt, cut = shortened(str(rows[0].get("model_input") or rows[0].get("prompt") or ""), longest)
    return {
        "order": order,
        "prompt_id": shortened(str(rows[0].get("prompt_id") or ""), 200)[0],
        "prompt": prompt,
        "prompt_cut": cut,
        "level": str(rows[0].get("level") or ""),
        **{name: [_finite(row.get(name)) for row in rows] for name in difficulty.NEEDED},
        **_balance(rows),
        "responses": [_response(row, longest) for row in rows],
    }


def _balance(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """This group's mean reward, mass balance Σ cT / Σ|c|T and exchangeability |Σ c| / Σ|c|."""
    reward, c, T = (_known(rows, name) for name in ("reward", "coefficient", "length"))
    out: dict[str, float | None] = dict.fromkeys(("reward", "mass_balance", "exchangeability"))
    if reward is not None:
        out["reward"] = rounded(sum(reward) / len(reward))
    if c is not None and T is not None and any(c):
        pull = [c_i * T_i for c_i, T_i in zip(c, T, strict=True)]
        out["mass_balance"] = round(sum(pull) / sum(map(abs, pull)), 4)
        out["exchangeability"] = round(abs(sum(c)) / sum(map(abs, c)), 4)
    return out


def _known(rows: Sequence[dict[str, Any]], name: str) -> list[float] | None:
    """A column of numbers; None where one of them is missing."""
    found = [value for row in rows if (value := _finite(row.get(name))) is not None]
    return found if len(found) == len(rows) else None


def _response(row: dict[str, Any], longest: int) -> dict[str, Any]:
    text, cut = shortened(str(row["response"] or ""), longest)
    numbers = {k: _finite(row.get(k)) for k in NUMBERS}
    words = {k: str(row.get(k) or "") for k in ("verdict", "finish")}
    return {"text": text, "cut": cut, **words, **numbers}


def _finite(value: Any) -> float | None:
    return (
        rounded(float(value)) if isinstance(value, int | float) and math.isfinite(value) else None
    )


def shortened(text: str, most: int) -> tuple[str | list[str], int]:
    """The text if its JSON has at most `most` bytes, else its two ends; and what is left out."""
    keep = min(len(text), max(most, 0))
    while keep and (size := len(json.dumps(_ends(text, keep)))) > most:
        keep = min(keep - 1, keep * most // size)
    return (text, 0) if keep == len(text) else (_ends(text, keep), len(text) - keep)


def _ends(text: str, keep: int) -> list[str]:
    return [text[: keep - keep // 3], text[len(text) - keep // 3 :]]

"""Words that responses came to say, or ceased to say: the last logged batch beside the first.

Reward, length and entropy are silent where a policy begins to write its own name into its sums. A
word counts once a response, where its own prompt has it not, and is shown only if responses to
several prompts say it: what one problem is about is no habit.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from equipoise.report.runs import Run, version

MOST = 16  # words
LEAST = 0.05  # of the responses: the change of a word that is shown
PROMPTS = 3  # whose responses must say it
CHARACTERS = 1_000_000  # of a file's responses that are read
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
LETTERS = range(2, 25)  # of a word
SENTENCE = (
    "Share of the responses that say a word which their prompt has not, in the first logged batch and in the last; the "
    "words that changed most. One that spreads and that no problem asks for is drift, or something that the reward "
    "pays for: look it up in the samples."
)


class Said(NamedTuple):
    share: float  # of the responses
    prompts: int  # whose responses say it


NEVER = Said(0.0, 0)
Batch = dict[str, Said]
Shares = tuple[float, float]  # in the first batch and in the last


def words(runs: Sequence[Run]) -> dict[str, Any] | None:
    """A panel with a row per word and a column per run."""
    found = [first_and_last([run]) for run in runs]
    changes = {word: max(_change(each.get(word)) for each in found) for word in set().union(*found)}
    ranked = sorted((w for w in changes if changes[w] > 0), key=lambda w: (-changes[w], w))
    if not ranked:
        return None
    rows = [{"head": w, "cells": [cell(each.get(w)) for each in found]} for w in ranked[:MOST]]
    columns = ["word", *(run.name for run in runs)]
    return {
        "id": "words",
        "title": "Words that came and went",
        "sentence": SENTENCE,
        "table": {"columns": columns, "runs_across": True, "rows": rows},
    }


def cell(shares: Shares | None) -> dict[str, str]:
    first, last = shares or (0.0, 0.0)
    return {"text": f"{100 * first:.0f} → {100 * last:.0f} %"}


def _change(shares: Shares | None) -> float:
    """How far a share moved, in units in which all shares are equally sure; 0 below LEAST."""
    first, last = shares or (0.0, 0.0)
    moved = abs(math.asin(math.sqrt(last)) - math.asin(math.sqrt(first)))
    return moved if abs(last - first) >= LEAST else 0.0


def first_and_last(runs: Sequence[Run]) -> dict[str, Shares]:
    """Each word's shares in the first and the last logged batch, mean over runs that have two."""
    pairs = [_batches(run) for run in runs if len(run.rollouts) > 1]
    said = {w for pair in pairs for batch in pair for w in batch if batch[w].prompts >= PROMPTS}

    def mean(word: str, end: int) -> float:
        return sum(pair[end].get(word, NEVER).share for pair in pairs) / len(pairs)

    return {w: (mean(w, 0), mean(w, 1)) for w in said}


def _batches(run: Run) -> tuple[Batch, Batch]:
    first, last = run.rollouts[min(run.rollouts)], run.rollouts[max(run.rollouts)]
    return _said(first, version(first)), _said(last, version(last))


@lru_cache(maxsize=256)  # a page of 96 runs reads two files of each
def _said(file: Path, version: tuple[int, ...]) -> Batch:
    """What the responses of a rollout file say; a file that cannot be read says nothing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    times: Counter[str] = Counter()
    prompts: defaultdict[str, set[str]] = defaultdict(set)
    responses, left = 0, CHARACTERS
    try:
        rows = pq.read_table(file, columns=["prompt", "response"]).to_pylist()
    except (OSError, pa.ArrowException, KeyError):
        return {}
    for row in rows:
        prompt, response = row["prompt"] or "", row["response"] or ""
        said = _words(response[:left]) - _words(prompt)
        times.update(said)
        for word in said:
            prompts[word].add(prompt)
        responses, left = responses + 1, left - len(response)
        if left <= 0:
            break
    return {word: Said(n / responses, len(prompts[word])) for word, n in times.items()}


def _words(text: str) -> set[str]:
    return {word for word in WORD.findall(text.lower()) if len(word) in LETTERS}

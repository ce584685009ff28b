"""The metrics of a run of verl's under our names, so that the page draws it beside ours.

A launch of `equipoise export verl` has verl's file logger write `verl-TIME.jsonl` into the run's folder, one for each
start, with lines {"step": 3, "data": {"critic/score/mean": 0.4, ...}}. What our plug-in measures (bias/*, difficulty/*)
and whatever has no name of ours keeps its name.

Left alone, because the number is another: verl's entropy (summed as the loss is), `response_length/clip_ratio` (against
the longest response of the batch, not the limit), `best@k` (a bootstrap).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

FILES = "verl-*.jsonl"
NAMES = {
    "critic/score/mean": "reward/mean",
    "response_length/mean": "completions/mean_length",
    "response_length/min": "completions/min_length",
    "response_length/max": "completions/max_length",
    "actor/grad_norm": "grad_norm",
    "actor/lr": "lr",
    "actor/loss": "loss",
    "actor/pg_loss": "policy_loss",
    "actor/pg_clipfrac": "clip_ratio/region",
    "timing_s/gen": "timing_s/rollout",
    "timing_s/update_actor": "timing_s/train",
}
MEAN = re.compile(r"val-core/(?P<source>.+)/acc/mean@(?P<samples>\d+)")


def is_step(record: dict[str, Any]) -> bool:
    """Whether a line is of a step of training; the validation before the first one has a line as well."""
    return "training/global_step" in record["data"]


def metrics(record: dict[str, Any]) -> dict[str, Any]:
    """A line of verl's file as a line of metrics.jsonl."""
    data = record["data"]
    return {
        "step": record["step"],
        **{NAMES.get(name, name): value for name, value in data.items()},
    }


def evaluations(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The validations among them as lines of eval.jsonl: the mean accuracy, of which verl gives no interval.

    With held-out prompts of several sources verl has no mean over all of them, and there is none here.
    """
    found = []
    for record in records:
        means = [
            (m["samples"], value)
            for name, value in record["data"].items()
            if (m := MEAN.fullmatch(name))
        ]
        if len(means) == 1:
            samples, value = means[0]
            name = f"acc@{samples}"
            found.append({"step": record["step"], name: value, "interval": {name: [None, None]}})
    return found

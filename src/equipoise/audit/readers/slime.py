"""slime's --save-debug-rollout-data: one torch file a rollout, {"rollout_id": N, "samples":
[Sample.to_dict(), …]}.

The file is written after slime's filters, so what they dropped is not in it. `tokens` are those of
prompt and response; the last `response_length` are the response's, of which `loss_mask` says those
that the policy sampled. A reward that is a dictionary becomes one column for each key: name it with
`columns` as --reward-key did. Samples that were aborted, or that slime removed from the loss, are
left out. Evaluations ("eval_" before the number) are not read.

Read with weights_only=True: a file that holds more than plain values and tensors is refused.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from equipoise.audit.log import AuditError

SUFFIX = ".pt"
LEFT_OUT = ("aborted", "pending", "failed")


def is_evaluation(file: Path) -> bool:
    """slime puts "eval_" before the rollout's number, wherever that stands in the name."""
    return file.suffix == SUFFIX and re.search(r"eval_\d+", file.name) is not None


def columns(path: Path) -> dict[str, list[Any]]:
    """The responses in a file, by column."""
    try:
        dump = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        said = str(error).splitlines()[0]
        raise AuditError(
            f"{path} is not a rollout of slime's that can be read without running code: {said}"
        ) from error
    if not (isinstance(dump, dict) and {"rollout_id", "samples"} <= dump.keys()):
        raise AuditError(f"{path} is not slime's rollout data: it must hold rollout_id and samples")
    samples = [
        s for s in dump["samples"] if s["status"] not in LEFT_OUT and not s.get("remove_sample")
    ]
    rows = [
        _row(path, number, sample, int(dump["rollout_id"]))
        for number, sample in enumerate(samples, 1)
    ]
    shared = [name for name in (rows[0] if rows else ()) if all(name in row for row in rows)]
    return {name: [row[name] for row in rows] for name in shared}


def _row(path: Path, number: int, sample: dict[str, Any], step: int) -> dict[str, Any]:
    reward = sample["reward"]
    if reward is None:
        raise AuditError(
            f"{path}, sample {number}, column reward: missing; drop the sample, or give it a reward"
        )
    ids = _response_tokens(sample)
    row = {
        "prompt_id": str(sample["prompt"]),
        "step": step,
        "length": len(ids),
        "tokens": ids,
        "finish": "length" if sample["status"] == "truncated" else "stop",
    }
    if sample.get("group_index") is not None:
        row["group"] = sample["group_index"]
    return row | (reward if isinstance(reward, dict) else {"reward": reward})


def _response_tokens(sample: dict[str, Any]) -> list[int]:
    count = sample["response_length"]
    ids: Sequence[int] = sample["tokens"][len(sample["tokens"]) - count :]
    mask = sample.get("loss_mask")
    return [
        int(t) for t, own in zip(ids, [1] * count if mask is None else mask, strict=True) if own
    ]

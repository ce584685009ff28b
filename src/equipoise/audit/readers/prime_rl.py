"""prime-rl's episodes, one a line: rollouts/step_N/train/{all,effective}/traces.jsonl.

`effective` holds the traces a batch was trained on; `all` everything that arrived while it was
collected, filtered and stale groups included. A trainable trace is a response. Its length counts
the tokens the policy sampled (`mask`), in all turns. Where both folders are there, `all` is read
and every response says whether it was kept, and in which step.

Traces that failed have no reward and are left out. Token ids are read where every trace has one
sampled message: with several, equal sampled tokens need not have equal contexts. Evaluations
(step_N/eval) are not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from equipoise.audit.log import AuditError

COLUMNS = ("task", "env", "traces")
# The framework's limits, as `Trace.is_truncated` of verifiers 0.4 has them;
# a model call's own end is in `calls`.
LIMITS = (
    "max_turns",
    "max_input_tokens",
    "max_output_tokens",
    "max_total_tokens",
    "compaction_failed",
)


def files(folder: Path) -> list[Path]:
    """The training episodes below a run or its `rollouts`: all that was sampled, where written."""
    for subset in ("all", "effective"):
        found = list(folder.glob(f"step_*/train/{subset}/traces.jsonl"))
        if found:
            return sorted(found, key=_step)
    return []


def columns(path: Path, records: Iterable[tuple[int, dict[str, Any]]]) -> dict[str, list[Any]]:
    """The responses in a file, by column."""
    kept_in = None
    if path.parent.name == "all" and len(path.parents) > 3:
        kept_in = _kept_in(path.parents[3])
    rows: list[dict[str, Any]] = []
    for number, episode in records:
        try:
            rows += _responses(episode, _step(path), kept_in)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise AuditError(
                f"{path}, row {number}: not an episode as verifiers 0.4 writes it ({error!r}); "
                "write the responses as a table, and name its columns"
            ) from error
    if any(row["tokens"] is None for row in rows):
        for row in rows:
            del row["tokens"]
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def _responses(
    episode: dict[str, Any], step: int, kept_in: dict[str, int] | None
) -> Iterator[dict[str, Any]]:
    task = episode["task"]
    group = episode.get("group", {}).get("id")
    # A key names the task where there is one; otherwise its content does.
    prompt = task.get("key") or task.get("hash") or json.dumps(task["data"], sort_keys=True)
    for trace in episode["traces"]:
        if not trace["ok"] or not trace["agent"].get("trainable", True):
            continue
        sampled = [node for node in trace["nodes"] if node.get("sampled")]
        ids: list[int] = []
        for node in sampled:
            tokens = zip(node["token_ids"], node["mask"], strict=True)
            ids += [token for token, own in tokens if own]
        rewards = [reward for reward in trace["rewards"].values() if reward is not None]
        row = {
            "prompt_id": prompt,
            "group": group or prompt,
            "step": step,
            "reward": sum(reward["score"] * reward.get("weight", 1.0) for reward in rewards),
            "length": len(ids),
            "finish": "length" if _truncated(trace) else "stop",
            "tokens": ids if len(sampled) == 1 else None,
        }
        if kept_in is not None:
            row["kept"] = trace["id"] in kept_in
            row["step"] = kept_in.get(trace["id"], step)
        yield row


def _truncated(trace: dict[str, Any]) -> bool:
    if trace.get("stop_condition") in LIMITS:
        return True
    ended = [call for call in trace.get("calls", ()) if call.get("error") is None]
    return bool(ended and ended[-1].get("finish_reason") == "length")


def _step(path: Path) -> int:
    folder = path.parents[2].name if len(path.parents) > 2 else ""
    found = re.fullmatch(r"step_(\d+)", folder)
    if found is None:
        raise AuditError(
            f"{path} is not where prime-rl writes: step_N/train/{{all,effective}}/traces.jsonl tells the step"
        )
    return int(found[1])


def _kept_in(rollouts: Path) -> dict[str, int] | None:
    """The step in which each trace was trained on; None where no step of the run wrote that down."""
    found = sorted(rollouts.glob("step_*/train/effective/traces.jsonl"))
    if not found:
        return None
    return _kept(tuple((file, file.stat().st_size) for file in found))


@lru_cache(maxsize=4)  # every step's file asks for all of them; a run that goes on has other sizes
def _kept(files: tuple[tuple[Path, int], ...]) -> dict[str, int]:
    kept: dict[str, int] = {}
    for path, _ in files:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.strip():
                    kept |= {trace["id"]: _step(path) for trace in json.loads(line)["traces"]}
    return kept

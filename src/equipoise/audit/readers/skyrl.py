"""SkyRL's two dumps: the batches it trained on, and the results of its evaluations.

trainer.dump_data_batch      dumped_data/global_step_N_training_input.pkl, a pickled batch of left-padded tensors
trainer.dump_eval_results    dumped_evals/global_step_N_evals/SOURCE.jsonl, a response a line

SkyRL removes rewards and uids from a batch before it writes it. The group is then the prompt's
tokens, and the advantage, which must be one for all tokens of a response, stands for the reward: it
is the reward up to each group's mean and scale. What needs success rates (the baseline's bias,
difficulty weights) cannot be had from such a file.

A pickle can run code. Here it cannot: its one function and its classes are replaced by a plain
dictionary, and any other name is refused.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.audit.log import AuditError

SUFFIX = ".pkl"
SUMS = "aggregated_results.jsonl"  # lies beside the evaluations
EVALUATION = ("input_prompt", "output_response", "score", "stop_reason")
MODULE = "skyrl.backends.skyrl_train.training_batch"
NO_REWARDS = (
    "SkyRL's batches hold advantages and no rewards: they stand for each other up to a group's mean and scale, "
    "and nothing is said of success rates"
)
IS_EVALUATION = (
    "these are an evaluation's responses: the audit says what an objective would make of them"
)


def columns(path: Path) -> dict[str, list[Any]]:
    """The responses of a training batch, by column. The rewards are advantages."""
    batch = _tensors(path)
    for name in ("sequences", "attention_mask", "response_mask", "loss_mask", "advantages"):
        if batch.get(name) is None:
            raise AuditError(
                f"{path} is not a training batch of SkyRL's: it has no {name}, only {', '.join(batch)}"
            )
    width = batch["response_mask"].shape[1]
    out: dict[str, list[Any]] = {name: [] for name in ("prompt_id", "reward", "length", "tokens")}
    for row, ids in enumerate(batch["sequences"]):
        trained = batch["loss_mask"][row] > 0
        if not trained.any():
            continue  # rows that fill the batch up, and those kept out of the loss
        advantage = batch["advantages"][row][trained]
        if np.ptp(advantage) > 1e-6 * max(1.0, float(np.abs(advantage).max())):
            raise AuditError(
                f"{path}, row {row + 1}: its advantages differ between tokens, so no reward is behind it"
            )
        before = ids[: len(ids) - int(batch["response_mask"][row].sum())]
        real = batch["attention_mask"][row][: len(before)] > 0
        out["prompt_id"].append(before[real].astype(np.int64).tobytes().hex())
        out["reward"].append(float(advantage[0]))
        out["tokens"].append(ids[len(ids) - width :][trained].tolist())
        out["length"].append(int(trained.sum()))
    return out | {"step": [_step(path)] * len(out["reward"])}


def evaluation_columns(
    path: Path, records: Iterable[tuple[int, dict[str, Any]]]
) -> dict[str, list[Any]]:
    """The responses of an evaluation, by column. A score may be one number a token; they add up."""
    found = [record for _, record in records]
    scores = [r["score"] for r in found]
    return {
        "prompt": [r["input_prompt"] for r in found],
        "response": [r["output_response"] for r in found],
        "reward": [sum(s) if isinstance(s, list) else s for s in scores],
        "finish": [r["stop_reason"] or "unknown" for r in found],
        "step": [_step(path)] * len(found),
    }


def _step(path: Path) -> int:
    """The N of global_step_N in a file's name or its folder's; 0 where neither has one."""
    found = re.search(r"global_step_(\d+)", f"{path.parent.name}/{path.name}")
    return 0 if found is None else int(found[1])


class _Batch(dict[str, Any]):
    """Stands for every class of SkyRL's that a batch is pickled as."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (MODULE, "_rebuild_tensor_batch"):
            return lambda _, state: state["batch_dict"]
        if module == MODULE:
            return _Batch
        # torch.device has no state but its name; it lies beside the tensors.
        if (module, name) == ("torch", "device"):
            return torch.device
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no part of a batch")


def _tensors(path: Path) -> dict[str, Any]:
    try:
        values = _Unpickler(io.BytesIO(path.read_bytes())).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, KeyError, IndexError) as error:
        raise AuditError(f"{path} is not a training batch of SkyRL's: {error}") from error
    if not isinstance(values, dict):
        raise AuditError(
            f"{path} is not a training batch of SkyRL's: it holds a {type(values).__name__}"
        )
    return {name: _array(value) for name, value in values.items() if value is not None}


def _array(value: dict[str, Any]) -> Any:
    kind = value.get("format", "numpy")
    if kind == "numpy":
        return np.frombuffer(value["data"], np.dtype(value["dtype"])).reshape(value["shape"])
    if kind == "torch":  # dtypes that numpy has not, as bfloat16
        return torch.load(io.BytesIO(value["data"]), weights_only=True).float().numpy()
    return None  # lists of tensors hold images

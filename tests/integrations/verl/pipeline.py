"""A training batch on its way through verl's own code: agent outputs, padding, balancing, advantages, `ppo_loss`.

Only TransferQueue, which wants a Ray cluster, is replaced, by a dict. Everything is drawn from a seed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import torch
import verl
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo import padding_utils
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss

from equipoise import Objective

CONFIG = os.path.join(os.path.dirname(verl.__file__), "trainer", "config")
EQUIPOISE_LOSS = [
    "actor_rollout_ref.actor.policy_loss.loss_mode=equipoise",
    "actor_rollout_ref.actor.policy_loss._target_=equipoise.integrations.verl.plugin.PolicyLoss",
    "+actor_rollout_ref.actor.policy_loss.equipoise=${algorithm.equipoise}",
]


def configuration(*overrides: str, loss: list[str] = EQUIPOISE_LOSS, n: int = 4) -> DictConfig:
    """verl's own configuration, composed as its command line does and resolved as its driver does."""
    with initialize_config_dir(CONFIG, version_base=None):
        config = compose(
            "ppo_trainer",
            [
                "algorithm.adv_estimator=equipoise",
                "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum",
                "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
                f"actor_rollout_ref.rollout.n={n}",
                *loss,
                *overrides,
            ],
        )
    OmegaConf.resolve(config)
    return config


class Store:
    """What verl asks of TransferQueue."""

    def __init__(self) -> None:
        self.rows: dict[str, dict] = {}

    def kv_batch_put(self, keys, partition_id, fields=None, tags=None):
        for i, key in enumerate(keys):
            row = fields[i]
            self.rows.setdefault(key, {}).update({name: row[name] for name in row.keys()})  # noqa: SIM118
        return KVBatchMeta(keys=list(keys), tags=[{} for _ in keys], partition_id=partition_id)

    def kv_batch_get(self, keys, partition_id, select_fields=None):
        names = select_fields or list(self.rows[keys[0]])
        found = [{k: self.rows[key][k] for k in names if k in self.rows[key]} for key in keys]
        columns = {}
        for name in found[0]:
            values = [row[name] for row in found]
            if isinstance(values[0], Tensor):
                columns[name] = torch.nested.as_nested_tensor(values, layout=torch.jagged)
        strings = {k: [str(row[k]) for row in found] for k in found[0] if k not in columns}
        data = TensorDict(columns, batch_size=[len(found)])
        for name, values in strings.items():
            data[name] = values
        return data


@dataclass
class Batch:
    """The rows of a batch as verl's store holds them, in the order the driver has given them."""

    store: Store
    meta: KVBatchMeta
    metrics: dict

    def rows(self) -> list[dict]:
        return [self.store.rows[key] for key in self.meta.keys]


def drawn(seed: int, *, prompts: int = 5, n: int = 4, outputs: int = 1, dtype: torch.dtype = torch.float64) -> Batch:
    """Ragged groups (a session may fail), ragged lengths, tool tokens masked out within, an empty response.

    With `outputs` > 1 a session has up to that many, all with the reward of the last, as verl gives it.
    """
    g = np.random.default_rng(seed)
    keys, rows = [], []
    for p in range(prompts):
        uid = f"{g.integers(2**32):08x}-{p}"
        for session in range(n if p % 2 == 0 else int(g.integers(2, n + 1))):
            reward = float(g.integers(0, 2)) if p % 3 else round(float(g.random()), 2)
            for output in range(int(g.integers(1, outputs + 1))):
                prompt, length = int(g.integers(1, 5)), int(g.integers(1, 12))
                mask = torch.ones(length, dtype=torch.int64)
                if length > 4:
                    mask[1:3] = 0
                if not keys:
                    mask[:] = 0
                scores = torch.zeros(length)
                scores[-1] = reward
                old = torch.from_numpy(-0.05 - 3 * g.random(length)).to(dtype)
                near = (old + torch.from_numpy(0.3 * g.standard_normal(length))).clamp(max=-1e-3)
                keys.append(f"{uid}_{session}_{output}")
                rows.append(
                    {
                        "uid": uid,
                        "prompts": torch.arange(prompt),
                        "responses": torch.arange(length),
                        "response_mask": mask,
                        "loss_mask": mask,
                        "rm_scores": scores,
                        "rollout_log_probs": old.float(),
                        "old_log_probs": old,
                        "log_probs": torch.cat([torch.zeros(prompt - 1), near, old[:1]]).to(dtype),
                        "position_ids": torch.arange(prompt + length),
                    }
                )
    store = Store()
    for key, row in zip(keys, rows, strict=True):
        store.rows[key] = row
    tags = [{"seq_len": len(r["prompts"]) + len(r["responses"])} for r in rows]
    meta = KVBatchMeta(keys=keys, tags=tags, partition_id="train")
    meta.reorder(list(g.permutation(len(keys))))
    return Batch(store, meta, {})


def pad(batch: Batch, multiple: int, monkeypatch) -> None:
    """verl's own padding to a multiple, then its reordering."""
    monkeypatch.setattr(padding_utils, "tq", batch.store)
    before = set(batch.meta.keys)
    batch.meta = padding_utils.upsample_batch_to_divisible_size(batch.meta, multiple, eos_token_id=0)
    for key in set(batch.meta.keys) - before:
        row = batch.store.rows[key]
        row["log_probs"] = torch.zeros(len(row["input_ids"]), dtype=torch.float64)
        row["old_log_probs"] = torch.zeros(1, dtype=torch.float64)
    order = np.random.default_rng(len(before)).permutation(len(batch.meta))
    batch.meta.reorder([int(i) for i in order])


def advantages(batch: Batch, config: DictConfig, monkeypatch) -> None:
    """verl's own step from rewards to advantages, which writes them back to the store."""
    monkeypatch.setattr(trainer_base, "tq", batch.store)
    trainer = object.__new__(trainer_base.PPOTrainer.__subclasses__()[0])
    trainer.config = config
    trainer._compute_advantage(batch.meta, batch.metrics)


def theirs(batch: Batch, config: DictConfig, *, mini: int, dp: int, seed: int) -> tuple[Tensor, list[Tensor]]:
    """The mean over the mini-batches of what verl's workers would step on, and its gradient for each row's tokens.

    Each mini-batch is dealt to `dp` ranks, each rank splits its rows into micro-batches of random sizes, and the ranks'
    gradients are averaged, as FSDP averages them.
    """
    g = np.random.default_rng(seed)
    rows = batch.rows()
    logps = [row["log_probs"].clone().requires_grad_() for row in rows]
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    total, minis = torch.zeros((), dtype=torch.float64), len(rows) // mini
    assert minis * mini == len(rows)
    share = len(rows) // dp
    for m in range(minis):
        for rank in range(dp):
            mine = np.arange(rank * share, (rank + 1) * share)[m * mini // dp : (m + 1) * mini // dp]
            cuts = np.flatnonzero(g.random(len(mine) - 1) < 0.5) + 1 if len(mine) > 1 else []
            for micro in np.split(mine, cuts):
                loss, _ = ppo_loss(
                    config=actor,
                    model_output={"log_probs": torch.cat([logps[i] for i in micro])},
                    data=_micro([rows[i] for i in micro], dp, mini, rows),
                )
                total = total + loss.double() / dp / minis
    gradients = torch.autograd.grad(total, logps, allow_unused=True)
    return total.detach(), [torch.zeros_like(p) if d is None else d for p, d in zip(logps, gradients, strict=True)]


def _micro(rows: list[dict], dp: int, mini: int, everyone: list[dict]) -> TensorDict:
    fields = ("prompts", "responses", "response_mask", "old_log_probs", "advantages")
    data = TensorDict(
        {k: torch.nested.as_nested_tensor([row[k] for row in rows], layout=torch.jagged) for k in fields},
        batch_size=[len(rows)],
    )
    tokens = int(sum(row["response_mask"].sum() for row in everyone))
    return tu.assign_non_tensor(data, dp_size=dp, batch_num_tokens=tokens, global_batch_size=mini)


def ours(batch: Batch, objective: Objective) -> tuple[Tensor, list[Tensor]]:
    """The same from `equipoise.objective` alone: one call on flat tokens; a session's outputs are one response."""
    real = [i for i, key in enumerate(batch.meta.keys) if not key.startswith("pad")]
    rows, logps = batch.rows(), [row["log_probs"].clone().requires_grad_() for row in batch.rows()]
    sessions: dict[str, list[int]] = {}
    for i in real:
        sessions.setdefault(batch.meta.keys[i].rpartition("_")[0], []).append(i)
    last = [max(rows_, key=lambda i: int(batch.meta.keys[i].rpartition("_")[2])) for rows_ in sessions.values()]
    masks = [row["response_mask"].bool() for row in rows]
    credit = objective.assign(
        [float(rows[i]["rm_scores"].sum()) for i in last],
        [rows[i]["uid"] for i in last],
        [int(sum(masks[i].sum() for i in rows_)) for rows_ in sessions.values()],
    )
    logp, old, response = [], [], []
    for number, rows_ in enumerate(sessions.values()):
        for i in rows_:
            n = len(rows[i]["responses"])
            logp.append(logps[i][-n - 1 : -1][masks[i]])
            old.append(rows[i]["old_log_probs"][masks[i]])
            response.append(torch.full((int(masks[i].sum()),), number))
    out = objective.loss(torch.cat(logp), torch.cat(old), credit, torch.cat(response))
    assert bool(out.ok)
    return out.loss.detach(), list(torch.autograd.grad(out.loss, logps, allow_unused=True, materialize_grads=True))

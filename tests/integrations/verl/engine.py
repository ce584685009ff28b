"""One rank of verl's own FSDP engine on the CPU: a step of the embedded model with our estimator, and a checkpoint.

Run as RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say: `python -m tests.integrations.verl.engine OPTIONS FOLDER`.
The CPU is a platform of ours in verl's registry. Rank 0 writes what it found to FOLDER/found.json.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import sys

os.environ["VERL_PLATFORM"] = "cpu"

import torch
from tensordict import TensorDict
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
from verl.workers.utils.losses import ppo_loss

from equipoise.integrations.verl import plugin
from equipoise.policy.names import ABACUS
from tests.integrations.verl import pipeline

ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
MULTIPLE = 8


class Patch:
    """What pytest's monkeypatch does, for a process of its own."""

    setattr = staticmethod(setattr)


def batch_of(model, config) -> pipeline.Batch:
    """A batch whose old log-probabilities are near the model's, weighed by verl's driver."""
    batch = pipeline.drawn(1, prompts=4, dtype=torch.float32)
    pipeline.pad(batch, MULTIPLE, Patch)
    g = torch.Generator().manual_seed(0)
    for row in batch.rows():
        row["input_ids"] = torch.cat([row["prompts"], row["responses"]])
        row["position_ids"] = torch.arange(len(row["input_ids"]))
        row["old_log_probs"] = logprobs(model, row).detach() + 0.3 * torch.randn(len(row["responses"]), generator=g)
    pipeline.advantages(batch, config, Patch)
    return batch


def logprobs(model, row):
    ids, n = row["input_ids"][None], len(row["responses"])
    return model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[-n:, 0]


def ours(model, batch, objective):
    """The gradient of `equipoise.objective` on the plain model, one response after the other."""
    rows = [row for key, row in zip(batch.meta.keys, batch.rows(), strict=True) if not key.startswith("pad")]
    masks = [row["response_mask"].bool() for row in rows]
    credit = objective.assign(
        [float(row["rm_scores"].sum()) for row in rows], [row["uid"] for row in rows], [int(m.sum()) for m in masks]
    )
    total = 0.0
    for i, (row, mask) in enumerate(zip(rows, masks, strict=True)):
        if mask.any():
            tokens = logprobs(model, row)[mask], row["old_log_probs"][mask]
            out = objective.loss(*tokens, credit, torch.full((int(mask.sum()),), i))
            out.loss.backward()
            total += float(out.loss.detach())
    return total, {name: p.grad.clone() for name, p in model.named_parameters()}


def rank_data(batch, rank, world):
    rows = batch.rows()
    share = len(rows) // world
    mine = rows[rank * share : (rank + 1) * share]
    fields = ("input_ids", "position_ids", "prompts", "responses", "response_mask", "loss_mask", "old_log_probs",
              "advantages")  # fmt: skip
    data = TensorDict(
        {k: torch.nested.as_nested_tensor([row[k] for row in mine], layout=torch.jagged) for k in fields},
        batch_size=[share],
    )
    return tu.assign_non_tensor(data, temperature=1.0, global_batch_size=len(rows), calculate_entropy=False)


def main(options: str, folder: str) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group("gloo")
    plugin._watch()
    config = pipeline.configuration(
        f"+algorithm.equipoise={options}",
        f"{MODEL}.path={ABACUS}",
        f"{MODEL}.use_remove_padding=False",
        f"{MODEL}.enable_gradient_checkpointing=False",
        f"+{MODEL}.override_config.attn_implementation=eager",
        f"{ACTOR}.strategy=fsdp2",
        f"{ACTOR}.fsdp_config.dtype=float32",
        f"{ACTOR}.fsdp_config.model_dtype=fp32",
        f"{ACTOR}.fsdp_config.use_torch_compile=False",
        f"+{ACTOR}.fsdp_config.mixed_precision={{param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}}",
        f"{ACTOR}.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
    )
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    actor.model_config = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=actor.model_config,
            engine_config=actor.engine,
            optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint,
        )
    )
    worker.reset()
    worker.set_loss_fn(functools.partial(ppo_loss, config=actor))
    plain = AutoModelForCausalLM.from_pretrained(ABACUS, attn_implementation="eager", dtype=torch.float32)
    batch = batch_of(plain, config)
    plugin._objective.cache_clear()
    loss, expected = ours(plain, batch, plugin.objective_of(config.algorithm.equipoise))
    engine, size = worker.engine, max(float(d.abs().max()) for d in expected.values())
    found = {"ours": loss, "rows": len(batch.meta), "gradient": [], "loss": []}
    fixed = [{"use_dynamic_bsz": False, "micro_batch_size_per_gpu": rows} for rows in (1, 2, 4)]
    packed = [{"use_dynamic_bsz": True, "max_token_len_per_gpu": tokens} for tokens in (160, 400)]
    for split in (*fixed, *packed):
        data = tu.assign_non_tensor(
            rank_data(batch, rank, world), use_remove_padding=False, use_fused_kernels=False, **split
        )
        with engine.train_mode():
            engine.optimizer_zero_grad()
            output = engine.forward_backward_batch(data, worker.loss_fn)
            gradients = {name: p.grad.full_tensor() for name, p in engine.module.named_parameters()}
        value = torch.tensor(sum(output["loss"]))
        torch.distributed.all_reduce(value)
        found["loss"].append(float(value) / world)
        found["gradient"].append(max(float((gradients[k] - expected[k]).abs().max()) for k in expected) / size)
    data = tu.assign_non_tensor(
        rank_data(batch, rank, world), mini_batch_size=MULTIPLE, epochs=1, seed=0, dataloader_kwargs={"shuffle": False},
        use_dynamic_bsz=True, max_token_len_per_gpu=300,
    )  # fmt: skip
    output = worker.train_mini_batch(data)
    worker.save_checkpoint(os.path.join(folder, "global_step_1", "actor"), None, 1)
    if rank == 0:
        found["grad_norm"] = [float(x) for x in tu.get(output, "metrics")["grad_norm"]]
        pathlib.Path(folder, "found.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

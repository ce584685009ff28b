"""A TRL run whose responses, rewards and old log-probabilities are known beforehand, and the gradient it should have.

The same case in any split: three prompts of four responses, by the place of a row in the generation batch. Run as a
module by torchrun or `accelerate launch` (`-m tests.integrations.trl.case REQUEST.json`) it leaves rank 0's gradients
in a file, or where the model is sharded, by how much one step of plain SGD moved each weight.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from equipoise.integrations.trl.plugin import EquipoiseGRPOTrainer
from equipoise.objective import Objective, response_ids
from tests.integrations.trl import sharded

SHARDED = "true" in (os.environ.get("ACCELERATE_USE_FSDP"), os.environ.get("ACCELERATE_USE_DEEPSPEED"))
PROMPTS = ("1+2=", "13+4+5=", "2+30=")
GROUP = 4
ROWS = len(PROMPTS) * GROUP
EOS = 2
SAMPLED = [-1.0 - 0.1 * (t % 5) for t in range(16)]  # the sampler's log-probabilities of any response
STATE = {"difficulty": {"observations": [0.25, 0.5], "anchors": [0.25, 0.375]}}


def completions() -> list[list[int]]:
    """Of lengths 2 to 11, the responses of a prompt beginning alike; all but two end."""
    draw = torch.Generator().manual_seed(7)
    out = []
    for i in range(ROWS):
        length = int(torch.randint(2, 12, (), generator=draw))
        tokens = torch.randint(3, 18, (length,), generator=draw).tolist()
        tokens[0] = 3 + i // GROUP
        out.append([*tokens[:-1], EOS] if i not in (3, 6) else tokens)
    return out


def rewards() -> list[float]:
    """Mixed groups, one of them with a reward in between; in [0, 1], as a success rate has to be."""
    return [1.0, 0.0, 0.0, 1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0]


def noise(seed: int, width: int = 16) -> torch.Tensor:
    """[ROWS, width] differences of log-probabilities: enough to be clipped now and then."""
    return 0.25 * torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(seed))[:, :width]


class Drifting:
    """Old and reference log-probabilities that differ from the policy's by a known noise."""

    drifts = True

    def _generate_and_score_completions(self, inputs):
        out = super()._generate_and_score_completions(inputs)
        if not self.drifts or not self.model.training:
            return out
        ids = torch.cat([out["prompt_ids"], out["completion_ids"]], 1)
        mask = torch.cat([out["prompt_mask"], out["completion_mask"]], 1)
        width = out["completion_ids"].shape[1]
        with torch.no_grad():
            now = self._get_per_token_logps_and_entropies(self.model, ids, mask, width)[0]
        mine = [(self.accelerator.process_index * len(ids) + i) % ROWS for i in range(len(ids))]
        out |= {"old_per_token_logps": now - noise(3, width)[mine]}
        if "ref_per_token_logps" in out:
            out |= {"ref_per_token_logps": now + noise(4, width)[mine]}
        return out


class Known(Drifting, EquipoiseGRPOTrainer):
    pass


class Plain(Drifting, GRPOTrainer):
    """TRL as it is."""

    def __init__(self, *args, objective=None, **kwargs):
        super().__init__(*args, **kwargs)


def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """TRL's rollout_func: the rows of this rank in the generation batch (twice the batch, if it holds two)."""
    first = trainer.accelerator.process_index * len(prompts)
    rows = [i % ROWS for i in range(first, first + len(prompts))]
    known, tokenizer = completions(), trainer.processing_class
    return {
        "prompt_ids": [tokenizer(p)["input_ids"] for p in prompts],
        "completion_ids": [known[i] for i in rows],
        "logprobs": [SAMPLED[: len(known[i])] for i in rows],
        "row": rows,
    }


def reward(completions: list[str], row: list[int], **columns: Any) -> list[float]:
    return [rewards()[i] for i in row]


class Gradients(TrainerCallback):
    """The gradient before every optimizer step, and every record of the log."""

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []
        self.weights: list[dict[str, torch.Tensor]] = []
        self.logs: list[dict[str, float]] = []
        self.trainer: Any = None

    def on_pre_optimizer_step(self, args, state, control, model=None, **more):
        if SHARDED:  # a rank has a part of the gradient, or none any more
            return
        self.found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad]).clone())
        self.weights.append({k: v.clone() for k, v in model.state_dict().items()})

    def on_log(self, args, state, control, logs=None, **more):
        self.logs.append(dict(logs))


def build(model: str, out: str, objective: str | Objective, kind: type = Known, **options: Any):
    """A trainer of the known case and who watches it. Options are GRPOConfig's, and a few of the trainer's own."""
    watched = Gradients()
    settings = {
        "output_dir": out, "use_cpu": True, "bf16": False, "num_generations": GROUP, "max_completion_length": 16,
        "learning_rate": 0.0, "lr_scheduler_type": "constant", "max_steps": 1, "max_grad_norm": 0.0, "logging_steps": 1,
        "save_strategy": "no", "report_to": "none", "gradient_checkpointing": False, "shuffle_dataset": False,
        "disable_tqdm": True, "seed": 0, "per_device_train_batch_size": ROWS, "gradient_accumulation_steps": 1,
    }  # fmt: skip
    own = {k: options.pop(k) for k in ("reward_funcs", "rollout_func", "eval_dataset", "peft_config") if k in options}
    data = options.pop("train_dataset", None) or Dataset.from_list([{"prompt": p} for p in PROMPTS])
    known = {"reward_funcs": reward, "rollout_func": rollout} | own
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = kind(
            model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(model),
            args=GRPOConfig(**(settings | options)),
            train_dataset=data, callbacks=[watched], objective=objective, **known,
        )  # fmt: skip
    return trainer, watched


def run(model: str, out: str, objective: str | Objective, resume: str | None = None, **options: Any) -> Gradients:
    trainer, watched = build(model, out, objective, **options)
    trainer.train(resume_from_checkpoint=resume)
    watched.trainer = trainer
    return watched


def stateful(choices: dict[str, Any]) -> Objective:
    """The objective with an anchor that has seen two batches, where it has one."""
    objective = Objective(**choices)
    if objective.difficulty is not None:
        objective.load_state_dict(STATE)
    return objective


def token_table(model: torch.nn.Module, tokenizer: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Log-probabilities and entropies of each response's tokens, row by row: no padding, no batch, no TRL."""
    logps, entropies = [], []
    for i, response in enumerate(completions()):
        ids = tokenizer(PROMPTS[i // GROUP])["input_ids"]
        table = model(torch.tensor([ids + response])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
        logps.append(table[range(len(response)), response])
        entropies.append(-(table.exp() * table).sum(-1))
    return logps, entropies


def wanted(
    model: str,
    objective: Objective,
    *,
    weights: dict[str, torch.Tensor] | None = None,
    masks: list[list[int]] | None = None,
    scores: list[Any] | None = None,
) -> torch.Tensor:
    """The gradient of `equipoise.objective` on the whole batch, in float64.

    weights   the policy's now; then its weights at first are the old policy's, and there is no noise
    masks     the tokens of each response that count; scores: its reward or rewards, None for one without
    """
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(model)
    masks = [[1] * len(c) for c in completions()] if masks is None else masks
    scores = rewards() if scores is None else scores
    rows = [i for i in range(ROWS) if scores[i] is not None]

    def flat(parts: Any) -> torch.Tensor:
        return torch.cat([torch.as_tensor(parts[i])[torch.tensor(masks[i]).bool()] for i in rows])

    T = torch.tensor([sum(masks[i]) for i in rows])
    credit = objective.assign(
        torch.tensor([scores[i] for i in rows]), torch.tensor(rows) // GROUP, T, tokens=flat(completions())
    )
    wide = [noise(3)[i, : len(c)] for i, c in enumerate(completions())]
    with torch.no_grad():
        old = token_table(policy, tokenizer)[0]
    if weights is None:
        old = [o - n for o, n in zip(old, wide, strict=True)]
    else:
        policy.load_state_dict(weights)
    logps, entropies = token_table(policy, tokenizer)
    ref = [logp.detach() + noise(4)[i, : len(logp)] for i, logp in enumerate(logps)]
    sampled = [SAMPLED[: len(c)] for c in completions()]
    out = objective.loss(
        flat(logps), flat(old), credit, response_ids(T), position=torch.cat([torch.arange(int(n)) for n in T]),
        entropy=flat(entropies), ref_logprobs=flat(ref), rollout_logprobs=flat(sampled),
    )  # fmt: skip
    out.loss.backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters()])


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b).norm() / b.norm())


def fork(ranks: int, port: str) -> None:
    """This process, as often as there are ranks. torchrun would have each of them import TRL."""
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    children = []
    for rank in range(ranks):
        children.append(os.fork())
        if children[-1] == 0:
            os.environ.update(shared, RANK=str(rank), LOCAL_RANK=str(rank))
            return
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    sys.exit(next((code for code in codes if code), 0))


def whole(weight: torch.Tensor) -> torch.Tensor:
    """All of a weight of which each rank holds a part."""
    if hasattr(weight, "full_tensor"):  # FSDP2
        return weight.full_tensor().detach()
    if hasattr(weight, "ds_id"):  # ZeRO-3
        import deepspeed

        with deepspeed.zero.GatheredParameters([weight]):
            return weight.detach().clone()
    return weight.detach()


def moved(model: str, trained: torch.nn.Module) -> torch.Tensor:
    """By how much a step of SGD at rate 1 moved each weight: the gradient, whoever held which part of it."""
    # under ZeRO-3 transformers shards this one too
    start = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    pairs = zip(start.parameters(), trained.parameters(), strict=True)
    return torch.cat([(whole(before) - whole(after)).flatten() for before, after in pairs])


def main() -> None:
    """Every case of the request on every rank; rank 0 writes."""
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    if "RANK" not in os.environ:
        fork(2, request["port"])
    if SHARDED:
        sharded.allow_cpu()
    found = {}
    for name, case in request["cases"].items():
        step = {"optim": "sgd", "learning_rate": 1.0} if SHARDED else {}
        watched = run(request["model"], request["out"], stateful(case["choices"]), **case["options"], **step)
        state = watched.trainer.objective.state_dict()
        gradients = [moved(request["model"], watched.trainer.model)] if SHARDED else watched.found
        found[name] = {"gradients": gradients, "logs": watched.logs, "state": state}
    if os.environ["RANK"] == "0":
        torch.save(found, request["found"])
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

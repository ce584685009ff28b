"""A TRL run whose responses, rewards and old log-probabilities are known beforehand, and the gradient it should have.

The same case in any split: three prompts of four responses, by the place of a row in the generation batch. Run as a
module under torchrun (`python -m tests.integrations.trl_case REQUEST.json`) it leaves rank 0's gradients in a file.
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
from trl import GRPOConfig

from equipoise.integrations.trl import EquipoiseGRPOTrainer
from equipoise.objective import Objective, response_ids

PROMPTS = ("1+2=", "13+4+5=", "2+30=")
GROUP = 4
ROWS = len(PROMPTS) * GROUP
EOS = 2
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


def drift(width: int) -> torch.Tensor:
    """[ROWS, width] log π − log π_old: enough to be clipped now and then."""
    noise = torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(3))
    return 0.25 * noise[:, :width]


class Known(EquipoiseGRPOTrainer):
    """The known responses, and old log-probabilities that differ from the policy's where `drifts`."""

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
        rows = len(ids)
        mine = slice(self.accelerator.process_index * rows, (self.accelerator.process_index + 1) * rows)
        return {**out, "old_per_token_logps": now - drift(width)[mine]}


def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """TRL's rollout_func: the rows of this rank in the generation batch (twice the batch, if it holds two)."""
    first = trainer.accelerator.process_index * len(prompts)
    rows = [i % ROWS for i in range(first, first + len(prompts))]
    known, tokenizer = completions(), trainer.processing_class
    return {
        "prompt_ids": [tokenizer(p)["input_ids"] for p in prompts],
        "completion_ids": [known[i] for i in rows],
        "logprobs": [[-1.0 - 0.1 * (t % 5) for t in range(len(known[i]))] for i in rows],
        "row": rows,
    }


def reward(completions: list[str], row: list[int], **columns: Any) -> list[float]:
    return [rewards()[i] for i in row]


class Gradients(TrainerCallback):
    """The gradient before every optimizer step, and every record of the log."""

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []
        self.logs: list[dict[str, float]] = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **more):
        self.found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad]).clone())

    def on_log(self, args, state, control, logs=None, **more):
        self.logs.append(dict(logs))


def train(model: str, out: str, objective: str | Objective, kind: type = Known, **options: Any):
    """One TRL run; the trainer and what it left. Options that GRPOConfig does not know go to the trainer."""
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
    trainer, watched = train(model, out, objective, **options)
    trainer.train(resume_from_checkpoint=resume)
    watched.trainer = trainer
    return watched


def stateful(choices: dict[str, Any]) -> Objective:
    """The objective with an anchor that has seen two batches, where it has one."""
    objective = Objective(**choices)
    if objective.difficulty is not None:
        objective.load_state_dict(STATE)
    return objective


def flat_logprobs(model: torch.nn.Module, tokenizer: Any, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of the responses' tokens, row by row: no padding, no batch, no TRL."""
    logps, entropies = [], []
    for i, response in enumerate(completions()):
        ids = tokenizer(PROMPTS[i // GROUP])["input_ids"]
        logits = model(torch.tensor([ids + response])).logits[0, len(ids) - 1 : -1]
        table = logits.log_softmax(-1)
        logps.append(table[range(len(response)), response][: int(lengths[i])])
        entropies.append(-(table.exp() * table).sum(-1)[: int(lengths[i])])
    return torch.cat(logps), torch.cat(entropies)


def wanted(model: str, objective: Objective, drifts: bool = True, lengths: list[int] | None = None) -> torch.Tensor:
    """The gradient of `equipoise.objective` on the whole batch, in float64."""
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(model)
    T = torch.tensor([len(c) for c in completions()] if lengths is None else lengths)
    tokens = torch.cat([torch.tensor(c)[: int(n)] for c, n in zip(completions(), T, strict=True)])
    credit = objective.assign(rewards(), torch.arange(ROWS) // GROUP, T, tokens=tokens)
    logp, entropy = flat_logprobs(policy, tokenizer, T)
    apart = torch.cat([drift(16)[i, : int(n)] for i, n in enumerate(T)]).double() if drifts else 0.0
    position = torch.cat([torch.arange(int(n)) for n in T])
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    with torch.no_grad():
        ref = flat_logprobs(reference, tokenizer, T)[0]
    old = logp.detach() - apart
    known = torch.cat([torch.tensor([-1.0 - 0.1 * (t % 5) for t in range(int(n))]) for n in T])
    out = objective.loss(
        logp, old, credit, response_ids(T), position=position, entropy=entropy, ref_logprobs=ref, rollout_logprobs=known
    )
    out.loss.backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters()])


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b).norm() / b.norm())


def main() -> None:
    """Every case of the request on every rank; rank 0 writes."""
    request = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    found = {}
    for name, case in request["cases"].items():
        watched = run(request["model"], request["out"], stateful(case["choices"]), **case["options"])
        state = watched.trainer.objective.state_dict()
        found[name] = {"gradients": watched.found, "logs": watched.logs, "state": state}
    if os.environ.get("RANK", "0") == "0":
        torch.save(found, request["found"])
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""A step of Qwen3-8B's shape on one GPU, all weights and LoRA, responses of up to 16,384 tokens.

    python benchmarks/large.py [full] [lora] [--prompts 2] [--group 8] [--longest 16384] [--limit 120]
    python benchmarks/large.py --model toy --longest 64 --out toy     # on a CPU, in a minute

Random weights in bfloat16. `full`: float32 masters and gradients, AdamW's moments in 8 bits, which are 12 bytes a
parameter (92 GiB; with moments in float32 it would be 18, 137 GiB). `lora`: adapters of rank 64 in float32 on every
linear layer but the head. Both as eq.Trainer plans them: packed, prompts stored once, micro-batches and gradient
checkpointing as they fit. Lengths are lognormal, mean 0.4 of the limit, coefficient of variation 0.6, and the longest
is the limit. Decoding so many tokens one by one would take minutes: `--decoded` of each response is sampled, from a
cache with room for whole ones, and the rest drawn uniformly from the vocabulary. Every other response is right.

Two steps, the first with what was decoded alone: it compiles and plans. Of the second: seconds by part, peak GiB
while sampling and while training beside the plan's, tokens per second of training (the optimizer's step included),
and MFU as benchmarks/scale.py counts it; with LoRA a frozen weight counts 4 operations a token, not 6.
Each kind is a child process, ended after `--limit` seconds; written after each to benchmarks/results/large.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import children  # benchmarks/children.py
import report
import shapes
import torch
from given_lengths import GivenLengths
from lengths import lognormal
from sampler import ceilings
from torch import Tensor

from equipoise import policy as models
from equipoise.rollout import Rollouts
from equipoise.train import Trainer, read_lines

KINDS = ("full", "lora")
MEAN, CV, PROMPT, RANK = 0.4, 0.6, 128, 64
PARTS = ("rollout", "reward", "assign", "train", "step")
GIB = 2**30


def drawn(rows: int, longest: int) -> Tensor:
    """[rows] lengths of responses, the longest of which reaches the limit."""
    lengths = lognormal(rows, MEAN * longest, CV, longest)
    lengths[lengths.argmax()] = longest
    return lengths


def lengthened(rollouts: Rollouts, lengths: Tensor, vocabulary: int) -> Rollouts:
    """With tokens drawn uniformly behind those that were sampled, until each response is as long as asked for."""
    short = rollouts.lengths.tolist()
    rests = [n - done for n, done in zip(lengths.tolist(), short, strict=True)]
    random = torch.randint(2, vocabulary, (sum(rests),), device=rollouts.tokens.device)  # 0 ends, 1 pads
    chances = torch.full_like(random, -math.log(vocabulary - 2), dtype=rollouts.logprobs.dtype)

    def joined(sampled: Tensor, rest: Tensor) -> Tensor:
        pairs = zip(sampled.split(short), rest.split(rests), strict=True)
        return torch.cat([part for pair in pairs for part in pair])

    tokens, logprobs = joined(rollouts.tokens, random), joined(rollouts.logprobs, chances)
    return dataclasses.replace(rollouts, tokens=tokens, logprobs=logprobs, lengths=lengths)


class Sampler(GivenLengths):
    """The first call's responses are the decoded part alone, the second's are whole."""

    def __init__(self, policy: models.Policy, job: dict[str, Any]) -> None:
        super().__init__(policy)
        self.job, self.calls, self.peak = job, 0, 0

    def sample(self, prompts: Any, n: int, params: Any, **more: Any) -> Rollouts:
        device = self.policy.device
        whole = drawn(len(prompts) * n, params.max_tokens).to(device)
        self.lengths = (self.job["decoded"] * whole).long().clamp(min=1)
        reset_peak()
        rollouts = super().sample(prompts, n, params, **more)
        self.peak = peak()
        reset_peak()
        self.calls += 1
        if self.calls > 1:
            rollouts = lengthened(rollouts, whole, self.policy.core.config.vocab_size)
        finish = ["length" if length >= params.max_tokens else "stop" for length in rollouts.lengths.tolist()]
        return dataclasses.replace(rollouts, finish=finish)


def every_other(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    return [float(i % 2) for i in range(len(completions))]


def step(kind: str, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    cuda = torch.cuda.is_available()
    operations = ceilings()["operations"] if cuda else math.inf
    model = built(kind, job["model"], cuda)
    texts = shapes.prompts(2 * job["prompts"], PROMPT)
    options = {
        "rollout.prompts": job["prompts"], "rollout.group_size": job["group"], "rollout.max_tokens": job["longest"],
        "objective.preset": "dapo", "optim.lr": 1e-6, "optim.state": "8bit" if kind == "full" else "float32",
        "train.steps": 2, "train.out": str(folder / "run"), "train.checkpoint_every": 10**6, "task.dedupe": False,
        "eval.every": 0, "log.rollouts_every": 0, "log.terminal": False,
    }  # fmt: skip
    trainer = Trainer(
        options,
        model=model,
        tokenizer=shapes.tokenizer(shapes.configuration(job["model"]).vocab_size),
        dataset=[{"problem": text, "answer": "1"} for text in texts],
        rewards=[every_other],
    )
    trainer._checkpoint = lambda: None  # what is measured are steps
    trainer.collector.sampler = sampler = Sampler(trainer.policy, job)
    trainer.run()
    record, plan = read_lines(trainer.folder.metrics)[-1], trainer.updater.plan
    assert plan is not None
    lengths = drawn(job["prompts"] * job["group"], job["longest"]).double()
    seconds = {part: record[f"timing_s/{part}"] for part in PARTS}
    tokens = float(lengths.sum()) + job["prompts"] * PROMPT
    rate = work(trainer.policy, tokens, lengths) / seconds["train"]
    return {
        "seconds": seconds,
        "tokens": tokens,
        "longest": int(lengths.max()),
        "train_tokens_per_second": tokens / seconds["train"],
        "mfu": rate / operations,
        "mfu_of_989": rate / 989e12,
        "plan": {"tokens": plan.tokens, "gradient_checkpointing": plan.checkpointing, "gib": plan.peak / GIB},
        "planned": plan.said,
        "sampling_peak_gib": sampler.peak / GIB,
        "training_peak_gib": peak() / GIB,
        "state_gib": (trainer.updater.optimizer.state_bytes() + models.weight_bytes(trainer.policy.model)) / GIB,
        "policy_loss": record["policy_loss"],
        "grad_norm": record["grad_norm"],
        "finite": math.isfinite(record["policy_loss"]) and math.isfinite(record["grad_norm"]) and not record["skipped"],
        "optimizer_steps": record["optimizer_steps"],
    }


def built(kind: str, name: str, cuda: bool) -> Any:
    model = shapes.build(name, device="cuda" if cuda else "cpu", dtype=torch.bfloat16 if cuda else torch.float32)
    if kind == "full":
        return model
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(**models.Lora(rank=RANK).arguments()))


def work(policy: models.Policy, tokens: float, lengths: Tensor) -> float:
    """Operations of forward and backward: recomputation is not counted, and causality not subtracted."""
    config, attn = policy.core.config, policy.core.model.layers[0].self_attn
    trained = sum(p.numel() for p in policy.parameters())
    frozen = sum(p.numel() for p in policy.model.parameters()) - trained
    if not config.tie_word_embeddings:  # looked up, not multiplied
        embedding = policy.core.model.embed_tokens.weight
        trained -= embedding.numel() * embedding.requires_grad
        frozen -= embedding.numel() * (not embedding.requires_grad)
    scores = 12 * config.num_hidden_layers * config.num_attention_heads * attn.head_dim
    return (6 * trained + 4 * frozen) * tokens + scores * float((lengths**2).sum())


def reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(KINDS), help="full, lora")
    parser.add_argument("--model", choices=["toy", *shapes.SHAPES], default="Qwen3-8B")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--longest", type=int, default=16_384, help="tokens of the longest response")
    parser.add_argument("--decoded", type=float, default=1 / 16, help="share of each response; 1 decodes all of it")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a kind at most")
    parser.add_argument("--out", default="large", help="benchmarks/results/OUT.json")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        kind, folder = options.inside[0], Path(options.inside[1])
        children.found(folder, step(kind, children.job(folder), folder))
        return
    children.ended_by_signal()
    results: dict[str, Any] = {}

    def keep(index: int, row: dict[str, Any]) -> None:
        results[options.kinds[index]] = row
        print(options.kinds[index], row, flush=True)
        report.write(options.out, {"options": vars(options), "results": results})

    with tempfile.TemporaryDirectory() as temporary:

        def begin(kind: str) -> children.Child:
            command = [sys.executable, str(Path(__file__).resolve()), "--inside", kind]
            return children.Child(command, Path(temporary) / kind, vars(options), {"PYTHONUNBUFFERED": "1"})

        started = [functools.partial(begin, kind) for kind in options.kinds]
        failed = children.in_turn(started, lambda index: options.limit, keep)
    for index, why in failed.items():
        keep(index, {"failed": why})


if __name__ == "__main__":
    main()

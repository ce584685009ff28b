"""A whole GRPO step on one GPU, equipoise against TRL's GRPOTrainer: same model shape, prompts, G, lengths and rewards.

Random weights in bfloat16, 100-token prompts, 256 new tokens, one optimizer step on the whole batch with DAPO's
objective. Responses of random weights are never right: both grade them with the same math verifier and then add the
flip of a coin, so that every group teaches. TRL samples with transformers' `generate` and, on an eighth of the prompts
because it takes so long, with its continuous batching; it runs as it is fastest: bfloat16 weights and optimizer, sdpa,
no gradient checkpointing. equipoise keeps float32 master weights. The first steps of both are left out.
Writes benchmarks/results/step_gpu.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib.metadata
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import shapes
import torch
from report import write  # benchmarks/report.py
from shapes import prompts
from transformers.utils import logging as transformers_logging

from equipoise.train import Config, Trainer, read_lines
from equipoise.train.score import Scores
from equipoise.verifiers import grade_many

GROUP, PROMPT, NEW = 16, 100, 256
# Prompts, TRL's micro-batch, and GiB that equipoise may use: no more than TRL does.
RUNS = {"SmolLM2-135M": (64, 64, 20), "Qwen3-0.6B": (32, 32, 30)}
FIRST = next(iter(RUNS))
PARTS = ("rollout", "reward", "assign", "train", "log")
GIB = 2**30


def ours(folder: Path, count: int, memory: int, steps: int, warm: int, data: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out:
        c = Config()
        c.model.name, c.model.dtype, c.model.device = str(folder), "bfloat16", "cuda"
        c.task.name, c.task.verifier = str(data), "math"
        c.rollout.prompts, c.rollout.group_size, c.rollout.max_tokens = count, GROUP, NEW
        c.objective.preset, c.optim.lr = "dapo", 1e-6
        c.train.memory = f"{memory} GiB"
        c.train.steps, c.train.out, c.train.checkpoint_every = steps + warm, out + "/run", 10**6
        c.eval.every, c.log.rollouts_every, c.log.terminal = 0, 0, True
        trainer = Trainer(c)
        torch.cuda.reset_peak_memory_stats()
        trainer._checkpoint = lambda: None  # what is measured are steps
        trainer.collector.scorer.settle = with_coins(trainer.collector.scorer.settle)
        trainer.run()
        records = read_lines(trainer.folder.metrics)[warm:]
    seconds = {k: statistics.median(r[f"timing_s/{k}"] for r in records) for k in (*PARTS, "step")}
    return seconds | {
        "length": statistics.mean(r["completions/mean_length"] for r in records),
        "peak_gib": torch.cuda.max_memory_allocated() / GIB,
        "steps": [r["timing_s/step"] for r in records],
        "logprob_difference": {k: v for k, v in records[-1].items() if k.startswith("rollout/")},
    }


def with_coins(settle: Callable[..., Scores]) -> Callable[..., Scores]:
    flips = torch.Generator().manual_seed(0)

    def settled(*args: Any) -> Scores:
        scores = settle(*args)
        coins = torch.randint(2, scores.rewards.shape, generator=flips).to(scores.rewards)
        return dataclasses.replace(scores, rewards=scores.rewards + coins)

    return settled


def theirs(folder: Path, count: int, micro: int, steps: int, warm: int, continuous: bool) -> dict[str, Any]:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    words = AutoTokenizer.from_pretrained(folder)
    rows = Dataset.from_list([{"prompt": p} for p in prompts((steps + warm) * count, PROMPT)])

    def math(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        return [v.value or 0.0 for v in grade_many("math", completions, ["1"] * len(completions))]

    def flip(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        return torch.randint(2, (len(completions),)).float().tolist()

    class Clock(TrainerCallback):
        seconds: list[float] = []  # noqa: RUF012
        lengths: list[float] = []  # noqa: RUF012

        def on_step_begin(self, *args: Any, **more: Any) -> None:
            torch.cuda.synchronize()
            self.start = time.perf_counter()

        def on_step_end(self, *args: Any, **more: Any) -> None:
            torch.cuda.synchronize()
            self.seconds.append(time.perf_counter() - self.start)

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **more: Any) -> None:
            if "completions/mean_length" in logs:
                self.lengths.append(logs["completions/mean_length"])

    clock = Clock()
    clock.seconds, clock.lengths = [], []
    generation: list[float] = []

    class Timed(GRPOTrainer):
        def _generate_single_turn(self, *args: Any, **more: Any) -> Any:
            torch.cuda.synchronize()
            start = time.perf_counter()
            out = super()._generate_single_turn(*args, **more)
            torch.cuda.synchronize()
            generation.append(time.perf_counter() - start)
            return out

    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out, bf16=True, per_device_train_batch_size=micro,
            gradient_accumulation_steps=count * GROUP // micro, num_generations=GROUP, max_completion_length=NEW,
            temperature=1.0, top_p=1.0, top_k=0, loss_type="dapo", epsilon_high=0.28, beta=0.0, learning_rate=1e-6,
            max_steps=steps + warm, logging_steps=1, save_strategy="no", report_to="none", optim="adamw_torch_fused",
            gradient_checkpointing=False, disable_dropout=True, shuffle_dataset=False, disable_tqdm=True, seed=0,
            use_transformers_continuous_batching=continuous,
        )  # fmt: skip
        trainer = Timed(
            model=model, reward_funcs=[math, flip], args=config, train_dataset=rows, processing_class=words,
            callbacks=[clock],
        )  # fmt: skip
        torch.cuda.reset_peak_memory_stats()
        trainer.train()
    return {
        "step": statistics.median(clock.seconds[warm:]),
        "generation": statistics.median(generation[warm:]),
        "length": statistics.mean(clock.lengths[warm:]),
        "peak_gib": torch.cuda.max_memory_allocated() / GIB,
        "steps": clock.seconds[warm:],
        "prompts": count,
    }


def compare(name: str, parts: Sequence[str], steps: int, out: dict[str, Any], save: Callable[[], None]) -> None:
    count, micro, memory = RUNS[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder, data = Path(temporary) / name, Path(temporary) / "prompts.jsonl"
        shapes.save(name, folder)
        rows = [{"problem": p, "answer": "1"} for p in prompts(2000, PROMPT)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        runs = {
            "equipoise": lambda: ours(folder, count, memory, steps, 2, data),
            "trl": lambda: theirs(folder, count, micro, 2, 1, False),
            "trl_continuous": lambda: theirs(folder, count // 8, micro, 1, 1, True),
        }
        for part in parts:
            out[part] = runs[part]()
            gc.collect()
            torch.cuda.empty_cache()
            _print(name, count, out)
            save()


def _print(name: str, count: int, out: dict[str, Any]) -> None:
    mine = out["equipoise"]
    print(f"{name}: {count} prompts × {GROUP} × {NEW} tokens (mean length {mine['length']:.1f})")
    rest = mine["step"] - sum(mine[k] for k in ("rollout", "reward", "assign", "train"))
    shares = {"rollout": mine["rollout"], "verification": mine["reward"], "assign": mine["assign"],
              "training": mine["train"], "rest": rest}  # fmt: skip
    print(f"  equipoise {mine['step']:7.2f} s a step, {mine['peak_gib']:.1f} GiB: "
          + ", ".join(f"{k} {100 * v / mine['step']:.1f} %" for k, v in shares.items()))  # fmt: skip
    print(f"  sampler against trainer: {mine['logprob_difference']}")
    out["shares"] = {k: v / mine["step"] for k, v in shares.items()}
    for peer in ("trl", "trl_continuous"):
        if peer in out:
            them = out[peer]
            per_step = them["step"] * count / them["prompts"]
            out[f"{peer}_ratio"] = per_step / mine["step"]
            print(f"  {peer:14s} {them['step']:7.2f} s a step of {them['prompts']} prompts ({them['generation']:.2f} s "
                  f"generation), {them['peak_gib']:.1f} GiB, mean length {them['length']:.1f}: "
                  f"{per_step / mine['step']:.1f} × our time for as many prompts")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--model", choices=[*RUNS, "all"], default="all")
    parser.add_argument("--alone", action="store_true", help="leave the peers out and write nothing")
    options = parser.parse_args()
    transformers_logging.disable_progress_bar()
    names = list(RUNS) if options.model == "all" else [options.model]
    results: dict[str, Any] = {name: {} for name in names}

    def save() -> None:  # after every part: a run that is cut short leaves what it has
        if not options.alone:
            versions = {package: importlib.metadata.version(package) for package in ("trl", "transformers")}
            write("step_gpu", {"peers": versions, "results": results})

    for name in names:
        compare(name, ["equipoise"] if options.alone else ["equipoise", "trl"], options.steps, results[name], save)
    if FIRST in names and not options.alone:
        compare(FIRST, ["trl_continuous"], options.steps, results[FIRST], save)


if __name__ == "__main__":
    main()

"""A whole GRPO step on the CPU, equipoise against TRL's GRPOTrainer: the same model, prompts, G, lengths and updates.

Both sample from the same weights at temperature 1 with the same limit, grade with the same verifier, take one optimizer
step on the whole batch with the DAPO objective, and log. TRL runs as it is fastest here: the batch in one piece, no
gradient checkpointing, no dropout, nothing saved. The first steps of both are left out (caches, lazy allocations).
Writes benchmarks/results/step.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from report import write  # benchmarks/report.py
from transformers.utils import logging as transformers_logging

from equipoise.tasks import Arithmetic
from equipoise.train import Config, Trainer, read_lines

PROMPTS, GROUP, WARM = 32, 16, 2


def ours(steps: int, model: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as out:
        c = Config()
        c.model.name, c.objective.preset = model, "dapo"
        c.rollout.prompts, c.rollout.group_size = PROMPTS, GROUP
        c.train.steps, c.train.out, c.train.checkpoint_every = steps + WARM, out + "/run", 10**6
        c.optim.lr, c.eval.every, c.log.rollouts_every, c.log.terminal = 1e-5, 0, 0, False
        trainer = Trainer(c)
        start = time.perf_counter()
        trainer.run()
        print(f"  equipoise: {steps + WARM} steps in {time.perf_counter() - start:.1f} s")
        records = read_lines(trainer.folder.metrics)[WARM:]
    parts = ("rollout", "reward", "assign", "train", "log", "step")
    seconds = {k: statistics.median(r[f"timing_s/{k}"] for r in records) for k in parts}
    seconds["length"] = statistics.mean(r["completions/mean_length"] for r in records)
    named = ("rollout", "reward", "assign", "train")
    seconds["metrics"] = statistics.median(r["timing_s/step"] - sum(r[f"timing_s/{k}"] for k in named) for r in records)
    return seconds


def theirs(steps: int, model: str) -> dict[str, float]:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from equipoise.policy import load

    policy = load(model)
    task = Arithmetic()
    prompts = [task.prompt(i) for i in range((steps + WARM) * PROMPTS)]
    by_text = {p.text: p for p in prompts}
    rows = Dataset.from_list([{"prompt": p.text} for p in prompts])

    def reward(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        return [float(task.grade(by_text[p], c).kind == "correct") for p, c in zip(prompts, completions, strict=True)]

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.seconds: list[float] = []
            self.lengths: list[float] = []

        def on_step_begin(self, *args: Any, **more: Any) -> None:
            self.start = time.perf_counter()

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **more: Any) -> None:
            if "completions/mean_length" in logs:
                self.seconds.append(time.perf_counter() - self.start)
                self.lengths.append(logs["completions/mean_length"])

    clock = Clock()
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out, use_cpu=True, bf16=False, per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP, max_completion_length=task.max_tokens, temperature=1.0, top_p=1.0, top_k=0,
            loss_type="dapo", epsilon_high=0.28, beta=0.0, learning_rate=1e-5, max_steps=steps + WARM,
            logging_steps=1, save_strategy="no", report_to="none",
            gradient_checkpointing=False, disable_dropout=True, shuffle_dataset=False, disable_tqdm=True, seed=0,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=policy.model, reward_funcs=reward, args=config, train_dataset=rows, processing_class=policy.tokenizer,
            callbacks=[clock],
        )  # fmt: skip
        policy.model.config._attn_implementation = "sdpa"
        start = time.perf_counter()
        trainer.train()
        print(f"  TRL: {steps + WARM} steps in {time.perf_counter() - start:.1f} s")
    return {"step": statistics.median(clock.seconds[WARM:]), "length": statistics.mean(clock.lengths[WARM:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--model", default="abacus")
    options = parser.parse_args()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(os.cpu_count() or 1)
    a, b = ours(options.steps, options.model), theirs(options.steps, options.model)
    ratio = b["step"] / a["step"]
    overhead = (a["assign"] + a["metrics"] + a["log"]) / a["step"]
    print(f"{PROMPTS} prompts × {GROUP} responses, {torch.get_num_threads()} threads")
    shown = "  ".join(f"{k} {1e3 * a[k]:.1f}" for k in ("rollout", "reward", "train", "assign", "metrics", "log"))
    print(f"equipoise {1e3 * a['step']:7.0f} ms a step, mean length {a['length']:.1f}  {shown}")
    print(f"TRL       {1e3 * b['step']:7.0f} ms a step, mean length {b['length']:.1f}")
    print(f"{ratio:.1f} × faster; assign, metrics and logging are {100 * overhead:.1f} % of our step")
    write("step", {"equipoise": a, "trl": b, "ratio": ratio, "assign_metrics_logging_share": overhead})


if __name__ == "__main__":
    main()

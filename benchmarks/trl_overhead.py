"""What the plug-in costs in TRL: what EquipoiseGRPOTrainer adds to a step of GRPOTrainer, as a share of that step.

On one generation batch of TRL, its own loss of a micro-batch and the plug-in's (each with its gradient) alternate, and
so do the calls that assign the credit; of each the fastest of many counts, and so does the fastest step of TRL's own
trainer: whole steps vary more from one to the next, and on a machine that does other things far more, than the plug-in
costs. Times are the processor's, of one thread. Writes benchmarks/results/trl_overhead.json.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
import trl
from datasets import Dataset
from report import write  # benchmarks/report.py
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.utils import logging as transformers_logging

from equipoise.integrations.trl.plugin import EquipoiseGRPOTrainer
from equipoise.policy.names import ABACUS
from equipoise.tasks import Arithmetic, arithmetic
from equipoise.verifiers import as_trl

PROMPTS, GROUP, OBJECTIVE = 32, 16, "dapo+balanced+hadw"


class Keeping(EquipoiseGRPOTrainer):
    """Keeps the last generation batch as TRL scored it."""

    def _with_credit(self, output: dict[str, Any]) -> dict[str, Any]:
        self.scored = output
        return super()._with_credit(output)


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *args: Any, **more: Any) -> None:
        self.start = time.process_time()

    def on_step_end(self, *args: Any, **more: Any) -> None:
        self.seconds.append(time.process_time() - self.start)


def run(ours: bool, steps: int, accumulation: int, out: str) -> tuple[Any, float]:
    """The trainer after some steps, and its fastest step."""
    task, clock = Arithmetic(), Clock()
    prompts = [task.prompt(i) for i in range(steps * PROMPTS)]
    config = trl.GRPOConfig(
        output_dir=out, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none", seed=0,
        num_generations=GROUP, per_device_train_batch_size=PROMPTS * GROUP // accumulation,
        gradient_accumulation_steps=accumulation, max_completion_length=task.max_tokens, max_steps=steps,
        learning_rate=0.0, epsilon_high=0.28, logging_steps=1, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = (Keeping if ours else trl.GRPOTrainer)(
        model=AutoModelForCausalLM.from_pretrained(ABACUS), processing_class=AutoTokenizer.from_pretrained(ABACUS),
        reward_funcs=as_trl(arithmetic.grade), args=config, callbacks=[clock],
        train_dataset=Dataset.from_list([{"prompt": p.text, "answer": p.answer} for p in prompts]),
        **({"objective": OBJECTIVE} if ours else {}),
    )  # fmt: skip
    trainer.train()
    return trainer, min(clock.seconds)


def fastest(repeats: int, *calls: Callable[[], Any]) -> list[float]:
    """The least seconds of each call; they take turns."""
    seconds = [float("inf")] * len(calls)
    for _ in range(repeats):
        for i, call in enumerate(calls):
            start = time.process_time()
            call()
            seconds[i] = min(seconds[i], time.process_time() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--accumulation", type=int, default=4)
    options = parser.parse_args()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as out, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, step = run(False, options.steps, options.accumulation, out)
        trainer, _ = run(True, 1, options.accumulation, out)
    model, inputs = trainer.model.train(), trainer._buffered_inputs[0]
    theirs, ours, assign = fastest(
        options.repeats,
        lambda: trl.GRPOTrainer._compute_loss(trainer, model, inputs).backward(),
        lambda: trainer._compute_loss(model, inputs).backward(),
        lambda: trainer._with_credit(trainer.scored),
    )
    added = options.accumulation * (ours - theirs) + assign
    print(f"{PROMPTS} prompts × {GROUP} responses in {options.accumulation} micro-batches, {OBJECTIVE}")
    print(f"TRL's step {1e3 * step:.0f} ms, of it a micro-batch's loss and gradient {1e3 * theirs:.1f} ms")
    print(f"with the plug-in {1e3 * ours:.1f} ms, and {1e3 * assign:.1f} ms to assign")
    print(f"{100 * added / step:+.2f} % of the step")
    write("trl_overhead", {
        "trl_version": trl.__version__, "transformers_version": transformers.__version__, "threads": 1,
        "prompts": PROMPTS, "group": GROUP, "accumulation": options.accumulation, "objective": OBJECTIVE,
        "trl_step": step, "trl_loss": theirs, "plugin_loss": ours, "assign": assign, "share_of_step": added / step,
    })  # fmt: skip


if __name__ == "__main__":
    main()

"""What the plug-in costs in TRL: the step of EquipoiseGRPOTrainer against GRPOTrainer's own, same responses in both.

The learning rate is 0 and the seeds are the same, so step k of both generates the same text and trains on the same
micro-batches. Runs of the two alternate, and the figure is the median over steps and rounds of the ratio within a pair.
Beside it stands the time that passes inside the plug-in's own methods, as a share of the step: on a machine that does
other things as well, that is the steadier of the two. Writes benchmarks/results/trl_overhead.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import warnings
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
import trl
from datasets import Dataset
from report import write  # benchmarks/report.py
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.utils import logging as transformers_logging

from equipoise.integrations.trl import EquipoiseGRPOTrainer
from equipoise.policy.model import ABACUS
from equipoise.rewards import as_trl
from equipoise.tasks import Arithmetic, arithmetic

PROMPTS, GROUP, WARM, OBJECTIVE = 32, 16, 2, "dapo+balanced+hadw"


class Timed(EquipoiseGRPOTrainer):
    """Sums the seconds spent in what the plug-in adds to TRL's methods."""

    own = 0.0

    def _with_credit(self, *args: Any) -> Any:
        return self._timed(super()._with_credit, *args)

    def _policy_loss(self, *args: Any) -> Any:
        return self._timed(super()._policy_loss, *args)

    def _timed(self, method: Any, *args: Any) -> Any:
        start = time.perf_counter()
        out = method(*args)
        self.own += time.perf_counter() - start
        return out


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.lengths: list[float] = []

    def on_step_begin(self, *args: Any, **more: Any) -> None:
        self.start = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **more: Any) -> None:
        if "completions/mean_length" in logs and len(self.seconds) < state.max_steps:
            self.seconds.append(time.perf_counter() - self.start)
            self.lengths.append(logs["completions/mean_length"])


def run(ours: bool, steps: int, accumulation: int) -> tuple[Clock, float]:
    task, clock = Arithmetic(), Clock()
    prompts = [task.prompt(i) for i in range(steps * PROMPTS)]
    with tempfile.TemporaryDirectory() as out, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = trl.GRPOConfig(
            output_dir=out, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none", seed=0,
            num_generations=GROUP, per_device_train_batch_size=PROMPTS * GROUP // accumulation,
            gradient_accumulation_steps=accumulation, max_completion_length=task.max_tokens, max_steps=steps,
            learning_rate=0.0, epsilon_high=0.28, logging_steps=1, save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = (Timed if ours else trl.GRPOTrainer)(
            model=AutoModelForCausalLM.from_pretrained(ABACUS), processing_class=AutoTokenizer.from_pretrained(ABACUS),
            reward_funcs=as_trl(arithmetic.grade), args=config, callbacks=[clock],
            train_dataset=Dataset.from_list([{"prompt": p.text, "answer": p.answer} for p in prompts]),
            **({"objective": OBJECTIVE} if ours else {}),
        )  # fmt: skip
        trainer.train()
    return clock, trainer.own if ours else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--accumulation", type=int, default=4)
    options = parser.parse_args()
    transformers_logging.disable_progress_bar()
    ratios, theirs, ours, shares = [], [], [], []
    for _ in range(options.rounds):
        a, _ = run(False, options.steps + WARM, options.accumulation)
        b, own = run(True, options.steps + WARM, options.accumulation)
        assert a.lengths == b.lengths, "the two runs generated different text"
        ratios += [y / x for x, y in zip(a.seconds[WARM:], b.seconds[WARM:], strict=True)]
        theirs += a.seconds[WARM:]
        ours += b.seconds[WARM:]
        shares.append(own / sum(b.seconds))
    ratio, share = statistics.median(ratios), statistics.median(shares)
    print(f"{PROMPTS} prompts × {GROUP} responses in {options.accumulation} micro-batches, {OBJECTIVE}")
    print(
        f"TRL {1e3 * statistics.median(theirs):.0f} ms a step, with the plug-in {1e3 * statistics.median(ours):.0f} ms"
    )
    print(f"{100 * (ratio - 1):+.1f} % in pairs; {100 * share:.2f} % of the step passes in the plug-in")
    write("trl_overhead", {
        "trl_version": trl.__version__, "transformers_version": transformers.__version__,
        "threads": torch.get_num_threads(), "prompts": PROMPTS, "group": GROUP, "accumulation": options.accumulation,
        "objective": OBJECTIVE, "trl_seconds": statistics.median(theirs), "plugin_seconds": statistics.median(ours),
        "paired_ratio": ratio, "paired_ratios": ratios, "share_in_plugin": share,
    })  # fmt: skip


if __name__ == "__main__":
    main()

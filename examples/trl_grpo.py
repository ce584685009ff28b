"""RL on the embedded model inside TRL, on the CPU: python examples/trl_grpo.py [--objective dapo+balanced+hadw]

The class and its objective are all that differs from a script for TRL's own GRPOTrainer. What it leaves is measured
with `equipoise eval runs/trl/model`, and where it began with `equipoise eval abacus`.
"""

import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

from equipoise.integrations.trl.plugin import EquipoiseGRPOTrainer
from equipoise.policy.names import ABACUS
from equipoise.tasks import Arithmetic, arithmetic
from equipoise.verifiers import as_trl

PROMPTS, GROUP = 32, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objective", default="dapo+balanced+hadw")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", default="runs/trl")
    options = parser.parse_args()

    task = Arithmetic()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(ABACUS), AutoTokenizer.from_pretrained(ABACUS)
    prompts = [task.prompt(i) for i in range(options.steps * PROMPTS)]
    trainer = EquipoiseGRPOTrainer(
        objective=options.objective,
        model=model,
        processing_class=tokenizer,
        reward_funcs=as_trl(arithmetic.grade),
        train_dataset=Dataset.from_list([{"prompt": p.text, "answer": p.answer} for p in prompts]),
        args=GRPOConfig(
            output_dir=options.out, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none",
            num_generations=GROUP, per_device_train_batch_size=PROMPTS * GROUP // 4, gradient_accumulation_steps=4,
            max_completion_length=task.max_tokens, max_steps=options.steps, learning_rate=5e-4, warmup_steps=5,
            lr_scheduler_type="constant_with_warmup", adam_beta2=0.95, logging_steps=5, save_steps=options.steps,
        ),
    )  # fmt: skip
    trainer.train()
    trainer.save_model(f"{options.out}/model")
    tokenizer.save_pretrained(f"{options.out}/model")


if __name__ == "__main__":
    main()

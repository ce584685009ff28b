"""The script that measures the examples' memory runs, on a shape small enough for the CPU, and knows every example."""

import example_plans
import pytest
import shapes
from transformers import LlamaConfig

SMALL = ["--rollout.prompts", "2", "--rollout.group_size", "2", "--rollout.max_tokens", "4", "--train.mini_batch", "0"]
SMALL += ["--model.dtype", "float32", "--model.lora_rank", "0", "--train.threads", "1"]


def test_every_example_for_a_gpu_has_a_shape():
    without = {path.stem for path in example_plans.EXAMPLES.glob("*.toml") if example_plans._shape(path) is None}
    assert without == {"abacus", "sft_qwen2.5_0.5b_gsm8k"}
    assert set(example_plans.SHAPE_OF.values()) <= shapes.SHAPES.keys()


@pytest.mark.parametrize("name", ["gym_mixture", "qwen2.5_7b_lora_math"])
def test_an_example_is_measured(name, monkeypatch):
    monkeypatch.setitem(shapes.SHAPES, "tiny", shapes.Shape(LlamaConfig, 32, 1, 1, 1, 32, 64, 300))
    found = example_plans.measured(name, "tiny", "cpu", 8, SMALL)
    assert found["shape"] == "tiny"
    assert found["optimizer_steps"] == 2
    assert found["planned_to_measured"] is None  # the allocator of the CPU counts nothing

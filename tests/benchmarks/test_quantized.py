"""What the benchmark of 4-bit bases measures, on the CPU with a small shape and a packing that loses nothing."""

import pytest
import shapes
import torch
from transformers import Qwen2Config

pytest.importorskip("peft")
import quantized


class Lossless:
    def __init__(self, weight):
        self.shape, self.nbytes, self.kept = weight.shape, weight.nbytes, weight.clone()

    def whole(self):
        return self.kept.clone()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(shapes.SHAPES, "tiny", shapes.Shape(Qwen2Config, 64, 2, 2, 1, 32, 96, 50))
    monkeypatch.setattr(quantized, "REPEATS", 1)
    monkeypatch.setattr(quantized, "PROMPTS", 2)
    monkeypatch.setattr(quantized, "NEW", 4)
    monkeypatch.setitem(quantized.BASES, "lossless", Lossless)


@pytest.mark.long
def test_a_lossless_packing_errs_by_nothing_and_weighs_the_same():
    known: dict[str, torch.Tensor] = {}
    plain = quantized.measure("tiny", "cpu", 64, "bfloat16", known)
    packed = quantized.measure("tiny", "cpu", 64, "lossless", known)
    assert packed["model_gib"] == plain["model_gib"]
    for name in ("weight", "logprob", "gradient"):
        assert packed[f"{name}_error"] == pytest.approx(0, abs=2e-2), name  # in bfloat16 products differ by rounding
    assert packed["weight_error"] == 0
    assert plain["whole_s"] == 0 < packed["whole_s"]
    assert packed["sampled_tokens_per_s"] > 0

"""What the benchmark of 8 bits measures, on the CPU with a small shape: that it runs, and what its numbers mean."""

import fp8
import pytest
import shapes
import torch


@pytest.fixture
def policy(monkeypatch):
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(fp8, "ROWS", 8)
    monkeypatch.setattr(fp8, "GROUP", 4)
    monkeypatch.setattr(fp8, "PROMPT", 5)
    monkeypatch.setattr(fp8, "PART", 16)
    return shapes.endless("toy", device="cpu", dtype=torch.float32)


def test_every_variant_is_compared_at_the_same_length(policy):
    found = fp8.speed(policy, 48, limit=600)
    assert list(found) == list(fp8.VARIANTS)
    # the last window is what the first token, which comes from the prompt, leaves of 48
    assert {row["tokens_per_response"] for row in found.values()} == {47}
    for row in found.values():
        assert list(row["by_length"]) == ["16-32", "32-47"]
        assert row["tokens_per_second"] > 0
    assert found["bf16"]["times_bf16"] == 1


def test_a_run_that_is_cut_off_has_what_it_reached(policy):
    sampler = fp8.PagedSampler(policy)
    marks = fp8.sampled(sampler, fp8.random_prompts(policy, 2), 200, limit=0.0)
    assert list(marks) == [16]


def test_the_difference_is_nothing_in_float32_and_something_in_8_bits(policy):
    found = fp8.difference(policy, fp8.random_prompts(policy, 2), 4, 20)
    assert found["bf16"]["mean"] < 1e-5
    for name in ("fp8 cache", "fp8 weights", "fp8 both"):
        assert 1e-5 < found[name]["mean"] < 0.1
        assert found[name]["tokens"] == 2 * 4 * 20

"""The model of docs/scaling.md: its formulas against closed forms and measured bounds, and the page's tables."""

import random
import statistics
from pathlib import Path

import pytest

from benchmarks import scaling
from benchmarks.scaling import SHAPES, Machine, Shape, Work

PAGE = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
SMALL = SHAPES["Qwen2.5-1.5B"]


def plain(**changes) -> Machine:
    """A machine whose numbers are easy: a TB/s, a PFLOP/s, no overheads."""
    return Machine(**{"bandwidth": 1e12, "operations": 1e15, "step": 0.0, "slack": 1.0, "pass_seconds": 0.0,
                      "training": 1e15, "wake": 0.0, "links": 1e11, **changes})  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_those_that_were_measured(name):
    from benchmarks.shapes import SHAPES as MEASURED

    s = MEASURED[name]
    kept = SHAPES[name]
    assert (kept.layers, kept.heads, kept.kv_heads, kept.head_dim) == (s.layers, s.heads, s.kv_heads, s.head_dim)
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    layer = s.hidden * (2 * q + 2 * kv + 3 * s.intermediate + 2)
    layer += {"Qwen2Config": q + 2 * kv, "Qwen3Config": 2 * s.head_dim, "LlamaConfig": 0}[s.config.__name__]
    embeddings = s.hidden * s.vocabulary * (1 if s.tied else 2)
    assert kept.parameters == s.layers * layer + embeddings + s.hidden


def test_the_fit_finds_numbers_that_were_planted():
    draw = random.Random(0)
    points = []
    for _ in range(9):
        byte, compute = draw.uniform(1e-3, 5e-3), draw.uniform(1e-4, 4e-3)
        points.append(("x", 7e-4 + byte + 1.7 * compute, byte, compute))
    assert scaling.fit_decode(points) == pytest.approx((7e-4, 1.7))


def test_a_decode_step_has_the_bounds_that_the_benchmark_computed():
    """benchmarks/sampler.py: 16 responses to prompts of 100 tokens over 512 steps, 256.5 drawn on average."""
    found = scaling.load("sampler")
    bandwidth, operations = found["ceilings"]["bytes"], found["ceilings"]["operations"]
    for name, result in found["results"].items():
        for rows, row in result["steps"].items():
            m = plain(bandwidth=bandwidth, operations=operations)
            mine = 1e3 * scaling.decode(m, SHAPES[name], int(rows), int(rows) / 16, 100, 256.5)
            # the ceilings in the file are of its last run, the bounds of each shape's own
            assert mine == pytest.approx(row["byte_bound_ms"] + row["compute_bound_ms"], rel=0.04)


def test_lengths_are_lognormal_and_cut():
    draw = random.Random(1)
    lengths = []
    for _ in range(40_000):
        lengths.append(min(8_192, draw.lognormvariate(7.6 - 0.247, 0.703)))  # mean 1,998, variation 0.8
    work = Work(1)
    assert work.tokens() == pytest.approx(statistics.fmean(lengths), rel=0.02)
    share = statistics.fmean(length > 3_000 for length in lengths)
    assert work.living(3_000) == pytest.approx(share, rel=0.03)
    assert (work.living(0), work.living(8_192)) == (1.0, 0.0)


def test_a_fixed_batch_ends_at_the_longest_response():
    """However many GPUs: nobody is faster than one row that reads all weights for every token."""
    m = plain(step=1e-3)
    floor = 8_192 * (1e-3 + 2 * SMALL.parameters / 1e12)
    times = [scaling.rollout(m, SMALL, Work(8_192), gpus) for gpus in (8, 64, 512, 4_096)]
    assert times == sorted(times, reverse=True)
    assert floor < times[-1] < 1.1 * floor
    assert times[0] / times[1] > 1.5 > times[2] / times[3]


def test_what_does_not_fit_the_cache_goes_in_waves():
    roomy, tight = (scaling.rollout(plain(cache=cache), SMALL, Work(8_192), 8) for cache in (1e15, 1e9))
    assert tight > 5 * roomy


def test_the_hosts_cost_is_per_token():
    work = Work(1_024, mean=512.0, variation=1e-3, longest=512)
    slow = scaling.rollout(plain(host=1e-3), SMALL, work, 1, 16)
    assert slow == pytest.approx(1_024 * 512 * 1e-3, rel=0.02)


def test_weights_cross_links_once_and_gradients_with_every_pass():
    m = plain(bandwidth=1e30, training=1e30)
    assert scaling.hand_over(m, SMALL, 1) == pytest.approx(0.0, abs=1e-9)
    assert scaling.hand_over(m, SMALL, 8) == pytest.approx(7 / 8 * 2 * SMALL.parameters / 1e11)
    assert scaling.hand_over(plain(bandwidth=1e30, wake=0.2), SMALL, 1) == pytest.approx(0.2)
    work = Work(64, mean=1_000.0, prompt=0, variation=1e-3, longest=2_000, entries=8_000)
    assert scaling.training(m, SMALL, work, 8) == pytest.approx(7 / 8 * 8 * SMALL.parameters / 1e11, rel=1e-3)
    one_pass = scaling.training(plain(), Shape(1e9, 1, 1, 1, 1), work, 1)
    assert one_pass == pytest.approx(6e9 * 64_000 / 1e15, rel=0.01)


def test_the_hand_over_is_what_vllm_took_on_one_gpu():
    """benchmarks/vllm_engine.py: the engine woken and all weights sent, after the first time."""
    measured = scaling.load("vllm_engine")["results"]["SmolLM2-135M"][0]["moved"]["seconds"]
    whole = measured["wake_up"] + measured["collective_rpc"]
    assert scaling.hand_over(scaling.machine(), SHAPES["SmolLM2-135M"], 1) == pytest.approx(whole)
    assert 0.05 < whole < 0.5


def test_verdicts_divide_by_cores():
    assert scaling.reward(Work(9_130)) == pytest.approx(2.0)
    assert scaling.reward(Work(9_130, cores=4)) == pytest.approx(0.5)
    assert Work(1).verdicts == pytest.approx(scaling.load("verify")["math"]["pairs_per_s"], rel=1e-3)
    assert scaling.load("verify")["code"]["humaneval_per_s"] == pytest.approx(34.9, rel=0.01)


def test_the_page_has_the_tables_and_the_errors():
    for title, (name, work_of) in scaling.TABLES.items():
        assert title in PAGE
        for line in scaling.table(name, work_of):
            assert line in PAGE, f"docs/scaling.md lacks: {line}"
    for name, error in scaling.errors().items():
        assert f"| {name} | {scaling.signed(error)} |" in PAGE


def test_whole_steps_lie_within_the_range_of_what_was_assumed():
    """The measured training of a whole step is slower than the passes alone; half of our rate bounds it."""
    for name, error in scaling.errors().items():
        assert abs(error) < 0.5 or name.startswith("hand-over by its bytes alone"), name

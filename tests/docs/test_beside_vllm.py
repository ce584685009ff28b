"""The ratios to vLLM in the README and in docs/sampler.md are those of benchmarks/results/peers_scale.json."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "benchmarks/results/peers_scale.json").read_text())["results"]
WORKS = ("512 x 1024", "4096 x 512", "16384 x 256")


def rows(file, heading):
    """Cells of the table whose first line begins with `heading`."""
    lines = iter((ROOT / file).read_text().splitlines())
    next(line for line in lines if line.startswith(heading))
    next(lines)
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def assert_rounded(text, value):
    """`text` is `value` to as many digits as it has."""
    digits = len(text.partition(".")[2])
    assert text == f"{value:.{digits}f}", (text, value)


def in_8_bits(model, work):
    """At 8B the weights too."""
    engine = "equipoise fp8" if model == "Qwen3-8B" else "equipoise fp8 cache"
    return RESULTS[model][work][engine]["vllm_times_as_long"]


def test_the_readmes_ratios():
    table = list(rows("README.md", "| vLLM's time over ours |"))
    assert len(table) == len(RESULTS)
    for name, *cells in table:
        model = name.removesuffix(" shape").removesuffix("'s")
        for work, cell in zip(WORKS, cells, strict=True):
            found = re.fullmatch(r"\*\*([\d.]+)\*\*(?: → ([\d.]+))?(?: \(([\d.]+) %\))?", cell)
            plain, narrow, share = found.groups()
            engines = RESULTS[model][work]
            assert_rounded(plain, engines["vllm"]["times_as_long"])
            if narrow is not None:
                assert_rounded(narrow, in_8_bits(model, work))
            compared = min(engines[name]["tokens"] for name in ("equipoise", "vllm"))
            whole = engines["vllm"]["mean_length"] * engines["vllm"]["rows"]
            assert (share is None) == (compared == round(whole))
            if share is not None:
                assert_rounded(share, 100 * compared / whole)


@pytest.mark.parametrize(("goal", "below"), [(1.5, 8e9), (2.0, 1.7e9)])
def test_which_goals_are_missed(goal, below):
    """As the README says: in bfloat16 8 and 4, in 8 bits none and 2."""
    sizes = {"SmolLM2-135M": 135e6, "Qwen3-0.6B": 0.6e9, "Qwen3-1.7B": 1.7e9, "Qwen3-4B": 4e9, "Qwen3-8B": 8e9}
    shapes = [model for model, size in sizes.items() if size <= below]
    plain = [RESULTS[model][work]["vllm"]["times_as_long"] for model in shapes for work in WORKS]
    narrow = [in_8_bits(model, work) for model in shapes if model != "SmolLM2-135M" for work in WORKS]
    assert sum(ratio < goal for ratio in plain) == {1.5: 8, 2.0: 4}[goal]
    assert sum(ratio < goal for ratio in narrow) == {1.5: 0, 2.0: 2}[goal]


def test_the_table_in_8_bits():
    model = engine = None
    table = list(rows("docs/sampler.md", "| model | longest × rows | ours, tokens/s | of its bound |"))
    assert len(table) == 15
    for name, work, ours, bound, theirs, their_bound, both, plain in table:
        if name:
            model, _, more = name.partition(", ")
            engine = " fp8" if more else " fp8 cache"
        engines = RESULTS[model][work.replace(",", "").replace("×", "x")]
        mine, peer = engines["equipoise" + engine], engines.get("vllm" + engine)
        assert_rate(ours, mine)
        assert_rounded(bound.removesuffix(" %"), 100 * mine["share_of_bound"])
        assert_rounded(plain, mine["vllm_times_as_long"])
        if peer is None:
            assert not both
        else:
            assert_rate(theirs, peer)
            assert_rounded(their_bound.removesuffix(" %"), 100 * peer["share_of_bound"])
            assert_rounded(both.strip("*"), peer["times_as_long"])


def assert_rate(cell, row):
    rate, _, cut = cell.partition(", cut after ")
    assert int(rate.replace(",", "")) == round(row["tokens_per_second"], -2)
    assert bool(cut) == row["cut"]
    if cut:
        assert cut == f"{row['seconds']:.0f} s"

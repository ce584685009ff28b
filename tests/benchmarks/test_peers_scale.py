"""benchmarks/peers_scale.py: its ratios, its children, and our side of it at toy size.

vLLM's side runs where vLLM is installed: tests/vllm/test_benchmarks.py.
"""

import functools
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import children
import peers_figure
import peers_sample
import peers_scale
import pytest
import report
from shapes import SHAPES, TOY, configuration
from transformers import AutoModelForCausalLM

SVG = "{http://www.w3.org/2000/svg}"
JOB = {
    "model": "toy",
    "device": "cpu",
    "fp8_cache": False,
    "fp8_weights": False,
    "seconds": [60.0],
    "works": [(48, 32)],
}


def row(rate, tokens, *, cut=False, **more):
    """A measurement of a constant rate."""
    marks = [[at / rate, at] for at in range(tokens // 10, tokens + 1, tokens // 10)]
    figures = {"tokens": tokens, "seconds": tokens / rate, "tokens_per_second": rate, "cut": cut, "marks": marks}
    return figures | more


@pytest.mark.parametrize("reached", [1000, 400, 37])
def test_the_ratio_is_of_the_work_both_have_done(reached):
    """A peer that was cut early is compared over its part, not over the whole."""
    assert peers_scale.ratio(row(300.0, 1000), row(100.0, reached)) == pytest.approx(3.0)


def test_the_ratio_counts_the_early_tokens_where_only_those_were_reached():
    """Ours gets slower with length; the peer never got there."""
    ours = {"tokens": 200, "seconds": 4.0, "marks": [[1.0, 100], [4.0, 200]]}
    assert peers_scale.ratio(ours, row(10.0, 100, cut=True)) == pytest.approx(10.0)


def test_tokens_that_were_drawn_again_count_once():
    """Rows that go back to the queue start over: 90 tokens are there for good after 3 s only."""
    again = {"tokens": 120, "seconds": 4.0, "marks": [[1.0, 90], [2.0, 60], [3.0, 90], [4.0, 120]]}
    assert peers_scale.seconds_to(again, 90) == pytest.approx(3.0)


def test_a_whole_row_ends_when_its_call_returns():
    """The last token was seen before the responses were handed over."""
    ours = {"tokens": 200, "seconds": 2.5, "marks": [[1.0, 100], [2.0, 200], [2.5, 200]]}
    assert peers_scale.ratio(ours, row(20.0, 200)) == pytest.approx(10.0 / 2.5)


def test_what_users_run_comes_before_what_nobody_runs():
    jobs = peers_scale.plan(["a", "b"], peers_scale.USUAL)
    assert jobs[:4] == [("a", "equipoise"), ("a", "vllm"), ("b", "equipoise"), ("b", "vllm")]
    assert jobs[4:] == [("a", "vllm in process"), ("b", "vllm in process")]


def test_the_longest_responses_which_are_always_cut_come_last():
    assert [work.longest for work in peers_scale.WORKS] == [4096, 512, 16_384]


def test_rows_are_added_to_those_of_an_earlier_run(tmp_path, monkeypatch):
    """What is measured again replaces what was; the rest stays and says which run it is from."""
    size = {"longest": 4096, "rows": 512}
    old, again, new = (row(rate, 1000, **size) for rate in (100.0, 200.0, 300.0))
    before = {
        "machine": {"gpu": "H200"},
        "versions": {"vllm": "0.26.0"},
        "commit": "495af91",
        "note": "ours was measured twice",
        "results": {
            "Qwen3-4B": {"4096 x 512": {"vllm": old}},
            "Qwen3-0.6B": {"failed": {"equipoise": "cut"}},
            "SmolLM2-135M": {"4096 x 512": {"equipoise": old}, "failed": {"vllm": "cut", "vllm in process": "cut"}},
        },
    }
    file = tmp_path / "before.json"
    file.write_text(json.dumps(before))

    def measured(started, limit, heard):
        heard(0, again)
        heard(1, new)
        heard(2, new)
        return {4: "no time left"}

    monkeypatch.setattr(children, "in_turn", measured)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    asked = ["--models", "SmolLM2-135M", "Qwen3-0.6B", "--into", str(file), "--out", str(tmp_path)]
    peers_scale.compare(peers_scale.parsed(asked))

    found = json.loads((tmp_path / "peers_scale.json").read_text())
    small, large = found["results"]["SmolLM2-135M"], found["results"]["Qwen3-4B"]["4096 x 512"]
    assert found["note"] == before["note"]
    assert large["vllm"]["run"] == {key: before[key] for key in ("machine", "versions", "commit")}
    assert small["4096 x 512"]["equipoise"]["tokens_per_second"] == 200.0
    assert small["4096 x 512"]["vllm"]["times_as_long"] == pytest.approx(200 / 300)
    assert "run" not in small["4096 x 512"]["vllm"]
    assert small["failed"] == {"vllm in process": "no time left"}
    assert set(found["results"]["Qwen3-0.6B"]) == {"4096 x 512"}
    # A file that was written so is taken up again.
    results, note = peers_scale.earlier(tmp_path / "peers_scale.json")
    assert note == before["note"]
    assert results["Qwen3-4B"]["4096 x 512"]["vllm"] == large["vllm"]
    assert results["SmolLM2-135M"]["4096 x 512"]["vllm"]["run"]["commit"] == found["commit"]


def test_an_engine_in_8_bits_is_compared_with_ours_in_8_bits(tmp_path, monkeypatch):
    """And ours in 8 bits with vLLM as it usually runs."""
    size = {"longest": 512, "rows": 1024}
    rates = {"": (100.0, 50.0), " fp8 cache": (300.0, 100.0), " fp8": (400.0, 100.0)}
    engines = {
        engine + suffix: row(rate, 1000, **size)
        for suffix, pair in rates.items()
        for engine, rate in zip(("equipoise", "vllm"), pair, strict=True)
    }
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    peers_scale.keep({"Qwen3-0.6B": {"512 x 1024": engines}})
    assert {name: found["times_as_long"] for name, found in engines.items() if "times_as_long" in found} == {
        "vllm": pytest.approx(2.0),
        "vllm fp8 cache": pytest.approx(3.0),
        "vllm fp8": pytest.approx(4.0),
    }
    assert {name: found["vllm_times_as_long"] for name, found in engines.items() if "vllm_times_as_long" in found} == {
        "equipoise fp8 cache": pytest.approx(6.0),
        "equipoise fp8": pytest.approx(8.0),
    }
    assert peers_scale.beside(engines, "equipoise fp8").strip() == "8.00 × as fast as vLLM in bfloat16"
    least = [engines["equipoise" + suffix]["share_of_bound"] * 1000 / rates[suffix][0] for suffix in rates]
    assert least == sorted(least, reverse=True)
    assert len(set(least)) == 3


def test_vllms_kernels_lie_in_one_folder_for_all_shapes(tmp_path, monkeypatch):
    """vLLM's own place for them depends on the shape: the sampler's would be compiled again for every model."""
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setattr(children, "job", lambda folder: {})
    monkeypatch.setattr(peers_sample, "theirs", lambda job: [])
    with mock.patch.dict(os.environ):
        os.environ.pop("TRITON_CACHE_DIR", None)
        peers_sample.inside(tmp_path, "vllm")
        assert Path(os.environ["TRITON_CACHE_DIR"]) == Path.home() / ".triton" / "cache"
        os.environ["TRITON_CACHE_DIR"] = str(tmp_path)
        peers_sample.inside(tmp_path, "vllm")
        assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path)


def test_lengths_spread_as_said_and_reach_the_limit():
    for work in peers_scale.WORKS:
        lengths = work.lengths()
        mean = sum(lengths) / work.rows
        assert len(lengths) == work.rows
        assert max(lengths) == work.longest
        # What is cut at the longest takes a little off both.
        assert 0.36 < mean / work.longest < 0.41
        deviation = (sum((length - mean) ** 2 for length in lengths) / work.rows) ** 0.5
        assert 0.45 < deviation / mean < 0.6
        assert 0.01 < sum(length == work.longest for length in lengths) / work.rows < 0.08


def test_ours_draws_every_response_to_its_length():
    (found,) = peers_sample.ours(JOB)
    work = peers_sample.Work(48, 32)
    assert found["tokens"] == sum(work.lengths()) == found["marks"][-1][1]
    assert not found["cut"]
    assert found["mean_length"] == pytest.approx(found["tokens"] / 32)


def test_ours_is_cut_when_its_time_is_up_and_leaves_the_sampler_as_it_was():
    from equipoise.rollout import paged

    before = paged._Call
    (found,) = peers_sample.ours({**JOB, "seconds": [1e-9]})
    assert paged._Call is before
    assert found["cut"]
    assert 0 < found["tokens"] < sum(peers_sample.Work(48, 32).lengths())


def test_a_length_without_seconds_is_left_out():
    (found,) = peers_sample.ours({**JOB, "works": [(40, 16), (48, 32)], "seconds": [0.0, 60.0]})
    assert found["longest"] == 48


def test_seconds_are_given_for_all_lengths_or_for_each():
    works = peers_scale.WORKS
    assert peers_scale.seconds_of([30.0], works) == [30.0, 30.0, 30.0]
    assert peers_scale.seconds_of([36.0, 15.0, 0.0], works) == [36.0, 15.0, 0.0]
    with pytest.raises(SystemExit, match=r"--each 36 15: .* one for each of 4096 x 512, 512 x 1024, 16384 x 256"):
        peers_scale.seconds_of([36.0, 15.0], works)


def test_every_batch_size_is_warmed_up():
    """The batch of the first call passes through every size that has a graph."""
    from equipoise.rollout import paged

    work = peers_sample.Work(4096, 512)
    lengths = peers_sample._falling(work, "cpu")
    windows = range(int(lengths.max()) // paged.WINDOW)
    live = {int((lengths > window * paged.WINDOW).sum()) for window in windows}
    assert live == {size for size in paged.BUCKETS if size <= 512}


def test_few_marks_are_kept_and_the_first_is_among_them():
    rows = [(0.1 * i, i) for i in range(1, 500)]
    assert peers_sample.thinned(rows)[0] == rows[0]
    assert len(peers_sample.thinned(rows)) <= peers_sample.KEPT
    assert peers_sample.thinned(rows[:5]) == rows[:5]


def child(folder, code):
    """A child whose work is this code; `folder` is its own."""
    text = f"import sys, time, subprocess\nsys.path.insert(0, {str(Path(children.__file__).parent)!r})\n"
    text += f"import children\nfrom pathlib import Path\nfolder = Path(sys.argv[1])\n{code}"
    return children.Child([sys.executable, "-c", text], folder, {"answer": 42}, {})


def alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_a_child_that_hangs_is_ended_with_what_it_started_and_its_rows_are_kept(tmp_path, monkeypatch):
    hangs = (
        "job = children.job(folder)\n"
        "other = subprocess.Popen(['sleep', '3000'])\n"
        "children.found(folder, {'process': other.pid, **job})\n"
        "time.sleep(3000)"
    )
    heard = []
    # A clock on which its 300 s are over once its row is there, however long that takes.
    clock = SimpleNamespace(monotonic=lambda: 1000.0 * len(heard), sleep=time.sleep)
    monkeypatch.setattr(children, "time", clock)
    assert child(tmp_path / "c", hangs).run(300.0, heard.append) == "not done after 300 s"
    (found,) = heard
    assert found["answer"] == 42
    end = time.monotonic() + 300
    while alive(found["process"]) and time.monotonic() < end:
        time.sleep(0.01)
    assert not alive(found["process"])


@pytest.mark.parametrize(
    "dies",
    [
        "raise ValueError('no such shape')",
        "print('[rank0]: ValueError: no such shape'); print('[rank0]: Warning: not destroyed'); raise SystemExit(1)",
    ],
)
def test_a_child_that_fails_says_why(tmp_path, dies):
    why = child(tmp_path / "c", "children.job(folder)\n" + dies).run(600.0, print)
    assert why == "exit 1: ValueError: no such shape"


def test_children_take_turns_and_one_failure_does_not_stop_the_next(tmp_path):
    """Each notes when it worked: never two at a time, though the second is started early."""
    works = (
        "began = time.time(); job = children.job(folder); turn = time.time(); time.sleep(0.1)\n"
        "children.found(folder, {'began': began, 'turn': turn, 'done': time.time()})\n"
    )
    codes = [works, works + "raise RuntimeError('late')", works]
    rows = {}
    started = [functools.partial(child, tmp_path / str(i), code) for i, code in enumerate(codes)]
    failed = children.in_turn(started, lambda index: 600.0, lambda index, row: rows.update({index: row}))
    assert failed == {1: "exit 1: RuntimeError: late"}
    assert sorted(rows) == [0, 1, 2]
    for earlier, later in ((0, 1), (1, 2)):
        assert rows[later]["turn"] >= rows[earlier]["done"]


def test_without_time_the_rest_is_left_out(tmp_path):
    assert children.in_turn([lambda: 1 / 0, lambda: 1 / 0], lambda index: 0.0, print) == {
        0: "no time left",
        1: "no time left",
    }


def test_the_figure_has_a_point_for_every_row_and_an_open_one_where_it_was_cut():
    results = {
        "Qwen3-1.7B": {"4096 x 512": {"equipoise": row(9e4, 1000), "vllm": row(2e4, 500, cut=True)}},
        "Qwen3-8B": {
            "4096 x 512": {"equipoise": row(3e4, 1000)},
            "failed": {"vllm": "not done after 9 s"},
        },
    }
    panel = ET.fromstring(peers_figure.picture(results)).find(f"{SVG}g")
    points = [e for e in panel.iter() if (e.get("class") or "").startswith("point")]
    assert [e.get("class") for e in points] == ["point ours whole", "point ours whole", "point peer"]
    assert [e.tag for e in points] == [f"{SVG}circle", f"{SVG}circle", f"{SVG}rect"]
    heights = [float(e.get("cy") or e.get("y")) for e in points]
    assert heights[0] < heights[1] < heights[2]  # 90k above 30k above 20k


def test_every_length_of_the_figure_names_its_lines_and_has_its_ratios():
    works = {work: {"equipoise": row(9e4, 1000), "vllm": row(2e4, 500)} for work in ("512 x 1024", "4096 x 512")}
    works["512 x 1024"]["vllm"]["times_as_long"] = 8.359
    works["4096 x 512"]["vllm"]["times_as_long"] = 1.2796
    panels = ET.fromstring(peers_figure.picture({"Qwen3-1.7B": works})).findall(f"{SVG}g")
    said = [{e.text for e in panel.iter(f"{SVG}text")} for panel in panels]
    assert len(said) == 2
    assert {"equipoise", "vLLM", "8.4"} <= said[0]
    assert {"equipoise", "vLLM", "1.28"} <= said[1]


def test_the_figure_of_the_docs_is_drawn_of_the_committed_results():
    root = Path(__file__).parents[2]
    results = json.loads((root / "benchmarks/results/peers_scale.json").read_text())["results"]
    assert (root / "docs/figures/peers_scale.svg").read_text() == peers_figure.picture(results)


@pytest.mark.parametrize("name", ["SmolLM2-135M", "Qwen3-0.6B", "Qwen3-8B"])
def test_the_figure_knows_the_sizes(name):
    import torch

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(configuration(name))
    counted = sum(p.numel() for p in model.parameters())
    assert peers_figure.parameters(name) == pytest.approx(counted, rel=2e-3)  # norms are left out
    assert name in SHAPES


@pytest.mark.slow
def test_the_script_runs_our_side_and_writes_after_every_row(tmp_path):
    script = Path(peers_scale.__file__)
    asked = ["--toy", "--engines", "equipoise", "--out", str(tmp_path / "out"), "--seconds", "200"]
    subprocess.run([sys.executable, str(script), *asked], check=True, timeout=240)
    file = tmp_path / "out" / "peers_scale.json"
    results = json.loads(file.read_text())["results"]["toy"]
    assert set(results) == {str(work) for work in peers_scale.TOY}
    peers_scale.main(["--figure", str(file)])
    ET.fromstring(file.with_suffix(".svg").read_text())


def test_the_least_seconds_are_those_of_products_and_caches_read_once():
    work = peers_sample.Work(24, 32)  # two groups
    lengths, weights = work.lengths(), peers_figure.parameters("toy")
    token = 2 * 2 * TOY.layers * TOY.kv_heads * TOY.head_dim
    drawn = step = 0
    seconds = 0.0
    while drawn < sum(lengths):
        live = [row for row, length in enumerate(lengths) if length > step]
        step += 1
        drawn += len(live)
        prompts = len({row // peers_sample.GROUP for row in live})
        seconds += max(2 * weights / peers_scale.COPY, 2 * weights * len(live) / peers_scale.PRODUCTS)
        seconds += token * (len(live) * step + peers_sample.PROMPT * prompts) / peers_scale.COPY
        assert peers_scale.least_seconds("toy", work, drawn) == pytest.approx(seconds)


def test_many_rows_are_bound_by_operations():
    few, many = (peers_scale.least_seconds("Qwen3-8B", peers_sample.Work(2, rows), rows) for rows in (16, 1024))
    assert few == pytest.approx(2 * 7.57e9 / peers_scale.COPY, rel=0.01)
    assert many == pytest.approx(2 * 7.57e9 * 1024 / peers_scale.PRODUCTS, rel=0.02)  # and the prompts

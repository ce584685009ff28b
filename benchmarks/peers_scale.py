"""Our sampler against vLLM at the papers' scale: the same shapes, lengths and log-probabilities, in one run.

    python benchmarks/peers_scale.py [--seconds 900] [--each 30 …] [--out FOLDER] [--models NAME …] [--into JSON]
    python benchmarks/peers_scale.py --figure benchmarks/results/peers_scale.json

Random weights in bfloat16 of five shapes, 135M to 8B parameters; responses of up to 512, 4,096 and 16,384
tokens whose lengths are lognormal (mean 0.4 of the longest, coefficient of variation 0.6), 1,024, 512 and 256
of them, 16 to a prompt of 128 tokens. vLLM runs as its users run it (`vllm`: the engine in a process of its
own, asynchronous scheduling, prefix caching, graphs up to the batch) and in process. peers_sample.py says what
is measured and what is left out. `--engines "equipoise fp8 cache" "vllm fp8 cache"`: with keys and values in 8 bits;
`"equipoise fp8" "vllm fp8"`: with the weights as well.

A model and engine are one child process, which measures the three lengths after one start; the next child
imports meanwhile, on another core. A measurement is cut after `--each` seconds (a number for all lengths, or
one for each, 0 to leave it out) and then says so; ratios are of the seconds to the tokens both have drawn. An
early cut of a small model flatters whoever has the faster host: little is cached yet that the card must read.
The most telling models and lengths come first, and vLLM in process last: when `--seconds` are over the rest is
left out. `share_of_bound` is the least time the card could take, over what it took. Written after every row to
FOLDER/peers_scale.json, together with the rows of an earlier run (`--into`), which then say under `run` what
they were measured with.
`--toy` does all of it with a tiny model on the CPU, where vLLM may live in an environment of its own
(`--vllm-python`).
"""

from __future__ import annotations

import argparse
import bisect
import functools
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import children  # benchmarks/children.py
import peers_figure
import peers_sample
import report
import shapes
import torch
from peers_sample import Work

USUAL = ("equipoise", "vllm", "vllm in process")
# either engine with keys and values in 8 bits, or with the weights as well
ENGINES = (*USUAL[:2], "equipoise fp8 cache", "vllm fp8 cache", "equipoise fp8", "vllm fp8", USUAL[2])
MODELS = ("Qwen3-1.7B", "Qwen3-8B", "SmolLM2-135M", "Qwen3-4B", "Qwen3-0.6B")
WORKS = (Work(4096, 512), Work(512, 1024), Work(16_384, 256))
TOY = (Work(48, 32), Work(24, 16))
BESIDE = {"times_as_long": "our time", "vllm_times_as_long": "as fast as vLLM in bfloat16"}
START = 150.0  # seconds an engine may take until its first measurement
LEAST = 40.0  # seconds under which no child is started
# Of an H200, by benchmarks/scale.py: bytes a second of a copy, operations a second of a large product in bfloat16.
COPY, PRODUCTS = 4.2e12, 780e12


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    if options.figure is not None:
        figures = json.loads(options.figure.read_text())
        picture = options.figure.with_suffix(".svg")
        picture.write_text(peers_figure.picture(figures["results"]))
        print(picture)
    elif options.inside is not None:
        peers_sample.inside(options.inside[1], str(options.inside[0]))
    else:
        children.ended_by_signal()
        report.RESULTS = options.out
        compare(options)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=900.0, help="in all")
    parser.add_argument(
        "--each",
        type=float,
        nargs="+",
        default=[30.0],
        help="after which a measurement is cut, of all lengths or of each",
    )
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="folder of the JSON and the children's logs")
    parser.add_argument("--into", type=Path, metavar="JSON", help="rows of an earlier run, to which these are added")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(USUAL))
    parser.add_argument("--memory", type=float, default=0.9, help="share of the GPU's memory that vLLM may take")
    parser.add_argument("--toy", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--vllm-python", default=sys.executable, help="the Python that has vLLM")
    parser.add_argument("--figure", type=Path, metavar="JSON", help="draw what was measured, as SVG beside it")
    parser.add_argument("--inside", type=Path, nargs=2, help=argparse.SUPPRESS)  # engine and folder of a child
    return parser.parse_args(arguments)


def compare(options: argparse.Namespace) -> None:
    end = time.monotonic() + options.seconds
    models = ["toy"] if options.toy else options.models
    works = TOY if options.toy else WORKS
    each = seconds_of(options.each, works)
    jobs = plan(models, options.engines)
    results, note = earlier(options.into) if options.into else ({}, None)
    # Logs stay in the folder of the results where that is not the repository's.
    with tempfile.TemporaryDirectory() as temporary:
        logs = Path(temporary if options.out == Path(report.__file__).parent / "results" else options.out) / "logs"

        def begin(model: str, engine: str) -> children.Child:
            python = sys.executable if engine.startswith("equipoise") else options.vllm_python
            job = {
                "model": model,
                "works": works,
                "seconds": each,
                "memory": options.memory,
                "device": "cpu" if options.toy else "cuda",
            }
            command = [python, str(Path(__file__).resolve()), "--inside", engine]
            name = f"{model}-{engine.replace(' ', '-')}-{time.time_ns()}"
            return children.Child(command, logs / name, job, {"PYTHONUNBUFFERED": "1"})

        def limit(index: int) -> float:
            left = end - time.monotonic()
            # Warming up takes a while as well: half of what is measured.
            return 0.0 if left < LEAST else min(left, START + 1.5 * sum(each))

        def heard(index: int, row: dict[str, Any]) -> None:
            model, engine = jobs[index]
            work = str(Work(row["longest"], row["rows"]))
            found = results.setdefault(model, {})
            found.setdefault(work, {})[engine] = row
            if found.get("failed", {}).pop(engine, None) and not found["failed"]:
                del found["failed"]
            keep(results, note)
            print(f"{model:14} {work:12} {engine:16} {told(row)}{beside(found[work], engine)}", flush=True)

        failed = children.in_turn([functools.partial(begin, *job) for job in jobs], limit, heard)
    for index, why in failed.items():
        model, engine = jobs[index]
        results.setdefault(model, {}).setdefault("failed", {})[engine] = why
        print(f"{model:14} {engine}: {why}")
    keep(results, note)


def seconds_of(each: list[float], works: Sequence[Work]) -> list[float]:
    """Of every length."""
    if len(each) == 1:
        return each * len(works)
    if len(each) != len(works):
        given, lengths = " ".join(f"{seconds:g}" for seconds in each), ", ".join(map(str, works))
        raise SystemExit(f"--each {given}: must be one number, or one for each of {lengths}")
    return each


def earlier(file: Path) -> tuple[dict[str, Any], str | None]:
    """Rows and note of an earlier run; each row says which run it is from."""
    figures = json.loads(file.read_text())
    run = {key: figures[key] for key in ("machine", "versions", "commit")}
    for works in figures["results"].values():
        for engines in (found for work, found in works.items() if work != "failed"):
            for row in engines.values():
                row.setdefault("run", run)
    return figures["results"], figures.get("note")


def plan(models: Sequence[str], engines: Sequence[str]) -> list[tuple[str, str]]:
    """Models and engines in the order in which they are worth their time: what users run, side by side, first."""
    first = [(model, engine) for model in models for engine in engines if engine != ENGINES[-1]]
    return first + [(model, engine) for model in models for engine in engines if engine == ENGINES[-1]]


def keep(results: dict[str, Any], note: str | None = None) -> None:
    for model, works in results.items():
        for work, engines in works.items():
            if work == "failed":
                continue
            for engine, row in engines.items():
                least = least_seconds(model, Work(row["longest"], row["rows"]), row["tokens"], engine)
                row["share_of_bound"] = least / row["seconds"]
                # vLLM's time over ours: ours in the same precision, and ours in 8 bits beside vLLM's usual one
                ours = engine.replace("vllm", "equipoise").removesuffix(" in process")
                if engine != ours and ours in engines:
                    row["times_as_long"] = ratio(engines[ours], row)
                elif "fp8" in engine and engine == ours and "vllm" in engines:
                    row["vllm_times_as_long"] = ratio(row, engines["vllm"])
    figures = {"group": peers_sample.GROUP, "prompt": peers_sample.PROMPT, "results": results}
    report.write("peers_scale", figures | ({"note": note} if note else {}))


def ratio(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """How many times as long as we the peer took to the last number of tokens that both reached."""
    tokens = min(ours["tokens"], theirs["tokens"])
    return seconds_to(theirs, tokens) / seconds_to(ours, tokens)


def seconds_to(row: dict[str, Any], tokens: int) -> float:
    """By the marks, linear between two of them; all of a row's tokens are there when its call returns."""
    if tokens >= row["tokens"]:
        end: float = row["seconds"]
        return end
    marks = [[0.0, 0], *row["marks"]]
    # Rows sent back to the queue start over: the number may fall, and what counts is where it is passed for good.
    counts = [min(count for _, count in marks[i:]) for i in range(len(marks))]
    i = max(1, min(bisect.bisect_left(counts, tokens), len(marks) - 1))
    before, after = counts[i - 1], counts[i]
    share = (tokens - before) / (after - before) if after > before else 1.0
    at: float = marks[i - 1][0] + share * (marks[i][0] - marks[i - 1][0])
    return at


def least_seconds(model: str, work: Work, tokens: int, engine: str = "equipoise") -> float:
    """What an H200 takes at least to draw so many tokens of `work`, all rows from the start, in the engine's precision.

    In every step the products, by the weights' bytes or by their operations, whichever take longer; then keys and
    values, those of a prompt read once for its group. Products in 8 bits take half of either; the head stays in
    bfloat16 in both engines.
    """
    s = shapes.TOY if model == "toy" else shapes.SHAPES[model]
    lengths = torch.tensor(work.lengths())
    steps = torch.arange(1, work.longest + 1)
    live = (lengths[:, None] >= steps).sum(0)
    groups = (lengths.view(-1, peers_sample.GROUP).amax(1)[:, None] >= steps).sum(0)
    head = s.vocabulary * s.hidden
    # An embedding is looked up, not multiplied: the head is counted once, whether it is the same matrix or not.
    layers = peers_figure.parameters(model) - (head if s.tied else 2 * head)
    narrow = peers_sample.precision(engine)
    weights = head + layers / (2 if narrow["fp8_weights"] else 1)
    products = (2 * weights * live / PRODUCTS).clamp(min=2 * weights / COPY)
    token = 2 * s.layers * s.kv_heads * s.head_dim * (1 if narrow["fp8_cache"] else 2)  # bytes
    cached = token * (live * steps + groups * peers_sample.PROMPT)
    needed = live.cumsum(0) - live < tokens  # steps before which tokens are still missing
    return float((products + cached / COPY)[needed].sum())


def told(row: dict[str, Any]) -> str:
    cut = ", cut" if row["cut"] else ""
    return f"{row['tokens_per_second']:10,.0f} tokens/s ({row['tokens']:,} in {row['seconds']:.1f} s{cut})"


def beside(engines: dict[str, Any], engine: str) -> str:
    row = engines[engine]
    told = [f"{row[key]:.2f} × {what}" for key, what in BESIDE.items() if key in row]
    return "  " + ", ".join(told) if told else ""


if __name__ == "__main__":
    main()

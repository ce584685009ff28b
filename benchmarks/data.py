"""Prompts from a million rows of Parquet: the first, a jump to position 700,001, a stretch, and the memory it takes.

The peer is the package datasets in streaming mode with a shuffle buffer of as many rows as our window, where going on
at a position means skipping the rows before it. Every measurement is a process of its own; seconds of the wall and of
the processor (all threads), and the peak of memory above what the imports take. Two layouts: row groups of 10,000 rows,
and one row group of a million, which is what pandas writes. Writes benchmarks/results/data.json.

With EQUIPOISE_DATA (or the folder the tests look in) it also prints what is in the public benchmark files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from report import write  # benchmarks/report.py

ROOT = Path(__file__).parents[1]
POSITION, STRETCH = 700_001, 20_000
WORDS = ("train", "travels", "from", "city", "miles", "hour", "apples", "giving", "half", "sum", "integer", "triangle")

MEASURE = """
import json, re, sys, time
import pyarrow.parquet
kind, file, place, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if kind == "equipoise": from equipoise.tasks import Dataset
else: import datasets
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
base, start, used = peak(), time.perf_counter(), time.process_time()
if kind == "equipoise":
    task = Dataset(file, seed=0)
    items = (task.prompt(i) for i in range(place, place + count))
else:
    data = datasets.load_dataset("parquet", data_files=file, split="train", streaming=True)
    items = iter(data.shuffle(seed=0, buffer_size=8192).skip(place).take(count))
next(items)
found = {"first_s": time.perf_counter() - start, "first_cpu_s": time.process_time() - used}
start, used = time.perf_counter(), time.process_time()
more = sum(1 for _ in items)
if more:
    found["prompts_per_s"] = more / (time.perf_counter() - start)
    found["prompts_per_cpu_s"] = more / (time.process_time() - used)
found["memory_mb"] = peak() - base
print(json.dumps(found))
"""


def made(rows: int) -> Any:
    """A table in verl's layout, about 300 bytes a row."""
    import pyarrow as pa

    draw = random.Random(0)
    phrases = [" ".join(draw.choices(WORDS, k=20)) for _ in range(10_000)]
    text = pa.array(f"Problem {i}: {draw.choice(phrases)} and {draw.choice(phrases)}?" for i in range(rows))
    always = {word: pa.array([word] * rows) for word in ("user", "rule", "math", "made")}
    message = pa.StructArray.from_arrays([always["user"], text], ["role", "content"])
    gold = pa.array(str(i % 997) for i in range(rows))
    return pa.table({
        "data_source": always["made"], "ability": always["math"],
        "prompt": pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), message),
        "reward_model": pa.StructArray.from_arrays([always["rule"], gold], ["style", "ground_truth"]),
        "extra_info": pa.StructArray.from_arrays([pa.array(range(rows))], ["index"]),
    })  # fmt: skip


def measure(kind: str, file: Path, place: int, count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as cache:
        run = subprocess.run(
            [sys.executable, "-c", MEASURE, kind, str(file), str(place), str(count)], capture_output=True, text=True,
            check=True, cwd=cache, env={"PYTHONPATH": str(ROOT / "src"), "HF_HOME": cache, "HF_HUB_OFFLINE": "1",
                                        "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
    return dict(json.loads(run.stdout.splitlines()[-1]))


def benchmark_files() -> dict[str, int]:
    sys.path.insert(0, str(ROOT))
    from equipoise.tasks.problems import read_problems
    from tests.real_data import FOLDER

    return {path.stem: len(read_problems(str(path))) for path in sorted((FOLDER / "benchmarks").glob("*.jsonl"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    figures: dict[str, Any] = {"rows": options.rows, "position": POSITION, "benchmark_files": benchmark_files()}
    figures["load_average"] = os.getloadavg()[0]  # what else the machine was doing: compare processor seconds then
    for name, count in figures["benchmark_files"].items():
        print(f"{name:16s} {count:6,} problems")
    place = POSITION if options.rows > POSITION else options.rows * 7 // 10
    table = made(options.rows)
    with tempfile.TemporaryDirectory() as folder:
        for layout, group in (("groups_of_10000", 10_000), ("one_group", options.rows)):
            file = Path(folder) / f"{layout}.parquet"
            pq.write_table(table, file, row_group_size=group)
            print(f"{layout}: {file.stat().st_size / 2**20:.0f} MiB")
            found = {
                "equipoise": measure("equipoise", file, 0, STRETCH),
                "equipoise_resumed": measure("equipoise", file, place, 1),
            }
            if layout == "groups_of_10000":
                found["datasets_streaming"] = measure("streaming", file, 0, STRETCH)
                found["datasets_streaming_resumed"] = measure("streaming", file, place, 1)
            figures[layout] = found
            for kind, values in found.items():
                print(f"  {kind:28s} " + "  ".join(f"{k} {v:,.2f}" for k, v in values.items()), flush=True)
            file.unlink()
    ours, theirs = (figures["groups_of_10000"][k] for k in ("equipoise_resumed", "datasets_streaming_resumed"))
    print(f"going on at {place:,}: {theirs['first_s'] / ours['first_s']:.1f} times as fast as skipping to it")
    write("data", figures)


if __name__ == "__main__":
    main()

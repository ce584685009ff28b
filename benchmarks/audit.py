"""How long an audit takes and what memory it needs: a million responses in a Parquet file, dapo against three rules.

The log is written first, by another process, so that the peak resident memory is the audit's own (Python, torch and all
libraries included). Law: p uniform, lengths log-normal, wrong responses a third longer. Writes
benchmarks/results/audit.json.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUP, PROMPTS = 16, 128


def write_log(path: Path, responses: int, tokens: int) -> None:
    """`responses` rows in steps of 128 prompts × 16 responses; with `tokens`, ids of that mean length as well."""
    rng = np.random.default_rng(0)
    groups = responses // GROUP
    p = np.repeat(rng.random(groups), GROUP)
    reward = (rng.random(groups * GROUP) < p).astype(np.float64)
    mean = np.where(reward > 0, 1.0, 4 / 3) * (tokens or 1000)
    length = np.maximum(1, mean * np.exp(0.5 * rng.standard_normal(len(mean)) - 0.125)).astype(np.int64)
    group = np.repeat(np.arange(groups), GROUP)
    columns = {
        "step": group // PROMPTS,
        "prompt_id": pa.array([f"problem {g}, as its dataset names it" for g in group]),
        "reward": reward,
        "length": length,
    }
    if tokens:
        # The first ten tokens are the prompt's own, so that there is something shared to find.
        ids = rng.integers(0, 50_000, length.sum()).astype(np.int32)
        place = np.arange(len(ids)) - np.repeat(np.cumsum(length) - length, length)
        ids = np.where(place < 10, np.repeat(group, length) % 1000 + place, ids).astype(np.int32)
        columns["tokens"] = pa.ListArray.from_arrays(np.concatenate([[0], np.cumsum(length)]).astype(np.int32), ids)
    pq.write_table(pa.table(columns), path, row_group_size=1 << 16)


def audit(path: str) -> dict[str, float]:
    """Runs in a process of its own."""
    begin = time.perf_counter()
    from equipoise.audit import measure, read

    loaded = time.perf_counter()
    log = read(path)
    done = time.perf_counter()
    measure(log, "dapo", ["sequence", "balanced", "grpo"])
    end = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds = {"import": loaded - begin, "read": done - loaded, "measure": end - done, "total": end - begin}
    return {**seconds, "cpu": time.process_time(), "peak_gib": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--responses", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=0, help="mean length of the token ids; 0: lengths alone")
    parser.add_argument("--audit", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.audit:
        print(*audit(options.audit).values())
        return
    from report import write  # benchmarks/report.py

    figures = {}
    for name, responses, tokens in (("lengths", options.responses, 0), ("tokens", options.responses // 10, 200)):
        if options.tokens and name == "lengths":
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log.parquet"
            write_log(path, responses, options.tokens or tokens)
            command = [sys.executable, __file__, "--audit", str(path)]
            shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        keys = ("import", "read", "measure", "total", "cpu", "peak_gib")
        seconds = dict(zip(keys, map(float, shown.split()), strict=True))
        figures[name] = {"responses": responses, **seconds}
        parts = ", ".join(f"{k} {seconds[k]:.1f}" for k in ("import", "read", "measure", "cpu"))
        print(
            f"{responses:,} responses, {name}: {seconds['total']:.1f} s ({parts}), peak {seconds['peak_gib']:.2f} GiB"
        )
    write("audit", figures)


if __name__ == "__main__":
    main()

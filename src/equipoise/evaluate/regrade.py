"""Grade the kept responses of an evaluation again, as of today, and say what changed.

Nothing is sampled. The problems are read again from where they came from; their texts must be those
that were asked, their references may have been repaired. Chunks are replaced one by one, each
whole; a regrading that is killed is finished by the next.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from equipoise.evaluate.benchmarks import Benchmark, open_benchmark
from equipoise.evaluate.folder import EvaluationError, Folder, Row
from equipoise.evaluate.suite import (
    chunks_in,
    digest_of_prompts,
    digest_of_references,
    graded,
    verdict_columns,
    write_result,
    write_run,
)
from equipoise.evaluate.summary import Summary, summarise

EXAMPLES = 5


def regrade(out: str | Path, data: str | Path | None = None) -> dict[str, Any]:
    """{benchmark: {responses, changed, moves, examples, before, after}}; writes the new result.

    `data` says where the problems are now, if not where they were.
    A run's folder of evaluations is regraded step by step.
    """
    folder = Folder(out)
    if folder.settings() is None:
        steps = {int(p.name[5:]): p for p in folder.path.glob("step-*") if p.name[5:].isdigit()}
        if not steps:
            raise EvaluationError(
                f"{out}: holds no evaluation; give a folder that `equipoise eval` wrote"
            )
        reports = {step: regrade(path, data) for step, path in sorted(steps.items())}
        write_run(
            folder,
            {step: json.loads((path / "result.json").read_text()) for step, path in steps.items()},
        )
        return {
            f"step {step}: {name}": about
            for step, report in reports.items()
            for name, about in report.items()
        }
    with folder.lock():
        settings = folder.settings()
        assert settings is not None
        benchmarks = {
            name: _reopened(name, about, settings["chat"], data)
            for name, about in settings["benchmarks"].items()
        }
        report = {
            name: _regraded(folder, b, settings["benchmarks"][name])
            for name, b in benchmarks.items()
        }
        for name, benchmark in benchmarks.items():
            settings["benchmarks"][name]["references"] = digest_of_references(benchmark)
        folder.write_settings(settings)
        write_result(folder, list(benchmarks.values()))
    return report


def _reopened(name: str, about: dict[str, Any], chat: bool, data: str | Path | None) -> Benchmark:
    if data is None and not about["source"].startswith("hub:"):
        data = about["source"]
        if not Path(data).exists():
            raise EvaluationError(
                f"{name}: its problems were in {data}, which is gone; say where they are: --data"
            )
    benchmark = open_benchmark(name, data, chat=chat, limit=about["problems"])
    if digest_of_prompts(benchmark) != about["prompts"]:
        raise EvaluationError(
            f"{name}: the problems in {benchmark.source} are not those that were sampled; say where these are: --data"
        )
    return benchmark


def _regraded(folder: Folder, benchmark: Benchmark, about: dict[str, Any]) -> Summary:
    prompts = {prompt.id: prompt for prompt in benchmark.prompts}
    old: list[Row] = []
    new: list[Row] = []
    for number in range(chunks_in(about)):
        rows = folder.chunk(benchmark.name, number)
        asked = [graded(benchmark, prompts[row["prompt_id"]], row["response"]) for row in rows]
        now = [row | verdict_columns(verdicts) for row, verdicts in zip(rows, asked, strict=True)]
        for a, b in zip(rows, now, strict=True):
            if b["verdict"] == "unavailable" != a["verdict"]:
                raise EvaluationError(
                    f"{benchmark.name}: cannot be graded on this machine: {b['reason']}"
                )
        if now != rows:
            folder.write_chunk(benchmark.name, number, now)
        old, new = old + rows, new + now
    changed = [(a, b) for a, b in zip(old, new, strict=True) if a["verdict"] != b["verdict"]]
    return {
        "responses": len(old),
        "changed": len(changed),
        "moves": dict(
            Counter(f"{a['verdict']} → {b['verdict']}" for a, b in changed).most_common()
        ),
        "examples": [
            {
                "problem": a["prompt_id"],
                "sample": a["sample"],
                "was": a["verdict"],
                "now": b["verdict"],
                "answer": b["answer"],
                "reference": prompts[a["prompt_id"]].answer,
                "reason": b["reason"],
            }
            for a, b in changed[:EXAMPLES]
        ],
        "before": summarise(old, about["samples"], benchmark.votes),
        "after": summarise(new, about["samples"], benchmark.votes),
    }

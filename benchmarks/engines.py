"""One objective, every engine: the gradient on one batch through each engine's own loss code, beside ours.

    python -m benchmarks.engines ENGINE [ENGINE …] [--out benchmarks/results/engines.json]

Each engine runs in the environment that has it (its sources on PYTHONPATH where it has no package); its column is put
into the file beside the others, with versions, commit and date. `python -m benchmarks.engines --page` writes the table
of docs/engines.md from the file. The batch is ragged, off-policy and clipped, with both signs, a reward between 0 and 1
and a group without a gradient; the gradient is that of the loss for each token's log-probability, in float64 where an
engine lets it be, and the error its largest difference from `Objective.loss`, relative to the largest entry.

A cell is `exact` below 1e-5, `nearly` where the direction is exact and the scale is not, `refused` where the adapter or
the engine has no such thing, `not run` where it was not tried.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine_batch import Batch, NotRun, Refused, drawn, ours
from benchmarks.engine_losses import ENGINES, NOTES
from benchmarks.report import commit
from equipoise import __version__

EXACT = 1e-5
RESULTS = Path(__file__).parent / "results" / "engines.json"
PAGE = Path(__file__).parent.parent / "docs" / "engines.md"
OBJECTIVES = (
    "grpo", "dapo", "dr_grpo", "dapo+balanced", "dapo+balanced+hadw", "grpo+recentre", "dapo+balanced+prefix", "gspo",
    "gmpo", "cispo", "sapo", "luspo", "vespo", "aspo", "dppo", "rloo", "maxrl", "dfpo",
    "dapo, r − μ", "cispo, r − μ", "grpo, r − μ",
)  # fmt: skip


def cell(engine: Callable[[str, Batch], Tensor], name: str, batch: Batch) -> dict[str, Any]:
    """What an engine makes of an objective."""
    want = ours(name, batch)
    try:
        got = engine(name, batch)
    except Refused as refusal:
        return {"status": "refused", "why": str(refusal)}
    except NotRun as reason:
        return {"status": "not run", "why": str(reason)}
    error = float((got - want).abs().max() / want.abs().max())
    scale = float((got @ want) / (want @ want))
    turned = float((got / scale - want).abs().max() / want.abs().max())
    if error < EXACT:
        return {"status": "exact", "error": float(f"{error:.2e}")}
    if turned < EXACT:
        return {"status": "nearly", "error": float(f"{error:.2e}"), "why": f"the gradient times {scale:.4f}"}
    return {"status": "refused", "error": float(f"{error:.2e}"), "why": "its loss is another"}


def version_of(package: str, missing: str = "from source") -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return missing


def made_with() -> dict[str, str]:
    """What a column was made with besides its engine; columns of one file come from several environments and days."""
    return {
        "equipoise": __version__, "commit": commit(), "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "transformers": version_of("transformers", "not installed"), "torch": torch.__version__,
        "python": platform.python_version(),
    }  # fmt: skip


def run(engines: Iterable[str], out: Path, sources: dict[str, str]) -> None:
    record = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"columns": {}}
    batch = drawn()
    for engine in engines:
        package, function = ENGINES[engine]
        cells = {name: cell(function, name, batch) for name in OBJECTIVES}
        for name in cells:
            if (note := NOTES.get((engine, name))) and cells[name]["status"] == "exact":
                cells[name]["why"] = note
        version = __version__ if engine == "equipoise" else sources.get(package) or version_of(package)
        record["columns"][engine] = {"version": version, **made_with(), "cells": cells}
        told = ", ".join(f"{n} {c['status']} {c.get('error', '')}".strip() for n, c in cells.items())
        print(f"{engine} {version}: {told}")
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def table(record: dict[str, Any]) -> str:
    """The matrix in Markdown, with the reasons numbered below it."""
    columns = record["columns"]
    names = [name for name in ENGINES if name in columns]
    reasons: dict[str, int] = {}
    lines = ["| objective | " + " | ".join(f"{n} {columns[n]['version']}" for n in names) + " |"]
    lines.append("|---" * (len(names) + 1) + "|")
    lines.append("| with equipoise | " + " | ".join(columns[n]["equipoise"] for n in names) + " |")
    lines.append("| date | " + " | ".join(columns[n]["date"] for n in names) + " |")
    for objective in OBJECTIVES:
        cells = []
        for name in names:
            found = columns[name]["cells"].get(objective, {"status": "not run", "why": "not tried"})
            text = f"{found['status']} {found['error']:.0e}" if "error" in found else found["status"]
            if "why" in found:
                text += f" [{reasons.setdefault(found['why'], len(reasons) + 1)}]"
            cells.append(text)
        lines.append(f"| {objective} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"{number}. {why}" for why, number in reasons.items())])


BEGIN, END = "<!-- matrix: python -m benchmarks.engines --page -->", "<!-- end of the matrix -->"


def write_page(results: Path, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = table(json.loads(results.read_text(encoding="utf-8")))
    page.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="the gradient of each objective through each engine's own loss code")
    parser.add_argument("engines", nargs="*", help=", ".join(ENGINES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument(
        "--source", action="append", default=[], metavar="PACKAGE=COMMIT", help="of one without a package"
    )
    parser.add_argument("--page", action="store_true", help="write the table of docs/engines.md")
    options = parser.parse_args()
    run(options.engines, options.out, dict(s.split("=", 1) for s in options.source))
    if options.page:
        write_page(options.out, PAGE)


if __name__ == "__main__":
    main()

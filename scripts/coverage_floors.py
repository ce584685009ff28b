"""Hold the line coverage of `coverage json` to its floors: `python scripts/coverage_floors.py
coverage.json`.

95 % for each of the packages whose numbers are believed (objective, theory, verifiers), 85 % for
the rest together. Names the files with most lines missing, and leaves with 1 where a floor is
missed. Not counted: what pyproject.toml omits, which is code that Python does not run here
(Triton's kernels) or that needs a package of another environment.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

FLOORS = {"objective": 95.0, "theory": 95.0, "verifiers": 95.0}
REST = 85.0
WORST = 8  # files that are named


def package(file: str) -> str:
    """`objective` of src/equipoise/objective/loss.py; `rest` where the floor is the common one."""
    parts = Path(file).parts
    name = parts[parts.index("equipoise") + 1]
    return name if name in FLOORS else "rest"


def floors(report: dict) -> dict[str, tuple[float, float]]:
    """Package → covered lines in per cent, and its floor."""
    covered: dict[str, int] = defaultdict(int)
    lines: dict[str, int] = defaultdict(int)
    for file, found in report["files"].items():
        covered[package(file)] += found["summary"]["covered_lines"]
        lines[package(file)] += found["summary"]["num_statements"]
    return {name: (100 * covered[name] / max(lines[name], 1), FLOORS.get(name, REST)) for name in sorted(lines)}


def worst(report: dict) -> list[tuple[int, str]]:
    """Missing lines and file, most first."""
    found = [(each["summary"]["missing_lines"], file) for file, each in report["files"].items()]
    return sorted(found, reverse=True)[:WORST]


def main(path: str) -> int:
    report = json.loads(Path(path).read_text(encoding="utf-8"))
    missed = False
    for name, (share, floor) in floors(report).items():
        below = share < floor
        missed = missed or below
        print(f"{name:10} {share:5.1f} %  of at least {floor:.0f} %{'  MISSED' if below else ''}")
    print("\nlines without a test:")
    for missing, file in worst(report):
        print(f"{missing:5}  {file}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""Held-out accuracy of a run by integers alone, beside what the run's own verifier said: is the reward honest?

    python scripts/strict_accuracy.py runs/RUN

For tasks whose references are integers and whose prompts ask for a box. It shares no code with the verifiers.
"""

import re
import sys
from pathlib import Path

import pyarrow.parquet as pq


def right(response: str, reference: str) -> bool:
    """The last box holds one integer, after its last = sign, and it is the reference."""
    boxes = re.findall(r"\\boxed\{([^{}]*)\}", re.sub(r"\\(?:text|mathrm)\{[^{}]*\}", "", response))
    found = re.fullmatch(r"[^\d=-]*(-?\d[\d,]*)(?:\.0+)?[^\d=]*", boxes[-1].split("=")[-1]) if boxes else None
    return bool(found) and int(found[1].replace(",", "")) == int(reference.replace(",", ""))


for file in sorted(Path(sys.argv[1]).glob("evaluations/step-*.parquet"), key=lambda f: int(f.stem[5:])):
    rows = [row for row in pq.read_table(file).to_pylist() if row["sample"] >= 0]
    strict = [right(row["response"], row["reference"]) for row in rows]
    said = [row["verdict"] == "correct" for row in rows]
    differ = sum(a != b for a, b in zip(strict, said, strict=True))
    print(
        f"{file.stem:9} strict {100 * sum(strict) / len(rows):6.2f}  verifier {100 * sum(said) / len(rows):6.2f}",
        end="",
    )
    print(f"  differ on {differ} of {len(rows)} responses")

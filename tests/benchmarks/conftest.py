"""The benchmarks are scripts: their folder is where they find each other."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))

"""Where benchmark figures go: benchmarks/results/NAME.json with the machine, the versions and the commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    if (info := Path("/proc/cpuinfo")).exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0] if names else cpu
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"cpu": cpu, "cores": os.cpu_count(), "gpu": gpu, "system": platform.system()}


def commit() -> str:
    try:
        shown = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return shown.stdout.strip()


def earlier(name: str) -> dict[str, Any]:
    """What an earlier call of this very commit left under "results": a benchmark may be run in several calls."""
    file = RESULTS / f"{name}.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    return dict(found["results"]) if found.get("commit") == commit() else {}


def write(name: str, figures: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    result = {"benchmark": name, "machine": machine(), "versions": versions, "commit": commit(), **figures}
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")

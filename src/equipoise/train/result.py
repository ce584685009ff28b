"""What `Trainer.train` gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TrainResult:
    """A run's last step, its metrics and the last evaluation ({} where there was none)."""

    step: int
    metrics: dict[str, Any] = field(repr=False)
    evaluation: dict[str, Any] = field(repr=False)
    run_dir: Path
    stopped_by: str  # the callback that ended the run early; empty where it ran to its end

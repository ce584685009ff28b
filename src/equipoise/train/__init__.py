"""Training: configuration, the loop, checkpoints, the run directory."""

from equipoise.config import Config, ConfigError, describe, dump, load
from equipoise.train.folder import RunError, RunFolder, read_lines
from equipoise.train.loop import Interrupted, Trainer

__all__ = [
    "Config",
    "ConfigError",
    "Interrupted",
    "RunError",
    "RunFolder",
    "Trainer",
    "describe",
    "dump",
    "load",
    "read_lines",
]

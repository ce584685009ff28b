"""Training: configuration, the loop, checkpoints, the run directory."""

from equipoise.config import Config, ConfigError, describe, dump, load
from equipoise.train.callbacks import TrainerCallback
from equipoise.train.folder import RunError, RunFolder, read_lines
from equipoise.train.loop import Trainer
from equipoise.train.result import TrainResult
from equipoise.train.run_start import configured, finished
from equipoise.train.stopping import Interrupted

__all__ = [
    "Config",
    "ConfigError",
    "Interrupted",
    "RunError",
    "RunFolder",
    "TrainResult",
    "Trainer",
    "TrainerCallback",
    "configured",
    "describe",
    "dump",
    "finished",
    "load",
    "read_lines",
]

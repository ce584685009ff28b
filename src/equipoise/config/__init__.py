"""A run's configuration: typed sections, read from TOML, overridden by `--section.key value`, written re-runnable.

`sections` has the options, `config` the rules between them, `errors` the sentences for mistakes, `files` reading and
writing. Not covered: whether files, models and devices that an option names are there; who opens them says that.
"""

from equipoise.config.config import Config
from equipoise.config.errors import ConfigError
from equipoise.config.files import describe, dump, load, load_sections, parse_overrides
from equipoise.config.sections import (
    VERDICTS,
    EvalConfig,
    LogConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimConfig,
    RewardConfig,
    RolloutConfig,
    SandboxConfig,
    TaskConfig,
    TrainConfig,
)

__all__ = [
    "VERDICTS",
    "Config",
    "ConfigError",
    "EvalConfig",
    "LogConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimConfig",
    "RewardConfig",
    "RolloutConfig",
    "SandboxConfig",
    "TaskConfig",
    "TrainConfig",
    "describe",
    "dump",
    "load",
    "load_sections",
    "parse_overrides",
]

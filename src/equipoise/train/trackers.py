"""Where else metrics go. All are off by default, and imported only when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from equipoise.config import ConfigError, LogConfig


class Tracker(Protocol):
    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


def open_trackers(config: LogConfig, folder: Path, settings: dict[str, Any]) -> list[Tracker]:
    wanted: dict[str, Callable[[str, Path, dict[str, Any]], Tracker]]
    wanted = {"tensorboard": _TensorBoard, "wandb": _Dashboard, "trackio": _Dashboard, "mlflow": _MLflow}
    return [kind(name, folder, settings) for name, kind in wanted.items() if getattr(config, name)]


def _imported(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"log.{extra} = true needs a package that is not installed: pip install equipoise[{extra}]"
        ) from error


class _TensorBoard:
    def __init__(self, name: str, folder: Path, settings: dict[str, Any]) -> None:
        self.writer = _imported("torch.utils.tensorboard", name).SummaryWriter(str(folder / "tensorboard"))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class _Dashboard:
    """W&B, and trackio, which answers to the same calls."""

    def __init__(self, name: str, folder: Path, settings: dict[str, Any]) -> None:
        self.module = _imported(name, name)
        self.module.init(project="equipoise", name=folder.name, config=settings)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.module.log(dict(metrics), step=step)

    def close(self) -> None:
        self.module.finish()


class _MLflow:
    def __init__(self, name: str, folder: Path, settings: dict[str, Any]) -> None:
        self.module = _imported(name, name)
        self.module.start_run(run_name=folder.name)
        self.module.log_params({k: str(v)[:500] for k, v in settings.items()})

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        # MLflow's names may not contain "@", which ours do (acc@8).
        self.module.log_metrics({k.replace("@", "_at_"): v for k, v in metrics.items()}, step=step)

    def close(self) -> None:
        self.module.end_run()

"""The command `equipoise export`: what goes with what, and the sentences for what does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from equipoise.config import load, parse_overrides
from equipoise.integrations.data import HOSTS, export_data, export_rollouts
from equipoise.integrations.launch import ExportError, Launch
from equipoise.integrations.trl.export import export_trl
from equipoise.integrations.verl.export import export_verl
from equipoise.objective.choice import did_you_mean

WHATS = ("trl", "verl", "data", "rollouts")
# options of [task] that change what a row says
OF_DATA = ("columns", "verifier", "template", "suffix", "strict")


def export(
    what: str, source: str, out: str | None, host: str | None, overrides: Sequence[str]
) -> str:
    """Write it, and say what was written."""
    if what not in WHATS:
        raise ExportError(
            f'export: "{what}" is not known;{did_you_mean(what, WHATS)} ({", ".join(WHATS)})'
        )
    if what in HOSTS:
        if host is not None:
            raise ExportError(
                f"--to {host}: the launch is for {what} already; --to is for data and rollouts"
            )
        folder = Path(out or what)
        config = load(source, overrides)
        launch = export_trl(config, folder) if what == "trl" else export_verl(config, folder)
        return f"{_start(launch, folder)}\n{launch.summary()}"
    if out is None or host is None:
        raise ExportError(
            f"export {what} {source}: say where to and for whom: OUT --to {' or '.join(HOSTS)}"
        )
    if what == "rollouts":
        if overrides:
            raise ExportError(f"{overrides[0]}: rollouts are written as they are")
        return export_rollouts(Path(source), host, Path(out))
    for path, _ in parse_overrides(overrides):
        if path[0] != "task" or path[1] not in OF_DATA:
            allowed = ", ".join(f"--task.{name}" for name in OF_DATA)
            raise ExportError(f"--{'.'.join(path)}: data are written with {allowed} alone")
    task = load(None, overrides).task
    return export_data(task.model_copy(update={"name": source}), host, Path(out))


def _start(launch: Launch, folder: Path) -> str:
    """How to start a launch, in one line."""
    if launch.host == "TRL":
        return f"{folder}: start it with python {folder}/launch.py"
    workers = 1 if launch.config.model.device == "cpu" else 8
    return f"{folder}: start it with GPUS={workers} {folder}/launch.sh"

"""Where else a run is logged: TensorBoard, Weights & Biases, trackio, MLflow.
All are off by default, and imported only when asked for.

A tracker gets every metric under the step it belongs to, a table of sampled responses with each
rollout file, and at the end the report. The identifier a tracker gives the run is kept in
`trackers.json`, and a resumed run goes on under it: steps that are trained again after a kill are
logged again, with the same numbers. Where the packages keep their files, and whether they send them
anywhere, is theirs to say (WANDB_MODE, TRACKIO_DIR, MLFLOW_TRACKING_URI).
"""

from __future__ import annotations

import importlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from equipoise.config import ConfigError, LogConfig
from equipoise.train.folder import replace

IDENTIFIERS = "trackers.json"
SAMPLES = "samples"
Row = Mapping[str, str | float]


@dataclass(frozen=True)
class Tracked:
    """What a tracker is opened with; `identifier`: what it called the run that is resumed."""

    folder: Path
    log: LogConfig
    settings: Mapping[str, Any]
    identifier: str | None


class Tracker(Protocol):
    identifier: str

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def samples(self, rows: Sequence[Row], step: int) -> None: ...

    def attach(self, file: Path) -> None: ...

    def close(self) -> None: ...


def open_trackers(
    log: LogConfig, folder: Path, settings: Mapping[str, Any], *, run: str
) -> list[Tracker]:
    """Those that `log` asks for; their identifiers are on the disk when this returns.

    `run`: who the run is. A copy that goes on beside its original is another,
    and gets identifiers of its own.
    """
    wanted = {name: kind for name, kind in KINDS.items() if getattr(log, name)}
    if not wanted:
        return []
    file = folder / IDENTIFIERS
    known: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    if known.get("run") != run:
        known = {"run": run}
    opened: dict[str, Tracker] = {}
    for name, kind in wanted.items():
        opened[name] = kind(Tracked(folder, log, settings, known.get(name)))
    given = {name: tracker.identifier for name, tracker in opened.items()}
    replace(file, json.dumps(known | given, indent=2) + "\n")
    return list(opened.values())


def _imported(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"log.{extra} = true needs a package that is not installed: pip install 'equipoise[{extra}]'"
        ) from error


def _table(module: Any, rows: Sequence[Row]) -> Any:
    """As W&B and trackio have it."""
    return module.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])


class _TensorBoard:
    """Its events have no identifier but their folder."""

    def __init__(self, run: Tracked) -> None:
        folder = run.folder / "tensorboard"
        self.writer = _imported("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))
        self.identifier = folder.name

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def samples(self, rows: Sequence[Row], step: int) -> None:
        # Markdown takes what is indented by four for plain text.
        text = "\n\n".join(
            "\n".join(f"    {name}: {value!r}" for name, value in row.items()) for row in rows
        )
        self.writer.add_text(SAMPLES, text, step)

    def attach(self, file: Path) -> None:
        """TensorBoard has no files beside its events."""

    def close(self) -> None:
        self.writer.close()


class _Wandb:
    """Steps are a metric of ours: W&B's own count never goes back, and a resumed run does."""

    def __init__(self, run: Tracked) -> None:
        self.module = _imported("wandb", "wandb")
        log = run.log
        self.run = self.module.init(
            project=log.project,
            entity=log.entity or None,
            group=log.group or None,
            tags=list(log.tags) or None,
            name=run.folder.name,
            id=run.identifier,
            resume="allow" if run.identifier else None,
            dir=str(run.folder),
            config=dict(run.settings),
        )
        self.identifier = str(self.run.id)
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.run.log({**metrics, "step": step})

    def samples(self, rows: Sequence[Row], step: int) -> None:
        self.run.log({SAMPLES: _table(self.module, rows), "step": step})

    def attach(self, file: Path) -> None:
        # Artifacts are found by name in a project: the run's identifier keeps reports of two runs
        # apart.
        artifact = self.module.Artifact(f"{file.stem}-{self.identifier}", type=file.stem)
        artifact.add_file(str(file))
        self.run.log_artifact(artifact)

    def close(self) -> None:
        """W&B writes from a process of its own, and `finish` returns before the last records are on the disk: up to
        0.12 s before, as measured, and a program that is ended meanwhile loses them. Ending that process waits for
        them; another run of the same program, which it would end too, keeps it."""
        self.run.finish()
        if self.module.run is None:
            self.module.teardown()


class _Trackio:
    """A run is found again by its name, of which a project may have several: hence our own."""

    def __init__(self, run: Tracked) -> None:
        self.module = _imported("trackio", "trackio")
        log = run.log
        self.identifier = run.identifier or f"{run.folder.name}-{secrets.token_hex(3)}"
        whose = {"entity": log.entity, "tags": list(log.tags)}  # trackio has no such fields
        self.run = self.module.init(
            project=log.project,
            name=self.identifier,
            group=log.group or None,
            resume="allow" if run.identifier else "never",
            config={**run.settings, **{name: value for name, value in whose.items() if value}},
            embed=False,
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.run.log(dict(metrics), step=step)

    def samples(self, rows: Sequence[Row], step: int) -> None:
        self.run.log({SAMPLES: _table(self.module, rows)}, step=step)

    def attach(self, file: Path) -> None:
        self.run.log_artifact(str(file), name=f"{self.identifier}-{file.stem}", type=file.stem)

    def close(self) -> None:
        self.run.finish()


class _MLflow:
    def __init__(self, run: Tracked) -> None:
        self.module = _imported("mlflow", "mlflow")
        log = run.log
        self.module.set_experiment(log.project)
        tags = {**dict.fromkeys(log.tags, "true"), "group": log.group, "entity": log.entity}
        active = self.module.start_run(
            run_id=run.identifier,
            run_name=run.folder.name,
            tags={name: value for name, value in tags.items() if value},
        )
        self.identifier = str(active.info.run_id)
        if run.identifier is None:  # MLflow refuses a parameter that changed, and train.steps may
            self.module.log_params({name: str(value)[:500] for name, value in run.settings.items()})

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        # MLflow's names may not contain "@", which ours do (acc@8).
        self.module.log_metrics(
            {name.replace("@", "_at_"): value for name, value in metrics.items()}, step=step
        )

    def samples(self, rows: Sequence[Row], step: int) -> None:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        self.module.log_table(columns, f"{SAMPLES}/step-{step}.json")

    def attach(self, file: Path) -> None:
        self.module.log_artifact(str(file))

    def close(self) -> None:
        self.module.end_run()


KINDS: dict[str, type[_TensorBoard] | type[_Wandb] | type[_Trackio] | type[_MLflow]] = {
    "tensorboard": _TensorBoard,
    "wandb": _Wandb,
    "trackio": _Trackio,
    "mlflow": _MLflow,
}

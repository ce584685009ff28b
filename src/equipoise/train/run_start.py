"""How a run begins, or goes on: whose directory, which settings, which checkpoint.

A new run wants a new directory. A resumed one goes on where its directory lies, with the settings
and the data it began with, from its last checkpoint; where that is missing or damaged nothing is
touched until somebody names another one (`--from-step`). Lines that were logged after the last
checkpoint are computed again, to the same numbers.
"""

from __future__ import annotations

import glob
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.config import Config, load, parse_overrides
from equipoise.tasks import Task
from equipoise.tasks.data_files import KINDS
from equipoise.tasks.fingerprint import changed, fingerprints
from equipoise.train import checkpoint
from equipoise.train.best import discard_dangling
from equipoise.train.folder import SFT_CONFIG, RunError, RunFolder, read_lines, torn_inside
from equipoise.train.record import Record, here, new_record, read_record
from equipoise.train.settle import as_begun

# What a resumed run may set anew: nothing that changes the weights it ends with.
MAY_CHANGE = ("train.steps", "train.out", "train.checkpoint_every", "train.keep", "train.max_", "log.", "eval.",
              "reward.workers", "reward.max_unscored", "reward.judge")  # fmt: skip
# paths, which may change where the files' contents do not
DATA = ("task.name", "task.held_out", "task.avoid")


@dataclass
class Start:
    """Where a run begins: `step` of the checkpoint it goes on from, 0 for the beginning."""

    record: Record
    step: int = 0
    sentence: str = ""  # for the terminal

    def check_data(self, folder: RunFolder, config: Config, task: Task) -> None:
        """Keep the fingerprints of a new run's data; refuse a resumed run with other data."""
        now = fingerprints(task, config.task.held_out, config.task.avoid)
        if self.record.data and (what := changed(self.record.data, now)):
            raise RunError(_other_data(folder, self.step, what))
        self.record.data = now


def configured(path: str | Path, overrides: Sequence[str] = (), *, resume: bool = False) -> Config:
    """The configuration in a file, or of a run directory (or its config.toml).

    (A copied or moved directory has a config.toml that names another.)
    """
    home = run_of(Path(path))
    if resume and not Path(path).exists():
        raise RunError(f"{path}: there is no such run; name the folder it lies in now")
    if home is None:
        return load(path, overrides)
    if not resume and Path(path).is_dir():
        raise RunError(
            f"{path}: is a run directory: --resume goes on with it; equipoise train {_quoted(home / 'config.toml')} "
            "--train.out DIR starts another with its settings"
        )
    named = [text for keys, text in parse_overrides(overrides) if keys == ["train", "out"]]
    if resume and named and Path(named[-1]).resolve() != home.resolve():
        raise RunError(
            f"--train.out {named[-1]}: a run resumes where it lies, in {home}; to start another with its settings, "
            "leave --resume out"
        )
    config = load(home / "config.toml", overrides)
    if not named:
        config.train.out = str(home)
    return config


def run_of(path: Path) -> Path | None:
    """The run directory that `path` is, or whose config.toml it is; None where it is neither."""
    if path.is_dir():
        if not (path / "config.toml").is_file():
            raise RunError(f"{path}: holds no run: there is no config.toml in it")
        return path
    folder = RunFolder(path.parent)
    beside = (folder.record, folder.environment, folder.metrics, folder.checkpoints)
    is_config = path.name == "config.toml" and any(file.exists() for file in beside)
    return path.parent if is_config else None


def check_start(
    folder: RunFolder, config: Config, *, resume: bool, from_step: int | None = None
) -> Start:
    """Refuse what must not begin or go on, before anything is loaded and without changing anything."""
    begun = folder.config.exists()
    if from_step is not None and not resume:
        raise RunError(f"--from-step {from_step}: needs --resume, which goes on with a run")
    if begun and not resume:
        steps = [r["step"] for r in read_lines(folder.metrics)]
        raise RunError(
            f"{folder.path}: holds a run already (at step {steps[-1] if steps else 0}); "
            f"--resume goes on with it, --train.out DIR starts another"
        )
    if (folder.path / SFT_CONFIG).exists():
        raise RunError(
            f"{folder.path}: holds a supervised warm-up; --model.name {folder.path} starts from it, --train.out DIR "
            "says where to"
        )
    if not resume:
        return Start(new_record(folder))
    if not begun:
        raise RunError(f"{folder.path}: holds no run to resume; start it without --resume")
    old, record = load(folder.config), read_record(folder)
    _refuse_missing_data(folder, config)
    data_is_known = record is not None and bool(record.data)
    if differing := differences(old, as_begun(old, config), data_is_known=data_is_known):
        raise RunError(
            f"{folder.path}: a resumed run keeps its settings, but these differ: {'; '.join(differing)}; "
            f"to go on with those it has: {resume_command(folder)}"
        )
    _refuse_torn_logs(folder)
    step = _chosen(folder, record, old.train.checkpoint_every, from_step)
    if step and config.eval.every and config.eval.probe and not folder.probe.exists():
        raise RunError(
            f"{folder.path}: eval.probe = true: {folder.probe.name} is not there, and only the evaluation before "
            "training can make it; resume with eval.probe = false"
        )
    known = here(record, folder) if record else new_record(folder)
    return Start(known, step, _sentence(folder, step, config.train.steps))


def differences(old: Config, new: Config, *, data_is_known: bool = False) -> list[str]:
    was, now = old.flat(), new.flat()
    free: tuple[str, ...] = MAY_CHANGE
    if old.optim.schedule != "constant":  # a schedule depends on train.steps
        free = MAY_CHANGE[1:]
    if data_is_known and Path(new.task.name).exists():  # its contents are compared when it is open
        free += DATA
    other = [key for key in was if was[key] != now[key] and not key.startswith(free)]
    return [f"{key} was {was[key]!r}, now {now[key]!r}" for key in other]


def rewind(folder: RunFolder, start: Start) -> None:
    """Have the directory as it was at the step that the run goes on from."""
    if folder.checkpoints.is_dir():
        checkpoint.discard_unfinished(folder.checkpoints)
        checkpoint.discard_after(folder.checkpoints, start.step)
        discard_dangling(folder.checkpoints)
    start.record.checkpoint = start.step
    start.record.write(folder)
    folder.rewind(start.step if start.step else -1)


def finished(config: Config) -> str | None:
    """What to say instead of resuming a run that has reached its last step; None for any other.

    One that was killed behind its last checkpoint goes on, and makes what goes with it.
    """
    folder = RunFolder(config.train.out)
    last = max([0, *checkpoint.steps(folder.checkpoints)])
    if not folder.config.exists() or last < config.train.steps:
        return None
    start = check_start(folder, config, resume=True)
    if start.step < config.train.steps or not _has_ended(folder, config, start.step):
        return None
    if start.step > config.train.steps:
        return _beyond(folder, start.step, config.train.steps)
    longer = ""
    if config.optim.schedule == "constant":
        longer = "; --train.steps N trains it on to step N"
    return f"{folder.path}: finished: step {start.step} of {config.train.steps} is done{longer}"


def _beyond(folder: RunFolder, step: int, steps: int) -> str:
    said = f"{folder.path}: has trained to step {step} already, beyond train.steps = {steps}"
    if steps not in checkpoint.steps(folder.checkpoints):
        return said
    return f"{said}; --from-step {steps} goes back to that checkpoint"


def _has_ended(folder: RunFolder, config: Config, step: int) -> bool:
    """Whether the run came to its end behind the checkpoint of its last step."""
    record = read_record(folder)  # runs of earlier versions have none
    averaged = folder.averaged.is_dir() or not config.train.average
    return averaged and (record is None or record.checkpoint >= step)


def resume_command(folder: RunFolder, from_step: int | None = None) -> str:
    more = "" if from_step is None else f" --from-step {from_step}"
    return f"equipoise train {_quoted(folder.path)} --resume{more}"


def _chosen(folder: RunFolder, record: Record | None, every: int, from_step: int | None) -> int:
    """The step that a resumed run goes on from: the last there ever was, or the one named."""
    last = max([0, *checkpoint.all_steps(folder.checkpoints)])
    last = max(last, record.checkpoint if record else _expected(folder, every))
    step = last if from_step is None else from_step
    fault = checkpoint.fault(folder.checkpoints, step) if step else None
    if fault is None:
        return step
    which = f"the checkpoint of step {step}"
    if step == last:
        which = f"its last checkpoint, of step {step},"
    raise RunError(f"{folder.path}: {which} {fault}; nothing was changed. {_offer(folder)}")


def _expected(folder: RunFolder, every: int) -> int:
    """The step of the last checkpoint that a run of an earlier version must have written, by its
    log: the line of a step comes before its checkpoint.
    """
    logged = [record["step"] for record in read_lines(folder.metrics)]
    return (logged[-1] - 1) // every * every if logged else 0


def _offer(folder: RunFolder) -> str:
    """How to go on from another checkpoint."""
    found = checkpoint.all_steps(folder.checkpoints)
    whole = [step for step in found if checkpoint.fault(folder.checkpoints, step) is None]
    if not whole:
        return f"No checkpoint is whole; to begin again, and forget all that was logged: {resume_command(folder, 0)}"
    others = f" (and of {', '.join(map(str, whole[:-1]))})" if whole[1:] else ""
    return (
        f"The checkpoint of step {whole[-1]}{others} is whole; to go on from it, and forget what was logged after it: "
        f"{resume_command(folder, whole[-1])}"
    )


def _sentence(folder: RunFolder, step: int, steps: int) -> str:
    logged = [record["step"] for record in read_lines(folder.metrics) if record["step"] > step]
    where = f"goes on after step {step} of {steps}" if step else "begins again at step 1"
    again = [n for n in logged if n <= steps]
    if again:
        where += f"; {_steps(again, 'was', 'were')} logged already and "
        where += f"{'is' if len(again) == 1 else 'are'} computed again"
    if forgotten := logged[len(again) :]:
        where += f", {_steps(forgotten, 'is', 'are')} forgotten"
    return f"{folder.path}: {where}"


def _steps(numbers: Sequence[int], one: str, several: str) -> str:
    if len(numbers) == 1:
        return f"step {numbers[0]} {one}"
    return f"steps {numbers[0]} to {numbers[-1]} {several}"


def _refuse_missing_data(folder: RunFolder, config: Config) -> None:
    for option, name in (("task.name", config.task.name), ("task.held_out", config.task.held_out)):
        is_path = name.endswith(KINDS) and not name.startswith("hub:") and not glob.has_magic(name)
        if is_path and not Path(name).exists():
            raise RunError(
                f"{folder.path}: {name} ({option}) is not there, seen from {Path.cwd()}; nothing was changed. "
                f"--{option} PATH says where it lies now"
            )


def _refuse_torn_logs(folder: RunFolder) -> None:
    for path in (folder.metrics, folder.eval, folder.troubles):
        if line := torn_inside(path):
            raise RunError(
                f"{path}: line {line} is not a whole record, and lines follow it; nothing was changed: repair or "
                "delete that line"
            )


def _other_data(folder: RunFolder, step: int, what: str) -> str:
    said = f"{folder.path}: its data have changed: {what}, and a resumed run would train on other prompts than it says"
    if not step:
        return f"{said}; restore the file, or start another run"
    weights = folder.checkpoints / f"step-{step}"
    return (
        f"{said}; restore the file, or start another run with its weights on the new data: "
        f"equipoise train {_quoted(folder.config)} --model.name {_quoted(weights)} --train.out DIR"
    )


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))

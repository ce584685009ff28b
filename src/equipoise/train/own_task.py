"""What an evaluation takes from its run: the task with its options, how it evaluates, who judges.

So `equipoise eval RUN` says of the last checkpoint what the run's own evaluation said. A model that
is no run, or another task than the run's, takes the defaults. Reward functions that are not to be
found again leave it to the task's verifier, and a sentence says so; where the rows have no answers
either, it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise.config import Config, ConfigError, TaskConfig, load, load_sections
from equipoise.evaluate import Judge, TaskVerifier
from equipoise.tasks import Prompt, Task
from equipoise.tasks.data_files import files_of
from equipoise.tasks.fingerprint import changed, fingerprints
from equipoise.tasks.schema import UNGRADED
from equipoise.train.folder import RunFolder
from equipoise.train.given import PYTHON
from equipoise.train.record import read_record
from equipoise.train.score import SHAPES, Scorer, rate_of

WEIGHTS = ("averaged", "hub")  # folders of a run beside its checkpoints that hold weights
JUDGE = ("reward", "objective")
# the others may name files that are gone, or options of earlier versions
SECTIONS = ("task", "eval", "rollout")
VERL_STEP = "global_step_*"  # verl's checkpoints lie in the run itself


@dataclass(frozen=True)
class OwnTask:
    """`run` is None where the defaults were taken; `max_tokens` 0 is the task's own."""

    task: TaskConfig
    run: RunFolder | None = None
    samples: int = 8
    temperature: float = 1.0
    per_level: int | None = None
    max_tokens: int = 0
    stop: tuple[str, ...] = ()

    def note(self, task: Task) -> str | None:
        """What to say where the run's data, and so its held-out prompts, may be others."""
        record = None if self.run is None or not files_of(task.name) else read_record(self.run)
        if record is None or not record.data:
            return None
        what = changed(record.data, fingerprints(task, self.task.held_out, self.task.avoid))
        return what and f"{what} when the run began: its held-out prompts may be others"

    @property
    def graded(self) -> bool:
        """Whether the task's verdict counts, so that rows must have an answer."""
        return self.run is None or load_sections(self.run.config, ("reward",)).reward.graded

    def judge(self, task: Task, prompts: Sequence[Prompt]) -> tuple[Judge, str | None]:
        """Who says how right a response is, as in the run; and a note where it cannot be asked.

        ConfigError where nobody can: its functions are gone, and the rows have no answers.
        """
        if self.run is None:
            return TaskVerifier(task), None
        try:
            return _judge_of(load_sections(self.run.config, JUDGE), task), None
        except ConfigError as error:
            if any(prompt.meta.get("verifier") == UNGRADED for prompt in prompts):
                without = "the rows of the task have no answers that a verifier could judge by"
                raise ConfigError(f"{error}; {without}: restore the function") from error
            instead = "judged by the task's verifier instead, which may say otherwise"
            return TaskVerifier(task), f"{error}; {instead}"


def own_task(model: str, task: str | None, overrides: Sequence[str] = ()) -> OwnTask:
    """`task` is the name that `--task` gave, and `overrides` are of the section [task]."""
    folder = run_behind(Path(model))
    if folder is not None:
        config = load_sections(folder.config, SECTIONS, overrides)
        if task in (None, config.task.name):
            _refuse_given("task.name", config.task.name)
            evaluation, rollout = config.eval, config.rollout
            return OwnTask(
                config.task,
                folder,
                evaluation.samples,
                evaluation.temperature,
                evaluation.per_level,
                rollout.max_tokens,
                rollout.stop,
            )
    section = load(None, overrides).task
    section.name = task or section.name
    return OwnTask(section)


def own_chat(model: str) -> TaskConfig:
    """The section [task] of the run behind a model, for how it shows prompts; else defaults."""
    folder = run_behind(Path(model))
    return TaskConfig() if folder is None else load_sections(folder.config, ("task",)).task


def _judge_of(config: Config, task: Task) -> Judge:
    """ConfigError where a reward function is not here."""
    judging = [name for name in config.reward.functions if name not in SHAPES]
    missing = [name for name in judging if name.startswith(PYTHON)]
    if missing and judging[0] == TaskVerifier.name:  # whose verdict decides, whatever others pay
        return TaskVerifier(task)
    for name in missing:
        _refuse_given("reward.functions", name)
    return Scorer(config.reward, task, rate=rate_of(config.build_objective()))


def _refuse_given(option: str, name: str) -> None:
    if name.startswith(PYTHON):
        raise ConfigError(
            f'{option} = "{name}": was given to the run by a Python program, which can call '
            "trainer.evaluate(), and is not here"
        )


def run_behind(model: Path) -> RunFolder | None:
    """The run that a folder is, or that it has weights of: a checkpoint, ours or verl's from our
    launch, or the mean of some.
    """
    folder = model
    if model.parent.name == "checkpoints":
        folder = model.parent.parent
    elif model.name in WEIGHTS or model.match(VERL_STEP):
        folder = model.parent
    found = RunFolder(folder)
    has_checkpoints = found.checkpoints.is_dir() or any(folder.glob(VERL_STEP))
    return found if found.config.is_file() and has_checkpoints else None

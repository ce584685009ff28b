"""The card of a trained model: its data, objective, measured biases and evaluations.

Every number is read from the run's own files; what they do not say is said to be missing. Paths of
the machine are shortened to their last part. Not covered: the licence and the intended use, which
are the publisher's to write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.audit import AuditError, advise, measure
from equipoise.config import Config, ModelConfig
from equipoise.train import RunFolder, read_lines
from equipoise.train.score import SHAPES

# Options that may hold a path of the machine or an address of somebody's service.
PATHS = (
    "model.name",
    "task.name",
    "task.held_out",
    "task.avoid",
    "train.out",
    "train.teacher",
    "reward.functions",
)
PRIVATE = ("sandbox.backend", "log.entity")
RUN = (
    "`config.toml` beside this file has every option (paths shortened to their last part). "
    "`equipoise train config.toml` trains again, once model and data are where it says."
)


@dataclass(frozen=True)
class Published:
    """A run, and which of its weights are published: `step`, and how they are called."""

    run: RunFolder
    config: Config
    weights: str
    step: int


def write_card(source: Published, name: str) -> str:
    """The text of README.md."""
    parts = [
        _front(source),
        f"# {name}\n\n{_origin(source)}",
        f"## Data\n\n{_data(source)}",
        f"## Objective\n\n{_objective(source)}",
        f"## Biases\n\n{_biases(source)}",
        f"## Evaluations\n\n{_evaluations(source)}",
        f"## The run\n\n{RUN}",
    ]
    return "\n\n".join(parts) + "\n"


def public(config: Config) -> Config:
    """A copy without what tells of the machine."""
    shown, defaults = config.model_copy(deep=True), Config().flat()
    for key, value in config.flat().items():
        section, _, option = key.partition(".")
        if key in PRIVATE:
            setattr(getattr(shown, section), option, defaults[key])
        elif key in PATHS:
            setattr(getattr(shown, section), option, _shortened(value))
    return shown


def _shortened(value: Any) -> Any:
    """Absolute paths by their last part: /home/me/base is base, before a function's name too."""
    if isinstance(value, tuple):
        return tuple(_shortened(one) for one in value)
    if isinstance(value, str) and Path(value).is_absolute():
        return Path(value).name
    return value


def _front(source: Published) -> str:
    """The fields that a hub reads."""
    base, data = source.config.model.name, source.config.task.name
    tags = ["reinforcement-learning", "reasoning", "equipoise", source.config.objective.preset]
    fields: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": tags,
    }
    if not _is_local(base):
        fields["base_model"] = base
    if data.startswith("hub:"):
        fields["datasets"] = [data.removeprefix("hub:")]
    # YAML reads JSON
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()]
    return "\n".join(["---", *lines, "---"])


def _is_local(name: str) -> bool:
    """Whether a name is of this machine, and says nothing to a reader of the card."""
    return (
        "/" not in name
        or Path(name).is_absolute()
        or name.startswith((".", "~"))
        or Path(name).exists()
    )


def _origin(source: Published) -> str:
    """The model it was trained from, how, by which version, and which weights these are."""
    config = source.config
    made: dict[str, str] = {}
    if source.run.environment.exists():
        made = json.loads(source.run.environment.read_text(encoding="utf-8"))
    how = _adapters(config.model) if config.model.lora_rank else "all weights"
    base = "on a base in 4 bits (NF4), published whole" if config.model.quantize != "none" else ""
    trained = " ".join(filter(None, (how, base)))
    return (
        f"Trained from `{_shortened(config.model.name)}` by reinforcement learning with verifiable rewards "
        f"({trained}), with equipoise {made.get('equipoise', '(version unknown)')} on "
        f"{made.get('device', 'an unknown device')}. These are the weights of {source.weights}."
    )


def _adapters(model: ModelConfig) -> str:
    targets = ", ".join(model.lora_targets) or "all linear layers but the head"
    dropout = f", dropout {model.lora_dropout:g}" if model.lora_dropout else ""
    return f"LoRA adapters of rank {model.lora_rank} and alpha {model.lora_alpha:g} on {targets}{dropout}, merged"


def judged_by(config: Config) -> str:
    """Who said which responses were right."""
    if not config.reward.graded:
        functions = tuple(name for name in config.reward.functions if name not in SHAPES)
        return f"judged by {', '.join(_shortened(functions or config.reward.functions))}"
    if config.task.name.partition(":")[0] in ("arithmetic", "gym"):
        return "verified by the task itself"
    return f"verified by {config.task.verifier or 'the verifier of each row, else math'}"


def _data(source: Published) -> str:
    """What it was trained on, and what was kept out."""
    task = source.config.task
    shown = _shortened(task.name)
    lines = [f"Prompts: `{shown}`, {judged_by(source.config)}."]
    seen = _prompts_seen(source.run.prompts)
    lines.append(
        f"Different prompts in the run: {seen}."
        if seen
        else "How many prompts were seen is not recorded."
    )
    if task.avoid:
        files = ", ".join(f"`{name}`" for name in _shortened(task.avoid))
        lines.append(f"Problems that share 13 words in a row with {files} were left out.")
    else:
        lines.append("No benchmark was named to keep out of the training data (`task.avoid`).")
    return " ".join(lines)


def _prompts_seen(file: Path) -> int:
    """Of the run's own record of prompts; 0 where there is none."""
    if not file.exists():
        return 0
    import pyarrow.parquet as pq

    return int(pq.read_metadata(file).num_rows)


def _objective(source: Published) -> str:
    """The choices of the objective and the settings a reader would compare runs by."""
    config = source.config
    built = config.build_objective()
    rollout, optim = config.rollout, config.optim
    rows = [
        ("preset", config.objective.preset),
        ("advantage", str(built.advantage)),
        ("difficulty", str(built.difficulty_choice)),
        ("cancellation", str(built.cancellation)),
        ("aggregation", str(built.aggregation)),
        ("surrogate", str(built.surrogate)),
        ("KL to the start", f"{config.objective.kl:g}"),
        ("reward", ", ".join(map(str, _shortened(config.reward.functions)))),
        ("rollouts", f"{rollout.prompts} prompts × {rollout.group_size} responses"),
        ("temperature", f"{rollout.temperature:g}"),
        (
            "optimizer",
            f"AdamW, rate {optim.lr:g} ({optim.schedule}, {optim.warmup} steps of warm-up)",
        ),
        ("steps", f"{source.step} of {config.train.steps}"),
    ]
    return _table(("choice", "value"), rows)


def _biases(source: Published) -> str:
    """What the audit finds in the run's rollouts, and the measures of its last steps."""
    records = [r for r in read_lines(source.run.metrics) if r["step"] <= source.step]
    last = records[-max(1, len(records) // 10) :]
    names = sorted({key for record in last for key in record if key.startswith("bias/")})
    rows = []
    for name in names:
        values = [record[name] for record in last if record.get(name) is not None]
        if values:
            rows.append((f"`{name}`", f"{sum(values) / len(values):.4f}"))
    if rows:
        first, end = last[0]["step"], last[-1]["step"]
        steps = f"step {end}" if first == end else f"steps {first} to {end}"
        table = _table(("measure", f"mean of {steps}"), rows)
    else:
        table = "The run logged no measures of bias."
    return f"{table}\n\n{_audited(source.run)}"


def _audited(run: RunFolder) -> str:
    """What the audit of the run's own rollouts has to say, a line for each topic."""
    try:
        advice = advise(measure([str(run.path)]))
    except AuditError as error:
        return f"`equipoise audit` could not read the run's rollouts: {error}"
    lines = []
    for one in advice:
        change = f" To change it: {one.change}." if one.change else ""
        lines.append(f"- {one.topic}: {one.finding}{change}")
    return "`equipoise audit` on the run's rollouts:\n\n" + "\n".join(lines)


def _evaluations(source: Published) -> str:
    """Held-out prompts before training and at the published step, and benchmarks if any."""
    records = {record["step"]: record for record in read_lines(source.run.eval)}
    parts = []
    shown = [step for step in (0, source.step) if step in records]
    if shown:
        kept = source.config.eval
        about = (
            f"{kept.samples} samples a prompt at temperature {kept.temperature}; 95 % intervals."
        )
        parts.append(
            f"Held-out prompts of the training task, {about}\n\n{_accuracies(records, shown)}"
        )
    else:
        parts.append("The run was not evaluated at this step.")
    if source.weights.startswith("the mean"):
        parts.append(
            "These are numbers of the last step's weights: the mean itself was not evaluated."
        )
    for file in sorted((source.run.path / "evaluation").glob("**/result.md")):
        parts.append(f"### {file.parent.name}\n\n{file.read_text(encoding='utf-8').strip()}")
    return "\n\n".join(parts)


def _accuracies(records: Mapping[int, Mapping[str, Any]], steps: Sequence[int]) -> str:
    """Held-out metrics with their intervals, a column for each of these steps."""
    names = list(records[steps[-1]]["interval"])
    rows = []
    for name in names:
        cells = [_with_interval(records[step], name) for step in steps]
        rows.append((name, *cells))
    return _table(("metric", *(f"step {step}" for step in steps)), rows)


def _with_interval(record: Mapping[str, Any], name: str) -> str:
    if record.get(name) is None:
        return "–"
    low, high = record["interval"][name]
    return f"{record[name]:.3f} [{low:.3f}, {high:.3f}]"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown, where a bar inside a cell would end it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )

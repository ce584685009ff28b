"""What becomes of a configuration of ours in another trainer, and the folder that starts it there.

Every option of every section is `mapped` to settings of the host, or to what the launch itself
does; `nearly` mapped, to settings that mean almost the same, and the difference is stated; the
host's `own` business; or `unmappable`, with the reason. The account of all of them stands in the
launch.

The launch keeps a copy of the configuration beside it:
prompts and rewards are still ours, and read it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import glob
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise import tasks
from equipoise.config import VERDICTS, Config
from equipoise.files import whole
from equipoise.policy import Policy
from equipoise.policy.chat import Chat
from equipoise.policy.model import templated
from equipoise.policy.names import ABACUS, ModelError, folder_of
from equipoise.tasks import Prompt, Task
from equipoise.train.settle import SETTLED, Outline, settle

LABELS = {"mapped": "", "nearly": "nearly", "own": "its own business", "unmappable": "unmappable"}
KINDS = tuple(LABELS)


class ExportError(ValueError):
    """What cannot be exported; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What became of one option of ours: how well it maps, and the host's settings."""

    kind: str  # mapped, nearly, own or unmappable
    theirs: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""


def mapped(theirs: Mapping[str, Any] | None = None, why: str = "") -> Setting:
    return Setting("mapped", theirs or {}, why)


def nearly(theirs: Mapping[str, Any], why: str) -> Setting:
    return Setting("nearly", theirs, why)


def nearly_if(differs: object, theirs: Mapping[str, Any], why: str) -> Setting:
    """Of an option whose settings mean something else there for some of its values."""
    return nearly(theirs, why) if differs else mapped(theirs)


def truncation(theirs: Mapping[str, Any], truncates: bool) -> Setting:
    """An option that may truncate the vocabulary: our ratios are then over what is kept."""
    return nearly_if(truncates, theirs, "its ratios are of whole-vocabulary probabilities")


def own(why: str) -> Setting:
    return Setting("own", why=why)


def unmappable(why: str) -> Setting:
    return Setting("unmappable", why=why)


def refused(value: object, why: str, off: str = "none") -> Setting:
    """Of an option that the host cannot have: unmappable where it is on."""
    return unmappable(why) if value else mapped(why=off)


def mapped_if(on: object, theirs: Mapping[str, Any], off: str) -> Setting:
    """Of an option whose settings stand in the launch only where it is on."""
    return mapped(theirs) if on else mapped(why=off)


def tracker_settings(config: Config, why: str) -> dict[str, Setting]:
    names = ("entity", "group", "tags")
    return {f"log.{name}": refused(getattr(config.log, name), why) for name in names}


def sandbox_settings(config: Config) -> dict[str, Setting]:
    """Our reward function reads this section, whoever trains."""
    return {
        f"sandbox.{key}": mapped(why="our reward function reads it") for key, _ in config.sandbox
    }


def rewards_are_accuracies(config: Config) -> bool:
    """Whether a response's reward is 1 where right and 0 where wrong: all that a host sees."""
    reward = config.reward
    prices = {getattr(reward, kind) for kind in VERDICTS}
    plain = (
        reward.functions == ("task",)
        and reward.weights == (1.0,)
        and (reward.correct, reward.wrong) == (1.0, 0.0)
    )
    return plain and not reward.overlong_buffer and prices <= {"wrong", "mask", 0.0}


SHAPED = unmappable(
    "the host has rewards and no accuracies, and these rewards are shaped: no length penalty was put"
)
UNKNOWN = unmappable("an option that the export does not know yet")


@dataclass(frozen=True)
class Launch:
    """`settings` has every option as "section.option"; `files` are the text files of the launch."""

    host: str
    config: Config
    settings: Mapping[str, Setting]
    files: Mapping[str, str]

    def write(self, folder: Path) -> None:
        """All files, into a folder that holds no launch yet."""
        for name in self.files:
            refuse_existing(folder / name)
        for name, text in self.files.items():
            with new(folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")
                if name.endswith((".sh", ".py")):
                    temporary.chmod(0o755)

    def summary(self) -> str:
        """How many options are of each kind, and those that do not mean there what they mean here."""
        kinds = Counter(self.settings.get(ours, UNKNOWN).kind for ours in self.config.flat())
        head = f"{kinds['mapped']} options mapped, {kinds['own']} are {self.host}'s own business"
        counts = f", {kinds['nearly']} nearly mapped, {kinds['unmappable']} unmappable"
        differing = account(self.config, self.settings, ("nearly", "unmappable"))
        lines = [f"  {line}" for line in differing]
        return "\n".join([head + counts + (":" if lines else ""), *lines])


@contextlib.contextmanager
def new(target: Path) -> Iterator[Path]:
    """Where to write a file that then appears whole or not at all, and over no other."""
    refuse_existing(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole(target) as temporary:
            yield temporary
    except OSError as error:
        raise ExportError(f"{target}: cannot be written: {error.strerror or error}") from error


def refuse_existing(target: Path) -> None:
    if target.exists():
        raise ExportError(f"{target}: is there already: move it away, or choose another place")


def arguments(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """The host's settings of all options together; two options must not set the same one."""
    found: dict[str, Any] = {}
    for ours, setting in settings.items():
        if twice := found.keys() & setting.theirs.keys():
            raise ValueError(
                f"{ours} sets {', '.join(sorted(twice))}, which another option has set"
            )
        found |= setting.theirs
    return found


def account(
    config: Config, settings: Mapping[str, Setting], kinds: Sequence[str] = KINDS
) -> list[str]:
    """Each option of these kinds in the configuration's order: its value and what became of it."""
    lines = []
    for ours, value in config.flat().items():
        setting = settings.get(ours, UNKNOWN)
        theirs = ", ".join(f"{name}={_shown(v)}" for name, v in setting.theirs.items())
        parts = [f"{ours}={_shown(value)}", LABELS[setting.kind], theirs, setting.why]
        if setting.kind in kinds:
            lines.append(": ".join(part for part in parts if part))
    return lines


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def refuse_without_teacher(config: Config, host: str) -> None:
    """No plug-in has a teacher: what learns from nothing else would learn nothing there."""
    if config.build_objective().advantage.name == "none":
        raise ExportError(
            f"objective.advantage = none learns from train.teacher alone, and {host} has none: train it here, or take "
            "another objective.preset"
        )


def settled(config: Config) -> Config:
    """Without `auto`: what our own run would make of it, by the model's files alone."""
    left = [name for name in SETTLED if config.flat()[name] == "auto"]
    if not left:
        return config
    folder = model_folder(config.model.name)
    try:
        return settle(config, _outline(folder)).config
    except (OSError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise ExportError(
            f"{left[0]} = auto is decided by the model, and {folder} cannot be opened here: {said}; set "
            f"{' and '.join(left)}"
        ) from error


def _outline(folder: str) -> Outline:
    """Of a model whose weights are not read."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    # A copy, because the configuration may give it another chat template.
    policy = Policy(model, copy.deepcopy(_tokenizer(folder)), folder)
    # a model without the file has the end token of its configuration
    with contextlib.suppress(OSError):
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return Outline.of(policy)


def portable(config: Config) -> Config:
    """The same with its files and folders named from the root: a launch may run from anywhere."""
    config = copy.deepcopy(config)
    task = config.task
    task.name, task.held_out = _absolute(task.name), _absolute(task.held_out)
    task.avoid = tuple(map(_absolute, task.avoid))
    config.model.name = _absolute(config.model.name)
    config.train.out = str(Path(config.train.out).absolute())
    return config


def _absolute(name: str) -> str:
    if name and (Path(name).exists() or glob.has_magic(name)):
        return str(Path(name).absolute())
    return name


def model_folder(name: str) -> str:
    """What the host's own loaders can open: a folder or a hub name."""
    if name == "smollm":
        raise ExportError(
            'model.name = "smollm" comes out of a Python package, which no other trainer reads: write it as a folder '
            'with policy.save(policy.load("smollm"), "FOLDER"), and name that'
        )
    try:
        return str(ABACUS) if name == "abacus" else str(folder_of(name))
    except ModelError as error:
        raise ExportError(str(error)) from error


def open_task(config: Config) -> Task:
    """The task as a training run of ours would open it."""
    task = config.task
    shown = settled(config) if task.max_prompt_tokens else config
    count = (lambda prompt: _tokens(shown, prompt)) if task.max_prompt_tokens else None
    return tasks.open_task(
        task.name,
        config.train.seed,
        **task.options(),
        count_tokens=count,
        graded=config.reward.graded,
    )


def _tokens(config: Config, prompt: Prompt) -> int:
    """As many as the prompt has when our own run encodes it."""
    tokenizer = _tokenizer(model_folder(config.model.name))
    task = config.task
    if not task.chat:
        return len(tokenizer(prompt.text)["input_ids"])
    messages = Chat(on=True, system=task.system).messages(prompt.text, prompt.messages)
    options = {
        **(task.chat_template_kwargs or {}),
        "add_generation_prompt": True,
        "return_dict": True,
    }
    if task.chat_template:
        options["chat_template"] = task.chat_template
    return len(templated(tokenizer, config.model.name, messages, **options)["input_ids"])


@functools.cache
def _tokenizer(folder: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise ExportError(f"the tokenizer of {folder} cannot be opened here: {said}") from error

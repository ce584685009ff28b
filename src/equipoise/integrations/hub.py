"""`equipoise push`: a run's weights with a model card, as a folder and on the Hugging Face hub.

The folder has what plain transformers opens, the card and the configuration; the trainer's state,
rollouts and paths of the machine are not in it. It is written first, and `--dry-run` stops there.
Who may write where is the hub's to say: the token is huggingface_hub's own (`hf auth login`,
HF_TOKEN).
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from equipoise.config import dump, load
from equipoise.files import whole
from equipoise.integrations.model_card import Published, public, write_card
from equipoise.train import RunFolder, checkpoint, read_lines
from equipoise.train.best import Best

FOLDER = "hub"
NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# The trainer's state is of no use to others, its sums are of files that change,
# and an adapter names the base by path.
LEFT_OUT = (checkpoint.STATE, checkpoint.SUMS, "adapter", ".*")


class PushError(ValueError):
    """What cannot be published; the message is one sentence for the user."""


def push(
    run: str, to: str, *, weights: str = "", private: bool = False, dry_run: bool = False
) -> str:
    """Write the folder, upload it unless `dry_run`. `weights`: last, best, averaged or a step."""
    if not NAME.fullmatch(to):
        raise PushError(f"--to {to}: must be the hub's name of a model, OWNER/NAME")
    folder = RunFolder(run)
    if not folder.config.exists():
        raise PushError(
            f"{run}: holds no run (no config.toml); give a folder that equipoise train wrote"
        )
    source, place = _chosen(folder, weights)
    out = folder.path / FOLDER
    _write(source, place, to, out)
    if dry_run:
        return f"{out} is what would go to {to} ({source.weights}); nothing was uploaded"
    return f"{_upload(out, to, source, private)} has {source.weights} ({out})"


def _chosen(folder: RunFolder, weights: str) -> tuple[Published, Path]:
    """Which weights are meant; where the run kept its best, those are the default."""
    config = load(folder.config)
    kept = checkpoint.steps(folder.checkpoints)
    if not kept:
        raise PushError(f"{folder.path}: has no whole checkpoint to publish")
    best = Best(config.train.keep_best)
    best.see_all(record for record in read_lines(folder.eval) if record["step"] in kept)
    weights = weights or ("last" if best.step is None else "best")
    if weights == "averaged":
        if not folder.averaged.is_dir():
            raise PushError(
                f"{folder.averaged}: is not there; train.average writes it at the end of a run"
            )
        return Published(
            folder, config, "the mean of the last checkpoints", kept[-1]
        ), folder.averaged
    if weights == "best" and best.step is None:
        raise PushError(
            f"--weights best: the run kept none; set train.keep_best, or choose among {_listed(kept)}"
        )
    steps = {"last": kept[-1], "best": best.step, **{str(step): step for step in kept}}
    step = steps.get(weights)
    if step is None:
        raise PushError(
            f"--weights {weights}: must be last, best, averaged or a step that was kept, {_listed(kept)}"
        )
    how = f"step {step}" + (f", the best by {best.metric}" if step == best.step else "")
    return Published(folder, config, how, step), folder.checkpoints / f"step-{step}"


def _listed(steps: list[int]) -> str:
    return ", ".join(map(str, steps))


def _write(source: Published, weights: Path, name: str, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(weights, out, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for file, text in (
        ("README.md", write_card(source, name)),
        ("config.toml", dump(public(source.config))),
    ):
        with whole(out / file) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _upload(folder: Path, name: str, source: Published, private: bool) -> str:
    from huggingface_hub import HfApi

    api: Any = HfApi()
    message = f"{source.weights} of a run of {source.config.train.steps} steps"
    try:
        api.create_repo(name, private=private, repo_type="model", exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=str(folder), repo_type="model", commit_message=message
        )
    except Exception as error:  # the client raises a dozen unrelated types, down to its transport's
        reason = next(
            (line for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        raise PushError(
            f"{name}: the hub refused, or cannot be reached: {reason}; {folder} is kept"
        ) from error
    return f"https://huggingface.co/{name}"

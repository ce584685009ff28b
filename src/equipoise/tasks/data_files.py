"""A data set by its name: a file, a glob or a folder of JSONL or Parquet files, a folder saved by
the package datasets, or a data set of the hub.

Of a folder whose files are named by split (train-…, test-…), those of the other splits are left
alone. Not covered: CSV, JSON arrays, files on other machines.
"""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

from equipoise.hub_lookup import look_up
from equipoise.tasks.jsonl import Jsonl
from equipoise.tasks.row_reader import Rows
from equipoise.tasks.tables import Hub, Parquet, first_line
from equipoise.tasks.task import TaskError

KINDS = (".jsonl", ".jsonl.gz", ".parquet")
OTHER_SPLITS = ("test", "validation", "valid", "val", "dev", "eval")


def open_rows(name: str) -> Rows:
    """A file, a glob or folder of files, a folder of datasets, or `hub:owner/name:config:split`."""
    if name.startswith("hub:"):
        return _hub(name)
    if _is_saved(name):
        return _saved(name)
    paths = _files(name)
    kind = _kind(paths[0])
    if odd := [path for path in paths if _kind(path) != kind]:
        raise TaskError(
            f"{name}: holds both {paths[0].name} and {odd[0].name}: must be files of one kind"
        )
    return Parquet(name, paths) if kind == ".parquet" else Jsonl(name, paths)


def files_of(name: str) -> list[Path]:
    """The files that `open_rows` would read; none for the hub, gym and an empty name."""
    if name.startswith(("hub:", "gym:")):  # the weight of a mixture, gym:gcd*2+…, is no glob
        return []
    is_file = name.endswith(KINDS) or glob.has_magic(name)
    is_folder = bool(name) and Path(name).is_dir() and not _is_saved(name)
    return _files(name) if is_file or is_folder else []


def _is_saved(name: str) -> bool:
    """Whether the package datasets wrote the folder."""
    folder = Path(name)
    return any((folder / file).exists() for file in ("dataset_info.json", "dataset_dict.json"))


def _kind(path: Path) -> str:
    """The ending that says how to read a file; empty where none does."""
    return next((kind for kind in KINDS if path.name.endswith(kind)), "")


def _files(name: str) -> list[Path]:
    """The files a name stands for: all of a folder, of a glob, or the one it names."""
    path = Path(name)
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if _kind(file) and file.is_file())
        train = [file for file in found if file.name.startswith("train")]
        # A hub snapshot holds its splits side by side:
        # training on its test files would be a mistake nobody sees.
        found = [file for file in found if not train or not file.name.startswith(OTHER_SPLITS)]
    elif path.exists() or not glob.has_magic(name):
        found = [path]
    else:
        found = sorted(Path(file) for file in glob.glob(name, recursive=True))
    if not found or not _kind(found[0]):
        raise TaskError(f"{name}: there is no file of prompts ({', '.join(KINDS)})")
    return found


def _hub(name: str) -> Hub:
    """A data set of the hub, named as hub:owner/name:config:split; the last two may be left out."""
    path, config, split = [*name.removeprefix("hub:").split(":", 2), "", ""][:3]
    datasets = _datasets(name)
    _refuse_missing(name, path, datasets)
    try:
        return Hub(name, datasets.load_dataset(path, config or None, split=split or "train"))
    except TaskError:
        raise
    except Exception as error:  # it raises whatever its loaders, the network or the hub raise
        raise TaskError(
            f"{name}: cannot be opened: {first_line(error)} (hub:owner/name:config:split)"
        ) from error


def _refuse_missing(name: str, path: str, datasets: Any) -> None:
    """What is neither a folder here, nor on the hub, nor in a cache where the hub is not reached."""
    from huggingface_hub import constants

    if Path(path).exists():
        return
    found = look_up(path, "dataset")
    cached = (
        Path(datasets.config.HF_DATASETS_CACHE) / path.replace("/", "___"),
        Path(constants.HF_HUB_CACHE) / f"datasets--{path.replace('/', '--')}",
    )
    if found.problem and (found.reachable or not any(folder.exists() for folder in cached)):
        raise TaskError(
            f"{name}: cannot be opened: there is no such folder here, and {found.problem}; "
            "give hub:owner/name:config:split, or a file that is here: rows.jsonl"
        )


def _saved(name: str) -> Hub:
    """A folder that the package datasets wrote: one split, or the one called train of several."""
    datasets = _datasets(name)
    try:
        found = datasets.load_from_disk(name)
    except Exception as error:
        raise TaskError(f"{name}: cannot be opened: {first_line(error)}") from error
    if isinstance(found, datasets.DatasetDict):
        if "train" not in found:
            splits = list(found)
            raise TaskError(
                f"{name}: has the splits {', '.join(splits)} and no train: "
                f"name one, {name}/{splits[0]}"
            )
        found = found["train"]
    return Hub(name, found)


def _datasets(name: str) -> Any:
    """The package, which only data sets of the hub or saved by it need."""
    try:
        import datasets
    except ImportError as error:
        raise TaskError(
            f"task.name = {name} needs datasets: pip install 'equipoise[hub]'"
        ) from error
    return datasets

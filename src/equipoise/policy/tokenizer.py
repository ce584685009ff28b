"""A model's tokenizer without its weights, by a model's name. Not covered: chat templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from equipoise.policy.names import ModelError, folder_of, hub_answers, smollm_file


def open_tokenizer(name: str | Path) -> Any:
    """`abacus`, `smollm`, a folder (a run's, a checkpoint) or a hub name; else ModelError."""
    from transformers import AutoTokenizer

    try:
        if str(name) == "smollm":
            file = smollm_file()
            return AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        folder = folder_of(str(name))
        local = Path(folder).is_dir() or not hub_answers(folder)
        return AutoTokenizer.from_pretrained(folder, local_files_only=local)
    except (OSError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(
            f"{name}: its tokenizer cannot be opened: {str(error).splitlines()[0]}"
        ) from error

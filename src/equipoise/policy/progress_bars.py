"""Reading and writing a model without transformers' progress bars, which would stand between the
lines of a run. Those of downloads stay as they are.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator
from typing import Any


@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """For the time of the block; a program's own setting is as before afterwards."""
    from transformers.utils import logging

    hub: Any = importlib.import_module("huggingface_hub.utils")
    shown, downloads_hidden = logging.is_progress_bar_enabled(), hub.are_progress_bars_disabled()

    def downloads_as_before() -> None:  # transformers switches them with its own
        (hub.disable_progress_bars if downloads_hidden else hub.enable_progress_bars)()

    logging.disable_progress_bar()
    downloads_as_before()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
        downloads_as_before()


@contextlib.contextmanager
def no_gguf_bar() -> Iterator[None]:
    """The reader of GGUF files asks nobody whether to show one."""
    reader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    bar, reader.tqdm = reader.tqdm, _items
    try:
        yield
    finally:
        reader.tqdm = bar


def _items(items: Iterable[Any], **options: Any) -> Iterable[Any]:
    return items

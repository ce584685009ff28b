"""A model is read and written without bars between a run's lines; a program's own setting stays."""

import pytest
from huggingface_hub import utils as hub
from transformers import modeling_gguf_pytorch_utils as gguf
from transformers.utils import logging

from equipoise import policy as models
from equipoise.policy.progress_bars import no_gguf_bar, no_progress_bars


@pytest.fixture(autouse=True)
def _as_before():
    shown, hidden = logging.is_progress_bar_enabled(), hub.are_progress_bars_disabled()
    yield
    (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
    (hub.disable_progress_bars if hidden else hub.enable_progress_bars)()


def test_a_model_is_read_and_written_without_bars(tmp_path, capfd):
    logging.enable_progress_bar()
    models.save(models.load("abacus"), tmp_path)
    models.load(tmp_path)
    assert capfd.readouterr().err == ""
    assert logging.is_progress_bar_enabled()


@pytest.mark.parametrize("hidden", [True, False])
def test_the_bars_of_downloads_are_left_alone(hidden):
    (hub.disable_progress_bars if hidden else hub.enable_progress_bars)()
    with no_progress_bars():
        assert hub.are_progress_bars_disabled() == hidden
    assert hub.are_progress_bars_disabled() == hidden


def test_the_reader_of_gguf_files_shows_none(capfd):
    bar = gguf.tqdm
    with no_gguf_bar():
        assert list(gguf.tqdm([1, 2], desc="Converting")) == [1, 2]
    assert gguf.tqdm is bar
    assert capfd.readouterr().err == ""

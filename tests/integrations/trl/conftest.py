"""A tiny model and a folder for a run."""

import pytest
import torch

from tests.train.tiny import make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield str(make_model(tmp_path_factory.mktemp("model") / "tiny"))
    torch.set_num_threads(before)


@pytest.fixture
def out(tmp_path):
    return str(tmp_path / "run")

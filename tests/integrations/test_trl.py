"""EquipoiseGRPOTrainer against equipoise.objective on the same batch, however TRL splits it."""

import json
import os
import socket
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

pytest.importorskip("trl")

from equipoise.objective import named
from tests.integrations import trl_case as case
from tests.train.tiny import make_model

ROOT = Path(__file__).resolve().parents[2]
EXACT = 1e-6  # relative; TRL's forward pass is float32, the reference float64

GRID = ["+".join(p) for p in product(("grpo", "dapo", "gspo", "cispo"), ("token", "sequence", "balanced"))]
GRID = [name + tail for name in GRID for tail in ("", "+hadw")]
OTHERS = ("gmpo", "vespo", "sapo", "aspo", "dppo", "luspo", "rloo", "maxrl", "reinforce", "dr_grpo",
          "grpo+balanced+prefix", "dapo+min_replace", "dapo+balanced+orthogonal", "grpo+recentre")  # fmt: skip
SPLITS = {"whole": (12, 1), "threes": (3, 4), "ones": (1, 12)}
TWO_RANKS = {"sixes": (6, 1), "twos": (2, 3)}  # a group of four straddles the ranks in both
FEW = ("dapo+balanced+hadw", "gspo+sequence+hadw", "cispo+token", "grpo+balanced")


def split(size: int, steps: int) -> dict:
    return {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.set_num_threads(1)
    return str(make_model(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture
def out(tmp_path):
    return str(tmp_path / "run")


def choices(name: str) -> dict:
    return named(name).choices()


@pytest.mark.parametrize("how", SPLITS)
@pytest.mark.parametrize(
    "name", [*FEW, *(pytest.param(n, marks=pytest.mark.slow) for n in (*GRID, *OTHERS) if n not in FEW)]
)
def test_the_gradient_is_the_objectives(model, out, name, how):
    found = case.run(model, out, case.stateful(choices(name)), **split(*SPLITS[how])).found
    assert len(found) == 1
    assert case.distance(found[0], case.wanted(model, case.stateful(choices(name)))) < EXACT


def two_ranks(model: str, folder: Path, cases: dict) -> dict:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    request, found = folder / "request.json", folder / "found.pt"
    request.write_text(json.dumps({"model": model, "out": str(folder / "run"), "cases": cases, "found": str(found)}))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]
    ended = subprocess.run(
        [*command, "-m", "tests.integrations.trl_case", str(request)], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    return torch.load(found, weights_only=False)


def on_two_ranks(model, folder, names, more=None):
    cases = {
        f"{name}/{how}": {"choices": choices(name), "options": split(*TWO_RANKS[how]) | (more or {})}
        for name in names
        for how in TWO_RANKS
    }
    found = two_ranks(model, folder, cases)
    for name in names:
        wanted = case.stateful(choices(name))
        gradient = case.wanted(model, wanted)
        for how in TWO_RANKS:
            result = found[f"{name}/{how}"]
            assert case.distance(result["gradients"][0], gradient) < EXACT, (name, how)
            assert result["state"] == wanted.state_dict()


def test_two_ranks_change_nothing(model, tmp_path):
    on_two_ranks(model, tmp_path, FEW)


@pytest.mark.slow
def test_two_ranks_change_nothing_for_any_objective(model, tmp_path):
    on_two_ranks(model, tmp_path, [n for n in (*GRID, *OTHERS) if n not in FEW])

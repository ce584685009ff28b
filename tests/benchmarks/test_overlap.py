"""benchmarks/overlap.py: its lengths are as asked for and alike in both kinds of run, and its figures what they say."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import overlap
import pytest
import torch

from equipoise import policy as models
from equipoise.kernels.draw import SamplingParams
from equipoise.rollout import NativeSampler

ROOT = Path(overlap.__file__).parents[1]


def test_lengths_are_as_wide_as_asked_for_and_the_same_for_a_step():
    options = Namespace(prompts=4, group=8, mean=12.0, cv=0.8, longest=40)
    sampler, params = NativeSampler(models.load("abacus")), SamplingParams(max_tokens=40)
    limits = []
    plain = overlap.spread(options)
    for step in (1, 1, 2):
        found = plain(sampler.policy, [[1, 2]] * 4, 8, params, None, step, None)
        limits.append(found.limit)
    assert torch.equal(limits[0], limits[1])
    assert not torch.equal(limits[0], limits[2])
    assert torch.equal(limits[0].sort().values, limits[2].sort().values)
    lengths = limits[0].double()
    assert lengths.max() <= 40
    assert float(lengths.std() / lengths.mean()) == pytest.approx(0.8, abs=0.15)


def test_the_bound_leaves_out_the_shorter_part():
    seconds = {"rollout": 5.0, "reward": 1.0, "assign": 0.5, "train": 3.0, "log": 0.5, "step": 10.0}
    runs = [{"ahead": 0, "seconds": seconds, "steps": [10.0, 10.0]}, {"ahead": 1, "failed": "no time left"}]
    assert overlap.compared(runs) == {"ratio": None, "bound": pytest.approx(10 / 7)}
    runs.append({"ahead": 1, "seconds": seconds, "steps": [8.0]})
    assert overlap.compared(runs)["ratio"] == pytest.approx(1.25)


@pytest.mark.long
def test_the_toy_runs_on_a_cpu(tmp_path):
    """Each row is in the file as soon as it is measured."""
    toy = ["--model", "abacus", "--prompts", "4", "--group", "4", "--longest", "32", "--mean", "10", "--steps", "1"]
    script = (
        "import report, pathlib, sys; report.RESULTS = pathlib.Path(sys.argv.pop(1)); import overlap; overlap.main()"
    )
    path = os.pathsep.join([str(ROOT / "benchmarks"), *sys.path])
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), *toy, "--rounds", "1", "--out", "toy"],
        cwd=ROOT, check=True, timeout=500, env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    found = json.loads((tmp_path / "toy.json").read_text())
    assert [run["ahead"] for run in found["runs"]] == [0, 1]
    assert found["runs"][0]["lag"] == 0
    assert found["runs"][1]["lag"] == 1
    assert found["runs"][0]["mean_length"] == pytest.approx(found["runs"][1]["mean_length"], abs=2)
    assert found["ratio"] > 0

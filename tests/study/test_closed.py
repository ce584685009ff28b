"""The closed forms beside logged coefficients: they agree for every covered objective, and a wrong weight is seen."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equipoise.study import closed
from equipoise.train import RunFolder, load
from equipoise.train.folder import append

G, PROMPTS = 8, 6
COVERED = {
    "token over the batch": {"objective.aggregation": "token"},
    "token over the group": {"objective.aggregation": {"name": "token", "over": "group"}},
    "sequence": {"objective.aggregation": "sequence"},
    "constant": {"objective.preset": "dr_grpo", "objective.aggregation": {"name": "constant", "length": 50.0}},
    "power": {"objective.aggregation": {"name": "power", "alpha": 0.4}},
    "balanced": {"objective.aggregation": "balanced"},
    "balanced over the batch": {"objective.aggregation": {"name": "balanced", "over": "batch"}},
    "strength": {"objective.aggregation": {"name": "balanced", "strength": -2.0}},
    "imbalance": {"objective.aggregation": {"name": "balanced", "imbalance": -0.4}},
    "hadw": {"objective.difficulty": {"name": "hadw", "sharpness": 2.0}},
    "min_replace": {"objective.aggregation": "sequence", "objective.cancellation": "min_replace"},
}


def inner(value):
    return "{" + ", ".join(f"{k} = {json.dumps(v)}" for k, v in value.items()) + "}"


def logged(tmp_path, options, spoil=1.0):
    """A batch as a run logs it: the coefficients are the objective's own, `spoil` times them in the first row."""
    flat = [
        part
        for key, value in options.items()
        for part in (f"--{key}", inner(value) if isinstance(value, dict) else value)
    ]
    config = load(None, ["--train.out", str(tmp_path), *flat])
    draw = np.random.default_rng(3)
    group = np.repeat(np.arange(PROMPTS), G)
    reward = (draw.random(PROMPTS * G) < np.repeat(draw.uniform(0.2, 0.8, PROMPTS), G)).astype(float)
    length = draw.integers(5, 60, PROMPTS * G)
    credit = config.build_objective().assign(reward, group, length, accuracy=reward)
    c = (credit.weight * credit.advantage).numpy()
    c[np.flatnonzero(c)[0]] *= spoil
    folder = RunFolder(tmp_path)
    folder.rollouts.mkdir(parents=True)
    table = pa.table({"group": group, "reward": reward, "length": length, "coefficient": c})
    pq.write_table(table, folder.rollouts / "step-1.parquet")
    append(folder.metrics, {"step": 1, "difficulty/anchor": float(reward.mean())})
    return closed.agreement(folder, config)


@pytest.mark.parametrize("name", COVERED)
def test_coefficients_have_the_balances_of_the_closed_forms(tmp_path, name):
    found = logged(tmp_path, COVERED[name])
    assert found["off"] < 1e-9
    assert found["mass"][0] == pytest.approx(found["mass"][1], abs=1e-9)
    if name in ("sequence", "balanced", "balanced over the batch"):
        assert abs(found["mass"][1]) < 1e-9
    else:
        assert abs(found["mass"][1]) > 1e-4


def test_a_wrong_coefficient_is_seen(tmp_path):
    assert logged(tmp_path, COVERED["balanced"], spoil=1.1)["off"] > 0.01


@pytest.mark.parametrize("options", [{"objective.cancellation": "orthogonal"}, {"objective.difficulty": "debias"}])
def test_nothing_is_said_where_there_is_no_closed_form(tmp_path, options):
    assert logged(tmp_path, options) is None

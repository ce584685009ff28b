"""The engines' matrix: the batch is as hard as it says, the committed numbers are the page's, and cells are honest."""

import json

import pytest
import torch

from benchmarks import engine_losses, engines
from benchmarks.engine_batch import Refused, drawn, ours


def test_the_batch_is_ragged_clipped_off_policy_and_of_both_signs():
    batch = drawn()
    ratio = (batch.logp - batch.old).exp()[batch.mask]
    assert len(set(batch.lengths.tolist())) > 5
    assert ((ratio > 1.28) | (ratio < 0.8)).double().mean() > 0.2
    gradient = ours("dapo", batch)
    assert (gradient > 0).any()
    assert (gradient < 0).any()
    assert (gradient == 0).double().mean() > 0.1


def test_a_cell_tells_exact_from_scaled_from_other():
    batch = drawn()
    want = ours("dapo", batch)
    assert engines.cell(lambda name, b: want * (1 + 1e-7), "dapo", batch)["status"] == "exact"
    assert engines.cell(lambda name, b: want * 2, "dapo", batch)["status"] == "nearly"
    assert engines.cell(lambda name, b: want.abs(), "dapo", batch)["status"] == "refused"

    def refuse(name, b):
        raise Refused("no hook")

    assert engines.cell(refuse, "dapo", batch) == {"status": "refused", "why": "no hook"}


@pytest.mark.parametrize("name", engines.OBJECTIVES)
def test_ours_over_micro_batches(name):
    assert engines.cell(engine_losses.equipoise_split, name, drawn())["status"] == "exact"


@pytest.mark.parametrize("engine", ["TRL", "TRL's own losses", "verl", "verl's own losses"])
def test_an_engine_that_is_installed_gives_its_committed_column(engine):
    package, function = engine_losses.ENGINES[engine]
    pytest.importorskip(package, reason=f"{package} is in another environment")
    column = json.loads(engines.RESULTS.read_text())["columns"][engine]["cells"]
    for name in engines.OBJECTIVES:
        found = engines.cell(function, name, drawn())
        assert found["status"] == column[name]["status"], (name, found)
        if found["status"] == "exact":
            assert abs(found["error"] - column[name]["error"]) < engines.EXACT, (name, found)


def test_the_committed_numbers_hold_what_they_say():
    record = json.loads(engines.RESULTS.read_text())
    assert {"equipoise", "TRL", "verl"} <= record["columns"].keys() <= engine_losses.ENGINES.keys()
    for column in record["columns"].values():
        assert all(column[key] for key in ("version", "equipoise", "commit", "date", "transformers", "torch", "python"))
        assert column["cells"].keys() == set(engines.OBJECTIVES)
        for found in column["cells"].values():
            assert found["status"] in ("exact", "nearly", "refused", "not run")
            assert found["status"] != "exact" or found["error"] < engines.EXACT
            assert found["status"] == "exact" or found["why"]
    assert "nothing split" in record["columns"]["TRL"]["cells"]["dfpo"]["why"]


def test_the_page_is_written_from_the_numbers(tmp_path):
    page = tmp_path / "engines.md"
    page.write_text(engines.PAGE.read_text())
    engines.write_page(engines.RESULTS, page)
    assert page.read_text() == engines.PAGE.read_text()
    assert torch.is_tensor(drawn().logp)

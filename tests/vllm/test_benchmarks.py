"""Benchmarks against vLLM run end to end at toy size, on its CPU build."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

pytest.importorskip("vllm")


@pytest.mark.slow
def test_both_samplers_draw_the_same_lengths(tmp_path):
    asked = ["--toy", "--out", str(tmp_path), "--seconds", "300", "--each", "60"]
    subprocess.run([sys.executable, str(BENCHMARKS / "peers_scale.py"), *asked], check=True, timeout=330)
    results = json.loads((tmp_path / "peers_scale.json").read_text())["results"]["toy"]
    assert "failed" not in results
    for engines in results.values():
        assert set(engines) == {"equipoise", "vllm", "vllm in process"}
        assert len({row["tokens"] for row in engines.values()}) == 1
        assert all(not row["cut"] for row in engines.values())
        assert engines["vllm"]["times_as_long"] > 0


@pytest.mark.slow
def test_the_engines_weights_are_the_policys_after_every_call(tmp_path):
    script = [sys.executable, str(BENCHMARKS / "vllm_engine.py"), "--toy"]
    subprocess.run([*script, "--out", str(tmp_path), "--seconds", "500"], check=True, timeout=520)
    rows = json.loads((tmp_path / "vllm_engine.json").read_text())["results"]["toy"]
    assert not [row for row in rows if "failed" in row]
    (engine,) = (row for row in rows if row["part"] == "engine")
    for moment in ("first", "moved"):
        found = engine[moment]["weights"]
        assert found["compared"] > 10
        assert not found["different"]
        assert not found["only_one_has"]
        assert engine[moment]["logprob_difference"]["max"] < 1e-4
    assert {row["engine"] for row in rows if row["part"] == "train"} == {"native", "vllm"}

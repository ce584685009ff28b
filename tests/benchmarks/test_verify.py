"""The labels of benchmarks/verify.py: what it calls wrong, the written rule calls wrong."""

from importlib import import_module
from pathlib import Path

from equipoise.verifiers.math import equal, extract
from tests.real_data import real_data


def test_no_pair_labelled_wrong_is_right(monkeypatch):
    """MATH-500 has a 5 beside an x=5, which answers it."""
    folder = real_data("benchmarks/math500.jsonl").parents[1]
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    pairs = import_module("verify").pairs(folder)
    wrong = [(gold, extract.answer(response).text or "") for response, gold, right in pairs if right is False]
    assert len(wrong) > 900
    assert [pair for pair in wrong if equal.quick(*pair)] == []

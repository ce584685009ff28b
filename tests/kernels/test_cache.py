"""The folder of compiled kernels, on a made-up one: no GPU is needed to find and count files."""

from pathlib import Path

import pytest

from equipoise.kernels import cache
from equipoise.train import announce


def test_the_folder_is_the_one_triton_takes(monkeypatch, tmp_path):
    for name in (cache.VARIABLE, "TRITON_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache.folder() == Path.home() / ".triton" / "cache"
    monkeypatch.setenv("TRITON_HOME", str(tmp_path / "home"))
    assert cache.folder() == tmp_path / "home" / ".triton" / "cache"
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "own"))
    assert cache.folder() == tmp_path / "own"
    triton = pytest.importorskip("triton.knobs")
    assert Path(triton.cache.dir) == cache.folder()


def test_compiled_kernels_are_counted(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    assert cache.count() == 0
    for name in ("a", "b"):
        (tmp_path / "cache" / name).mkdir(parents=True)
        (tmp_path / "cache" / name / "kernel.cubin").touch()
        (tmp_path / "cache" / name / "kernel.json").touch()
    assert cache.count() == 2


def test_a_folder_that_cannot_be_written_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "not" / "there" / "yet"))
    assert cache.problem() is None
    monkeypatch.setattr(cache.os, "access", lambda path, mode: False)
    assert cache.problem().endswith("so every run compiles its kernels anew; name another folder in TRITON_CACHE_DIR")


def test_what_opening_a_model_compiles_counts_as_this_runs(monkeypatch, tmp_path):
    """On CUDA a model's check against transformers already calls kernels, before a line is said.

    There it may compile its own besides the one made here.
    """
    from equipoise.train import Trainer, loop

    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    opened = loop.load_policy

    def compiling(given):
        (tmp_path / "cache" / "a").mkdir(parents=True)
        (tmp_path / "cache" / "a" / "norm.cubin").touch()
        return opened(given)

    monkeypatch.setattr(loop, "load_policy", compiling)
    trainer = Trainer(model="abacus", config={"train.out": str(tmp_path / "run")})
    assert trainer.kernels == 0 < cache.count()
    trainer.folder.unlock()


def test_a_run_says_what_was_compiled_and_nothing_where_all_was_there(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    assert announce.kernels_before(3).startswith(
        f"3 compiled ones in {tmp_path}; the first step compiles what is missing"
    )
    assert announce.kernels_after(cache.count(), 1) is None
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "kernel.cubin").touch()
    assert announce.kernels_after(0, 1) == f"step    1  kernels: 1 compiled, which later runs take from {tmp_path}"

"""Which TRL the plug-in takes, and that the script of `make test-trl-versions` tries those and no others."""

import runpy
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = runpy.run_path(str(ROOT / "scripts/trl_versions.py"))
LISTING = "trl (1.17.0)\nAvailable versions: 2.0.0, 1.17.0, 1.16.0, 1.15.1, 1.15.0, 1.14.2\n  INSTALLED: 1.16.0\n"


def test_every_accepted_release_is_tried_oldest_first():
    assert SCRIPT["releases"](LISTING) == ["1.15.0", "1.15.1", "1.16.0", "1.17.0"]
    with pytest.raises(SystemExit, match="pip lists no versions of trl"):
        SCRIPT["releases"]("ERROR: No matching distribution found for trl")


def test_tritons_interpreter_is_there_for_those_that_need_it(tmp_path):
    environment = SCRIPT["environment"]
    with pytest.raises(SystemExit, match="needs Triton"):
        environment("1.15.0", tmp_path, tmp_path / "interpreter")
    (tmp_path / "interpreter" / "triton").mkdir(parents=True)
    path = environment("1.15.0", tmp_path, tmp_path / "interpreter")["PYTHONPATH"].split(":")
    assert path[:2] == [str(tmp_path / "interpreter"), str(tmp_path / "1.15.0")]
    assert environment("1.16.0", tmp_path, tmp_path / "none")["PYTHONPATH"].split(":")[0] == str(tmp_path / "1.16.0")


def test_a_trl_that_is_too_old_is_refused_by_name(monkeypatch):
    old = types.ModuleType("trl")
    old.__version__, old.GRPOConfig, old.GRPOTrainer = "1.14.2", object, type("GRPOTrainer", (), {})
    monkeypatch.setitem(sys.modules, "trl", old)
    with pytest.raises(ImportError, match=r"trl 1\.14\.2 is too old .* must be 1\.15 or newer"):
        runpy.run_path(str(ROOT / "src/equipoise/integrations/trl/plugin.py"))

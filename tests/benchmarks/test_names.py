"""What benchmarks and scripts import from the package is there: most run on a GPU only, no other test opens them."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "scripts").rglob("*.py")])


def imported(file):
    """(module, name) of every import from the package; an empty name for a whole module."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "equipoise":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "equipoise")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_imported_name_exists(file):
    for module, name in imported(file):
        try:
            if hasattr(importlib.import_module(module), name) or not name:
                continue
            importlib.import_module(f"{module}.{name}")  # a module of its own, or an error that names it
        except ImportError as missing:  # of a package that is not installed, or of a name of ours
            absent = missing if missing.__cause__ is None else missing.__cause__
            if (getattr(absent, "name", None) or "equipoise").split(".")[0] == "equipoise":
                raise
            pytest.skip(f"{absent.name} is not installed")

"""What benchmarks and scripts import from the package is there: most run on a GPU only, no other test opens them."""

import ast
import importlib
import importlib.util
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


def opened(name):
    """The module; a skip where a package that it needs is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        absent = (error.__cause__ or error).name or name
        if absent.startswith("equipoise"):
            raise
        pytest.skip(f"{absent} is not installed")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_imported_name_exists(file):
    for name, attribute in imported(file):
        assert importlib.util.find_spec(name) is not None, f"there is no module {name}"
        module = opened(name)
        is_module = hasattr(module, "__path__") and importlib.util.find_spec(f"{name}.{attribute}") is not None
        assert not attribute or hasattr(module, attribute) or is_module, f"{name} has no {attribute}"

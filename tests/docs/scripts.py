"""The scripts that build the site, imported from where they are."""

import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "scripts" / "docs"


def load(name):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
